package broker

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/felixlog/felix/internal/dirlock"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/storage"
)

// open has the shards of a stream or cache opened: those in memory at once, those with a
// log by the workers.
func (b *Broker) open(r *resource) {
	b.progress.add(len(r.shards))
	if r.before == nil {
		b.openShards(r)
		return
	}
	// Not on a worker: those that free its directories may need one.
	b.followed.Go(func() {
		r.waitBefore(b.life)
		b.openShards(r)
	})
}

func (b *Broker) openShards(r *resource) {
	for i := range r.shards {
		sh := &r.shards[i]
		if !r.def.durable() {
			u, err := r.def.openShard(b.life, sh, "")
			b.opened(sh, u, err)
			continue
		}
		if !r.openers.enter() {
			b.tried(sh, &status{state: partition.Closed})
			continue
		}
		ok := b.opening.submit(func() {
			defer r.openers.leave()
			b.openShard(sh)
		})
		if !ok {
			r.openers.leave()
			sh.set(&status{state: partition.Closed})
		}
	}
}

// opened publishes how the opening of a shard ended.
func (b *Broker) opened(sh *shard, u unit, err error) {
	st := &status{state: partition.Active, unit: u}
	if err != nil {
		st = &status{state: partition.Damaged, err: err}
		b.o.Log.Error("shard is out of service", "shard", sh.name, "error", err)
	}
	b.tried(sh, st)
	b.retryLater(sh, st)
}

// tried publishes how the first opening of a shard ended, counts it and tells those who
// wait for it. Whoever sees the status finds it counted, and the other way about.
func (b *Broker) tried(sh *shard, st *status) {
	p := b.progress.done(sh.name, st.err != nil, func() { sh.status.Store(st) })
	sh.tell(st)
	if b.o.Events.OnProgress != nil {
		b.o.Events.OnProgress(p)
	}
	b.changed()
}

func (b *Broker) openShard(sh *shard) {
	r := sh.owner
	if r.Deleted() || b.life.Err() != nil {
		b.tried(sh, &status{state: partition.Closed})
		return
	}
	b.progress.begin(sh.name)
	u, err := b.openLog(b.life, sh)
	if err != nil && (r.Deleted() || b.life.Err() != nil) {
		b.tried(sh, &status{state: partition.Closed})
		return
	}
	b.opened(sh, u, err)
	if err == nil {
		// A change of the definition that came meanwhile found no unit.
		r.def.opened(u)
	}
}

func (b *Broker) openLog(ctx context.Context, sh *shard) (unit, error) {
	dir, err := b.claim(sh, sh.owner.subs()[0])
	if err != nil {
		return nil, err
	}
	return sh.owner.def.openShard(ctx, sh, dir)
}

// claim makes sure that the directory of a shard below a subdirectory of the root is that
// of its incarnation.
func (b *Broker) claim(sh *shard, sub string) (string, error) {
	want := sh.owner.def.incarnation()
	dir, c, err := claim(b.o.FS, b.o.Root, sub, sh.dirName(), want)
	if err != nil {
		return "", err
	}
	if c.setAside != "" {
		b.o.Log.Warn("directory of another incarnation was set aside", "shard", sh.name, "moved_to", c.setAside)
		if b.o.Events.OnSetAside != nil {
			b.o.Events.OnSetAside(sh.name, c.setAside, c.found, want)
		}
	}
	if c.adopted {
		b.o.Log.Warn("directory does not say its incarnation and was taken as the shard's", "shard", sh.name, "dir", dir)
		if b.o.Events.OnAdopted != nil {
			b.o.Events.OnAdopted(sh.name, dir)
		}
	}
	return dir, nil
}

// recordLimit is the largest record of a stream, in bytes.
func (b *Broker) recordLimit(def *meta.Stream) int {
	limit := def.RecordLimit()
	if most := b.o.Limits.MostRecordBytes; most > 0 {
		limit = min(limit, most)
	}
	return int(limit)
}

