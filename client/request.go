package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/felixlog/felix/wire"
)

// exchange is one request and its answer.
type exchange struct {
	done   chan struct{} // of size 1: whoever answers does not wait
	answer answer
	err    error
}

// exchanges are those that nobody will answer any more.
var exchanges = sync.Pool{New: func() any { return &exchange{done: make(chan struct{}, 1)} }}

func (e *exchange) answered(a *answer) {
	e.answer = *a
	e.done <- struct{}{}
}

func (e *exchange) lost(cause error) {
	e.err = cause
	e.done <- struct{}{}
}

// take puts what came into a, once done says that it has; the exchange is then another's.
func (e *exchange) take(a *answer) error {
	err := e.err
	*a = e.answer
	e.answer, e.err = answer{}, nil
	exchanges.Put(e)
	return err
}

// request is a message that is answered, and how it is sent.
type request struct {
	op string
	// cache and key, or group, complete op, where they are set, for errors: most requests
	// need no name.
	cache *Cache
	key   string
	group *Group
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
	// wait is how long the broker may take before it answers, besides what any answer
	// may take.
	wait time.Duration
	// got is the answer to the last try.
	got answer
	// Of a try together with others: what waits for its answer, or why it was not sent.
	sent   *exchange
	unsent error
}

// name is what the request is called in errors.
func (r *request) name() string {
	switch {
	case r.cache != nil:
		return r.cache.op(r.op, r.key)
	case r.group != nil:
		return r.group.op(r.op)
	}
	return r.op
}

// do sends a request until it has an answer other than one to try again.
func (c *core) do(ctx context.Context, r *request) (*answer, error) {
	a, err := c.try(ctx, r)
	return c.finish(ctx, r, a, err)
}

// finish goes on with a request whose first try came to a and err. What an earlier try may
// have done is not known to be undone, whatever refused the last: the outcome is unknown
// then.
func (c *core) finish(ctx context.Context, r *request, a *answer, err error) (*answer, error) {
	b := backoff{policy: c.config.retry}
	maybe := false
	for err != nil {
		d, again := b.again(err, r.repeatable)
		if e := (*Error)(nil); errors.As(err, &e) {
			if maybe {
				e.Retry = wire.RetryOutcomeUnknown
			}
			maybe = e.Retry == wire.RetryOutcomeUnknown
		}
		if !again || ctx.Err() != nil {
			return nil, err
		}
		if f := c.config.events.OnRetry; f != nil {
			f(r.name(), err, d)
		}
		if pause(ctx, d) != nil || c.ctx.Err() != nil {
			return nil, err
		}
		a, err = c.try(ctx, r)
	}
	return a, nil
}

func (c *core) try(ctx context.Context, r *request) (*answer, error) {
	on := r.on
	if on == nil {
		on = &c.control
	}
	p, err := on.get(ctx)
	if err != nil {
		return nil, wrap(r.name(), err)
	}
	if err := p.serves(r); err != nil {
		return nil, err
	}
	e := exchanges.Get().(*exchange)
	reads, err := p.send(r.id, e, r.wait, func(dst []byte) []byte { return wire.AppendMessage(dst, r.message) })
	if err != nil {
		return nil, lost(r.name(), err, false)
	}
	if reads {
		p.readFor(e)
	}
	return e.await(ctx, on, p, r)
}

// serves is the error of a request that the broker does not serve.
func (p *pipe) serves(r *request) error {
	if !p.auth.Features.Has(r.needs) {
		return &Error{Op: r.name(), Retry: wire.RetryFatal, Err: ErrUnsupported}
	}
	return nil
}

// await waits for the answer to a request that was sent on p, the connection of on.
func (e *exchange) await(ctx context.Context, on *slot, p *pipe, r *request) (*answer, error) {
	if ended := ctx.Done(); ended == nil {
		<-e.done
	} else if !e.within(ended) {
		if on.lent {
			// Nobody else is on this connection. Its end tells the broker not to work on.
			p.fail(context.Cause(ctx))
		}
		return nil, givenUp(r.name(), ctx, true) // the exchange may yet be answered
	}
	a := &r.got
	err := e.take(a)
	switch {
	case err != nil:
		return nil, lost(r.name(), err, true)
	case a.failure != nil:
		return nil, failed(r.name(), a.failure)
	}
	switch m := a.message.(type) {
	case *wire.Unsupported:
		return nil, &Error{Op: r.name(), Retry: wire.RetryFatal, Err: ErrUnsupported}
	case *wire.NotLeader:
		return nil, &Error{Op: r.name(), Code: wire.CodeNotLeader, Retry: wire.RetryRedirect, Message: "led by " + m.NodeID}
	}
	return a, nil
}

// within waits for the answer until ended.
func (e *exchange) within(ended <-chan struct{}) bool {
	select {
	case <-e.done:
		return true
	case <-ended:
		return false
	}
}

// together tries requests on one connection, in one write. The answers come in their
// order: each is told as it comes, all but the last whether ctx ends or not. The last is
// returned.
func (c *core) together(ctx context.Context, on *slot, rs []*request, told func(r *request, a *answer, err error)) (*answer, error) {
	before, last := rs[:len(rs)-1], rs[len(rs)-1]
	p, err := on.get(ctx)
	if err != nil {
		for _, r := range before {
			told(r, nil, wrap(r.name(), err))
		}
		return nil, wrap(last.name(), err)
	}
	for _, r := range rs {
		if r.sent, r.unsent = nil, p.serves(r); r.unsent == nil {
			r.sent = exchanges.Get().(*exchange)
		}
	}
	p.sendAll(rs)
	for _, r := range before {
		a, err := r.await(context.Background(), on, p)
		told(r, a, err)
	}
	return last.await(ctx, on, p)
}

// await waits for the answer to a request that was sent together with others, if it was.
func (r *request) await(ctx context.Context, on *slot, p *pipe) (*answer, error) {
	if r.unsent != nil {
		return nil, r.unsent
	}
	return r.sent.await(ctx, on, p, r)
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
