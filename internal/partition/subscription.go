package partition

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/storage"
)

// Start is where a subscription begins.
type Start struct {
	kind   startKind
	offset storage.Offset
	at     storage.Micros
}

type startKind uint8

const (
	startLatest startKind = iota
	startEarliest
	startOffset
	startTime
)

// StartLatest begins with the next record. It is the zero Start.
func StartLatest() Start { return Start{} }

// StartEarliest begins with the oldest record kept. It never fails.
func StartEarliest() Start { return Start{kind: startEarliest} }

// StartAt begins with the record at o. The tail itself is allowed and is the same as
// latest; past it is *InFutureError, below what is retained *TooOldError. Offsets
// compare as unsigned numbers: none wraps.
func StartAt(o storage.Offset) Start { return Start{kind: startOffset, offset: o} }

// StartTime begins with the first record that is not older than t; with the next one
// when all are older.
func StartTime(t storage.Micros) Start { return Start{kind: startTime, at: t} }

// SubscribeOptions say what a subscriber wants.
type SubscribeOptions struct {
	Start Start
	// Shape is what the subscriber can decode.
	Shape stream.Shape
	// QueueCapacity is the wished queue in published batches, 0 for the default. It is
	// granted between 1 and the limit. Only in-memory shards have queues.
	QueueCapacity int
	// Principal and Connection name the subscriber for operators.
	Principal, Connection string
}

// Subscription reads a shard from a position on. Next belongs to one goroutine; the
// other methods may be called from any.
type Subscription struct {
	p          *Partition
	id         uint64
	shape      stream.Shape
	principal  string
	connection string
	capacity   int
	start      storage.Offset
	live       storage.Offset
	earliest   bool // began at the earliest and has delivered nothing; Next's own

	position atomic.Uint64
	closed   atomic.Bool
	wakeup   chan struct{} // of size one: a second wake adds nothing
	queued   bool          // among the waiters; under subscribers.mu

	dropped atomic.Uint64      // batches its queue left out
	memory  memorySubscription // of an in-memory shard; under memory.mu
}

// Subscribe registers a subscription and gives its place. Errors: *TooOldError,
// *InFutureError, ErrClosed, ErrDeleted. ctx bounds the look-up of StartTime.
func (p *Partition) Subscribe(ctx context.Context, o SubscribeOptions) (*Subscription, error) {
	if err := p.serving(); err != nil {
		return nil, err
	}
	s := &Subscription{
		p: p, shape: o.Shape, principal: o.Principal, connection: o.Connection,
		earliest: o.Start.kind == startEarliest,
		wakeup:   make(chan struct{}, 1),
	}
	s.capacity = p.o.QueueCapacity
	if o.QueueCapacity > 0 {
		s.capacity = o.QueueCapacity
	}
	s.capacity = max(1, min(s.capacity, p.o.MaxQueueCapacity))
	if p.memory != nil {
		if err := p.memory.subscribe(s, o.Start); err != nil {
			return nil, err
		}
		return s, nil
	}
	// First registered, then the position: from here on the ring keeps what comes, and
	// the range before it is closed.
	if err := p.subs.add(p, s); err != nil {
		return nil, err
	}
	err := s.place(ctx, o.Start)
	if err == nil {
		err = s.probe(ctx)
	}
	if err != nil {
		p.subs.remove(p, s)
		return nil, err
	}
	s.id = p.nextID()
	return s, nil
}

// probe reads the record a subscription begins with. One that is damaged refuses it: a
// client that resumes where its reading ended is told why, and does not try for ever.
func (s *Subscription) probe(ctx context.Context) error {
	p, pos := s.p, s.Position()
	if pos >= p.readableNow() {
		return nil
	}
	var page storage.Page
	err := p.log.Read(ctx, &page, storage.ReadRange{From: pos, End: pos + 1, MaxRecords: 1, MaxBytes: 1})
	if p.damaged(err) {
		return err
	}
	return nil // anything else is met again by Next
}

// damaged says whether err is a damaged record, and tells the owner of the first.
func (p *Partition) damaged(err error) bool {
	if _, is := errors.AsType[*storage.DamagedError](err); !is {
		return false
	}
	p.damageTold.Do(func() {
		if p.o.Events.OnDamagedRead != nil {
			p.o.Events.OnDamagedRead(p.name, err)
		}
	})
	return true
}

func (s *Subscription) place(ctx context.Context, start Start) error {
	p := s.p
	tail := p.readableNow()
	pos := tail
	switch start.kind {
	case startEarliest:
		pos = min(p.log.Head(), tail)
	case startOffset:
		if start.offset > tail {
			return &InFutureError{Requested: start.offset, Available: p.live(tail)}
		}
		if head := p.log.Head(); start.offset < head {
			return &TooOldError{Requested: start.offset, Available: head}
		}
		pos = start.offset
	case startTime:
		at, found, err := p.log.OffsetForTime(ctx, start.at)
		if err != nil {
			return p.closedAs(err)
		}
		if found {
			pos = min(at, tail)
		}
	}
	s.start = pos
	s.live = max(p.live(tail), pos)
	s.position.Store(uint64(pos))
	return nil
}

// nextID gives subscription ids that are never zero.
func (p *Partition) nextID() uint64 {
	if p.o.NextID != nil {
		return p.o.NextID()
	}
	return p.ids.Add(1)
}

