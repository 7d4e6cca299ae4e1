package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client/felixtest"
	"github.com/felixlog/felix/wire"
)

func TestPublish(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	for i := range 10 {
		ack, err := c.Publish(soon(t), "orders", numbered(i))
		require.NoError(t, err)
		require.Equal(t, Ack{Offset: uint64(i), HasOffset: true}, ack)
	}
	requireNumbered(t, b.Records("orders", 0), 10)
}

func TestPublishDeliveries(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	for i, d := range []Delivery{Idempotent, AtLeastOnce, AtMostOnce} {
		ack, err := c.Publish(soon(t), "orders", numbered(i), Deliver(d))
		require.NoError(t, err)
		require.Equal(t, uint64(i), ack.Offset)
	}
}

func TestPublishPlacement(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	for i := range 40 {
		key := fmt.Append(nil, i)
		ack, err := c.Publish(soon(t), "wide", key, WithKey(key))
		require.NoError(t, err)
		require.Equal(t, wire.Shard(wire.RoutingModulo, key, 4), ack.Shard)
		records := b.Records("wide", ack.Shard)
		require.Equal(t, key, records[len(records)-1])
	}
	for shard := range 4 {
		ack, err := c.Publish(soon(t), "wide", []byte("x"), ToShard(shard))
		require.NoError(t, err)
		require.Equal(t, shard, ack.Shard)
		require.Equal(t, uint64(len(b.Records("wide", shard))-1), ack.Offset)
	}
	for _, shard := range []int{4, -1} {
		_, err := c.Publish(soon(t), "wide", nil, ToShard(shard))
		require.ErrorIs(t, err, ErrInvalidRequest)
	}
	_, err := c.Publish(soon(t), "wide", nil, ToShard(1), WithKey([]byte("k")))
	require.ErrorIs(t, err, ErrInvalidRequest)
	_, err = c.Publish(soon(t), "no/such", nil)
	require.ErrorContains(t, err, "unusable character")
}

func TestNamespaceView(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	_, err := c.Namespace("default").Publish(soon(t), "orders", []byte("x"))
	require.NoError(t, err)
	_, err = c.Namespace("").Publish(soon(t), "orders", []byte("x"))
	require.ErrorContains(t, err, "name is empty")
}

// Records of many goroutines, sent without waiting, are each there once and in
// the order of their sender, however often the connections end on the way.
func TestProducerOnceAndInOrder(t *testing.T) {
	for _, disturb := range []bool{false, true} {
		t.Run(fmt.Sprint("disturbed=", disturb), func(t *testing.T) {
			b := newBroker(t)
			c := dial(t, b)
			p, err := c.Producer("orders", WithBatchRecords(7))
			require.NoError(t, err)
			var answered atomic.Int64
			if disturb {
				b.Intercept(func(r felixtest.Request) felixtest.Action {
					if r.Type == "publish" && r.Sequence > 0 && answered.Add(1)%50 == 0 {
						return felixtest.Action{CutAfter: answered.Load()%100 == 0, CutBefore: answered.Load()%100 != 0}
					}
					return felixtest.Action{}
				})
			}
			const senders, each = 4, 1500
			futures := make([][]Future, senders)
			var wg sync.WaitGroup
			for s := range senders {
				wg.Go(func() {
					for i := range each {
						f, err := p.Send(context.Background(), fmt.Appendf(nil, "%d %d", s, i))
						if err != nil {
							t.Error(err)
							return
						}
						futures[s] = append(futures[s], f)
					}
				})
			}
			wg.Wait()
			require.NoError(t, p.Flush(soon(t)))
			records := b.Records("orders", 0)
			require.Len(t, records, senders*each)
			for s := range senders {
				last := -1
				for i, f := range futures[s] {
					ack, err := f.Wait(soon(t))
					require.NoError(t, err)
					require.Equal(t, fmt.Sprintf("%d %d", s, i), string(records[ack.Offset]))
					require.Greater(t, int(ack.Offset), last)
					last = int(ack.Offset)
				}
			}
			require.NoError(t, p.Close(soon(t)))
			require.Zero(t, p.buffered.Load())
			_, err = p.Send(soon(t), nil)
			require.ErrorIs(t, err, ErrClosed)
		})
	}
}

