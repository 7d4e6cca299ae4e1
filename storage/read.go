package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/felixlog/felix/storage/segment"
)

// ReadLimit says how far a read may go.
type ReadLimit uint8

const (
	// LimitStable stops at Stable: what was or may be acknowledged.
	LimitStable ReadLimit = iota
	// LimitWritten stops at Written; what is above Stable may yet vanish.
	LimitWritten
)

// ReadRange asks for records.
type ReadRange struct {
	From       Offset
	End        Offset // stop before it; 0: no bound
	MaxBytes   int    // of payload; default 1 MiB. One record is returned in any case
	MaxRecords int    // default and at most Options.MaxRecordsPerRead
	Limit      ReadLimit
}

// Page is what a read returned. It keeps its memory from read to read; Records are views
// of it and change with the next read into it. A Page is one reader's: where it left off
// is remembered, so that reading on needs no search.
type Page struct {
	// Records are in offset order and without gaps; those of KindGenerationStart are
	// among them.
	Records []Record
	// Next is where to read on: one past the last record, or From when there is none.
	Next Offset

	buf segment.ReadBuffer
	at  place
}

// place is a record's byte position.
type place struct {
	s    *segmentFile
	next Offset
	pos  int64
	cuts uint64
}

// SegmentSource serves segments that are no longer kept here, for example from an object
// store.
type SegmentSource interface {
	// Oldest is the oldest offset that can be served, false when there is none.
	Oldest(ctx context.Context) (Offset, bool)
	// Segment opens the sealed segment that holds off.
	Segment(ctx context.Context, off Offset) (*SourceSegment, error)
}

// SourceSegment is a segment of a SegmentSource, open until Close.
type SourceSegment struct {
	Descriptor
	Content io.ReaderAt
	Index   []segment.IndexEntry // may be empty: reads then begin at the segment's start
	Close   func() error
}

const (
	// readAttempts bounds how often a read begins anew because the log was cut or
	// trimmed under it.
	readAttempts = 8
)

// Read reads the records of r into p: as many as fit the limits, over all segments. At
// or past the tail there are none and no error. Below the oldest record it fails with
// *TrimmedError, also when a trim overtakes it. Every record's checksum is verified; a
// record that fails it is a *DamagedError, behind the records that were read before it.
func (l *Log) Read(ctx context.Context, p *Page, r ReadRange) error {
	var err error
	for range readAttempts {
		cuts := l.cuts.Load()
		err = l.readOnce(ctx, p, r, cuts)
		if err == nil || ctx.Err() != nil || l.cuts.Load() == cuts && !gone(err) {
			return err
		}
	}
	return err
}

// gone says whether err may come from a file that was removed or closed under a reader.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrClosed)
}

func (l *Log) readOnce(ctx context.Context, p *Page, r ReadRange, cuts uint64) error {
	if r.MaxBytes <= 0 {
		r.MaxBytes = DefaultMaxReadBytes
	}
	if r.MaxRecords <= 0 || r.MaxRecords > l.opt.MaxRecordsPerRead {
		r.MaxRecords = l.opt.MaxRecordsPerRead
	}
	p.buf.Reset()
	p.Records, p.Next = nil, r.From
	// The tail is loaded before the list and the sizes, so that they reach it.
	tail := l.Stable()
	if r.Limit == LimitWritten {
		tail = l.Written()
	}
	end := tail
	if r.End > 0 {
		end = min(end, r.End)
	}
	sl := l.list.Load()
	next := r.From
	limits := segment.ReadLimits{MaxBytes: r.MaxBytes, MaxRecords: r.MaxRecords}
	var err error
	for next < end {
		limits.From, limits.End = next, end
		i := sl.find(next)
		var res segment.ReadResult
		if i < 0 {
			res, err = l.readSource(ctx, p, next, limits, sl.head())
		} else {
			res, err = l.readSegment(ctx, p, sl.all[i], next, limits, cuts)
		}
		if err != nil {
			break
		}
		if res.Next == next && !res.Full {
			err = fmt.Errorf("storage: segment ends before offset %d", next)
			break
		}
		next = res.Next
		if res.Full {
			break
		}
	}
	p.Records, p.Next = p.buf.Records, next
	if n := len(p.Records); n > 0 {
		p.Next = p.Records[n-1].Offset + 1
	}
	switch {
	case err == nil:
		return nil
	case l.Head() > p.Next && l.opt.Colder == nil:
		if len(p.Records) > 0 {
			return nil // the next read says so
		}
		return &TrimmedError{Requested: r.From, Oldest: l.Head()}
	case len(p.Records) > 0 && isCorruption(err):
		return nil // what is good first; the next read begins with the damage
	}
	return l.readError(err)
}

func corruptAt(err error, pos int64) bool {
	var c *segment.Corruption
	return errors.As(err, &c) && c.Position == pos
}

func isCorruption(err error) bool {
	var c *segment.Corruption
	return errors.As(err, &c)
}

func (l *Log) readError(err error) error {
	var t *TrimmedError
	switch {
	case errors.As(err, &t):
		return err
	case isCorruption(err):
		return &DamagedError{Dir: l.dir, Cause: err}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.mu.state == StateClosed:
		return ErrClosed
	case l.mu.spoilt:
		return l.mu.refusal() // a cut stopped half-way: what is asked for may be gone
	}
	return fmt.Errorf("storage: read %s: %w", l.dir, err)
}