func (b *Broker) options(s *Stream, sh *shard, dir string, def *meta.Stream) partition.Options {
	l := &b.o.Limits
	o := partition.Options{
		Name:             sh.name,
		MaxRecordBytes:   b.recordLimit(def),
		StorePublisher:   def.StorePublisher,
		Budget:           b.tenant(def.Tenant),
		Counters:         &s.counters,
		RingBytes:        l.RingBytes,
		Rings:            b.rings,
		QueueCapacity:    l.QueueCapacity,
		MaxQueueCapacity: l.MaxQueueCapacity,
		QueueBytes:       l.QueueBytes,
		BlockFor:         l.BlockFor,
		ReadPageBytes:    l.ReadPageBytes,
		ReplayBatches:    l.ReplayBatches,
		ReplayBytes:      l.ReplayBytes,
		NextID:           func() uint64 { return b.ids.Add(1) },
		Events:           b.o.Events.Partition,
	}
	switch def.Overflow {
	case meta.OverflowDropNew:
		o.Overflow = stream.DropNew
	case meta.OverflowDropOld:
		o.Overflow = stream.DropOld
	default:
		o.Overflow = stream.Block
	}
	if !def.Durable {
		return o
	}
	retention := b.retention(def)
	o.Storage = b.storage(def.Fsync)
	o.Storage.RetentionBytes, o.Storage.RetentionAge = retention.Bytes, retention.Age
	o.Groups = b.groups(dir, sh, def)
	return o
}

// groupsDir is where the groups of a stream shard live, in the shard's directory.
const groupsDir = "groups"

func (b *Broker) groups(dir string, sh *shard, def *meta.Stream) *partition.GroupHome {
	h := &partition.GroupHome{Dir: filepath.Join(dir, groupsDir)}
	h.Storage = b.storage(def.Fsync)
	h.Storage.SegmentBytes = b.o.Defaults.keyedSegment()
	h.MaxWait, h.PollBytes, h.Defaults = b.o.Limits.PollWait, b.o.Limits.PollBytes, b.o.Limits.Groups
	h.OnError = b.backgroundError
	h.OnCompacted = b.o.Events.OnCompacted
	h.OnLost = func(shard, group string, records uint64) {
		b.o.Log.Warn("retention removed records that a group had not settled", "shard", shard, "group", group, "records", records)
		if b.o.Events.OnGroupLost != nil {
			b.o.Events.OnGroupLost(shard, group, records)
		}
	}
	h.OnClamped = func(shard string, groups int) {
		b.o.Log.Warn("groups were past the end of their stream and are set back to it", "shard", shard, "groups", groups)
		if b.o.Events.OnGroupsClamped != nil {
			b.o.Events.OnGroupsClamped(shard, groups)
		}
	}
	mark := groupsMark(b.o.Root, sh.dirName(), def.Incarnation)
	h.Made = func() error {
		if made, err := exists(b.o.FS, mark); made || err != nil {
			return err
		}
		return markMade(b.o.FS, mark)
	}
	h.Lost = func(there bool) error {
		made, err := exists(b.o.FS, mark)
		if made {
			return &MissingError{Dir: h.Dir, Mark: mark, Empty: there}
		}
		return err
	}
	if def.Kind == meta.KindQueue {
		h.HoldBytes = b.o.Limits.QueueHoldBytes
	}
	return h
}

func (b *Broker) backgroundError(shard, what string, err error) {
	b.o.Log.Error("background work of a shard failed", "shard", shard, "work", what, "error", err)
	if b.o.Events.OnBackgroundError != nil {
		b.o.Events.OnBackgroundError(shard, what, err)
	}
}

// storage is how a log is kept by this broker.
func (b *Broker) storage(fsync meta.FsyncMode) storage.Options {
	d := &b.o.Defaults
	o := storage.Options{
		FS:                 b.o.FS,
		Disk:               b.o.Disk,
		Fsync:              d.Fsync,
		FsyncInterval:      d.FsyncInterval,
		SegmentBytes:       d.SegmentBytes,
		IndexSpacing:       d.IndexSpacing,
		MaxRecordsPerRead:  d.MaxRecordsPerRead,
		QueueBytes:         b.o.Limits.LogQueueBytes,
		Preallocate:        d.Preallocate,
		ZeroAhead:          d.ZeroAhead,
		VerifyAllOnOpen:    d.VerifyAllOnOpen,
		RepairChecksumTail: d.RepairChecksumTail,
		Restarted:          b.o.Restarted,
		Clock:              b.o.Clock,
		Events:             b.o.Storage,
	}
	if fsync != meta.FsyncDefault {
		// The catalog holds checked definitions only.
		if mode, err := storage.ParseFsyncMode(string(fsync)); err == nil {
			o.Fsync = mode
		}
	}
	o.Events.OnRecoveryProgress = func(shard string, read, bytes int64) {
		b.progress.read(shard, read, bytes)
		if f := b.o.Storage.OnRecoveryProgress; f != nil {
			f(shard, read, bytes)
		}
	}
	if stray := o.Events.OnStray; stray != nil {
		o.Events.OnStray = func(shard, name string) {
			switch name {
			case incarnationName, incarnationName + ".tmp", groupsDir, dirlock.Name:
			default:
				stray(shard, name)
			}
		}
	}
	return o
}

