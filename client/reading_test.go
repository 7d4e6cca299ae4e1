package client

import (
	"context"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

// valuesScript answers gets of "key". Those of other keys are answered by other.
func valuesScript(t *testing.T, other func(p *peer, m *wire.CacheGet)) *script {
	return newScript(t, func(p *peer) {
		for m := p.next(); m != nil; m = p.next() {
			if get := m.(*wire.CacheGet); get.Key == "key" {
				p.send(valueOf(get))
			} else {
				other(p, get)
			}
		}
	})
}

func valueOf(m *wire.CacheGet) *wire.CacheValue {
	return &wire.CacheValue{
		Tenant: m.Tenant, Namespace: m.Namespace, Cache: m.Cache, Key: m.Key, Value: []byte(m.Key), HasValue: true,
		RequestID: m.RequestID, HasRequestID: true,
	}
}

// values is a cache of a script, and the connection that requests for "key" and for other,
// another key, take. ask asks for "key".
func values(t *testing.T, s *script, opts ...ClientOption) (k *Cache, p *pipe, ask func(), other string) {
	t.Helper()
	c := s.dial(opts...)
	k = c.Cache("k")
	for i := 0; other == "" || c.keySlot("k", other) != c.keySlot("k", "key"); i++ {
		other = "other " + strconv.Itoa(i)
	}
	p, err := c.keySlot("k", "key").get(soon(t))
	require.NoError(t, err)
	return k, p, func() { requireValue(t, k, "key") }, other
}

func requireValue(t *testing.T, k *Cache, key string) {
	t.Helper()
	v, _, err := k.Get(soon(t), key)
	require.NoError(t, err)
	require.Equal(t, key, string(v.Data))
}

// uncheckedLoans leaves the checking of p's loans to the test.
func uncheckedLoans(p *pipe) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reading.check = time.AfterFunc(time.Hour, func() {})
}

func (p *pipe) loan() (by readBy, claims uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reading.by, p.reading.claims
}

// untilLent asks until p is lent, one at a time.
func untilLent(p *pipe, ask func()) {
	for by := byReader; by == byReader; by, _ = p.loan() {
		ask()
	}
}

// requireClaims asks n times, and each time it is the caller who reads.
func requireClaims(t *testing.T, p *pipe, n int, ask func()) {
	t.Helper()
	_, before := p.loan()
	for range n {
		ask()
	}
	by, claims := p.loan()
	require.Equal(t, byNobody, by)
	require.EqualValues(t, n, claims-before)
}

// Answers to requests that come one at a time are read by those who asked, and none is
// before a run of them has been alone.
func TestLoneCallersReadTheirAnswers(t *testing.T) {
	_, p, ask, _ := values(t, valuesScript(t, nil))
	uncheckedLoans(p)
	for range loneRun {
		ask()
	}
	_, claims := p.loan()
	require.Zero(t, claims)
	untilLent(p, ask)
	requireClaims(t, p, 100, ask)
}

// The same for records. The answers to Sends, which nobody may be waiting for, are the
// reader's, however lone they are.
func TestLonePublishersReadTheirAnswers(t *testing.T) {
	b := newBroker(t)
	p, err := dial(t, b).Producer("orders")
	require.NoError(t, err)
	sent := 0
	publish := func() {
		_, err := p.Publish(soon(t), numbered(sent))
		require.NoError(t, err)
		sent++
	}
	publish()
	on := p.all()[0].pipe
	uncheckedLoans(on)
	untilLent(on, publish)
	requireClaims(t, on, 100, publish)

	_, before := on.loan()
	for range loneRun {
		f, err := p.Send(soon(t), numbered(sent))
		require.NoError(t, err)
		sent++
		wait(t, f.Done(), "the answer to a Send")
	}
	publish()
	by, claims := on.loan()
	require.Equal(t, byReader, by)
	require.Equal(t, before, claims)
	requireNumbered(t, b.Records("orders", 0), sent)
}

