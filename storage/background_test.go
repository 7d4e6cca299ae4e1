package storage

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

var errDevice = errors.New("device error")

// bubbleDisk is a disk with faults, and a way to open logs on it, inside a bubble.
func bubbleDisk(t *testing.T) (*disk.Faulty, func(name string) *Log) {
	t.Helper()
	faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
	d, err := NewDisk(DiskOptions{FS: faulty, Dir: "/"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return faulty, func(name string) *Log {
		l, err := Open(ctx, name, Options{Disk: d, FsyncInterval: 5 * time.Millisecond})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close(ctx)) })
		return l
	}
}

// A flush that the device holds up delays no other log's.
func TestOneSlowLogHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faulty, open := bubbleDisk(t)
		gate := disk.NewGate()
		faulty.Add(disk.Rule{Op: disk.OpDatasync, Path: "/a/*.log", Count: disk.Forever, Action: disk.Hold(gate)})
		a, b := open("/a"), open("/b")
		appendN(t, a, 0, 1)
		require.NoError(t, gate.Await(ctx, 1))
		appendN(t, b, 0, 1)
		time.Sleep(50 * time.Millisecond)
		require.Equal(t, b.Written(), b.Durable())
		require.Zero(t, a.Durable())
		gate.Open()
	})
}

// What became due while a section had the log to itself is done after it.
func TestBackgroundWorkGoesOnAfterAnExclusiveSection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faulty, open := bubbleDisk(t)
		gate := disk.NewGate()
		l, other := open("/l"), open("/x")
		rule := faulty.Add(disk.Rule{Op: disk.OpDatasync, Path: "/l/durable.mark", Count: disk.Forever, Action: disk.Hold(gate)})
		appendN(t, l, 0, 1)
		require.NoError(t, gate.Await(ctx, 1)) // a worker flushes the mark
		appendN(t, other, 0, 1)
		appendN(t, l, 1, 1)
		time.Sleep(50 * time.Millisecond) // both flushes became due
		done := make(chan error)
		go func() { done <- l.Reopen(ctx) }() // of a log that serves: it only takes the log to itself
		synctest.Wait()
		rule.Remove()
		gate.Open()
		require.NoError(t, <-done)
		time.Sleep(50 * time.Millisecond)
		require.Equal(t, l.Written(), l.Durable())
	})
}

// A batch that a background flush made durable is answered then, not when the other
// background work is done.
func TestAnAnswerDoesNotWaitForRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
		flush, remove := disk.NewGate(), disk.NewGate()
		rolled := false
		o := Options{FS: faulty, Fsync: OnCommit, SegmentBytes: MinSegmentBytes}
		o.Events.OnRoll = func(string, Descriptor, Descriptor) {
			rolled = true
			faulty.Add(disk.Rule{Op: disk.OpDatasync, Path: "*.log", Action: disk.Hold(flush)})
		}
		var armed sync.Once
		o.Hooks.Written = func(*Group) {
			if rolled {
				armed.Do(func() { _ = flush.Await(ctx, 1) }) // a worker flushes, to seal
			}
		}
		l, err := Open(ctx, testDir, o)
		require.NoError(t, err)
		faulty.Add(disk.Rule{Op: disk.OpRemove, Path: "*.log", Count: disk.Forever, Action: disk.Hold(remove)})
		l.SetRetention(RetentionPolicy{Bytes: 1, Interval: time.Millisecond})
		for !rolled {
			acked := make(chan error, 1)
			go func() { acked <- l.Append(ctx, &Batch{Payloads: [][]byte{make([]byte, 300)}}) }()
			synctest.Wait()
			if !rolled {
				require.NoError(t, <-acked)
				continue
			}
			time.Sleep(50 * time.Millisecond)
			flush.Open()
			require.NoError(t, remove.Await(ctx, 1)) // retention removes a file, slowly
			synctest.Wait()
			select {
			case err := <-acked:
				require.NoError(t, err)
			default:
				t.Error("a durable batch waits for retention")
			}
		}
		remove.Open()
		require.NoError(t, l.Close(ctx))
	})
}

