package client

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

// groupScript answers what a consumer asks about a stream of some shards. Polls are
// handed to poll, which returns the records to answer with and whether to answer.
type groupScript struct {
	shards uint32
	poll   func(p *peer, m *wire.GroupPoll) ([]wire.GroupRecord, bool)
	// extend says whether a claim is extended; nil is always.
	extend func(*wire.GroupExtend) bool

	settled chan wire.Message // the acks and nacks
}

func (g *groupScript) serve(p *peer) {
	for m := p.next(); m != nil; m = p.next() {
		switch m := m.(type) {
		case *wire.StreamShards:
			p.send(&wire.StreamShardsView{Shards: g.shards, RequestID: m.RequestID})
		case *wire.GroupPoll:
			if records, ok := g.poll(p, m); ok {
				p.send(&wire.GroupRecords{RequestID: m.RequestID, Records: records})
			}
		case *wire.GroupExtend:
			if g.extend != nil && !g.extend(m) {
				p.send(&wire.Error{Failure: *wire.NewFailure(wire.CodeOverloaded, "later")})
				continue
			}
			p.send(&wire.GroupExtended{RequestID: m.RequestID, VisibleMillis: m.ExtendMillis})
		case *wire.GroupAck:
			p.send(&wire.CacheOK{RequestID: m.RequestID})
			g.settled <- m
		case *wire.GroupNack:
			p.send(&wire.CacheOK{RequestID: m.RequestID})
			g.settled <- m
		}
	}
}

func newGroupScript(shards uint32) *groupScript {
	return &groupScript{shards: shards, settled: make(chan wire.Message, 100)}
}

// consume runs a consumer in the background until stop is called, which returns how it
// ended.
func consume(t testing.TB, c *Client, h Handler, opts ...ConsumeOption) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Group("s", "g").Consume(ctx, h, opts...) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			return errors.New("the consumer does not end")
		}
	})
	t.Cleanup(func() { require.NoError(t, stop()) })
	return stop
}

// A shard without records keeps no handler from the others, however few there are: every
// shard's poll waits at the broker, and what comes of any is worked on at once.
func TestShardsShareTheHandlers(t *testing.T) {
	const shards = 3
	for _, concurrency := range []int{1, 2, 16} {
		waiting := make(chan uint32, 100)
		var come [shards]chan wire.GroupRecord
		for i := range come {
			come[i] = make(chan wire.GroupRecord)
		}
		g := newGroupScript(shards)
		s := newScript(t, g.serve)
		g.poll = func(_ *peer, m *wire.GroupPoll) ([]wire.GroupRecord, bool) {
			if m.WaitMillis == 0 {
				return nil, true
			}
			waiting <- m.Shard
			select {
			case r := <-come[m.Shard]:
				return []wire.GroupRecord{r}, true
			case <-s.done:
				return nil, false
			}
		}
		handled := make(chan Message)
		stop := consume(t, s.dial(), func(_ context.Context, m Message) error { handled <- m; return nil }, WithConcurrency(concurrency))
		for range shards {
			wait(t, waiting, "a poll of each shard")
		}
		for i := range 3 * shards {
			shard := i % shards
			come[shard] <- wire.GroupRecord{Offset: uint64(i), Attempts: 1}
			m := wait(t, handled, "the record")
			require.Equal(t, shard, m.Shard)
			require.Equal(t, uint64(i), m.Offset)
			wait(t, waiting, "the shard's next poll")
		}
		require.NoError(t, stop())
	}
}

// A broker that holds back the answer of one shard's poll does not keep the places that
// were meant for it from the other shards.
func TestAHangingShardGivesUpItsPlaces(t *testing.T) {
	g := newGroupScript(2)
	s := newScript(t, g.serve)
	hangs := make(chan struct{})
	var once sync.Once
	g.poll = func(_ *peer, m *wire.GroupPoll) ([]wire.GroupRecord, bool) {
		switch {
		case m.Shard == 0 && m.WaitMillis > 0:
			return []wire.GroupRecord{{Offset: 1, Attempts: 1}}, true
		case m.Shard == 0:
			once.Do(func() { close(hangs) })
			<-s.done
			return nil, false
		}
		<-hangs
		return []wire.GroupRecord{{Offset: 2, Attempts: 1}}, true
	}
	handled := make(chan Message, 100)
	stop := consume(t, s.dial(), func(_ context.Context, m Message) error {
		select {
		case handled <- m:
		default:
		}
		return nil
	}, WithConcurrency(1))
	for wait(t, handled, "a record of shard 1").Shard != 1 {
	}
	require.NoError(t, stop())
}

