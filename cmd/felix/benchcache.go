package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/felixlog/felix/client"
)

// createCache makes a cache with the given durability.
func (e *environment) createCache(ctx context.Context, name string, shards uint32, fsync string) error {
	m, err := e.manager()
	if err != nil {
		return err
	}
	body := map[string]any{"cache": name, "display_name": name, "shards": shards, "replication_factor": 1, "consistency": "Leader", "fsync": fsync}
	return m.call(ctx, http.MethodPost, body, nil, e.cachePath(m)...)
}

// removeCache deletes the cache of the cache cases, if one was made.
func (b *bench) removeCache(ctx context.Context) error {
	if b.cache == "" {
		return nil
	}
	m, err := b.manager()
	if err != nil {
		return err
	}
	return m.call(ctx, http.MethodDelete, nil, nil, b.cachePath(m, b.cache)...)
}

// benchKey is the key of a number, of 16 bytes.
func benchKey(n int) string { return fmt.Sprintf("key:%012d", n) }

// fillers is how many puts of a fill are in flight.
const fillers = 256

// fillCache puts a value under the keys of the numbers below n.
func (b *bench) fillCache(ctx context.Context, k *client.Cache, n int, key func(int) string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var filling sync.WaitGroup
	for range min(fillers, n) {
		filling.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				if err := k.Put(ctx, key(int(i)), b.payload); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	filling.Wait()
	return context.Cause(ctx)
}

// filled is the cache of the cache cases, with all its keys.
func (b *bench) filled(ctx context.Context) (*client.Cache, error) {
	if b.cache == "" {
		name := "bench-" + b.fsync
		if err := b.createCache(ctx, name, b.f.shards, b.fsync); err != nil {
			return nil, err
		}
		b.cache = name
		if err := b.fillCache(ctx, b.client.Cache(name), b.f.keys, benchKey); err != nil {
			return nil, err
		}
	}
	k := b.client.Cache(b.cache)
	// The first requests connect.
	for i := range min(b.f.keys, 64) {
		if _, _, err := k.Get(ctx, benchKey(i)); err != nil {
			return nil, err
		}
	}
	b.begin(ctx)
	return k, nil
}

// cacheGets reads keys drawn evenly from n goroutines, each waiting for its value.
func cacheGets(n int) func(*bench, context.Context) (benchFigures, int, error) {
	return func(b *bench, ctx context.Context) (benchFigures, int, error) {
		k, err := b.filled(ctx)
		if err != nil {
			return benchFigures{}, 0, err
		}
		return closed(n, b.f.seconds, func(int) error {
			key := benchKey(rand.IntN(b.f.keys))
			v, ok, err := k.Get(ctx, key)
			if err == nil && (!ok || len(v.Data) != len(b.payload)) {
				err = fmt.Errorf("key %s: found %t, %d bytes of %d", key, ok, len(v.Data), len(b.payload))
			}
			return err
		})
	}
}

// cachePuts replaces the values of keys drawn evenly.
func cachePuts(n int) func(*bench, context.Context) (benchFigures, int, error) {
	return func(b *bench, ctx context.Context) (benchFigures, int, error) {
		k, err := b.filled(ctx)
		if err != nil {
			return benchFigures{}, 0, err
		}
		return closed(n, b.f.seconds, func(int) error { return k.Put(ctx, benchKey(rand.IntN(b.f.keys)), b.payload) })
	}
}
