package sim

import (
	"maps"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/replica"
	"github.com/felixlog/felix/storage"
)

// disk is a node's disk: logs, and the state a replica must not forget.
type disk struct {
	node     *node
	id       meta.DiskID
	openings uint64
	// state is by incarnation: the journal and the lazily stored marks.
	state map[uint64]*replicaState
	mem   map[logKey]*memData
	real  *realDisk

	dirtyBoot bool // a power cut since the last start
	failFlush int
	full      bool
	suspect   bool // a flush failed and lost what it was to write
}

type logKey struct {
	incarnation uint64
	log         replica.LogID
}

// replicaState is on the disk as soon as it is set.
type replicaState struct {
	term      replica.Term
	forgetful bool
	marks     []offset
}

func newDisk(n *node) *disk {
	n.world.check.disks++
	d := &disk{node: n, id: meta.DiskID(1000 + n.world.check.disks), state: map[uint64]*replicaState{}, mem: map[logKey]*memData{}}
	if !n.world.opts.Memory {
		d.real = newRealDisk(n, uint64(d.id))
	}
	return d
}

func (d *disk) heal() {
	d.failFlush, d.full = 0, false
	if d.real != nil {
		d.real.heal()
	}
}

func (d *disk) kill() {
	if d.real != nil {
		d.real.kill()
	}
}

func (d *disk) powerCut() {
	d.dirtyBoot = true
	if d.real != nil {
		d.real.powerCut()
		return
	}
	// In the order of keys, for the draws must not depend on the map's.
	for inc := range uint64(16) {
		for id := range replica.LogID(replica.MaxLogs) {
			if m := d.mem[logKey{inc, id}]; m != nil {
				m.powerCut(func(n int) int { return d.node.world.rng.IntN(n) })
			}
		}
	}
}

func (d *disk) stateOf(incarnation uint64, logs int) *replicaState {
	s := d.state[incarnation]
	if s == nil {
		s = &replicaState{marks: make([]offset, logs)}
		d.state[incarnation] = s
	}
	return s
}

func (d *disk) open(incarnation uint64, id replica.LogID, h hooks) (logPort, error) {
	if d.real != nil {
		return d.real.open(incarnation, id, h)
	}
	key := logKey{incarnation, id}
	m := d.mem[key]
	if m == nil {
		m = &memData{}
		d.mem[key] = m
	}
	if m.torn {
		// A failed flush: what was not flushed may be gone.
		m.powerCut(func(n int) int { return d.node.world.rng.IntN(n) })
	}
	m.durable = len(m.recs)
	return &memLog{data: m, node: d.node, fsync: d.node.world.shape.Fsync, hooks: h}, nil
}

// torn says that a flush failed since the logs were opened: what it was to flush may be
// gone.
func (d *disk) torn() bool {
	if d.real != nil {
		return d.real.torn()
	}
	torn := false
	for m := range maps.Values(d.mem) {
		torn = torn || m.torn
	}
	return torn
}

// unclean says whether acknowledged records may be gone although nothing says so.
func (d *disk) unclean() bool {
	return (d.dirtyBoot || d.torn()) && d.node.world.shape.Fsync != storage.OnCommit
}

// peek is a log as it lies on the disk, for the checker.
func (d *disk) peek(incarnation uint64, id replica.LogID) logPort {
	if d.real != nil {
		return d.real.peek(incarnation, id)
	}
	m := d.mem[logKey{incarnation, id}]
	if m == nil {
		return nil
	}
	return &memLog{data: m, node: d.node}
}

func (d *disk) setFull(on bool) {
	d.full = on
	if d.real != nil {
		d.real.setFull(on)
	}
}

// failFlushes makes the next flushes fail.
func (d *disk) failFlushes(n int) {
	d.failFlush += n
	d.suspect = true
	if d.real != nil {
		d.real.failFlushes(n)
	}
}
