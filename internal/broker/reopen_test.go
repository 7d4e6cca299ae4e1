package broker

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/vfs"
)

// TestAStreamMadeAnewWaitsOnNoWorker: a stream with a failed shard is deleted and made
// again while the worker that deletes is busy, and the old one's retry comes meanwhile.
// With one worker to open shards, neither may wait on it for the other.
func TestAStreamMadeAnewWaitsOnNoWorker(t *testing.T) {
	w := newWorld(t)
	faulty := disk.NewFaulty(vfs.OS())
	b := w.open(func(o *Options) { o.FS, o.Limits.RetryOpen, o.Limits.Recovering = faulty, time.Hour, 1 })
	x := create(t, b, durableStream("x"))
	failing := faulty.Add(disk.Rule{Op: disk.OpReadDir, Path: w.dir("old", 0), Count: disk.Forever, Action: disk.Fail(syscall.EMFILE)})
	_, err := b.CreateStream(deadline(t), durableStream("old"))
	require.NoError(t, err)
	old, err := b.Stream("t1", "ns", "old")
	require.NoError(t, err)
	require.Equal(t, partition.Damaged, old.ShardState(0))
	failing.Remove()

	gate := disk.NewGate()
	release := sync.OnceFunc(gate.Open)
	defer release()
	_, err = put(shardOf(t, x, 0), "x")
	require.NoError(t, err)
	faulty.Add(disk.Rule{Op: disk.OpDatasync, Path: filepath.Join(w.dir("x", 0), "*.log"), Count: disk.Forever, Action: disk.Hold(gate)})
	require.NoError(t, b.DeleteStream(deadline(t), "t1", "ns", "x"))
	require.NoError(t, gate.Await(deadline(t), 1))

	require.NoError(t, b.DeleteStream(deadline(t), "t1", "ns", "old"))
	created := make(chan error, 1)
	go func() {
		_, err := b.CreateStream(deadline(t), durableStream("old"))
		created <- err
	}()
	require.Eventually(t, func() bool {
		now, err := b.Stream("t1", "ns", "old")
		return err == nil && now != old
	}, testDeadline, time.Millisecond)
	require.Error(t, b.ReopenShard(deadline(t), old, 0), "it is deleted")
	free := create(t, b, durableStream("free"))
	_, err = put(shardOf(t, free, 0), "opened meanwhile")
	require.NoError(t, err)
	release()
	require.NoError(t, <-created)
	now, err := b.Stream("t1", "ns", "old")
	require.NoError(t, err)
	require.Equal(t, partition.Active, now.ShardState(0))
}

// TestAShardThatWasNotLookedAtIsNotJudged: without descriptors its bytes were not read, so
// that what the last run left is not known yet.
func TestAShardThatWasNotLookedAtIsNotJudged(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	create(t, b, durableStream("s"))
	require.NoError(t, b.Close(context.Background()))
	faulty := disk.NewFaulty(vfs.OS())
	rule := faulty.Add(disk.Rule{Op: disk.OpReadDir, Path: w.dir("s", 0), Count: disk.Forever, Action: disk.Fail(syscall.EMFILE)})
	b = w.open(func(o *Options) { o.FS, o.Limits.RetryOpen = faulty, time.Hour })
	require.NoError(t, b.WaitReady(deadline(t)))
	over, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, b.WaitJudged(over), context.Canceled)
	rule.Remove()
	s, err := b.Stream("t1", "ns", "s")
	require.NoError(t, err)
	require.NoError(t, b.ReopenShard(deadline(t), s, 0))
	require.NoError(t, b.WaitJudged(deadline(t)))
}

