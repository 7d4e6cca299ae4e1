package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/felixlog/felix/client"
)

// benchMemory is the case of what the broker keeps in memory. It has a broker of its
// own, and with the keys it is meant for takes minutes, so it runs only when asked for.
const benchMemory = "memory"

// benchKeyBytes is the length of memory's keys.
const benchKeyBytes = 40

// benchMemoryFigures are what the memory case found.
type benchMemoryFigures struct {
	Keys int `json:"keys"`
	// RestMiB is what a broker has in memory that has just started and holds nothing.
	RestMiB float64 `json:"rest_mib"`
	// HeapPerKey is by how many bytes a key made the live heap grow, the key's own
	// bytes included.
	HeapPerKey float64 `json:"heap_bytes_per_key"`
	// ResidentMiB is the process at the end, garbage not yet collected included.
	ResidentMiB float64 `json:"resident_mib"`
	// GCShare is what garbage collection took of the broker's CPU time, while the keys
	// were put and then read and replaced.
	GCShare float64 `json:"gc_share_of_cpu"`
}

// memory starts a broker, fills a cache and uses it for a while. The row's rate is that
// of the puts that filled it.
func (e *environment) memory(ctx context.Context, f *benchFlags, mode, dir string) (row benchRow, err error) {
	row = benchRow{Name: benchMemory, Params: benchParams{Payload: f.payload, Fsync: mode, Shards: int(f.shards), Runs: 1}}
	// Values kept in memory have a bound of their own, and are not what a key costs.
	broker, err := startChild(ctx, filepath.Join(dir, benchMemory), nil, "--storage-min-free", "0", "--storage-fsync-mode", mode, "--caches-values-bytes", "0")
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, broker.Stop()) }()
	b := &bench{environment: broker.use(e), f: f, fsync: mode, payload: benchPayload(f.payload), scrape: broker.HTTP}
	if err := b.awaitReady(ctx, broker.HTTP); err != nil {
		return row, err
	}
	found := &benchMemoryFigures{Keys: f.keys, RestMiB: residentMiB(broker.Pid())}
	c, _, err := b.dial(ctx)
	if err != nil {
		return row, err
	}
	defer c.Close()
	b.client = c
	if err := b.createCache(ctx, benchMemory, f.shards, mode); err != nil {
		return row, err
	}
	before := b.metrics(ctx)
	began := time.Now()
	key := func(n int) string { return fmt.Sprintf("%0*d", benchKeyBytes, n) }
	k := c.Cache(benchMemory)
	if err := b.fillCache(ctx, k, f.keys, key); err != nil {
		return row, err
	}
	row.benchFigures = figures(f.keys, time.Since(began), nil)
	if err := b.useKeys(ctx, k, key); err != nil {
		return row, err
	}
	after := b.metrics(ctx)
	found.HeapPerKey = (after(heapLive) - before(heapLive)) / float64(f.keys)
	if used := after(cpuTotal) - before(cpuTotal); used > 0 {
		found.GCShare = (after(cpuOfGC) - before(cpuOfGC)) / used
	}
	found.ResidentMiB = residentMiB(broker.Pid())
	row.Memory = found
	return row, nil
}

// The series of the memory case. What lived is as the last collection found it.
const (
	heapLive    = "go_gc_heap_live_bytes"
	collections = "go_gc_duration_seconds_count"
	cpuOfGC     = "go_cpu_classes_gc_total_cpu_seconds_total"
	cpuTotal    = "process_cpu_seconds_total"
)

// useKeys reads and replaces values, for the time of a run and until the broker has
// collected its garbage from start to end with all keys there.
func (b *bench) useKeys(ctx context.Context, k *client.Cache, key func(int) string) error {
	due := b.metrics(ctx)(collections) + 2
	for round := 0; round == 0 || b.metrics(ctx)(collections) < due; round++ {
		_, _, err := closed(64, b.f.seconds, func(w int) error {
			at := key(rand.IntN(b.f.keys))
			if w%2 == 0 {
				return k.Put(ctx, at, b.payload)
			}
			_, _, err := k.Get(ctx, at)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