// Who drives completes a bounded number of groups and leaves those that keep coming.
func TestDriveLeavesWhatKeepsComing(t *testing.T) {
	const most = (driveApplies + 1) * applyMost
	var completed atomic.Int64
	released := make(chan struct{})
	o := Options{FS: disk.NewStrict(1, disk.Options{})}
	o.Hooks.Stable = func(*Group) {
		if completed.Add(1) > most {
			<-released
		}
	}
	l, err := Open(ctx, testDir, o)
	require.NoError(t, err)
	l.mu.Lock()
	for range 2 * most {
		l.mu.apply.push(l.getGroup())
	}
	l.mu.Unlock()
	driven := make(chan struct{})
	go func() {
		l.Drive(true)
		close(driven)
	}()
	short, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	select {
	case <-driven:
	case <-short.Done():
		t.Error("Drive stays for all of them")
	}
	close(released)
	<-driven
	require.NoError(t, l.Close(ctx))
	require.EqualValues(t, 2*most, completed.Load(), "somebody else completes the rest")
}

// A generation that began behind the last entry of an index, which is older than it, is
// found after a kill.
func TestGenerationsOutliveAKillBeforeTheSeal(t *testing.T) {
	start := func(l *Log, g uint64) Offset {
		b := &Batch{Kind: KindGenerationStart, Payloads: [][]byte{binary.BigEndian.AppendUint64(nil, g)}}
		require.NoError(t, l.Append(ctx, b))
		return b.First
	}
	for _, fill := range []int{200, 1} { // with a second index entry, and without
		fs := disk.NewStrict(1, disk.Options{})
		o := manual(fs, None)
		o.SegmentBytes = 16 << 10
		l := mustOpen(t, testDir, o)
		start(l, 1)
		appendN(t, l, 0, fill)
		require.NoError(t, l.Close(ctx))
		l = mustOpen(t, testDir, o)
		second := start(l, 2)
		for i := 0; len(l.Segments()) == 1; i++ {
			appendN(t, l, i, 1)
		}
		want := l.Generations()
		id, err := l.RecordID(ctx, second+1)
		require.NoError(t, err)
		o.FS = fs.Kill()
		l = openClosed(t, testDir, o)
		require.Equal(t, want, l.Generations())
		got, err := l.RecordID(ctx, second+1)
		require.NoError(t, err)
		require.Equal(t, id, got)
	}
}

// A flush failed and the device dropped what it held: records that were acknowledged and
// read. Their offsets are not given again under those who know them.
func TestReopenGivesNoOffsetTwice(t *testing.T) {
	dir := t.TempDir()
	faulty := disk.NewFaulty(vfs.OS())
	l, err := Open(ctx, dir, Options{FS: faulty, FsyncInterval: time.Hour})
	require.NoError(t, err)
	appendN(t, l, 0, 1)
	require.NoError(t, l.Sync(ctx))
	size := l.Segments()[0].Bytes
	appendN(t, l, 1, 1)
	require.Len(t, readAll(t, l), 2)
	end := l.Segments()[0].Bytes
	faulty.Add(disk.Rule{Op: disk.OpDatasync, Path: "*.log", Action: disk.Fail(errDevice)})
	require.ErrorIs(t, l.Sync(ctx), errDevice)
	f, err := vfs.OS().OpenFile(filepath.Join(dir, segment.SegmentName(0)), vfs.ReadWrite)
	require.NoError(t, err)
	_, err = f.WriteAt(make([]byte, end-size), size)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	var lost *LostError
	require.ErrorAs(t, l.Reopen(ctx), &lost)
	require.Equal(t, LostError{From: 1, Until: 2}, *lost)
	require.Equal(t, StatePoisoned, l.Health().State)
	var poisoned9 *PoisonedError
	require.ErrorAs(t, l.Append(ctx, &Batch{Payloads: [][]byte{payload(9)}}), &poisoned9)
	require.Error(t, l.Close(ctx))
	l = openClosed(t, dir, Options{})
	require.Equal(t, wantPayloads(0, 1), readAll(t, l), "a new opening accepts the loss")
}

