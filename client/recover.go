package client

import (
	"context"
	"errors"
	"time"

	"github.com/felixlog/felix/wire"
)

// refusal makes the error of the last answer.
func (b *batch) refusal(op string) *Error {
	a := b.verdict
	switch {
	case a.failure != nil:
		return failed(op, a.failure)
	case a.refused != nil:
		e := &Error{Op: op, Retry: wire.RetryFatal, Message: string(a.refused.Reason)}
		if a.refused.Message != "" {
			e.Message += ": " + a.refused.Message
		}
		if a.refused.Reason == wire.RefusedNotLeader {
			e.Code, e.Retry = wire.CodeNotLeader, wire.RetryRedirect
		}
		return e
	}
	return &Error{Op: op, Retry: wire.RetryOutcomeUnknown, Message: "was answered with " + a.message.Type()}
}

// recover is the lane's goroutine: it judges what became of the batches that
// were under way, waits, connects, and opens the lane again.
func (l *lane) recover() {
	ctx := l.p.ctx
	for {
		wait, finished, idle := l.judge(time.Now())
		for _, b := range finished {
			b.complete()
		}
		if idle {
			return
		}
		if wait > 0 {
			if f := l.p.client.config.events.OnRetry; f != nil {
				f(l.op(), l.lastCause(), wait)
			}
			if pause(ctx, wait) != nil {
				return
			}
		}
		err := l.open(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		l.setCause(err)
	}
}

func (l *lane) lastCause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

func (l *lane) setCause(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cause = err
}

// judge settles the batches of the last connection: some end with an error,
// which are returned to be completed; the others are sent again. idle says that
// nothing is left to do, and the lane's goroutine ends.
func (l *lane) judge(now time.Time) (wait time.Duration, finished []*batch, idle bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == laneClosed {
		return 0, nil, true // its batches were answered when it was closed
	}
	j := judgement{lane: l, now: now, lowest: l.nextSequence}
	if len(l.unacked) > 0 {
		j.lowest = l.unacked[0].sequence
	}
	if l.cause != nil {
		j.judgeCause(l.cause)
	}
	var kept []*batch
	for _, b := range l.unacked {
		if b.splits() {
			kept = append(kept, b.split()...)
			j.renew = true
			continue
		}
		if err := j.judgeBatch(b); err != nil {
			b.fail(err)
			finished = append(finished, b)
			continue
		}
		kept = append(kept, b)
	}
	l.unacked = kept
	if l.idempotent() && (j.renew || len(finished) > 0) {
		finished = append(finished, l.renew()...)
	}
	for len(l.full) > 0 {
		err := j.unsent(l.full[0])
		if err == nil {
			break
		}
		l.full[0].fail(err)
		finished = append(finished, l.full[0])
		l.full = l.full[1:]
	}
	if l.cur != nil && len(l.full) == 0 {
		if err := j.unsent(l.cur); err != nil {
			l.cur.fail(err)
			finished = append(finished, l.cur)
			l.cur = nil
		}
	}
	if len(l.unacked) == 0 && len(l.full) == 0 && l.cur == nil {
		l.state = laneIdle
		l.cause = nil
		return 0, finished, true
	}
	if j.failing {
		wait = l.retries.wait(j.least)
	}
	return wait, finished, false
}

// splits reports whether b was refused for the size of one of its records, so
// that the others may still be published.
func (b *batch) splits() bool {
	if b.count < 2 || b.maybe || b.verdict == nil || b.verdict.failure == nil {
		return false
	}
	f := b.verdict.failure
	return f.Code == wire.CodeLimitExceeded && f.Retry != wire.RetryOutcomeUnknown
}

// judgement is one pass over the batches of a lane.
type judgement struct {
	lane *lane
	now  time.Time
	// lowest is the lowest sequence not yet acknowledged.
	lowest uint64
	// failing: something went wrong that needs a wait.
	failing bool
	least   time.Duration
	// renew: the producer id cannot be used any further.
	renew bool
	// refused ends every batch: the broker will not have us.
	refused error
}

func (j *judgement) judgeCause(cause error) {
	j.failing = true
	var e *Error
	if errors.As(cause, &e) {
		j.least = e.RetryAfter
		// A refused token or permission ends what waits; a lost connection or
		// a broker that is away does not.
		if e.Retry == wire.RetryFatal {
			j.refused = e
		}
	}
}

// judgeBatch returns the error that b ends with, or nil when it is to be sent
// again. It speaks of the last try; fail adds the earlier ones.
func (j *judgement) judgeBatch(b *batch) *Error {
	l := j.lane
	verdict := b.verdict
	if verdict == nil {
		return j.unsent(b)
	}
	if verdict.refused != nil {
		if err, final := j.judgeRefusal(b); final {
			return err
		}
	} else {
		e := b.refusal(l.op())
		l.doubt = l.doubt || e.Code == wire.CodeNotFound
		switch {
		case e.Retry == wire.RetryFatal:
			return e
		case e.Code == wire.CodeNotFound && j.now.Sub(b.firstRefused) > notFoundGrace:
			return e
		case e.Retry == wire.RetryOutcomeUnknown:
			b.maybe = true
		}
		j.failing = true
		j.least = max(j.least, e.RetryAfter)
	}
	if j.expired(b) {
		return b.refusal(l.op())
	}
	b.verdict = nil
	return nil
}

func (j *judgement) judgeRefusal(b *batch) (*Error, bool) {
	l := j.lane
	refused := b.verdict.refused
	switch refused.Reason {
	case wire.RefusedSequenceGap:
		if refused.Expected < j.lowest {
			// The shard had given a higher number: what it acknowledged is gone.
			j.renew = true
			return &Error{Op: l.op(), Retry: wire.RetryNow, Err: ErrShardLostRecords, Message: refused.Message}, true
		}
		// Something before it was refused; that decides.
		return nil, false
	case wire.RefusedUnknownProducer:
		// The broker forgot the producer, or the stream is another of the name. Under
		// a new id nothing is recognised as a repetition, so only what surely was not
		// appended may go on.
		j.renew, l.doubt = true, true
		return nil, false
	case wire.RefusedNotLeader:
		j.failing = true
		return nil, false
	case wire.RefusedSequenceExpired:
		e := b.refusal(l.op())
		e.Retry = wire.RetryOutcomeUnknown
		return e, true
	}
	return b.refusal(l.op()), true
}

// unsent judges a batch that has no answer: whether the wait for it is over.
func (j *judgement) unsent(b *batch) *Error {
	l := j.lane
	cause := l.cause
	if j.refused != nil {
		cause = j.refused
	} else if !j.expired(b) {
		return nil
	}
	e := &Error{Op: l.op(), Retry: wire.RetryNow, Err: cause}
	if j.refused == nil {
		e.Message = "not delivered in " + l.p.config.deliveryTimeout.String()
	} else {
		e.Retry = wire.RetryFatal
	}
	return e
}

func (j *judgement) expired(b *batch) bool {
	return j.now.Sub(b.created) > j.lane.p.config.deliveryTimeout
}

// renew gives up the producer id. Batches that may have been appended under it
// end with an unknown outcome; the others are numbered from 0 for a new one.
func (l *lane) renew() (finished []*batch) {
	l.hasProducer = false
	kept := l.unacked[:0]
	for _, b := range l.unacked {
		if b.maybe {
			b.fail(&Error{Op: l.op(), Message: "the broker no longer knows this producer"})
			finished = append(finished, b)
			continue
		}
		b.sequence = uint64(len(kept))
		kept = append(kept, b)
	}
	clear(l.unacked[len(kept):])
	l.unacked = kept
	l.nextSequence = uint64(len(kept))
	return finished
}

// open connects and hands the lane over to the connection.
func (l *lane) open(ctx context.Context) error {
	if stays, err := l.confirm(ctx); !stays {
		return err
	}
	p, err := l.p.client.slotOf(l.p.key.streamKey, l.shard).get(ctx)
	if err != nil {
		return err
	}
	if missing := l.flags() &^ p.auth.ServerFlags; missing != 0 {
		return &Error{Op: l.op(), Retry: wire.RetryFatal, Err: ErrUnsupported, Message: missing.String()}
	}
	if l.idempotent() && !l.hasProducer {
		id, err := l.p.client.initProducer(ctx)
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.producerID, l.hasProducer = id, true
		l.mu.Unlock()
	}
	if !p.attach(l) {
		return lost(l.op(), p.ended(), false)
	}
	l.mu.Lock()
	if l.state == laneClosed {
		l.mu.Unlock()
		p.detach(l)
		return nil
	}
	l.pipe, l.state, l.cause = p, laneOpen, nil
	l.epoch++
	l.sent, l.outstanding = 0, 0
	l.push()
	// The pipe may have ended between attach and here, and told us too early.
	if err := p.ended(); err != nil {
		l.ended(p, err)
	}
	return nil
}

// confirm asks for the shards of the stream when they are in doubt. It is false when the
// lane is not to be opened: with an error, or because others placed the lane, which the
// producer has closed then.
func (l *lane) confirm(ctx context.Context) (stays bool, err error) {
	l.mu.Lock()
	doubt := l.doubt
	l.mu.Unlock()
	if doubt && l.p.place.Load().known {
		_, err = l.p.client.askWidth(ctx, l.op(), l.p.key.streamKey)
		if err != nil && !errors.Is(err, ErrNotFound) { // how long that is borne is judged by the batches
			return false, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doubt = l.doubt && err != nil
	return l.state != laneClosed, nil
}

func (c *core) initProducer(ctx context.Context) (uint64, error) {
	id := c.requestID()
	a, err := c.try(ctx, &request{op: "producer init", id: id, message: &wire.ProducerInit{RequestID: id}, needs: wire.FeatureIdempotentProducer})
	if err != nil {
		// A producer id that nobody got does no harm.
		var e *Error
		if errors.As(err, &e) && e.Retry == wire.RetryOutcomeUnknown {
			e.Retry = wire.RetryNow
		}
		return 0, err
	}
	m, ok := a.message.(*wire.ProducerInitOK)
	if !ok {
		return 0, unexpected("producer init", a)
	}
	return m.ProducerID, nil
}
