package sim

import (
	"encoding/binary"
	"fmt"
	"hash/crc64"
	"math/rand/v2"
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/replica"
)

// Result is what a run came to.
type Result struct {
	Seed      uint64
	Shape     Shape
	Hash      uint64
	Steps     int
	Violation *Violation
	// Stats count what happened, for reports on coverage.
	Stats Stats
}

// Stats count what happened in a run.
type Stats struct {
	Acked, Refused, Unknown, Reads, Elections, SetChanges, Cuts, Rebases, Forgetful, AllowedLosses, Halts, Judged, Unjudged int
}

// Violation is an invariant that did not hold.
type Violation struct {
	Invariant string
	Detail    string
	At        time.Duration
}

func (v *Violation) Error() string {
	return fmt.Sprintf("%s at %v: %s", v.Invariant, v.At, v.Detail)
}

// world is one run.
type world struct {
	opts   Options
	shape  *Shape
	now    time.Duration
	seq    uint64
	steps  int
	events eventHeap
	// watchers wait for a moment: see when.
	watchers []func() bool
	regiving bool       // a restore is under way that forgets set changes
	rng      *rand.Rand // workload, network, timing

	nodes   []*node
	net     network
	meta    metadata
	clients []*client
	check   checker
	shard   shardState
	heal    bool // faults are over

	violation *Violation
	hash      uint64
	stats     Stats
}

// shardState is what the world wants of the shard.
type shardState struct {
	incarnation uint64
	desired     []int // nodes that shall be members
}

var crcTable = crc64.MakeTable(crc64.ECMA)

// trace takes note of something that happened: into the hash, and as a line if asked.
func (w *world) trace(n *node, what string, detail func() string, nums ...uint64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(w.now))
	w.hash = crc64.Update(w.hash, crcTable, b[:])
	w.hash = crc64.Update(w.hash, crcTable, []byte(what))
	for _, v := range nums {
		binary.BigEndian.PutUint64(b[:], v)
		w.hash = crc64.Update(w.hash, crcTable, b[:])
	}
	if w.opts.Trace != nil {
		name := "world"
		if n != nil {
			name = string(n.id)
		}
		text := ""
		if detail != nil {
			text = detail()
		}
		fmt.Fprintf(w.opts.Trace, "%12.6f %-6s %-16s %s\n", w.now.Seconds(), name, what, text)
	}
}

func (w *world) fail(invariant, format string, args ...any) {
	if w.violation != nil {
		return
	}
	w.violation = &Violation{Invariant: invariant, Detail: fmt.Sprintf(format, args...), At: w.now}
	w.trace(nil, "violation", func() string { return w.violation.Error() })
}

// settleTime bounds how long a healed shard may take to make progress and to be level.
const settleTime = 90 * time.Second

// Run runs one seed.
func Run(o Options) *Result {
	shape := drawShape(o.Seed, o.Profile)
	w := &world{opts: o, shape: shape, rng: rand.New(rand.NewPCG(o.Seed, 2))}
	w.setup()
	for i := range shape.Faults {
		if o.Keep != nil && !contains(o.Keep, i) {
			continue
		}
		f := &shape.Faults[i]
		w.after(f.At, func() { w.inject(f) })
	}
	w.runUntil(shape.FaultTime)
	if w.violation == nil {
		w.healAll()
		w.settle()
	}
	if w.violation == nil {
		w.judge()
	}
	w.close()
	return &Result{Seed: o.Seed, Shape: *shape, Hash: w.hash, Steps: w.steps, Violation: w.violation, Stats: w.stats}
}

func contains(list []int, v int) bool {
	for _, x := range list {
		if x == v {
			return true
		}
	}
	return false
}

func (w *world) setup() {
	w.net = network{world: w}
	w.meta.init(w)
	w.check.init(w)
	w.shard.incarnation = 1
	for i := range w.shape.Nodes {
		n := newNode(w, i)
		w.nodes = append(w.nodes, n)
	}
	a := &meta.Assignment{Shard: shardKey, Incarnation: w.shard.incarnation}
	for i := range w.shape.Factor {
		w.shard.desired = append(w.shard.desired, i)
		a.Members = append(a.Members, meta.Member{Node: w.nodes[i].id, Disk: w.nodes[i].disk.id})
	}
	w.meta.seedAssignment(a)
	for _, n := range w.nodes {
		n.start()
	}
	w.startClients()
}

var shardKey = meta.ShardKey{Kind: meta.ShardOfStream, Name: meta.Name{Tenant: "t", Namespace: "ns", Name: "s"}}

