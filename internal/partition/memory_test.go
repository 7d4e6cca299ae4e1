package partition

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/storage"
)

func memoryShard(t testing.TB, o Options) *Partition {
	t.Helper()
	p := NewMemory(o)
	t.Cleanup(func() { require.NoError(t, p.Close(context.Background())) })
	return p
}

func TestMemoryDeliversInOrderWithoutOffsets(t *testing.T) {
	p := memoryShard(t, Options{})
	r := reader{sub: subscribe(t, p, StartLatest())}
	require.False(t, r.sub.HasOffsets())
	var want []string
	for i := range 100 {
		v := numbered(string(rune('a'+i%26)), 1+i%70)
		want = append(want, v...)
		s := send(p, &Publish{Payloads: payloads(v...)}).wait(t)
		require.NoError(t, s.Err)
		require.False(t, s.HasOffset)
	}
	require.NoError(t, r.take(deadline(t), len(want)))
	require.Equal(t, want, r.payloads())
	for _, e := range r.events {
		require.Zero(t, e.offset)
	}
	require.Equal(t, uint64(len(want)), p.Counters().Records.Load())
}

func TestMemoryStartsWithinItsReplayRing(t *testing.T) {
	p := memoryShard(t, Options{ReplayBatches: 3})
	for _, v := range []string{"a", "b", "c", "d"} {
		publish(t, p, v+"0", v+"1")
	}
	read := func(start Start) []string {
		r := reader{sub: subscribe(t, p, start)}
		defer r.sub.Close()
		tail := int(p.Positions().Next - r.sub.Position())
		require.NoError(t, r.take(deadline(t), tail))
		return r.payloads()
	}
	require.Equal(t, []string{"b0", "b1", "c0", "c1", "d0", "d1"}, read(StartEarliest()))
	require.Equal(t, []string{"c1", "d0", "d1"}, read(StartAt(5)), "from the middle of a batch")
	require.Empty(t, read(StartAt(8)))

	_, err := p.Subscribe(deadline(t), SubscribeOptions{Start: StartAt(1)})
	require.Equal(t, &TooOldError{Requested: 1, Available: 2}, err)
	for _, far := range []storage.Offset{9, 1 << 63, 1<<64 - 1} {
		_, err = p.Subscribe(deadline(t), SubscribeOptions{Start: StartAt(far)})
		require.Equal(t, &InFutureError{Requested: far, Available: 8}, err)
	}
	require.Zero(t, p.Stats().Subscribers, "a refused subscription leaves nothing")
}

func TestMemoryDropsByPolicy(t *testing.T) {
	for name, c := range map[string]struct {
		overflow stream.Overflow
		want     []string
	}{
		"drop_new": {stream.DropNew, []string{"0", "1", "2"}},
		"drop_old": {stream.DropOld, []string{"7", "8", "9"}},
	} {
		t.Run(name, func(t *testing.T) {
			told := map[*Subscription]uint64{}
			p := memoryShard(t, Options{Overflow: c.overflow, Events: Events{OnDropped: func(_ string, s *Subscription) { told[s] = s.Dropped() }}})
			slow := reader{sub: subscribeWith(t, p, SubscribeOptions{QueueCapacity: 3})}
			fast := reader{sub: subscribeWith(t, p, SubscribeOptions{QueueCapacity: 100})}
			require.Equal(t, 3, slow.sub.QueueCapacity())
			want := numbered("", 10)
			for _, v := range want {
				publish(t, p, v)
			}
			require.NoError(t, slow.take(deadline(t), 3))
			require.Equal(t, c.want, slow.payloads())
			require.Equal(t, uint64(7), slow.sub.Dropped())
			require.Equal(t, uint64(7), p.Counters().DroppedNew.Load()+p.Counters().DroppedOld.Load())
			require.NoError(t, fast.take(deadline(t), 10))
			require.Equal(t, want, fast.payloads())
			publish(t, p, "after")
			require.NoError(t, slow.take(deadline(t), 1))
			require.Equal(t, "after", slow.events[3].payload)
			for _, r := range []*reader{&slow, &fast, &slow} {
				r.sub.Close()
			}
			require.Equal(t, map[*Subscription]uint64{slow.sub: 7}, told, "once, and of nobody who had all")
		})
	}
}

func TestQueueCapacityIsGrantedWithinItsLimits(t *testing.T) {
	p := memoryShard(t, Options{QueueCapacity: 10, MaxQueueCapacity: 20})
	for wish, granted := range map[int]int{0: 10, 1: 1, 15: 15, 1 << 30: 20} {
		require.Equal(t, granted, subscribeWith(t, p, SubscribeOptions{QueueCapacity: wish}).QueueCapacity())
	}
}

