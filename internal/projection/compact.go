package projection

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/time/rate"

	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// ErrSuperseded refuses a copy whose key has been written since: there is nothing
// left to copy.
var ErrSuperseded = errors.New("projection: the entry is no longer the newest")

// CompactLog is the part of a log that compaction needs; *storage.Log is one.
type CompactLog interface {
	Source
	Segments() []storage.Descriptor
	Enqueue(*storage.Batch) error
	Drive(inline bool)
	Sync(ctx context.Context) error
	Seal(ctx context.Context) (storage.SealedSegment, error)
	TrimHead(ctx context.Context, to storage.Offset) (storage.RetentionResult, error)
}

// Reading says what of a log is still needed. Latest is that of a Projection; a reading
// that needs more than the newest record of a key brings its own.
type Reading interface {
	// Applied is one past the last record the reading knows.
	Applied() segment.Offset
	// LiveBytes is what the log would hold if nothing in it were superseded.
	LiveBytes() int64
	// Restate calls f with the key and the payload of each record that has to be
	// appended so that rec can go, and returns how many entries of rec need none. One
	// restatement of a key serves every record before it, so f may be called again with
	// the same key. The key is valid during the call; the payload is f's.
	Restate(rec *segment.Record, f func(key, payload []byte) error) (dropped int, err error)
}

// Copier makes the record that restates a key's value at the tail.
type Copier interface {
	// Copy returns the payload of a record that says of c.Key what rec says, with
	// ref.Version as its origin.
	Copy(rec *segment.Record, c Change, ref Ref) ([]byte, error)
}

// Latest is the Reading of a projection: a record is needed by the keys whose newest
// record it is.
type Latest struct {
	*Projection
	Copier Copier
	// Expired reports whether an entry's deadline has passed; such an entry is not
	// restated. Nil keeps all.
	Expired func(Millis) bool
}

// LiveBytes implements Reading.
func (l Latest) LiveBytes() (n int64) {
	l.View(func(x *Index) { n = x.LiveBytes() })
	return n
}

// Restate implements Reading.
func (l Latest) Restate(rec *segment.Record, f func(key, payload []byte) error) (dropped int, err error) {
	if !l.names(rec.Offset) {
		return 1, nil
	}
	err = l.codec.Changes(rec, func(c Change) error {
		ref, ok := l.Get(c.Key)
		if !ok || ref.Offset != rec.Offset || ref.Expires != 0 && l.Expired != nil && l.Expired(ref.Expires) {
			dropped++
			return nil
		}
		payload, err := l.Copier.Copy(rec, c, ref)
		if err != nil {
			return err
		}
		return f(c.Key, payload)
	})
	return dropped, err
}

// Copy is the User of a batch that compaction appends. The owner's Admit hook asks
// Superseded, and refuses with ErrSuperseded, before the copy gets its offset.
type Copy struct {
	Key  []byte
	From segment.Offset // the record that is copied
}

// Superseded reports whether something newer than the copied record is known of the
// key, in flight included. The caller holds the pen.
func (c *Copy) Superseded(p *Projection, inFlight *Pending) bool {
	if _, ok := inFlight.Get(c.Key); ok {
		return true
	}
	ref, ok := p.Get(c.Key)
	return !ok || ref.Offset != c.From
}

// CompactOptions tune a Compactor; zero fields get the defaults named.
type CompactOptions struct {
	// Ratio of the log's bytes to its live bytes above which compaction is due. 2.
	Ratio float64
	// MinBytes below which a log is left alone. 8 MiB.
	MinBytes int64
	// Pace bounds the bytes read from the log a second, as long as the log is not larger
	// than what makes compaction due; of a log that is n times as large, n times as much is
	// read, so that no writer outruns it for ever. Nil does not bound. See NewPace.
	Pace *rate.Limiter
}

// Compactor rewrites the live entries of a log's oldest segments at its tail and
// lets the segments go. It is used by one goroutine at a time.
type Compactor struct {
	log     CompactLog
	reading Reading
	opts    CompactOptions
	page    storage.Page
	next    segment.Offset // copied below this; within the oldest segment
	seen    map[string]struct{}
	copies  []*copying // of one page
	spare   []*copying // those of pages before, to be used again
}

// copying is a copy on its way.
type copying struct {
	storage.Batch
	copy    Copy
	payload [1][]byte
}

// NewCompactor returns a compactor for a log and what reads it.
func NewCompactor(log CompactLog, reading Reading, o CompactOptions) *Compactor {
	if o.Ratio == 0 {
		o.Ratio = 2
	}
	if o.MinBytes == 0 {
		o.MinBytes = 8 << 20
	}
	return &Compactor{log: log, reading: reading, opts: o, seen: map[string]struct{}{}}
}

// Due reports whether the log holds enough that nothing names to be worth a pass.
func (c *Compactor) Due() bool { return c.excess() > 1 }

// excess is the size of the log in parts of what makes compaction due.
func (c *Compactor) excess() float64 {
	var total int64
	for _, s := range c.log.Segments() {
		total += s.Bytes
	}
	return float64(total) / max(float64(c.opts.MinBytes), c.opts.Ratio*float64(c.reading.LiveBytes()))
}

// CompactResult says what one pass did.
type CompactResult struct {
	Copied, Dropped int   // records
	Bytes           int64 // given back
	Written         int64 // payload of the records copied
}

// compactPage bounds what one read of a pass takes.
const compactPage = 256 << 10

// NewPace reads so many bytes a second, a page at a time: what a compaction has saved up
// it would take in one piece, and hold up those who write meanwhile for as long.
func NewPace(bytes int) *rate.Limiter { return rate.NewLimiter(rate.Limit(bytes), compactPage) }

