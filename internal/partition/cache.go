package partition

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// CacheOptions say how a cache shard is kept.
type CacheOptions struct {
	// Storage is how the log is kept; Hooks are set by OpenCache.
	Storage storage.Options
	// Name is the shard in errors and events: tenant/namespace/cache/shard.
	Name string
	// Limits bound this shard: the cache's, divided by its shards.
	Limits cache.Limits
	// MaxValueBytes bounds a value; 0 is storage.DefaultMaxRecordBytes. At the most it is
	// what the format holds, 64 MiB, less cache.MaxOverhead.
	MaxValueBytes int
	// Budget bounds writes in flight; nil is no bound but the log's queue.
	Budget *Budget
	// Counters are those of the cache; nil makes some.
	Counters *CacheCounters
	// Values keep values in memory, for all shards that have the same; nil keeps none.
	Values *Values
	// CompactPace bounds what compaction reads, bytes a second, as long as the log is not
	// larger than what makes it due; 0 is 32 MiB.
	CompactPace int
	// CompactAbove is the size below which a log is left alone; 0 is 8 MiB.
	CompactAbove int64
	// NextID gives watch ids.
	NextID func() uint64
	// Now is the clock deadlines are compared with; nil is time.Now.
	Now func() time.Time
	// OnError is told what went wrong in the background.
	OnError func(shard, what string, err error)
	// OnCompacted is told of compactions of the log.
	OnCompacted func(shard string, e CompactEvent)
}

// DefaultCompactPace is how many bytes a second compaction reads of a log that is not larger
// than what makes it due. Of a larger one it reads more: see projection.CompactOptions.
const DefaultCompactPace = 32 << 20

// snapshotCodecCache tells a cache's snapshot from another reading's.
const snapshotCodecCache = 1

// Cache is one shard of a cache that is open. All methods may be called from several
// goroutines.
type Cache struct {
	keyed
	o        CacheOptions
	dir      string
	state    *cache.State
	counters *CacheCounters
	watches  watchers
	pages    sync.Pool // of *storage.Page
	// valuesLog is the log's number in o.Values; 0 until the log has been read, which is
	// no reason to keep what it holds.
	valuesLog atomic.Uint64

	expiry struct {
		sync.Mutex
		timer *time.Timer // runs when the nearest deadline comes; nil while there is none
		at    cache.Millis
	}
}