// A broker that goes away and comes back is published to as before.
func TestProducerAcrossRestart(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	p, err := c.Producer("orders")
	require.NoError(t, err)
	var futures []Future
	for i := range 3000 {
		if i%1000 == 500 {
			b.Stop()
		}
		if i%1000 == 700 {
			require.NoError(t, b.Restart())
		}
		f, err := p.Send(soon(t), numbered(i))
		require.NoError(t, err)
		futures = append(futures, f)
	}
	for i, f := range futures {
		ack, err := f.Wait(soon(t))
		require.NoError(t, err)
		require.Equal(t, uint64(i), ack.Offset)
	}
	requireNumbered(t, b.Records("orders", 0), 3000)
}

// once answers the first request that matches with an action.
func once(match func(felixtest.Request) bool, a felixtest.Action) func(felixtest.Request) felixtest.Action {
	var done atomic.Bool
	return func(r felixtest.Request) felixtest.Action {
		if match(r) && done.CompareAndSwap(false, true) {
			return a
		}
		return felixtest.Action{}
	}
}

func publishes(r felixtest.Request) bool { return r.Type == "publish" }

// The answer is lost: the record is there. Each delivery says what it promises.
func TestLostAnswer(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	b.Intercept(once(publishes, felixtest.Action{CutAfter: true}))
	_, err := c.Publish(soon(t), "orders", []byte("most"), Deliver(AtMostOnce))
	require.ErrorIs(t, err, ErrOutcomeUnknown)
	require.ErrorIs(t, err, ErrConnectionLost)
	require.Len(t, b.Records("orders", 0), 1)

	b.Intercept(once(publishes, felixtest.Action{CutAfter: true}))
	ack, err := c.Publish(soon(t), "orders", []byte("least"), Deliver(AtLeastOnce))
	require.NoError(t, err)
	require.Equal(t, uint64(2), ack.Offset)
	require.Len(t, b.Records("orders", 0), 3)

	b.Intercept(once(publishes, felixtest.Action{CutAfter: true}))
	ack, err = c.Publish(soon(t), "orders", []byte("once"))
	require.NoError(t, err)
	require.Equal(t, uint64(3), ack.Offset)
	require.Len(t, b.Records("orders", 0), 4)

	b.Intercept(once(publishes, felixtest.Action{CutAfter: true}))
	_, err = c.PublishIf(soon(t), "orders", 4, [][]byte{[]byte("if")})
	require.ErrorIs(t, err, ErrOutcomeUnknown)
}

// A context ends the waiting, never the write.
func TestContextEndsTheWaiting(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	release := make(chan struct{})
	b.Intercept(once(publishes, felixtest.Action{Hold: release}))
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("had enough")
	p, err := c.Producer("orders")
	require.NoError(t, err)
	f, err := p.Send(ctx, []byte("x"))
	require.NoError(t, err)
	cancel(cause)
	_, err = f.Wait(ctx)
	require.ErrorIs(t, err, ErrOutcomeUnknown)
	require.ErrorIs(t, err, cause)
	close(release)
	ack, err := f.Wait(soon(t))
	require.NoError(t, err)
	require.Equal(t, uint64(0), ack.Offset)
}

// Refusals that promise that nothing was applied are tried again; the batches
// behind them, refused for the gap, follow in order.
func TestRefusedAndTriedAgain(t *testing.T) {
	for _, f := range []*wire.Failure{
		wire.NewFailure(wire.CodeOverloaded, "full").WithReason(wire.ReasonPublishQueueFull).After(5 * time.Millisecond),
		wire.NewFailure(wire.CodeShardUnavailable, "moving").WithReason(wire.ReasonMoving),
		wire.NewFailure(wire.CodeStorage, "who knows"),
		wire.NewFailure(wire.CodeNotFound, "not yet"),
	} {
		b := newBroker(t)
		c := dial(t, b)
		p, err := c.Producer("orders", WithBatchRecords(3))
		require.NoError(t, err)
		b.Intercept(once(func(r felixtest.Request) bool { return publishes(r) && r.Sequence == 5 }, felixtest.Action{Refuse: f}))
		for i := range 200 {
			_, err := p.Send(soon(t), numbered(i))
			require.NoError(t, err)
		}
		require.NoError(t, p.Close(soon(t)))
		requireNumbered(t, b.Records("orders", 0), 200)
	}
}

