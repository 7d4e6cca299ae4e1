package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/exec"
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

// panicsAt makes of this test binary a consumer, of the script at that address, whose
// handler panics.
const panicsAt = "CLIENT_TEST_PANICS_AT"

func consumeAndPanic(addr string) {
	ctx := context.Background()
	c, err := Dial(ctx, []string{addr}, WithToken(StaticToken("any")), WithTLS(&tls.Config{InsecureSkipVerify: true}))
	if err == nil {
		err = c.Group("s", "g").Consume(ctx, func(context.Context, Message) error { panic("at the handler") }, WithConcurrency(1))
	}
	fmt.Fprintln(os.Stderr, "not panicked:", err)
	os.Exit(1)
}

// A record whose handler panics is given back before the panic ends the process.
func TestAPanicGivesItsRecordBack(t *testing.T) {
	g := newGroupScript(1)
	polled := false
	g.poll = func(*peer, *wire.GroupPoll) ([]wire.GroupRecord, bool) {
		if polled {
			return nil, false
		}
		polled = true
		return []wire.GroupRecord{{Offset: 7, Attempts: 1}}, true
	}
	s := newScript(t, g.serve)
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(soon(t), self)
	cmd.Env = append(os.Environ(), panicsAt+"="+s.addr)
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "panic: at the handler")
	nack, ok := wait(t, g.settled, "the record given back").(*wire.GroupNack)
	require.True(t, ok, "%#v", nack)
	require.Equal(t, uint64(7), nack.Offset)
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

// A record that is worked on by itself costs one round trip: its ack and the next poll
// leave together, and the poll does not wait for the ack's answer.
func TestAcksLeaveWithTheNextPoll(t *testing.T) {
	const records = 50
	handed := 0
	ended := make(chan struct{})
	s := newScript(t, func(p *peer) {
		for m := p.next(); m != nil; m = p.next() {
			switch m := m.(type) {
			case *wire.StreamShards:
				p.send(&wire.StreamShardsView{Shards: 1, RequestID: m.RequestID})
			case *wire.GroupPoll:
				if handed == records {
					continue // there are no more
				}
				handed++
				p.send(&wire.GroupRecords{RequestID: m.RequestID, Records: []wire.GroupRecord{{Offset: uint64(handed), Attempts: 1}}})
			case *wire.GroupAck:
				if m.Offset != uint64(handed) {
					t.Errorf("ack of %d after %d was handed out", m.Offset, handed)
				}
				if handed == records {
					p.send(&wire.CacheOK{RequestID: m.RequestID})
					close(ended)
					continue
				}
				poll, ok := p.next().(*wire.GroupPoll) // before the ack is answered
				if !ok {
					t.Error("no poll behind the ack")
					return
				}
				handed++
				p.send(&wire.CacheOK{RequestID: m.RequestID},
					&wire.GroupRecords{RequestID: poll.RequestID, Records: []wire.GroupRecord{{Offset: uint64(handed), Attempts: 1}}})
			}
		}
	})
	handled, all := 0, make(chan struct{})
	stop := consume(t, s.dial(), func(context.Context, Message) error {
		if handled++; handled == records {
			close(all)
		}
		return nil
	}, WithConcurrency(1), OnConsumeError(func(err error) { t.Error(err) }))
	wait(t, all, "the last record")
	require.NoError(t, stop())
	wait(t, ended, "the last ack")
}

