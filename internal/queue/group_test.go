package queue

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/felixlog/felix/internal/projection"
)

// ms is a time in milliseconds as the log's clock has it.
func ms(n int64) Micros { return Micros(n * 1000) }

func poll(t *testing.T, g *Group, now Micros, n int, tail Offset) []Handout {
	t.Helper()
	out, err := g.Poll(now, PollRequest{Max: n, Tail: tail}, nil)
	require.NoError(t, err)
	require.NoError(t, g.Stats(now, 0, tail).Check())
	return out
}

func offsets(hs []Handout) []Offset {
	out := []Offset{}
	for _, h := range hs {
		out = append(out, h.Offset)
	}
	return out
}

// reload is the group as a restart finds it.
func reload(t require.TestingT, log map[string]projection.Entry, name string, tail Offset) *Group {
	l := NewLoader()
	for _, e := range log {
		require.NoError(t, l.Add(e))
	}
	s, _, err := l.Build(tail)
	require.NoError(t, err)
	g, ok := s.Lookup(name)
	if !ok {
		g, err = s.Group(name, 0)
		require.NoError(t, err)
	}
	return g
}

func save(log map[string]projection.Entry, entries []projection.Entry) {
	for _, e := range entries {
		if e.Delete {
			delete(log, string(e.Key))
		} else {
			log[string(e.Key)] = e
		}
	}
}

func TestAnOffsetInFlightIsHandedToOneConsumer(t *testing.T) {
	g := newGroup("g", 0)
	require.Equal(t, []Offset{0, 1}, offsets(poll(t, g, 0, 2, 5)))
	require.Equal(t, []Offset{2, 3, 4}, offsets(poll(t, g, 0, 10, 5)))
	require.Empty(t, poll(t, g, 0, 10, 5))
}

func TestALapsedClaimIsOwedBeforeNewRecords(t *testing.T) {
	g := newGroup("g", 0)
	require.NoError(t, g.Configure(Config{Visibility: time.Second}))
	poll(t, g, 0, 2, 5)
	require.Equal(t, []Handout{{Offset: 0, Attempts: 2}, {Offset: 1, Attempts: 2}, {Offset: 2, Attempts: 1}},
		poll(t, g, ms(1000), 3, 5))
}

func TestThePositionDoesNotAdvanceOverAGapInAcks(t *testing.T) {
	g := newGroup("g", 0)
	poll(t, g, 0, 3, 3)
	require.NoError(t, g.Ack(0, 1, 3))
	require.NoError(t, g.Ack(0, 2, 3))
	require.Equal(t, Offset(0), g.Position())
	require.NoError(t, g.Ack(0, 0, 3))
	require.Equal(t, Offset(3), g.Position())
	require.NoError(t, g.Ack(0, 1, 3), "an ack below the position is a success")
}

func TestAttemptsEndInADeadLetter(t *testing.T) {
	for _, max := range []int{1, 2, 5} {
		t.Run(fmt.Sprint(max), func(t *testing.T) {
			g := newGroup("g", 0)
			require.NoError(t, g.Configure(Config{MaxAttempts: max}))
			for i := range max {
				require.Equal(t, []Handout{{Offset: 0, Attempts: uint32(i + 1)}}, poll(t, g, 0, 1, 1))
				require.NoError(t, g.Nack(0, NackRequest{Offset: 0, HasDelay: true, Tail: 1}))
			}
			require.Empty(t, poll(t, g, 0, 1, 1))
			require.Equal(t, []Offset{0}, letters(g))
			d, _ := g.DeadLetter(0)
			require.Equal(t, uint32(max), d.Attempts)
			require.Equal(t, ReasonAttempts, d.Reason)
			require.Equal(t, Offset(1), g.Position(), "one poison record does not stop the group")
		})
	}
}

// TestACrashOnTheFirstDeliveryCounts crashes in each delivery of one record: it is given
// up on, not delivered for ever.
func TestACrashOnTheFirstDeliveryCounts(t *testing.T) {
	log := map[string]projection.Entry{}
	deliveries := 0
	for range 20 {
		g := reload(t, log, "g", 1)
		hs := poll(t, g, 0, 1, 1)
		save(log, g.Encode(nil))
		deliveries += len(hs)
	}
	require.Equal(t, DefaultMaxAttempts, deliveries)
	g := reload(t, log, "g", 1)
	poll(t, g, 0, 1, 1)
	require.Equal(t, []Offset{0}, letters(g))
}

