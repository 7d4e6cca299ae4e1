package storage

import (
	"context"
	"fmt"
	"runtime"
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

// waiter is the part of a batch that an Append waits on. It is woken for one of two
// reasons, that the batch is complete or that it is to look for work, and may be woken
// for none. It takes a channel only when it has to block.
type waiter struct {
	state atomic.Uint32
	duty  atomic.Bool // it was counted in pumps; set under the log's mutex
	at    atomic.Pointer[parking]
}

// parking is where a waiter blocks. A wake that comes late may meet its next user.
type parking struct{ ch chan struct{} }

const (
	waiterNone   uint32 = iota // nobody waits
	waiterRuns                 // its goroutine will look at state and duty before it blocks
	waiterParked               // it blocks, or is about to, after another look at duty
	waiterLast                 // its batch's Done runs; it cannot leave any more
	waiterDone                 // its batch is complete
	waiterLeft                 // its goroutine went away
)

// yields is how often a waiter lets others run before it blocks.
const yields = 2

func newParking() any { return &parking{ch: make(chan struct{}, 1)} }

func (w *waiter) wake() {
	if p := w.at.Load(); p != nil {
		select {
		case p.ch <- struct{}{}:
		default:
		}
	}
}

// complete runs b's Done and tells who waits. With Done the batch is its owner's again,
// unless an Append still waits for it; then when that is told.
func (b *Batch) complete() {
	w := &b.wait
	switch {
	case b.Done == nil:
		if w.state.Swap(waiterDone) == waiterParked {
			w.wake()
		}
	case w.state.Load() == waiterNone || w.state.Swap(waiterLast) == waiterLeft:
		b.Done(b)
	default:
		b.Done(b)
		w.state.Store(waiterDone)
		w.wake()
	}
}

func (w *waiter) done() bool { return w.state.Load() == waiterDone }

// checkBatch finds what makes b impossible, and how big it is.
func (l *Log) checkBatch(b *Batch) error {
	b.Err, b.First, b.Timestamp = nil, 0, 0
	b.admitted, b.next = false, nil
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
	m.charge(b)
	m.queue.push(b)
	return nil
}

// charge counts b as accepted and not completed. l.mu is held.
func (m *logMu) charge(b *Batch) {
	m.inCount++
	b.charge = b.size
	m.inBytes += b.charge
}

// belowReserve refuses a batch that may not use the disk's reserve.
func (l *Log) belowReserve() error {
	return &DiskFullError{Shard: l.shard, Dir: l.dir, Free: l.disk.space.free.Load(), Reserve: l.disk.opt.MinFree}
}

// Enqueue accepts b without doing any work: Drive or Step does that, or an Append under
// way. It does no I/O and never blocks. An error means that b was not accepted and that
// Done will not run: ErrQueueFull, ErrClosed, *DiskFullError, *PoisonedError,
// *RecordTooLargeError, *BatchTooLargeError.
func (l *Log) Enqueue(b *Batch) error {
	if err := l.checkBatch(b); err != nil {
		return err
	}
	if !b.UseReserve && l.disk.space.low() {
		return l.belowReserve()
	}
	b.wait.state.Store(waiterNone)
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
		return l.belowReserve()
	}
	if l.opt.Manual {
		return l.appendManual(b)
	}
	w := &b.wait
	l.mu.Lock()
	if l.alone(b) {
		l.appendAlone(b)
		l.mu.Unlock()
		return b.Err
	}
	if err := l.accept(b); err != nil {
		l.mu.Unlock()
		return err
	}
	w.state.Store(waiterRuns)
	if l.choose(false) == actNone {
		l.mu.Unlock()
	} else {
		l.mu.pumps++
		l.pump(&duty{own: w})
		if w.done() && !w.duty.Load() {
			return b.Err
		}
	}
	return l.await(ctx, b)
}

// alone says whether b, appended now, is written by itself at once, with nobody to be told
// but who appends: nothing that was accepted is without its answer, no one is at work, and
// there is no flush to wait for. l.mu is held.
func (l *Log) alone(b *Batch) bool {
	m := &l.mu
	return m.inCount == 0 && m.lastBatch <= 1 && m.state == StateServing && !m.closing &&
		!m.pen && !m.applying && !m.exclusive && m.exclusives == 0 &&
		l.opt.Fsync != OnCommit && b.Done == nil && l.opt.Hooks.Stable == nil
}

// appendAlone is the short way of a batch that is alone: the stages of the others, without
// the queue and the pump between them, which cost it 25 ns of 330 beside its write. What
// comes meanwhile queues, and is handed on. l.mu is held before and after, not meanwhile.
func (l *Log) appendAlone(b *Batch) {
	m := &l.mu
	m.pen, m.lastBatch = true, 1
	m.charge(b)
	g := l.getGroup()
	g.Batches = append(g.Batches, b)
	l.write(g)
	l.putGroup(m.completed()) // it is g: what has its outcome behind it was accepted later
	l.resume()
}

// await waits for b's completion, working meanwhile when it is told to.
func (l *Log) await(ctx context.Context, b *Batch) error {
	w := &b.wait
	if l.opt.Fsync != OnCommit {
		// Without a flush the answer is there once those who are ready had their turn: who
		// lets them have it seldom blocks, and then nobody has to wake it.
		for n := 0; n < yields && !w.done() && !w.duty.Load(); n++ {
			runtime.Gosched()
		}
		if w.done() && !w.duty.Load() {
			return b.Err
		}
	}
	p := l.disk.parkings.Get().(*parking)
	w.at.Store(p)
	for !w.done() {
		parked := w.state.CompareAndSwap(waiterRuns, waiterParked)
		if !parked && w.done() {
			break // completed since the look above, and who did so saw nobody to wake
		}
		if parked && w.duty.Load() {
			// Who gives a duty sets it before it looks whether to wake; this looks at it
			// after it parked.
		} else if !l.block(ctx, w, p) {
			return fmt.Errorf("%w: %w", ErrUnknownOutcome, ctx.Err())
		}
		w.state.CompareAndSwap(waiterParked, waiterRuns)
		l.takeDuty(w)
	}
	l.takeDuty(w) // it may have come with the completion
	w.at.Store(nil)
	select {
	case <-p.ch:
	default:
	}
	l.disk.parkings.Put(p)
	return b.Err
}

// block waits for a wake; false if ctx ended first and the batch was left.
func (l *Log) block(ctx context.Context, w *waiter, p *parking) bool {
	done := ctx.Done()
	if done == nil {
		<-p.ch
		return true
	}
	select {
	case <-p.ch:
		return true
	case <-done:
		return !l.leave(w)
	}
}

// takeDuty works if w was told to.
func (l *Log) takeDuty(w *waiter) {
	if w.duty.CompareAndSwap(true, false) {
		l.mu.Lock()
		l.pump(&duty{own: w})
	}
}

// leave gives up waiting; false if the batch was completed meanwhile.
func (l *Log) leave(w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.state.CompareAndSwap(waiterParked, waiterLeft) {
		return false
	}
	if w.duty.CompareAndSwap(true, false) {
		l.startRunner()
	}
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
	b.wait.state.Store(waiterNone)
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
