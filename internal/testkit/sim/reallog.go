package sim

import (
	"errors"
	"fmt"
	"path"
	"syscall"

	"github.com/felixlog/felix/internal/replica"
	testdisk "github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// realDisk is a strict disk with faults laid over it.
type realDisk struct {
	node   *node
	strict *testdisk.Strict
	faulty *testdisk.Faulty
	forks  uint64
	poison bool // a log on it was poisoned since the logs were opened
	full   *testdisk.Added
	opened map[logKey]*realLog
	copied map[logKey]int // records copied to lost/
	reads  *testdisk.Added
	paused bool       // reads fail again when the checker has read
	held   [][]string // by log: what was there as a flush failed that dropped some of it
}

func newRealDisk(n *node, seed uint64) *realDisk {
	d := &realDisk{node: n, opened: map[logKey]*realLog{}, copied: map[logKey]int{}}
	d.use(testdisk.NewStrict(n.world.opts.Seed*1_000_003+seed, testdisk.Options{}))
	return d
}

func (d *realDisk) use(s *testdisk.Strict) {
	d.strict = s
	d.faulty = testdisk.NewFaulty(s)
	d.full, d.reads, d.paused = nil, nil, false
}

func (d *realDisk) heal() {
	d.faulty.Clear()
	d.full, d.reads, d.paused = nil, nil, false
}

// kill ends the process: open files are gone, what was written is there.
func (d *realDisk) kill() {
	d.abandon()
	d.use(d.strict.Kill())
}

func (d *realDisk) powerCut() {
	d.abandon()
	d.use(d.strict.Crash())
}

func (d *realDisk) abandon() {
	for _, l := range d.opened {
		l.over = true
	}
	d.opened = map[logKey]*realLog{}
	d.reopened()
}

func (d *realDisk) torn() bool { return d.poison }

// reopened says that the logs were opened again, as they are.
func (d *realDisk) reopened() { d.poison, d.held = false, nil }

func (d *realDisk) setFull(on bool) {
	switch {
	case on && d.full == nil:
		d.full = d.faulty.Add(testdisk.Rule{Op: testdisk.OpWrite, Path: "*.log", Count: testdisk.Forever, Action: testdisk.NoSpace(0)})
	case !on && d.full != nil:
		d.full.Remove()
		d.full = nil
	}
}

func (d *realDisk) failFlushes(n int) {
	d.faulty.Add(testdisk.Rule{Op: testdisk.OpFlush, Path: "*.log", Count: n, Action: testdisk.Call(func() {
		if d.held == nil && d.node.shard != nil {
			d.held = d.node.world.check.holding(d.node)
		}
	})})
	d.faulty.Add(testdisk.Rule{Op: testdisk.OpFlush, Path: "*.log", Count: n, Action: testdisk.FailAndDrop(syscall.EIO)})
}

// failWrites makes the next writes fail, some of their bytes written.
func (d *realDisk) failWrites(n int) {
	d.faulty.Add(testdisk.Rule{Op: testdisk.OpWrite, Path: "*.log", Count: n, Action: testdisk.Short(20, syscall.EIO)})
}

// failReads makes the next read fail.
func (d *realDisk) failReads(n int) {
	d.reads = d.faulty.Add(testdisk.Rule{Op: testdisk.OpRead, Path: "*.log", Count: n, Action: testdisk.Fail(syscall.EIO)})
}

func (d *realDisk) pauseReadFaults() {
	if d.reads != nil && d.reads.Hits() == 0 {
		d.reads.Remove()
		d.paused = true
	}
}

func (d *realDisk) resumeReadFaults() {
	if d.paused {
		d.paused = false
		d.failReads(1)
	}
}

// failDirs makes the next operation of one kind on directories fail.
func (d *realDisk) failDirs(size float64) {
	kinds := [...]testdisk.Op{testdisk.OpCreate, testdisk.OpRename, testdisk.OpSyncDir, testdisk.OpRemove, testdisk.OpReadDir, testdisk.OpMkdir}
	d.faulty.Add(testdisk.Rule{Op: kinds[int(size*float64(len(kinds)))], Action: testdisk.Fail(syscall.EIO)})
}

func dirOf(incarnation uint64, id replica.LogID) string {
	return path.Join("/data", fmt.Sprint(incarnation), fmt.Sprint(id))
}

func (d *realDisk) options(h hooks, l *realLog) storage.Options {
	return storage.Options{
		FS: d.faulty, Shard: "s", Fsync: d.node.world.shape.Fsync, Manual: true,
		SegmentBytes: 8 << 10, IndexSpacing: 512, Restarted: d.node.disk.dirtyBoot,
		Clock: d.node.wall,
		Hooks: storage.Hooks{
			Admit:    l.admit,
			Written:  l.onWritten,
			Stable:   func(g *storage.Group) { h.stable(g.Next) },
			Reverted: func(offset) { h.reverted() },
		},
		Events: storage.Events{
			OnPoison: func(_ string, err *storage.PoisonedError) {
				if !l.over {
					d.poison = true
					h.failed(err.Error())
				}
			},
		},
	}
}

func (d *realDisk) open(incarnation uint64, id replica.LogID, h hooks) (logPort, error) {
	key := logKey{incarnation, id}
	l := &realLog{disk: d, key: key, hooks: h}
	log, err := storage.Open(ctx, dirOf(incarnation, id), d.options(h, l))
	var damaged *storage.DamagedError
	if errors.As(err, &damaged) {
		// An operator, or the broker on its own, sets a damaged copy aside and begins anew:
		// the replica is then one that forgot what it had.
		d.node.world.trace(d.node, "set aside", func() string { return err.Error() })
		d.node.world.check.damaged(d.node, id)
		if err := d.strict.RemoveAll(dirOf(incarnation, id)); err != nil {
			return nil, err
		}
		log, err = storage.Open(ctx, dirOf(incarnation, id), d.options(h, l))
		l.anew = true
	}
	if err != nil {
		return nil, err
	}
	l.log = log
	d.opened[key] = l
	return l, nil
}

// peek opens a copy of the disk and looks at one log of it.
func (d *realDisk) peek(incarnation uint64, id replica.LogID) logPort {
	d.forks++
	copied := d.strict.Fork(d.forks).Kill()
	if _, err := copied.Stat(dirOf(incarnation, id)); err != nil {
		return nil
	}
	log, err := storage.Open(ctx, dirOf(incarnation, id), storage.Options{
		FS: copied, Shard: "peek", Fsync: storage.None, Manual: true, SegmentBytes: 8 << 10, IndexSpacing: 512,
		Restarted: d.node.disk.dirtyBoot, Clock: d.node.wall,
	})
	if err != nil {
		return nil
	}
	return &realLog{disk: d, log: log, over: true}
}

// realLog is a log of package storage, single-stepped.
type realLog struct {
	disk  *realDisk
	key   logKey
	log   *storage.Log
	hooks hooks
	busy  bool
	over  bool
	anew  bool // what was there was damaged and set aside
}

// ticket ties a storage batch to the simulator's.
type ticket struct {
	b      *batch
	placed bool
}

var errNotAdmitted = errors.New("sim: not admitted")

func (l *realLog) head() offset { return l.log.Head() }
func (l *realLog) next() offset { return l.log.Written() }

func (l *realLog) admit(b *storage.Batch, next offset) error {
	t, ok := b.User.(*ticket)
	if ok && t.b.admit != nil && !t.b.admit(next) {
		return errNotAdmitted
	}
	return nil
}

func (l *realLog) onWritten(g *storage.Group) {
	own, encoded := g.Next, g.Encoded
	for _, b := range g.Batches {
		if b.Err == nil && len(b.Payloads) > 0 {
			own = min(own, b.First)
		}
	}
	// What was handed over comes first: it names its place, so it never follows an own
	// append of the same group.
	if g.First < own {
		for at := g.First; at < own; at++ {
			_, n, err := segment.DecodeRecord(encoded, at)
			if err != nil {
				l.disk.node.world.fail("log", "group at %d: %v", g.First, err)
				return
			}
			encoded = encoded[n:]
		}
		l.hooks.written(g.First, own, nil)
	}
	if own < g.Next {
		l.hooks.written(own, g.Next, encoded)
	}
	for _, b := range g.Batches {
		if t, ok := b.User.(*ticket); ok && t.b.done != nil && b.Err == nil && len(b.Payloads) > 0 {
			t.placed = true
			t.b.done(b.First, nil)
		}
	}
}

func (l *realLog) submit(b *batch) {
	t := &ticket{b: b}
	sb := &storage.Batch{Payloads: b.payloads, Kind: b.kind, Encoded: b.encoded, Prev: recordID(b.prev), User: t, UseReserve: b.encoded != nil || b.kind == storage.KindGenerationStart}
	sb.Done = func(sb *storage.Batch) {
		switch {
		case l.over || sb.Err == nil || t.placed || errors.Is(sb.Err, errNotAdmitted):
		case b.encoded != nil || b.kind == storage.KindGenerationStart:
			l.hooks.failed(sb.Err.Error())
		case b.done == nil:
		case errors.Is(sb.Err, storage.ErrUnknownOutcome):
			b.done(0, errUnknown)
		default:
			b.done(0, sb.Err)
		}
	}
	if err := l.log.Enqueue(sb); err != nil {
		sb.Err = err
		sb.Done(sb)
	}
	l.busy = true
}

func recordID(p replica.Place) storage.RecordID {
	if p.Next == 0 {
		return storage.RecordID{}
	}
	return storage.RecordID{Offset: p.Next - 1, Generation: p.Generation, Checksum: p.Checksum}
}

func (l *realLog) pending() bool { return l.busy && !l.over }

func (l *realLog) step() bool {
	if l.over || !l.log.Step() {
		l.busy = false
		return false
	}
	return true
}

func (l *realLog) sweep() {
	if l.over {
		return
	}
	l.busy = true // background work may be due
	if l.disk.node.world.shape.Fsync == storage.Periodic && l.log.Health().State == storage.StateServing {
		if err := l.log.Sync(ctx); err != nil && !errors.Is(err, storage.ErrNotWritten) && !errors.Is(err, syscall.EIO) && !l.over && l.log.Health().State == storage.StateServing {
			l.disk.node.world.fail("log", "%s: periodic flush: %v", l.disk.node.id, err)
		}
	}
}

func (l *realLog) place(at offset) (replica.Place, error) {
	if at <= l.head() {
		if at < l.head() {
			return replica.Place{}, errTrimmed
		}
		return replica.Place{Next: at}, nil
	}
	id := l.log.LastRecordID()
	if at != l.next() || id.Offset+1 != at {
		var err error
		if id, err = l.log.RecordID(ctx, at-1); err != nil {
			return replica.Place{}, err
		}
	}
	return replica.Place{Next: at, Generation: id.Generation, Checksum: id.Checksum}, nil
}

func (l *realLog) encoded(from offset, max int) ([]byte, offset, error) {
	return l.log.ReadEncoded(ctx, from, max, nil)
}

func (l *realLog) records(from, to offset, visit func(*storage.Record)) error {
	to = min(to, l.next())
	var page storage.Page
	for from < to {
		if err := l.log.Read(ctx, &page, storage.ReadRange{From: from, End: to, MaxBytes: 64 << 10, Limit: storage.LimitWritten}); err != nil {
			return err
		}
		if len(page.Records) == 0 {
			return errBeyond
		}
		for i := range page.Records {
			visit(&page.Records[i])
		}
		from = page.Next
	}
	return nil
}

func (l *realLog) cut(to offset, keepCopy bool) (replica.Place, error) {
	n := int(l.next() - min(to, l.next()))
	if err := l.log.TruncateTo(ctx, to); err != nil {
		return replica.Place{}, err
	}
	if n > 0 {
		saved, err := l.savedFiles()
		if err != nil {
			return replica.Place{}, err
		}
		if saved > 0 {
			l.disk.copied[l.key] += n
		}
	}
	l.busy = true
	return l.place(to)
}

// savedFiles counts the files under lost/.
func (l *realLog) savedFiles() (int, error) {
	names, err := l.disk.faulty.ReadDir(path.Join(dirOf(l.key.incarnation, l.key.log), "lost"))
	return len(names), err
}

func (l *realLog) rebase(base offset) error {
	l.busy = true
	return l.log.Reset(ctx, base)
}

func (l *realLog) flush() error { return l.log.Sync(ctx) }

func (l *realLog) trim(to offset) {
	l.busy = true
	if _, err := l.log.TrimHead(ctx, to); err != nil && !errors.Is(err, syscall.EIO) && l.log.Health().State == storage.StateServing {
		l.disk.node.world.fail("log", "%s: trim to %d: %v", l.disk.node.id, to, err)
	}
}

func (l *realLog) generations() []storage.GenerationStart { return l.log.Generations() }
func (l *realLog) lostRecords() int                       { return l.disk.copied[l.key] }

// close closes the log in a process that goes on. Errors are those of a poisoned log.
func (l *realLog) close() {
	if l.over {
		return
	}
	l.over = true
	delete(l.disk.opened, l.key)
	if err := l.log.Close(ctx); err != nil {
		l.disk.node.world.trace(l.disk.node, "close", func() string { return err.Error() })
	}
}
