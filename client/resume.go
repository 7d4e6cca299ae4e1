package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/felixlog/felix/wire"
)

// resumption brings the reader of a shard back after its connection ended. It is used by
// the reader's goroutine alone.
type resumption struct {
	core *core
	op   string
	// most bounds how long it is tried; 0 is without a bound.
	most time.Duration
	// tries paces the connections. It begins anew when one was of use, so that a broker
	// that accepts and ends them at once is not asked without a pause.
	tries  backoff
	useful bool      // the present connection brought something
	since  time.Time // when it was made
}

// progress says that the connection brought something.
func (r *resumption) progress() { r.useful = true }

// tooLarge is the error of a reader whose connection ended because a frame is above the
// limit, which it would be again each time; nil for any other cause.
func tooLarge(op string, cause error) error {
	if large := (*wire.FrameTooLargeError)(nil); errors.As(cause, &large) {
		return &Error{Op: op, Retry: wire.RetryFatal, Err: fmt.Errorf("%w: %w: use WithMaxFrame", ErrTooLarge, cause)}
	}
	return nil
}

// run subscribes again with again until it is accepted or that cannot be any more. cause
// is why the connection ended.
func (r *resumption) run(ctx context.Context, cause error, again func(context.Context) error) error {
	if large := tooLarge(r.op, cause); large != nil {
		return large
	}
	policy := r.core.config.retry
	if r.useful || !r.since.IsZero() && time.Since(r.since) > policy.Max {
		r.tries = policy.begin()
	}
	r.tries.policy = policy
	began := time.Now()
	for {
		var e *Error
		var least time.Duration
		if errors.As(cause, &e) {
			least = e.RetryAfter
		}
		wait := r.tries.wait(least)
		if on := r.core.config.events.OnRetry; on != nil {
			on(r.op, cause, wait)
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
		err := again(ctx)
		if err == nil {
			r.useful, r.since = false, time.Now()
			return nil
		}
		cause = err
		if !errors.As(err, &e) || e.Retry == wire.RetryFatal || ctx.Err() != nil {
			return err
		}
		out := time.Since(began)
		if e.Code == wire.CodeNotFound && out > notFoundGrace || r.most > 0 && out > r.most {
			return err
		}
	}
}