func TestACrashedLastDeliveryIsGivenUpOnWithoutAPollInBetween(t *testing.T) {
	log := map[string]projection.Entry{}
	for range DefaultMaxAttempts {
		g := reload(t, log, "g", 1)
		require.Len(t, poll(t, g, 0, 1, 1), 1)
		save(log, g.Encode(nil))
	}
	g := reload(t, log, "g", 1)
	require.Empty(t, poll(t, g, 0, 1, 1))
	require.Equal(t, uint64(1), g.Stats(0, 0, 1).Dead)
}

func TestOnlyUnackedRecordsComeBackAfterACrash(t *testing.T) {
	log := map[string]projection.Entry{}
	g := newGroup("g", 0)
	poll(t, g, 0, 100, 100)
	save(log, g.Encode(nil))
	for o := Offset(1); o < 100; o += 2 {
		require.NoError(t, g.Ack(0, o, 100))
		save(log, g.Encode(nil))
	}
	g = reload(t, log, "g", 100)
	var want []Offset
	for o := Offset(0); o < 100; o += 2 {
		want = append(want, o)
	}
	require.Equal(t, want, offsets(poll(t, g, 0, 1000, 100)))
}

func TestNackBackoffIsEachRecordsOwn(t *testing.T) {
	g := newGroup("g", 0)
	require.NoError(t, g.Configure(Config{Backoff: time.Second, BackoffMax: 4 * time.Second, Factor: 4}))
	poll(t, g, 0, 1, 2)
	require.NoError(t, g.Nack(0, NackRequest{Offset: 0, Tail: 2}))
	require.Equal(t, []Handout{{Offset: 0, Attempts: 2}}, poll(t, g, ms(1200), 1, 2))
	require.NoError(t, g.Nack(ms(1200), NackRequest{Offset: 0, Tail: 2})) // back at about 5.2 s
	require.Equal(t, []Handout{{Offset: 1, Attempts: 1}}, poll(t, g, ms(2000), 1, 2))
	require.NoError(t, g.Nack(ms(2000), NackRequest{Offset: 1, Tail: 2})) // back at about 3 s
	require.Equal(t, []Handout{{Offset: 1, Attempts: 2}}, poll(t, g, ms(3200), 2, 2))
	require.Equal(t, []Handout{{Offset: 0, Attempts: 3}}, poll(t, g, ms(5700), 2, 2))
}

func TestALateNackIsStale(t *testing.T) {
	g := newGroup("g", 0)
	require.NoError(t, g.Configure(Config{Visibility: time.Second}))
	for n := uint32(1); n <= DefaultMaxAttempts; n++ {
		now := ms(int64(n) * 2000)
		require.Equal(t, []Handout{{Offset: 0, Attempts: n}}, poll(t, g, now, 1, 1))
		require.ErrorIs(t, g.Nack(now+ms(1200), NackRequest{Offset: 0, Attempts: n, Tail: 1}), ErrStale)
	}
	poll(t, g, ms(100_000), 1, 1)
	require.Equal(t, []Offset{0}, letters(g))
}

func TestANackOfAnotherDeliveryIsStale(t *testing.T) {
	g := newGroup("g", 0)
	require.NoError(t, g.Configure(Config{Visibility: time.Second}))
	poll(t, g, 0, 1, 1)
	poll(t, g, ms(1500), 1, 1)
	require.ErrorIs(t, g.Nack(ms(1600), NackRequest{Offset: 0, Attempts: 1, Tail: 1}), ErrStale)
	require.NoError(t, g.Nack(ms(1600), NackRequest{Offset: 0, Attempts: 2, Tail: 1}))
}

func TestDelayKeepsItsSlotInFlight(t *testing.T) {
	g := newGroup("g", 0)
	require.NoError(t, g.Configure(Config{MaxInFlight: 2}))
	poll(t, g, 0, 2, 5)
	require.NoError(t, g.Nack(0, NackRequest{Offset: 0, Delay: time.Minute, HasDelay: true, Tail: 5}))
	require.Empty(t, poll(t, g, 0, 5, 5))
	require.NoError(t, g.Ack(0, 1, 5))
	require.Equal(t, []Offset{2}, offsets(poll(t, g, 0, 5, 5)))
	require.Equal(t, 2, g.InFlight())
}

