package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/felixlog/felix/internal/replica"
	"github.com/felixlog/felix/storage"
)

// FaultKind is a kind of fault.
type FaultKind uint8

// Faults.
const (
	Kill        FaultKind = iota // kill -9 of a process, started again after For
	PowerCut                     // of a machine, started again after For
	PowerCutAll                  // of all machines at once
	Suspend                      // nothing runs on a node For a time
	Partition                    // Node and those of Mask cannot reach the others
	OneWay                       // what Node sends is lost
	Isolate                      // the leader cannot be reached by the others, nor reach them
	Slow                         // disk work of a node takes longer
	FullDisk                     // a node's disk is full
	FlushFails                   // one flush on a node fails
	Wipe                         // a node comes back with an empty disk
	ClockRate                    // a node's boot-time clock runs faster or slower
	ClockJump                    // a node's wall clock jumps
	MetaOutage                   // the metadata cannot be reached
	MetaLossy                    // answers of the metadata are lost or late
	MetaRestore                  // the metadata is restored from a backup
	Recreate                     // the stream is deleted and made anew
	ChangeSet                    // other nodes shall be members
	KillLeader                   // kill -9 of whoever leads
	CutLeader                    // power cut of whoever leads
	NetLossy                     // messages are lost, doubled and late
	Trim                         // the leader lets go of a head
	Rival                        // a node asks to lead although somebody does
	WriteFails                   // one write on a node fails
	ReadFails                    // one read on a node fails
	DirFails                     // one operation on a directory of a node fails
	faultKinds                   // as many are drawn by weight
)

// Faults with an aim: each waits for a moment, and only profiles that name them draw them
// (Shape.Aimed).
const (
	Split  FaultKind = faultKinds + iota // the network splits at a moment of a set change
	Relay                                // leaders in a row, each cut off after a few records
	Lapse                                // a follower forgets records, and its leader dies
	Unsay                                // or the generations of its records
	Regive                               // the metadata is restored, and gives a generation again
	allFaults
)

var faultNames = [allFaults]string{"kill", "power-cut", "power-cut-all", "suspend", "partition", "one-way", "isolate", "slow", "full-disk", "flush-fails", "wipe",
	"clock-rate", "clock-jump", "meta-outage", "meta-lossy", "meta-restore", "recreate", "change-set", "kill-leader", "cut-leader", "net-lossy", "trim", "rival",
	"write-fails", "read-fails", "dir-fails", "split", "relay", "lapse", "unsay", "regive"}

// String is the fault's name in reports.
func (k FaultKind) String() string { return faultNames[k] }

// Fault is one fault of a run.
type Fault struct {
	Kind FaultKind
	At   time.Duration
	For  time.Duration
	Node int
	Mask uint8
	Size float64
}

func (f *Fault) String() string {
	return fmt.Sprintf("%v at %.1fs for %.1fs node %d mask %b size %.2f", f.Kind, f.At.Seconds(), f.For.Seconds(), f.Node+1, f.Mask, f.Size)
}

// usurpTime is how long a node goes on asking to lead in the place of one that is cut
// off: longer than a lease.
const usurpTime = 4 * time.Second