func TestHistoryIsNotDroppedByTheQueue(t *testing.T) {
	p := memoryShard(t, Options{Overflow: stream.DropNew})
	want := numbered("h", 50)
	for _, v := range want {
		publish(t, p, v)
	}
	r := reader{sub: subscribeWith(t, p, SubscribeOptions{Start: StartEarliest(), QueueCapacity: 1})}
	publish(t, p, "live")
	publish(t, p, "dropped")
	require.NoError(t, r.take(deadline(t), 51))
	require.Equal(t, append(want, "live"), r.payloads())
}

func TestBlockHoldsPublishesUntilThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewMemory(Options{Overflow: stream.Block, BlockFor: time.Second})
		defer p.Close(context.Background())
		slow, err := p.Subscribe(t.Context(), SubscribeOptions{QueueCapacity: 2})
		require.NoError(t, err)
		defer slow.Close()
		fast, err := p.Subscribe(t.Context(), SubscribeOptions{QueueCapacity: 100})
		require.NoError(t, err)
		defer fast.Close()
		var sends []*sent
		for _, v := range numbered("", 5) {
			sends = append(sends, send(p, &Publish{Payloads: payloads(v)}))
		}
		require.False(t, sends[1].waiting())
		require.True(t, sends[2].waiting(), "the third finds a full queue")
		require.Equal(t, uint64(3), p.Counters().Blocked.Load())

		// A slow subscriber that goes on taking is never ended, however long it lasts.
		r := reader{sub: slow}
		for range 3 {
			time.Sleep(900 * time.Millisecond)
			require.NoError(t, r.next(t.Context()))
		}
		for _, s := range sends {
			require.False(t, s.waiting())
			require.NoError(t, s.Err)
		}
		require.Equal(t, numbered("", 5), r.payloads())
		f := reader{sub: fast}
		require.NoError(t, f.take(t.Context(), 5))
		require.Equal(t, numbered("", 5), f.payloads())
		require.Zero(t, p.Counters().SlowEnded.Load())
	})
}

func TestBlockEndsWhoTakesNothingForTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told *Subscription
		p := NewMemory(Options{Overflow: stream.Block, BlockFor: time.Second, Events: Events{OnSlow: func(_ string, s *Subscription) { told = s }}})
		defer p.Close(context.Background())
		stuck, err := p.Subscribe(t.Context(), SubscribeOptions{QueueCapacity: 1})
		require.NoError(t, err)
		defer stuck.Close()
		slow, err := p.Subscribe(t.Context(), SubscribeOptions{QueueCapacity: 1})
		require.NoError(t, err)
		defer slow.Close()
		began := time.Now()
		send(p, &Publish{Payloads: payloads("a")})
		held := send(p, &Publish{Payloads: payloads("b")})
		require.True(t, held.waiting())

		r := reader{sub: slow}
		time.Sleep(900 * time.Millisecond)
		require.NoError(t, r.next(t.Context())) // has room again: it must not be ended
		<-held.answered
		require.NoError(t, held.Err)
		require.Equal(t, time.Second, time.Since(began), "held for the time allowed")
		require.ErrorIs(t, stuck.Next(t.Context(), new(Delivery)), ErrSlow)
		require.Same(t, stuck, told)
		require.Equal(t, uint64(1), p.Counters().SlowEnded.Load())
		require.NoError(t, r.next(t.Context()))
		require.Equal(t, []string{"a", "b"}, r.payloads())
		require.Equal(t, 1, p.Subscribers())
	})
}

// A subscriber that is still at its history has a full queue and makes progress.
func TestBlockDoesNotEndWhoReadsItsHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewMemory(Options{Overflow: stream.Block, BlockFor: time.Second, ReplayBytes: 4 << 20})
		defer p.Close(context.Background())
		big := string(make([]byte, 200<<10))
		for range 4 {
			send(p, &Publish{Payloads: payloads(big)})
		}
		sub, err := p.Subscribe(t.Context(), SubscribeOptions{Start: StartEarliest(), QueueCapacity: 1})
		require.NoError(t, err)
		defer sub.Close()
		send(p, &Publish{Payloads: payloads("queued")})
		held := send(p, &Publish{Payloads: payloads("held")})
		require.True(t, held.waiting())
		r := reader{sub: sub}
		for range 3 {
			time.Sleep(900 * time.Millisecond)
			require.NoError(t, r.next(t.Context()))
		}
		<-held.answered
		require.NoError(t, held.Err)
		require.NoError(t, r.next(t.Context()))
		require.Equal(t, []string{big, big, big, big, "queued", "held"}, r.payloads())
		require.Zero(t, p.Counters().SlowEnded.Load())
	})
}

