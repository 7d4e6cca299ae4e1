package disk

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage/vfs"
)

var errTest = errors.New("test error")

func TestRuleSelects(t *testing.T) {
	f := NewFaulty(NewStrict(1, Options{}))
	a := must(t, f, "a.log", vfs.Create)
	b := must(t, f, "b.idx", vfs.Create)
	rule := f.Add(Rule{Op: OpFlush, Path: "*.log", Nth: 2, Count: 2, Action: Fail(errTest)})
	always := f.Add(Rule{Op: OpTruncate, Path: "/none/*", Count: Forever, Action: Fail(errTest)})

	require.NoError(t, b.Sync())
	require.NoError(t, a.Sync())
	require.NoError(t, b.Datasync())
	isPathError(t, a.Datasync(), errTest)
	isPathError(t, a.Sync(), errTest)
	require.NoError(t, a.Sync())
	require.NoError(t, a.Truncate(0))
	require.Equal(t, 2, rule.Hits())
	require.Zero(t, always.Hits())

	removed := f.Add(Rule{Op: OpAny, Count: Forever, Action: Fail(errTest)})
	isPathError(t, f.MkdirAll("/d"), errTest)
	_, err := f.Stat("/")
	isPathError(t, err, errTest)
	removed.Remove()
	require.NoError(t, f.MkdirAll("/d"))
	f.Add(Rule{Op: OpRename, Path: "new", Action: Fail(errTest)})
	isPathError(t, f.Rename("a.log", "new"), errTest)
	require.NoError(t, f.Rename("a.log", "new"))
	f.Add(Rule{Op: OpAny, Count: Forever, Action: Fail(errTest)})
	f.Clear()
	require.NoError(t, f.MkdirAll("/e"))

	require.Panics(t, func() { f.Add(Rule{Path: "[", Action: Lie()}) })
	require.Panics(t, func() { f.Add(Rule{}) })
}

func TestActions(t *testing.T) {
	cases := map[string]struct {
		action  Action
		op      Op
		do      func(f vfs.File) error
		err     error
		content string // cache after
		durable string // after a power cut; "?" for anything
	}{
		"fail":               {Fail(errTest), OpWrite, func(f vfs.File) error { _, err := f.WriteAt([]byte("xyz"), 0); return err }, errTest, "abc", "abc"},
		"fail after":         {FailAfter(errTest), OpTruncate, func(f vfs.File) error { return f.Truncate(1) }, errTest, "a", "?"},
		"no space":           {NoSpace(2), OpWrite, func(f vfs.File) error { _, err := f.WriteAt([]byte("xyz"), 0); return err }, syscall.ENOSPC, "xyc", "?"},
		"no space, no write": {NoSpace(2), OpAllocate, func(f vfs.File) error { return f.Allocate(0, 9, false) }, syscall.ENOSPC, "abc", "abc"},
		"lying write":        {Lie(), OpWrite, func(f vfs.File) error { _, err := f.WriteAt([]byte("xyz"), 0); return err }, nil, "abc", "abc"},
		"flush that drops":   {FailAndDrop(errTest), OpFlush, func(f vfs.File) error { return f.Sync() }, errTest, "abc", "abc"},
		"call":               {Call(func() {}), OpTruncate, func(f vfs.File) error { return f.Truncate(1) }, nil, "a", "?"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := NewStrict(1, Options{})
			faulty := NewFaulty(NewCounting(d))
			f := must(t, faulty, "f", vfs.Create)
			write(t, f, "abc", 0)
			require.NoError(t, f.Sync())
			require.NoError(t, faulty.SyncDir("/"))
			rule := faulty.Add(Rule{Op: c.op, Action: c.action})
			err := c.do(f)
			if c.err == nil {
				require.NoError(t, err)
			} else {
				isPathError(t, err, c.err)
			}
			require.Equal(t, 1, rule.Hits())
			require.Equal(t, c.content, all(t, f))
			if after := d.Crash().Files()["f"]; c.durable != "?" {
				require.Equal(t, c.durable, after)
			}
		})
	}
}

// A flush that lies is a flush that was not made.
func TestLyingFlush(t *testing.T) {
	lost := false
	for seed := range uint64(50) {
		d := NewStrict(seed, Options{})
		faulty := NewFaulty(d)
		f := must(t, faulty, "f", vfs.Create)
		require.NoError(t, faulty.SyncDir("/"))
		faulty.Add(Rule{Op: OpDatasync, Action: Lie()})
		write(t, f, "abc", 0)
		require.NoError(t, f.Datasync())
		lost = lost || d.Crash().Files()["f"] != "abc"
	}
	require.True(t, lost)
}