// drawFaults draws a seed's faults. A run wipes disks, or cuts power under a policy that
// may lose records by it, but not both: together they can take a majority, and then
// nothing is promised.
func drawFaults(rng *rand.Rand, s *Shape) []Fault {
	weights := [faultKinds]int{
		Kill: 6, PowerCut: 6, PowerCutAll: 2, Suspend: 4, Partition: 6, OneWay: 4, Isolate: 6, Slow: 3, FullDisk: 2, FlushFails: 3, Wipe: 3,
		ClockRate: 3, ClockJump: 2, MetaOutage: 3, MetaLossy: 4, MetaRestore: 1, Recreate: 0, ChangeSet: 5, KillLeader: 6, CutLeader: 5, NetLossy: 4, Trim: 0, Rival: 4,
		WriteFails: 3, ReadFails: 3, DirFails: 2,
	}
	// Each run has a mood: some kinds more often, some not at all.
	for k := range weights {
		switch rng.IntN(4) {
		case 0:
			weights[k] = 0
		case 1:
			weights[k] *= 3
		}
	}
	wipes := rng.IntN(3) == 0 || s.Wipes
	if wipes && s.Fsync == storage.OnCommit && s.Factor >= 3 {
		weights[FlushFails] = 0
	} else {
		weights[Wipe] = 0
	}
	if rng.IntN(10) == 0 {
		weights[Recreate] = 2
	}
	if s.Churn {
		weights[Rival], weights[Isolate], weights[KillLeader] = 25, 15, 10
	}
	if s.Wipes {
		weights[Wipe], weights[KillLeader], weights[MetaRestore] = 20, 15, 0
	}
	if s.Usurped {
		weights[Isolate], weights[Rival], weights[ClockRate] = 40, 0, 20
		weights[Kill], weights[PowerCut], weights[PowerCutAll], weights[CutLeader] = 1, 1, 0, 1
	}
	if s.Lopsided {
		weights[ClockRate] = 0
	}
	if s.Sets {
		weights[ChangeSet], weights[MetaLossy], weights[MetaRestore] = 30, 15, 0
	}
	if s.Unsure {
		weights[Partition], weights[MetaLossy], weights[MetaOutage], weights[Isolate], weights[KillLeader] = 50, 30, 0, 0, 2
		weights[Kill], weights[PowerCut], weights[PowerCutAll], weights[CutLeader], weights[OneWay] = 1, 1, 0, 1, 0
	}
	if slices.Contains(s.Aimed, Regive) {
		weights[ChangeSet], weights[Wipe], weights[Recreate], weights[MetaRestore], weights[MetaLossy] = 0, 0, 0, 0, 0
	}
	if slices.Contains(s.Aimed, Unsay) {
		weights[Wipe], weights[Recreate] = 0, 0
	}
	if s.Outside {
		weights[ChangeSet], weights[CutLeader], weights[Rival], weights[MetaRestore] = 30, 20, 25, 0
	}
	if s.Lazy {
		weights[PowerCut], weights[CutLeader], weights[PowerCutAll], weights[Rival] = 20, 20, 10, 5
	}
	if s.Retention {
		weights[Trim] = 20
	}
	if weights[MetaRestore] > 0 {
		// A backup knows the set of its time: a set that changed since cannot be known from
		// it, and no protocol makes up for that (docs/replication.md).
		weights[ChangeSet], weights[Wipe], weights[Recreate] = 0, 0, 0
	}
	sum := 0
	for _, v := range weights {
		sum += v
	}
	if sum == 0 {
		weights[KillLeader], sum = 1, 1
	}
	var out []Fault
	at := 2 * time.Second
	for at < s.FaultTime-time.Second {
		pick := rng.IntN(sum)
		kind := FaultKind(0)
		for k, v := range weights {
			if pick < v {
				kind = FaultKind(k)
				break
			}
			pick -= v
		}
		out = append(out, Fault{
			Kind: kind, At: at, For: time.Duration(200+rng.IntN(8000)) * time.Millisecond,
			Node: rng.IntN(s.Nodes), Mask: uint8(rng.IntN(256)), Size: rng.Float64(),
		})
		gap := 100 + rng.IntN(4000)
		if f := &out[len(out)-1]; s.Usurped && kind == Isolate {
			f.Mask |= 1 // nor does it reach the metadata
			for d := 200 * time.Millisecond; d < usurpTime; d += 150 * time.Millisecond {
				out = append(out, Fault{Kind: Rival, At: at + d, Node: f.Node})
			}
			at += usurpTime
		}
		if s.Churn {
			gap /= 6
		}
		if s.Aimed != nil {
			at += aim(rng, s, &out[len(out)-1])
		}
		at += time.Duration(gap) * time.Millisecond
	}
	return out
}

