package storage

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
)

// closeIdle closes the segment files nobody uses, as those do who need descriptors.
func closeIdle(t *testing.T, l *Log) {
	t.Helper()
	l.disk.files.mu.Lock()
	victims := l.disk.files.evict(0)
	l.disk.files.mu.Unlock()
	for _, v := range victims {
		require.NoError(t, v.file.Close())
	}
}

// TestAnAppendWithoutADescriptorIsRefused: a segment that cannot be opened to be written
// was not written. The batch is refused and the log serves on, and nothing is missing once
// there are descriptors again.
func TestAnAppendWithoutADescriptorIsRefused(t *testing.T) {
	for _, mode := range []FsyncMode{None, Periodic, OnCommit} {
		for _, lack := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE} {
			t.Run(fmt.Sprint(mode, " ", lack), func(t *testing.T) {
				faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
				o := manual(faulty, mode)
				var reverted []Offset
				o.Hooks.Reverted = func(next Offset) { reverted = append(reverted, next) }
				l := openClosed(t, testDir, o)
				appendN(t, l, 0, 3)
				settleAll(l)
				require.NoError(t, l.Sync(ctx))
				closeIdle(t, l)
				faulty.Add(disk.Rule{Op: disk.OpOpen, Count: disk.Forever, Action: disk.Fail(lack)})
				for range 3 {
					var outcome error
					enqueue(t, l, &Batch{Payloads: [][]byte{payload(9)}, Done: func(b *Batch) { outcome = b.Err }})
					settleAll(l)
					require.ErrorIs(t, outcome, ErrNotWritten)
					require.True(t, IsOutOfFiles(outcome), "%v", outcome)
					require.NotErrorIs(t, outcome, ErrUnknownOutcome)
					require.Equal(t, StateServing, l.Health().State)
				}
				require.Equal(t, []Offset{3, 3, 3}, reverted)
				faulty.Clear()
				appendN(t, l, 3, 2)
				settleAll(l)
				require.Equal(t, wantPayloads(0, 5), readAll(t, l))
				require.NoError(t, l.Close(ctx))
				require.Equal(t, wantPayloads(0, 5), readAll(t, openClosed(t, testDir, manual(faulty, mode))))
			})
		}
	}
}

// TestAFailedWriteIsCutWithoutADescriptor: what was left of a write that failed is cut with
// the file that was written, though others take every descriptor that nobody uses: it is
// "not written", and the log serves on.
func TestAFailedWriteIsCutWithoutADescriptor(t *testing.T) {
	for _, mode := range []FsyncMode{None, Periodic, OnCommit} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
			l := openClosed(t, testDir, manual(faulty, mode))
			appendN(t, l, 0, 3)
			settleAll(l)
			require.NoError(t, l.Sync(ctx))
			faulty.Add(disk.Rule{Op: disk.OpOpen, Count: disk.Forever, Action: disk.Fail(syscall.EMFILE)})
			// From the write on the file is closed as soon as nobody uses it.
			faulty.Add(disk.Rule{Op: disk.OpWrite, Action: disk.Call(l.pen.active.handle.retire)})
			faulty.Add(disk.Rule{Op: disk.OpWrite, Action: disk.Short(5, syscall.EIO)})
			var outcome error
			enqueue(t, l, &Batch{Payloads: [][]byte{payload(9)}, Done: func(b *Batch) { outcome = b.Err }})
			settleAll(l)
			require.ErrorIs(t, outcome, ErrNotWritten)
			require.ErrorIs(t, outcome, syscall.EIO)
			require.Equal(t, StateServing, l.Health().State)
			faulty.Clear()
			l.pen.active.handle.gone.Store(false)
			require.NoError(t, l.Close(ctx))
			require.Equal(t, wantPayloads(0, 3), readAll(t, openClosed(t, testDir, manual(faulty, mode))))
		})
	}
}

