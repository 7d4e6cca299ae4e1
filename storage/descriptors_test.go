package storage

import (
	"fmt"
	"syscall"
	"testing"

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
