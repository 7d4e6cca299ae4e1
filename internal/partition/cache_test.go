package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/internal/counter"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
)

// cacheClock is a wall clock a test moves.
type cacheClock struct{ ms atomic.Int64 }

func (c *cacheClock) now() time.Time { return time.UnixMilli(c.ms.Load()) }

func openCache(t testing.TB, dir string, o CacheOptions) *Cache {
	t.Helper()
	o.Name = "t/n/c/0"
	if o.Storage.SegmentBytes == 0 {
		o.Storage.SegmentBytes = 32 << 10
	}
	if o.Values == nil {
		o.Values = NewValues(64 << 10) // so few that some are in memory and some are not
	}
	o.OnError = func(shard, what string, err error) { t.Errorf("%s: %s: %v", shard, what, err) }
	c, err := OpenCache(deadline(t), dir, o)
	require.NoError(t, err)
	return c
}

func closeCache(t testing.TB, c *Cache) {
	t.Helper()
	require.NoError(t, c.Close(deadline(t)))
}

func put(t testing.TB, c *Cache, key, value string) storage.Offset {
	t.Helper()
	w := new(CacheWrite)
	require.NoError(t, w.Put([]byte(key), []byte(value), 0, false, cache.Always, 0, c.Now()))
	require.NoError(t, c.Write(deadline(t), w))
	require.True(t, w.Applied)
	return w.Version
}

// remove deletes a key and returns what was there.
func remove(t testing.TB, c *Cache, key string) (string, bool) {
	t.Helper()
	w := new(CacheWrite)
	require.NoError(t, w.Delete([]byte(key), cache.Always, 0, c.Now()))
	require.NoError(t, c.Write(deadline(t), w))
	v, ok, err := c.Removed(deadline(t), w)
	require.NoError(t, err)
	return string(v), ok
}

func get(t testing.TB, c *Cache, key string) (string, bool) {
	t.Helper()
	v, ok, err := c.Get(deadline(t), []byte(key))
	require.NoError(t, err)
	return string(v.Value), ok
}

func TestACacheShardSurvivesARestart(t *testing.T) {
	for _, kill := range []bool{false, true} {
		t.Run(fmt.Sprint("kill ", kill), func(t *testing.T) {
			fs := disk.NewStrict(1, disk.Options{})
			dir := "/cache"
			require.NoError(t, fs.MkdirAll(dir))
			o := CacheOptions{Storage: storage.Options{FS: fs}}
			c := openCache(t, dir, o)
			version := put(t, c, "a", "1")
			put(t, c, "b", "2")
			old, had := remove(t, c, "b")
			require.True(t, had)
			require.Equal(t, "2", old)
			_, had = remove(t, c, "b")
			require.False(t, had)
			if kill {
				after := fs.Kill()
				require.Error(t, c.Close(deadline(t)))
				o.Storage.FS = after
			} else {
				closeCache(t, c)
			}
			c = openCache(t, dir, o)
			defer closeCache(t, c)
			v, ok, err := c.Get(deadline(t), []byte("a"))
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, CacheValue{Value: []byte("1"), Version: version}, v)
			_, ok = get(t, c, "b")
			require.False(t, ok, "a deleted key stays deleted")
		})
	}
}

func TestConditionsSeeWritesInFlight(t *testing.T) {
	c := openCache(t, t.TempDir(), CacheOptions{})
	defer closeCache(t, c)
	write := func(cond cache.Condition, version storage.Offset, value string) *CacheWrite {
		w := &CacheWrite{Done: func(*CacheWrite) {}}
		require.NoError(t, w.Put([]byte("k"), []byte(value), 0, false, cond, version, c.Now()))
		require.NoError(t, c.Submit(w))
		return w
	}
	first := write(cache.Absent, 0, "1")
	second := write(cache.Absent, 0, "2")
	third := write(cache.AtVersion, 0, "3") // the first is at offset 0
	fourth := write(cache.AtVersion, 0, "4")
	c.Drive(true)
	require.True(t, first.Applied)
	require.False(t, second.Applied)
	require.NoError(t, second.Err)
	require.Equal(t, storage.Offset(0), second.Version)
	require.True(t, third.Applied)
	require.False(t, fourth.Applied)
	require.Equal(t, third.Version, fourth.Version)
	v, _ := get(t, c, "k")
	require.Equal(t, "3", v)
}