func TestHeldPublishesAreBounded(t *testing.T) {
	p := memoryShard(t, Options{Overflow: stream.Block, HeldBytes: 1000, BlockFor: time.Hour})
	sub := subscribeWith(t, p, SubscribeOptions{QueueCapacity: 1})
	publish(t, p, "full")
	big := make([]byte, 400)
	first := send(p, &Publish{Payloads: [][]byte{big}})
	second := send(p, &Publish{Payloads: [][]byte{big}})
	third := send(p, &Publish{Payloads: [][]byte{big}}).wait(t)
	var overloaded *OverloadedError
	require.ErrorAs(t, third.Err, &overloaded)
	require.True(t, first.waiting() && second.waiting())
	sub.Close() // makes room for good
	require.NoError(t, first.wait(t).Err)
	require.NoError(t, second.wait(t).Err)
}

func TestClosingAMemoryShardAnswersEverybody(t *testing.T) {
	p := NewMemory(Options{Overflow: stream.Block, BlockFor: time.Hour})
	queued := reader{sub: subscribeWith(t, p, SubscribeOptions{QueueCapacity: 1})}
	publish(t, p, "queued")
	held := send(p, &Publish{Payloads: payloads("held")})
	require.True(t, held.waiting())
	require.NoError(t, p.Delete(context.Background()))
	require.ErrorIs(t, held.wait(t).Err, ErrDeleted)
	require.NoError(t, queued.next(deadline(t)), "what was queued is delivered")
	require.ErrorIs(t, queued.next(deadline(t)), ErrDeleted)
	require.ErrorIs(t, send(p, &Publish{Payloads: payloads("late")}).Err, ErrDeleted)
	_, err := p.Subscribe(deadline(t), SubscribeOptions{})
	require.ErrorIs(t, err, ErrDeleted)
	require.Equal(t, Closed, p.State())
}

func TestMemoryRemembersIdempotentBatches(t *testing.T) {
	p := memoryShard(t, Options{})
	r := reader{sub: subscribe(t, p, StartLatest())}
	try := func(seq uint64, v string) *sent {
		return send(p, &Publish{Payloads: payloads(v), Idempotent: true, ProducerID: 9, Sequence: seq}).wait(t)
	}
	require.ErrorIs(t, try(1, "x").Err, stream.ErrUnknownProducer)
	require.NoError(t, try(0, "a").Err)
	again := try(0, "a")
	require.NoError(t, again.Err)
	require.True(t, again.Duplicate)
	require.ErrorIs(t, try(0, "b").Err, stream.ErrSequenceReused)
	var gap *stream.SequenceGapError
	require.ErrorAs(t, try(2, "c").Err, &gap)
	require.Equal(t, uint64(1), gap.Expected)
	require.NoError(t, try(1, "b").Err)
	require.NoError(t, r.take(deadline(t), 2))
	require.Equal(t, []string{"a", "b"}, r.payloads())
}

func TestMemoryRefusesWhatNeedsALog(t *testing.T) {
	p := memoryShard(t, Options{})
	require.ErrorIs(t, send(p, &Publish{Payloads: payloads("a"), HasExpected: true}).Err, ErrMemoryStream)
	require.ErrorIs(t, p.Read(deadline(t), ReadRequest{}, new(ReadPage)), ErrMemoryStream)
	_, _, err := p.OffsetForTime(deadline(t), 1)
	require.ErrorIs(t, err, ErrMemoryStream)
	require.ErrorIs(t, send(p, &Publish{Idempotent: true}).Err, ErrEmptyBatch)
	empty := send(p, &Publish{}).wait(t)
	require.NoError(t, empty.Err)
	require.False(t, empty.HasOffset)
	require.Zero(t, p.Positions().Next)
}

// Next that waits ends with its context and with the subscription.
func TestWaitingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewMemory(Options{})
		defer p.Close(context.Background())
		s, err := p.Subscribe(t.Context(), SubscribeOptions{})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error)
		go func() { got <- s.Next(ctx, new(Delivery)) }()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-got, context.Canceled)
		go func() { got <- s.Next(t.Context(), new(Delivery)) }()
		synctest.Wait()
		s.Close()
		require.ErrorIs(t, <-got, ErrUnsubscribed)
		require.Zero(t, p.Subscribers())
	})
}

func TestBudgetRefusesAndGivesBack(t *testing.T) {
	node := NewBudget(1000, ScopeNode, nil)
	tenant := NewBudget(600, ScopeTenant, node)
	other := NewBudget(600, ScopeTenant, node)
	require.NoError(t, tenant.Acquire(500))
	require.Equal(t, error(overloads[ScopeTenant]), tenant.Acquire(200))
	require.Equal(t, int64(500), tenant.Used())
	require.Equal(t, error(overloads[ScopeNode]), other.Acquire(501))
	require.Zero(t, other.Used())
	require.Equal(t, int64(500), node.Used())
	tenant.Release(500)
	require.NoError(t, tenant.Acquire(5000), "alone it is let through")
	require.Error(t, tenant.Acquire(1))
	tenant.Release(5000)
	require.Zero(t, node.Used())
}