// An ack that left with a poll is judged as any: one that was refused is told, one that
// is to be tried again is, and so is one whose answer was lost. What the poll came to
// is another matter.
func TestAcksThatLeftWithAPollAreJudged(t *testing.T) {
	refusal := func(code wire.Code) wire.Message { return &wire.Error{Failure: *wire.NewFailure(code, "no")} }
	for name, c := range map[string]struct {
		first wire.Message // the answer to the first ack; nil ends the connection
		told  error
		asked int
	}{
		"refused":    {refusal(wire.CodeInvalidRequest), ErrInvalidRequest, 1},
		"overloaded": {refusal(wire.CodeOverloaded), nil, 2},
		"lost":       {nil, nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			acks := map[uint64]int{}
			next := uint64(0)
			acked := make(chan uint64, 10)
			s := newScript(t, func(p *peer) {
				for m := p.next(); m != nil; m = p.next() {
					switch m := m.(type) {
					case *wire.StreamShards:
						p.send(&wire.StreamShardsView{Shards: 1, RequestID: m.RequestID})
					case *wire.GroupPoll:
						mu.Lock()
						var records []wire.GroupRecord
						if next < 3 {
							next++
							records = append(records, wire.GroupRecord{Offset: next, Attempts: 1})
						}
						mu.Unlock()
						if records == nil && m.WaitMillis > 0 {
							continue // it waits
						}
						p.send(&wire.GroupRecords{RequestID: m.RequestID, Records: records})
					case *wire.GroupAck:
						mu.Lock()
						acks[m.Offset]++
						first := m.Offset == 1 && acks[1] == 1
						mu.Unlock()
						switch {
						case first && c.first == nil:
							return
						case first:
							p.send(c.first)
						default:
							p.send(&wire.CacheOK{RequestID: m.RequestID})
							acked <- m.Offset
						}
					}
				}
			})
			told := make(chan error, 10)
			stop := consume(t, s.dial(), func(context.Context, Message) error { return nil }, WithConcurrency(1),
				OnConsumeError(func(err error) { told <- err }))
			seen := map[uint64]bool{}
			if c.told != nil {
				seen[1] = true
				require.ErrorIs(t, wait(t, told, "the refusal"), c.told)
			}
			for len(seen) < 3 {
				seen[wait(t, acked, "an ack")] = true
			}
			require.NoError(t, stop())
			require.Equal(t, c.asked, acks[1])
			require.Equal(t, 1, acks[2])
		})
	}
}

// A shard whose record is done says so though another has the place that its next poll
// would need.
func TestAcksDoNotWaitForAPlace(t *testing.T) {
	g := newGroupScript(3)
	s := newScript(t, g.serve)
	var come [3]chan wire.GroupRecord
	for i := range come {
		come[i] = make(chan wire.GroupRecord)
	}
	g.poll = func(_ *peer, m *wire.GroupPoll) ([]wire.GroupRecord, bool) {
		if m.WaitMillis == 0 {
			return nil, true
		}
		select {
		case r := <-come[m.Shard]:
			return []wire.GroupRecord{r}, true
		case <-s.done:
			return nil, false
		}
	}
	began := make(chan int, 3)
	first, third := make(chan struct{}), make(chan struct{})
	handled := 0
	stop := consume(t, s.dial(), func(_ context.Context, m Message) error {
		began <- m.Shard
		switch handled++; handled {
		case 1:
			<-first
		case 3:
			<-third
		}
		return nil
	}, WithConcurrency(1))
	come[2] <- wire.GroupRecord{Offset: 2, Attempts: 1}
	require.Equal(t, 2, wait(t, began, "the first record"))
	// Two more wait for the place meanwhile.
	come[0] <- wire.GroupRecord{Offset: 0, Attempts: 1}
	come[1] <- wire.GroupRecord{Offset: 1, Attempts: 1}
	close(first)
	second := wait(t, began, "the second record")
	wait(t, began, "the third record")
	acked := map[int]bool{}
	for len(acked) < 2 {
		acked[int(wait(t, g.settled, "an ack").(*wire.GroupAck).Offset)] = true
	}
	require.Equal(t, map[int]bool{2: true, second: true}, acked)
	close(third)
	require.NoError(t, stop())
}

// A consumer whose context has ended has nothing to do, and that is no error.
func TestConsumeOfAnEndedContext(t *testing.T) {
	s := newScript(t, newGroupScript(1).serve)
	ctx, cancel := context.WithCancel(context.Background())
	c := s.dial()
	cancel()
	require.NoError(t, c.Group("s", "g").Consume(ctx, func(context.Context, Message) error { return nil }))
}