func TestExpiryIsWrittenAsADelete(t *testing.T) {
	clock := new(cacheClock)
	clock.ms.Store(1_000_000)
	dir := t.TempDir()
	c := openCache(t, dir, CacheOptions{Now: clock.now})
	w := new(CacheWrite)
	require.NoError(t, w.Put([]byte("k"), []byte("v"), 1, true, cache.Always, 0, c.Now()))
	require.NoError(t, c.Write(deadline(t), w))
	watch, err := c.Watch(WatchOptions{Key: []byte("k")})
	require.NoError(t, err)
	defer watch.Close()
	_, ok := get(t, c, "k")
	require.True(t, ok)
	clock.ms.Add(1)
	_, ok = get(t, c, "k")
	require.False(t, ok, "absent from its deadline on, whenever its delete is written")
	require.NoError(t, watch.Next(deadline(t), func(e *WatchEvent) error {
		require.True(t, e.Deleted)
		return nil
	}))
	keys, _ := c.Sums()
	require.Zero(t, keys)
	closeCache(t, c)
	// A write is counted when it is answered, which may be after watchers saw it.
	require.Equal(t, uint64(1), c.Counters().Expired.Load())
}

// TestCompactionBesideWritesLosesNothing overwrites at random while compaction runs,
// closes or kills now and then, and compares with a map.
func TestCompactionBesideWritesLosesNothing(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 9))
	dir := t.TempDir()
	o := CacheOptions{CompactAbove: 1, CompactPace: 1 << 30, Storage: storage.Options{Fsync: storage.None}}
	c := openCache(t, dir, o)
	model := map[string]string{}
	for round := range 6 {
		for i := range 400 {
			key := fmt.Sprint("k", rnd.IntN(50))
			if rnd.IntN(5) == 0 {
				was, had := remove(t, c, key)
				want, has := model[key]
				require.Equal(t, has, had)
				require.Equal(t, want, was)
				delete(model, key)
			} else {
				model[key] = fmt.Sprint(round, i, strings.Repeat("x", rnd.IntN(300)))
				put(t, c, key, model[key])
			}
			if i%97 == 0 {
				if _, err := c.Compact(deadline(t)); !errors.Is(err, ErrCompacting) {
					require.NoError(t, err)
				}
			}
		}
		next := c.Log().Next()
		closeCache(t, c)
		c = openCache(t, dir, o)
		require.GreaterOrEqual(t, c.Log().Next(), next, "compaction does not rewind the offsets")
		for i := range 50 {
			key := fmt.Sprint("k", i)
			got, ok := get(t, c, key)
			want, has := model[key]
			require.Equal(t, has, ok)
			require.Equal(t, want, got)
		}
	}
	require.Positive(t, c.Log().Head())
	closeCache(t, c)
}

func TestWatch(t *testing.T) {
	c := openCache(t, t.TempDir(), CacheOptions{CompactAbove: 1})
	defer closeCache(t, c)
	put(t, c, "user:1", "a")
	put(t, c, "user:2", "b")
	put(t, c, "other", "c")
	put(t, c, "user:1", "d")

	collect := func(w *Watch, n int) (got []string) {
		for len(got) < n {
			require.NoError(t, w.Next(deadline(t), func(e *WatchEvent) error {
				if e.Deleted {
					got = append(got, fmt.Sprintf("%d -%s", e.Offset, e.Key))
				} else {
					got = append(got, fmt.Sprintf("%d %s=%s", e.Offset, e.Key, e.Value))
				}
				return nil
			}))
		}
		return got
	}
	start := func(o WatchOptions) *Watch {
		w, err := c.Watch(o)
		require.NoError(t, err)
		t.Cleanup(w.Close)
		return w
	}

	retained := start(WatchOptions{Key: []byte("user:"), Prefix: true, Retained: true})
	require.Equal(t, 2, retained.Retained())
	require.Equal(t, storage.Offset(4), retained.ResumeOffset())
	live := start(WatchOptions{Key: []byte("user:"), Prefix: true})
	replay := start(WatchOptions{Prefix: true, From: 1, HasFrom: true})
	put(t, c, "user:3", "e")
	remove(t, c, "user:2")
	require.Equal(t, []string{"1 user:2=b", "3 user:1=d", "4 user:3=e", "5 -user:2"}, collect(retained, 4))
	require.Equal(t, []string{"4 user:3=e", "5 -user:2"}, collect(live, 2))
	require.Equal(t, []string{"1 user:2=b", "2 other=c", "3 user:1=d", "4 user:3=e", "5 -user:2"}, collect(replay, 5))

	_, err := c.Watch(WatchOptions{Prefix: true, From: c.Tail() + 100, HasFrom: true}) // whatever compaction has appended
	require.ErrorAs(t, err, new(*InFutureError))
	_, err = c.Watch(WatchOptions{Key: nil})
	require.ErrorIs(t, err, cache.ErrKey)

	// After compaction the same start begins with the present values, at their versions,
	// and copies are no changes.
	for i := range 300 {
		put(t, c, "filler", strings.Repeat(fmt.Sprint(i), 100))
	}
	_, err = c.Compact(deadline(t))
	if !errors.Is(err, ErrCompacting) {
		require.NoError(t, err)
	}
	for c.Log().Head() == 0 {
		put(t, c, "filler", strings.Repeat("z", 1000))
		if _, err := c.Compact(deadline(t)); !errors.Is(err, ErrCompacting) {
			require.NoError(t, err)
		}
	}
	again := start(WatchOptions{Key: []byte("user:"), Prefix: true, From: 1, HasFrom: true})
	require.True(t, again.Resnapshot())
	put(t, c, "user:9", "f")
	got := collect(again, 3)
	require.Equal(t, []string{"3 user:1=d", "4 user:3=e"}, got[:2])
	require.True(t, strings.HasSuffix(got[2], " user:9=f"))

	// One that was not read meanwhile is told where to resume: behind the last change it
	// had, and no later than the next. Between them there may be copies of compaction.
	var lag *WatchLaggedError
	require.ErrorAs(t, live.Next(deadline(t), func(*WatchEvent) error { return nil }), &lag)
	require.GreaterOrEqual(t, lag.ResumeFrom, storage.Offset(6))
	var next storage.Offset
	_, err = fmt.Sscan(got[2], &next)
	require.NoError(t, err)
	require.LessOrEqual(t, lag.ResumeFrom, next)
}