// Segment compacts the oldest segment: its live entries are appended at the tail, and
// when they are durable it is deleted. If the log is one active segment that is sealed
// first. An error leaves the log as good as before; copies already made are harmless.
func (c *Compactor) Segment(ctx context.Context) (CompactResult, error) {
	var res CompactResult
	segs := c.log.Segments()
	if len(segs) == 0 {
		return res, nil
	}
	oldest := segs[0]
	if !oldest.Sealed {
		if oldest.Next == oldest.Base {
			return res, nil
		}
		if _, err := c.log.Seal(ctx); err != nil {
			return res, fmt.Errorf("compact segment %d: %w", oldest.ID, err)
		}
		if oldest = c.log.Segments()[0]; !oldest.Sealed {
			return res, nil
		}
	}
	if c.next < oldest.Base || c.next > oldest.Next {
		c.next = oldest.Base
	}
	if c.reading.Applied() < oldest.Next {
		return res, nil // not caught up: the index cannot say yet what is live
	}
	defer func() { c.copies, c.spare = nil, nil }() // a compactor at rest keeps none
	for c.next < oldest.Next {
		if err := c.copyPage(ctx, oldest.Next, &res); err != nil {
			return res, fmt.Errorf("compact segment %d at record %d: %w", oldest.ID, c.next, err)
		}
	}
	if err := c.log.Sync(ctx); err != nil {
		return res, fmt.Errorf("compact segment %d: flush of its copies: %w", oldest.ID, err)
	}
	trimmed, err := c.log.TrimHead(ctx, oldest.Next)
	res.Bytes = trimmed.Bytes
	if err != nil {
		return res, fmt.Errorf("compact segment %d: %w", oldest.ID, err)
	}
	return res, nil
}

// copyPage copies what is live of one page and waits until the copies are stable.
func (c *Compactor) copyPage(ctx context.Context, end segment.Offset, res *CompactResult) error {
	err := c.log.Read(ctx, &c.page, storage.ReadRange{From: c.next, End: end, MaxBytes: compactPage})
	if err != nil {
		return err
	}
	if len(c.page.Records) == 0 {
		return fmt.Errorf("records [%d, %d) are missing", c.next, end)
	}
	if c.opts.Pace != nil {
		read := 0
		for i := range c.page.Records {
			read += c.page.Records[i].Size
		}
		read = int(float64(read) / max(1, c.excess()))
		if err := c.opts.Pace.WaitN(ctx, min(read, c.opts.Pace.Burst())); err != nil {
			return err
		}
	}
	if err := c.liveEntries(res); err != nil {
		return err
	}
	if err := c.append(ctx, res); err != nil {
		c.copies, c.spare = nil, nil // some may be in flight yet
		return err
	}
	c.next = c.page.Next
	return nil
}

// liveEntries makes the copies of a page.
func (c *Compactor) liveEntries(res *CompactResult) error {
	c.spare = append(c.spare, c.copies...)
	c.copies = c.copies[:0]
	clear(c.seen)
	for i := range c.page.Records {
		rec := &c.page.Records[i]
		dropped, err := c.reading.Restate(rec, func(key, payload []byte) error {
			if _, again := c.seen[string(key)]; again {
				res.Dropped++ // what restates the key once restates it for the whole page
				return nil
			}
			c.seen[string(key)] = struct{}{}
			c.copies = append(c.copies, c.newCopy(key, payload, rec.Offset))
			return nil
		})
		res.Dropped += dropped
		if err != nil {
			return &UnreadableError{Offset: rec.Offset, Err: err}
		}
	}
	return nil
}

func (c *Compactor) newCopy(key, payload []byte, from segment.Offset) *copying {
	var k *copying
	if n := len(c.spare); n > 0 {
		k, c.spare = c.spare[n-1], c.spare[:n-1]
	} else {
		k = new(copying)
	}
	k.payload[0] = payload
	k.copy.Key, k.copy.From = append(k.copy.Key[:0], key...), from
	k.Batch = storage.Batch{Payloads: k.payload[:], UseReserve: true, User: &k.copy}
	return k
}

// maxCopiesInFlight bounds what a compactor has queued in the log, so that publishers
// of the same log find room.
const maxCopiesInFlight = 256

// append writes the copies and waits until they are stable.
func (c *Compactor) append(ctx context.Context, res *CompactResult) error {
	copies := c.copies
	done := make(chan *storage.Batch, maxCopiesInFlight) // Done never blocks: no more are in flight
	finished := func(b *storage.Batch) { done <- b }
	flying := 0
	var first error
	settle := func(b *storage.Batch) {
		flying--
		switch {
		case b.Err == nil:
			res.Copied++
			res.Written += int64(len(b.Payloads[0]))
		case errors.Is(b.Err, ErrSuperseded):
			res.Dropped++
		case first == nil:
			first = b.Err
		}
	}
	for len(copies) > 0 && first == nil || flying > 0 {
		for len(copies) > 0 && flying < maxCopiesInFlight && first == nil {
			b := &copies[0].Batch
			b.Done = finished
			if err := c.log.Enqueue(b); err != nil {
				if errors.Is(err, storage.ErrQueueFull) && flying > 0 {
					break // goes on when some of ours are through
				}
				first = err
				break
			}
			copies = copies[1:]
			flying++
		}
		c.log.Drive(true)
		if flying == 0 {
			break
		}
		select {
		case b := <-done:
			settle(b)
		case <-ctx.Done():
			// The copies in flight complete into the buffered channel; they are harmless.
			return ctx.Err()
		}
	}
	return first
}
