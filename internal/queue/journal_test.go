package queue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/felixlog/felix/internal/projection"
)

// look is all of a group that a consumer can tell, now and later.
type look struct {
	stats     Stats
	config    Config
	next      Offset
	holder    string
	heldUntil Micros
	items     map[Offset]itemLook
	dead      map[Offset]DeadLetter
}

type itemLook struct {
	state    state
	attempts uint16
	deadline Micros
	owner    owner
}

func lookAt(s *Shard, now Micros, head, tail Offset) map[string]look {
	looks := map[string]look{}
	s.Each(func(g *Group) {
		if !g.Exists() {
			return
		}
		l := look{stats: g.Stats(now, head, tail), config: g.cfg, next: g.next, holder: g.holder, heldUntil: g.heldUntil,
			items: map[Offset]itemLook{}, dead: map[Offset]DeadLetter{}}
		g.each(func(o Offset, it *item) {
			l.items[o] = itemLook{it.state, it.attempts, it.deadline, g.owners.get(it.owner)}
		})
		for o, d := range g.dead {
			l.dead[o] = d
		}
		looks[g.name] = l
	})
	return looks
}

// TestRefusedCallsLeaveNothing drives a shard and its twin with the same calls. Some the
// log refuses, and those the twin does not get: after the shard was read again and took
// what the log does not keep from the state before, the two look alike.
func TestRefusedCallsLeaveNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shard, twin, log := NewShard(), NewShard(), map[string]projection.Entry{}
		var now Micros
		var head, tail Offset
		call := func() func(*Shard) []projection.Entry {
			op := drawCall(t, head, tail)
			at := now
			end := tail
			begin := head
			return func(s *Shard) []projection.Entry { return op(s, at, begin, end) }
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now += ms(rapid.Int64Range(0, 4000).Draw(t, "pause"))
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0, 1:
				tail += Offset(rapid.IntRange(1, 300).Draw(t, "published"))
			case 2:
				head += Offset(rapid.Uint64Range(0, uint64(tail-head)/8).Draw(t, "trimmed"))
			case 3, 4: // refused
				for range rapid.IntRange(1, 4).Draw(t, "refused") {
					call()(shard)
					now += ms(rapid.Int64Range(0, 1500).Draw(t, "pause"))
				}
				l := NewLoader()
				for _, e := range log {
					require.NoError(t, l.Add(e))
				}
				again, _, err := l.Build(tail)
				require.NoError(t, err)
				again.Resume(shard)
				shard = again
				require.Equal(t, lookAt(twin, now, head, tail), lookAt(shard, now, head, tail))
				shard.Each(func(g *Group) { save(log, g.Encode(nil)) }) // what lapsed until the look
				shard.Confirm(shard.Mark())
			default:
				op := call()
				save(log, op(shard))
				shard.Confirm(shard.Mark())
				op(twin)
				require.Empty(t, shard.journal.items)
				require.Empty(t, shard.journal.groups)
			}
		}
	})
}

// drawCall draws one call on a group of a shard; it gives what the call has the log keep.
func drawCall(t *rapid.T, head, tail Offset) func(s *Shard, now Micros, head, tail Offset) []projection.Entry {
	name := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "group")
	o := Offset(rapid.Uint64Range(uint64(head), uint64(tail)+1).Draw(t, "offset"))
	kind := rapid.IntRange(0, 12).Draw(t, "call")
	n := rapid.IntRange(1, 200).Draw(t, "n")
	member := rapid.SampledFrom([]string{"", "one", "two"}).Draw(t, "member")
	yes := rapid.Bool().Draw(t, "yes")
	return func(s *Shard, now Micros, head, tail Offset) []projection.Entry {
		g, err := s.Group(name, head)
		require.NoError(t, err)
		g.Trim(head)
		// What does not hold changes nothing: the books are looked at behind it all.
		switch kind {
		case 0, 1, 2, 3:
			_, _ = g.Poll(now, PollRequest{Max: n, Member: member, Conn: uint64(n % 3), Reclaim: yes, Head: head, Tail: tail}, nil)
		case 4, 5:
			for at := o; at < o+Offset(n%20); at++ {
				_ = g.Ack(now, at, tail)
			}
		case 6:
			_ = g.Nack(now, NackRequest{Offset: o, Tail: tail, HasDelay: yes, Delay: 3 * time.Second})
		case 7:
			_, _ = g.Extend(now, o, 0, 20*time.Second, tail)
		case 8:
			_ = g.GiveUp(now, o, tail)
		case 9:
			for at := range g.dead {
				if uint64(at)%2 == 0 {
					g.Discard(at)
				} else {
					_ = g.Redrive(at)
				}
			}
		case 10:
			_ = g.Configure(Config{Visibility: 5 * time.Second, MaxAttempts: 1 + n%3, MaxInFlight: 300, Exclusive: yes})
		case 11:
			if n%4 == 0 {
				entries, _ := s.Delete(name, g.Encode(nil))
				return entries
			}
			_, _ = g.Seek(min(max(o, head), tail), head, tail, !yes)
		case 12:
			for at := o; at < o+Offset(n%20); at++ {
				g.Return(at, uint32(1+n%2))
			}
		}
		if !g.Exists() && !g.Dirty() {
			s.Forget(name) // only named, as its owner does
		}
		return g.Encode(nil)
	}
}

// TestTheJournalKeepsNoRoomThatIsNotNeeded: what a burst took is given back.
func TestTheJournalKeepsNoRoomThatIsNotNeeded(t *testing.T) {
	s := NewShard()
	g, err := s.Group("g", 0)
	require.NoError(t, err)
	for range 8 {
		poll(t, g, 0, MaxPollRecords, 1<<20)
	}
	half := s.Mark()
	require.NoError(t, g.Ack(0, 0, 1<<20))
	s.Confirm(half)
	require.Len(t, s.journal.items, 1)
	s.Confirm(s.Mark())
	require.Zero(t, cap(s.journal.items))
	poll(t, g, 0, 1, 1<<20)
	s.Confirm(s.Mark())
	require.Positive(t, cap(s.journal.items), "what is needed again and again is kept")
}

// A record whose last delivery did not leave after all has it yet to come, whatever the log is
// read again for: were the delivery counted, the record would be a dead letter.
func TestADeliveryThatIsGivenBackIsStillToCome(t *testing.T) {
	for deliveries := 1; deliveries <= 3; deliveries++ {
		s, log := NewShard(), map[string]projection.Entry{}
		g, err := s.Group("g", 0)
		require.NoError(t, err)
		require.NoError(t, g.Configure(Config{MaxAttempts: deliveries}))
		for n := range deliveries {
			handed := poll(t, g, 0, 1, 2)
			require.Equal(t, []Offset{0}, offsets(handed))
			save(log, g.Encode(nil))
			if n+1 < deliveries {
				require.NoError(t, g.Nack(0, NackRequest{Offset: 0, Tail: 2, HasDelay: true}))
			}
		}
		g.Return(0, uint32(deliveries))
		save(log, g.Encode(nil))
		s.Confirm(s.Mark())

		require.NoError(t, g.Ack(0, 0, 2)) // which the log refuses
		l := NewLoader()
		for _, e := range log {
			require.NoError(t, l.Add(e))
		}
		again, _, err := l.Build(2)
		require.NoError(t, err)
		again.Resume(s)
		g, _ = again.Lookup("g")
		handed := poll(t, g, 0, 1, 2)
		require.Equal(t, []Handout{{Offset: 0, Attempts: uint32(deliveries)}}, handed)
	}
}
