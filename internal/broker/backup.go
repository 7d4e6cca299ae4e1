package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/felixlog/felix/internal/archive"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// Backup is every shard of a broker, cut and held, on its way into a file. It is used by
// one goroutine.
type Backup struct {
	// Definitions are what exists: those of in-memory streams are among them, their
	// records are not.
	Definitions archive.Definitions
	logs        []cutLog
}

type cutLog struct {
	name archive.LogName
	at   time.Time
	copy *storage.Copy
}

// Backup cuts every shard, one after the other: the definitions of one moment, then each
// shard once, its groups before its records (see partition.Partition.Copy). Retention
// and compaction take nothing of a shard until Write has written it, or Release. A
// shard that does not serve is an error that names it: a backup without it would look
// like one of all. What is deleted meanwhile is left out.
func (b *Broker) Backup(ctx context.Context) (_ *Backup, err error) {
	if b.o.Root == "" {
		return nil, errors.New("a backup is of what is stored, and this broker runs with storage none")
	}
	k := new(Backup)
	defer func() {
		if err != nil {
			k.Release()
		}
	}()
	if err := k.define(ctx, b.o.Catalog); err != nil {
		return nil, err
	}
	streams := k.Definitions.Streams
	k.Definitions.Streams = nil
	for _, s := range streams {
		if there, err := k.stream(ctx, b, &s); err != nil {
			return nil, err
		} else if there {
			k.Definitions.Streams = append(k.Definitions.Streams, s)
		}
	}
	caches := k.Definitions.Caches
	k.Definitions.Caches = nil
	for _, c := range caches {
		if there, err := k.cache(ctx, b, &c); err != nil {
			return nil, err
		} else if there {
			k.Definitions.Caches = append(k.Definitions.Caches, c)
		}
	}
	return k, nil
}

// define reads what exists, all of one version of the catalog.
func (k *Backup) define(ctx context.Context, catalog *meta.Catalog) error {
	watch, err := catalog.Watch(ctx)
	if err != nil {
		return fmt.Errorf("read catalog: %w", err)
	}
	defer watch.Close()
	all, err := watch.Next(ctx)
	if err != nil {
		return fmt.Errorf("read catalog: %w", err)
	}
	d := &k.Definitions
	gone := map[string]bool{} // being deleted, with all that is below
	for _, ch := range all.Changes {
		switch {
		case ch.Deleted:
		case ch.Tenant != nil && ch.Tenant.Deleting:
			gone[ch.Tenant.ID] = true
		case ch.Tenant != nil:
			d.Tenants = append(d.Tenants, *ch.Tenant)
		case ch.Namespace != nil && (ch.Namespace.Deleting || gone[ch.Namespace.Tenant]):
			gone[ch.Namespace.Tenant+"/"+ch.Namespace.Name] = true
		case ch.Namespace != nil:
			d.Namespaces = append(d.Namespaces, *ch.Namespace)
		case ch.Stream != nil && !gone[ch.Stream.Tenant+"/"+ch.Stream.Namespace]:
			d.Streams = append(d.Streams, *ch.Stream)
		case ch.Cache != nil && !gone[ch.Cache.Tenant+"/"+ch.Cache.Namespace]:
			d.Caches = append(d.Caches, *ch.Cache)
		}
	}
	return nil
}

// stream cuts the shards of a stream; false when it was deleted.
func (k *Backup) stream(ctx context.Context, b *Broker, def *meta.Stream) (there bool, err error) {
	before := len(k.logs)
	defer func() { there, err = k.outcome(before, there, err) }()
	if err := b.AwaitStream(ctx, def.Tenant, def.Namespace, def.Name); err != nil {
		return false, err
	}
	s := b.table.Load().get(key{def.Tenant, def.Namespace, def.Name})
	if s == nil || s.Meta().Incarnation != def.Incarnation {
		return false, nil
	}
	if !def.Durable {
		return true, nil
	}
	for i := range s.shards {
		p, err := s.Shard(i)
		if err != nil {
			return false, outOfService(&s.shards[i], err)
		}
		c, err := p.Copy(ctx)
		if err != nil {
			return false, outOfService(&s.shards[i], err)
		}
		now := time.Now().UTC()
		name := archive.LogName{Kind: archive.KindStream, Tenant: def.Tenant, Namespace: def.Namespace, Name: def.Name, Shard: uint32(i)}
		k.add(name, now, c.Records)
		if c.Groups != nil {
			name.Kind = archive.KindGroups
			k.add(name, now, c.Groups)
		}
	}
	return true, nil
}