// TestIdleFilesGiveUpTheirDescriptors: where others take descriptors, so that there are
// fewer than a disk may use, its logs share what is left.
func TestIdleFilesGiveUpTheirDescriptors(t *testing.T) {
	strict := disk.NewStrict(1, disk.Options{MaxOpen: 4})
	d, err := NewDisk(DiskOptions{FS: strict})
	require.NoError(t, err)
	var logs []*Log
	for i := range 10 {
		o := manual(strict, None)
		o.Disk = d
		logs = append(logs, mustOpen(t, fmt.Sprint("/log", i), o))
	}
	for n := range 3 {
		for _, l := range logs {
			appendN(t, l, n, 1)
			require.Equal(t, wantPayloads(0, n+1), readAll(t, l))
		}
	}
	for _, l := range logs {
		closeIdle(t, l) // closing writes an index beside the segments
		require.NoError(t, l.Close(ctx))
	}
	require.NoError(t, d.Close())
}

// TestAFullDiskIsNamed: who is refused learns where there is no room, that nothing was
// written, and what to do, whether the reserve or the end of the disk was met.
func TestAFullDiskIsNamed(t *testing.T) {
	strict := disk.NewStrict(1, disk.Options{Capacity: 1 << 20})
	d, err := NewDisk(DiskOptions{FS: strict, Dir: "/", MinFree: 256 << 10})
	require.NoError(t, err)
	o := manual(strict, OnCommit)
	o.Disk, o.Shard = d, "t/ns/orders/3"
	l := openClosed(t, testDir, o)
	fill := func(reserve bool) error {
		for {
			if err := l.Append(ctx, &Batch{Payloads: [][]byte{make([]byte, 16<<10)}, UseReserve: reserve}); err != nil {
				return err
			}
		}
	}
	err = fill(false)
	var full *DiskFullError
	require.ErrorAs(t, err, &full)
	require.NoError(t, full.Cause)
	require.Less(t, full.Free, full.Reserve)
	require.Greater(t, full.Free, full.Reserve-64<<10, "what the disk has, not what is missing")
	require.EqualValues(t, 256<<10, full.Reserve)
	for _, part := range []string{"disk full", "t/ns/orders/3 in " + testDir, fmt.Sprint(full.Free), "262144 reserved", "nothing of this was written", "make room"} {
		require.ErrorContains(t, err, part)
	}
	require.Equal(t, err, l.Enqueue(plain("more")))

	err = fill(true)
	require.ErrorAs(t, err, &full)
	require.ErrorIs(t, full.Cause, syscall.ENOSPC)
	require.ErrorIs(t, err, ErrNotWritten)
	for _, part := range []string{"disk full", "t/ns/orders/3 in " + testDir, "00000000000000000000.log", "nothing of this was written", "make room"} {
		require.ErrorContains(t, err, part)
	}
}

// noDescriptors has everything that needs a descriptor fail from the nth such operation on.
func noDescriptors(faulty *disk.Faulty, nth int) {
	for _, op := range []disk.Op{disk.OpOpen, disk.OpCreate, disk.OpReadDir, disk.OpSyncDir} {
		faulty.Add(disk.Rule{Op: op, Nth: nth, Count: disk.Forever, Action: disk.Fail(syscall.EMFILE)})
	}
}

// rollBehind appends to a log until a segment waits to be sealed whose file is closed.
func rollBehind(t *testing.T, l *Log, done func(error)) (batches int) {
	t.Helper()
	for n := 0; ; n++ {
		enqueue(t, l, &Batch{Payloads: [][]byte{make([]byte, MinSegmentBytes/4)}, Done: func(b *Batch) { done(b.Err) }})
		l.mu.Lock()
		l.writeGroup()
		sealing := len(l.mu.sealing)
		l.mu.Unlock()
		if sealing > 0 {
			closeIdle(t, l)
			return n + 1
		}
		settleAll(l)
	}
}