// healAll ends every fault, but that a suspended node sleeps on: what it had begun would
// otherwise wait for the time it was put off to.
func (w *world) healAll() {
	w.heal = true
	w.trace(nil, "heal", nil)
	w.watchers = nil
	w.net.heal()
	w.meta.outage = false
	w.meta.lossy = false
	for _, n := range w.nodes {
		n.disk.heal()
		n.slow = w.baseSlow()
		n.noMeta, n.deaf = 0, 0
		if !n.alive {
			n.start()
		} else if n.shard != nil && n.shard.rep.Role() == replica.Stopped {
			n.reopenSoon()
		}
	}
}

// settle demands progress: within a bounded time every client is answered, a new write
// is acknowledged, and all members are level.
func (w *world) settle() {
	end := w.now + settleTime
	w.check.progressFrom = w.now
	for w.violation == nil && w.now < end {
		w.runUntil(w.now + 500*time.Millisecond)
		if w.violation != nil || !w.check.progressed() || !w.stable() {
			continue
		}
		// Marks trail while clients write: only a pause shows whether all are level.
		w.stopClients()
		w.runUntil(w.now + 3*time.Second)
		if w.violation == nil && w.level() {
			return
		}
		w.resumeClients()
	}
	if w.violation == nil {
		w.fail("progress", "%v after healing: %s", settleTime, w.describe())
	}
}

// level says that the set is the one wanted and every member holds all of the shard, and
// knows it: it would vote.
func (w *world) level() bool {
	if !w.stable() {
		return false
	}
	n := w.leader()
	set, _ := n.shard.rep.Set()
	for _, m := range set {
		f := w.node(m.Node)
		if f == nil || !f.alive || f.shard == nil || f.shard.incarnation != n.shard.incarnation {
			return false
		}
		if f.shard.rep.Forgetful() {
			return false
		}
		for id := range f.shard.ports {
			a, b := n.shard.rep.Log(replica.LogID(id)), f.shard.rep.Log(replica.LogID(id))
			if b.Unknown || a.Mark != a.Tail || b.Mark != a.Mark || b.Tail != a.Tail || b.Written != b.Tail {
				return false
			}
		}
	}
	return true
}

// stable says that a leader serves with the set that is wanted.
func (w *world) stable() bool {
	n := w.leader()
	if n == nil {
		return false
	}
	set, pending := n.shard.rep.Set()
	if pending != nil {
		return false
	}
	extra := 0
	for _, m := range set {
		if i := w.node(m.Node).index; !contains(w.shard.desired, i) {
			if m.Node != n.id {
				return false
			}
			extra = 1 // a leader is not removed by itself
		}
	}
	return len(set) == len(w.shard.desired)+extra
}

// leader is the serving leader of the highest generation.
func (w *world) leader() *node {
	var best *node
	for _, n := range w.nodes {
		if n.alive && n.shard != nil && n.shard.incarnation == w.shard.incarnation && n.shard.rep.Serving() &&
			(best == nil || n.shard.rep.Term().Generation > best.shard.rep.Term().Generation) {
			best = n
		}
	}
	return best
}

func (w *world) node(id meta.NodeID) *node {
	for _, n := range w.nodes {
		if n.id == id {
			return n
		}
	}
	return nil
}

func (w *world) describe() string {
	out := ""
	if a, v := w.meta.assignment(); a != nil {
		out = fmt.Sprintf("assignment v%d gen %d leader %s members %v desired %v;", v, a.Generation, a.Leader, a.Members, w.shard.desired)
	}
	for _, n := range w.nodes {
		if n.shard == nil {
			out += fmt.Sprintf(" %s(down)", n.id)
			continue
		}
		out += fmt.Sprintf(" %s(%v acc %d forgetful %t", n.id, n.shard.rep.Role(), n.shard.rep.Accepted().Generation, n.shard.rep.Forgetful())
		for id := range n.shard.ports {
			l := n.shard.rep.Log(replica.LogID(id))
			out += fmt.Sprintf(" [%d %d %d g%d u=%t]", l.Head, l.Mark, l.Tail, l.Last, l.Unknown)
		}
		out += ")"
	}
	return out
}

func (w *world) close() {
	for _, n := range w.nodes {
		n.stop()
	}
}

// chance draws whether something of probability p happens.
func (w *world) chance(p float64) bool { return p > 0 && w.rng.Float64() < p }

// between draws a duration in [lo, hi).
func (w *world) between(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(w.rng.Int64N(int64(hi-lo)))
}
