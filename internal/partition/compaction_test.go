package partition

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/storage"
)

// compactAll rewrites every segment the cache has now, whether it is worth it or not.
func compactAll(t *testing.T, c *Cache) {
	t.Helper()
	for end := c.Log().Next(); c.Log().Head() < end; {
		res, err := c.compact.Segment(deadline(t))
		require.NoError(t, err)
		if res.Bytes == 0 {
			return // there is nothing
		}
	}
}

// A log without records, with deletes alone, or with a delete at its end is compacted in
// the end, and those who read it from its start see what lives and then what comes.
func TestCompactionOfDeletesEndsAndWatchersGoOn(t *testing.T) {
	for name, tc := range map[string]struct {
		fill func(c *Cache)
		live []string
	}{
		"empty":         {func(*Cache) {}, nil},
		"deletes alone": {func(c *Cache) { put(t, c, "a", "1"); remove(t, c, "a") }, nil},
		"delete at end": {func(c *Cache) { put(t, c, "a", "1"); put(t, c, "b", "2"); remove(t, c, "b") }, []string{"a=1"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c := openCache(t, dir, CacheOptions{})
			tc.fill(c)
			compactAll(t, c)
			compactAll(t, c)
			w, err := c.Watch(WatchOptions{Prefix: true, From: 0, HasFrom: true})
			require.NoError(t, err)
			defer w.Close()
			put(t, c, "new", "3")
			var got []string
			for want := append(tc.live, "new=3"); len(got) < len(want); {
				require.NoError(t, w.Next(deadline(t), func(e *WatchEvent) error {
					require.False(t, e.Deleted)
					got = append(got, string(e.Key)+"="+string(e.Value))
					return nil
				}))
			}
			require.Equal(t, append(tc.live, "new=3"), got)
			closeCache(t, c)
			c = openCache(t, dir, CacheOptions{})
			defer closeCache(t, c)
			keys, _ := c.Sums()
			require.Equal(t, int64(len(tc.live)+1), keys)
		})
	}
}

// A copy keeps the deadline of its value: compaction makes nothing live longer, with the
// index from its snapshot or from the log.
func TestACopyExpiresWhenItsValueDoes(t *testing.T) {
	for _, snapshot := range []bool{true, false} {
		t.Run(fmt.Sprint("snapshot ", snapshot), func(t *testing.T) {
			clock := new(cacheClock)
			clock.ms.Store(1_000_000)
			dir := t.TempDir()
			c := openCache(t, dir, CacheOptions{Now: clock.now})
			w := new(CacheWrite)
			require.NoError(t, w.Put([]byte("k"), []byte("v"), 2000, true, cache.Always, 0, c.Now()))
			require.NoError(t, c.Write(deadline(t), w))
			put(t, c, "stays", "w")
			compactAll(t, c)
			reopen := func() {
				closeCache(t, c)
				if !snapshot {
					require.NoError(t, os.Remove(filepath.Join(dir, projection.SnapshotName)))
				}
				c = openCache(t, dir, CacheOptions{Now: clock.now})
			}
			reopen()
			v, ok, err := c.Get(deadline(t), []byte("k"))
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, CacheValue{Value: []byte("v"), Version: w.Version, Expires: 1_002_000}, v)
			clock.ms.Add(3000)
			_, ok = get(t, c, "k")
			require.False(t, ok)
			reopen()
			_, ok = get(t, c, "k")
			require.False(t, ok)
			compactAll(t, c)
			_, ok = get(t, c, "stays")
			require.True(t, ok)
			closeCache(t, c)
		})
	}
}

// A segment that is gone from the middle of a log is an error that names it: compaction
// ends with it, and so does the next start; neither goes round in circles or serves the
// rest as if it were all.
func TestAMissingSegmentIsNamed(t *testing.T) {
	dir := t.TempDir()
	var told []error
	o := CacheOptions{Name: "t/n/c/0", CompactAbove: 1, CompactPace: 1 << 30, Storage: storage.Options{SegmentBytes: 16 << 10, Fsync: storage.None},
		OnError: func(_, _ string, err error) { told = append(told, err) }}
	c, err := OpenCache(deadline(t), dir, o)
	require.NoError(t, err)
	fill := func() {
		for i := range 200 {
			put(t, c, fmt.Sprint("k", i%40), strings.Repeat(fmt.Sprint(i), 100))
		}
	}
	for range 2 { // compacted twice, the offsets have holes
		fill()
		_, err := c.Compact(deadline(t))
		if !errors.Is(err, ErrCompacting) {
			require.NoError(t, err)
		}
	}
	fill()
	closeCache(t, c)
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	require.NoError(t, err)
	require.Greater(t, len(logs), 3)
	middle := logs[len(logs)/2]
	raw, err := os.ReadFile(middle)
	require.NoError(t, err)

	// Gone at a start.
	o.CompactAbove = 1 << 40
	require.NoError(t, os.Remove(middle))
	_, err = OpenCache(deadline(t), dir, o)
	require.ErrorAs(t, err, new(*storage.DamagedError))
	require.Regexp(t, `segment \d+ ends before offset \d+, segment \d+ begins at \d+`, err.Error())
	require.NoError(t, os.WriteFile(middle, raw, 0o600))

	// Gone while the shard is open.
	c, err = OpenCache(deadline(t), dir, o)
	require.NoError(t, err)
	require.NoError(t, os.Remove(middle))
	for err == nil && c.Log().Head() < c.Log().Next() {
		var res projection.CompactResult
		res, err = c.compact.Segment(deadline(t))
		require.True(t, err != nil || res.Bytes > 0, "compaction goes round in circles")
	}
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, strings.TrimSuffix(filepath.Base(middle), ".log"))
	put(t, c, "still", "writable")
	closeCache(t, c)

	require.Empty(t, told)
}