// A shard's directory that is gone is not made anew: its records were acknowledged.
func TestAMissingDirectoryIsNotMadeAnew(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	for _, name := range []string{"gone", "deleted"} {
		_, err := put(shardOf(t, create(t, b, durableStream(name)), 0), "a")
		require.NoError(t, err)
	}
	require.NoError(t, b.DeleteStream(deadline(t), "t1", "ns", "deleted"))
	require.NoError(t, b.Close(context.Background()))
	require.NoError(t, os.RemoveAll(w.dir("gone", 0)))

	b = w.open()
	faults := b.Damaged()
	require.Len(t, faults, 1)
	var missing *MissingError
	require.ErrorAs(t, faults[0].Err, &missing)
	require.Equal(t, w.dir("gone", 0), missing.Dir)
	require.NoDirExists(t, missing.Dir)
	marks, err := os.ReadDir(filepath.Dir(missing.Mark))
	require.NoError(t, err)
	require.Len(t, marks, 1, "a deleted stream leaves none")
	s, err := b.Stream("t1", "ns", "gone")
	require.NoError(t, err)
	_, err = s.Shard(0)
	require.ErrorContains(t, err, "is missing")
	require.NoError(t, os.Remove(missing.Mark))
	require.NoError(t, b.ReopenShard(deadline(t), s, 0))
	_, err = put(shardOf(t, s, 0), "anew")
	require.NoError(t, err)
}

// A shard's directory that lost its log, as a mount point without its disk has, is as one
// that is gone: nothing is begun in it, and what comes back is served.
func TestADirectoryThatLostItsLogIsNotBegunAnew(t *testing.T) {
	for name, keep := range map[string]func(string) bool{
		"all":         func(string) bool { return false },
		"another's":   func(name string) bool { return name == "lost+found" },
		"incarnation": func(name string) bool { return name != incarnationName },
		"segments":    func(name string) bool { return !strings.HasSuffix(name, ".log") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			b := w.open()
			_, err := put(shardOf(t, create(t, b, durableStream("s")), 0), "a")
			require.NoError(t, err)
			require.NoError(t, b.Close(context.Background()))
			dir := w.dir("s", 0)
			require.NoError(t, os.Mkdir(filepath.Join(dir, "lost+found"), 0o700))
			away := t.TempDir()
			move := func(from, to string) {
				for _, e := range list(t, from) {
					if !keep(e) {
						require.NoError(t, os.Rename(filepath.Join(from, e), filepath.Join(to, e)))
					}
				}
			}
			move(dir, away)
			left := list(t, dir)

			b = w.open()
			if name == "incarnation" { // the records are there: the shard's
				require.Empty(t, b.Damaged())
				return
			}
			faults := b.Damaged()
			require.Len(t, faults, 1)
			var missing *MissingError
			require.ErrorAs(t, faults[0].Err, &missing)
			require.Equal(t, dir, missing.Dir)
			require.True(t, missing.Empty)
			require.Equal(t, left, list(t, dir), "nothing is made")
			s, err := b.Stream("t1", "ns", "s")
			require.NoError(t, err)
			_, err = s.Shard(0)
			require.ErrorContains(t, err, "holds no log, and it did: mount or restore it")
			require.NotContains(t, err.Error(), w.root)
			require.ErrorAs(t, b.ReopenShard(deadline(t), s, 0), &missing)

			move(away, dir)
			require.NoError(t, b.ReopenShard(deadline(t), s, 0))
			require.Equal(t, []string{"a"}, readAll(t, shardOf(t, s, 0), partition.StartEarliest(), 1))
		})
	}
}

// list are the names in a directory.
func list(t *testing.T, dir string) (names []string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Whatever stops the making of a shard's directory, another start makes it.
func TestADirectoryHalfMadeIsMade(t *testing.T) {
	for ops := 1; ; ops++ {
		w := newWorld(t)
		b := w.open()
		require.NoError(t, b.Close(context.Background()))
		faulty := disk.NewFaulty(vfs.OS())
		b = w.open(func(o *Options) { o.FS, o.Limits.RetryOpen = faulty, time.Hour })
		faulty.Add(disk.Rule{Nth: ops, Count: disk.Forever, Action: disk.Fail(syscall.EIO)})
		_, err := b.CreateStream(deadline(t), durableStream("s"))
		require.NoError(t, err)
		whole := len(b.Damaged()) == 0
		faulty.Clear()
		require.NoError(t, b.Close(context.Background()))
		b = w.open()
		require.Empty(t, b.Damaged(), "operation %d and those after it failed", ops)
		if whole {
			return
		}
	}
}