// A fatal refusal ends its batch alone; those behind it are published.
func TestFatalRefusal(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	p, err := c.Producer("orders", WithBatchRecords(1))
	require.NoError(t, err)
	b.Intercept(once(func(r felixtest.Request) bool { return publishes(r) && r.Sequence == 5 }, felixtest.Action{Refuse: wire.NewFailure(wire.CodeForbidden, "no")}))
	var futures []Future
	for i := range 100 {
		f, err := p.Send(soon(t), numbered(i))
		require.NoError(t, err)
		futures = append(futures, f)
	}
	refused := 0
	for _, f := range futures {
		if _, err := f.Wait(soon(t)); err != nil {
			require.ErrorIs(t, err, ErrForbidden)
			require.NotErrorIs(t, err, ErrOutcomeUnknown)
			refused++
		}
	}
	require.Equal(t, 1, refused)
	require.Len(t, b.Records("orders", 0), 99)
}

// A producer that the broker forgot starts over only where nothing can be
// written twice.
func TestForgottenProducer(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	_, err := c.Publish(soon(t), "orders", numbered(0))
	require.NoError(t, err)
	b.ForgetProducers()
	ack, err := c.Publish(soon(t), "orders", numbered(1))
	require.NoError(t, err)
	require.Equal(t, uint64(1), ack.Offset)

	// The batch is appended, its answer lost, its producer forgotten.
	_, err = c.Publish(soon(t), "orders", numbered(2))
	require.NoError(t, err)
	forgetOnReconnect(b)
	_, err = c.Publish(soon(t), "orders", numbered(3))
	require.ErrorIs(t, err, ErrOutcomeUnknown)
	b.Intercept(nil)
	_, err = c.Publish(soon(t), "orders", numbered(4))
	require.NoError(t, err)
	requireNumbered(t, b.Records("orders", 0), 5)
}

// forgetOnReconnect makes the broker lose the answer of the next batch and
// forget its producer before the client is back.
func forgetOnReconnect(b *felixtest.Broker) {
	var cut atomic.Bool
	b.Intercept(func(r felixtest.Request) felixtest.Action {
		switch {
		case publishes(r) && cut.CompareAndSwap(false, true):
			return felixtest.Action{CutAfter: true}
		case r.Type == "auth" && cut.Load():
			b.ForgetProducers()
		}
		return felixtest.Action{}
	})
}

// What the shard acknowledged and lost is reported, not papered over.
func TestLostRecordsAreReported(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	for i := range 10 {
		_, err := c.Publish(soon(t), "orders", numbered(i))
		require.NoError(t, err)
	}
	b.Lose("orders", 0, 5)
	_, err := c.Publish(soon(t), "orders", numbered(10))
	require.ErrorIs(t, err, ErrShardLostRecords)
	require.NotErrorIs(t, err, ErrOutcomeUnknown)
	_, err = c.Publish(soon(t), "orders", numbered(5))
	require.NoError(t, err)
	requireNumbered(t, b.Records("orders", 0), 6)
}

func TestProducerIsBounded(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	release := make(chan struct{})
	b.Intercept(func(r felixtest.Request) felixtest.Action {
		if publishes(r) {
			return felixtest.Action{Hold: release}
		}
		return felixtest.Action{}
	})
	p, err := c.Producer("orders", WithMaxBuffered(10*(100+16)), WithFailWhenFull())
	require.NoError(t, err)
	waiting, err := c.Producer("orders", WithMaxBuffered(10*(100+16)))
	require.NoError(t, err)
	for range 10 {
		_, err := p.Send(soon(t), make([]byte, 100))
		require.NoError(t, err)
		_, err = waiting.Send(soon(t), make([]byte, 100))
		require.NoError(t, err)
	}
	_, err = p.Send(soon(t), make([]byte, 100))
	require.ErrorIs(t, err, ErrBufferFull)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = waiting.Send(ctx, make([]byte, 100))
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrOutcomeUnknown)

	// Those who wait go on when there is room.
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := waiting.Publish(soon(t), make([]byte, 100)); err != nil {
				t.Error(err)
			}
		})
	}
	close(release)
	wg.Wait()
	require.NoError(t, p.Flush(soon(t)))
	require.Len(t, b.Records("orders", 0), 40)
	// A record larger than the bound passes alone.
	_, err = waiting.Publish(soon(t), make([]byte, 1<<20))
	require.NoError(t, err)
	require.Zero(t, waiting.buffered.Load())
}

