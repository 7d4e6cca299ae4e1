package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/felixlog/felix/wire"
)

// RetryPolicy says how often and how fast a request that is safe to repeat is
// tried. The wait before a try is drawn evenly from zero to a ceiling that
// doubles.
type RetryPolicy struct {
	// Attempts counts tries in all, at least 1.
	Attempts int
	// Base is the first ceiling, Max the last.
	Base, Max time.Duration
}

// DefaultRetry is five tries, from 200 ms to 2 s.
var DefaultRetry = RetryPolicy{Attempts: 5, Base: 200 * time.Millisecond, Max: 2 * time.Second}

// notFoundGrace is how long an unknown stream is asked for again: it may just
// have been created elsewhere.
const notFoundGrace = 5 * time.Second

func (p RetryPolicy) validate() error {
	if p.Attempts < 1 || p.Base <= 0 || p.Max < p.Base {
		return fmt.Errorf("retry policy: needs at least 1 attempt and 0 < base <= max, has %d, %s, %s", p.Attempts, p.Base, p.Max)
	}
	return nil
}

// backoff counts the tries of one request.
type backoff struct {
	policy RetryPolicy
	tries  int
	began  time.Time // zero: with the first failure
}

func (p RetryPolicy) begin() backoff { return backoff{policy: p, began: time.Now()} }

// wait returns how long to wait after the try that just failed, at least least.
func (b *backoff) wait(least time.Duration) time.Duration {
	ceiling := b.policy.Base << min(b.tries, 20)
	if ceiling > b.policy.Max || ceiling <= 0 {
		ceiling = b.policy.Max
	}
	b.tries++
	return max(least, rand.N(ceiling))
}

// again reports whether err may be answered by another try, and after what
// wait. Only errors that promise that nothing was applied qualify, unless
// repeatable says that the request may be applied twice.
func (b *backoff) again(err error, repeatable bool) (time.Duration, bool) {
	var e *Error
	if !errors.As(err, &e) || errors.Is(err, ErrClosed) {
		return 0, false
	}
	safe := e.Retry == wire.RetryNow || e.Retry == wire.RetryAfter || e.Retry == wire.RetryRedirect ||
		repeatable && e.Retry == wire.RetryOutcomeUnknown
	if b.began.IsZero() {
		b.began = time.Now()
	}
	if !safe || b.tries+1 >= b.policy.Attempts && e.Code != wire.CodeNotFound {
		return 0, false
	}
	if e.Code == wire.CodeNotFound && time.Since(b.began) > notFoundGrace {
		return 0, false
	}
	return b.wait(e.RetryAfter), true
}

// pause waits d, or less when ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
