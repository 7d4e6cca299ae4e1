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
	failWrite int // in memory
	failRead  int // in memory
	failDir   int // in memory
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
	d.failWrite, d.failRead, d.failDir = 0, 0, 0
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

// failWrites makes the next writes to logs fail, half done.
func (d *disk) failWrites(n int) {
	if d.real != nil {
		d.real.failWrites(n)
		return
	}
	d.failWrite += n
}

// failReads makes the next reads of logs fail.
func (d *disk) failReads(n int) {
	if d.real != nil {
		d.real.failReads(n)
		return
	}
	d.failRead += n
}

// failDirs makes one of the next operations on directories fail; of which kind, size says.
func (d *disk) failDirs(size float64) {
	if d.real != nil {
		d.real.failDirs(size)
		return
	}
	d.failDir++
}

// readFails says that a replica's read of a log in memory fails.
func (d *disk) readFails() bool {
	if d.failRead == 0 {
		return false
	}
	d.failRead--
	return true
}

// pauseReadFaults lets the checker read what a replica could not, until resumeReadFaults.
func (d *disk) pauseReadFaults() {
	if d.real != nil {
		d.real.pauseReadFaults()
	}
}

func (d *disk) resumeReadFaults() {
	if d.real != nil {
		d.real.resumeReadFaults()
	}
}