// The header of an empty segment is neither the old nor the new one: nothing may be
// written behind it until it is whole again.
func TestATornHeaderPoisons(t *testing.T) {
	fs := disk.NewStrict(1, disk.Options{})
	faulty := disk.NewFaulty(fs)
	l := mustOpen(t, testDir, manual(faulty, OnCommit))
	faulty.Add(disk.Rule{Op: disk.OpWrite, Path: "*.log", Action: disk.Short(6, errDevice)})
	faulty.Add(disk.Rule{Op: disk.OpWrite, Path: "*.log", Nth: 1, Action: disk.Fail(errDevice)})
	generation := &Batch{Kind: KindGenerationStart, Payloads: [][]byte{binary.BigEndian.AppendUint64(nil, 1)}}
	require.Error(t, l.Append(ctx, generation))
	var poisoned0 *PoisonedError
	require.ErrorAs(t, l.Append(ctx, &Batch{Payloads: [][]byte{payload(0)}}), &poisoned0)
	require.NoError(t, l.Reopen(ctx))
	require.NoError(t, l.Append(ctx, generation))
	appendN(t, l, 0, 1)
	require.NoError(t, l.Close(ctx))
	l = openClosed(t, testDir, manual(fs, OnCommit))
	require.Equal(t, append([]string{string(generation.Payloads[0])}, wantPayloads(0, 1)...), readAll(t, l))
}

func TestClosingAPoisonedLogSaysSo(t *testing.T) {
	faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
	l, err := Open(ctx, testDir, Options{FS: faulty, FsyncInterval: time.Hour})
	require.NoError(t, err)
	appendN(t, l, 0, 1)
	faulty.Add(disk.Rule{Op: disk.OpDatasync, Path: "*.log", Action: disk.Fail(errDevice)})
	require.ErrorIs(t, l.Sync(ctx), errDevice)
	require.ErrorIs(t, l.Close(ctx), errDevice, "what was acknowledged is not on the device")
}

// A follower is sent records it has, with new ones behind: it rolls where the leader
// does.
func TestOverlappingShipmentsDoNotRoll(t *testing.T) {
	leader := openClosed(t, "/leader", manual(disk.NewStrict(1, disk.Options{}), None))
	follower := openClosed(t, "/follower", manual(disk.NewStrict(1, disk.Options{}), None))
	for i := range 10 {
		appendN(t, leader, i, 1)
		from := Offset(max(0, i-2))
		encoded, _, err := leader.ReadEncoded(ctx, from, 1<<20, nil)
		require.NoError(t, err)
		var prev RecordID
		if from > 0 {
			prev, err = leader.RecordID(ctx, from-1)
			require.NoError(t, err)
		}
		require.NoError(t, follower.AppendEncoded(ctx, prev, encoded))
	}
	require.Len(t, follower.Segments(), 1)
	require.Equal(t, wantPayloads(0, 10), readAll(t, follower))
}

// TestTimedLogs compares the heap of due logs with a sweep over all of them.
func TestTimedLogs(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var queue timed
	logs := make([]*Log, 50)
	for i := range logs {
		logs[i] = new(Log)
	}
	want := make(map[*Log]time.Time)
	for range 5000 {
		l := logs[rnd.IntN(len(logs))]
		switch rnd.IntN(3) {
		case 0, 1:
			at := time.UnixMicro(rnd.Int64N(1000))
			queue.set(l, at)
			if old, ok := want[l]; !ok || at.Before(old) {
				want[l] = at
			}
		case 2:
			queue.remove(l)
			delete(want, l)
		}
		first := queue.first()
		require.Equal(t, len(want) == 0, first == nil)
		for l, at := range want {
			require.Equal(t, at, l.due.at)
			require.False(t, at.Before(first.due.at))
		}
	}
}

// A cut that stopped half-way leaves less on disk than the log had: who reads past it is
// told that the log is poisoned.
func TestReadsBehindAHalfDoneCut(t *testing.T) {
	faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
	l := mustOpen(t, testDir, manual(faulty, None))
	appendN(t, l, 0, 60)
	faulty.Add(disk.Rule{Op: disk.OpSync, Path: "*.log", Action: disk.Fail(errDevice)})
	require.ErrorIs(t, l.TruncateTo(ctx, 20), errDevice)
	var page Page
	var poisoned *PoisonedError
	require.ErrorAs(t, l.Read(ctx, &page, ReadRange{From: 40, Limit: LimitWritten}), &poisoned)
	require.NoError(t, l.Read(ctx, &page, ReadRange{From: 10}))
	require.NoError(t, l.Reopen(ctx))
	require.Equal(t, wantPayloads(0, 20), readAll(t, l))
	require.NoError(t, l.Close(ctx))
}