// What waits for a handler when the consumer is told to stop is given back at once, and
// what is being handled is settled.
func TestConsumerGivesBackWhatItDidNotBegin(t *testing.T) {
	g := newGroupScript(1)
	s := newScript(t, g.serve)
	polls := 0
	g.poll = func(_ *peer, m *wire.GroupPoll) ([]wire.GroupRecord, bool) {
		if polls++; polls == 1 {
			return []wire.GroupRecord{{Offset: 1, Attempts: 1}, {Offset: 2, Attempts: 3}}, true
		}
		<-s.done
		return nil, false
	}
	began, end := make(chan struct{}), make(chan struct{})
	stop := consume(t, s.dial(), func(context.Context, Message) error {
		close(began)
		<-end
		return nil
	}, WithConcurrency(1))
	wait(t, began, "a handler")
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	nack, ok := wait(t, g.settled, "a record given back").(*wire.GroupNack)
	require.True(t, ok)
	require.Equal(t, uint64(2), nack.Offset)
	require.Equal(t, uint32(3), nack.Attempts)
	require.True(t, nack.HasDelay)
	require.Zero(t, nack.DelayMillis)
	close(end)
	ack, ok := wait(t, g.settled, "the other acked").(*wire.GroupAck)
	require.True(t, ok)
	require.Equal(t, uint64(1), ack.Offset)
	require.NoError(t, wait(t, ended, "the consumer's end"))
}

// A poll whose context ends closes its connection, which is how the broker learns that
// nobody waits; the next poll has another.
func TestAGivenUpPollEndsItsConnection(t *testing.T) {
	g := newGroupScript(1)
	waiting, ended := make(chan struct{}), make(chan struct{})
	g.poll = func(p *peer, m *wire.GroupPoll) ([]wire.GroupRecord, bool) {
		if m.MaxRecords == 2 {
			return []wire.GroupRecord{{Offset: 7, Attempts: 1}}, true
		}
		close(waiting)
		if p.next() == nil {
			close(ended)
		}
		return nil, false
	}
	s := newScript(t, g.serve)
	group := s.dial().Group("s", "g")
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-waiting
		cancel()
	}()
	_, err := group.Poll(ctx, 0, 1, WithWait(time.Minute))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, ErrOutcomeUnknown)
	wait(t, ended, "the connection's end")
	ms, err := group.Poll(soon(t), 0, 2, WithWait(time.Minute))
	require.NoError(t, err)
	require.Equal(t, uint64(7), ms[0].Offset)
}

// A poll waits as long as it says, beyond what any other answer may take.
func TestAPollWaitsAsLongAsItSays(t *testing.T) {
	const timeout = 200 * time.Millisecond
	g := newGroupScript(1)
	asked := make(chan uint64, 1)
	g.poll = func(_ *peer, m *wire.GroupPoll) ([]wire.GroupRecord, bool) {
		asked <- m.WaitMillis
		timer := time.NewTimer(3 * timeout)
		defer timer.Stop()
		<-timer.C
		return []wire.GroupRecord{{Offset: 7, Attempts: 1}}, true
	}
	ms, err := newScript(t, g.serve).dial(WithAnswerTimeout(timeout)).Group("s", "g").Poll(soon(t), 0, 1, WithWait(20*time.Second))
	require.NoError(t, err)
	require.Len(t, ms, 1)
	require.Equal(t, uint64(20_000), <-asked)
}

// A handler hears when its claim lapses, though no broker says so. An extension that was
// too late for the first claim says nothing: the next claim is longer.
func TestHandlersHearOfALapsedClaim(t *testing.T) {
	claim := time.Second
	for !claimLapses(t, claim) {
		claim *= 4
		require.Less(t, claim, patience, "claims are not extended")
	}
}

// claimLapses has one extension of a claim confirmed and the others refused; false when the
// claim lapsed before there was one.
func claimLapses(t *testing.T, claim time.Duration) bool {
	g := newGroupScript(1)
	s := newScript(t, g.serve)
	polls, extensions := 0, 0
	g.poll = func(*peer, *wire.GroupPoll) ([]wire.GroupRecord, bool) {
		if polls++; polls == 1 {
			return []wire.GroupRecord{{Offset: 1, Attempts: 1}}, true
		}
		<-s.done
		return nil, false
	}
	confirmed := make(chan time.Time, 1)
	g.extend = func(*wire.GroupExtend) bool {
		if extensions++; extensions == 1 {
			confirmed <- time.Now()
			return true
		}
		return false
	}
	began := time.Now()
	ended := make(chan time.Time, 1)
	stop := consume(t, s.dial(), func(ctx context.Context, _ Message) error {
		<-ctx.Done()
		ended <- time.Now()
		if !errors.Is(context.Cause(ctx), ErrStaleClaim) {
			t.Errorf("ended by %v", context.Cause(ctx))
		}
		return nil
	}, WithClaimTime(claim))
	at := wait(t, ended, "the handler's context's end")
	require.NoError(t, stop())
	if len(confirmed) == 0 || (<-confirmed).Sub(began) > claim*9/10 {
		return false
	}
	require.GreaterOrEqual(t, at.Sub(began), claim*11/10, "the extension that was confirmed counts")
	return true
}
