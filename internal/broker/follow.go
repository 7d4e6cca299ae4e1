package broker

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/storage/segment"
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
	now := b.table.Load()
	changes := make(map[key]*Stream)
	current := func(k key) *Stream {
		if s, ok := changes[k]; ok {
			return s
		}
		return now.get(k)
	}
	var gone, made []*Stream
	remove := func(k key) {
		if s := current(k); s != nil {
			changes[k] = nil
			gone = append(gone, s)
		}
	}
	listed := make(map[key]bool)
	for i := range u.Changes {
		def := u.Changes[i].Stream
		if def == nil {
			continue
		}
		k := key{def.Tenant, def.Namespace, def.Name}
		if u.Changes[i].Deleted {
			remove(k)
			continue
		}
		listed[k] = true
		old := current(k)
		if old != nil && old.Meta().Incarnation == def.Incarnation {
			b.configure(old, def)
			continue
		}
		remove(k)
		s := b.newStream(k, def)
		changes[k] = s
		made = append(made, s)
	}
	if u.Reset {
		now.each(func(k key, _ *Stream) {
			if !listed[k] {
				remove(k)
			}
		})
	}
	for _, s := range gone {
		s.deleted.Store(true)
	}
	if len(changes) > 0 {
		b.table.Store(now.with(changes))
	}
	b.mu.Lock()
	for _, s := range gone {
		b.mu.last[s.key] = s.gone
	}
	for _, s := range made {
		s.before = b.mu.last[s.key]
	}
	b.mu.Unlock()
	for _, s := range gone {
		b.delete(s)
	}
	for _, s := range made {
		b.open(s)
	}
	b.changed()
}

func (b *Broker) newStream(k key, def *meta.Stream) *Stream {
	s := &Stream{broker: b, key: k, gone: make(chan struct{})}
	s.meta.Store(def)
	s.routing, _ = wire.ParseRouting(string(def.Routing))
	s.shards = make([]shard, def.Shards)
	for i := range s.shards {
		sh := &s.shards[i]
		sh.stream, sh.index = s, uint32(i)
		sh.name = fmt.Sprintf("%s/%s/%s/%d", k.tenant, k.namespace, k.name, i)
		sh.status.Store(&status{state: partition.Opening})
	}
	return s
}

// configure takes in what may change of a stream that is served.
func (b *Broker) configure(s *Stream, def *meta.Stream) {
	s.meta.Store(def)
	for i := range s.shards {
		if p := s.shards[i].status.Load().partition; p != nil {
			p.Configure(int(def.RecordLimit()), def.StorePublisher, b.retention(def))
		}
	}
}

func (b *Broker) dirName(sh *shard) string {
	k := sh.stream.key
	return segment.ShardDirName(k.tenant, k.namespace, k.name, sh.index)
}

// reportOrphans names the directories that no stream of the catalog has.
func (b *Broker) reportOrphans() {
	entries, err := b.o.FS.ReadDir(b.o.Root)
	if err != nil {
		b.o.Log.Warn("root of shards cannot be listed", "dir", b.o.Root, "error", err)
		return
	}
	known := map[string]bool{asideDir: true, trashDir: true, "caches": true, "counters": true, "groups": true, "meta": true}
	b.Streams(func(s *Stream) {
		for i := range s.shards {
			known[b.dirName(&s.shards[i])] = true
		}
	})
	for _, e := range entries {
		if e.IsDir() && !known[e.Name()] {
			dir := filepath.Join(b.o.Root, e.Name())
			b.o.Log.Warn("directory belongs to no stream and is left alone", "dir", dir)
			if b.o.Events.OnOrphan != nil {
				b.o.Events.OnOrphan(dir)
			}
		}
	}
}

// waitBefore waits until the directories of the stream that had the name are out of
// the way.
func (s *Stream) waitBefore(ctx context.Context) bool {
	if s.before == nil {
		return true
	}
	select {
	case <-s.before:
		return true
	case <-ctx.Done():
		return false
	}
}
