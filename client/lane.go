package client

import (
	"sync"
	"time"

	"github.com/felixlog/felix/wire"
)

// lane is one shard of a producer: its batches in order, and how far each has
// come.
//
// A record joins cur. Full batches wait in full. When the connection is ready
// for more, the oldest is numbered and moves to unacked, where it stays, at most
// window of them (lane.window), until it is answered. unacked[:sent] are those sent on the
// present connection; unacked[sent:] were sent before and are to be sent again
// before anything new.
//
// A refusal or a lost connection makes the lane drain: nothing more is sent, the
// answers still due are awaited, then a goroutine of its own judges what became
// of each batch, connects and starts over (recover.go).
type lane struct {
	p      *Producer
	shard  int
	hasKey bool
	key    []byte

	mu    sync.Mutex
	state laneState
	pipe  *pipe
	// epoch counts connections, so that a late answer of an earlier one is known.
	epoch uint64

	cur     *batch
	full    []*batch
	unacked []*batch
	sent    int
	// outstanding counts answers due on the present connection.
	outstanding int
	// offered: the pipe knows that there is something to take.
	offered bool

	hasProducer  bool
	producerID   uint64
	nextSequence uint64
	// retries counts recoveries since the last success.
	retries backoff
	// cause is why the lane recovers.
	cause error
	// doubt: the stream may not have the shards by which the lane was placed. They
	// are asked for before the lane opens.
	doubt bool
}

type laneState uint8

const (
	// laneIdle: no connection, and nobody making one.
	laneIdle laneState = iota
	// laneConnecting: the lane's goroutine is at it.
	laneConnecting
	laneOpen
	// laneDraining: answers are awaited, nothing is sent.
	laneDraining
	laneClosed
)

// window is the most batches of a lane in flight: what the broker remembers of
// a producer.
const window = 64

// window is that of the lane's delivery. Sequences keep batches in order when one of them
// is refused and sent again; without them, what is sent again must have nothing behind it
// that could overtake it. At most once, nothing is but what shared a batch with a record
// that is too large.
func (l *lane) window() int {
	if l.p.key.delivery == AtLeastOnce {
		return 1
	}
	return window
}

func (l *lane) op() string { return "publish " + l.p.key.stream }

// flags are what the broker must read for this lane's batches.
func (l *lane) flags() wire.Flags {
	f := wire.PublishBatchFrame{Acked: true, Idempotent: l.idempotent(), HasKey: l.hasKey}
	return f.Flags()
}

func (l *lane) idempotent() bool { return l.p.key.delivery == Idempotent }

// add puts a record, whose bytes were reserved, into the lane. awaited: the caller waits for
// its answer next, and if there is a connection to read must call its readFor first.
// It is false when the lane is closed.
func (l *lane) add(payload []byte, awaited bool) (f Future, reads *pipe, ok bool) {
	c := &l.p.config
	l.mu.Lock()
	if l.state == laneClosed {
		l.mu.Unlock()
		return Future{}, nil, false
	}
	if l.cur != nil && !l.cur.fits(payload, c) {
		l.cur.seal()
		l.full = append(l.full, l.cur)
		l.cur = nil
	}
	if l.cur == nil {
		l.cur = l.newBatch()
		if c.linger > 0 {
			l.linger(l.cur)
		}
	}
	b := l.cur
	f = Future{b: b, index: b.add(payload)}
	b.awaited = awaited
	if awaited && l.state == laneOpen && l.pipe.claimNow() {
		reads = l.pipe
	}
	l.push()
	return f, reads, true
}

// linger lets b go when its time has come.
func (l *lane) linger(b *batch) {
	time.AfterFunc(l.p.config.linger, func() {
		l.mu.Lock()
		if l.cur != b {
			l.mu.Unlock()
			return
		}
		b.due = true
		l.push()
	})
}

// push gets things moving after something was added or became free, and
// unlocks.
func (l *lane) push() {
	var offer *pipe
	switch {
	case l.state == laneOpen:
		if !l.offered && l.sendable() {
			l.offered = true
			offer = l.pipe
		}
	case l.state == laneIdle:
		l.state = laneConnecting
		l.retries = l.p.client.config.retry.begin()
		l.p.wg.Go(l.recover)
	}
	l.mu.Unlock()
	if offer != nil {
		offer.offer(l)
	}
}

func (l *lane) sendable() bool {
	most := l.window()
	if l.outstanding >= most {
		return false
	}
	if l.sent < len(l.unacked) {
		return true
	}
	return len(l.unacked) < most && (len(l.full) > 0 || l.cur != nil && (l.cur.due || l.p.config.linger == 0))
}

// take gives the next batch to the connection, unless it is longer than most.
func (l *lane) take(p *pipe, dst []byte, most int) (out []byte, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.offered = false
	if l.pipe != p || l.state != laneOpen || !l.sendable() {
		return dst, false
	}
	if len(l.following().frame) > most {
		l.offered = true
		return dst, true
	}
	if l.sent == len(l.unacked) {
		l.number()
	}
	b := l.unacked[l.sent]
	id := l.p.client.requestID()
	if !p.expect(id, b, b.awaited && b.count == 1) {
		// The end of the pipe is on its way to us.
		return dst, false
	}
	wire.NumberPublish(b.frame, id, l.producerID, b.sequence)
	b.epoch, b.verdict = l.epoch, nil
	l.sent++
	l.outstanding++
	dst = append(dst, b.frame...)
	l.offered = l.sendable()
	return dst, l.offered
}