// cache cuts the shards of a cache, and their counters; false when it was deleted.
func (k *Backup) cache(ctx context.Context, b *Broker, def *meta.Cache) (there bool, err error) {
	before := len(k.logs)
	defer func() { there, err = k.outcome(before, there, err) }()
	if err := b.AwaitCache(ctx, def.Tenant, def.Namespace, def.Name); err != nil {
		return false, err
	}
	c := b.caches.Load().get(key{def.Tenant, def.Namespace, def.Name})
	if c == nil || c.Meta().Incarnation != def.Incarnation {
		return false, nil
	}
	for i := range c.shards {
		values, err := c.Shard(i)
		if err != nil {
			return false, outOfService(&c.shards[i], err)
		}
		name := archive.LogName{Kind: archive.KindCache, Tenant: def.Tenant, Namespace: def.Namespace, Name: def.Name, Shard: uint32(i)}
		log, err := values.Copy(ctx)
		if err != nil {
			return false, outOfService(&c.shards[i], err)
		}
		k.add(name, time.Now().UTC(), log)
		// Counters that nobody has asked for since the start are not open yet; those that
		// nobody ever asked for have no directory.
		switch _, err := b.o.FS.Stat(filepath.Join(b.countersRoot(), c.shards[i].dirName())); {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return false, err
		}
		counters, err := c.Counters(ctx, i)
		if err == nil {
			log, err = counters.Copy(ctx)
		}
		if err != nil {
			return false, outOfService(&c.shards[i], err)
		}
		name.Kind = archive.KindCounters
		k.add(name, time.Now().UTC(), log)
	}
	return true, nil
}

func (k *Backup) add(name archive.LogName, at time.Time, c *storage.Copy) {
	k.logs = append(k.logs, cutLog{name, at, c})
}

// outcome forgets the logs from before on of what turned out to be deleted.
func (k *Backup) outcome(before int, there bool, err error) (bool, error) {
	if there && err == nil {
		return true, nil
	}
	for _, l := range k.logs[before:] {
		l.copy.Release()
	}
	k.logs = k.logs[:before]
	if errors.Is(err, meta.ErrNotFound) || isA[*gone](err) {
		return false, nil
	}
	return false, err
}

// gone is the error of a shard whose owner was deleted.
type gone struct{ error }

func outOfService(sh *shard, err error) error {
	if sh.owner.Deleted() {
		return &gone{err}
	}
	f := *Failure(err)
	f.Message = fmt.Sprintf("shard %s does not serve, and a backup without it would not be one: %s", sh.name, f.Message)
	return &f
}

// Bytes is what the logs come to.
func (k *Backup) Bytes() (n int64) {
	for _, l := range k.logs {
		for _, s := range l.copy.Segments {
			n += s.Bytes
		}
	}
	return n
}

// Logs is how many there are.
func (k *Backup) Logs() int { return len(k.logs) }

// Write writes the logs, and releases each when it is written. It is called once.
func (k *Backup) Write(ctx context.Context, w *archive.Writer) error {
	for i := range k.logs {
		l := &k.logs[i]
		err := w.Log(ctx, l.name, l.at, l.copy)
		l.copy.Release()
		if errors.Is(err, storage.ErrClosed) {
			return fmt.Errorf("%s was deleted, or the broker is stopping: take the backup again: %w", l.name, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Release lets retention and compaction go on with what was not written.
func (k *Backup) Release() {
	for _, l := range k.logs {
		l.copy.Release()
	}
}

// RestoreDir is the directory of a log below the root of the shards. A groups' log lies
// in that of its stream's shard.
func RestoreDir(root string, n archive.LogName) string {
	dir := segment.ShardDirName(n.Tenant, n.Namespace, n.Name, n.Shard)
	switch n.Kind {
	case archive.KindGroups:
		return filepath.Join(root, dir, groupsDir)
	case archive.KindCache:
		return filepath.Join(root, cachesDir, dir)
	case archive.KindCounters:
		return filepath.Join(root, countersDir, dir)
	}
	return filepath.Join(root, dir)
}

// RestoreIncarnation makes dir, which RestoreDir gave for anything but groups, the
// directory of an incarnation, durably.
func RestoreIncarnation(fsys vfs.FS, dir string, incarnation uint64) error {
	return segment.WriteFile(fsys, dir, incarnationName, appendIncarnation(nil, incarnation))
}
