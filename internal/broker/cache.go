package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/wire"
)

// Where the shards of caches lie below the root.
const (
	cachesDir   = "caches"
	countersDir = "counters"
)

func (b *Broker) cachesRoot() string   { return filepath.Join(b.o.Root, cachesDir) }
func (b *Broker) countersRoot() string { return filepath.Join(b.o.Root, countersDir) }

// Cache is a cache as this node serves it. It may be kept and used as long as one likes:
// once the cache is deleted every request to it says so.
type Cache struct {
	resource
	meta   atomic.Pointer[meta.Cache]
	totals partition.CacheCounters
}

// cacheUnit is one shard of a cache: its values, and its counters once they are asked
// for.
type cacheUnit struct {
	*partition.Cache
	name     string
	log      *slog.Logger
	mu       sync.Mutex // held while the counters are opened
	closed   bool
	counters atomic.Pointer[partition.Counter]
	failed   atomic.Pointer[error] // of the last opening of the counters
	open     func(ctx context.Context) (*partition.Counter, error)
}

func (b *Broker) newCache(def *meta.Cache) *Cache {
	c := new(Cache)
	c.init(b, c, kindCache, key{def.Tenant, def.Namespace, def.Name}, def.Shards)
	c.meta.Store(def)
	return c
}

// Cache finds a cache. The error is a *wire.Failure: not_found, draining.
func (b *Broker) Cache(tenant, namespace, name string) (*Cache, error) {
	k := key{tenant, namespace, name}
	if c := b.caches.Load().get(k); c != nil {
		return c, nil
	}
	return nil, b.missing(kindCache, k)
}

// CheckCache says whether this broker could serve a cache, before it is written to the
// catalog. The error is a *wire.Failure.
func (b *Broker) CheckCache(c meta.Cache) error {
	if b.o.Root == "" {
		return wire.NewFailure(wire.CodeInvalidRequest, "a cache needs storage, and this broker runs with storage none")
	}
	if c.ReplicationFactor > 1 {
		return wire.NewFailure(wire.CodeInvalidRequest, "a replication_factor above 1 needs a cluster; this broker stands alone")
	}
	return nil
}

// CacheValues are the values of caches kept in memory.
func (b *Broker) CacheValues() partition.ValueFigures { return b.values.Figures() }

// Meta is the cache's definition; it is never changed, a later call may give another.
func (c *Cache) Meta() *meta.Cache { return c.meta.Load() }

// Totals are those over all shards of this node.
func (c *Cache) Totals() *partition.CacheCounters { return &c.totals }

// Name is the cache's full name.
func (c *Cache) Name() (tenant, namespace, name string) {
	return c.key.tenant, c.key.namespace, c.key.name
}

// Route is the shard of a key.
func (c *Cache) Route(key string) int {
	return wire.Shard(wire.RoutingModulo, []byte(key), len(c.shards))
}

// Shard is the i-th shard. The error is a *wire.Failure, as that of [Stream.Shard].
func (c *Cache) Shard(i int) (*partition.Cache, error) {
	u, err := c.unit(i)
	if err != nil {
		return nil, err
	}
	return u.(*cacheUnit).Cache, nil
}

// open is the i-th shard if it is open.
func (c *Cache) open(i int) *cacheUnit {
	u, _ := c.shards[i].status.Load().unit.(*cacheUnit)
	return u
}

// Counters are those of the i-th shard; they are opened when they are first asked for.
func (c *Cache) Counters(ctx context.Context, i int) (*partition.Counter, error) {
	u, err := c.unit(i)
	if err != nil {
		return nil, err
	}
	return u.(*cacheUnit).openCounters(ctx)
}