func TestCacheBounds(t *testing.T) {
	c := openCache(t, t.TempDir(), CacheOptions{Limits: cache.Limits{MaxKeys: 2, Evict: true}, MaxValueBytes: 10})
	defer closeCache(t, c)
	w := new(CacheWrite)
	require.NoError(t, w.Put([]byte("a"), []byte("1"), 60_000, true, cache.Always, 0, c.Now()))
	require.NoError(t, c.Write(deadline(t), w))
	put(t, c, "b", "2")
	put(t, c, "c", "3")
	_, ok := get(t, c, "a")
	require.False(t, ok, "the one nearest to its expiry went")
	require.NoError(t, w.Put([]byte("d"), []byte("4"), 0, false, cache.Always, 0, c.Now()))
	require.ErrorIs(t, c.Write(deadline(t), w), cache.ErrFull)
	require.NoError(t, w.Put([]byte("b"), make([]byte, 11), 0, false, cache.Always, 0, c.Now()))
	require.ErrorAs(t, c.Write(deadline(t), w), new(*storage.RecordTooLargeError))
	v, _ := get(t, c, "b")
	require.Equal(t, "2", v)
	keys, more, err := c.Keys([]byte(""), []byte(""), 1)
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, keys)
	require.True(t, more)
	keys, more, err = c.Keys([]byte(""), []byte("b"), 10)
	require.NoError(t, err)
	require.Equal(t, []string{"c"}, keys)
	require.False(t, more)
}

func TestCountersSurviveRestartAndCompaction(t *testing.T) {
	dir := t.TempDir()
	o := CacheOptions{Name: "t/n/c/0", CompactAbove: 1, Storage: storage.Options{SegmentBytes: 8 << 10}}
	open := func() *Counter {
		c, err := OpenCounter(deadline(t), dir, o)
		require.NoError(t, err)
		return c
	}
	c := open()
	add := func(key string, delta int64, tag *counter.Tag) (int64, error) {
		a := &CounterAdd{Key: []byte(key), Delta: delta, Tag: tag}
		err := c.Add(deadline(t), a)
		return a.Sum, err
	}
	for i := range 1000 {
		sum, err := add("n", 2, &counter.Tag{Producer: 1, Sequence: uint64(i)})
		require.NoError(t, err)
		require.Equal(t, int64(2*(i+1)), sum)
	}
	compacted(t, c)
	require.NoError(t, c.Close(context.WithoutCancel(deadline(t))))
	c = open()
	require.Positive(t, c.Log().Head())
	sum, err := add("n", 2, &counter.Tag{Producer: 1, Sequence: 999})
	require.ErrorIs(t, err, counter.ErrRepeated)
	require.Equal(t, int64(2000), sum)
	sum, err = add("n", -2000, &counter.Tag{Producer: 1, Sequence: 1000})
	require.NoError(t, err)
	require.Zero(t, sum)
	_, ok, err := c.Get([]byte("never"))
	require.NoError(t, err)
	require.False(t, ok)
	require.NoError(t, c.Close(deadline(t)))
}

// TestKeysAreTheSmallest lists keys that were put in no order, page by page.
func TestKeysAreTheSmallest(t *testing.T) {
	c := openCache(t, t.TempDir(), CacheOptions{})
	defer closeCache(t, c)
	const n = 500
	for i := range n {
		put(t, c, fmt.Sprintf("k%03d", i*7%n), "v")
	}
	var got []string
	for after, more := "", true; more; {
		var keys []string
		var err error
		keys, more, err = c.Keys([]byte("k"), []byte(after), 3)
		require.NoError(t, err)
		got = append(got, keys...)
		after = keys[len(keys)-1]
	}
	require.Len(t, got, n)
	for i, k := range got {
		require.Equal(t, fmt.Sprintf("k%03d", i), k)
	}
}
