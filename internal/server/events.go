package server

import (
	"context"
	"errors"

	"github.com/felixlog/felix/wire"
)

// EventStream is where the events of one subscription or watch go: a stream of its own
// on QUIC, the rest of the connection on TCP. It belongs to one goroutine.
type EventStream struct {
	s    *session
	link eventLink // nil: the session's own outbox
	buf  []byte
}

// Bounds of what is copied together into one write.
const (
	gatherBytes = 64 << 10
	// aloneBytes: a frame of this size is written by itself, without a copy.
	aloneBytes = 16 << 10
)

// Events answers the request, opens the stream its events go to, writes the hello, and
// runs body on a goroutine of its own until it returns. The context of body ends with
// the client's interest: when it stops reading the stream, or its connection ends. With
// a failure nothing was answered and body does not run.
//
// The stream ends with what body returns: a message is the last frame (an ender),
// [ErrReset] resets it as lost, nil just finishes it.
func (r *Request) Events(id uint64, answer wire.Message, body func(ctx context.Context, e *EventStream) (ender wire.Message, err error)) *wire.Failure {
	s, c := r.s, r.s.conn
	if f := c.addSubscription(); f != nil {
		return f
	}
	e := &EventStream{s: s}
	if c.openEvents != nil {
		link, err := c.openEvents()
		if err != nil {
			c.removeSubscription()
			return wire.NewFailure(wire.CodeLimitExceeded, "the client accepts no more event streams on this connection: "+err.Error())
		}
		e.link = link
	} else {
		// What was asked before is answered before: events are the last thing on the
		// connection.
		s.waitLedger(func() bool { return s.ledger.acked+s.ledger.unacked+s.ledger.deferred == 0 }, PausedWindow)
		s.eventsTaken = true
		s.ledger.eventsDone = make(chan struct{})
	}
	r.Answer(answer)
	// The hello is in its place behind the answer before anything else can be written.
	hello := wire.AppendMessage(nil, &wire.EventStreamHello{SubscriptionID: id})
	if e.link == nil {
		s.out.append(func(dst []byte) []byte { return append(dst, hello...) })
	}
	c.run(func() { e.run(hello, body) })
	return nil
}

// ErrReset ends an event stream as lost, so that the client subscribes again.
var ErrReset = errors.New("event stream reset")

func (e *EventStream) run(hello []byte, body func(context.Context, *EventStream) (wire.Message, error)) {
	c := e.s.conn
	defer c.removeSubscription()
	var ctx context.Context
	var cancel context.CancelFunc
	if e.link != nil {
		ctx, cancel = context.WithCancel(c.ctx)
		stop := context.AfterFunc(e.link.gone(), cancel)
		defer stop()
	} else {
		ctx, cancel = context.WithCancel(e.s.ctx)
		defer close(e.s.ledger.eventsDone)
	}
	defer cancel()

	var ender wire.Message
	var err error
	if e.link != nil {
		_, err = e.link.Write(hello)
	}
	if err == nil {
		ender, err = body(ctx, e)
	}
	if err == nil && ender != nil {
		err = e.Write(wire.AppendMessage(nil, ender))
	}
	switch {
	case e.link == nil:
		e.endShared(err)
	case err != nil:
		e.link.reset()
	default:
		e.link.finish()
	}
}

// endShared ends a connection that carried events. Its reader meets the end and does
// the rest.
func (e *EventStream) endShared(err error) {
	l, isTCP := e.s.link.(tcpLink)
	if err != nil || e.s.out.drained() != nil || !isTCP || !l.goodbye() {
		e.s.link.stop()
	}
}

// Write sends whole frames, in few writes. It waits for the client to take them in,
// and fails when it is gone.
func (e *EventStream) Write(frames ...[]byte) error {
	if len(frames) == 1 {
		return e.write(frames[0])
	}
	for _, f := range frames {
		if len(e.buf) > 0 && len(e.buf)+len(f) > gatherBytes {
			if err := e.flush(); err != nil {
				return err
			}
		}
		if len(f) >= aloneBytes && len(e.buf) == 0 {
			if err := e.write(f); err != nil {
				return err
			}
			continue
		}
		e.buf = append(e.buf, f...)
	}
	err := e.flush()
	e.buf = nil
	return err
}

func (e *EventStream) flush() error {
	if len(e.buf) == 0 {
		return nil
	}
	err := e.write(e.buf)
	e.buf = e.buf[:0]
	return err
}

func (e *EventStream) write(b []byte) error {
	if e.link == nil {
		return e.s.out.writeThrough(b)
	}
	_, err := e.link.Write(b)
	return err
}