// ID is unique in the broker.
func (s *Subscription) ID() uint64 { return s.id }

// StartOffset is the first position that will be delivered.
func (s *Subscription) StartOffset() storage.Offset { return s.start }

// LiveOffset is the tail when the subscription was registered: records below it are
// history. Never below StartOffset.
func (s *Subscription) LiveOffset() storage.Offset { return s.live }

// HasOffsets says whether clients may be told of offsets: not those of an in-memory
// stream.
func (s *Subscription) HasOffsets() bool { return s.p.log != nil }

// QueueCapacity is what was granted, in published batches.
func (s *Subscription) QueueCapacity() int { return s.capacity }

// Position is the first offset that was not handed out yet.
func (s *Subscription) Position() storage.Offset { return storage.Offset(s.position.Load()) }

// Dropped is how many published batches its queue left out.
func (s *Subscription) Dropped() uint64 { return s.dropped.Load() }

// Principal names the subscriber for operators.
func (s *Subscription) Principal() string { return s.principal }

// Connection is the name of the subscriber's connection.
func (s *Subscription) Connection() string { return s.connection }

// Close ends the subscription: Next returns ErrUnsubscribed. It may be called again.
func (s *Subscription) Close() {
	if s.closed.Swap(true) {
		return
	}
	if s.p.memory != nil {
		s.p.memory.unsubscribe(s)
	} else {
		s.p.subs.remove(s.p, s)
	}
	s.signal()
	if f := s.p.o.Events.OnDropped; f != nil && s.Dropped() > 0 {
		f(s.p.name, s)
	}
}

// signal makes a Next that waits look again.
func (s *Subscription) signal() {
	select {
	case s.wakeup <- struct{}{}:
	default:
	}
}

// Next waits until there is something at the position and fills d with the frames of
// it: what is there, up to a bound, without waiting for more. Errors: ErrUnsubscribed,
// ErrClosed, ErrDeleted, ErrSlow (in memory), *TooOldError when retention overtook the
// position, a damaged record's error, ctx's.
func (s *Subscription) Next(ctx context.Context, d *Delivery) error {
	if s.p.memory != nil {
		return s.p.memory.next(ctx, s, d)
	}
	p := s.p
	for {
		if s.closed.Load() {
			return ErrUnsubscribed
		}
		pos := s.Position()
		d.begin(pos)
		end := p.readableNow()
		if pos < end {
			if err := s.read(ctx, d, pos, end); err != nil {
				p.damaged(err)
				return err
			}
			s.position.Store(uint64(d.Next))
			if d.Events > 0 {
				s.earliest = false
				p.counters.DeliveredEvents.Add(uint64(d.Events))
				p.counters.DeliveredBytes.Add(uint64(d.Bytes))
				return nil
			}
			if d.Next > pos {
				continue
			}
		}
		if err := p.subs.end(); err != nil && p.readableNow() == end {
			return err
		}
		if err := s.wait(ctx, d, end); err != nil {
			return err
		}
	}
}

// wait blocks until the readable bound is past end, or the subscription or the shard
// ends.
func (s *Subscription) wait(ctx context.Context, d *Delivery, end storage.Offset) error {
	p := s.p
	d.idle()
	all := p.subs.enter(s)
	if p.readableNow() > end || s.closed.Load() || p.subs.end() != nil {
		return nil
	}
	if all {
		p.ring.DropBelow(end)
	}
	select {
	case <-s.wakeup:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// read fills d with what is at pos, from the ring or from one page of the disk. Without
// an event, d.Next is past pos if looking again there may give one.
func (s *Subscription) read(ctx context.Context, d *Delivery, pos, end storage.Offset) error {
	p := s.p
	if p.ring.Collect(pos, end, deliveryBytes, &d.run) {
		for i, c := range d.run.Chunks {
			if i == 0 && pos > c.Base() {
				d.partial = c.FrameFrom(d.partial[:0], s.shape, pos)
				d.add(d.partial, int(c.Next()-pos))
				continue
			}
			d.add(c.Frame(s.shape), c.Events())
		}
		d.Next = d.run.Next
		return nil
	}
	return s.readDisk(ctx, d, pos, end)
}

func (s *Subscription) readDisk(ctx context.Context, d *Delivery, pos, end storage.Offset) error {
	p := s.p
	if d.buffers == nil {
		d.buffers = diskBufferPool.Get().(*diskBuffers)
	}
	b := d.buffers
	b.trim()
	err := p.log.Read(ctx, &b.page, storage.ReadRange{From: pos, End: end, MaxBytes: pageBytes, MaxRecords: pageRecords})
	if err != nil {
		if t, ok := errors.AsType[*storage.TrimmedError](err); ok {
			if s.earliest {
				// Nothing was promised but the oldest there is.
				d.Next = t.Oldest
				return nil
			}
			p.counters.Trimmed.Add(1)
			return &TooOldError{Requested: pos, Available: t.Oldest}
		}
		return p.closedAs(err)
	}
	p.counters.DiskPages.Add(1)
	var framed stream.Framed
	b.frames, framed = stream.AppendFrames(b.frames[:0], s.shape, pos, b.page.Records)
	b.used = len(b.frames)
	switch {
	case framed.Events > 0:
		d.add(b.frames, framed.Events)
		d.Next = framed.Next
	case b.page.Next < end:
		d.Next = b.page.Next // a page without a single event
	}
	return nil
}
