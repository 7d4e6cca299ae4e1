package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/replica"
	"github.com/felixlog/felix/storage"
)

// Faults with an aim, at what is remembered: a follower forgets what only it and its leader
// held, and is asked for its vote before it is level again. It is level within
// milliseconds, so faults at drawn times come too late.

// lapseProfile: members forget records, and the leader that knows better dies.
func lapseProfile(s *Shape) {
	s.Aimed, s.SmallShips = []FaultKind{Lapse}, true // it takes a while to be level
	s.FaultTime = 15 * time.Second
	s.Factor, s.Consistency, s.Fsync = 3, meta.ConsistencyQuorum, storage.None
}

// unsaidProfile: members keep their records and cannot say of which generations they are.
// Heads and disks stay: a log that began anew cannot say it either, and a majority must.
func unsaidProfile(s *Shape) {
	s.Aimed = []FaultKind{Unsay}
	s.FaultTime = 15 * time.Second
	s.Factor, s.Consistency, s.Fsync, s.Retention = 3, meta.ConsistencyQuorum, storage.OnCommit, false
}

// Times of a lapse, each drawn up to these.
const (
	pairTime  = time.Second            // leader and follower commit alone
	downTime  = 50 * time.Millisecond  // of the follower
	knowsTime = 600 * time.Millisecond // that the leader is still there for it
)

// lapse leaves the leader with one follower, which forgets. The leader dies, before the
// follower is level or after, and those that were cut off ask the follower for its vote.
func (w *world) lapse(f *Fault, forget func(*node)) {
	l := w.leader()
	if l == nil {
		return
	}
	others := w.others(l)
	if len(others) < 2 {
		return
	}
	i := f.Node % len(others)
	with := others[i]
	others = slices.Delete(others, i, i+1)
	forgets, down := w.between(0, pairTime), w.between(time.Millisecond, downTime)
	dies := max(0, forgets+down+w.between(-downTime, knowsTime))
	w.trace(nil, "pair", func() string { return fmt.Sprintf("%s with %s", l.id, with.id) }, uint64(l.index), uint64(with.index))
	pair := func(i int) bool { return i == l.index || i == with.index }
	w.partition(dies, func(from, to int) bool { return pair(from) != pair(to) })
	w.after(forgets, func() {
		if !w.heal {
			forget(with)
			w.after(down, with.start)
		}
	})
	w.after(dies, func() {
		if !w.heal {
			l.kill()
			w.after(f.For, l.start)
			w.usurp(others, w.now+f.For)
		}
	})
}

// others are the members of a leader's set beside it.
func (w *world) others(l *node) []*node {
	var out []*node
	set, _ := l.shard.rep.Set()
	for _, m := range set {
		if n := w.node(m.Node); n != l {
			out = append(out, n)
		}
	}
	return out
}

// loseUnseen cuts the power, and nothing but the stored mark tells. Where that does not,
// the machine does: a disk that loses more unseen is outside of what is assumed of disks.
func (n *node) loseUnseen() {
	n.powerCut()
	n.disk.dirtyBoot = !n.disk.short()
}

// short says that a log ends below its stored mark.
func (d *disk) short() bool {
	inc := d.node.world.shard.incarnation
	s := d.state[inc]
	for i := range d.node.world.logs() {
		if p := d.peek(inc, replica.LogID(i)); p != nil && s != nil && p.next() < s.marks[i] {
			return true
		}
	}
	return false
}

// unsay kills the process; it comes back with logs in memory that cannot say the
// generations of their records. All others can: where a majority cannot, nobody is elected.
func (n *node) unsay() {
	n.kill()
	if n.disk.real == nil && !slices.ContainsFunc(n.world.nodes, func(o *node) bool { return o != n && !o.says() }) {
		n.disk.unsay(n.world.shard.incarnation)
	}
}

// says tells whether the logs on a node can say their generations for good: by a statement
// that is committed and on the disk.
func (n *node) says() bool {
	inc := n.world.shard.incarnation
	for i := range n.world.logs() {
		p, s := n.peek(replica.LogID(i)), n.disk.state[inc]
		if p == nil || s == nil || p.next() == 0 {
			continue
		}
		if g := p.generations(); len(g) == 0 || g[0].Start >= s.marks[i] {
			return false
		}
	}
	return true
}

func (d *disk) unsay(incarnation uint64) {
	for i := range d.node.world.logs() {
		m := d.mem[logKey{incarnation, replica.LogID(i)}]
		if m == nil {
			continue
		}
		for j := range m.recs {
			m.recs[j].gen, m.recs[j].start = 0, false
		}
	}
}

// unsaid says that a log holds records and nothing says of which generations.
func unsaid(p logPort) bool { return p.next() > p.head() && len(p.generations()) == 0 }