// readSegment reads from one of the log's segments.
func (l *Log) readSegment(ctx context.Context, p *Page, s *segmentFile, next Offset, limits segment.ReadLimits, cuts uint64) (segment.ReadResult, error) {
	limits.EndPosition = s.size.Load()
	f, err := s.handle.acquire()
	if err != nil {
		return segment.ReadResult{}, err
	}
	defer s.handle.release()
	at := segment.ScanStart{Shard: l.shard, Segment: s.id}
	if p.at.s == s && p.at.next == next && p.at.cuts == cuts {
		at.Position, at.Offset = p.at.pos, next
	} else if at.Position, at.Offset, err = l.locate(ctx, s, next); err != nil {
		return segment.ReadResult{}, err
	}
	res, err := segment.ReadInto(ctx, f, at, limits, &p.buf)
	if err != nil && corruptAt(err, at.Position) && at.Position != segment.HeaderSize && len(p.buf.Records) == 0 && l.cuts.Load() == cuts {
		// It may be the index that is wrong.
		p.at = place{}
		if at.Position, at.Offset, err = l.relocate(ctx, s, next); err != nil {
			return segment.ReadResult{}, err
		}
		res, err = segment.ReadInto(ctx, f, at, limits, &p.buf)
	}
	if err != nil {
		p.at = place{}
		return res, err
	}
	p.at = place{s, res.Next, res.Position, cuts}
	return res, nil
}

// readSource reads below the head, from the colder source if there is one.
func (l *Log) readSource(ctx context.Context, p *Page, next Offset, limits segment.ReadLimits, head Offset) (res segment.ReadResult, err error) {
	src := l.opt.Colder
	if src == nil {
		return res, &TrimmedError{Requested: next, Oldest: head}
	}
	if oldest, ok := src.Oldest(ctx); !ok || next < oldest {
		if ok {
			head = min(head, oldest)
		}
		return res, &TrimmedError{Requested: next, Oldest: head}
	}
	s, err := src.Segment(ctx, next)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	at := segment.ScanStart{Shard: l.shard, Segment: s.ID, Position: segment.HeaderSize, Offset: s.Base}
	if e, ok := segment.LookupEntry(s.Index, next); ok {
		at.Position, at.Offset = e.Position, e.Offset
	}
	limits.EndPosition = s.Bytes
	return segment.ReadInto(ctx, s.Content, at, limits, &p.buf)
}

// locate gives the position of a record at or before off in s, from the index.
func (l *Log) locate(ctx context.Context, s *segmentFile, off Offset) (int64, Offset, error) {
	entries, err := l.indexOf(ctx, s)
	if err != nil {
		return 0, 0, err
	}
	if e, ok := segment.LookupEntry(entries, off); ok {
		return e.Position, e.Offset, nil
	}
	return segment.HeaderSize, s.base, nil
}

// relocate does the same after making the index anew.
func (l *Log) relocate(ctx context.Context, s *segmentFile, off Offset) (int64, Offset, error) {
	if _, active := s.entries(); !active {
		l.disk.indexes.drop(s)
		if _, err := l.rebuildIndex(ctx, s, "it leads to no record"); err != nil {
			return 0, 0, err
		}
	}
	return l.locate(ctx, s, off)
}

// indexOf gives the index entries of s: from memory, from its file, or made anew.
func (l *Log) indexOf(ctx context.Context, s *segmentFile) ([]segment.IndexEntry, error) {
	if e, ok := s.entries(); ok {
		return e, nil
	}
	if e, ok := l.disk.indexes.get(s); ok {
		return e, nil
	}
	size := s.size.Load()
	b, err := segment.ReadFile(l.fs, l.dir, segment.IndexName(s.id), indexFileLimit(size))
	if err != nil {
		return l.rebuildIndex(ctx, s, err.Error())
	}
	x, err := segment.DecodeIndex(b, s.base, l.opt.IndexSpacing, size)
	if err != nil {
		return l.rebuildIndex(ctx, s, err.Error())
	}
	l.disk.indexes.put(s, x)
	return x.Entries(), nil
}

// rebuildIndex makes the index of a sealed segment from its records. Damage in the
// segment ends it early: reads from there on find the damage themselves.
func (l *Log) rebuildIndex(ctx context.Context, s *segmentFile, why string) ([]segment.IndexEntry, error) {
	f, err := s.handle.acquire()
	if err != nil {
		return nil, err
	}
	defer s.handle.release()
	x := segment.NewIndex(s.base, l.opt.IndexSpacing)
	res, err := segment.Scan(ctx, f, s.size.Load(), segment.ScanStart{Shard: l.shard, Segment: s.id, Index: x}, nil)
	if err != nil {
		return nil, err
	}
	if res.Damage == nil && s.sealed.Load() {
		if err := segment.WriteFile(l.fs, l.dir, segment.IndexName(s.id), x.AppendTo(nil)); err != nil {
			l.backgroundError("write index", err)
		}
	}
	l.disk.indexes.put(s, x)
	if e := l.opt.Events.OnIndexRebuilt; e != nil {
		e(l.shard, s.id, why)
	}
	return x.Entries(), nil
}
