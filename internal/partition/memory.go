package partition

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/storage"
)

// memory is an in-memory shard: the newest batches for those who begin in the past, and
// a queue per subscriber. A publish is applied at once, on its own goroutine, unless a
// subscriber that blocks has a full queue: then it is held, in order, and applied by
// the goroutine that makes room, or by the timer that ends whoever made none.
type memory struct {
	p *Partition

	mu struct {
		sync.Mutex
		replay    *stream.Replay
		producers stream.Producers
		subs      []*Subscription
		full      int // subscriptions whose queue blocks
		held      []*Publish
		heldBytes int64
		timer     *time.Timer // while publishes are held
		armed     uint64      // counts arming: an old timer that fires late is told apart
		stopped   error
	}
	firing sync.WaitGroup // timers armed and not done
}

// memorySubscription is what an in-memory shard keeps of a subscription, under its lock.
type memorySubscription struct {
	history []*stream.Envelope // from before it was registered; never dropped
	queue   *stream.Queue
	full    bool   // counted in memory.mu.full
	takes   uint64 // rises with each batch taken
	seen    uint64 // takes when publishes began to be held
	ended   error
}

func newMemory(p *Partition) *memory {
	m := &memory{p: p}
	m.mu.replay = stream.NewReplay(p.o.ReplayBatches, p.o.ReplayBytes)
	return m
}

func (m *memory) publish(b *Publish, publisher []byte) error {
	b.publisher = publisher
	m.mu.Lock()
	if err := m.mu.stopped; err != nil {
		m.mu.Unlock()
		return err
	}
	if len(m.mu.held) > 0 || m.mu.full > 0 {
		err := m.hold(b)
		m.mu.Unlock()
		return err
	}
	m.apply(b)
	m.mu.Unlock()
	m.p.subs.wake()
	b.finish()
	return nil
}

// hold queues b until the subscribers that block have room.
func (m *memory) hold(b *Publish) error {
	if len(m.mu.held) > 0 && m.mu.heldBytes+b.cost > int64(m.p.o.HeldBytes) {
		return overloads[ScopeShard]
	}
	m.mu.held = append(m.mu.held, b)
	m.mu.heldBytes += b.cost
	m.p.counters.Blocked.Add(1)
	if len(m.mu.held) == 1 {
		m.arm()
	}
	return nil
}

// apply gives b its place and offers it to every subscriber.
func (m *memory) apply(b *Publish) {
	first := m.mu.replay.Next()
	if b.Idempotent {
		_, err := m.mu.producers.Admit(b.ProducerID, b.Sequence, len(b.Payloads), b.digest, first)
		if errors.Is(err, stream.ErrDuplicate) {
			b.Duplicate = true
			return
		}
		if b.Err = err; err != nil {
			return
		}
		m.mu.producers.Stable(first + storage.Offset(len(b.Payloads)))
	}
	e := stream.NewEnvelope(first, b.publisher, b.Payloads)
	m.mu.replay.Add(e)
	for _, s := range m.mu.subs {
		q := s.memory.queue
		queued, dropped := q.Offer(e)
		if dropped > 0 {
			if queued {
				m.p.counters.DroppedOld.Add(uint64(dropped))
			} else {
				m.p.counters.DroppedNew.Add(uint64(dropped))
			}
			s.dropped.Add(uint64(dropped))
		}
		if !s.memory.full && q.Blocks() {
			s.memory.full = true
			m.mu.full++
		}
	}
}

// drain applies what is held as far as there is room. The caller wakes the subscribers
// and finishes what it returns, without the lock.
func (m *memory) drain() []*Publish {
	n := 0
	for n < len(m.mu.held) && m.mu.full == 0 {
		b := m.mu.held[n]
		m.apply(b)
		m.mu.heldBytes -= b.cost
		n++
	}
	if n == 0 {
		return nil
	}
	done := slices.Clone(m.mu.held[:n])
	m.mu.held = slices.Delete(m.mu.held, 0, n)
	m.disarm()
	if len(m.mu.held) > 0 {
		m.arm()
	}
	return done
}

func (m *memory) answer(done []*Publish) {
	if len(done) == 0 {
		return
	}
	m.p.subs.wake()
	for _, b := range done {
		b.finish()
	}
}

// arm starts the time a full subscriber has to take something.
func (m *memory) arm() {
	m.mu.armed++
	for _, s := range m.mu.subs {
		s.memory.seen = s.memory.takes
	}
	n := m.mu.armed
	m.firing.Add(1)
	m.mu.timer = time.AfterFunc(m.p.o.BlockFor, func() {
		defer m.firing.Done()
		m.expire(n)
	})
}

func (m *memory) disarm() {
	m.mu.armed++
	if m.mu.timer != nil && m.mu.timer.Stop() {
		m.firing.Done()
	}
	m.mu.timer = nil
}

