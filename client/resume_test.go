package client

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

// The pauses between connections grow to seconds when the broker is away and also when it
// accepts and ends them at once; a connection that was of use begins with short ones.
func TestResumptionPauses(t *testing.T) {
	const rounds = 100
	accept := func(context.Context) error { return nil }
	for _, tc := range []struct {
		name        string
		least, most time.Duration
		drive       func(t *testing.T, r *resumption)
	}{
		{"away", 60 * time.Second, 200 * time.Second, func(t *testing.T, r *resumption) {
			tries := 0
			require.NoError(t, r.run(t.Context(), ErrConnectionLost, func(context.Context) error {
				if tries++; tries < rounds {
					return unreachable("somewhere", ErrConnectionLost)
				}
				return nil
			}))
		}},
		{"accepts and ends", 60 * time.Second, 200 * time.Second, func(t *testing.T, r *resumption) {
			for range rounds {
				require.NoError(t, r.run(t.Context(), ErrConnectionLost, accept))
			}
		}},
		{"of use", 0, 20 * time.Second, func(t *testing.T, r *resumption) {
			for range rounds {
				require.NoError(t, r.run(t.Context(), ErrConnectionLost, accept))
				r.progress()
			}
		}},
		{"idle for long", rounds * time.Minute, rounds*time.Minute + 20*time.Second, func(t *testing.T, r *resumption) {
			for range rounds {
				require.NoError(t, r.run(t.Context(), ErrConnectionLost, accept))
				time.Sleep(time.Minute)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &resumption{core: &core{config: &clientConfig{retry: DefaultRetry}}, op: "read"}
				began := time.Now()
				tc.drive(t, r)
				require.WithinRange(t, time.Now(), began.Add(tc.least), began.Add(tc.most))
			})
		})
	}
}

func TestResumptionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := func(e *Error) func(context.Context) error { return func(context.Context) error { return e } }
		for _, tc := range []struct {
			most  time.Duration
			err   *Error
			after time.Duration
		}{
			{0, &Error{Code: wire.CodeForbidden, Retry: wire.RetryFatal}, 0},
			{0, &Error{Code: wire.CodeNotFound, Retry: wire.RetryAfter}, notFoundGrace},
			{10 * time.Second, &Error{Retry: wire.RetryNow, Err: ErrUnavailable}, 10 * time.Second},
		} {
			r := &resumption{core: &core{config: &clientConfig{retry: DefaultRetry}}, op: "read", most: tc.most}
			began := time.Now()
			require.Equal(t, tc.err, r.run(t.Context(), ErrConnectionLost, fails(tc.err)))
			require.WithinRange(t, time.Now(), began.Add(tc.after), began.Add(tc.after+2*DefaultRetry.Max))
		}
	})
}
