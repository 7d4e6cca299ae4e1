package sim

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/replica"
)

// metadata is the store, reached over a network of its own: requests take time, may be
// overtaken, and answers may be lost.
type metadata struct {
	world  *world
	store  *meta.Memory
	outage bool
	lossy  bool
	backup *meta.Backup
}

var ctx = context.Background()

func (d *metadata) init(w *world) {
	d.world = w
	epoch := time.Unix(1_700_000_000, 0)
	d.store = meta.NewMemory(meta.MemoryOptions{Now: func() time.Time { return epoch.Add(w.now) }})
}

func (d *metadata) seedAssignment(a *meta.Assignment) {
	if _, err := d.store.Txn(ctx, nil, []meta.Op{meta.Put(meta.AssignmentKey(shardKey), meta.EncodeAssignment(a))}); err != nil {
		d.world.fail("metadata", "first assignment: %v", err)
	}
}

// assignment is what is stored.
func (d *metadata) assignment() (*meta.Assignment, meta.Version) {
	e, err := d.store.Get(ctx, meta.AssignmentKey(shardKey))
	if err != nil {
		return nil, 0
	}
	a, err := meta.DecodeAssignment(e.Value)
	if err != nil {
		d.world.fail("metadata", "%v", err)
		return nil, 0
	}
	return a, e.Version
}

const metaTimeout = 2 * time.Second

// call runs request at the store after a delay and answer at the node after another,
// or lost at the node after a timeout when the answer does not come.
func (d *metadata) call(n *node, request func() bool, answer, lost func()) {
	w := d.world
	there, back := w.between(time.Millisecond, 10*time.Millisecond), w.between(time.Millisecond, 10*time.Millisecond)
	if d.world.shape.SlowMeta && !d.world.heal {
		there = w.between(10*time.Millisecond, metaTimeout)
	}
	drop := false
	if d.lossy {
		switch w.rng.IntN(6) {
		case 0:
			drop = true // the answer is lost
		case 1:
			there = w.between(metaTimeout, 3*metaTimeout) // the request comes when nobody waits any more
		}
	}
	answered := false
	w.after(there, func() {
		if d.outage || w.now < n.noMeta || !request() || drop {
			return
		}
		n.after(back, func() {
			if !answered && w.now >= n.deaf {
				answered = true
				answer()
			}
		})
	})
	n.after(metaTimeout, func() {
		if !answered {
			answered = true
			lost()
		}
	})
}

// propose is the transaction of replica.Propose.
func (d *metadata) propose(n *node, a *meta.Assignment, version meta.Version, blind bool) {
	var outcome replica.ProposalOutcome
	var got meta.Version
	s := n.shard
	if d.outage {
		n.after(10*time.Millisecond, func() { n.proposed(s, replica.ProposalUnavailable, 0) })
		return
	}
	d.call(n, func() bool {
		key := meta.AssignmentKey(shardKey)
		if blind {
			if cur, v := d.assignment(); cur != nil {
				if cur.Generation >= a.Generation {
					outcome = replica.ProposalConflict
					return true
				}
				a.Members, version = cur.Members, v
			}
		}
		v, err := d.store.Txn(ctx, []meta.Compare{{Key: key, Version: version}}, []meta.Op{meta.Put(key, meta.EncodeAssignment(a))})
		switch {
		case err == nil:
			outcome, got = replica.ProposalDone, v
			d.world.trace(n, "assigned", nil, uint64(a.Generation), uint64(v), a.Revision)
		case errors.Is(err, meta.ErrConflict):
			outcome = replica.ProposalConflict
		default:
			outcome = replica.ProposalUnavailable
		}
		return true
	}, func() { n.proposed(s, outcome, got) }, func() { n.proposed(s, replica.ProposalUnknown, 0) })
}

// readAssignment is replica.ReadAssignment, repeated until it is answered.
func (d *metadata) readAssignment(n *node) {
	var a *meta.Assignment
	var v meta.Version
	s := n.shard
	d.call(n, func() bool {
		a, v = d.assignment()
		return true
	}, func() {
		if n.shard == s {
			n.assigned(a, v, nil)
		}
	}, func() {
		if n.shard == s {
			d.readAssignment(n)
		}
	})
}

// poll reads the assignment and which nodes have a lease.
func (d *metadata) poll(n *node) {
	var a *meta.Assignment
	var v meta.Version
	live := map[meta.NodeID]meta.DiskID{}
	d.call(n, func() bool {
		a, v = d.assignment()
		page, err := d.store.List(ctx, "live/", "", 0)
		if err != nil {
			return false
		}
		for _, e := range page.Entries {
			disk, err := strconv.ParseUint(string(e.Value), 10, 64)
			if err != nil {
				d.world.fail("metadata", "lease of a node: %v", err)
			}
			live[meta.NodeID(e.Key[len("live/"):])] = meta.DiskID(disk)
		}
		return true
	}, func() { n.assigned(a, v, live) }, func() {})
}

// leaseTime is that of nodes in the metadata.
const nodeLease = 3 * time.Second

// keepAlive renews the node's lease, or takes a new one.
func (d *metadata) keepAlive(n *node) {
	d.call(n, func() bool {
		if n.lease != 0 {
			if _, err := d.store.KeepAlive(ctx, n.lease); err == nil {
				return true
			}
		}
		id, err := d.store.Grant(ctx, nodeLease)
		if err != nil {
			return false
		}
		n.lease = id
		_, err = d.store.Txn(ctx, nil, []meta.Op{meta.PutLeased("live/"+string(n.id), []byte(strconv.FormatUint(uint64(n.disk.id), 10)), id)})
		return err == nil
	}, func() {}, func() {})
}

// write stores an assignment as an operator would, at once.
func (d *metadata) write(a *meta.Assignment, version meta.Version) {
	key := meta.AssignmentKey(shardKey)
	if _, err := d.store.Txn(ctx, []meta.Compare{{Key: key, Version: version}}, []meta.Op{meta.Put(key, meta.EncodeAssignment(a))}); err != nil {
		d.world.fail("metadata", "write: %v", err)
	}
}

func member(n *node) meta.Member { return meta.Member{Node: n.id, Disk: n.disk.id} }

func byNode(a, b meta.Member) int { return strings.Compare(string(a.Node), string(b.Node)) }
