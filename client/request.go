package client

import (
	"context"
	"fmt"

	"github.com/felixlog/felix/wire"
)

// exchange is one request and its answer.
type exchange struct {
	done   chan struct{}
	answer answer
	err    error
}

func (e *exchange) answered(a *answer) {
	e.answer = *a
	close(e.done)
}

func (e *exchange) lost(cause error) {
	e.err = cause
	close(e.done)
}

// kindOf is what the answer to a request must be.
type request struct {
	op string
	// id is the request's, with which the broker answers.
	id      uint64
	message wire.Message
	// needs is the feature that the broker must serve.
	needs wire.Features
	// repeatable: applying it twice does no harm.
	repeatable bool
	// on is the connection it takes; nil is the control connection. Its answers come
	// in the order of the requests.
	on *slot
}

// do sends a request until it has an answer other than one to try again.
func (c *core) do(ctx context.Context, r *request) (*answer, error) {
	b := c.config.retry.begin()
	for {
		a, err := c.try(ctx, r)
		if err == nil {
			return a, nil
		}
		d, again := b.again(err, r.repeatable)
		if !again || ctx.Err() != nil {
			return nil, err
		}
		if f := c.config.events.OnRetry; f != nil {
			f(r.op, err, d)
		}
		if pause(ctx, d) != nil || c.ctx.Err() != nil {
			return nil, err
		}
	}
}

func (c *core) try(ctx context.Context, r *request) (*answer, error) {
	on := r.on
	if on == nil {
		on = &c.control
	}
	p, err := on.get(ctx)
	if err != nil {
		return nil, wrap(r.op, err)
	}
	if !p.auth.Features.Has(r.needs) {
		return nil, &Error{Op: r.op, Retry: wire.RetryFatal, Err: ErrUnsupported}
	}
	e := &exchange{done: make(chan struct{})}
	if err := p.send(r.id, e, func(dst []byte) []byte { return wire.AppendMessage(dst, r.message) }); err != nil {
		return nil, lost(r.op, err, false)
	}
	select {
	case <-e.done:
	case <-ctx.Done():
		return nil, givenUp(r.op, ctx, true)
	}
	switch {
	case e.err != nil:
		return nil, lost(r.op, e.err, true)
	case e.answer.failure != nil:
		return nil, failed(r.op, e.answer.failure)
	}
	switch m := e.answer.message.(type) {
	case *wire.Unsupported:
		return nil, &Error{Op: r.op, Retry: wire.RetryFatal, Err: ErrUnsupported}
	case *wire.NotLeader:
		return nil, &Error{Op: r.op, Code: wire.CodeNotLeader, Retry: wire.RetryRedirect, Message: "led by " + m.NodeID}
	}
	return &e.answer, nil
}

// wrap names the request in the error of its connection, of which nothing was
// sent.
func wrap(op string, err error) error {
	if e, ok := err.(*Error); ok {
		named := *e
		named.Op = op + ": " + e.Op
		return &named
	}
	return &Error{Op: op, Retry: wire.RetryFatal, Err: err}
}

// unexpected is an answer that does not belong to its request.
func unexpected(op string, a *answer) error {
	what := "a publish answer"
	if a.message != nil {
		what = a.message.Type()
	}
	return &Error{Op: op, Retry: wire.RetryOutcomeUnknown, Err: fmt.Errorf("was answered with %s", what)}
}
