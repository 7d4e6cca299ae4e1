package sim

import (
	"fmt"
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/replica"
	"github.com/felixlog/felix/storage"
)

// node is a machine with its disk; while alive, with a process on it.
type node struct {
	world *world
	index int
	id    meta.NodeID
	disk  *disk

	alive     bool
	epoch     int           // counts processes; events of others are dropped
	suspended time.Duration // nothing runs before this time
	noMeta    time.Duration // the metadata cannot be reached before this time
	deaf      time.Duration // nor do its answers come before this one
	rate      float64       // of its boot-time clock: bootBase at bootFrom, then rate
	bootBase  time.Duration
	bootFrom  time.Duration
	wallSkew  time.Duration
	slow      time.Duration // added to each unit of disk work
	parked    bool          // its process is not to be started

	lease meta.LeaseID
	shard *shard

	lostBefore, cutRecords int // of the cut under way
}

func newNode(w *world, i int) *node {
	n := &node{world: w, index: i, id: meta.NodeID(fmt.Sprintf("n%d", i+1)), rate: 1}
	n.disk = newDisk(n)
	n.slow = w.baseSlow()
	n.rate = 1 + (w.rng.Float64()-0.5)/50
	if w.shape.Lopsided {
		n.rate = 1.05
		if i == 0 {
			n.rate = 0.95
		}
	}
	n.bootBase = time.Duration(i) * time.Hour
	return n
}

// boot is the node's CLOCK_BOOTTIME: it runs on while the process sleeps.
func (n *node) boot() time.Duration {
	return n.bootBase + time.Duration(float64(n.world.now-n.bootFrom)*n.rate)
}

// baseSlow is how slow disks are without a fault.
func (w *world) baseSlow() time.Duration {
	if w.shape.SlowDisks {
		return 25 * time.Millisecond
	}
	return 0
}

// setRate changes how fast the boot-time clock runs; it never goes back.
func (n *node) setRate(rate float64) {
	n.bootBase, n.bootFrom, n.rate = n.boot(), n.world.now, rate
}

// wall is the node's wall clock for record times.
func (n *node) wall() storage.Micros {
	t := n.world.now + n.wallSkew
	if n.world.shape.Coarse {
		t = t.Truncate(10 * time.Second)
	}
	return storage.Micros(1_700_000_000_000_000 + int64(t/time.Microsecond))
}

// start starts the process.
func (n *node) start() {
	if n.alive || n.parked {
		return
	}
	n.alive = true
	n.epoch++
	n.lease = 0
	n.world.trace(n, "start", func() string { return fmt.Sprintf("disk %d opening %d", n.disk.id, n.disk.openings+1) }, uint64(n.disk.id))
	n.openShard(n.world.shard.incarnation)
	n.loop(200*time.Millisecond, func() { n.world.meta.poll(n) })
	n.loop(time.Second, func() { n.world.meta.keepAlive(n) })
	n.loop(50*time.Millisecond, n.tick)
	n.loop(time.Second, n.manage)
	n.loop(250*time.Millisecond, n.sweep)
	n.world.meta.keepAlive(n)
}

// loop runs f every period, with a phase of its own.
func (n *node) loop(period time.Duration, f func()) {
	var next func()
	next = func() {
		f()
		n.after(period, next)
	}
	n.after(n.world.between(0, period), next)
}

// stop ends the process without a word.
func (n *node) stop() {
	if !n.alive {
		return
	}
	n.alive = false
	n.epoch++
	if n.shard != nil {
		n.shard.abandon()
		n.shard = nil
	}
}

func (n *node) closeShard() {
	if n.shard != nil {
		n.shard.close()
		n.shard = nil
	}
}

// kill is kill -9: what was written is still there.
func (n *node) kill() {
	if n.alive {
		n.world.trace(n, "kill", nil)
		n.stop()
		n.disk.kill()
	}
}

// powerCut drops what the disk had not flushed, and ends the process.
func (n *node) powerCut() {
	n.world.trace(n, "power cut", nil)
	n.world.check.beforeLoss(n)
	n.stop()
	n.disk.powerCut()
	n.world.check.afterLoss(n)
}

// wipe replaces the disk by an empty one.
func (n *node) wipe() {
	n.world.trace(n, "wipe", nil)
	n.world.check.beforeLoss(n)
	n.stop()
	n.disk = newDisk(n)
	n.world.check.wiping = true
	n.world.check.afterLoss(n)
	n.world.check.wiping = false
}

func (n *node) tick() {
	if n.shard != nil {
		n.shard.do(func(r *replica.Replica, now time.Duration) { r.Tick(now) })
	}
}

func (n *node) manage() {
	if n.shard != nil {
		n.shard.manage()
	}
}

func (n *node) sweep() {
	if n.shard == nil {
		return
	}
	s := n.shard
	for _, p := range s.ports {
		p.sweep()
	}
	s.drain()
	if n.shard == s {
		s.saveMarks()
	}
}

func (n *node) receive(m *replica.Message) {
	if n.shard != nil {
		n.shard.do(func(r *replica.Replica, now time.Duration) { r.Receive(now, m) })
	}
}

func (n *node) proposed(s *shard, o replica.ProposalOutcome, v meta.Version) {
	if n.shard == s && s != nil {
		s.do(func(r *replica.Replica, now time.Duration) { r.Proposed(now, o, v) })
	}
}

// assigned takes what a read of the metadata said. live is nil when nodes were not read.
func (n *node) assigned(a *meta.Assignment, v meta.Version, live map[meta.NodeID]meta.DiskID) {
	if a == nil {
		return
	}
	if n.shard == nil {
		n.openShard(a.Incarnation)
	}
	if n.shard != nil && a.Incarnation != n.shard.incarnation {
		// The stream was deleted and made anew: another directory.
		n.closeShard()
		n.openShard(a.Incarnation)
	}
	if n.shard == nil {
		return
	}
	s := n.shard
	s.do(func(r *replica.Replica, now time.Duration) { r.Assigned(now, a, v) })
	if n.shard != s || live == nil || s.rep.Role() != replica.Follower {
		return
	}
	mine := a.Leader == n.id
	// A leader is gone when no live node has its disk: a node that came back with an empty
	// one cannot lead what it led.
	if mine || a.Leader == "" || live[a.Leader] != a.LeaderDisk {
		w := n.world
		wait := w.between(0, 400*time.Millisecond)
		if mine {
			wait = 0
		}
		n.after(wait, func() {
			if n.shard == s {
				s.do(func(r *replica.Replica, now time.Duration) { r.Campaign(now) })
			}
		})
	}
}

// peek reads a log of the node whose process is down. Nil when there is none.
func (n *node) peek(log replica.LogID) logPort {
	return n.disk.peek(n.world.shard.incarnation, log)
}

// openShard opens the shard's directory and begins as a follower.
func (n *node) openShard(incarnation uint64) {
	n.shard = openShard(n, incarnation)
}

// reopenSoon opens the shard again after it halted.
func (n *node) reopenSoon() {
	s := n.shard
	if s.reopening {
		return
	}
	s.reopening = true
	n.after(n.world.between(100*time.Millisecond, 2*time.Second), func() {
		if n.shard == s {
			inc := s.incarnation
			n.closeShard()
			n.openShard(inc)
		}
	})
}
