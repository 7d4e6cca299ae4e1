package storage

import (
	"context"
	"errors"
	"hash/crc32"
	"io"
)

// ErrNothingToSeal reports a log without a segment that has records.
var ErrNothingToSeal = errors.New("storage: nothing to seal")

// Seal ends the active segment, if it has records, and returns the newest sealed segment
// with the checksum of its file.
func (l *Log) Seal(ctx context.Context) (SealedSegment, error) {
	if err := l.Sync(ctx); err != nil {
		return SealedSegment{}, err
	}
	if err := l.rollAndSeal(ctx); err != nil {
		return SealedSegment{}, err
	}
	sl := l.list.Load()
	if len(sl.all) < 2 {
		return SealedSegment{}, ErrNothingToSeal
	}
	s := sl.all[len(sl.all)-2]
	f, err := s.handle.acquire()
	if err != nil {
		return SealedSegment{}, l.readError(err)
	}
	defer s.handle.release()
	h := crc32.NewIEEE()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, s.size.Load())); err != nil {
		return SealedSegment{}, l.readError(err)
	}
	return SealedSegment{Descriptor: s.descriptor(s.next), CRC32: h.Sum32()}, nil
}
