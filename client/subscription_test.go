package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client/felixtest"
	"github.com/felixlog/felix/wire"
)

func publish(t testing.TB, c *Client, stream string, from, to int, opts ...PublishOption) {
	t.Helper()
	p, err := c.Producer(stream)
	require.NoError(t, err)
	ctx := soon(t)
	for i := from; i < to; i++ {
		_, err := p.Send(ctx, numbered(i), opts...)
		require.NoError(t, err)
	}
	require.NoError(t, p.Close(soon(t)))
}

func requireNext(t testing.TB, s *Subscription, from, to int) {
	t.Helper()
	ctx := soon(t)
	for i := from; i < to; i++ {
		r, err := s.Next(ctx)
		require.NoError(t, err)
		require.Equal(t, uint64(i), r.Offset)
		require.True(t, r.HasOffset)
		require.Equal(t, string(numbered(i)), string(r.Payload))
		require.Zero(t, r.Lost)
	}
}

func subscribe(t testing.TB, c *Client, stream string, opts ...SubscribeOption) *Subscription {
	t.Helper()
	s, err := c.Subscribe(soon(t), stream, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestSubscribeStarts(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	publish(t, c, "orders", 0, 100)
	latest := subscribe(t, c, "orders")
	publish(t, c, "orders", 100, 200)
	requireNext(t, latest, 100, 200)
	requireNext(t, subscribe(t, c, "orders", FromEarliest()), 0, 200)
	requireNext(t, subscribe(t, c, "orders", FromOffset(150)), 150, 200)
	requireNext(t, subscribe(t, c, "orders", FromLatest(), FromOffsets(map[int]uint64{0: 7})), 7, 200)
	requireNext(t, subscribe(t, c, "orders", FromTime(time.Now().Add(-time.Hour))), 0, 200)

	none := subscribe(t, c, "orders", FromTime(time.Now().Add(time.Hour)))
	publish(t, c, "orders", 200, 201)
	requireNext(t, none, 200, 201)
}

// There is no record that recent when it is asked for one; those that are published before
// the subscription stands are delivered all the same, whenever that is.
func TestSubscribeFromTimeMissesNothing(t *testing.T) {
	for _, during := range []string{"stream_read", "offset_for_time", "subscribe"} {
		b := newBroker(t)
		c, other := dial(t, b), dial(t, b)
		publish(t, other, "orders", 0, 1)
		at := time.Now()
		asked := 0
		var once sync.Once
		b.Intercept(func(r felixtest.Request) felixtest.Action {
			if r.Type != during {
				return felixtest.Action{}
			}
			if asked++; during == "offset_for_time" && asked == 1 {
				return felixtest.Action{} // the first is to find nothing
			}
			once.Do(func() {
				if _, err := other.Publish(context.Background(), "orders", numbered(1)); err != nil {
					t.Error(err)
				}
			})
			return felixtest.Action{}
		})
		s := subscribe(t, c, "orders", FromTime(at))
		publish(t, other, "orders", 2, 3)
		requireNext(t, s, 1, 3)
	}
}

func TestSubscribeTimestamps(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	before := time.Now().Add(-time.Second)
	publish(t, c, "orders", 0, 10)
	with := subscribe(t, c, "orders", FromEarliest(), WithTimestamps())
	without := subscribe(t, c, "orders", FromEarliest())
	for range 10 {
		r, err := with.Next(soon(t))
		require.NoError(t, err)
		require.WithinRange(t, r.Timestamp, before, time.Now())
		r, err = without.Next(soon(t))
		require.NoError(t, err)
		require.True(t, r.Timestamp.IsZero())
	}
}

func TestSubscribeRefusals(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	publish(t, c, "orders", 0, 100)
	b.Trim("orders", 0, 40)
	_, err := c.Subscribe(soon(t), "orders", FromOffset(10))
	require.ErrorIs(t, err, ErrCursorTooOld)
	var cursor *CursorError
	require.ErrorAs(t, err, &cursor)
	require.Equal(t, CursorError{Requested: 10, Available: 40}, *cursor)
	for _, offset := range []uint64{101, 1 << 63, 1<<64 - 1} {
		_, err = c.Subscribe(soon(t), "orders", FromOffset(offset))
		require.ErrorIs(t, err, ErrInFuture)
		require.NotErrorIs(t, err, ErrCursorTooOld)
	}
	requireNext(t, subscribe(t, c, "orders", FromEarliest()), 40, 100)
	_, err = c.Subscribe(soon(t), "..")
	require.ErrorContains(t, err, "begin with")
	b.Intercept(func(r felixtest.Request) felixtest.Action {
		if r.Type == "subscribe" {
			return felixtest.Action{Refuse: wire.NewFailure(wire.CodeForbidden, "not yours")}
		}
		return felixtest.Action{}
	})
	_, err = c.Subscribe(soon(t), "orders")
	require.ErrorIs(t, err, ErrForbidden)
}

func TestSubscribeAllShards(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	s := subscribe(t, c, "wide", FromEarliest(), AllShards())
	p, err := c.Producer("wide")
	require.NoError(t, err)
	const n = 2000
	for i := range n {
		_, err := p.Send(soon(t), numbered(i), WithKey(fmt.Append(nil, i%50)))
		require.NoError(t, err)
	}
	require.NoError(t, p.Close(soon(t)))
	next := map[int]uint64{}
	seen := map[string]bool{}
	for r, err := range s.All(soon(t)) {
		require.NoError(t, err)
		require.Equal(t, next[r.Shard], r.Offset)
		next[r.Shard]++
		seen[string(r.Payload)] = true
		if len(seen) == n {
			break
		}
	}
	require.Len(t, next, 4)
}

// A subscription goes on after lost connections and restarts of the broker as if
// nothing had been: no gap, no duplicate.
func TestSubscriptionResumes(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	s := subscribe(t, c, "orders")
	const rounds, each = 12, 300
	var wg sync.WaitGroup
	wg.Go(func() {
		p, err := c.Producer("orders")
		if err != nil {
			t.Error(err)
			return
		}
		for i := range rounds * each {
			if _, err := p.Publish(context.Background(), numbered(i)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for round := range rounds {
		requireNext(t, s, round*each, (round+1)*each)
		if round%3 == 2 {
			b.Stop()
			require.NoError(t, b.Restart())
		} else {
			b.Disconnect()
		}
	}
	wg.Wait()
}

// An idle subscription that loses its connection knows where it was.
func TestIdleSubscriptionResumes(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	publish(t, c, "orders", 0, 10)
	s := subscribe(t, c, "orders")
	b.Stop()
	require.NoError(t, b.Restart())
	publish(t, c, "orders", 10, 20)
	requireNext(t, s, 10, 20)
}

// What was trimmed while it was away is reported, with what is left.
func TestSubscriptionFellBehind(t *testing.T) {
	b := newBroker(t)
	retried := make(chan struct{}, 1000)
	c := dial(t, b, WithEvents(Events{OnRetry: func(string, error, time.Duration) { retried <- struct{}{} }}))
	publish(t, c, "orders", 0, 100)
	s := subscribe(t, c, "orders", FromOffset(100))
	b.Stop()
	<-retried
	require.NoError(t, b.Restart())
	other := dial(t, b)
	s2 := subscribe(t, other, "orders", FromOffset(50))
	requireNext(t, s2, 50, 100)

	b.Stop()
	b.Lose("orders", 0, 60)
	require.NoError(t, b.Restart())
	_, err := s.Next(soon(t))
	require.ErrorIs(t, err, ErrInFuture)
	_, again := s.Next(soon(t))
	require.Equal(t, err, again)
}

func TestSubscriptionResumeTimeout(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	s := subscribe(t, c, "orders", WithResumeTimeout(time.Millisecond))
	b.Stop()
	_, err := s.Next(soon(t))
	require.ErrorIs(t, err, ErrUnavailable)
}

func TestNextContext(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	s := subscribe(t, c, "orders")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.Next(ctx)
	require.ErrorIs(t, err, context.Canceled)
	publish(t, c, "orders", 0, 5)
	requireNext(t, s, 0, 5)

	done := make(chan error)
	go func() {
		_, err := s.Next(context.Background())
		done <- err
	}()
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-done, ErrClosed)
	for range s.All(soon(t)) {
		t.Fatal("a record after Close")
	}
}

// A consumer that stops makes the broker wait; nothing piles up here.
func TestSlowConsumerHoldsTheBroker(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	s := subscribe(t, c, "orders")
	const n, size = 300, 128 << 10
	p, err := c.Producer("orders")
	require.NoError(t, err)
	for range n {
		_, err := p.Send(soon(t), make([]byte, size))
		require.NoError(t, err)
	}
	require.NoError(t, p.Close(soon(t)))
	require.LessOrEqual(t, len(s.items), queuedFrames)
	for i := range n {
		r, err := s.Next(soon(t))
		require.NoError(t, err)
		require.Equal(t, uint64(i), r.Offset)
		require.Len(t, r.Payload, size)
	}
}

// What a broker sends again is dropped, what it passes over is counted, and what
// it says holds no record is not.
func TestDeliveriesAreFitted(t *testing.T) {
	s := &Subscription{items: make(chan *delivery, 1)}
	f := &feed{s: s, next: 10, hasNext: true}
	batch := func(base, skipped uint64, n int) *delivery {
		d := &delivery{}
		d.batch.BaseOffset, d.batch.HasOffsets, d.batch.SkippedBefore, d.batch.Payloads = base, true, skipped, make([][]byte, n)
		return d
	}
	for _, c := range []struct {
		base, skipped uint64
		n             int
		delivered     bool
		first, lost   uint64
	}{
		{5, 0, 5, false, 0, 0},
		{8, 0, 4, true, 10, 0},
		{12, 0, 1, true, 12, 0},
		{12, 0, 1, false, 0, 0},
		{15, 2, 1, true, 15, 0},
		{20, 1, 2, true, 20, 3},
		{22, 0, 0, false, 0, 0},
		{22, 0, 1, true, 22, 0},
	} {
		require.NoError(t, f.deliver(context.Background(), batch(c.base, c.skipped, c.n)))
		require.Equal(t, c.delivered, len(s.items) == 1, "%+v", c)
		if c.delivered {
			r, err := s.Next(context.Background())
			require.NoError(t, err)
			require.Equal(t, c.first, r.Offset)
			require.Equal(t, c.lost, r.Lost)
			s.cur = nil
		}
	}
}

// A frame above the limit would come again and again: it ends the subscription.
func TestFrameAboveTheLimit(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	_, err := c.Publish(soon(t), "orders", make([]byte, 1<<20))
	require.NoError(t, err)
	small := dial(t, b, WithMaxFrame(512<<10))
	_, err = subscribe(t, small, "orders", FromEarliest()).Next(soon(t))
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorContains(t, err, "max=524288")
}

// Payloads stay what they were while others are read.
func TestPayloadsBelongToTheCaller(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	publish(t, c, "orders", 0, 5000)
	s := subscribe(t, c, "orders", FromEarliest())
	var kept [][]byte
	ctx := soon(t)
	for range 5000 {
		r, err := s.Next(ctx)
		require.NoError(t, err)
		kept = append(kept, r.Payload)
	}
	requireNumbered(t, kept, 5000)
}

// Batches and single records may take turns: together they are every record once and in
// order, and the payloads that Next gave stay what they were whatever is read after them.
func TestBatchesAndSingleRecordsTakeTurns(t *testing.T) {
	const n = 20_000
	b := newBroker(t)
	c := dial(t, b)
	padded := func(i int) []byte { return fmt.Appendf(nil, "%s %0400d", numbered(i), i) }
	p, err := c.Producer("orders")
	require.NoError(t, err)
	ctx := soon(t)
	for i := range n { // more than is read ahead
		_, err := p.Send(ctx, padded(i))
		require.NoError(t, err)
	}
	require.NoError(t, p.Close(ctx))
	s := subscribe(t, c, "orders", FromEarliest())
	kept := make(map[int][]byte)
	r := rand.New(rand.NewPCG(3, 4))
	for at := 0; at < n; {
		if r.IntN(8) < 3 {
			records, err := s.NextBatch(ctx)
			require.NoError(t, err)
			require.NotEmpty(t, records)
			for _, record := range records {
				require.EqualValues(t, at, record.Offset)
				require.True(t, record.HasOffset)
				require.Zero(t, record.Lost)
				require.Equal(t, string(padded(at)), string(record.Payload))
				at++
			}
			continue
		}
		record, err := s.Next(ctx)
		require.NoError(t, err)
		require.EqualValues(t, at, record.Offset)
		kept[at] = record.Payload
		at++
	}
	for i, payload := range kept {
		require.Equal(t, string(padded(i)), string(payload))
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = s.NextBatch(canceled)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, s.Close())
	_, err = s.NextBatch(ctx)
	require.ErrorIs(t, err, ErrClosed)
}

// A batch says of its records what Next says.
func TestBatchesSayWhatNextSays(t *testing.T) {
	batch := func() *delivery {
		d := &delivery{shard: 3, from: 1, lost: 7}
		d.batch.BaseOffset, d.batch.HasOffsets, d.batch.HasTimestamps = 20, true, true
		d.batch.Payloads = [][]byte{[]byte("old"), []byte("a"), []byte("b"), []byte("c")}
		d.batch.Timestamps = []uint64{1, 2, 3, 4}
		d.batch.Publisher = []byte("alice")
		return d
	}
	s := &Subscription{items: make(chan *delivery, 2)}
	s.items <- batch()
	s.items <- batch()
	var single []Record
	for range 3 {
		r, err := s.Next(t.Context())
		require.NoError(t, err)
		single = append(single, r)
	}
	records, err := s.NextBatch(t.Context())
	require.NoError(t, err)
	require.Equal(t, single, records)
	require.Equal(t, Record{Shard: 3, Offset: 21, HasOffset: true, Payload: []byte("a"), Publisher: "alice", Timestamp: time.UnixMicro(2), Lost: 7}, records[0])
}

func TestRead(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	publish(t, c, "orders", 0, 100)
	b.Trim("orders", 0, 10)
	page, err := c.Read(soon(t), "orders", 0, 20, ReadRecords(5))
	require.NoError(t, err)
	require.Equal(t, uint64(25), page.Next)
	require.Len(t, page.Records, 5)
	require.Equal(t, uint64(20), page.Records[0].Offset)
	require.Equal(t, numbered(20), page.Records[0].Payload)
	page, err = c.Read(soon(t), "orders", 0, 95, ReadUntil(97))
	require.NoError(t, err)
	require.Len(t, page.Records, 2)
	page, err = c.Read(soon(t), "orders", 0, 100)
	require.NoError(t, err)
	require.Empty(t, page.Records)
	_, err = c.Read(soon(t), "orders", 0, 5)
	require.ErrorIs(t, err, ErrCursorTooOld)
	_, err = c.Read(soon(t), "orders", 0, 1<<64-1)
	require.ErrorIs(t, err, ErrInFuture)
}

func TestLookups(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	n, err := c.StreamShards(soon(t), "wide")
	require.NoError(t, err)
	require.Equal(t, 4, n)
	owners, err := c.ShardOwners(soon(t), "wide")
	require.NoError(t, err)
	require.Len(t, owners, 4)
	require.Equal(t, 3, owners[3].Shard)
	for _, f := range []func() error{
		func() error { _, err := c.StreamShards(soon(t), "nope"); return err },
		func() error { _, err := c.ShardOwners(soon(t), "nope"); return err },
	} {
		require.ErrorIs(t, f(), ErrNotFound)
	}
	publish(t, c, "orders", 0, 10)
	_, found, err := c.OffsetForTime(soon(t), "orders", 0, time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.False(t, found)
	at, found, err := c.OffsetForTime(soon(t), "orders", 0, time.Unix(0, 0))
	require.NoError(t, err)
	require.True(t, found)
	require.Zero(t, at)
}

// Requests on the one connection are answered to those who asked.
func TestRequestsInParallel(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	publish(t, c, "orders", 0, 200)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			page, err := c.Read(context.Background(), "orders", 0, uint64(i), ReadRecords(1))
			if err != nil || len(page.Records) != 1 || string(page.Records[0].Payload) != string(numbered(i)) {
				t.Errorf("read %d: %v %v", i, page, err)
			}
			if i%50 == 0 {
				b.Disconnect()
			}
		})
	}
	wg.Wait()
	// The broker counts a connection until its goroutine has ended.
	require.Eventually(t, func() bool { open, _ := b.Connections(); return open <= 3 }, patience, time.Millisecond)
}

func TestDialRefusals(t *testing.T) {
	b := newBroker(t)
	_, err := Dial(soon(t), []string{b.Addr()}, options(b, WithToken(StaticToken("wrong")))...)
	require.ErrorIs(t, err, ErrUnauthenticated)
	_, err = Dial(soon(t), nil, options(b)...)
	require.ErrorContains(t, err, "no address")
	_, err = Dial(soon(t), []string{b.Addr()}, WithRootCAs(b.RootCAs()))
	require.ErrorContains(t, err, "no token")
	_, err = Dial(soon(t), []string{b.Addr()}, WithToken(StaticToken(b.Token())))
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorContains(t, err, "certificate")
	_, err = Dial(soon(t), []string{b.Addr()}, options(b, WithTenant("a/b"))...)
	require.ErrorContains(t, err, "tenant: name")
	_, err = Dial(soon(t), []string{b.Addr()}, options(b, WithPublishConnections(0))...)
	require.ErrorContains(t, err, "1 to 64")

	b.Stop()
	_, err = Dial(soon(t), []string{b.Addr()}, options(b)...)
	require.ErrorIs(t, err, ErrUnavailable)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = Dial(ctx, []string{b.Addr()}, options(b)...)
	require.ErrorIs(t, err, context.Canceled)
}

// The first address that answers is used, and a token is asked for again when
// the first was refused.
func TestDialEndpointsAndTokens(t *testing.T) {
	b := newBroker(t)
	dead := newBroker(t)
	dead.Stop()
	c, err := Dial(soon(t), []string{dead.Addr(), b.Addr()}, options(b)...)
	require.NoError(t, err)
	require.NoError(t, c.Close())

	asked := 0
	c, err = Dial(soon(t), []string{b.Addr()}, options(b, WithToken(func(context.Context) (string, error) {
		if asked++; asked == 1 {
			return "stale", nil
		}
		return b.Token(), nil
	}))...)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.Equal(t, 2, asked)

	boom := errors.New("no token today")
	_, err = Dial(soon(t), []string{b.Addr()}, options(b, WithToken(func(context.Context) (string, error) { return "", boom }))...)
	require.ErrorIs(t, err, boom)
}

// A token that is refused later ends what waits for a connection, by its reason.
func TestTokenRefusedOnReconnect(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	s := subscribe(t, c, "orders")
	publish(t, c, "orders", 0, 1)
	requireNext(t, s, 0, 1)
	b.SetToken("another")
	b.Disconnect()
	_, err := s.Next(soon(t))
	require.ErrorIs(t, err, ErrUnauthenticated)
	_, err = c.Publish(soon(t), "orders", []byte("x"))
	require.ErrorIs(t, err, ErrUnauthenticated)
	require.NotErrorIs(t, err, ErrOutcomeUnknown)
}
