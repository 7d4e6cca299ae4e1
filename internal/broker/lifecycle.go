package broker

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/storage"
)

// open has the shards of a stream opened: those in memory at once, those with a log by
// the workers.
func (b *Broker) open(s *Stream) {
	def := s.Meta()
	b.progress.add(len(s.shards))
	for i := range s.shards {
		sh := &s.shards[i]
		if !def.Durable {
			b.opened(sh, partition.NewMemory(b.options(sh, def)), nil)
			continue
		}
		s.openers.Add(1)
		ok := b.opening.submit(func() {
			defer s.openers.Done()
			b.openShard(sh)
		})
		if !ok {
			s.openers.Done()
			sh.set(&status{state: partition.Closed})
		}
	}
}

// opened publishes how the opening of a shard ended.
func (b *Broker) opened(sh *shard, p *partition.Partition, err error) {
	st := &status{state: partition.Active, partition: p}
	if err != nil {
		st = &status{state: partition.Damaged, err: err}
		b.o.Log.Error("shard is out of service", "shard", sh.name, "error", err)
	}
	sh.set(st)
	b.tried(err != nil)
}

// tried counts a shard whose status is set, and tells those who wait for it.
func (b *Broker) tried(failed bool) {
	p := b.progress.done(failed)
	if b.o.Events.OnProgress != nil {
		b.o.Events.OnProgress(p)
	}
	b.changed()
}

func (b *Broker) openShard(sh *shard) {
	s := sh.stream
	if !s.waitBefore(b.life) || s.Deleted() || b.life.Err() != nil {
		sh.set(&status{state: partition.Closed})
		b.tried(false)
		return
	}
	p, err := b.openLog(b.life, sh)
	if err != nil && (s.Deleted() || b.life.Err() != nil) {
		sh.set(&status{state: partition.Closed})
		b.tried(false)
		return
	}
	b.opened(sh, p, err)
	if p != nil {
		// A change of the definition that came meanwhile found no partition.
		def := s.Meta()
		p.Configure(int(def.RecordLimit()), def.StorePublisher, b.retention(def))
	}
}

func (b *Broker) openLog(ctx context.Context, sh *shard) (*partition.Partition, error) {
	def := sh.stream.Meta()
	dir, c, err := claim(b.o.FS, b.o.Root, b.dirName(sh), def.Incarnation)
	if err != nil {
		return nil, err
	}
	if c.setAside != "" {
		b.o.Log.Warn("directory of another incarnation was set aside", "shard", sh.name, "moved_to", c.setAside)
		if b.o.Events.OnSetAside != nil {
			b.o.Events.OnSetAside(sh.name, c.setAside, c.found, def.Incarnation)
		}
	}
	if c.adopted {
		b.o.Log.Warn("directory does not say its incarnation and was taken as the shard's", "shard", sh.name, "dir", dir)
		if b.o.Events.OnAdopted != nil {
			b.o.Events.OnAdopted(sh.name, dir)
		}
	}
	return partition.Open(ctx, dir, b.options(sh, def))
}

