package broker

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
	"github.com/felixlog/felix/wire"
)

func (w *world) dir(name string, shard uint32) string {
	return filepath.Join(w.root, segment.ShardDirName("t1", "ns", name, shard))
}

func TestRecordsAndProducersSurviveARestart(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	def := durableStream("orders")
	def.Shards = 3
	s := create(t, b, def)
	for i := range 3 {
		_, err := put(shardOf(t, s, i), fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i))
		require.NoError(t, err)
	}
	require.NoError(t, b.Close(context.Background()))
	b = w.open()
	s, err := b.Stream("t1", "ns", "orders")
	require.NoError(t, err)
	for i := range 3 {
		p := shardOf(t, s, i)
		require.Equal(t, []string{fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i)}, readAll(t, p, partition.StartEarliest(), 2))
		first, err := put(p, "c")
		require.NoError(t, err)
		require.Equal(t, storage.Offset(2), first)
	}
	require.Equal(t, Progress{Total: 3, Opened: 3}, b.Progress())
}

func TestASettingOfTheStreamReachesItsLog(t *testing.T) {
	w := newWorld(t)
	var counting *disk.Counting
	b := w.open(func(o *Options) {
		counting = disk.NewCounting(vfs.OS())
		o.FS = counting
		o.Defaults.Fsync = storage.None
	})
	flushes := func(def meta.Stream) int64 {
		p := shardOf(t, create(t, b, def), 0)
		_, err := put(p, "first")
		require.NoError(t, err)
		counting.Reset()
		for range 10 {
			_, err := put(p, "x")
			require.NoError(t, err)
		}
		return counting.Path("*.log").Flushes()
	}
	require.Zero(t, flushes(durableStream("default")))
	synced := durableStream("synced")
	synced.Fsync = meta.FsyncOnCommit
	require.Equal(t, int64(10), flushes(synced))

	small := durableStream("small")
	small.MaxRecordBytes = 4
	p := shardOf(t, create(t, b, small), 0)
	_, err := put(p, "12345")
	require.Equal(t, wire.CodeLimitExceeded, codeOf(err))
	_, err = put(p, "1234")
	require.NoError(t, err, "the stream is kept")
	_, err = w.catalog.UpdateStream(deadline(t), meta.Name{Tenant: "t1", Namespace: "ns", Name: "small"}, func(s *meta.Stream) error {
		s.MaxRecordBytes = 5
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, b.await(deadline(t), func() (bool, error) {
		s, err := b.Stream("t1", "ns", "small")
		return err == nil && s.Meta().MaxRecordBytes == 5, err
	}))
	_, err = put(p, "12345")
	require.NoError(t, err)
}

func TestADamagedShardIsOutOfServiceByNameAndTheOthersServe(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	for _, name := range []string{"good", "bad"} {
		s := create(t, b, durableStream(name))
		_, err := put(shardOf(t, s, 0), "one", "two", "three")
		require.NoError(t, err)
	}
	require.NoError(t, b.Close(context.Background()))
	name := filepath.Join(w.dir("bad", 0), segment.SegmentName(0))
	good, err := os.ReadFile(name)
	require.NoError(t, err)
	bad := append([]byte(nil), good...)
	bad[segment.HeaderSize+segment.RecordHeaderSize] ^= 1 // in the first record's payload
	require.NoError(t, os.WriteFile(name, bad, 0o600))

	b = w.open()
	require.True(t, b.Ready(), "the process serves")
	s, err := b.Stream("t1", "ns", "bad")
	require.NoError(t, err)
	_, err = s.Shard(0)
	f := Failure(err)
	require.Equal(t, wire.CodeShardUnavailable, f.Code)
	require.Equal(t, wire.ReasonDamaged, f.Reason)
	require.Equal(t, partition.Damaged, s.ShardState(0))
	faults := b.Damaged()
	require.Len(t, faults, 1)
	require.Equal(t, "t1/ns/bad/0", faults[0].Shard)
	require.Equal(t, Progress{Total: 2, Opened: 2, Failed: 1}, b.Progress())
	require.Equal(t, map[partition.State]int{partition.Active: 1, partition.Damaged: 1}, b.Stats().Shards)
	fine, err := b.Stream("t1", "ns", "good")
	require.NoError(t, err)
	require.Len(t, readAll(t, shardOf(t, fine, 0), partition.StartEarliest(), 3), 3)

	// Still damaged; then restored from a copy, as an operator does.
	require.Error(t, b.ReopenShard(deadline(t), s, 0))
	require.NoError(t, os.WriteFile(name, good, 0o600))
	require.NoError(t, b.ReopenShard(deadline(t), s, 0))
	require.Len(t, readAll(t, shardOf(t, s, 0), partition.StartEarliest(), 3), 3)
	require.Zero(t, b.Progress().Failed)
	require.NoError(t, b.ReopenShard(deadline(t), s, 0), "nothing to do")
}

func TestAPoisonedShardIsNamedAndReopened(t *testing.T) {
	w := newWorld(t)
	faulty := disk.NewFaulty(vfs.OS())
	b := w.open(func(o *Options) { o.FS, o.Defaults.Fsync = faulty, storage.OnCommit })
	s := create(t, b, durableStream("orders"))
	other := create(t, b, durableStream("other"))
	p := shardOf(t, s, 0)
	_, err := put(p, "a")
	require.NoError(t, err)
	faulty.Add(disk.Rule{Op: disk.OpFlush, Path: filepath.Join(w.dir("orders", 0), "*.log"), Action: disk.Fail(syscall.EIO)})
	_, err = put(p, "b")
	require.Equal(t, wire.RetryOutcomeUnknown, Failure(err).Retry)
	_, err = put(p, "c")
	f := Failure(err)
	require.Equal(t, wire.CodeStorage, f.Code)
	require.Equal(t, wire.ReasonPoisoned, f.Reason)
	require.Equal(t, wire.RetryAfter, f.Retry)
	require.Equal(t, partition.Poisoned, b.Damaged()[0].State)
	require.Equal(t, []string{"a"}, readAll(t, p, partition.StartEarliest(), 1))
	_, err = put(shardOf(t, other, 0), "serves")
	require.NoError(t, err)
	require.NoError(t, b.ReopenShard(deadline(t), s, 0))
	require.Empty(t, b.Damaged())
	_, err = put(p, "d")
	require.NoError(t, err)
}

func TestAStreamIsDeletedAndMadeAnew(t *testing.T) {
	w := newWorld(t)
	removed := make(chan string, 10)
	b := w.open(func(o *Options) { o.Events.OnRemoved = func(dir string) { removed <- dir } })
	for round := range 5 {
		s := create(t, b, durableStream("orders"))
		p := shardOf(t, s, 0)
		first, err := put(p, fmt.Sprintf("round %d", round))
		require.NoError(t, err)
		require.Zero(t, first, "offsets begin anew")
		require.Equal(t, []string{fmt.Sprintf("round %d", round)}, readAll(t, p, partition.StartEarliest(), 1))
		require.NoError(t, b.DeleteStream(deadline(t), "t1", "ns", "orders"))
		select {
		case dir := <-removed:
			_, err := os.Stat(dir)
			require.ErrorIs(t, err, fs.ErrNotExist)
		case <-deadline(t).Done():
			t.Fatal("the directory was never removed")
		}
	}
	_, err := os.Stat(w.dir("orders", 0))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// A stream of the same name opens only when the directories of the one before it are out
// of the way; nothing is set aside.
func TestTheNextStreamWaitsForTheOneBefore(t *testing.T) {
	w := newWorld(t)
	faulty := disk.NewFaulty(vfs.OS())
	var aside atomic.Int32
	b := w.open(func(o *Options) {
		o.FS = faulty
		o.Events.OnSetAside = func(string, string, uint64, uint64) { aside.Add(1) }
	})
	_, err := put(shardOf(t, create(t, b, durableStream("orders")), 0), "old")
	require.NoError(t, err)
	gate := disk.NewGate()
	faulty.Add(disk.Rule{Op: disk.OpRename, Path: w.dir("orders", 0), Action: disk.Hold(gate)})
	require.NoError(t, b.DeleteStream(deadline(t), "t1", "ns", "orders"))
	require.NoError(t, gate.Await(deadline(t), 1))
	created := make(chan error, 1)
	go func() {
		_, err := b.CreateStream(deadline(t), durableStream("orders"))
		created <- err
	}()
	require.NoError(t, b.await(deadline(t), func() (bool, error) { return b.Stats().Streams == 1, nil }))
	s, err := b.Stream("t1", "ns", "orders")
	require.NoError(t, err)
	for i := range 3 {
		create(t, b, durableStream(fmt.Sprintf("other-%d", i))) // overtake it
	}
	require.Equal(t, partition.Opening, s.ShardState(0))
	gate.Open()
	require.NoError(t, <-created)
	first, err := put(shardOf(t, s, 0), "new")
	require.NoError(t, err)
	require.Zero(t, first)
	require.Zero(t, aside.Load())
}

// Case 112, second half: every publish that meets the deletion gets an answer, stored or
// deleted.
func TestPublishesThatMeetADeletionAreAnswered(t *testing.T) {
	for _, durable := range []bool{false, true} {
		t.Run(fmt.Sprintf("durable %v", durable), func(t *testing.T) {
			w := newWorld(t)
			b := w.open()
			def := memoryStream("orders")
			def.Durable = durable
			var stored, refused atomic.Int64
			for range 5 {
				s := create(t, b, def)
				p := shardOf(t, s, 0)
				var wg sync.WaitGroup
				begun := make(chan struct{}, 20)
				for i := range 20 {
					wg.Go(func() {
						for n := 0; ; n++ {
							_, err := put(p, fmt.Sprintf("%d/%d", i, n))
							switch codeOf(err) {
							case 0:
								stored.Add(1)
							case wire.CodeNotFound:
								refused.Add(1)
								return
							default:
								t.Errorf("neither stored nor deleted: %v", err)
								return
							}
							if n == 3 {
								begun <- struct{}{}
							}
						}
					})
				}
				for range 20 {
					<-begun
				}
				require.NoError(t, b.DeleteStream(deadline(t), "t1", "ns", "orders"))
				wg.Wait()
			}
			require.Equal(t, int64(100), refused.Load())
			require.GreaterOrEqual(t, stored.Load(), int64(400))
		})
	}
}

// A stream that was deleted and made anew while the broker was away: the directory is
// of another incarnation, is set aside with its records, and never served.
func TestADirectoryOfAnotherIncarnationIsSetAside(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	_, err := put(shardOf(t, create(t, b, durableStream("orders")), 0), "old")
	require.NoError(t, err)
	require.NoError(t, b.Close(context.Background()))
	n := meta.Name{Tenant: "t1", Namespace: "ns", Name: "orders"}
	require.NoError(t, w.catalog.DeleteStream(deadline(t), n))
	_, err = w.catalog.CreateStream(deadline(t), durableStream("orders"))
	require.NoError(t, err)

	var moved string
	b = w.open(func(o *Options) {
		o.Events.OnSetAside = func(shard, to string, found, want uint64) {
			if shard == "t1/ns/orders/0" && found != want {
				moved = to
			}
		}
	})
	s, err := b.Stream("t1", "ns", "orders")
	require.NoError(t, err)
	first, err := put(shardOf(t, s, 0), "new")
	require.NoError(t, err)
	require.Zero(t, first)
	log, err := storage.Open(deadline(t), moved, storage.Options{})
	require.NoError(t, err)
	require.Equal(t, storage.Offset(1), log.Next(), "nothing of it is lost")
	require.NoError(t, log.Close(context.Background()))
}

func TestDirectoriesOfNoStreamAreReportedAndLeftAlone(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	_, err := put(shardOf(t, create(t, b, durableStream("orders")), 0), "kept")
	require.NoError(t, err)
	require.NoError(t, b.Close(context.Background()))
	require.NoError(t, w.catalog.DeleteStream(deadline(t), meta.Name{Tenant: "t1", Namespace: "ns", Name: "orders"}))
	for _, name := range []string{"tmp~", "caches"} {
		require.NoError(t, os.Mkdir(filepath.Join(w.root, name), 0o700))
	}
	var orphans []string
	w.open(func(o *Options) { o.Events.OnOrphan = func(dir string) { orphans = append(orphans, dir) } })
	require.ElementsMatch(t, []string{w.dir("orders", 0), filepath.Join(w.root, "tmp~")}, orphans)
	_, err = os.Stat(filepath.Join(w.dir("orders", 0), segment.SegmentName(0)))
	require.NoError(t, err)
}

// Case 9 for the file of ours: emptied, lost or damaged, the records are there.
func TestALostIncarnationLosesNothing(t *testing.T) {
	for name, damage := range map[string]func(string) error{
		"empty":   func(f string) error { return os.Truncate(f, 0) },
		"missing": os.Remove,
		"garbage": func(f string) error { return os.WriteFile(f, []byte("garbage, and more of it than fits"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			b := w.open()
			_, err := put(shardOf(t, create(t, b, durableStream("orders")), 0), "kept")
			require.NoError(t, err)
			require.NoError(t, b.Close(context.Background()))
			require.NoError(t, damage(filepath.Join(w.dir("orders", 0), incarnationName)))
			var adopted string
			b = w.open(func(o *Options) { o.Events.OnAdopted = func(shard, _ string) { adopted = shard } })
			require.Equal(t, "t1/ns/orders/0", adopted)
			s, err := b.Stream("t1", "ns", "orders")
			require.NoError(t, err)
			require.Equal(t, []string{"kept"}, readAll(t, shardOf(t, s, 0), partition.StartEarliest(), 1))
		})
	}
}

func TestRemovalGoesOnAtTheNextStart(t *testing.T) {
	w := newWorld(t)
	left := filepath.Join(w.root, trashDir, "x-1")
	require.NoError(t, os.MkdirAll(left, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(left, segment.SegmentName(0)), nil, 0o600))
	removed := make(chan string, 1)
	w.open(func(o *Options) { o.Events.OnRemoved = func(dir string) { removed <- dir } })
	select {
	case dir := <-removed:
		require.Equal(t, left, dir)
	case <-deadline(t).Done():
		t.Fatal("what was left in the trash is still there")
	}
}

// While shards are being recovered the broker answers, says how far it is, and each
// shard serves as soon as it is open.
func TestRecoveryIsParallelAndTold(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	for i := range 6 {
		_, err := put(shardOf(t, create(t, b, durableStream(fmt.Sprintf("s%d", i))), 0), "x")
		require.NoError(t, err)
	}
	require.NoError(t, b.Close(context.Background()))

	faulty := disk.NewFaulty(vfs.OS())
	gate := disk.NewGate()
	faulty.Add(disk.Rule{Op: disk.OpReadDir, Path: filepath.Join(w.dir("s3", 0)), Count: disk.Forever, Action: disk.Hold(gate)})
	var told []Progress
	var mu sync.Mutex
	b, err := Open(deadline(t), Options{Catalog: w.catalog, Root: w.root, FS: faulty, Events: Events{
		OnProgress: func(p Progress) { mu.Lock(); told = append(told, p); mu.Unlock() },
	}})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close(context.Background())) }()
	require.NoError(t, gate.Await(deadline(t), 1))
	require.NoError(t, b.await(deadline(t), func() (bool, error) { return b.Progress().Opened == 5, nil }))
	require.Equal(t, Progress{Total: 6, Opened: 5}, b.Progress())
	require.Equal(t, 83, b.Progress().Percent())
	require.False(t, b.Ready())
	held, err := b.Stream("t1", "ns", "s3")
	require.NoError(t, err)
	_, err = held.Shard(0)
	f := Failure(err)
	require.Equal(t, wire.CodeShardUnavailable, f.Code)
	require.Equal(t, wire.ReasonNotReady, f.Reason)
	require.Positive(t, f.RetryAfter)
	s, err := b.Stream("t1", "ns", "s0")
	require.NoError(t, err)
	_, err = put(shardOf(t, s, 0), "served meanwhile")
	require.NoError(t, err)
	gate.Open()
	require.NoError(t, b.WaitReady(deadline(t)))
	require.True(t, b.Ready())
	// It is told of the last one after that is counted.
	require.NoError(t, b.await(deadline(t), func() (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		return slices.Contains(told, Progress{Total: 6, Opened: 6}), nil
	}))
}

// A broker that is closed while it recovers comes to an end, and the next one goes on.
func TestClosingWhileRecovering(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	for i := range 20 {
		_, err := put(shardOf(t, create(t, b, durableStream(fmt.Sprintf("s%d", i))), 0), "x")
		require.NoError(t, err)
	}
	require.NoError(t, b.Close(context.Background()))
	b, err := Open(deadline(t), Options{Catalog: w.catalog, Root: w.root, Limits: Limits{Recovering: 1}})
	require.NoError(t, err)
	require.NoError(t, b.Close(context.Background()))
	b = w.open()
	require.Equal(t, 20, b.Stats().Shards[partition.Active])
}

// A shard whose directory cannot be made is told apart from a damaged one, and is tried
// again: by an operator, and by itself.
func TestAShardThatCannotBeOpenedIsTriedAgain(t *testing.T) {
	for name, wait := range map[string]time.Duration{"operator": time.Hour, "by itself": time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			faulty := disk.NewFaulty(vfs.OS())
			b := w.open(func(o *Options) { o.FS, o.Limits.RetryOpen = faulty, wait })
			rule := faulty.Add(disk.Rule{Op: disk.OpMkdir, Path: filepath.Join(w.dir("orders", 0)), Count: disk.Forever, Action: disk.NoSpace(0)})
			created, err := b.CreateStream(deadline(t), durableStream("orders"))
			require.NoError(t, err)
			require.True(t, created)
			s, err := b.Stream("t1", "ns", "orders")
			require.NoError(t, err)
			_, err = s.Shard(0)
			require.Equal(t, wire.CodeShardUnavailable, codeOf(err))
			require.Equal(t, wire.ReasonNotReady, Failure(err).Reason)
			require.Equal(t, wire.RetryAfter, Failure(err).Retry)
			require.ErrorContains(t, err, "make room")
			require.NotContains(t, err.Error(), w.root, "where the broker keeps its files is not for clients")
			require.Equal(t, Progress{Total: 1, Opened: 1, Failed: 1}, b.Progress())
			rule.Remove()
			if wait == time.Hour {
				require.NoError(t, b.ReopenShard(deadline(t), s, 0))
			}
			require.NoError(t, b.await(deadline(t), func() (bool, error) { return s.ShardState(0) == partition.Active, nil }))
			require.Equal(t, Progress{Total: 1, Opened: 1}, b.Progress())
			_, err = put(shardOf(t, s, 0), "a")
			require.NoError(t, err)
		})
	}
}

// One that is deleted while it is tried again and again is gone for good.
func TestAShardThatCannotBeOpenedMayBeDeleted(t *testing.T) {
	w := newWorld(t)
	faulty := disk.NewFaulty(vfs.OS())
	b := w.open(func(o *Options) { o.FS, o.Limits.RetryOpen = faulty, time.Microsecond })
	for range 20 {
		rule := faulty.Add(disk.Rule{Op: disk.OpMkdir, Path: filepath.Join(w.dir("orders", 0)), Count: 3, Action: disk.NoSpace(0)})
		_, err := b.CreateStream(deadline(t), durableStream("orders"))
		require.NoError(t, err)
		require.NoError(t, b.DeleteStream(deadline(t), "t1", "ns", "orders"))
		require.NoError(t, b.await(deadline(t), func() (bool, error) { return b.Progress() == Progress{}, nil }))
		rule.Remove()
	}
}
