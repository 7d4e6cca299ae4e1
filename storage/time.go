package storage

import (
	"context"
	"errors"

	"github.com/felixlog/felix/storage/segment"
)

// OffsetForTime is the offset of the first record that is stable and not older than t;
// false when there is none, with the offset one past the last. Times ascend but where
// the clock was far ahead once: then it is the first record before which, or at which,
// a time of t or later was given.
func (l *Log) OffsetForTime(ctx context.Context, t Micros) (Offset, bool, error) {
	for range readAttempts {
		cuts := l.cuts.Load()
		off, ok, err := l.searchTime(ctx, t)
		if err == nil || ctx.Err() != nil || l.cuts.Load() == cuts && !gone(err) {
			return off, ok, err
		}
	}
	return 0, false, l.readError(errors.New("the log changes too often"))
}

func (l *Log) searchTime(ctx context.Context, t Micros) (Offset, bool, error) {
	tail := l.Stable()
	sl := l.list.Load()
	for i, s := range sl.all {
		if Micros(s.last.Load()) < t {
			continue
		}
		end := sl.next(i, tail)
		if s.base >= end {
			continue
		}
		off, ok, err := l.searchSegment(ctx, s, t, end)
		if err != nil {
			return 0, false, l.readError(err)
		}
		if ok && off < tail {
			return off, true, nil
		}
	}
	return tail, false, nil
}

// searchSegment finds the first record of s that is not older than t: a binary search
// over the index, then a look at the records of one interval.
func (l *Log) searchSegment(ctx context.Context, s *segmentFile, t Micros, end Offset) (Offset, bool, error) {
	entries, err := l.indexOf(ctx, s)
	if err != nil {
		return 0, false, err
	}
	f, err := s.handle.acquire()
	if err != nil {
		return 0, false, err
	}
	defer s.handle.release()
	size := s.size.Load()
	var buf segment.ReadBuffer
	lo, hi := 0, len(entries) // entries below lo are older than t, those from hi on are not
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		e := entries[mid]
		if e.Offset >= end {
			hi = mid
			continue
		}
		buf.Reset()
		_, err := segment.ReadInto(ctx, f, segment.ScanStart{Shard: l.shard, Segment: s.id, Position: e.Position, Offset: e.Offset},
			segment.ReadLimits{From: e.Offset, End: e.Offset + 1, EndPosition: size, MaxBytes: 1, MaxRecords: 1}, &buf)
		if err != nil {
			return 0, false, err
		}
		if len(buf.Records) == 1 && buf.Records[0].Timestamp < t {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	at := segment.ScanStart{Shard: l.shard, Segment: s.id, Position: segment.HeaderSize, Offset: s.base}
	if lo > 0 {
		at.Position, at.Offset = entries[lo-1].Position, entries[lo-1].Offset
	}
	for next := at.Offset; next < end; next = at.Offset {
		buf.Reset()
		res, err := segment.ReadInto(ctx, f, at, segment.ReadLimits{From: next, End: end, EndPosition: size, MaxBytes: 64 << 10, MaxRecords: 1024}, &buf)
		if err != nil {
			return 0, false, err
		}
		for i := range buf.Records {
			if buf.Records[i].Timestamp >= t {
				return buf.Records[i].Offset, true, nil
			}
		}
		if res.Next == next {
			break
		}
		at.Position, at.Offset = res.Position, res.Next
	}
	return 0, false, nil
}
