package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/replica"
	"github.com/felixlog/felix/storage"
)

// Faults with an aim. A set change is over within milliseconds, and a record is on exactly
// one follower for less than one: faults at drawn times meet neither within thousands of
// seeds. These wait for the moment. Which moment, which nodes and for how long is drawn.

// splitProfile: the set changes, and the network splits while it does.
func splitProfile(s *Shape) {
	s.Aimed, s.Sets = []FaultKind{Split}, true
	s.FaultTime = 20 * time.Second
	s.Factor, s.Consistency, s.Fsync = 3, meta.ConsistencyQuorum, storage.OnCommit
}

// relayProfile: leaders in a row, whose records come to one other each.
func relayProfile(s *Shape) {
	s.Aimed, s.SmallShips = []FaultKind{Relay}, true
	s.FaultTime = 20 * time.Second
	s.Factor, s.Consistency, s.Fsync = 3, meta.ConsistencyQuorum, storage.OnCommit
}

// aim puts a fault with an aim in the place of most of those that were drawn, and says how
// long it has to itself.
func aim(rng *rand.Rand, s *Shape, f *Fault) time.Duration {
	kind, ordinary := s.Aimed[rng.IntN(len(s.Aimed))], rng.IntN(4) == 0
	if ordinary {
		return 0
	}
	f.Kind, f.For = kind, time.Second+f.For/2
	return f.For + time.Second
}

// moment is one of a set change.
type moment uint8

const (
	learning moment = iota // the leader knows the replica that shall become a member
	proposed               // the transaction is under way
	stored                 // its answer is under way
	known                  // the leader has read it
	moments
)

// reach is what the leader that is split off has of the metadata.
type reach uint8

const (
	whole   reach = iota
	unasked       // its requests are lost
	unheard       // the answers are
	reaches
)

// split lets the set change. At a drawn moment of that the leader is left with one other
// node, and one of the others soon asks to lead.
func (w *world) split(f *Fault) {
	l := w.leader()
	if l == nil {
		return
	}
	before, _ := l.shard.rep.Set()
	w.desire(f)
	at, has := moment(f.Mask)%moments, reach(f.Mask>>2)%reaches
	shard, end := l.shard, w.now+f.For
	w.when(func() bool {
		switch {
		case l.shard != shard || !shard.rep.Serving() || w.now > end:
			return true
		case w.reached(l, at, before):
			w.splitOff(l, has, f)
			return true
		}
		return false
	})
}

// reached says that the change of a leader's set, which was before, has come to a moment.
func (w *world) reached(l *node, at moment, before []meta.Member) bool {
	set, pending := l.shard.rep.Set()
	switch at {
	case learning:
		return len(l.shard.rep.Strangers()) > 0
	case proposed:
		return pending != nil
	case stored:
		if pending == nil {
			return false
		}
		a, _ := w.meta.assignment()
		return a != nil && slices.Equal(a.Members, pending)
	default:
		return pending == nil && !slices.Equal(set, before)
	}
}

// splitOff leaves a leader with one of those that are members or shall be.
func (w *world) splitOff(l *node, has reach, f *Fault) {
	others := w.concerned(l)
	if len(others) == 0 {
		return
	}
	i := f.Node % len(others)
	with := others[i]
	others = slices.Delete(others, i, i+1)
	w.trace(nil, "split", func() string { return fmt.Sprintf("%s and %s off, metadata %d", l.id, with.id, has) },
		uint64(l.index), uint64(with.index), uint64(has))
	mine := func(i int) bool { return i == l.index || i == with.index }
	w.partition(f.For, func(from, to int) bool { return mine(from) != mine(to) })
	end := w.now + f.For
	switch has {
	case unasked:
		l.noMeta = end
	case unheard:
		l.deaf = end
	}
	w.usurp(others, end)
}

// concerned are the nodes beside a leader that are members or shall be.
func (w *world) concerned(l *node) []*node {
	set, _ := l.shard.rep.Set()
	var out []*node
	for i, n := range w.nodes {
		listed := slices.ContainsFunc(set, func(m meta.Member) bool { return m.Node == n.id })
		if n != l && (listed || contains(w.shard.desired, i)) {
			out = append(out, n)
		}
	}
	return out
}

