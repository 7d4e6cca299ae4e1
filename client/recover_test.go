package client

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client/felixtest"
	"github.com/felixlog/felix/wire"
)

// The answer to a batch is lost and its repetition refused for good: it may be in the log
// all the same, and the error says both.
func TestAFatalRefusalAfterALostAnswer(t *testing.T) {
	for _, d := range []Delivery{Idempotent, AtLeastOnce} {
		b := newBroker(t)
		c := dial(t, b)
		var tries atomic.Int32
		b.Intercept(func(r felixtest.Request) felixtest.Action {
			switch {
			case !publishes(r):
				return felixtest.Action{}
			case tries.Add(1) == 1:
				return felixtest.Action{CutAfter: true}
			}
			return felixtest.Action{Refuse: wire.NewFailure(wire.CodeForbidden, "permission taken away")}
		})
		_, err := c.Publish(soon(t), "orders", []byte("x"), Deliver(d))
		require.Len(t, b.Records("orders", 0), 1)
		require.ErrorIs(t, err, ErrOutcomeUnknown, "delivery %d", d)
		require.ErrorIs(t, err, ErrForbidden, "delivery %d", d)
	}
}

// A recovery that comes to run after its producer was closed leaves the lane closed.
func TestAClosedLaneStaysClosed(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	p, err := c.Producer("orders")
	require.NoError(t, err)
	_, err = p.Publish(soon(t), numbered(0))
	require.NoError(t, err)
	lane := p.all()[0]
	require.NoError(t, p.Close(soon(t)))
	_, finished, idle := lane.judge(time.Now())
	require.Empty(t, finished)
	require.True(t, idle)
	_, err = p.Send(soon(t), numbered(1))
	require.ErrorIs(t, err, ErrClosed)
	requireNumbered(t, b.Records("orders", 0), 1)
}

// Batches that are refused for a moment are not overtaken by those behind them, with
// sequences or without.
func TestRefusedBatchesAreNotOvertaken(t *testing.T) {
	for _, d := range []Delivery{Idempotent, AtLeastOnce} {
		b := newBroker(t)
		c := dial(t, b)
		var frames atomic.Int32
		b.Intercept(func(r felixtest.Request) felixtest.Action {
			if publishes(r) && frames.Add(1)%10 == 3 {
				return felixtest.Action{Refuse: wire.NewFailure(wire.CodeOverloaded, "full").After(time.Millisecond)}
			}
			return felixtest.Action{}
		})
		p, err := c.Producer("orders", WithDelivery(d), WithBatchRecords(1))
		require.NoError(t, err)
		for i := range 100 {
			_, err := p.Send(soon(t), numbered(i))
			require.NoError(t, err)
		}
		require.NoError(t, p.Close(soon(t)))
		requireNumbered(t, b.Records("orders", 0), 100)
	}
}
