package queue

import (
	"fmt"
	"slices"
)

// Stats is a group as an operator sees it. All are records.
type Stats struct {
	Start, Position  Offset
	Ready            uint64 // owed, and not yet handed out
	Owed             uint64 // of Ready, those that were handed out before
	Delayed, Claimed uint64
	Acked            uint64
	Dead             uint64 // all that are listed
	DeadSinceStart   uint64
	Discarded, Lost  uint64
	BeforeStart      uint64 // of Ready, Delayed and Claimed: redriven from before the start
	Skipped          uint64 // offsets that hold no record for consumers
	Lag              uint64 // tail - position
	Tail             Offset
	Exists           bool
}

// Stats describes the group when its stream ends at tail.
func (g *Group) Stats(now Micros, head, tail Offset) Stats {
	g.Trim(head) // first: a record that is gone is lost, not a dead letter without payload
	g.Tick(now)
	return g.stats(tail)
}

func (g *Group) stats(tail Offset) Stats {
	s := Stats{
		Start: g.start, Position: g.position, Tail: tail, Exists: g.existed,
		Owed: uint64(g.ready), Delayed: uint64(g.delayed), Claimed: uint64(g.claimed),
		Acked: g.acked, Dead: uint64(len(g.dead)), Discarded: g.discarded, Lost: g.lost, Skipped: g.skipped,
	}
	s.Ready = s.Owed
	if tail > g.next {
		s.Ready += uint64(tail - g.next)
	}
	if tail > g.position {
		s.Lag = uint64(tail - g.position)
	}
	for o := range g.dead {
		if o >= g.start {
			s.DeadSinceStart++
		}
	}
	for o := range g.again {
		if o < g.start {
			s.BeforeStart++
		}
	}
	return s
}

// StatsOfNone describes a group that is not there: it would begin at head, and has all that
// the stream holds before it.
func StatsOfNone(head, tail Offset) Stats {
	s := Stats{Start: head, Position: head, Tail: tail}
	if tail > head {
		s.Ready = uint64(tail - head)
		s.Lag = s.Ready
	}
	return s
}

// Check says what is wrong if the books do not balance: every record at or above the
// start is in exactly one state.
func (s Stats) Check() error {
	sum := s.Ready + s.Delayed + s.Claimed + s.Acked + s.DeadSinceStart + s.Discarded + s.Lost + s.Skipped - s.BeforeStart
	if s.Tail >= s.Start && sum != uint64(s.Tail-s.Start) {
		return fmt.Errorf("queue: %d records in all states, %d published since %d: %+v", sum, s.Tail-s.Start, s.Start, s)
	}
	return nil
}

// DeadLetters lists the dead letters' offsets from one on, ascending, the first limit of
// them; more says that there are others. What it holds is bounded by limit.
func (g *Group) DeadLetters(from Offset, limit int) (first []Offset, more bool) {
	limit = max(limit, 1)
	first = make([]Offset, 0, min(len(g.dead), 2*limit))
	for o := range g.dead {
		if o < from {
			continue
		}
		if len(first) == 2*limit {
			slices.Sort(first)
			first, more = first[:limit], true
		}
		if more && o > first[limit-1] {
			continue
		}
		first = append(first, o)
	}
	slices.Sort(first)
	if len(first) > limit {
		first, more = first[:limit], true
	}
	return first, more
}

// DeadLetter returns one dead letter.
func (g *Group) DeadLetter(o Offset) (DeadLetter, bool) {
	d, ok := g.dead[o]
	return d, ok
}

// Needs is the lowest offset whose record the group still wants from the stream's log.
func (g *Group) Needs() Offset {
	low := g.position
	for o, d := range g.dead {
		if !d.Copied {
			low = min(low, o)
		}
	}
	for o, r := range g.again {
		if !r.copied {
			low = min(low, o)
		}
	}
	return low
}

// Uncopied lists the dead letters and redriven records below limit whose payload has no
// copy yet, ascending: what must be copied before the segments below limit go.
func (g *Group) Uncopied(limit Offset) []Offset {
	var out []Offset
	for o, d := range g.dead {
		if o < limit && !d.Copied {
			out = append(out, o)
		}
	}
	for o, r := range g.again {
		if o < limit && !r.copied {
			out = append(out, o)
		}
	}
	slices.Sort(out)
	return out
}

// Copied notes that the payload of o stands in the group's log, written with the same
// record as the Encode that follows. It reports false if the payload is wanted no more.
func (g *Group) Copied(o Offset) bool {
	if d, ok := g.dead[o]; ok {
		d.Copied = true
		g.dead[o] = d
		g.dirty = true
		g.markDead(o)
		return true
	}
	if r := g.again[o]; r != nil {
		r.copied, r.dirty, g.dirty = true, true, true
		return true
	}
	return false
}