func (b *Broker) options(sh *shard, def *meta.Stream) partition.Options {
	d, l := &b.o.Defaults, &b.o.Limits
	o := partition.Options{
		Name:             sh.name,
		MaxRecordBytes:   int(def.RecordLimit()),
		StorePublisher:   def.StorePublisher,
		Budget:           b.tenant(def.Tenant),
		Counters:         &sh.stream.counters,
		RingBytes:        l.RingBytes,
		Rings:            b.rings,
		QueueCapacity:    l.QueueCapacity,
		MaxQueueCapacity: l.MaxQueueCapacity,
		QueueBytes:       l.QueueBytes,
		BlockFor:         l.BlockFor,
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
	o.Storage = storage.Options{
		FS:                 b.o.FS,
		Disk:               b.o.Disk,
		Fsync:              d.Fsync,
		FsyncInterval:      d.FsyncInterval,
		SegmentBytes:       d.SegmentBytes,
		IndexSpacing:       d.IndexSpacing,
		MaxRecordsPerRead:  d.MaxRecordsPerRead,
		QueueBytes:         l.LogQueueBytes,
		Preallocate:        d.Preallocate,
		ZeroAhead:          d.ZeroAhead,
		VerifyAllOnOpen:    d.VerifyAllOnOpen,
		RepairChecksumTail: d.RepairChecksumTail,
		RetentionBytes:     retention.Bytes,
		RetentionAge:       retention.Age,
		Restarted:          b.o.Restarted,
		Clock:              b.o.Clock,
		Events:             b.o.Storage,
	}
	if def.Fsync != meta.FsyncDefault {
		// The catalog holds checked definitions only.
		if mode, err := storage.ParseFsyncMode(string(def.Fsync)); err == nil {
			o.Storage.Fsync = mode
		}
	}
	if stray := o.Storage.Events.OnStray; stray != nil {
		o.Storage.Events.OnStray = func(shard, name string) {
			if name != incarnationName && name != incarnationName+".tmp" {
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

// ReopenShard tries a damaged or poisoned shard again, as an operator asks for once
// the reason is gone.
func (b *Broker) ReopenShard(ctx context.Context, s *Stream, i int) error {
	if _, err := s.Shard(i); err == nil {
		p := s.shards[i].status.Load().partition
		if p.State() != partition.Poisoned {
			return nil
		}
		return p.Reopen(ctx)
	}
	sh := &s.shards[i%len(s.shards)]
	st := sh.status.Load()
	if st.state != partition.Damaged || i >= len(s.shards) {
		return sh.unavailable(st)
	}
	if !sh.status.CompareAndSwap(st, &status{state: partition.Opening}) {
		return b.ReopenShard(ctx, s, i)
	}
	done := make(chan error, 1)
	s.openers.Add(1)
	ok := b.opening.submit(func() {
		defer s.openers.Done()
		p, err := b.openLog(b.life, sh)
		b.reopened(sh, p, err)
		done <- err
	})
	if !ok {
		s.openers.Done()
		sh.set(&status{state: partition.Closed})
		return ErrDraining
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *Broker) reopened(sh *shard, p *partition.Partition, err error) {
	if err != nil {
		sh.set(&status{state: partition.Damaged, err: err})
		return
	}
	sh.set(&status{state: partition.Active, partition: p})
	b.progress.healed()
	b.changed()
}

// closeWithin bounds how long a deleted shard may take to answer what is in flight.
const closeWithin = 30 * time.Second

// delete takes a stream out of service: its shards answer what is in flight and close,
// and their directories are renamed into the trash.
func (b *Broker) delete(s *Stream) {
	b.deleting.submit(func() {
		s.openers.Wait()
		for i := range s.shards {
			b.deleteShard(&s.shards[i])
		}
		close(s.gone)
		b.mu.Lock()
		if b.mu.last[s.key] == s.gone {
			delete(b.mu.last, s.key)
		}
		b.mu.Unlock()
		b.progress.remove(len(s.shards))
		b.changed()
	})
}

func (b *Broker) deleteShard(sh *shard) {
	st := sh.status.Load()
	sh.set(&status{state: partition.Closed})
	if st.partition != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
		err := st.partition.Delete(ctx)
		cancel()
		if err != nil {
			b.o.Log.Warn("deleted shard closed with an error", "shard", sh.name, "error", err)
		}
	}
	def := sh.stream.Meta()
	if !def.Durable {
		return
	}
	dirName := b.dirName(sh)
	found, err := readIncarnation(b.o.FS, filepath.Join(b.o.Root, dirName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err == nil && found != def.Incarnation:
		return // never opened here: what lies there is not this stream's
	case err == nil:
		var trash string
		if trash, err = moveInto(b.o.FS, b.o.Root, trashDir, dirName, def.Incarnation); err == nil {
			b.remove(trash)
			return
		}
	}
	// The next stream of this name finds another incarnation and sets it aside.
	b.o.Log.Error("directory of a deleted shard cannot be moved", "shard", sh.name, "dir", dirName, "error", err)
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
	trash := filepath.Join(b.o.Root, trashDir)
	entries, err := b.o.FS.ReadDir(trash)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			b.o.Log.Warn("trash cannot be listed", "dir", trash, "error", err)
		}
		return
	}
	for _, e := range entries {
		if e.IsDir() {
			b.remove(filepath.Join(trash, e.Name()))
		}
	}
}
