package storage

import (
	"context"
	"fmt"
	"io"

	"github.com/felixlog/felix/storage/segment"
)

// CopySegment is one segment of a Copy, as far as the copy reaches.
type CopySegment struct {
	ID    SegmentID
	Base  Offset // of its first record
	Next  Offset // one past its last record in the copy
	Bytes int64  // header included
}

// Copy is the records [Head, End) of a log at one moment, kept from retention and
// compaction until Release, so that they can be written elsewhere while the log goes on.
// Its methods may be called beside anything the log does, by one goroutine at a time.
type Copy struct {
	Head, End Offset
	// Segments are those that hold the records, oldest first, and at least one: of a log
	// without records the one that says where it begins.
	Segments []CopySegment

	log     *Log
	headers []segment.Header
	release func()
}

// Copy cuts the log at end, or at Stable if end is past it, and holds what is below.
// What it holds is consistent: a segment that compaction or retention gave up before is
// not in it, and with it everything that was given up on account of what is.
// Release has to be called. ErrClosed when the log is closed.
func (l *Log) Copy(ctx context.Context, end Offset) (_ *Copy, err error) {
	c := &Copy{log: l, release: l.Hold(0)}
	defer func() {
		if err != nil {
			c.release()
		}
	}()
	// A trim that looked at the holds before this one may be under way. Behind it no
	// other takes anything, so the list below stays on disk.
	if err := l.lockTending(); err != nil {
		return nil, err
	}
	l.unlockTending()
	c.End = min(end, l.Stable())
	tail := l.Written() // before the list, so that the list reaches it
	sl := l.list.Load()
	c.Head = sl.head()
	if c.End < c.Head {
		return nil, fmt.Errorf("storage: a copy to %d of a log that begins at %d: %w", c.End, c.Head, &TrimmedError{Requested: c.End, Oldest: c.Head})
	}
	for i, s := range sl.all {
		if s.base >= c.End && i > 0 {
			break
		}
		next := min(sl.next(i, tail), c.End)
		size, err := l.endOf(ctx, s, next)
		if err != nil {
			return nil, err
		}
		c.Segments = append(c.Segments, CopySegment{ID: s.id, Base: s.base, Next: next, Bytes: size})
		c.headers = append(c.headers, segment.Header{Version: s.version(), BaseOffset: s.base, CreatedAt: s.created})
	}
	return c, nil
}

// endOf is the position in s behind the record before next.
func (l *Log) endOf(ctx context.Context, s *segmentFile, next Offset) (pos int64, err error) {
	if next == s.base {
		return segment.HeaderSize, nil
	}
	f, err := s.handle.acquire()
	if err != nil {
		return 0, l.readError(err)
	}
	defer s.handle.release()
	at := segment.ScanStart{Shard: l.shard, Segment: s.id}
	var buf segment.ReadBuffer
	limits := segment.ReadLimits{From: next - 1, End: next, EndPosition: s.size.Load(), MaxBytes: 1, MaxRecords: 1}
	for _, locate := range []func(context.Context, *segmentFile, Offset) (int64, Offset, error){l.locate, l.relocate} {
		if at.Position, at.Offset, err = locate(ctx, s, next-1); err != nil {
			return 0, l.readError(err)
		}
		buf.Reset()
		res, readErr := segment.ReadInto(ctx, f, at, limits, &buf)
		if readErr == nil && res.Next == next {
			return res.Position, nil
		}
		if err = readErr; err == nil {
			err = fmt.Errorf("segment %d ends before offset %d", s.id, next)
		}
		if !isCorruption(err) {
			break // only an index that leads nowhere is worth a second look
		}
	}
	return 0, l.readError(err)
}

// copyChunk is how many bytes of records are read and verified at once.
const copyChunk = 1 << 20

// WriteSegment writes the i-th segment to w, Segments[i].Bytes of it: its header, and its
// records as they are on disk, each verified before it is written. Errors: *DamagedError,
// ErrClosed, what w says.
func (c *Copy) WriteSegment(ctx context.Context, i int, w io.Writer) error {
	s := &c.Segments[i]
	buf := segment.AppendHeader(nil, c.headers[i])
	written := int64(0)
	for next := s.Base; ; {
		n, err := w.Write(buf)
		written += int64(n)
		if err != nil {
			return err
		}
		if next == s.Next {
			break
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		buf, next, err = c.log.readEncoded(ctx, next, int(min(copyChunk, s.Bytes-written)), buf[:0], s.Next)
		if err != nil {
			return c.log.readError(err)
		}
	}
	if written != s.Bytes {
		return fmt.Errorf("storage: segment %d of %s was cut while it was copied: %d bytes instead of %d", s.ID, c.log.shard, written, s.Bytes)
	}
	return nil
}

// Release lets retention and compaction go on. The copy is of no more use. It may be
// called more than once.
func (c *Copy) Release() { c.release() }
