package node

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/felixlog/felix/internal/api"
	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/internal/obs"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/internal/server"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/wire"
)

// Ready is what /ready answers.
func (n *Node) Ready() api.Readiness {
	r := api.Readiness{Status: *n.status.Load()}
	if r.Status == "starting" {
		r.Reasons = append(r.Reasons, api.Reason{Code: "starting", Detail: "metadata is being opened"})
		return r
	}
	p := n.broker.Progress()
	r.Recovery = api.Recovery{Done: p.Opened, Total: p.Total, Percent: p.Percent(), BytesRead: p.Read, Bytes: p.Bytes}
	switch r.Status {
	case "recovering":
		r.Reasons = append(r.Reasons, api.Reason{Code: "recovering", Detail: fmt.Sprintf("recovering %d%%: %d of %d shards opened, %d of %d bytes read of those under way", p.Percent(), p.Opened, p.Total, p.Read, p.Bytes)})
	case "draining":
		r.Reasons = append(r.Reasons, api.Reason{Code: "draining", Detail: "the broker is stopping"})
	default:
		r.Ready = true
	}
	for _, f := range n.broker.Damaged() {
		r.Reasons = append(r.Reasons, api.Reason{Code: codeOf(f), Detail: fmt.Sprintf("shard %s: %v", f.Shard, f.Err)})
	}
	r.Reasons = append(r.Reasons, n.unreadable.reasons()...)
	if err := n.data.Unsaved(); err != nil {
		r.Reasons = append(r.Reasons, api.Reason{Code: "disk", Detail: fmt.Sprintf("%v; it is tried again, and a further start would judge damage as after this one", err)})
	}
	if free, reserve, err := n.room(); err != nil {
		r.Reasons = append(r.Reasons, api.Reason{Code: "disk", Detail: err.Error()})
	} else if free < reserve {
		r.Reasons = append(r.Reasons, api.Reason{Code: wire.ReasonDiskFull, Detail: fmt.Sprintf("%d bytes are free and %d reserved: publishes are refused", free, reserve)})
	}
	if r.Ready && len(r.Reasons) > 0 {
		r.Status = "degraded"
	}
	return r
}

// codeOf is the state of a shard that is out of service, or what the machine lacks to open
// it: the shard has no damage that anybody could look for then.
func codeOf(f broker.ShardFault) string {
	if f.State == partition.Damaged {
		switch {
		case storage.IsDiskFull(f.Err):
			return wire.ReasonDiskFull
		case storage.IsOutOfFiles(f.Err):
			return wire.ReasonTooManyFiles
		}
	}
	return f.State.String()
}

// unreadable are the shards that serve and hold records which were found damaged since
// they were opened: what is before and after them is read, they are not. And those that
// lacked at this start what had been on the device, or found a directory of another
// incarnation in the place of theirs: an operator is to know until the next.
type unreadable struct {
	mu    sync.Mutex
	shard map[string]error
	gone  map[string]string
	aside map[string]string // where that directory was moved to
}

func (u *unreadable) noteAside(shard, movedTo string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.aside == nil {
		u.aside = make(map[string]string)
	}
	u.aside[shard] = movedTo
}

// closed is for a shard that is closed: with its stream, what was in its place is of no more
// use to it.
func (u *unreadable) closed(shard string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.aside, shard)
}

func (u *unreadable) noteGone(shard, what string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.gone == nil {
		u.gone = make(map[string]string)
	}
	u.gone[shard] = what
}

func (u *unreadable) note(shard string, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.shard == nil {
		u.shard = make(map[string]error)
	}
	u.shard[shard] = err
}

// forget is for a shard that is opened or closed: what it holds is found anew.
func (u *unreadable) forget(shard string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.shard, shard)
}