func TestExtend(t *testing.T) {
	g := newGroup("g", 0)
	poll(t, g, 0, 1, 1)
	d, err := g.Extend(ms(29_000), 0, 1, time.Minute, 1)
	require.NoError(t, err)
	require.Equal(t, time.Minute, d)
	require.Empty(t, poll(t, g, ms(80_000), 1, 1))
	_, err = g.Extend(ms(80_000), 0, 2, time.Minute, 1)
	require.ErrorIs(t, err, ErrStale)
	_, err = g.Extend(ms(80_000), 0, 1, 0, 1)
	require.ErrorIs(t, err, ErrInvalid)
	d, err = g.Extend(ms(80_000), 0, 1, 100*time.Hour, 1)
	require.NoError(t, err)
	require.Equal(t, MaxVisibility, d)
	_, err = g.Extend(ms(80_000)+Micros(MaxVisibility/time.Microsecond), 0, 1, time.Minute, 1)
	require.ErrorIs(t, err, ErrStale)
}

func TestManyExtensionsOfOneClaimKeepTheTimersBounded(t *testing.T) {
	g := newGroup("g", 0)
	poll(t, g, 0, 1, 1)
	for i := range int64(100_000) {
		_, err := g.Extend(ms(i), 0, 1, time.Minute, 1)
		require.NoError(t, err)
	}
	require.LessOrEqual(t, len(g.timers), 2048)
	require.Empty(t, poll(t, g, ms(100_000), 1, 1))
	require.Len(t, poll(t, g, ms(100_000+60_000), 1, 1), 1)
}

func TestRetentionOutranksAGroupAndIsCounted(t *testing.T) {
	g := newGroup("g", 0)
	require.NoError(t, g.Configure(Config{Visibility: time.Second}))
	poll(t, g, 0, 3, 3)
	out, err := g.Poll(ms(5000), PollRequest{Max: 10, Head: 2, Tail: 3}, nil)
	require.NoError(t, err)
	require.Equal(t, []Offset{2}, offsets(out))
	s := g.Stats(ms(5000), 2, 3)
	require.NoError(t, s.Check())
	require.Equal(t, uint64(2), s.Lost)
	require.Equal(t, uint64(1), s.Claimed)
	out, err = g.Poll(ms(5000), PollRequest{Max: 10, Head: 5000, Tail: 5001}, nil)
	require.NoError(t, err)
	require.Equal(t, []Offset{5000}, offsets(out))
	require.NoError(t, g.Stats(ms(5000), 5000, 5001).Check())
}

func TestRedriveAndDiscard(t *testing.T) {
	log := map[string]projection.Entry{}
	g := newGroup("g", 0)
	poll(t, g, 0, 3, 3)
	for o := range Offset(3) {
		require.NoError(t, g.GiveUp(ms(7), o, 3))
	}
	save(log, g.Encode(nil))
	g = reload(t, log, "g", 3)
	require.Equal(t, []Offset{0, 1, 2}, letters(g))
	d, _ := g.DeadLetter(2)
	require.Equal(t, DeadLetter{Attempts: 1, Reason: ReasonGivenUp, At: ms(7)}, d)
	require.NoError(t, g.Redrive(1))
	require.NoError(t, g.Redrive(1), "a retry")
	g.Discard(0)
	g.Discard(0)
	require.ErrorIs(t, g.Redrive(0), ErrNotDead)
	require.NoError(t, g.Stats(0, 0, 3).Check())
	save(log, g.Encode(nil))

	g = reload(t, log, "g", 3)
	require.Equal(t, []Offset{2}, letters(g))
	require.Equal(t, []Handout{{Offset: 1, Attempts: 1}}, poll(t, g, 0, 5, 3))
	require.Equal(t, Offset(3), g.Position(), "redriving does not move the position")
	require.NoError(t, g.Ack(0, 1, 3))
	save(log, g.Encode(nil))
	g = reload(t, log, "g", 3)
	require.Empty(t, poll(t, g, 0, 5, 3))
	require.NoError(t, g.Stats(0, 0, 3).Check())
}

func TestSeekVoidsClaims(t *testing.T) {
	log := map[string]projection.Entry{}
	g := newGroup("g", 0)
	poll(t, g, 0, 600, 1000)
	for o := Offset(100); o < 500; o++ {
		require.NoError(t, g.Ack(0, o, 1000))
	}
	save(log, g.Encode(nil))
	moved, err := g.Seek(50, 0, 1000, true)
	require.NoError(t, err)
	require.False(t, moved, "if_new leaves a used group alone")
	_, err = g.Seek(1001, 0, 1000, false)
	require.ErrorIs(t, err, ErrInvalid)
	moved, err = g.Seek(50, 0, 1000, false)
	require.NoError(t, err)
	require.True(t, moved)
	save(log, g.Encode(nil))
	g = reload(t, log, "g", 1000)
	hs := poll(t, g, 0, 1000, 1000)
	require.Len(t, hs, 950)
	require.Equal(t, Handout{Offset: 50, Attempts: 1}, hs[0])
}