// expire ends the subscribers that took nothing since the n-th arming and are full.
func (m *memory) expire(n uint64) {
	var ended []*Subscription
	m.mu.Lock()
	if m.mu.armed != n || len(m.mu.held) == 0 {
		m.mu.Unlock()
		return
	}
	m.mu.timer = nil
	for _, s := range slices.Clone(m.mu.subs) {
		if s.memory.full && s.memory.takes == s.memory.seen {
			s.memory.ended = ErrSlow
			m.forget(s)
			ended = append(ended, s)
		}
	}
	done := m.drain()
	if done == nil && len(m.mu.held) > 0 {
		m.arm()
	}
	m.mu.Unlock()
	for _, s := range ended {
		m.p.counters.SlowEnded.Add(1)
		if m.p.o.Events.OnSlow != nil {
			m.p.o.Events.OnSlow(m.p.name, s)
		}
		m.p.subs.remove(m.p, s)
		s.signal()
	}
	m.answer(done)
}

// forget takes s off the shard: it holds nothing back from now on.
func (m *memory) forget(s *Subscription) {
	if i := slices.Index(m.mu.subs, s); i >= 0 {
		m.mu.subs = slices.Delete(m.mu.subs, i, i+1)
	}
	if s.memory.full {
		s.memory.full = false
		m.mu.full--
	}
	s.memory.queue.Clear()
	s.memory.history = nil
}

func (m *memory) subscribe(s *Subscription, start Start) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.mu.stopped; err != nil {
		return err
	}
	oldest, tail := m.mu.replay.Oldest(), m.mu.replay.Next()
	pos := tail
	switch start.kind {
	case startEarliest:
		pos = oldest
	case startOffset:
		if start.offset > tail {
			return &InFutureError{Requested: start.offset, Available: tail}
		}
		if start.offset < oldest {
			return &TooOldError{Requested: start.offset, Available: oldest}
		}
		pos = start.offset
	case startTime:
		return ErrMemoryStream // no times are kept
	}
	s.start, s.live = pos, tail
	s.position.Store(uint64(pos))
	s.memory.queue = stream.NewQueue(m.p.o.Overflow, s.capacity, m.p.o.QueueBytes)
	if pos < tail {
		s.memory.history = m.mu.replay.From(nil, pos)
	}
	if err := m.p.subs.add(m.p, s); err != nil {
		return err
	}
	s.id = m.p.nextID()
	m.mu.subs = append(m.mu.subs, s)
	return nil
}

func (m *memory) unsubscribe(s *Subscription) {
	m.mu.Lock()
	m.forget(s)
	done := m.drain()
	m.mu.Unlock()
	m.p.subs.remove(m.p, s)
	m.answer(done)
}

func (m *memory) next(ctx context.Context, s *Subscription, d *Delivery) error {
	for {
		if s.closed.Load() {
			return ErrUnsubscribed
		}
		d.begin(s.Position())
		m.mu.Lock()
		m.take(s, d)
		done := m.drain()
		err := s.memory.ended
		if err == nil {
			err = m.mu.stopped
		}
		m.mu.Unlock()
		m.answer(done)
		if len(d.envelopes) > 0 {
			d.fill(s.shape)
			s.position.Store(uint64(d.Next))
			m.p.counters.DeliveredEvents.Add(uint64(d.Events))
			m.p.counters.DeliveredBytes.Add(uint64(d.Bytes))
			return nil
		}
		if err != nil {
			return err
		}
		d.idle()
		if err := m.wait(ctx, s); err != nil {
			return err
		}
	}
}

// take moves batches from s to d: history first, then the queue.
func (m *memory) take(s *Subscription, d *Delivery) {
	q := &s.memory
	for bytes := 0; bytes < deliveryBytes; {
		var e *stream.Envelope
		if len(q.history) > 0 {
			e = q.history[0]
			q.history[0] = nil
			if q.history = q.history[1:]; len(q.history) == 0 {
				q.history = nil
			}
		} else if e = q.queue.Take(); e == nil {
			break
		}
		bytes += e.Bytes
		q.takes++
		d.envelopes = append(d.envelopes, e)
	}
	if q.full && !q.queue.Blocks() {
		q.full = false
		m.mu.full--
	}
}

// fill makes the frames of the batches taken, from the position on.
func (d *Delivery) fill(shape stream.Shape) {
	from := d.First
	for _, e := range d.envelopes {
		for _, c := range e.Chunks {
			switch {
			case c.Next() <= from:
			case c.Base() < from:
				d.partial = c.FrameFrom(d.partial[:0], shape, from)
				d.add(d.partial, int(c.Next()-from))
			default:
				d.add(c.Frame(shape), c.Events())
			}
		}
		d.Next = e.End()
	}
}

func (m *memory) wait(ctx context.Context, s *Subscription) error {
	m.p.subs.enter(s)
	m.mu.Lock()
	ready := s.memory.queue.Len() > 0 || s.memory.ended != nil || m.mu.stopped != nil
	m.mu.Unlock()
	if ready || s.closed.Load() {
		return nil
	}
	select {
	case <-s.wakeup:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stop answers what is held with why, and ends the subscriptions after what is in
// their queues.
func (m *memory) stop(why error) {
	m.mu.Lock()
	m.mu.stopped = why
	held := m.mu.held
	m.mu.held, m.mu.heldBytes = nil, 0
	m.disarm()
	m.mu.Unlock()
	for _, b := range held {
		b.Err = why
		b.finish()
	}
	m.firing.Wait()
	m.p.subs.stop(why)
}

func (m *memory) positions() Positions {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := m.mu.replay.Next()
	return Positions{Oldest: m.mu.replay.Oldest(), Next: next, Stable: next, Readable: next, Live: next}
}

func (m *memory) bytes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.replay.Bytes()
}