func (u *unreadable) reasons() []api.Reason {
	u.mu.Lock()
	defer u.mu.Unlock()
	var rs []api.Reason
	for _, shard := range slices.Sorted(maps.Keys(u.shard)) {
		rs = append(rs, api.Reason{Code: "damaged_records", Detail: fmt.Sprintf("shard %s: %v", shard, u.shard[shard])})
	}
	for _, shard := range slices.Sorted(maps.Keys(u.gone)) {
		rs = append(rs, api.Reason{Code: "records_gone", Detail: fmt.Sprintf("shard %s: %s", shard, u.gone[shard])})
	}
	for _, shard := range slices.Sorted(maps.Keys(u.aside)) {
		rs = append(rs, api.Reason{Code: "set_aside", Detail: fmt.Sprintf("shard %s was begun anew: the directory in its place was of another incarnation, moved_to %s", shard, u.aside[shard])})
	}
	return rs
}

// room is what is free on the logs' file system, and what is held in reserve.
func (n *Node) room() (free, reserve int64, err error) {
	if n.disk == nil {
		return 0, 0, nil
	}
	// The disk looks itself, so that what is said here and what is refused are one.
	usage, err := n.disk.Room()
	return usage.Free, n.plan.disk.minFree, err
}

// gauges are the values asked for at each scrape.
func (n *Node) gauges() obs.Gauges {
	g := obs.Gauges{
		Subscribers: func() int { return n.broker.Stats().Subscribers },
		SlowestLag:  n.slowestLag,
		Inflight:    func() int64 { return n.broker.Stats().InFlight },
		Tenants:     n.broker.TenantsInFlight,
		Limits: obs.Limits{
			NodeInFlight: n.plan.broker.NodeInFlight, TenantInFlight: n.plan.broker.TenantInFlight, Connections: n.plan.server.Connections,
		},
		Shards: func() map[string]int {
			byName := map[string]int{}
			for s := partition.Opening; s <= partition.Closed; s++ {
				byName[s.String()] = 0
			}
			for s, count := range n.broker.ShardStates() {
				byName[s.String()] = count
			}
			return byName
		},
		Recovery: func() obs.Recovery {
			p := n.broker.Progress()
			return obs.Recovery{Done: p.Opened, Total: p.Total, Percent: p.Percent(), BytesRead: p.Read, Bytes: p.Bytes}
		},
		Dropped: (&dropCounter{broker: n.broker, last: map[*broker.Stream]drops{}}).total,
	}
	if n.disk != nil {
		g.Unsynced = n.disk.Unsynced
		g.Disk = func() (free, reserve int64) {
			free, reserve, err := n.room()
			if err != nil {
				n.log.Warn("free room not known", "dir", n.plan.root, "error", err)
			}
			return free, reserve
		}
	}
	return g
}

func (n *Node) slowestLag() uint64 {
	var most uint64
	n.broker.Streams(func(s *broker.Stream) { most = max(most, s.Stats().Lag) })
	return most
}

// drops are records or subscriptions lost to each overflow policy.
type drops struct{ dropNew, dropOld, block uint64 }

// dropCounter sums the counters of streams so that the sum does not fall when a
// stream is deleted.
type dropCounter struct {
	broker *broker.Broker
	mu     sync.Mutex
	gone   drops
	last   map[*broker.Stream]drops
}

func (d *dropCounter) total() map[string]uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := map[*broker.Stream]drops{}
	d.broker.Streams(func(s *broker.Stream) {
		c := s.Counters()
		now[s] = drops{c.DroppedNew.Load(), c.DroppedOld.Load(), c.SlowEnded.Load()}
	})
	sum := d.gone
	for s, v := range d.last {
		if _, there := now[s]; !there {
			d.gone.add(v)
			sum.add(v)
		}
	}
	for _, v := range now {
		sum.add(v)
	}
	d.last = now
	return map[string]uint64{"drop_new": sum.dropNew, "drop_old": sum.dropOld, "block": sum.block}
}

func (d *drops) add(v drops) {
	d.dropNew += v.dropNew
	d.dropOld += v.dropOld
	d.block += v.block
}