// TestSeekForgetsWhatARestartReadIn seeks back over a block whose entry was read by a
// restart that had nothing to hand out in it.
func TestSeekForgetsWhatARestartReadIn(t *testing.T) {
	log := map[string]projection.Entry{}
	g := newGroup("g", 0)
	poll(t, g, 0, 2, 2)
	require.NoError(t, g.Ack(0, 1, 2))
	save(log, g.Encode(nil))
	require.NoError(t, g.Ack(0, 0, 2))
	save(log, g.Encode(nil))
	g = reload(t, log, "g", 2)
	_, err := g.Seek(0, 0, 2, false)
	require.NoError(t, err)
	save(log, g.Encode(nil))
	require.Equal(t, []Offset{0, 1}, offsets(poll(t, reload(t, log, "g", 2), 0, 5, 2)))
}

func TestDeletedGroupBeginsAnew(t *testing.T) {
	log := map[string]projection.Entry{}
	s := NewShard()
	g, err := s.Group("g", 0)
	require.NoError(t, err)
	poll(t, g, 0, 50, 100)
	for o := range Offset(50) {
		require.NoError(t, g.Ack(0, o, 100))
	}
	save(log, g.Encode(nil))
	entries, existed := s.Delete("g", nil)
	require.True(t, existed)
	save(log, entries)
	require.Empty(t, log)
	_, existed = s.Delete("g", nil)
	require.False(t, existed)
	require.Equal(t, []Offset{0}, offsets(poll(t, reload(t, log, "g", 100), 0, 1, 100)))
}

func TestReclaimHandsAMembersOldClaimsToItsNewConnection(t *testing.T) {
	g := newGroup("g", 0)
	get := func(member string, conn uint64, reclaim bool) []Handout {
		out, err := g.Poll(0, PollRequest{Max: 2, Member: member, Conn: conn, Reclaim: reclaim, Tail: 10}, nil)
		require.NoError(t, err)
		return out
	}
	require.Equal(t, []Offset{0, 1}, offsets(get("a", 1, false)))
	require.Equal(t, []Offset{2, 3}, offsets(get("b", 2, false)))
	require.Equal(t, []Handout{{Offset: 0, Attempts: 2}, {Offset: 1, Attempts: 2}}, get("a", 3, true))
	require.Equal(t, []Offset{4, 5}, offsets(get("a", 3, true)), "what this connection holds stays")
}

func TestAnExclusiveGroupHasOneConsumer(t *testing.T) {
	g := newGroup("g", 0)
	require.NoError(t, g.Configure(Config{Exclusive: true, Visibility: time.Second}))
	_, err := g.Poll(0, PollRequest{Max: 1, Member: "a", Tail: 5}, nil)
	require.NoError(t, err)
	_, err = g.Poll(ms(500), PollRequest{Max: 1, Member: "b", Tail: 5}, nil)
	require.ErrorIs(t, err, ErrHeld)
	_, err = g.Poll(ms(500), PollRequest{Max: 1, Tail: 5}, nil)
	require.ErrorIs(t, err, ErrInvalid)
	out, err := g.Poll(ms(1500), PollRequest{Max: 1, Member: "b", Tail: 5}, nil)
	require.NoError(t, err)
	require.Len(t, out, 1)
}

func TestAcksOfWhatWasNeverHandedOut(t *testing.T) {
	g := newGroup("g", 0)
	poll(t, g, 0, 1, 10)
	require.ErrorIs(t, g.Ack(0, 10, 10), ErrInvalid, "beyond the tail")
	require.ErrorIs(t, g.Ack(0, math.MaxUint64, 10), ErrInvalid)
	require.ErrorIs(t, g.Ack(0, 5, 10), ErrStale, "not handed out")
	require.ErrorIs(t, g.Nack(0, NackRequest{Offset: 5, Tail: 10}), ErrStale)
	require.NoError(t, g.Stats(0, 0, 10).Check())
	require.Equal(t, uint64(1), g.Stats(0, 0, 10).Claimed)
}