// OpenCache opens the shard whose log is in dir, or makes an empty one.
func OpenCache(ctx context.Context, dir string, o CacheOptions) (*Cache, error) {
	orDefault(&o.MaxValueBytes, storage.DefaultMaxRecordBytes)
	o.MaxValueBytes = min(o.MaxValueBytes, maxBody-cache.MaxOverhead)
	orDefault(&o.CompactPace, DefaultCompactPace)
	if o.Counters == nil {
		o.Counters = new(CacheCounters)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Storage.FS == nil {
		o.Storage.FS = vfs.OS()
	}
	c := &Cache{o: o, dir: dir, counters: o.Counters}
	c.pages.New = func() any { return new(storage.Page) }
	c.name = o.Name
	c.into = (*cacheLog)(c)
	c.changed = func(storage.Offset) { c.watches.wake(); c.rearm() }
	c.failing = c.watches.stop
	if o.OnError != nil {
		c.onError = func(what string, err error) { o.OnError(o.Name, what, err) }
	}
	if o.OnCompacted != nil {
		c.onCompacted = func(e CompactEvent) { o.OnCompacted(o.Name, e) }
	}
	so := o.Storage
	so.MaxRecordBytes = maxBody
	pace := projection.NewPace(o.CompactPace)
	err := c.open(ctx, dir, so, func(log *storage.Log) (projection.Reading, error) {
		proj := projection.New(cache.Codec{}, log.Head())
		err := proj.LoadSnapshot(ctx, so.FS, dir, snapshotCodecCache, log.Head(), log.Stable(), log)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && c.onError != nil {
			c.onError("snapshot", err) // the index is built from the log instead
		}
		c.state = cache.NewState(proj, o.Limits)
		return projection.Latest{Projection: proj, Copier: cache.Codec{}, Expired: c.expired}, nil
	}, projection.CompactOptions{Pace: pace, MinBytes: o.CompactAbove})
	if err != nil {
		return nil, err
	}
	c.valuesLog.Store(o.Values.newLog())
	c.rearm()
	return c, nil
}

func (c *Cache) now() cache.Millis { return cache.Millis(c.o.Now().UnixMilli()) }

func (c *Cache) expired(at cache.Millis) bool { return at <= c.now() }

// cacheLog is the Cache as its log sees it.
type cacheLog Cache

// Admit implements keyedState.
func (c *cacheLog) Admit(b *storage.Batch, next storage.Offset) error {
	switch u := b.User.(type) {
	case *CacheWrite:
		return c.state.Admit(&u.op, next)
	case *projection.Copy:
		return c.state.AdmitCopy(u)
	}
	return nil
}

// Apply implements keyedState.
func (c *cacheLog) Apply(rec *segment.Record) error {
	if err := c.state.Apply(rec); err != nil {
		return err
	}
	// A copy is of a value that nobody has asked for lately, or that is kept already
	// under its old place.
	if id := c.valuesLog.Load(); id != 0 {
		if e, err := cache.DecodeEntry(rec.Payload); err == nil && !e.Delete && !e.Copied {
			c.o.Values.put(valueKey{id, rec.Offset}, e.Value)
		}
	}
	return nil
}

// Revert implements keyedState.
func (c *cacheLog) Revert(next storage.Offset) {
	c.state.Revert(next)
	// Places are given out again. None of them was applied, so nothing is kept of them;
	// it costs little not to depend on that.
	if c.valuesLog.Load() != 0 {
		c.valuesLog.Store(c.o.Values.newLog())
	}
}

// Configure changes what may change while the shard is open.
func (c *Cache) Configure(l cache.Limits) { c.state.SetLimits(l) }

// Counters are those of the cache.
func (c *Cache) Counters() *CacheCounters { return c.counters }

// Sums are the keys and the bytes of their records, expired ones included until their
// deletes are written.
func (c *Cache) Sums() (keys, bytes int64) { return c.state.Sums() }

// Tail is one past the newest record that can be read.
func (c *Cache) Tail() storage.Offset { return storage.Offset(c.applied.Load()) }

// rearm sets the timer for the nearest deadline. Expiries are written at most once a
// second: a value reads as absent from its deadline on, whenever that is.
func (c *Cache) rearm() {
	next, ok := c.state.NextExpiry()
	e := &c.expiry
	e.Lock()
	defer e.Unlock()
	if !ok || c.serving() != nil {
		return
	}
	now := c.now()
	at := max(next, now+expiryPause)
	if e.timer != nil && e.at <= at {
		return
	}
	if e.timer != nil {
		e.timer.Stop()
	}
	e.at = at
	e.timer = time.AfterFunc(time.Duration(at-now)*time.Millisecond, func() { c.background.start(c.expire) })
}

const (
	expiryPause = 500  // milliseconds between two passes
	expiryBatch = 1024 // keys a pass
)

// expire writes the deletes of what has expired.
func (c *Cache) expire() {
	e := &c.expiry
	e.Lock()
	e.timer, e.at = nil, 0
	e.Unlock()
	c.submitAll(cache.Expire, c.state.Expired(c.now(), expiryBatch))
	c.Drive(true)
	c.rearm()
}

// submitAll takes in the leader's own deletes of keys. One that is refused is met again
// by the next pass.
func (c *Cache) submitAll(kind cache.Kind, keys []cache.Victim) {
	for _, v := range keys {
		w := &CacheWrite{op: cache.Op{Kind: kind, Key: v.Key, Version: v.Version}}
		if err := c.submit(w); err != nil {
			return
		}
	}
}

// Close refuses what is new with ErrClosed, finishes what is in flight, writes the
// snapshot of the index, and closes the log. Watches end with ErrClosed.
func (c *Cache) Close(ctx context.Context) error { return c.end(ctx, ErrClosed, true) }

// Delete is Close for a cache that was deleted.
func (c *Cache) Delete(ctx context.Context) error { return c.end(ctx, ErrDeleted, false) }

func (c *Cache) end(ctx context.Context, why error, keep bool) error {
	if !c.stopped.CompareAndSwap(nil, &why) {
		return nil
	}
	c.expiry.Lock()
	if c.expiry.timer != nil {
		c.expiry.timer.Stop()
	}
	c.expiry.Unlock()
	c.keyed.end()
	c.background.stop()
	c.watches.stop(why)
	var snapshot error
	if keep && c.failed.Load() == nil && c.log.Health().State == storage.StateServing {
		if snapshot = c.log.Sync(ctx); snapshot == nil {
			snapshot = c.state.Proj.SaveSnapshot(ctx, c.o.Storage.FS, c.dir, snapshotCodecCache, c.log)
		}
	}
	return errors.Join(snapshot, c.log.Close(ctx))
}