func (n *Node) diskEvents() storage.DiskEvents {
	return storage.DiskEvents{
		OnLowSpace: func(free, reserve int64) {
			n.log.Error("disk is nearly full: publishes are refused", "free_bytes", free, "reserve_bytes", reserve)
		},
		OnRoom: func(free, reserve int64) {
			n.log.Info("disk has room again: publishes are taken", "free_bytes", free, "reserve_bytes", reserve)
		},
		OnNoIOUring: func(err error) {
			n.log.Warn("io_uring is not to be had here: flushes block instead, which is slower and as safe", "error", err)
		},
	}
}

func (n *Node) brokerEvents() broker.Events {
	return broker.Events{
		// What the broker says itself, with the reason, is not said twice.
		OnState: func(shard string, state partition.State, _ error) {
			n.unreadable.forget(shard)
			if state == partition.Closed {
				n.unreadable.closed(shard)
			}
			n.log.Debug("shard", "shard", shard, "state", state.String())
		},
		OnSetAside: func(shard, movedTo string, _, _ uint64) {
			// Later it is what the deletion of an earlier one of the name left behind.
			if s := *n.status.Load(); s == "starting" || s == "recovering" {
				n.unreadable.noteAside(shard, movedTo)
			}
		},
		OnCompacted: func(shard string, e partition.CompactEvent) {
			n.metrics.Compacted(e.Written, e.Bytes, e.Duration)
			n.log.Info("log compacted", "shard", shard, "bytes_before", e.Before, "bytes_after", e.After, "written_bytes", e.Written,
				"freed_bytes", e.Bytes, "records_kept", e.Copied, "records_dropped", e.Dropped, "seconds", e.Duration.Seconds())
		},
		OnGroupsClamped: func(_ string, groups int) { n.metrics.GroupsClamped(groups) },
		OnRemoved:       func(dir string) { n.log.Info("directory of a deleted stream removed", "dir", dir) },
		OnProgress: func(p broker.Progress) {
			n.log.Debug("recovery", "opened", p.Opened, "shards", p.Total)
		},
		Partition: partition.Events{
			OnSlow: func(shard string, _ *partition.Subscription) {
				n.log.Warn("subscription ended: it held back publishes for too long", "shard", shard)
			},
			OnDropped: func(shard string, s *partition.Subscription) {
				n.log.Warn("subscription of an in-memory stream was too slow and missed batches, which its client cannot know; a durable stream keeps them",
					"shard", shard, "principal", s.Principal(), "connection", s.Connection(), "batches", s.Dropped())
			},
			OnDamagedRead: func(shard string, err error) {
				n.unreadable.note(shard, err)
				n.log.Error("records of a shard are damaged and cannot be read", "shard", shard, "error", err)
			},
			OnTornBatch: func(shard string, from, tail storage.Offset) {
				n.log.Warn("log ended within a producer's batch, which was cut", "shard", shard, "from", from, "tail", tail)
			},
			OnProducersRebuilt: func(shard string, from, to storage.Offset) {
				n.log.Debug("producers read back from the log", "shard", shard, "from", from, "to", to)
			},
			OnSnapshotError: func(shard string, err error) {
				n.log.Warn("producer snapshot not written; it is tried again", "shard", shard, "error", err)
			},
		},
	}
}

func (n *Node) serverEvents() server.Events {
	return server.Events{
		OnConnect:    n.metrics.Connected,
		OnDisconnect: n.metrics.Disconnected,
		OnRefused:    func(r server.Refusal) { n.metrics.Refused(string(r)) },
		OnPaused:     func(p server.Pause) { n.metrics.Paused(string(p)) },
		OnPublished: func(p server.Published) {
			n.metrics.Published(obs.Publish{Records: p.Records, Bytes: p.Bytes, Took: p.Took, Durable: p.Durable, Failure: broker.Failure(p.Err)})
		},
		OnDelivered: n.metrics.Delivered,
	}
}
