package broker

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/wire"
)

const followBackoff = 200 * time.Millisecond

// follow applies the catalog's changes until the broker closes.
func (b *Broker) follow() {
	for {
		u, err := b.watch.Next(b.life)
		switch {
		case err == nil:
			b.apply(u)
		case b.life.Err() != nil || errors.Is(err, meta.ErrClosed):
			return
		default:
			// What is served goes on being served: only changes are not seen.
			b.o.Log.Warn("catalog cannot be followed", "error", err)
			select {
			case <-time.After(followBackoff):
			case <-b.life.Done():
				return
			}
		}
	}
}

// apply takes in one update. It opens and deletes nothing itself: workers do.
func (b *Broker) apply(u *meta.Update) {
	streams, caches := newChanges(b.table.Load()), newChanges(b.caches.Load())
	for i := range u.Changes {
		ch := &u.Changes[i]
		switch {
		case ch.Tenant != nil:
			var own meta.Quota
			if !ch.Deleted {
				own = ch.Tenant.Quota
			}
			b.configureTenant(ch.Tenant.ID, own)
		case ch.Stream != nil:
			d := ch.Stream
			streams.take(key{d.Tenant, d.Namespace, d.Name}, ch.Deleted, func(old *Stream) *Stream {
				if old != nil && old.Meta().Incarnation == d.Incarnation {
					b.configure(old, d)
					return old
				}
				return b.newStream(d)
			})
		case ch.Cache != nil:
			d := ch.Cache
			caches.take(key{d.Tenant, d.Namespace, d.Name}, ch.Deleted, func(old *Cache) *Cache {
				if old != nil && old.Meta().Incarnation == d.Incarnation {
					old.configure(d)
					return old
				}
				return b.newCache(d)
			})
		}
	}
	if u.Reset {
		streams.dropUnlisted()
		caches.dropUnlisted()
	}
	var gone, made []*resource
	for _, s := range streams.gone {
		gone = append(gone, &s.resource)
	}
	for _, c := range caches.gone {
		gone = append(gone, &c.resource)
	}
	for _, r := range gone {
		r.deleted.Store(true)
	}
	if len(streams.changes) > 0 {
		b.table.Store(b.table.Load().with(streams.changes))
	}
	if len(caches.changes) > 0 {
		b.caches.Store(b.caches.Load().with(caches.changes))
	}
	for _, s := range streams.made {
		made = append(made, &s.resource)
	}
	for _, c := range caches.made {
		made = append(made, &c.resource)
	}
	b.mu.Lock()
	for _, r := range gone {
		b.mu.last[r.lastKey()] = r.gone
	}
	for _, r := range made {
		r.before = b.mu.last[r.lastKey()]
	}
	b.mu.Unlock()
	for _, r := range gone {
		b.delete(r)
	}
	for _, r := range made {
		b.open(r)
	}
	b.changed()
}

// changes gathers what one update does to a table.
type changes[T any] struct {
	now        *table[T]
	changes    map[key]*T
	listed     map[key]bool
	gone, made []*T
}

func newChanges[T any](now *table[T]) *changes[T] {
	return &changes[T]{now: now, changes: map[key]*T{}, listed: map[key]bool{}}
}

// take takes in one definition: make gives what serves it, which is old if that still
// does.
func (c *changes[T]) take(k key, deleted bool, make func(old *T) *T) {
	old, changed := c.changes[k]
	if !changed {
		old = c.now.get(k)
	}
	if deleted {
		c.remove(k, old)
		return
	}
	c.listed[k] = true
	next := make(old)
	if next == old {
		return
	}
	c.remove(k, old)
	c.changes[k] = next
	c.made = append(c.made, next)
}

func (c *changes[T]) remove(k key, old *T) {
	if old == nil {
		return
	}
	c.changes[k] = nil
	if i := slices.Index(c.made, old); i >= 0 {
		c.made = slices.Delete(c.made, i, i+1) // came and went within one update
		return
	}
	c.gone = append(c.gone, old)
}

// dropUnlisted removes what a complete listing did not name.
func (c *changes[T]) dropUnlisted() {
	c.now.each(func(k key, v *T) {
		if _, changed := c.changes[k]; !changed && !c.listed[k] {
			c.remove(k, v)
		}
	})
}

func (b *Broker) newStream(def *meta.Stream) *Stream {
	s := new(Stream)
	s.init(b, s, kindStream, key{def.Tenant, def.Namespace, def.Name}, def.Shards)
	s.meta.Store(def)
	s.routing, _ = wire.ParseRouting(string(def.Routing))
	return s
}

// configure takes in what may change of a stream that is served.
func (b *Broker) configure(s *Stream, def *meta.Stream) {
	s.meta.Store(def)
	for i := range s.shards {
		if p := s.partition(i); p != nil {
			p.Configure(b.recordLimit(def), def.StorePublisher, b.retention(def))
		}
	}
}

// reportOrphans names the directories that no stream or cache of the catalog has.
func (b *Broker) reportOrphans() {
	known := map[string]bool{asideDir: true, trashDir: true, madeDir: true, cachesDir: true, countersDir: true, "groups": true, "meta": true}
	b.Streams(func(s *Stream) {
		for i := range s.shards {
			known[s.shards[i].dirName()] = true
		}
	})
	b.reportUnknown(b.o.Root, known, "directory belongs to no stream and is left alone")
	cached := map[string]bool{asideDir: true, trashDir: true}
	b.Caches(func(c *Cache) {
		for i := range c.shards {
			cached[c.shards[i].dirName()] = true
		}
	})
	for _, root := range []string{b.cachesRoot(), b.countersRoot()} {
		b.reportUnknown(root, cached, "directory belongs to no cache and is left alone")
	}
}

func (b *Broker) reportUnknown(root string, known map[string]bool, what string) {
	entries, err := b.o.FS.ReadDir(root)
	if err != nil {
		if root == b.o.Root || !errors.Is(err, fs.ErrNotExist) {
			b.o.Log.Warn("root of shards cannot be listed", "dir", root, "error", err)
		}
		return
	}
	for _, e := range entries {
		if e.IsDir() && !known[e.Name()] {
			dir := filepath.Join(root, e.Name())
			b.o.Log.Warn(what, "dir", dir)
			if b.o.Events.OnOrphan != nil {
				b.o.Events.OnOrphan(dir)
			}
		}
	}
}
