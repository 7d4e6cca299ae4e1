package partition

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// timed is a stream shard with groups whose clock a test moves.
type timed struct {
	*groupShard
	clock *cacheClock
	lost  uint64
}

func openTimed(t *testing.T, c queue.Config) *timed {
	t.Helper()
	s := &timed{clock: new(cacheClock)}
	s.clock.ms.Store(1_000_000)
	fs := disk.NewStrict(1, disk.Options{})
	s.groupShard = openGroups(t, fs, "/shard", GroupsOptions{
		Defaults: c, Now: s.clock.now, OnLost: func(_, _ string, n uint64) { s.lost += n },
	})
	t.Cleanup(s.close)
	return s
}

func (s *timed) pass(d time.Duration) { s.clock.ms.Add(d.Milliseconds()) }

func (s *timed) do(op GroupOp) error { return s.groups.Do(deadline(s.t), "g", true, op) }

func (s *timed) nack(r GroupRecord) error {
	return s.do(func(now segment.Micros, g *queue.Group, _, tail storage.Offset) error {
		return g.Nack(now, queue.NackRequest{Offset: r.Offset, Attempts: r.Attempts, Tail: tail})
	})
}

// Claims of a consumer that is gone end by themselves, with nobody polling.
func TestClaimsOfAConsumerThatIsGoneEnd(t *testing.T) {
	s := openTimed(t, queue.Config{Visibility: 2 * time.Second})
	publish(t, s.p, numbered("", 5)...)
	require.Len(t, s.poll("g", 1, 0), 1)
	st := s.stats("g")
	require.Equal(t, []uint64{1, 4}, []uint64{st.Claimed, st.Ready})
	s.pass(5 * time.Second)
	st = s.stats("g")
	require.Equal(t, []uint64{0, 5}, []uint64{st.Claimed, st.Ready})
}

// Records that retention removes while they are claimed are counted as lost, once, and are
// neither delivered nor in the way.
func TestClaimedRecordsThatRetentionTakesAreLost(t *testing.T) {
	s := openTimed(t, queue.Config{Visibility: time.Second})
	publish(t, s.p, "a", "b")
	_, err := s.p.Log().Seal(deadline(t))
	require.NoError(t, err)
	publish(t, s.p, "c")
	require.Len(t, s.poll("g", 3, 0), 3)
	_, err = s.p.Log().TrimHead(deadline(t), 2)
	require.NoError(t, err)
	require.Equal(t, storage.Offset(2), s.p.Log().Head())
	_, groups := s.p.GroupStats(10)
	require.Equal(t, 1, groups)
	require.Equal(t, uint64(2), s.lost, "the operator is told, whoever notices first")
	s.pass(2 * time.Second)
	got := s.poll("g", 10, 0)
	require.Len(t, got, 1)
	require.Equal(t, "c", string(got[0].Payload))
	require.Equal(t, uint32(2), got[0].Attempts)
	st := s.stats("g")
	require.Equal(t, []uint64{1, 2, 0}, []uint64{st.Claimed, st.Lost, st.Dead})
	require.Equal(t, uint64(2), s.lost, "once")
	require.NoError(t, s.ack("g", 2))
	require.Equal(t, storage.Offset(3), s.stats("g").Position)
}

// Half of all acks come after their claim has lapsed, for a minute: what is in flight never
// exceeds its bound, nothing stalls, everything ends acked.
func TestLateAcksNeitherExceedTheBoundNorStall(t *testing.T) {
	const n, bound = 400, 10
	s := openTimed(t, queue.Config{Visibility: time.Second, MaxInFlight: bound, MaxAttempts: queue.MaxMaxAttempts})
	publish(t, s.p, numbered("", n)...)
	rnd := rand.New(rand.NewPCG(1, 41))
	type work struct {
		r    GroupRecord
		done int64
	}
	consumers := make([][]work, 3)
	idle := 0
	for tick := 0; s.stats("g").Acked < n; tick++ {
		require.Less(t, tick, 6000, "the group stalls: %+v", s.stats("g"))
		got := 0
		for i := range consumers {
			for _, r := range s.poll("g", 4, 0) {
				took := 100 + rnd.Int64N(700)
				if rnd.IntN(2) == 0 {
					took += 900 // past the claim
				}
				consumers[i] = append(consumers[i], work{r, s.clock.ms.Load() + took})
				got++
			}
			left := consumers[i][:0]
			for _, w := range consumers[i] {
				if w.done > s.clock.ms.Load() {
					left = append(left, w)
					continue
				}
				require.NoError(t, s.ack("g", w.r.Offset))
			}
			consumers[i] = left
		}
		st := s.stats("g")
		require.LessOrEqual(t, st.Claimed+st.Delayed, uint64(bound))
		if idle++; got > 0 {
			idle = 0
		}
		require.Less(t, idle, 30, "nothing was delivered for three seconds: %+v", st)
		s.pass(100 * time.Millisecond)
	}
	st := s.stats("g")
	require.Equal(t, storage.Offset(n), st.Position)
	require.Zero(t, st.Dead)
}