// following is the batch that is sent next, if the lane is sendable.
func (l *lane) following() *batch {
	switch {
	case l.sent < len(l.unacked):
		return l.unacked[l.sent]
	case len(l.full) > 0:
		return l.full[0]
	}
	return l.cur
}

// number moves the oldest waiting batch to unacked.
func (l *lane) number() {
	b := l.following()
	if len(l.full) > 0 {
		l.full[0] = nil
		if l.full = l.full[1:]; len(l.full) == 0 {
			l.full = nil
		}
	} else {
		l.cur = nil
		b.seal()
	}
	b.sequence = l.nextSequence
	l.nextSequence++
	l.unacked = append(l.unacked, b)
}

// answered is the answer to a batch, from the reader of its connection.
func (b *batch) answered(a *answer) {
	l := b.lane
	l.mu.Lock()
	if b.epoch != l.epoch || l.pipe == nil {
		// An answer that came while the connection was given up; the batch was
		// sent again, or will be.
		l.mu.Unlock()
		return
	}
	l.outstanding--
	var finished *batch
	switch {
	case a.failure == nil && a.refused == nil && a.message == nil:
		b.offset, b.hasOffset = a.offset, a.hasOffset
		l.remove(b)
		l.retries = l.p.client.config.retry.begin()
		finished = b
	default:
		verdict := *a
		b.verdict = &verdict
		if b.firstRefused.IsZero() {
			b.firstRefused = time.Now()
		}
		if err, final := l.finalAlone(b); final {
			b.fail(err)
			l.remove(b)
			finished = b
		} else if l.state == laneOpen {
			l.state = laneDraining
		}
	}
	if l.state == laneDraining && l.outstanding == 0 {
		l.startRecovery(nil)
		l.mu.Unlock()
	} else {
		l.push()
	}
	if finished != nil {
		finished.complete()
	}
}

// lost is never called for a batch: its lane hears by ended.
func (*batch) lost(error) {}

// remove takes a batch that was sent out of unacked.
func (l *lane) remove(b *batch) {
	for i, u := range l.unacked {
		if u != b {
			continue
		}
		copy(l.unacked[i:], l.unacked[i+1:])
		l.unacked[len(l.unacked)-1] = nil
		l.unacked = l.unacked[:len(l.unacked)-1]
		if i < l.sent {
			l.sent--
		}
		return
	}
}

// finalAlone judges a refusal that concerns nothing but its batch, which is so
// without sequences: at most once, every one; at least once, those that trying
// again cannot change.
func (l *lane) finalAlone(b *batch) (*Error, bool) {
	if l.idempotent() || b.splits() {
		return nil, false
	}
	err := b.refusal(l.op())
	switch {
	case l.p.key.delivery == AtMostOnce:
		return err, true
	case err.Retry == wire.RetryFatal:
		return err, true
	}
	return nil, false
}

// ended: the connection is gone.
func (l *lane) ended(p *pipe, cause error) {
	l.mu.Lock()
	if l.pipe != p {
		l.mu.Unlock()
		return
	}
	var finished []*batch
	for i := 0; i < l.sent; {
		b := l.unacked[i]
		switch {
		case b.verdict != nil:
		case l.p.key.delivery == AtMostOnce:
			b.fail(lost(l.op(), cause, true))
			finished = append(finished, b)
			l.remove(b)
			continue
		default:
			b.maybe = true
		}
		i++
	}
	l.outstanding = 0
	if l.state == laneOpen || l.state == laneDraining {
		l.startRecovery(lost(l.op(), cause, false))
	}
	l.mu.Unlock()
	for _, b := range finished {
		b.complete()
	}
}

// stop closes the lane for good and returns the batches that are left, with
// their errors, whose cause is why.
func (l *lane) stop(why error) (left []*batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == laneClosed {
		return nil
	}
	for i, b := range l.unacked {
		b.maybe = b.maybe || i < l.sent && b.verdict == nil
		b.fail(&Error{Op: l.op(), Retry: wire.RetryNow, Err: why})
		left = append(left, b)
	}
	if l.cur != nil {
		l.full = append(l.full, l.cur)
	}
	for _, b := range l.full {
		b.fail(&Error{Op: l.op(), Retry: wire.RetryNow, Err: why})
		left = append(left, b)
	}
	if l.pipe != nil {
		l.pipe.detach(l)
	}
	l.state, l.pipe, l.cur, l.full, l.unacked, l.sent = laneClosed, nil, nil, nil, nil, 0
	l.epoch++
	return left
}

// flush lets a lingering batch go and returns all that are not answered.
func (l *lane) flush() []*batch {
	l.mu.Lock()
	all := append(append([]*batch(nil), l.unacked...), l.full...)
	if l.cur != nil {
		l.cur.due = true
		all = append(all, l.cur)
	}
	if len(all) == 0 {
		l.mu.Unlock()
		return nil
	}
	l.push()
	return all
}

// startRecovery leaves the connection and lets the lane's goroutine take over.
// The lock is held.
func (l *lane) startRecovery(cause error) {
	p := l.pipe
	l.pipe = nil
	l.epoch++
	l.sent = 0
	l.offered = false
	l.cause = cause
	l.state = laneConnecting
	if p != nil {
		p.detach(l)
	}
	l.p.wg.Go(l.recover)
}
