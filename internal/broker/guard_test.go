package broker

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/storage"
)

// An idle shard costs no goroutine and at most 16 KiB. FELIX_SHARDS=10000 for the full
// number.
func TestGuardIdleShardsCostNothing(t *testing.T) {
	shards := 200
	if n, err := strconv.Atoi(os.Getenv("FELIX_SHARDS")); err == nil {
		shards = n
	}
	w := newWorld(t)
	newDisk := func() *storage.Disk {
		require.NoError(t, os.MkdirAll(w.root, 0o700))
		d, err := storage.NewDisk(storage.DiskOptions{Dir: w.root, MaxOpenFiles: 128})
		require.NoError(t, err)
		return d
	}
	const perStream = 100
	def := durableStream("wide")
	def.Shards = perStream
	make := func(b *Broker) {
		for i := range shards / perStream {
			def.Name = "wide-" + strconv.Itoa(i)
			create(t, b, def)
		}
	}
	d := newDisk()
	b := w.open(func(o *Options) { o.Disk, o.Defaults.Preallocate = d, true })
	make(b)
	require.NoError(t, b.Close(context.Background()))
	require.NoError(t, d.Close())

	heap := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc + m.StackInuse)
	}
	d = newDisk()
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	goroutines, before, began := runtime.NumGoroutine(), heap(), time.Now()
	b = w.open(func(o *Options) { o.Disk, o.Defaults.Preallocate = d, true })
	took := time.Since(began)
	require.Equal(t, shards, b.Stats().Shards[partition.Active])
	each := (heap() - before) / shards
	t.Logf("%d shards: opened in %v, %d bytes each, %d goroutines more", shards, took, each, runtime.NumGoroutine()-goroutines)
	if !raceEnabled {
		require.LessOrEqual(t, each, 16<<10)
	}
	require.NoError(t, b.await(deadline(t), func() (bool, error) { return true, nil }))
	require.LessOrEqual(t, runtime.NumGoroutine()-goroutines, 8, "whatever the number of shards")
	var used int64
	require.NoError(t, filepath.WalkDir(w.root, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			used += info.Size()
		}
		return err
	}))
	require.LessOrEqual(t, used/int64(shards), int64(512), "bytes on disk of a shard without records")
}

// Many names cost finding one nothing.
func BenchmarkFindStream(b *testing.B) {
	w := newWorld(b)
	br := w.open(memoryOnly)
	for i := range 200 {
		create(b, br, meta.Stream{Tenant: "t1", Namespace: "ns", Name: "s" + strconv.Itoa(i)})
	}
	tenant, ns, name := []byte("t1"), []byte("ns"), []byte("s137")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := br.StreamBytes(tenant, ns, name); err != nil {
			b.Fatal(err)
		}
	}
}
