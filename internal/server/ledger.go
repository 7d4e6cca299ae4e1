package server

import (
	"slices"

	"github.com/felixlog/felix/wire"
)

// ledger is what a session has taken on and not yet answered. It is under the lock of
// the session's outbox, so that an answer is put in its place and into the buffer in
// one step.
type ledger struct {
	// publishes, of a pipelining client, in the order they came.
	publishes queue[publication]
	// replies are the deferred answers of other requests, in order.
	replies queue[Reply]
	// acked and unacked count the publishes in flight, by whether they are answered.
	acked, unacked int
	// deferred counts replies that have not been answered.
	deferred int
	// free are replies that were answered in their turn, at most repliesKept.
	free []*Reply
	// late are deferred answers that have yet to be made; answering: somebody does.
	late      []lateAnswer
	answering bool
	// waiting counts who waits for one of these to change.
	waiting int
	answers publishAnswers
	// eventsDone is closed when the events of this stream have ended (TCP).
	eventsDone chan struct{}
}

// queue is a ring of pointers that grows as needed; its users bound it.
type queue[T any] struct {
	ring    []*T
	head, n int
}

func (q *queue[T]) empty() bool { return q.n == 0 }

func (q *queue[T]) push(v *T) {
	if q.n == len(q.ring) {
		next := make([]*T, max(8, 2*len(q.ring)))
		for i := range q.n {
			next[i] = q.ring[(q.head+i)%len(q.ring)]
		}
		q.ring, q.head = next, 0
	}
	q.ring[(q.head+q.n)%len(q.ring)] = v
	q.n++
}

// front is the oldest, nil when there is none.
func (q *queue[T]) front() *T {
	if q.n == 0 {
		return nil
	}
	return q.ring[q.head]
}

func (q *queue[T]) pop() {
	q.ring[q.head] = nil
	q.head = (q.head + 1) % len(q.ring)
	q.n--
}

// deferredWindow is how many requests of a stream may wait for their answers.
const deferredWindow = 256

// repliesKept is how many of a stream's replies serve again.
const repliesKept = 64

// deferReply takes a place in the order of answers.
func (s *session) deferReply() *Reply {
	l := &s.ledger
	s.waitLedger(func() bool { return l.deferred < deferredWindow }, PausedWindow)
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	var p *Reply
	if n := len(l.free); n > 0 {
		p, l.free = l.free[n-1], l.free[:n-1]
		p.done = false
	} else {
		p = &Reply{s: s}
	}
	l.replies.push(p)
	l.deferred++
	return p
}

// popReplyLocked takes out the reply whose turn it is, which was answered. It stays done,
// so that whoever answers it a second time does no harm as long as it is free.
func (s *session) popReplyLocked() {
	l := &s.ledger
	p := l.replies.front()
	l.replies.pop()
	p.frame = nil
	if len(l.free) < repliesKept {
		l.free = append(l.free, p)
	}
}

// replied puts a deferred answer in its place, and sends all that are now in turn.
func (s *session) replied(p *Reply, m wire.Message) {
	o, l := &s.out, &s.ledger
	o.mu.Lock()
	if p.done {
		o.mu.Unlock()
		return
	}
	p.done = true
	l.deferred--
	if l.replies.front() == p {
		s.popReplyLocked()
		if o.mu.err == nil {
			o.mu.buf = wire.AppendMessage(o.mu.buf, m)
		}
	} else if o.mu.err == nil {
		p.frame = wire.AppendMessage(nil, m)
		o.mu.parked += len(p.frame)
	}
	for next := l.replies.front(); next != nil && next.done; next = l.replies.front() {
		o.mu.parked -= len(next.frame)
		if o.mu.err == nil {
			o.mu.buf = append(o.mu.buf, next.frame...)
		}
		s.popReplyLocked()
	}
	s.settledLocked()
	o.kickUnlock()
}

// parkLocked needs the outbox's lock: it puts an answer that is there behind those that
// are not.
func (s *session) parkLocked(p *Reply, m wire.Message) {
	p.frame = wire.AppendMessage(nil, m)
	s.out.mu.parked += len(p.frame)
	s.ledger.replies.push(p)
}

// settledLocked needs the outbox's lock: it wakes whoever waits for this.
func (s *session) settledLocked() {
	if s.ledger.waiting > 0 {
		s.out.changed.Broadcast()
	}
}

// lateAnswer is a deferred answer that is made when there is room for it.
type lateAnswer struct {
	reply *Reply
	make  func() (wire.Message, error)
}

// Later has the answer made off the caller's back, by one goroutine for the whole
// stream: as long as answers wait for the client or for their turn up to the limit, only
// the one whose turn it is.
func (p *Reply) Later(make func() (wire.Message, error)) {
	s := p.s
	o, l := &s.out, &s.ledger
	o.mu.Lock()
	l.late = append(l.late, lateAnswer{p, make})
	start := !l.answering
	l.answering = true
	s.settledLocked()
	o.mu.Unlock()
	if start {
		s.conn.run(s.answerLate)
	}
}

func (s *session) answerLate() {
	o, l := &s.out, &s.ledger
	o.mu.Lock()
	for len(l.late) > 0 {
		i := s.nextLateLocked()
		if i < 0 {
			l.waiting++
			o.changed.Wait()
			l.waiting--
			continue
		}
		a := l.late[i]
		l.late = slices.Delete(l.late, i, i+1)
		o.mu.Unlock()
		if m, err := a.make(); err != nil {
			a.reply.Fail(err)
		} else {
			a.reply.Answer(m)
		}
		o.mu.Lock()
	}
	l.late, l.answering = nil, false
	o.mu.Unlock()
}

// nextLateLocked is which late answer to make now, -1 if none. Where answers that wait
// for their turn take all the room, the one they wait for is made all the same: it alone
// gives room back.
func (s *session) nextLateLocked() int {
	o, l := &s.out, &s.ledger
	if o.mu.err != nil || !o.fullLocked() {
		return 0
	}
	if len(o.mu.buf) > o.limit {
		return -1
	}
	front := l.replies.front()
	return slices.IndexFunc(l.late, func(a lateAnswer) bool { return a.reply == front })
}

// waitLedger waits until ok, asked under the outbox's lock, holds, having driven and written what the burst has
// gathered so far: otherwise nothing would change.
func (s *session) waitLedger(ok func() bool, why Pause) {
	o := &s.out
	o.mu.Lock()
	if ok() {
		o.mu.Unlock()
		return
	}
	o.mu.Unlock()
	s.settleBurst(true)
	o.mu.Lock()
	if !ok() {
		o.mu.Unlock()
		s.server.events.paused(why)
		o.mu.Lock()
	}
	s.ledger.waiting++
	for !ok() {
		o.changed.Wait()
	}
	s.ledger.waiting--
	o.mu.held = true
	o.mu.Unlock()
}

// inFlight is how many requests have been taken on and not answered.
func (s *session) inFlight() int {
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	return s.ledger.inFlightLocked()
}

func (l *ledger) inFlightLocked() int { return l.acked + l.unacked + l.deferred }

// waitSettled waits until everything taken on is answered. The shards answer in any
// case, whatever became of the client.
func (s *session) waitSettled() {
	o := &s.out
	o.mu.Lock()
	s.ledger.waiting++
	for s.ledger.inFlightLocked() > 0 {
		o.changed.Wait()
	}
	s.ledger.waiting--
	o.mu.Unlock()
}
