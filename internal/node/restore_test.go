package node

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/archive"
	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// smallBackup is a stream of one shard with groups, and a cache with counters.
func smallBackup(t *testing.T) *archive.Archive {
	t.Helper()
	d := archive.Definitions{
		Tenants:    []meta.Tenant{{ID: "t"}},
		Namespaces: []meta.Namespace{{Tenant: "t", Name: "n"}},
		Streams:    []meta.Stream{meta.Stream{Tenant: "t", Namespace: "n", Name: "s", Durable: true}.WithDefaults()},
		Caches:     []meta.Cache{meta.Cache{Tenant: "t", Namespace: "n", Name: "c", Durable: true}.WithDefaults()},
	}
	var out bytes.Buffer
	copies := map[archive.Kind]*storage.Copy{}
	kinds := []archive.Kind{archive.KindGroups, archive.KindStream, archive.KindCache, archive.KindCounters}
	total := int64(0)
	for _, kind := range kinds {
		l, err := storage.Open(t.Context(), t.TempDir(), storage.Options{Fsync: storage.None, SegmentBytes: 1 << 10})
		require.NoError(t, err)
		defer func() { require.NoError(t, l.Close(t.Context())) }()
		for range 12 {
			require.NoError(t, l.Append(t.Context(), &storage.Batch{Payloads: [][]byte{bytes.Repeat([]byte(kind), 20)}}))
		}
		c, err := l.Copy(t.Context(), l.Stable())
		require.NoError(t, err)
		defer c.Release()
		for _, s := range c.Segments {
			total += s.Bytes
		}
		copies[kind] = c
	}
	w, err := archive.NewWriter(&out, archive.Origin{CreatedAt: time.Now()}, d, total)
	require.NoError(t, err)
	for _, kind := range kinds {
		name := archive.LogName{Kind: kind, Tenant: "t", Namespace: "n", Name: "s"}
		if kind == archive.KindCache || kind == archive.KindCounters {
			name.Name = "c"
		}
		require.NoError(t, w.Log(t.Context(), name, time.Now(), copies[kind]))
	}
	require.NoError(t, w.Close())
	a, err := archive.Open(t.Context(), bytes.NewReader(out.Bytes()), int64(out.Len()), archive.Options{})
	require.NoError(t, err)
	return a
}

// onto restores onto a disk of the test's; keys are kept on the host's, so none are made.
func onto(t *testing.T, fsys vfs.FS, a *archive.Archive) error {
	r := &restore{Archive: a, dir: "/data", fs: fsys, progress: func(int64) {}, keys: func(string, []meta.Tenant) error { return nil }}
	return r.run(t.Context())
}

// shardFiles are the segments and the incarnations' names on a disk: what is the same in
// every restore of one backup.
func shardFiles(d *disk.Strict) map[string]string {
	out := map[string]string{}
	for name, content := range d.Files() {
		switch {
		case !strings.Contains(name, "data/streams/"):
		case strings.HasSuffix(name, ".log"):
			out[name] = content
		case strings.HasSuffix(name, "/incarnation"):
			out[name] = ""
		}
	}
	return out
}

// The power is cut after every operation of a restore. What is left is as empty as it was,
// or refused by a broker, or whole; and the next restore makes it whole.
func TestPowerCutsInARestore(t *testing.T) {
	a := smallBackup(t)
	whole := disk.NewStrict(1, disk.Options{})
	require.NoError(t, onto(t, whole, a))
	want := shardFiles(whole)
	require.Equal(t, a.Totals().Segments+3, len(want))
	for seed := range uint64(20) { // what was restored stays
		after := whole.Fork(seed).Crash()
		require.True(t, maps.Equal(want, shardFiles(after)), "seed %d", seed)
		data, err := OpenDataDir(after, "/data", "boot")
		require.NoError(t, err)
		require.False(t, data.Fresh || data.Rebuilt, "seed %d", seed)
		require.NoError(t, data.Close(true))
	}
	ops := whole.Ops()
	refused, empty, done := 0, 0, 0
	for n := range ops {
		d := disk.NewStrict(uint64(n), disk.Options{})
		d.StopAfter(n)
		require.Error(t, onto(t, d, a), "operation %d of %d", n, ops)
		after := d.Crash()
		data, err := OpenDataDir(after.Fork(1), "/data", "boot")
		switch {
		case errors.Is(err, ErrRestoring):
			refused++
		case err == nil && data.Fresh, errors.Is(err, ErrForeign):
			empty++
			require.Empty(t, shardFiles(after), "operation %d of %d", n, ops)
		case err == nil:
			done++
			require.False(t, data.Rebuilt, "operation %d of %d: there is no identity", n, ops)
			require.True(t, maps.Equal(want, shardFiles(after)), "operation %d of %d", n, ops)
			continue
		default:
			t.Fatalf("operation %d of %d: %v", n, ops, err)
		}
		require.NoError(t, onto(t, after, a), "again after operation %d of %d", n, ops)
		require.True(t, maps.Equal(want, shardFiles(after)), "again after operation %d of %d", n, ops)
		_, err = after.Stat("/data/" + restoringName)
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.ErrorIs(t, onto(t, after, a), ErrNotEmpty)
	}
	t.Logf("%d operations: %d refused, %d empty, %d whole", ops, refused, empty, done)
	require.Greater(t, refused, ops/2)
	require.Positive(t, empty)
}

// A disk that has no room for a backup is told before anything is made: no lock in a
// directory that is there, and no directory that is not.
func TestARestoreNeedsRoom(t *testing.T) {
	a := smallBackup(t)
	for _, there := range []string{"/data", "/"} {
		d := disk.NewStrict(1, disk.Options{})
		require.NoError(t, d.MkdirAll(there))
		err := onto(t, fullDisk{d}, a)
		var e *DirError
		require.ErrorAs(t, err, &e)
		require.ErrorContains(t, err, "has room for 10 bytes")
		entries, err := d.ReadDir(there)
		require.NoError(t, err)
		require.Empty(t, entries)
	}
}

type fullDisk struct{ vfs.FS }

func (fullDisk) Usage(string) (vfs.Usage, error) { return vfs.Usage{Total: 1000, Free: 10}, nil }

// A restored log is opened as one that was there before: it says what had been on the
// device, and what is cut from its end afterwards is noticed.
func TestARestoredLogHasItsMark(t *testing.T) {
	a := smallBackup(t)
	d := disk.NewStrict(1, disk.Options{})
	require.NoError(t, onto(t, d, a))
	after := d.Crash()
	for i := range a.Logs {
		l := &a.Logs[i]
		dir := broker.RestoreDir("/data/streams", l.LogName)
		require.Greater(t, len(l.Segments), 1)
		last := l.Segments[len(l.Segments)-1]
		mark, ok, err := segment.ReadMark(after, dir)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, segment.Mark{Segment: last.ID, SyncedBytes: last.Bytes}, mark)

		open := func(on vfs.FS) storage.RecoveryReport {
			log, err := storage.Open(t.Context(), dir, storage.Options{FS: on, Fsync: storage.None})
			require.NoError(t, err)
			require.NoError(t, log.Close(t.Context()))
			return log.Recovery()
		}
		cut := after.Fork(1)
		require.NoError(t, cut.Remove(filepath.Join(dir, segment.SegmentName(last.ID))))
		require.True(t, open(cut).MayHaveLost, "%s without its end", l.LogName)
		report := open(after.Fork(2))
		require.False(t, report.MarkMissing || report.MayHaveLost, l.LogName)
		require.Zero(t, report.TruncatedBytes)
		require.Equal(t, l.Next, report.Next)
	}
}
