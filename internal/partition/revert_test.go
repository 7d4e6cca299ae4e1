package partition

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/internal/counter"
	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
)

// These tests have a write fail while writes before it are in the log and not applied:
// an earlier Done is slow, and what is stable waits behind it. What the failure takes
// back is the failed write alone.

// slowDone is a Done that is held up.
type slowDone struct{ entered, release chan struct{} }

func newSlowDone() slowDone { return slowDone{make(chan struct{}), make(chan struct{})} }

func (s slowDone) done() {
	close(s.entered)
	<-s.release
}

func openFaulty[S any](t *testing.T, open func(storage.Options) (S, error)) (S, *disk.Faulty) {
	faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
	require.NoError(t, faulty.MkdirAll("/shard"))
	s, err := open(storage.Options{FS: faulty, FsyncInterval: time.Hour})
	require.NoError(t, err)
	return s, faulty
}

func openFaultyCache(t *testing.T) (*Cache, *disk.Faulty) {
	c, faulty := openFaulty(t, func(o storage.Options) (*Cache, error) {
		return OpenCache(deadline(t), "/shard", CacheOptions{Name: "c", Storage: o})
	})
	t.Cleanup(func() { require.NoError(t, c.Close(deadline(t))) })
	return c, faulty
}

// submitPut takes a put in and has done run with its outcome.
func submitPut(t *testing.T, c *Cache, key, value string, cond cache.Condition, done func()) *CacheWrite {
	w := &CacheWrite{Done: func(*CacheWrite) { done() }}
	require.NoError(t, w.Put([]byte(key), []byte(value), 0, false, cond, 0, c.Now()))
	require.NoError(t, c.Submit(w))
	return w
}

func TestAFailedWriteLeavesEarlierPutsInFlight(t *testing.T) {
	c, faulty := openFaultyCache(t)
	slow := newSlowDone()
	submitPut(t, c, "z", "0", cache.Always, slow.done)
	go c.Drive(true)
	<-slow.entered

	done := make(chan struct{}, 3)
	answered := func() { done <- struct{}{} }
	first := submitPut(t, c, "k", "first", cache.Absent, answered)
	c.Drive(true) // written, not applied
	rule := faulty.Add(disk.Rule{Op: disk.OpWrite, Path: "*.log", Action: disk.NoSpace(0)})
	failed := submitPut(t, c, "x", "fails", cache.Always, answered)
	c.Drive(true)
	require.Equal(t, 1, rule.Hits())
	second := submitPut(t, c, "k", "second", cache.Absent, answered)
	c.Drive(true)
	close(slow.release)
	for range 3 {
		<-done
	}
	require.NoError(t, first.Err)
	require.True(t, first.Applied)
	require.ErrorIs(t, failed.Err, storage.ErrNotWritten)
	require.NoError(t, second.Err)
	require.False(t, second.Applied, "two puts of an absent key were acknowledged")
	require.Equal(t, first.Version, second.Version)
	keys, _ := c.Sums()
	require.Equal(t, int64(2), keys)
}

// TestAFailedWriteLetsNoCopyOvertakeAPut appends, after the failure, what compaction
// appends for the record that the put in flight replaces.
func TestAFailedWriteLetsNoCopyOvertakeAPut(t *testing.T) {
	c, faulty := openFaultyCache(t)
	put(t, c, "k", "old")
	var page storage.Page
	require.NoError(t, c.log.Read(deadline(t), &page, storage.ReadRange{From: 0, End: 1}))
	ref, ok := c.state.Proj.Get([]byte("k"))
	require.True(t, ok)
	copied, err := cache.Codec{}.Copy(&page.Records[0], projection.Change{Key: []byte("k")}, ref)
	require.NoError(t, err)

	slow := newSlowDone()
	submitPut(t, c, "z", "0", cache.Always, slow.done)
	go c.Drive(true)
	<-slow.entered
	done := make(chan struct{}, 3)
	answered := func() { done <- struct{}{} }
	w := submitPut(t, c, "k", "new", cache.Always, answered)
	c.Drive(true)
	faulty.Add(disk.Rule{Op: disk.OpWrite, Path: "*.log", Action: disk.NoSpace(0)})
	submitPut(t, c, "x", "fails", cache.Always, answered)
	c.Drive(true)
	b := &storage.Batch{
		Payloads: [][]byte{copied}, UseReserve: true,
		User: &projection.Copy{Key: []byte("k"), From: 0}, Done: func(*storage.Batch) { answered() },
	}
	require.NoError(t, c.log.Enqueue(b))
	c.Drive(true)
	close(slow.release)
	for range 3 {
		<-done
	}
	require.NoError(t, w.Err)
	require.ErrorIs(t, b.Err, projection.ErrSuperseded)
	v, _ := get(t, c, "k")
	require.Equal(t, "new", v)
}

func TestAFailedWriteLeavesEarlierAdditionsInFlight(t *testing.T) {
	c, faulty := openFaulty(t, func(o storage.Options) (*Counter, error) {
		return OpenCounter(deadline(t), "/shard", CacheOptions{Name: "c", Storage: o})
	})
	t.Cleanup(func() { require.NoError(t, c.Close(deadline(t))) })
	add := func(key string, tag *counter.Tag, done func()) *CounterAdd {
		a := &CounterAdd{Key: []byte(key), Delta: 1, Tag: tag, Done: func(*CounterAdd) { done() }}
		require.NoError(t, c.Submit(a))
		return a
	}
	slow := newSlowDone()
	add("z", nil, slow.done)
	go c.Drive(true)
	<-slow.entered
	done := make(chan struct{}, 3)
	answered := func() { done <- struct{}{} }
	tag := &counter.Tag{Producer: 7, Sequence: 1}
	first := add("k", tag, answered)
	c.Drive(true)
	faulty.Add(disk.Rule{Op: disk.OpWrite, Path: "*.log", Action: disk.NoSpace(0)})
	failed := add("x", nil, answered)
	c.Drive(true)
	retry := add("k", tag, answered)
	c.Drive(true)
	close(slow.release)
	for range 3 {
		<-done
	}
	require.NoError(t, first.Err)
	require.ErrorIs(t, failed.Err, storage.ErrNotWritten)
	require.ErrorIs(t, retry.Err, counter.ErrRepeated)
	sum, _, err := c.Get([]byte("k"))
	require.NoError(t, err)
	require.Equal(t, int64(1), sum)
}
