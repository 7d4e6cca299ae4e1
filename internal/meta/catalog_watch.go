package meta

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
)

// Change is one typed change. Exactly one pointer is set; when Deleted, it holds the
// name alone (and nothing but the name may be read from it).
type Change struct {
	Deleted    bool
	Version    Version
	Tenant     *Tenant
	Namespace  *Namespace
	Stream     *Stream
	Cache      *Cache
	Node       *Node
	Assignment *Assignment
}

// Update is what one Next hands out. After a Reset, Changes is everything that exists,
// parents before children; what is not in it is gone.
type Update struct {
	Reset   bool
	Version Version
	Changes []Change
}

// Watch follows the catalog. The first Next is a Reset with all there is, later ones
// are the changes of one version each; when the store's history is gone or the store
// was restored, a Reset comes again. One reader at a time.
type Watch struct {
	catalog *Catalog
	watcher Watcher // the reader's

	mu struct {
		sync.Mutex
		current Watcher // what Close must close
		closed  bool
	}
}

// Watch begins to follow the catalog. Close it.
func (c *Catalog) Watch(ctx context.Context) (*Watch, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return &Watch{catalog: c}, nil
}

// Next waits for the next update. ErrUnavailable may be retried: nothing is lost. Any
// other error but the context's ends the watch.
func (w *Watch) Next(ctx context.Context) (*Update, error) {
	for {
		if w.watcher == nil {
			u, err := w.reset(ctx)
			if errors.Is(err, ErrCompacted) {
				continue
			}
			return u, err
		}
		events, err := w.watcher.Next(ctx)
		if errors.Is(err, ErrCompacted) {
			w.watcher.Close()
			w.watcher = nil
			continue
		}
		if err != nil {
			return nil, err
		}
		u := &Update{Version: events[0].Version}
		for _, e := range events {
			ch, ok, err := typed(e)
			if err != nil {
				return nil, err
			}
			if ok {
				u.Changes = append(u.Changes, ch)
			}
		}
		if len(u.Changes) > 0 {
			return u, nil
		}
	}
}

// Close ends the watch; a waiting Next returns ErrClosed.
func (w *Watch) Close() {
	w.mu.Lock()
	current := w.mu.current
	w.mu.closed = true
	w.mu.Unlock()
	if current != nil {
		current.Close()
	}
}

func (w *Watch) reset(ctx context.Context) (*Update, error) {
	page, err := w.catalog.store.List(ctx, catalogPrefix, "", 0)
	if err != nil {
		return nil, fmt.Errorf("read catalog: %w", err)
	}
	u := &Update{Reset: true, Version: page.Version}
	for _, prefix := range []string{tenantPrefix, namespacePrefix, streamPrefix, cachePrefix, nodePrefix, assignmentPrefix} {
		for _, e := range page.Entries {
			if !strings.HasPrefix(e.Key, prefix) {
				continue
			}
			ch, _, err := typed(Event{Key: e.Key, Value: e.Value, Version: e.Version})
			if err != nil {
				return nil, err
			}
			u.Changes = append(u.Changes, ch)
		}
	}
	watcher, err := w.catalog.store.Watch(ctx, catalogPrefix, page.Version)
	if err != nil {
		return nil, fmt.Errorf("watch catalog: %w", err)
	}
	w.mu.Lock()
	closed := w.mu.closed
	w.mu.current = watcher
	w.mu.Unlock()
	if closed {
		watcher.Close()
		return nil, ErrClosed
	}
	w.watcher = watcher
	return u, nil
}

// typed reads an event. ok is false for a key of no known kind, which a newer version
// may have written.
func typed(e Event) (ch Change, ok bool, err error) {
	ch = Change{Deleted: e.Deleted, Version: e.Version}
	kind, rest, _ := strings.Cut(strings.TrimPrefix(e.Key, catalogPrefix), "/")
	parts := strings.Split(rest, "/")
	part := func(i int) string {
		if i < len(parts) {
			return parts[i]
		}
		return ""
	}
	switch kind {
	case "tenant":
		ch.Tenant = &Tenant{ID: part(0)}
		err = fill(&ch.Tenant, e)
	case "namespace":
		ch.Namespace = &Namespace{Tenant: part(0), Name: part(1)}
		err = fill(&ch.Namespace, e)
	case "stream":
		ch.Stream = &Stream{Tenant: part(0), Namespace: part(1), Name: part(2)}
		err = fill(&ch.Stream, e)
	case "cache":
		ch.Cache = &Cache{Tenant: part(0), Namespace: part(1), Name: part(2)}
		err = fill(&ch.Cache, e)
	case "node":
		ch.Node = &Node{ID: NodeID(part(0))}
		err = fill(&ch.Node, e)
	case "assignment":
		ch.Assignment = &Assignment{Shard: ShardKey{Kind: ShardKind(part(0)), Name: Name{part(1), part(2), part(3)}, Shard: shardNumber(part(4))}}
		err = fill(&ch.Assignment, e)
	default:
		return Change{}, false, nil
	}
	return ch, true, err
}

func fill[T any](into **T, e Event) error {
	if e.Deleted {
		return nil
	}
	v, err := decode[T](e.Key, e.Value)
	if err != nil {
		return err
	}
	*into = v
	return nil
}

func shardNumber(s string) uint32 {
	var n uint32
	for _, c := range s {
		if c < '0' || c > '9' {
			return 0
		}
		n = n*10 + uint32(c-'0')
	}
	return n
}