// usurp lets some ask to lead, one after another, until one of them does.
func (w *world) usurp(who []*node, end time.Duration) {
	w.after(w.between(0, 150*time.Millisecond), func() {
		if w.heal || w.now >= end || len(who) == 0 || slices.Contains(who, w.leader()) {
			return
		}
		if n := who[w.rng.IntN(len(who))]; n.alive && n.shard != nil {
			n.shard.do(func(r *replica.Replica, now time.Duration) { r.Campaign(now) })
		}
		w.usurp(who, end)
	})
}

// relay is a row of leaders. Each leg has one, that reaches one other member alone, its
// voter, and that one with a few records only; then it dies and another member leads.
type relay struct {
	world  *world
	legs   int   // still to come
	leader *node // or who shall be
	voter  *node
	few    offset        // records that come to the voter
	from   offset        // the end of the voter's log as they began to come
	begun  bool          // it leads, and from is known
	cut    bool          // nothing comes to the voter any more
	end    time.Duration // of the leg
	over   time.Duration // the row is
}

const (
	legTime    = 1500 * time.Millisecond // to become leader and to be heard
	aloneTime  = 60 * time.Millisecond   // longest that a leader goes on when it is cut off
	fewestLegs = 3                       // beside the first: figure 8 takes as many
	moreLegs   = 4                       // one below so many come to these
)

func (w *world) relay(f *Fault) {
	l := w.leader()
	if l == nil {
		return
	}
	r := &relay{world: w, legs: fewestLegs + int(f.Mask)%moreLegs, leader: l, over: w.now + f.For}
	r.voter = r.draw(l)
	if r.voter == nil {
		return
	}
	r.begin()
	w.when(r.step)
}

// draw picks a member of the shard that is not one of those.
func (r *relay) draw(but ...*node) *node {
	var from []*node
	for _, i := range r.world.shard.desired {
		if n := r.world.nodes[i]; !slices.Contains(but, n) {
			from = append(from, n)
		}
	}
	if len(from) == 0 {
		return nil
	}
	return from[r.world.rng.IntN(len(from))]
}

// begin begins a leg: leader and voter reach each other, and nobody else anybody.
func (r *relay) begin() {
	w := r.world
	r.leader.start()
	r.voter.start()
	pair := func(i int) bool { return i == r.leader.index || i == r.voter.index }
	for i := range w.nodes {
		for j := range w.nodes {
			w.net.cut[i][j] = i != j && !(pair(i) && pair(j))
		}
	}
	r.few, r.begun, r.cut = offset(w.rng.IntN(3)), false, false
	r.end = w.now + legTime
	w.trace(nil, "leg", func() string { return fmt.Sprintf("%s with %s, %d records", r.leader.id, r.voter.id, r.few) }, uint64(r.leader.index), uint64(r.voter.index))
}

// step is asked after every event.
func (r *relay) step() bool {
	w := r.world
	switch {
	case w.now >= r.over, w.now >= r.end && (!r.cut || r.legs == 0): // or nobody could lead
		r.finish()
		return true
	case w.now >= r.end:
		r.next()
	case r.cut || r.leader.shard == nil || r.voter.shard == nil:
	default:
		r.watch()
	}
	return false
}

// watch waits until the leader leads and a few records of its log came to the voter.
func (r *relay) watch() {
	w := r.world
	rep, tail := r.leader.shard.rep, r.voter.shard.rep.Log(0).Written
	switch role := rep.Role(); {
	case role == replica.Follower:
		r.leader.shard.do(func(r *replica.Replica, now time.Duration) { r.Campaign(now) })
		return
	case role != replica.Starting && role != replica.Leading:
		return
	case !r.begun:
		r.begun, r.from = true, tail
	}
	if tail >= r.from+r.few {
		// What the voter answered still comes.
		w.net.cut[r.leader.index][r.voter.index] = true
		r.cut, r.end = true, w.now+w.between(0, aloneTime)
	}
}

// next ends a leader and lets another follow it.
func (r *relay) next() {
	last := r.leader
	r.leader = r.draw(last)
	r.voter = r.draw(last, r.leader)
	last.kill()
	r.legs--
	r.begin()
}

// finish lets everybody reach everybody, also those whom other faults cut off or killed.
func (r *relay) finish() {
	w := r.world
	w.net.cut = [8][8]bool{}
	for _, n := range w.nodes {
		n.start()
	}
}
