package projection

import (
	"context"
	"fmt"
	"sync"

	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// Change is what one record says of one key.
type Change struct {
	Key     []byte
	Delete  bool
	Expires Millis
	// Version is the offset of the put that made the value: the record's own offset,
	// or the origin that a compaction copy carries.
	Version segment.Offset
}

// Codec reads changes out of records. The owner of the log gives it; it is a pure
// function of the bytes.
type Codec interface {
	// Changes calls f for each key that rec decides, in order. A record that decides
	// none (a generation start) calls nothing. A body it cannot read is an error
	// naming what is wrong with it; the projection adds where.
	Changes(rec *segment.Record, f func(Change) error) error
}

// UnreadableError is a record whose body the codec refuses. Nothing at or after it
// is applied.
type UnreadableError struct {
	Offset segment.Offset
	Err    error
}

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("projection: record %d: %v", e.Offset, e.Err)
}

func (e *UnreadableError) Unwrap() error { return e.Err }

// MissingError: the log should hold the records [From, To), and does not have the first.
type MissingError struct{ From, To segment.Offset }

func (e *MissingError) Error() string {
	return fmt.Sprintf("projection: records [%d, %d) are missing", e.From, e.To)
}

// OrderError is a record handed over out of order.
type OrderError struct{ Offset, Want segment.Offset }

func (e *OrderError) Error() string {
	return fmt.Sprintf("projection: record %d applied where %d was next", e.Offset, e.Want)
}

// Projection is a log read as key to latest record.
type Projection struct {
	codec Codec
	// change is p.changeLocked, made once.
	change func(Change) error
	mu     struct {
		sync.RWMutex
		index   *Index
		named   named // the records that index names
		applied segment.Offset
		rec     *segment.Record // that is being applied
	}
}

// New returns an empty projection whose next record is at from.
func New(codec Codec, from segment.Offset) *Projection {
	p := &Projection{codec: codec}
	p.change = p.changeLocked
	p.mu.index = NewIndex()
	p.mu.applied = from
	return p
}

// Applied is one past the last record applied.
func (p *Projection) Applied() segment.Offset {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.mu.applied
}

// Get returns where the newest record of key is. A key whose deadline has passed is
// still found; the caller compares Expires with its clock.
func (p *Projection) Get(key []byte) (Ref, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.mu.index.Get(key)
}

// View calls f with the index, which f must neither change nor keep.
func (p *Projection) View(f func(*Index)) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	f(p.mu.index)
}

// walkBlock is how many entries Walk visits before it lets others apply.
const walkBlock = 1024

// Walk calls f with the keys of the index, in no order, until f returns false. The index
// may change between two blocks of keys: a key that is there all the while is met, with
// its Ref of one moment; one that comes, goes, or goes and comes again meanwhile is met,
// or not, or twice. The key is valid during the call, and f must not use the Projection.
func (p *Projection) Walk(f func(key []byte, ref Ref) bool) {
	for n, more := 0, true; more; n += walkBlock {
		more = p.walkFrom(n, f)
	}
}

func (p *Projection) walkFrom(n int, f func(key []byte, ref Ref) bool) (more bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	more = n+walkBlock < int(p.mu.index.next)
	p.mu.index.eachFrom(n, n+walkBlock, func(key []byte, ref Ref) bool {
		on := f(key, ref)
		more = more && on
		return on
	})
	return more
}

// Apply takes the next record. A record before Applied is passed over, since catching
// up may have met it already; one after it is an *OrderError.
func (p *Projection) Apply(rec *segment.Record) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.applyLocked(rec)
}

func (p *Projection) applyLocked(rec *segment.Record) error {
	if rec.Offset < p.mu.applied {
		return nil
	}
	if rec.Offset > p.mu.applied {
		return &OrderError{Offset: rec.Offset, Want: p.mu.applied}
	}
	p.mu.rec = rec
	err := p.codec.Changes(rec, p.change)
	p.mu.rec = nil
	if err != nil {
		return &UnreadableError{Offset: rec.Offset, Err: err}
	}
	p.mu.applied++
	return nil
}

// changeLocked takes one change of the record that is being applied.
func (p *Projection) changeLocked(c Change) error {
	m, rec := &p.mu, p.mu.rec
	if c.Delete {
		if old, had := m.index.Delete(c.Key); had {
			m.named.remove(old.Offset)
		}
		return nil
	}
	old, had, err := m.index.Put(c.Key, Ref{Offset: rec.Offset, Version: c.Version, Expires: c.Expires, Size: uint32(rec.Size)})
	if err != nil {
		return err
	}
	if had && old.Offset == rec.Offset {
		return nil // the record decides the key again
	}
	// In this order a page of the set in which only this key is named stays.
	m.named.add(rec.Offset)
	if had {
		m.named.remove(old.Offset)
	}
	return nil
}

// names reports whether the record at offset may be the newest of a key; false is sure.
func (p *Projection) names(at segment.Offset) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.mu.named.has(at)
}

// Source is the part of a log that reading needs.
type Source interface {
	Head() storage.Offset
	Read(ctx context.Context, p *storage.Page, r storage.ReadRange) error
}

// CatchUp applies the records below end that were not applied yet, page by page. A
// head that has moved past Applied (retention, a reset replica) is a
// *storage.TrimmedError: the index cannot be trusted and the caller starts over.
func (p *Projection) CatchUp(ctx context.Context, log Source, end segment.Offset) error {
	return Replay(ctx, log, p.Applied(), end, p.Apply)
}

// replayBytes bounds one page of Replay.
const replayBytes = 1 << 20

// Replay calls f with each record in [from, end), in order; a record is valid during the
// call. It ends with the first error, of the log or of f, and with a *MissingError where
// the log holds no record below end.
func Replay(ctx context.Context, log Source, from, end segment.Offset, f func(*segment.Record) error) error {
	var page storage.Page
	for next := from; next < end; {
		if err := log.Read(ctx, &page, storage.ReadRange{From: next, End: end, MaxBytes: replayBytes}); err != nil {
			return err
		}
		for i := range page.Records {
			if err := f(&page.Records[i]); err != nil {
				return err
			}
		}
		if page.Next <= next {
			return &MissingError{From: next, To: end}
		}
		next = page.Next
	}
	return nil
}