// A record that the stream refuses for its size takes no other with it, whatever
// batch they shared.
func TestTooLargeForTheStream(t *testing.T) {
	for _, d := range []Delivery{Idempotent, AtLeastOnce, AtMostOnce} {
		b := newBroker(t)
		c := dial(t, b)
		b.LimitRecords("orders", 100)
		release := make(chan struct{})
		p, err := c.Producer("orders", WithDelivery(d), WithBatchRecords(50))
		require.NoError(t, err)
		hold := once(publishes, felixtest.Action{Hold: release})
		var most atomic.Int64
		b.Intercept(func(r felixtest.Request) felixtest.Action {
			for _, l := range p.all() {
				l.mu.Lock()
				most.Store(max(most.Load(), int64(l.outstanding)))
				l.mu.Unlock()
			}
			return hold(r)
		})
		var futures []Future
		for i := range 1000 {
			size := 100
			if i%333 == 7 {
				size = 101
			}
			f, err := p.Send(soon(t), make([]byte, size))
			require.NoError(t, err)
			futures = append(futures, f)
		}
		close(release)
		offsets := map[uint64]bool{}
		for i, f := range futures {
			ack, err := f.Wait(soon(t))
			if i%333 == 7 {
				require.ErrorIs(t, err, ErrLimitExceeded)
				continue
			}
			require.NoError(t, err)
			offsets[ack.Offset] = true
		}
		require.Equal(t, 997, len(offsets))
		require.Equal(t, 997, len(b.Records("orders", 0)))
		require.NoError(t, p.Close(soon(t)))
		require.Zero(t, p.buffered.Load())
		require.LessOrEqual(t, most.Load(), int64(window), "more in flight than the broker remembers")
	}
}

func TestTooLarge(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	_, err := c.Publish(soon(t), "orders", make([]byte, wire.DefaultMaxFrame))
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorContains(t, err, "max=")
	_, err = c.Publish(soon(t), "orders", make([]byte, 8<<20))
	require.NoError(t, err)
	_, err = c.Publish(soon(t), "orders", make([]byte, 128))
	require.NoError(t, err)
}

// Everyone who waits is answered when the client is closed.
func TestCloseAnswersEveryone(t *testing.T) {
	b := newBroker(t)
	c, err := Dial(soon(t), []string{b.Addr()}, options(b)...)
	require.NoError(t, err)
	release := make(chan struct{})
	defer close(release)
	held := make(chan struct{}, 1)
	b.Intercept(func(r felixtest.Request) felixtest.Action {
		if publishes(r) {
			held <- struct{}{}
			return felixtest.Action{Hold: release}
		}
		return felixtest.Action{}
	})
	sub, err := c.Subscribe(soon(t), "orders")
	require.NoError(t, err)
	errs := make(chan error, 2)
	go func() {
		_, err := c.Publish(context.Background(), "orders", []byte("x"))
		errs <- err
	}()
	go func() {
		_, err := sub.Next(context.Background())
		errs <- err
	}()
	<-held
	require.NoError(t, c.Close())
	for range 2 {
		err := <-errs
		require.ErrorIs(t, err, ErrClosed)
	}
	_, err = c.Publish(context.Background(), "orders", []byte("x"))
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, c.Close())
}

func TestPublishIf(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	ack, err := c.PublishIf(soon(t), "orders", 0, [][]byte{numbered(0), numbered(1)})
	require.NoError(t, err)
	require.Equal(t, Ack{HasOffset: true}, ack)
	_, err = c.PublishIf(soon(t), "orders", 1, [][]byte{numbered(2)})
	require.ErrorIs(t, err, ErrOffsetMismatch)
	var mismatch *OffsetMismatchError
	require.ErrorAs(t, err, &mismatch)
	require.Equal(t, OffsetMismatchError{Expected: 1, Tail: 2}, *mismatch)
	ack, err = c.PublishIf(soon(t), "wide", 0, [][]byte{numbered(0)}, ToShard(2))
	require.NoError(t, err)
	require.Equal(t, 2, ack.Shard)
	require.Len(t, b.Records("wide", 2), 1)
	for _, opts := range [][]PublishOption{{ToShard(9)}, {ToShard(-1)}, {WithKey([]byte("k")), ToShard(0)}} {
		_, err = c.PublishIf(soon(t), "wide", 0, [][]byte{numbered(0)}, opts...)
		require.ErrorIs(t, err, ErrInvalidRequest)
		_, err = c.Publish(soon(t), "wide", numbered(0), opts...)
		require.ErrorIs(t, err, ErrInvalidRequest)
	}
	require.Empty(t, b.Records("wide", 0))
}