func (u *cacheUnit) openCounters(ctx context.Context) (*partition.Counter, error) {
	if n := u.counters.Load(); n != nil {
		return n, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if n := u.counters.Load(); n != nil {
		return n, nil
	}
	if u.closed {
		return nil, partition.ErrClosed
	}
	n, err := u.open(ctx)
	if err == nil {
		u.counters.Store(n)
		u.failed.Store(nil)
		return n, nil
	}
	err = fmt.Errorf("counters: %w", err)
	switch {
	case ctx.Err() != nil:
	case (storage.IsDiskFull(err) || storage.IsOutOfFiles(err)) && u.failed.Load() == nil:
		// Nothing is known to be wrong with them: whoever asks next tries again.
		u.log.Warn("counters of a shard could not be opened: the next request tries again", "shard", u.name, "error", err)
	default:
		if u.failed.Swap(&err) == nil {
			u.log.Error("counters of a shard are out of service", "shard", u.name, "error", err)
		}
	}
	return nil, err
}

// closeCounters ends the counters, and lets nobody open them again.
func (u *cacheUnit) closeCounters(end func(*partition.Counter) error) error {
	u.mu.Lock()
	u.closed = true
	u.mu.Unlock()
	if n := u.counters.Load(); n != nil {
		return end(n)
	}
	return nil
}

// Close closes the values and the counters.
func (u *cacheUnit) Close(ctx context.Context) error {
	return errors.Join(u.closeCounters(func(n *partition.Counter) error { return n.Close(ctx) }), u.Cache.Close(ctx))
}

// Delete is Close for a cache that was deleted.
func (u *cacheUnit) Delete(ctx context.Context) error {
	return errors.Join(u.closeCounters(func(n *partition.Counter) error { return n.Delete(ctx) }), u.Cache.Delete(ctx))
}

// Reopen makes a poisoned shard serve again, if the disk lets it, and counters that were
// out of service. Values that have failed are ErrOpenAnew: the broker replaces the unit.
func (u *cacheUnit) Reopen(ctx context.Context) error {
	if err := u.reopenCounters(ctx); err != nil {
		return err
	}
	return u.Cache.Reopen(ctx)
}

func (u *cacheUnit) reopenCounters(ctx context.Context) error {
	n := u.counters.Load()
	if n != nil {
		err := n.Reopen(ctx)
		if !errors.Is(err, partition.ErrOpenAnew) {
			return err
		}
		u.mu.Lock()
		if u.counters.CompareAndSwap(n, nil) {
			u.failed.Store(&err)
			if err := n.Close(ctx); err != nil {
				u.log.Warn("failed counters closed with an error", "shard", u.name, "error", err)
			}
		}
		u.mu.Unlock()
	}
	if u.failed.Load() == nil {
		return nil
	}
	_, err := u.openCounters(ctx)
	return err
}

// State is that of the part that is worse off.
func (u *cacheUnit) State() partition.State {
	st := u.Cache.State()
	if st != partition.Active {
		return st
	}
	if n := u.counters.Load(); n != nil {
		return n.State()
	}
	if u.failed.Load() != nil {
		return partition.Damaged
	}
	return st
}

// Health is why the state is what it is.
func (u *cacheUnit) Health() error {
	if err := u.Cache.Health(); err != nil {
		return err
	}
	if n := u.counters.Load(); n != nil {
		return n.Health()
	}
	if err := u.failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (c *Cache) options(sh *shard) partition.CacheOptions {
	b, def := c.broker, c.Meta()
	o := partition.CacheOptions{
		Storage:  b.storage(def.Fsync),
		Name:     sh.name,
		Limits:   limitsOf(def),
		Budget:   b.tenant(def.Tenant),
		Counters: &c.totals,
		Values:   b.values,
		NextID:   func() uint64 { return b.ids.Add(1) },
		OnError:  b.cacheError,

		OnCompacted: b.o.Events.OnCompacted,

		MaxValueBytes: int(b.o.Defaults.MaxValueBytes),
	}
	orDefault(&o.MaxValueBytes, storage.DefaultMaxRecordBytes)
	if most := b.o.Limits.MostRecordBytes; most > 0 {
		o.MaxValueBytes = min(o.MaxValueBytes, int(most))
	}
	o.Storage.SegmentBytes = b.o.Defaults.keyedSegment()
	return o
}

// limitsOf are the bounds of one shard: the cache's, divided by its shards.
func limitsOf(def *meta.Cache) cache.Limits {
	n := int64(def.Shards)
	share := func(v int64) int64 { return (v + n - 1) / n }
	return cache.Limits{
		MaxKeys: int(share(int64(def.MaxKeys))), MaxBytes: share(int64(def.MaxBytes)), Evict: def.OnFull != meta.OnFullRefuse,
	}
}

// openShard opens a shard's values.
func (c *Cache) openShard(ctx context.Context, sh *shard, dir string) (unit, error) {
	o := c.options(sh)
	values, err := partition.OpenCache(ctx, dir, o)
	if err != nil {
		return nil, err
	}
	u := &cacheUnit{Cache: values, name: sh.name, log: c.broker.o.Log}
	u.open = func(ctx context.Context) (*partition.Counter, error) {
		dir, err := c.broker.claim(sh, countersDir)
		if err != nil {
			return nil, err
		}
		return partition.OpenCounter(ctx, dir, c.options(sh))
	}
	// Those that were used are opened now, so that damage and loss are known from the
	// start. The values serve without them.
	if c.broker.hadCounters(sh) {
		if _, err := u.openCounters(ctx); err != nil && ctx.Err() != nil {
			return nil, errors.Join(err, values.Close(context.WithoutCancel(ctx)))
		}
	}
	return u, nil
}

// hadCounters says whether the counters of a shard were used. An error says so too: the
// opening will name it.
func (b *Broker) hadCounters(sh *shard) bool {
	made, err := exists(b.o.FS, madeMark(b.o.Root, countersDir, sh.dirName(), sh.owner.def.incarnation()))
	if made || err != nil {
		return true
	}
	there, err := exists(b.o.FS, filepath.Join(b.countersRoot(), sh.dirName()))
	return there || err != nil
}

// opened takes in a change of the definition that came while the shard was opened.
func (c *Cache) opened(u unit) { u.(*cacheUnit).Configure(limitsOf(c.Meta())) }

// configure takes in what may change of a cache that is served.
func (c *Cache) configure(def *meta.Cache) {
	c.meta.Store(def)
	for i := range c.shards {
		if u := c.open(i); u != nil {
			u.Configure(limitsOf(def))
		}
	}
}

func (c *Cache) incarnation() uint64 { return c.Meta().Incarnation }
func (c *Cache) durable() bool       { return true }

// Sums are the keys, the bytes of their records and the watches of the shards that are
// open here.
func (c *Cache) Sums() (keys, bytes int64, watchers int) {
	for i := range c.shards {
		if u := c.open(i); u != nil {
			k, b := u.Cache.Sums()
			keys, bytes, watchers = keys+k, bytes+b, watchers+u.Watchers()
		}
	}
	return keys, bytes, watchers
}

// cacheError tells of background work of a cache. A snapshot that is no use costs time and
// nothing else: there is nothing for an operator to do.
func (b *Broker) cacheError(shard, what string, err error) {
	if what != "snapshot" {
		b.backgroundError(shard, what, err)
		return
	}
	b.o.Log.Warn("snapshot of a cache's index was not used: the index was read from the log, and the next clean stop writes another", "shard", shard, "error", err)
	if b.o.Events.OnBackgroundError != nil {
		b.o.Events.OnBackgroundError(shard, what, err)
	}
}
