package partition

import (
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
)

// lackAt has what reads files fail for want of a descriptor from the nth time on: a file
// that is not open has to be opened first.
func lackAt(f *disk.Faulty, nth int) {
	for _, op := range []disk.Op{disk.OpRead, disk.OpOpen} {
		f.Add(disk.Rule{Op: op, Path: "*.log", Nth: nth, Count: disk.Forever, Action: disk.Fail(syscall.EMFILE)})
	}
}

// TestAReopenWithoutDescriptorsTakesNothingOutOfService poisons the log of each kind of
// shard and has it reopened while descriptors run out, at each of its reads: it may not
// serve yet, it is never damaged, and it serves by itself when there are some again. Time
// passes when everybody waits.
func TestAReopenWithoutDescriptorsTakesNothingOutOfService(t *testing.T) {
	for name, try := range map[string]func(t *testing.T, f *disk.Faulty, nth int) (refused bool){
		"cache": cacheLacking, "stream": streamLacking, "groups": groupsLacking,
	} {
		t.Run(name, func(t *testing.T) {
			refusals := 0
			for nth, more := 1, true; more; nth++ {
				synctest.Test(t, func(t *testing.T) {
					f := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
					require.NoError(t, f.MkdirAll("/shard"))
					more = try(t, f, nth)
				})
				if more {
					refusals++
				}
			}
			require.Positive(t, refusals)
			t.Logf("%d places where descriptors were lacking", refusals)
		})
	}
}

// shardState is what the three have in common.
type shardState interface {
	State() State
	Health() error
}

// healed returns when the shard serves again, nobody having asked for it.
func healed(t *testing.T, f *disk.Faulty, s shardState, reopen error) (refused bool) {
	t.Helper()
	if reopen != nil {
		require.True(t, storage.IsOutOfFiles(reopen), "%v", reopen)
		require.Equal(t, Poisoned, s.State(), "%v", s.Health())
	}
	f.Clear()
	require.Eventually(t, func() bool { return s.State() == Active }, time.Minute, time.Second, "%v", s.Health())
	return reopen != nil
}

func failFlush(f *disk.Faulty, path string) {
	f.Add(disk.Rule{Op: disk.OpFlush, Path: path, Action: disk.Fail(syscall.EIO)})
}

func cacheLacking(t *testing.T, f *disk.Faulty, nth int) (refused bool) {
	c := openCache(t, "/shard", CacheOptions{Storage: storage.Options{FS: f, Fsync: storage.OnCommit}})
	defer closeCache(t, c)
	put(t, c, "k", "old")
	failFlush(f, "*.log")
	w := new(CacheWrite)
	require.NoError(t, w.Put([]byte("k"), []byte("new"), 0, false, cache.Always, 0, c.Now()))
	require.ErrorIs(t, c.Write(deadline(t), w), storage.ErrUnknownOutcome)
	lackAt(f, nth)
	refused = healed(t, f, c, c.Reopen(deadline(t)))
	v, _ := get(t, c, "k")
	require.Equal(t, "new", v, "it was written after all")
	put(t, c, "k", "newer")
	return refused
}

func streamLacking(t *testing.T, f *disk.Faulty, nth int) (refused bool) {
	p, err := Open(deadline(t), "/shard", Options{Storage: storage.Options{FS: f, Fsync: storage.OnCommit}})
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close(deadline(t))) }()
	require.NoError(t, idempotent(t, p, 1, 0, "a").Err)
	failFlush(f, "*.log")
	require.ErrorIs(t, idempotent(t, p, 1, 1, "b").Err, storage.ErrUnknownOutcome)
	lackAt(f, nth)
	refused = healed(t, f, p, p.Reopen(deadline(t)))
	again := idempotent(t, p, 1, 1, "b")
	require.NoError(t, again.Err)
	require.True(t, again.Duplicate, "it was written after all")
	require.EqualValues(t, 2, p.Positions().Readable)
	return refused
}

func groupsLacking(t *testing.T, f *disk.Faulty, nth int) (refused bool) {
	s := openGroups(t, f, "/shard", GroupsOptions{Defaults: queue.Config{Visibility: time.Hour}})
	defer s.close()
	publish(t, s.p, numbered("job ", 3)...)
	require.Len(t, s.poll("g", 3, 0), 3)
	require.NoError(t, s.groups.Log().Sync(deadline(t)))
	require.NoError(t, s.ack("g", 0))
	failFlush(f, "/shard/groups/*.log")
	require.Error(t, s.groups.Log().Sync(deadline(t)))
	lackAt(f, nth)
	refused = healed(t, f, s.p, s.p.Reopen(deadline(t)))
	require.Eventually(t, func() bool { return s.ack("g", 1) == nil }, time.Minute, time.Second)
	st := s.stats("g")
	require.EqualValues(t, 2, st.Position, fmt.Sprint(st))
	require.EqualValues(t, 1, st.Claimed, "claims stand")
	return refused
}