// Every tenth record is never acked, and somebody looks at the group all the time: just
// those are dead letters, and looking changes nothing.
func TestLookingAtAGroupChangesNothing(t *testing.T) {
	const n = 200
	s := openTimed(t, queue.Config{Visibility: time.Second, MaxAttempts: 2})
	publish(t, s.p, numbered("record ", n)...)
	look := func() {
		before := s.stats("g")
		_, _, err := s.groups.Letters(deadline(t), "g", 0, 1000)
		require.NoError(t, err)
		var page ReadPage
		require.NoError(t, s.p.Read(deadline(t), ReadRequest{From: 0}, &page))
		_, groups := s.p.GroupStats(10)
		require.Equal(t, 1, groups)
		require.Equal(t, before, s.stats("g"))
	}
	deliveries := map[storage.Offset]int{}
	for range 40 {
		for _, r := range s.poll("g", 30, 0) {
			deliveries[r.Offset]++
			look()
			if r.Offset%10 != 0 {
				require.NoError(t, s.ack("g", r.Offset))
			}
		}
		look()
		s.pass(400 * time.Millisecond)
	}
	st := s.stats("g")
	require.Equal(t, []uint64{n * 9 / 10, n / 10, 0, 0}, []uint64{st.Acked, st.Dead, st.Ready, st.Claimed})
	letters, more, err := s.groups.Letters(deadline(t), "g", 0, 1000)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, letters, n/10)
	for i, l := range letters {
		require.Equal(t, storage.Offset(10*i), l.Offset)
		require.Equal(t, uint32(2), l.Attempts)
		require.Equal(t, 2, deliveries[l.Offset])
	}
}

// Each record has the backoff of its own attempts; none waits behind another's.
func TestARecordDoesNotWaitForAnothersBackoff(t *testing.T) {
	s := openTimed(t, queue.Config{Backoff: time.Second, BackoffMax: 4 * time.Second, Factor: 4})
	publish(t, s.p, "a")
	one := func(offset storage.Offset, attempts uint32) GroupRecord {
		t.Helper()
		got := s.poll("g", 5, 0)
		require.Len(t, got, 1)
		require.Equal(t, offset, got[0].Offset)
		require.Equal(t, attempts, got[0].Attempts)
		return got[0]
	}
	require.NoError(t, s.nack(one(0, 1))) // back at 1 s, give or take a tenth
	s.pass(1100 * time.Millisecond)
	require.NoError(t, s.nack(one(0, 2))) // back at about 5.1 s
	s.pass(900 * time.Millisecond)
	publish(t, s.p, "c")
	require.NoError(t, s.nack(one(1, 1))) // back at about 3 s
	require.Empty(t, s.poll("g", 5, 0))
	s.pass(1100 * time.Millisecond)
	one(1, 2)
	s.pass(2400 * time.Millisecond)
	one(0, 3)
}

// Deliveries are counted 1, 2, 3, … whether they end by a late nack, which is refused, or
// by nothing at all.
func TestLateNacksDoNotDisturbTheCount(t *testing.T) {
	s := openTimed(t, queue.Config{Visibility: time.Second})
	publish(t, s.p, "a")
	for n := uint32(1); n <= queue.DefaultMaxAttempts; n++ {
		got := s.poll("g", 1, 0)
		require.Len(t, got, 1)
		require.Equal(t, n, got[0].Attempts)
		s.pass(1200 * time.Millisecond)
		require.ErrorIs(t, s.nack(got[0]), queue.ErrStale)
	}
	require.Empty(t, s.poll("g", 1, 0))
	require.Equal(t, uint64(1), s.stats("g").Dead)
}