func TestConfigIsRefusedByName(t *testing.T) {
	for _, c := range []Config{
		{Visibility: -1}, {Visibility: 13 * time.Hour}, {MaxAttempts: -1}, {MaxAttempts: 1001}, {Backoff: -1},
		{Backoff: 2, BackoffMax: 1}, {Factor: 0.5}, {Factor: math.NaN()}, {MaxInFlight: -1},
	} {
		require.ErrorIs(t, newGroup("g", 0).Configure(c), ErrInvalid, "%+v", c)
	}
}

func TestAStreamThatLostItsTailClampsItsGroups(t *testing.T) {
	log := map[string]projection.Entry{}
	g := newGroup("g", 0)
	poll(t, g, 0, 100, 100)
	for o := range Offset(90) {
		require.NoError(t, g.Ack(0, o, 100))
	}
	require.NoError(t, g.GiveUp(0, 95, 100))
	save(log, g.Encode(nil))
	l := NewLoader()
	for _, e := range log {
		require.NoError(t, l.Add(e))
	}
	s, clamped, err := l.Build(50)
	require.NoError(t, err)
	require.Equal(t, 1, clamped)
	g, _ = s.Lookup("g")
	require.Equal(t, Offset(50), g.Position())
	require.Empty(t, letters(g))
	require.NoError(t, g.Stats(0, 0, 50).Check())
	require.Equal(t, []Offset{50, 51}, offsets(poll(t, g, 0, 10, 52)))
}

// TestAClampedGroupForgetsWhatItKnewOfLostRecords has a stream lose records that a group
// had acked out of order: the records that get their offsets are delivered, also by the
// restart after that.
func TestAClampedGroupForgetsWhatItKnewOfLostRecords(t *testing.T) {
	log := map[string]projection.Entry{}
	g := newGroup("g", 0)
	poll(t, g, 0, 100, 100)
	for o := Offset(0); o < 100; o++ {
		if o < 50 || o >= 60 {
			require.NoError(t, g.Ack(0, o, 100))
		}
	}
	save(log, g.Encode(nil))
	g = reload(t, log, "g", 50)
	save(log, g.Encode(nil))
	require.Len(t, poll(t, g, 0, 200, 100), 50)
	save(log, g.Encode(nil))
	g = reload(t, log, "g", 100)
	require.Len(t, poll(t, g, 0, 200, 100), 50)
}

// TestSettledRecordsBehindAStuckOneCostLittle holds the memory of a group one record of
// which is not acked while very many after it are.
func TestSettledRecordsBehindAStuckOneCostLittle(t *testing.T) {
	const n = 200_000
	g := newGroup("g", 0)
	require.NoError(t, g.Configure(Config{Visibility: time.Hour}))
	for tail := Offset(1000); tail <= n; tail += 1000 {
		for _, h := range poll(t, g, 0, 1000, tail) {
			if h.Offset != 0 {
				require.NoError(t, g.Ack(0, h.Offset, tail))
			}
		}
		g.Encode(nil)
	}
	live := 0
	for _, b := range g.win.blocks {
		if b != nil {
			live++
		}
	}
	require.LessOrEqual(t, live, 2)
	require.LessOrEqual(t, len(g.timers), 4096)
}

func letters(g *Group) []Offset {
	all, _ := g.DeadLetters(0, 1<<20)
	return all
}

// TestDeadLettersArePaged: pages of any size put together are the whole list, in order, and
// hold no more than they were asked for.
func TestDeadLettersArePaged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dead := rapid.SliceOfDistinct(rapid.Uint64Range(0, 1000), func(o uint64) uint64 { return o }).Draw(t, "dead")
		limit := rapid.IntRange(1, 20).Draw(t, "limit")
		g := &Group{dead: map[Offset]DeadLetter{}}
		want := []Offset{}
		for _, o := range dead {
			g.dead[Offset(o)] = DeadLetter{}
			want = append(want, Offset(o))
		}
		slices.Sort(want)
		got := []Offset{}
		from := Offset(0)
		for more := true; more; {
			var page []Offset
			page, more = g.DeadLetters(from, limit)
			if len(page) > limit || cap(page) > 2*limit || more && len(page) < limit {
				t.Fatalf("a page of %d (room for %d) with more %v, limit %d", len(page), cap(page), more, limit)
			}
			got = append(got, page...)
			if len(page) > 0 {
				from = page[len(page)-1] + 1
			}
		}
		if !slices.Equal(want, got) {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}