func TestFailAndDropThroughLayers(t *testing.T) {
	lost := false
	for seed := range uint64(50) {
		d := NewStrict(seed, Options{})
		count := NewCounting(NewFaulty(d))
		faulty := NewFaulty(count)
		f := must(t, faulty, "f", vfs.Create)
		require.NoError(t, faulty.SyncDir("/"))
		faulty.Add(Rule{Op: OpDatasync, Action: FailAndDrop(syscall.EIO)})
		write(t, f, strings.Repeat("x", 512), 0)
		isPathError(t, f.Datasync(), syscall.EIO)
		require.NoError(t, f.Datasync())
		require.EqualValues(t, 2, count.Total().Flushes())
		lost = lost || d.Crash().Files()["f"] != strings.Repeat("x", 512)
	}
	require.True(t, lost, "the second flush must not repair the first")
}

func TestOpensCanFail(t *testing.T) {
	d := NewStrict(1, Options{})
	f := NewFaulty(d)
	f.Add(Rule{Op: OpCreate, Action: FailAfter(errTest)})
	_, err := f.OpenFile("f", vfs.Create)
	isPathError(t, err, errTest)
	require.Contains(t, d.Files(), "f")
	must(t, f, "f", vfs.Create)
	f.Add(Rule{Op: OpLock, Action: Fail(vfs.ErrLocked)})
	_, err = f.Lock("LOCK")
	isPathError(t, err, vfs.ErrLocked)
	f.Add(Rule{Op: OpSyncDir, Action: Lie()})
	require.NoError(t, f.SyncDir("/none"))
	f.Add(Rule{Op: OpOpen, Action: Lie()})
	_, err = f.OpenFile("f", vfs.ReadOnly)
	require.Error(t, err)
}

// A gate holds operations inside a synctest bubble, lets them go one by one, and
// counts them.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faulty := NewFaulty(NewStrict(1, Options{}))
		f := must(t, faulty, "f", vfs.Create)
		gate := NewGate()
		faulty.Add(Rule{Op: OpFlush, Count: Forever, Action: Hold(gate)})
		faulty.Add(Rule{Op: OpDatasync, Nth: 3, Action: Fail(errTest)})

		var mu sync.Mutex
		var done []error
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				err := f.Datasync()
				mu.Lock()
				defer mu.Unlock()
				done = append(done, err)
			})
			synctest.Wait()
		}
		require.NoError(t, gate.Await(t.Context(), 3))
		require.Equal(t, 3, gate.Held())
		require.Empty(t, done)

		gate.Release(1)
		synctest.Wait()
		require.Len(t, done, 1)
		gate.Release(3) // two waiting, one to come
		synctest.Wait()
		require.Len(t, done, 3)
		require.NoError(t, f.Sync())
		require.Equal(t, 4, gate.Arrived())
		wg.Wait()
		failed := 0
		for _, err := range done {
			if errors.Is(err, errTest) {
				failed++
			}
		}
		require.Equal(t, 1, failed)

		gate.Open()
		require.NoError(t, f.Sync())
		gate.Shut()
		wg.Go(func() { mu.Lock(); defer mu.Unlock(); done = append(done, f.Sync()) })
		synctest.Wait()
		require.Equal(t, 1, gate.Held())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, gate.Await(ctx, 99), context.DeadlineExceeded)
		gate.Open()
		wg.Wait()
	})
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faulty := NewFaulty(NewStrict(1, Options{}))
		f := must(t, faulty, "f", vfs.Create)
		faulty.Add(Rule{Op: OpSync, Action: Delay(time.Minute)})
		start := time.Now()
		require.NoError(t, f.Sync())
		require.Equal(t, time.Minute, time.Since(start))
	})
}

func TestCounting(t *testing.T) {
	c := NewCounting(NewStrict(1, Options{}))
	require.NoError(t, c.MkdirAll("/d"))
	a := must(t, c, "/d/a.log", vfs.Create)
	b := must(t, c, "/d/b.idx", vfs.CreateNew)
	must(t, c, "/d/a.log", vfs.ReadOnly)
	write(t, a, "12345", 0)
	write(t, b, "123", 0)
	require.NoError(t, a.Sync())
	require.NoError(t, a.Datasync())
	require.NoError(t, b.Datasync())
	all(t, a)
	require.NoError(t, c.SyncDir("/d"))

	total := c.Total()
	require.EqualValues(t, 3, total.Flushes())
	require.EqualValues(t, 1, total.Of(OpSync))
	require.EqualValues(t, 2, total.Writes())
	require.EqualValues(t, 8, total.WriteBytes)
	require.EqualValues(t, 5, total.ReadBytes)
	require.EqualValues(t, 2, total.Of(OpCreate))
	require.EqualValues(t, 1, total.Of(OpOpen))
	require.Equal(t, 3, total.Open)
	require.Equal(t, 3, total.MaxOpen)
	require.EqualValues(t, 2, c.Path("*.log").Flushes())
	require.EqualValues(t, 1, c.Path("/d/b.idx").Flushes())
	require.EqualValues(t, 1, c.Path("d").Of(OpSyncDir))

	require.NoError(t, b.Close())
	lock, err := c.Lock("/LOCK")
	require.NoError(t, err)
	require.NoError(t, lock.Close())
	c.Reset()
	total = c.Total()
	require.Zero(t, total.Of(OpAny))
	require.Equal(t, 2, total.Open)
	require.Equal(t, 2, total.MaxOpen)
}
