package storage

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/felixlog/felix/storage/segment"
)

// batchQueue is the batches that were accepted and have no offset yet, in order.
type batchQueue struct {
	head, tail *Batch
	n          int
	bytes      int64
}

func (q *batchQueue) push(b *Batch) {
	b.next = nil
	if q.tail == nil {
		q.head = b
	} else {
		q.tail.next = b
	}
	q.tail = b
	q.n++
	q.bytes += b.size
}

// take moves batches into dst: at least one, then as many as fit a group.
func (q *batchQueue) take(dst []*Batch) []*Batch {
	var bytes int64
	for q.head != nil {
		b := q.head
		if len(dst) > 0 && (bytes+b.size > groupBytes || len(dst) >= groupBatches) {
			break
		}
		bytes += b.size
		dst = append(dst, b)
		q.head, b.next = b.next, nil
	}
	if q.head == nil {
		q.tail = nil
	}
	q.n -= len(dst)
	q.bytes -= bytes
	return dst
}

// putBack puts batches that were taken last in front again.
func (q *batchQueue) putBack(bs []*Batch) {
	for i := len(bs) - 1; i >= 0; i-- {
		b := bs[i]
		b.next = q.head
		q.head = b
		if q.tail == nil {
			q.tail = b
		}
		q.n++
		q.bytes += b.size
	}
}

// groupQueue is groups in offset order.
type groupQueue struct{ head, tail *Group }

func (q *groupQueue) push(g *Group) {
	g.link = nil
	if q.tail == nil {
		q.head = g
	} else {
		q.tail.link = g
	}
	q.tail = g
}

func (q *groupQueue) pop() *Group {
	g := q.head
	if q.head = g.link; q.head == nil {
		q.tail = nil
	}
	g.link = nil
	return g
}

// waiter is what an Append waits on. It is woken for one of two reasons, that its batch
// is complete or that it is to look for work, and may be woken for none.
type waiter struct {
	state atomic.Uint32
	duty  atomic.Bool // it was counted in pumps; set under the log's mutex
	ch    chan struct{}
}

const (
	waiterRuns   uint32 = iota // its goroutine will look at state before it parks
	waiterParked               // it waits on ch
	waiterDone                 // its batch is complete
	waiterLeft                 // its goroutine went away
)

func newWaiter() any { return &waiter{ch: make(chan struct{}, 1)} }

func (w *waiter) wake() {
	select {
	case w.ch <- struct{}{}:
	default:
	}
}

// complete marks the batch complete; the batch is its owner's again after that.
func (w *waiter) complete() {
	if w.state.Swap(waiterDone) == waiterParked {
		w.wake()
	}
}

func (w *waiter) done() bool { return w.state.Load() == waiterDone }

// checkBatch finds what makes b impossible, and how big it is.
func (l *Log) checkBatch(b *Batch) error {
	b.Err, b.First, b.Timestamp = nil, 0, 0
	b.admitted, b.next, b.w = false, nil, nil
	b.size, b.version = 0, uint16(segment.MinVersion)
	switch {
	case b.Barrier:
		if len(b.Payloads) > 0 || len(b.Encoded) > 0 {
			return fmt.Errorf("storage: a barrier carries no records: %w", ErrEmptyBatch)
		}
		return nil
	case len(b.Encoded) > 0:
		return l.checkEncoded(b)
	case len(b.Payloads) == 0:
		return ErrEmptyBatch
	}
	switch b.Kind {
	case KindPlain, KindCommit:
	case KindGenerationStart:
		for _, p := range b.Payloads {
			if len(p) != 8 {
				return fmt.Errorf("storage: generation start of %d bytes, 8 are expected", len(p))
			}
		}
	default:
		return fmt.Errorf("storage: a batch of kind %v cannot be appended; set HasProducer for a producer's", b.Kind)
	}
	if b.HasProducer && b.Kind != KindPlain {
		return fmt.Errorf("storage: a producer's batch of kind %v cannot be stored", b.Kind)
	}
	trailer := 0
	if len(b.Publisher) > 0 {
		if len(b.Publisher) > segment.MaxPublisherSize {
			return fmt.Errorf("storage: publisher of %d bytes: %w", len(b.Publisher), segment.ErrPublisherTooLong)
		}
		trailer = len(b.Publisher) + 1
	}
	size := int64(len(b.Payloads)) * int64(segment.RecordHeaderSize+trailer)
	for _, p := range b.Payloads {
		if len(p)+trailer > l.opt.MaxRecordBytes {
			return &RecordTooLargeError{Size: len(p) + trailer, Max: l.opt.MaxRecordBytes}
		}
		size += int64(len(p))
	}
	version := b.Kind.LeastVersion()
	if b.HasProducer {
		size += segment.ProducerTagSize
		version = segment.VersionProducer
	}
	if trailer > 0 {
		version = max(version, segment.VersionPublisher)
	}
	if size > MaxBatchBytes {
		return &BatchTooLargeError{Size: size, Max: MaxBatchBytes}
	}
	b.size, b.version = size, uint16(version)
	return nil
}