// retention is a stream's policy: its own bounds, else the broker's.
func (b *Broker) retention(def *meta.Stream) storage.RetentionPolicy {
	r := storage.RetentionPolicy{Bytes: def.Retention.MaxBytes, Age: def.Retention.MaxAge, Interval: b.o.Defaults.RetentionInterval}
	orDefault(&r.Bytes, b.o.Defaults.RetentionBytes)
	orDefault(&r.Age, b.o.Defaults.RetentionAge)
	return r
}

// closeWithin bounds how long a deleted shard may take to answer what is in flight.
const closeWithin = 30 * time.Second

// delete takes a stream or cache out of service: its shards answer what is in flight and
// close, and their directories are renamed into the trash.
func (b *Broker) delete(r *resource) {
	b.deleting.submit(func() {
		if r.before != nil {
			// Deletions begin in their order: that of the one before is under way.
			r.waitBefore(b.life)
		}
		r.openers.close()
		failed := 0
		for i := range r.shards {
			if r.shards[i].status.Load().state == partition.Damaged {
				failed++
			}
			b.deleteShard(&r.shards[i])
		}
		close(r.gone)
		b.mu.Lock()
		if b.mu.last[r.lastKey()] == r.gone {
			delete(b.mu.last, r.lastKey())
		}
		b.mu.Unlock()
		b.progress.remove(len(r.shards), failed)
		b.changed()
	})
}

func (b *Broker) deleteShard(sh *shard) {
	st := sh.status.Load()
	sh.set(&status{state: partition.Closed})
	if st.unit != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
		err := st.unit.Delete(ctx)
		cancel()
		if err != nil {
			b.o.Log.Warn("deleted shard closed with an error", "shard", sh.name, "error", err)
		}
	}
	if !sh.owner.def.durable() {
		return
	}
	for _, sub := range sh.owner.subs() {
		b.trash(sh, sub)
	}
}

// trash moves the directory of a deleted shard below a subdirectory of the root out of the
// way and has it removed.
func (b *Broker) trash(sh *shard, sub string) {
	root := filepath.Join(b.o.Root, sub)
	dirName, want := sh.dirName(), sh.owner.def.incarnation()
	for _, mark := range []string{madeMark(b.o.Root, sub, dirName, want), groupsMark(b.o.Root, dirName, want)} {
		if err := b.o.FS.Remove(mark); err != nil && !errors.Is(err, fs.ErrNotExist) {
			b.o.Log.Warn("mark of a deleted shard cannot be removed", "shard", sh.name, "error", err)
		}
	}
	found, err := readIncarnation(b.o.FS, filepath.Join(root, dirName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err == nil && found != want && (found != 0 || !b.bare(filepath.Join(root, dirName))):
		return // never opened here: what lies there is not this one's
	case err == nil:
		var trash string
		if trash, err = moveInto(b.o.FS, root, trashDir, dirName, want); err == nil {
			b.remove(trash)
			return
		}
	}
	// The next one of this name finds another incarnation and sets it aside.
	b.o.Log.Error("directory of a deleted shard cannot be moved", "shard", sh.name, "dir", dirName, "error", err)
}

// bare says that a directory holds nothing yet: it was being made when the disk failed.
func (b *Broker) bare(dir string) bool {
	entries, err := b.o.FS.ReadDir(dir)
	for _, e := range entries {
		if e.Name() != incarnationName && e.Name() != incarnationName+".tmp" {
			return false
		}
	}
	return err == nil
}

// remove takes a directory in the trash off the disk in the background.
func (b *Broker) remove(dir string) {
	b.removing.submit(func() {
		done, err := removeTree(b.o.FS, dir, func() bool { return b.life.Err() != nil })
		if err != nil {
			b.o.Log.Warn("directory of a deleted shard cannot be removed; tried again at the next start", "dir", dir, "error", err)
			return
		}
		if done && b.o.Events.OnRemoved != nil {
			b.o.Events.OnRemoved(dir)
		}
	})
}

// resumeRemoval goes on with what an earlier run left in the trash.
func (b *Broker) resumeRemoval() {
	for _, root := range []string{b.o.Root, b.cachesRoot(), b.countersRoot()} {
		trash := filepath.Join(root, trashDir)
		entries, err := b.o.FS.ReadDir(trash)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				b.o.Log.Warn("trash cannot be listed", "dir", trash, "error", err)
			}
			continue
		}
		for _, e := range entries {
			if e.IsDir() {
				b.remove(filepath.Join(trash, e.Name()))
			}
		}
	}
}