// inject lets a fault happen.
func (w *world) inject(f *Fault) {
	if w.heal || w.violation != nil {
		return
	}
	w.trace(nil, "fault", f.String, uint64(f.Kind), uint64(f.Node))
	n := w.nodes[f.Node]
	restart := func(n *node) {
		w.after(f.For, func() { n.start() })
	}
	switch f.Kind {
	case Kill:
		if n.alive {
			n.kill()
			restart(n)
		}
	case PowerCut:
		n.powerCut()
		restart(n)
	case PowerCutAll:
		for _, n := range w.nodes {
			n.powerCut()
			restart(n)
		}
	case KillLeader, CutLeader:
		if l := w.leader(); l != nil {
			if f.Kind == KillLeader {
				l.kill()
			} else {
				l.powerCut()
			}
			restart(l)
		}
	case Suspend:
		n.suspended = max(n.suspended, w.now+f.For)
	case Partition:
		w.partition(f.For, func(from, to int) bool { return (f.Mask>>from)&1 != (f.Mask>>to)&1 })
	case OneWay:
		w.partition(f.For, func(from, to int) bool { return from == f.Node })
	case Isolate:
		if l := w.leader(); l != nil {
			if f.Mask&1 == 1 {
				l.noMeta = w.now + f.For
			}
			w.partition(f.For, func(from, to int) bool { return from == l.index || to == l.index })
		}
	case Slow:
		n.slow = time.Duration(f.Size * float64(100*time.Millisecond))
		w.after(f.For, func() { n.slow = w.baseSlow() })
	case FullDisk:
		n.disk.setFull(true)
		w.after(f.For, func() { n.disk.setFull(false) })
	case FlushFails:
		n.disk.failFlushes(1)
	case WriteFails:
		n.disk.failWrites(1)
	case ReadFails:
		n.disk.failReads(1)
	case DirFails:
		n.disk.failDirs(f.Size)
	case Wipe:
		if w.mayWipe(n) {
			n.wipe()
			restart(n)
		}
	case ClockRate:
		n.setRate(1 + (f.Size-0.5)/10)
	case ClockJump:
		n.wallSkew += time.Duration((f.Size - 0.5) * float64(20*time.Second))
	case MetaOutage:
		w.meta.outage = true
		w.after(f.For, func() { w.meta.outage = false })
	case MetaLossy:
		w.meta.lossy = true
		w.after(2*f.For, func() { w.meta.lossy = false })
	case MetaRestore:
		if w.meta.backup == nil {
			w.meta.backup = w.meta.store.Backup()
			return
		}
		w.meta.store.Restore(w.meta.backup)
		w.meta.backup = nil
	case Recreate:
		w.recreate()
	case ChangeSet:
		w.desire(f)
	case NetLossy:
		w.net.loss, w.net.dup, w.net.delay = w.shape.Loss, w.shape.Duplicate, w.shape.Delay
		w.after(2*f.For, func() {
			if !w.heal {
				w.net.loss, w.net.dup, w.net.delay = 0, 0, 2*time.Millisecond
			}
		})
	case Rival:
		if n.alive && n.shard != nil {
			n.shard.do(func(r *replica.Replica, now time.Duration) { r.Campaign(now) })
		}
	case Split:
		w.split(f)
	case Relay:
		w.relay(f)
	case Lapse:
		forget := (*node).powerCut
		if f.Mask&1 == 1 {
			forget = (*node).loseUnseen
		}
		w.lapse(f, forget)
	case Regive:
		w.regive(f)
	case Unsay:
		w.lapse(f, (*node).unsay)
	case Trim:
		if l := w.leader(); l != nil {
			for i := range l.shard.ports {
				id := replica.LogID(i)
				st := l.shard.rep.Log(id)
				to := min(st.Head+offset(f.Size*float64(st.Tail-st.Head+4)), l.shard.app.needs(id))
				l.shard.do(func(r *replica.Replica, now time.Duration) { r.TrimTo(now, id, to) })
			}
		}
	}
}

// partition loses messages where cut says, for a time.
func (w *world) partition(d time.Duration, cut func(from, to int) bool) {
	var set [8][8]bool
	for i := range w.nodes {
		for j := range w.nodes {
			set[i][j] = i != j && cut(i, j)
			w.net.cut[i][j] = w.net.cut[i][j] || set[i][j]
		}
	}
	w.after(d, func() {
		for i := range set {
			for j := range set[i] {
				if set[i][j] {
					w.net.cut[i][j] = false
				}
			}
		}
	})
}

// mayWipe says that the other members would still be a majority that holds all.
func (w *world) mayWipe(n *node) bool {
	a, _ := w.meta.assignment()
	if a == nil {
		return false
	}
	l := w.leader()
	if l == nil || l == n {
		return false
	}
	set, pending := l.shard.rep.Set()
	if pending != nil {
		return false
	}
	for _, m := range set {
		o := w.node(m.Node)
		if o.disk.id != m.Disk {
			return false
		}
		if o != n && (!o.alive || o.shard == nil || o.shard.rep.Log(0).Mark+50 < l.shard.rep.Log(0).Mark) {
			return false
		}
	}
	return true
}

// recreate deletes the stream and makes it anew under the same name.
func (w *world) recreate() {
	a, v := w.meta.assignment()
	if a == nil || w.meta.outage {
		return
	}
	w.shard.incarnation++
	w.check.reset()
	a.Incarnation = w.shard.incarnation
	a.Generation++
	a.Leader, a.LeaderDisk, a.LeaderOpening = "", 0, 0
	a.Revision++
	a.Members = a.Members[:0]
	for _, i := range w.shard.desired {
		a.Members = append(a.Members, member(w.nodes[i]))
	}
	slices.SortFunc(a.Members, byNode)
	w.meta.write(a, v)
	for _, c := range w.clients {
		c.forget()
	}
}

// desire chooses other members.
func (w *world) desire(f *Fault) {
	if w.shape.Nodes == w.shape.Factor {
		return
	}
	var out []int
	for i := range w.nodes {
		if !contains(w.shard.desired, i) {
			out = append(out, i)
		}
	}
	in := out[int(f.Mask)%len(out)]
	drop := int(f.Size * float64(len(w.shard.desired)))
	next := slices.Clone(w.shard.desired)
	next[drop] = in
	w.shard.desired = next
	w.trace(nil, "desired", func() string { return fmt.Sprint(next) }, uint64(in))
}