// Answers that come behind a caller's own are the reader's to read, for a run at least.
func TestACallerLeavesOtherAnswersToTheReader(t *testing.T) {
	asked, behind := make(chan struct{}), make(chan struct{})
	k, p, ask, other := values(t, valuesScript(t, func(p *peer, m *wire.CacheGet) {
		asked <- struct{}{}
		next, ok := p.next().(*wire.CacheGet)
		p.send(valueOf(m))
		<-behind
		if ok {
			p.send(valueOf(next))
		}
	}))
	uncheckedLoans(p)
	untilLent(p, ask)
	var first, second sync.WaitGroup
	first.Go(func() { requireValue(t, k, other) })
	<-asked
	by, claims := p.loan()
	require.Equal(t, byCaller, by)
	second.Go(ask)
	first.Wait()
	by, _ = p.loan()
	require.Equal(t, byReader, by)
	close(behind)
	second.Wait()
	for range loneRun {
		ask()
	}
	_, now := p.loan()
	require.Equal(t, claims, now)
}

// A loan that is not used between two checks ends, and with it the run.
func TestALoanEndsWithItsUse(t *testing.T) {
	_, p, ask, _ := values(t, valuesScript(t, nil))
	uncheckedLoans(p)
	requireBy := func(want readBy) {
		by, _ := p.loan()
		require.Equal(t, want, by)
	}
	untilLent(p, ask)
	requireClaims(t, p, 1, ask)
	p.checkLoan()
	requireBy(byNobody)
	requireClaims(t, p, 1, ask)
	p.checkLoan()
	requireBy(byNobody)
	p.checkLoan()
	requireBy(byReader)
	_, before := p.loan()
	for range loneRun {
		ask()
	}
	_, claims := p.loan()
	require.Equal(t, before, claims)

	// A caller who holds it for long does not use it either, though all it asked for is there.
	untilLent(p, ask)
	require.True(t, p.claimNow())
	p.checkLoan()
	p.checkLoan()
	requireBy(byCaller)
	p.readFor(nil)
	requireBy(byReader)
	untilLent(p, ask)
}

// The reader lends nothing that something is under way on.
func TestWhatIsNotLent(t *testing.T) {
	quiet := func() *pipe { return &pipe{session: &session{reader: wire.NewReader(&wholeReader{}, 1<<20)}} }
	p := quiet()
	require.True(t, p.lend())
	p.reading.check.Stop()

	p = quiet()
	p.due(waiting{})
	require.False(t, p.lend(), "an answer is due")
	p = quiet()
	p.err = ErrClosed
	require.False(t, p.lend(), "it has ended")
	p = quiet()
	p.reader = wire.NewReader(&wholeReader{eventFrames(2, 1)}, 1<<20)
	_, err := p.reader.Next()
	require.NoError(t, err)
	require.False(t, p.lend(), "a frame is there")
}

// A caller that reads is bound by its context, at the second check. Neither the connection
// nor the answer, which comes later, is the worse for it.
func TestACallerThatReadsIsBoundByItsContext(t *testing.T) {
	for _, helped := range []bool{true, false} { // by the test, or by time alone
		asked, release := make(chan struct{}), make(chan struct{})
		s := valuesScript(t, func(p *peer, m *wire.CacheGet) {
			asked <- struct{}{}
			<-release
			p.send(valueOf(m))
		})
		k, p, ask, other := values(t, s)
		if helped {
			uncheckedLoans(p)
		}
		untilLent(p, ask)
		ctx, cancel := context.WithCancel(soon(t))
		failed := make(chan error, 1)
		go func() {
			_, _, err := k.Get(ctx, other)
			failed <- err
		}()
		<-asked
		cancel()
		if helped {
			p.checkLoan()
			by, _ := p.loan()
			require.Equal(t, byCaller, by)
			p.checkLoan()
		}
		err := wait(t, failed, "the end of a request whose context has ended")
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, ErrOutcomeUnknown)
		by, _ := p.loan()
		require.Equal(t, byReader, by)
		close(release)
		ask()
		untilLent(p, ask)
		require.NoError(t, p.ended())
	}
}

// A connection that ends under a caller that reads is lost, and the request is made on the
// next.
func TestAConnectionEndsUnderACallerThatReads(t *testing.T) {
	var cut sync.Once
	s := valuesScript(t, func(p *peer, m *wire.CacheGet) {
		first := false
		cut.Do(func() { first = true })
		if first {
			ignore(p.conn.Close())
		} else {
			p.send(valueOf(m))
		}
	})
	k, p, ask, other := values(t, s)
	uncheckedLoans(p)
	untilLent(p, ask)
	_, before := p.loan()
	requireValue(t, k, other)
	_, claims := p.loan()
	require.Equal(t, before+1, claims)
	require.ErrorIs(t, p.ended(), ErrConnectionLost)
	ask()
}