// TestAFlushWithoutADescriptorIsPutOff: a segment that cannot be opened to be flushed was not
// flushed, which is no failed flush. The log serves, who waits goes on waiting, and what
// was put off is done when there are descriptors again, by itself.
func TestAFlushWithoutADescriptorIsPutOff(t *testing.T) {
	for _, mode := range []FsyncMode{None, Periodic, OnCommit} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
			o, clock := manual(faulty, mode), newTestClock()
			o.SegmentBytes, o.Clock = MinSegmentBytes, clock.Now
			told := 0
			o.Events.OnBackgroundError = func(string, string, error) { told++ }
			l := openClosed(t, testDir, o)
			answered := 0
			batches := rollBehind(t, l, func(err error) {
				require.NoError(t, err)
				answered++
			})
			noDescriptors(faulty, 1)
			for range 3 {
				told = 0
				settleAll(l)
				require.Positive(t, told)
				require.Less(t, told, 10, "it is not tried without end")
				require.Equal(t, StateServing, l.Health().State)
				if mode == OnCommit {
					require.Equal(t, batches-1, answered)
				}
				clock.Advance(Micros(passingDelay.Microseconds()))
			}
			if mode != OnCommit {
				err := l.Sync(ctx)
				require.True(t, IsOutOfFiles(err), "%v", err)
			}
			faulty.Clear()
			clock.Advance(Micros(passingDelay.Microseconds()))
			settleAll(l)
			require.Equal(t, batches, answered)
			require.True(t, l.list.Load().all[0].sealed.Load())
			require.NoError(t, l.Sync(ctx))
			require.Equal(t, l.Next(), l.Durable())
		})
	}
}

// TestAppendersOutwaitALackOfDescriptors is the same of a log that works by itself.
func TestAppendersOutwaitALackOfDescriptors(t *testing.T) {
	faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
	l := openClosed(t, testDir, Options{FS: faulty, Fsync: OnCommit, SegmentBytes: MinSegmentBytes})
	record := make([]byte, MinSegmentBytes*2/3)
	require.NoError(t, l.Append(ctx, &Batch{Payloads: [][]byte{record}}))
	first := l.list.Load().active()
	require.Eventually(t, func() bool { closeIdle(t, l); return first.handle.refs.Load() == handleClosed }, time.Minute, time.Millisecond)
	rule := faulty.Add(disk.Rule{Op: disk.OpOpen, Path: first.handle.path, Count: disk.Forever, Action: disk.Fail(syscall.EMFILE)})
	done := make(chan error, 1)
	go func() { done <- l.Append(ctx, &Batch{Payloads: [][]byte{record}}) }()
	require.Eventually(t, func() bool { return rule.Hits() > 1 }, time.Minute, time.Millisecond)
	require.Less(t, rule.Hits(), 100, "it is tried now and then")
	require.Empty(t, done)
	faulty.Clear()
	require.NoError(t, <-done)
	require.Equal(t, l.Next(), l.Durable())
}

// TestAReopenWithoutDescriptorsIsTriedAgain fails a flush, and lets the log be reopened while
// descriptors are lacking, from each operation on that takes one. It serves again by itself
// when there are some, and its owner is told once of what it found.
func TestAReopenWithoutDescriptorsIsTriedAgain(t *testing.T) {
	const none = 1 << 20
	for nth := 1; reopenLacking(t, nth, false); nth++ {
	}
	require.True(t, reopenLacking(t, none, true), "the owner has none to read what was found")
}

// reopenLacking reports whether what lacked mattered.
func reopenLacking(t *testing.T, nth int, owner bool) (refused bool) {
	faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
	o, clock := manual(faulty, OnCommit), newTestClock()
	o.Clock = clock.Now
	var found [][2]Offset
	o.Hooks.Reopened = func(from, next Offset) error {
		if owner {
			return syscall.EMFILE
		}
		found = append(found, [2]Offset{from, next})
		return nil
	}
	l := openClosed(t, testDir, o)
	appendN(t, l, 0, 2)
	faulty.Add(disk.Rule{Op: disk.OpDatasync, Path: "*.log", Action: disk.Fail(syscall.EIO)})
	require.ErrorIs(t, l.Append(ctx, &Batch{Payloads: [][]byte{payload(2)}}), ErrUnknownOutcome)
	closeIdle(t, l)
	noDescriptors(faulty, nth)
	if err := l.Reopen(ctx); err != nil {
		require.ErrorIs(t, err, syscall.EMFILE)
		require.Equal(t, StatePoisoned, l.Health().State)
		refused = true
	}
	faulty.Clear()
	owner = false
	clock.Advance(Micros(passingDelay.Microseconds()))
	settleAll(l)
	require.Equal(t, StateServing, l.Health().State)
	require.Equal(t, [][2]Offset{{2, 3}}, found)
	appendN(t, l, 3, 1)
	require.Equal(t, wantPayloads(0, 4), readAll(t, l))
	return refused
}