// accept puts b into the queue, or says why not. l.mu is held.
func (l *Log) accept(b *Batch) error {
	m := &l.mu
	switch {
	case m.state == StatePoisoned:
		return m.poison
	case m.closing:
		return ErrClosed
	case m.inCount >= l.opt.QueueBatches, m.inBytes > 0 && m.inBytes+b.size > l.opt.QueueBytes:
		return ErrQueueFull
	}
	m.inCount++
	b.charge = b.size
	m.inBytes += b.charge
	m.queue.push(b)
	return nil
}

// Enqueue accepts b without doing any work: Drive or Step does that, or an Append under
// way. It does no I/O and never blocks. An error means that b was not accepted and that
// Done will not run: ErrQueueFull, ErrClosed, ErrDiskFull, *PoisonedError,
// *RecordTooLargeError, *BatchTooLargeError.
func (l *Log) Enqueue(b *Batch) error {
	if err := l.checkBatch(b); err != nil {
		return err
	}
	if !b.UseReserve && l.disk.space.low() {
		return ErrDiskFull
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accept(b)
}

// Append appends b and waits until it is as durable as the log's policy says. The calling
// goroutine writes and flushes itself where it can. The context ends the waiting, not the
// write: Append then answers ErrUnknownOutcome, and b and its payloads stay the log's
// until Done runs. With any other error none of the records is in the log, unless the
// error is ErrUnknownOutcome. Done, if set, runs before Append returns.
func (l *Log) Append(ctx context.Context, b *Batch) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotWritten, err)
	}
	if err := l.checkBatch(b); err != nil {
		return err
	}
	if !b.UseReserve && l.disk.space.low() {
		return ErrDiskFull
	}
	if l.opt.Manual {
		return l.appendManual(b)
	}
	w := l.disk.waiters.Get().(*waiter)
	w.state.Store(waiterRuns)
	b.w = w
	l.mu.Lock()
	if err := l.accept(b); err != nil {
		l.mu.Unlock()
		l.disk.waiters.Put(w)
		return err
	}
	if l.choose(&duty{}) != actNone {
		l.mu.pumps++
		l.pump(&duty{own: w})
	} else {
		l.mu.Unlock()
	}
	return l.await(ctx, b, w)
}

// await waits for b's completion, working meanwhile when it is told to.
func (l *Log) await(ctx context.Context, b *Batch, w *waiter) error {
	done := ctx.Done()
	for w.state.CompareAndSwap(waiterRuns, waiterParked) {
		if done == nil {
			<-w.ch
		} else {
			select {
			case <-w.ch:
			case <-done:
				if l.leave(w) {
					return fmt.Errorf("%w: %w", ErrUnknownOutcome, ctx.Err())
				}
			}
		}
		w.state.CompareAndSwap(waiterParked, waiterRuns)
		if w.duty.CompareAndSwap(true, false) {
			l.mu.Lock()
			l.pump(&duty{own: w})
		}
	}
	err := b.Err
	// A pump duty may have come with the completion.
	if w.duty.CompareAndSwap(true, false) {
		l.mu.Lock()
		l.pump(&duty{own: w})
	}
	select {
	case <-w.ch:
	default:
	}
	b.w = nil
	l.disk.waiters.Put(w)
	return err
}

// leave gives up waiting; false if the batch was completed meanwhile.
func (l *Log) leave(w *waiter) bool {
	l.mu.Lock()
	if !w.state.CompareAndSwap(waiterParked, waiterLeft) {
		l.mu.Unlock()
		return false
	}
	if w.duty.CompareAndSwap(true, false) {
		l.startRunner()
	}
	l.mu.Unlock()
	return true
}

// appendManual works until b is complete.
func (l *Log) appendManual(b *Batch) error {
	finished := false
	user := b.Done
	b.Done = func(b *Batch) {
		finished = true
		b.Done = user
		if user != nil {
			user(b)
		}
	}
	l.mu.Lock()
	err := l.accept(b)
	l.mu.Unlock()
	if err != nil {
		b.Done = user
		return err
	}
	for !finished && l.work1() {
	}
	if !finished {
		return fmt.Errorf("%w: nothing is left to do", ErrUnknownOutcome)
	}
	return b.Err
}