// A callback may end the goroutine of the caller that reads, as a test's does that fails; the
// reader hears of the end all the same.
func TestACallersGoroutineEndsWhileItReads(t *testing.T) {
	s := valuesScript(t, func(p *peer, _ *wire.CacheGet) { ignore(p.conn.Close()) })
	var once sync.Once
	k, p, ask, other := values(t, s, WithEvents(Events{OnDisconnect: func(string, error) { once.Do(runtime.Goexit) }}))
	uncheckedLoans(p)
	untilLent(p, ask)
	var caller sync.WaitGroup
	caller.Go(func() {
		_, _, err := k.Get(soon(t), other)
		t.Error("came back", err)
	})
	caller.Wait()
	p.wg.Wait()
}

// The end of a connection that nobody reads is noticed, though nobody asks.
func TestTheEndOfALentConnectionIsNoticed(t *testing.T) {
	b := newBroker(t)
	p, err := dial(t, b).Producer("orders")
	require.NoError(t, err)
	publish := func() {
		_, err := p.Publish(soon(t), []byte("x"))
		require.NoError(t, err)
	}
	publish()
	on := p.all()[0].pipe
	untilLent(on, publish)
	b.Disconnect()
	wait(t, on.done, "the end of the connection")
}

// The reader ends with its connection, though a caller holds that and does not read.
func TestTheEndWhileACallerHoldsTheConnection(t *testing.T) {
	_, p, ask, _ := values(t, valuesScript(t, nil))
	uncheckedLoans(p)
	untilLent(p, ask)
	require.True(t, p.claimNow())
	p.fail(ErrClosed)
	p.readFor(nil)
	p.wg.Wait()
}

// Closing a client waits neither for a loan's end nor for the answer that a caller reads for.
func TestCloseEndsALoan(t *testing.T) {
	for _, reads := range []bool{false, true} {
		asked := make(chan struct{})
		s := valuesScript(t, func(p *peer, _ *wire.CacheGet) {
			asked <- struct{}{}
			<-p.s.done
		})
		k, p, ask, other := values(t, s)
		uncheckedLoans(p)
		untilLent(p, ask)
		failed := make(chan error, 1)
		if reads {
			go func() {
				_, _, err := k.Get(soon(t), other)
				failed <- err
			}()
			<-asked
		}
		require.NoError(t, k.c.Close())
		if reads {
			require.ErrorIs(t, wait(t, failed, "the end of the request"), ErrClosed)
		}
	}
}

// Whoever reads in turn, and whatever ends in between: what was acknowledged is in the log,
// and nothing is twice.
func TestReaderAndCallersTakeTurns(t *testing.T) {
	b := newBroker(t)
	p, err := dial(t, b).Producer("orders")
	require.NoError(t, err)
	var mu sync.Mutex
	sent, acked := 0, map[string]bool{}
	publish := func(ctx context.Context) error {
		mu.Lock()
		payload := numbered(sent)
		sent++
		mu.Unlock()
		_, err := p.Publish(ctx, payload)
		if err == nil {
			mu.Lock()
			acked[string(payload)] = true
			mu.Unlock()
		}
		return err
	}
	mustPublish := func() {
		if err := publish(soon(t)); err != nil {
			t.Error(err)
		}
	}
	r := rand.New(rand.NewPCG(7, 11))
	for round := range 60 {
		for range loneRun + r.IntN(loneRun) {
			mustPublish()
		}
		ctx, cancel := context.WithCancel(soon(t))
		var together sync.WaitGroup
		together.Go(func() { ignore(publish(ctx)) })
		for range r.IntN(4) {
			together.Go(mustPublish)
		}
		if round%3 == 0 {
			b.Disconnect()
		}
		cancel()
		together.Wait()
	}
	require.NoError(t, p.Close(soon(t)))
	times := map[string]int{}
	for _, record := range b.Records("orders", 0) {
		times[string(record)]++
		require.Equal(t, 1, times[string(record)], "%s", record)
	}
	for payload := range acked {
		require.Equal(t, 1, times[payload], "%s", payload)
	}
}
