package queue

import (
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/felixlog/felix/internal/projection"
)

// truth is what a consumer may rely on, kept beside a group.
type truth struct {
	acked    map[Offset]bool   // an ack was answered
	attempts map[Offset]uint32 // the highest delivery seen since the last seek or redrive
	claims   map[Offset]Micros // until when the newest delivery is exclusive
	position Offset
}

func newTruth() *truth {
	return &truth{acked: map[Offset]bool{}, attempts: map[Offset]uint32{}, claims: map[Offset]Micros{}}
}

// forget is for records that are gone: their offsets will be other records'.
func (s *truth) forget(tail Offset) {
	maps.DeleteFunc(s.acked, func(o Offset, _ bool) bool { return o >= tail })
	maps.DeleteFunc(s.attempts, func(o Offset, _ uint32) bool { return o >= tail })
	s.position = min(s.position, tail)
}

// TestGroupProperties drives a group with everything that can happen to one, crashes
// included, and holds the invariants after every step.
func TestGroupProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g, log, seen := newGroup("g", 0), map[string]projection.Entry{}, newTruth()
		require.NoError(t, g.Configure(Config{
			Visibility: 10 * time.Second, MaxAttempts: rapid.IntRange(1, 4).Draw(t, "max"),
			Backoff: time.Duration(rapid.IntRange(0, 2).Draw(t, "backoff")) * time.Second, MaxInFlight: 300,
		}))
		save(log, g.Encode(nil))
		var now Micros
		var head, tail Offset
		some := func() Offset {
			return Offset(rapid.Uint64Range(uint64(head), uint64(tail)+1).Draw(t, "offset"))
		}
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			now += ms(rapid.Int64Range(0, 6000).Draw(t, "pause"))
			switch op := rapid.IntRange(0, 11).Draw(t, "op"); op {
			case 0, 1:
				tail += Offset(rapid.IntRange(1, 400).Draw(t, "published"))
			case 2, 3, 4:
				out, err := g.Poll(now, PollRequest{Max: rapid.IntRange(1, 300).Draw(t, "n"), Head: head, Tail: tail}, nil)
				require.NoError(t, err)
				save(log, g.Encode(nil))
				for _, h := range out {
					require.GreaterOrEqual(t, h.Offset, head)
					require.Less(t, h.Offset, tail)
					require.False(t, seen.acked[h.Offset], "record %d was acked", h.Offset)
					require.GreaterOrEqual(t, now, seen.claims[h.Offset], "record %d is claimed", h.Offset)
					require.Greater(t, h.Attempts, seen.attempts[h.Offset], "attempts of record %d", h.Offset)
					require.LessOrEqual(t, h.Attempts, g.cfg.maxAttempts())
					seen.attempts[h.Offset] = h.Attempts
					seen.claims[h.Offset] = after(now, 10*time.Second)
				}
				require.LessOrEqual(t, g.InFlight(), 300)
			case 5, 6:
				o := some()
				if g.Ack(now, o, tail) == nil {
					save(log, g.Encode(nil))
					seen.acked[o] = true
				}
			case 7:
				o := some()
				r := NackRequest{Offset: o, Tail: tail, HasDelay: rapid.Bool().Draw(t, "named"), Delay: time.Second}
				if g.Nack(now, r) == nil {
					save(log, g.Encode(nil))
					delete(seen.claims, o)
				}
			case 8:
				o := some()
				if g.GiveUp(now, o, tail) == nil {
					save(log, g.Encode(nil))
					require.Contains(t, letters(g), o)
				}
			case 9:
				for _, o := range letters(g) {
					if rapid.Bool().Draw(t, "redrive") {
						require.NoError(t, g.Redrive(o))
						delete(seen.attempts, o)
						delete(seen.claims, o)
					} else {
						g.Discard(o)
						seen.acked[o] = true // never again
					}
				}
				save(log, g.Encode(nil))
			case 10: // crash; a power cut may take the end of the stream as well
				if rapid.IntRange(0, 2).Draw(t, "loss") == 0 {
					tail -= Offset(rapid.Uint64Range(0, uint64(tail-head)).Draw(t, "lost"))
					seen.forget(tail)
				}
				g = reload(t, log, "g", tail)
				save(log, g.Encode(nil))
				seen.claims = map[Offset]Micros{}
			case 11:
				if rapid.IntRange(0, 3).Draw(t, "rare") == 0 {
					to := Offset(rapid.Uint64Range(uint64(head), uint64(tail)).Draw(t, "to"))
					moved, err := g.Seek(to, head, tail, false)
					require.NoError(t, err)
					require.True(t, moved)
					save(log, g.Encode(nil))
					seen, seen.position = newTruth(), to
					for _, o := range letters(g) {
						require.Less(t, o, to)
					}
					// Records below the seek's target may come by redrive; their history is kept.
				} else if tail > head {
					head += Offset(rapid.Uint64Range(0, uint64(tail-head)/4).Draw(t, "trimmed"))
				}
			}
			s := g.Stats(now, head, tail)
			require.NoError(t, s.Check())
			save(log, g.Encode(nil))
			require.GreaterOrEqual(t, s.Position, seen.position, "the position goes back only by a seek")
			seen.position = s.Position
			after := reload(t, log, "g", tail)
			require.NoError(t, after.Stats(now, head, tail).Check(), "after a restart")
		}
	})
}

func FuzzLoader(f *testing.F) {
	g := newGroup("g", 0)
	if _, err := g.Poll(0, PollRequest{Max: 10, Tail: 20}, nil); err != nil {
		f.Fatal(err)
	}
	for _, o := range []Offset{1, 3} {
		if err := g.Ack(0, o, 20); err != nil {
			f.Fatal(err)
		}
	}
	if err := g.GiveUp(0, 5, 20); err != nil {
		f.Fatal(err)
	}
	f.Add(projection.AppendEntrySet(nil, 0, g.Encode(nil)), uint64(20))
	f.Fuzz(func(t *testing.T, b []byte, tail uint64) {
		if tail > 1<<20 {
			return // the window is built: a test of arithmetic, not of memory
		}
		l := NewLoader()
		if _, err := projection.ReadEntrySet(b, l.Add); err != nil {
			return
		}
		s, _, err := l.Build(Offset(tail))
		if err != nil {
			return
		}
		s.Each(func(g *Group) {
			if _, err := g.Poll(1, PollRequest{Max: 10, Tail: Offset(tail)}, nil); err != nil {
				t.Fatalf("poll of a loaded group: %v", err)
			}
			g.Encode(nil)
		})
	})
}
