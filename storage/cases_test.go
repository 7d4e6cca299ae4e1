package storage

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/segment"
)

// builtLog is a closed log of n records on a disk of its own.
func builtLog(t *testing.T, n int, change func(*Options)) (*disk.Strict, Options) {
	t.Helper()
	d := disk.NewStrict(1, disk.Options{})
	o := manual(d, OnCommit)
	if change != nil {
		change(&o)
	}
	l := mustOpen(t, testDir, o)
	appendN(t, l, 0, n)
	require.NoError(t, l.Close(ctx))
	return d, o
}

func small(o *Options) { o.SegmentBytes, o.IndexSpacing = MinSegmentBytes, 128 }

func TestCase01CutInTheMiddleOfTheLastRecord(t *testing.T) {
	d, o := builtLog(t, 100, nil)
	b, _ := fileOn(d, logPath(0))
	d.Put(logPath(0), []byte(b[:len(b)-5]))
	var cut []CutEvent
	o.Events.OnCut = func(_ string, e CutEvent) { cut = append(cut, e) }
	l := openClosed(t, testDir, o)
	require.Equal(t, wantPayloads(0, 99), readAll(t, l))
	require.Len(t, cut, 1)
	require.EqualValues(t, len(payload(0))+segment.RecordHeaderSize-5, cut[0].To-cut[0].From)
	require.True(t, cut[0].MayBeLost, "the mark had vouched for the record")
	require.False(t, cut[0].Zeros)
	bt := &Batch{Payloads: [][]byte{payload(99)}}
	require.NoError(t, l.Append(ctx, bt))
	require.Equal(t, Offset(99), bt.First)
}

func TestCase02ZeroPadding(t *testing.T) {
	for _, zeros := range []int{1, 27, 28, 512, 4096, 64 << 10} {
		d, o := builtLog(t, 50, nil)
		b, _ := fileOn(d, logPath(0))
		d.Put(logPath(0), append([]byte(b), make([]byte, zeros)...))
		var cut []CutEvent
		o.Events.OnCut = func(_ string, e CutEvent) { cut = append(cut, e) }
		l := mustOpen(t, testDir, o)
		require.EqualValues(t, zeros, l.Recovery().TruncatedBytes)
		require.Len(t, cut, 1)
		require.True(t, cut[0].Zeros)
		require.False(t, l.Recovery().MayHaveLost)
		require.Equal(t, wantPayloads(0, 50), readAll(t, l))
		require.Equal(t, Offset(50), l.Next())
		appendN(t, l, 50, 1)
		require.NoError(t, l.Close(ctx))
	}
}

func TestCase03FlippedByte(t *testing.T) {
	at := func(i int) int {
		return segment.HeaderSize + i*(segment.RecordHeaderSize+len(payload(0))) + segment.RecordHeaderSize + 2
	}
	flip := func(i int) (*disk.Strict, Options) {
		d, o := builtLog(t, 20, nil)
		s, _ := fileOn(d, logPath(0))
		b := []byte(s)
		b[at(i)] ^= 0x40
		d.Put(logPath(0), b)
		return d, o
	}
	t.Run("last refuses", func(t *testing.T) {
		d, o := flip(19)
		before := d.Files()
		_, err := Open(ctx, testDir, o)
		require.ErrorContains(t, err, "repair_checksum_tail")
		requireSameFiles(t, before, d.Files())
	})
	t.Run("last repaired", func(t *testing.T) {
		_, o := flip(19)
		o.RepairChecksumTail = true
		l := openClosed(t, testDir, o)
		require.True(t, l.Recovery().MayHaveLost)
		require.Equal(t, wantPayloads(0, 19), readAll(t, l))
	})
	t.Run("last past the mark of a restarted machine", func(t *testing.T) {
		d, o := flip(19)
		d.Put(testDir+"/"+segment.MarkName, segment.AppendMark(nil, segment.Mark{Segment: 0, SyncedBytes: int64(at(19)) - 2 - segment.RecordHeaderSize}))
		o.Restarted = true
		l := openClosed(t, testDir, o)
		require.Equal(t, wantPayloads(0, 19), readAll(t, l))
	})
	t.Run("last below the mark of a restarted machine, or with no mark", func(t *testing.T) {
		for _, marked := range []bool{true, false} {
			d, o := flip(19)
			if !marked {
				require.NoError(t, d.Remove(testDir+"/"+segment.MarkName))
			}
			before := d.Files()
			o.Restarted = true
			_, err := Open(ctx, testDir, o)
			require.ErrorAs(t, err, new(*DamagedError))
			requireSameFiles(t, before, d.Files())
		}
	})
	t.Run("middle is never a tail", func(t *testing.T) {
		for _, repair := range []bool{false, true} {
			d, o := flip(10)
			o.RepairChecksumTail = repair
			before := d.Files()
			_, err := Open(ctx, testDir, o)
			var c *segment.Corruption
			require.ErrorAs(t, err, &c)
			require.Equal(t, segment.RecordChecksum, c.Kind)
			require.EqualValues(t, 10, c.Offset)
			requireSameFiles(t, before, d.Files())
		}
	})
	t.Run("a flip that comes later is never served", func(t *testing.T) {
		d, o := builtLog(t, 20, nil)
		l := openClosed(t, testDir, o)
		s, _ := fileOn(d, logPath(0))
		b := []byte(s)
		b[at(10)] ^= 0x40
		d.Put(logPath(0), b)
		var p Page
		require.NoError(t, l.Read(ctx, &p, ReadRange{From: 0}))
		require.Len(t, p.Records, 10, "what is good comes first")
		var damaged *DamagedError
		require.ErrorAs(t, l.Read(ctx, &p, ReadRange{From: p.Next}), &damaged)
		require.Empty(t, p.Records)
		require.NoError(t, l.Read(ctx, &p, ReadRange{From: 11}))
		require.Len(t, p.Records, 9)
	})
}

func TestCase04KilledWhileTheIndexIsRebuilt(t *testing.T) {
	_, o := builtLog(t, 200, small)
	base := o.FS.(*disk.Strict)
	require.NoError(t, base.Remove(indexPath(2)))
	require.NoError(t, base.Remove(indexPath(4)))
	probe := base.Fork(1)
	o.FS = probe
	l := mustOpen(t, testDir, o)
	require.Equal(t, 2, l.Recovery().IndexesRebuilt)
	ops := probe.Ops()
	require.NoError(t, l.Close(ctx))
	for n := range ops + 1 {
		d := base.Fork(uint64(n))
		d.StopAfter(n)
		o.FS = d
		if l, err := Open(ctx, testDir, o); err == nil {
			require.Equal(t, StateServing, l.Health().State)
		}
		o.FS = d.Kill()
		l := mustOpen(t, testDir, o)
		require.Equal(t, wantPayloads(0, 200), readAll(t, l), "killed after operation %d", n)
		require.NoError(t, l.Close(ctx))
	}
}

func TestCase09EmptyStateFiles(t *testing.T) {
	for _, name := range []string{segment.MarkName, segment.EpochsName, segment.ProducersName, "snapshot"} {
		d, o := builtLog(t, 30, small)
		d.Put(testDir+"/"+name, nil)
		l := mustOpen(t, testDir, o)
		require.Equal(t, wantPayloads(0, 30), readAll(t, l), name)
		require.NoError(t, l.Close(ctx))
	}
	d, o := builtLog(t, 30, small)
	d.Put(testDir+"/"+segment.ReplicaName, nil)
	before := d.Files()
	_, err := Open(ctx, testDir, o)
	require.ErrorContains(t, err, segment.ReplicaName)
	requireSameFiles(t, before, d.Files())
}

func TestCase10EveryDamageOfEveryIndex(t *testing.T) {
	d, o := builtLog(t, 200, small)
	clean := d.Files()
	var ids []SegmentID
	for id := SegmentID(0); ; id++ {
		if _, ok := fileOn(d, indexPath(id)); !ok {
			break
		}
		ids = append(ids, id)
	}
	require.Greater(t, len(ids), 5)
	times := func(l *Log) (out []Offset) {
		for m := Micros(1_000_000_000); m < 1_000_000_400; m += 7 {
			off, _, err := l.OffsetForTime(ctx, m)
			require.NoError(t, err)
			out = append(out, off)
		}
		return out
	}
	l := mustOpen(t, testDir, o)
	wantTimes := times(l)
	require.NoError(t, l.Close(ctx))
	for _, id := range ids {
		index := clean[strings.TrimPrefix(indexPath(id), "/")]
		other := clean[strings.TrimPrefix(indexPath((id+1)%SegmentID(len(ids))), "/")]
		for what, b := range map[string][]byte{
			"deleted": nil, "empty": {}, "half an entry": []byte(index[:len(index)-8]), "another's": []byte(other),
			"zero": make([]byte, len(index)), "short": []byte(index[:24+16]),
			"wrong position": append([]byte(index[:len(index)-1]), index[len(index)-1]+1),
		} {
			fork := d.Fork(1)
			if b == nil {
				require.NoError(t, fork.Remove(indexPath(id)))
			} else {
				fork.Put(indexPath(id), b)
			}
			o.FS = fork
			l := mustOpen(t, testDir, o)
			require.Equal(t, wantPayloads(0, 200), readAll(t, l), "%s %d", what, id)
			require.Equal(t, wantTimes, times(l), "%s %d", what, id)
			require.NoError(t, l.Close(ctx))
			got, _ := fileOn(fork, indexPath(id))
			require.Equal(t, index, got, "%s %d: not rebuilt", what, id)
		}
	}
}

func TestMissingMarkIsReported(t *testing.T) {
	d, o := builtLog(t, 200, small)
	mark := testDir + "/" + segment.MarkName
	several := func(t *testing.T, change func(*disk.Strict), missing bool) {
		fork := d.Fork(1)
		change(fork)
		o := o
		o.FS = fork
		var told RecoveryReport
		o.Events.OnRecovery = func(_ string, r RecoveryReport) { told = r }
		l := mustOpen(t, testDir, o)
		require.Greater(t, l.Recovery().Segments, 1)
		require.Equal(t, missing, l.Recovery().MarkMissing)
		require.Equal(t, missing, told.MarkMissing)
		require.False(t, l.Recovery().MayHaveLost)
		require.Equal(t, wantPayloads(0, 200), readAll(t, l))
		require.NoError(t, l.Close(ctx))

		again := mustOpen(t, testDir, o)
		require.False(t, again.Recovery().MarkMissing, "an open writes the mark anew")
		require.NoError(t, again.Close(ctx))
	}
	t.Run("there", func(t *testing.T) { several(t, func(*disk.Strict) {}, false) })
	t.Run("removed", func(t *testing.T) {
		several(t, func(d *disk.Strict) { require.NoError(t, d.Remove(mark)) }, true)
	})
	t.Run("damaged", func(t *testing.T) {
		several(t, func(d *disk.Strict) { d.Put(mark, make([]byte, 32)) }, true)
	})
	t.Run("not of a log of one segment", func(t *testing.T) {
		d, o := builtLog(t, 20, nil)
		require.NoError(t, d.Remove(mark))
		l := openClosed(t, testDir, o)
		require.False(t, l.Recovery().MarkMissing)
	})
}

func TestCase11OrphanIndexAndSegment(t *testing.T) {
	d, o := builtLog(t, 200, small)
	last := SegmentID(0)
	for {
		if _, ok := fileOn(d, logPath(last+1)); !ok {
			break
		}
		last++
	}
	t.Run("index alone", func(t *testing.T) {
		fork := d.Fork(1)
		require.NoError(t, fork.Remove(logPath(last)))
		o := o
		o.FS = fork
		l := mustOpen(t, testDir, o)
		_, there := fileOn(fork, indexPath(last))
		require.False(t, there)
		require.True(t, l.Recovery().MayHaveLost)
		n := int(l.Next())
		require.Less(t, n, 200)
		require.Equal(t, wantPayloads(0, n), readAll(t, l))
		require.NoError(t, l.Close(ctx))
	})
	t.Run("segment alone", func(t *testing.T) {
		fork := d.Fork(1)
		require.NoError(t, fork.Remove(indexPath(last)))
		o := o
		o.FS = fork
		l := mustOpen(t, testDir, o)
		require.Equal(t, wantPayloads(0, 200), readAll(t, l))
		require.NoError(t, l.Close(ctx))
	})
}

func TestCase17StrayFiles(t *testing.T) {
	d, o := builtLog(t, 10, nil)
	strays := []string{".DS_Store", "tmp~", "0001.segment.bak", "000.log"}
	for _, s := range strays {
		d.Put(testDir+"/"+s, []byte("stray"))
	}
	require.NoError(t, d.MkdirAll(testDir+"/empty"))
	var warned []string
	o.Events.OnStray = func(_, name string) { warned = append(warned, name) }
	l := openClosed(t, testDir, o)
	require.ElementsMatch(t, append(strays, "empty"), warned)
	require.Equal(t, wantPayloads(0, 10), readAll(t, l))
	for _, s := range strays {
		b, ok := fileOn(d, testDir+"/"+s)
		require.True(t, ok)
		require.Equal(t, "stray", b)
	}
}

func TestCase18FailedFlushPoisons(t *testing.T) {
	faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
	o := manual(faulty, OnCommit)
	var events []string
	o.Events.OnSyncFailure = func(_ string, err error) { events = append(events, "sync failure") }
	o.Events.OnPoison = func(_ string, err *PoisonedError) { events = append(events, "poisoned") }
	o.Events.OnReopen = func(string) { events = append(events, "reopened") }
	l := openClosed(t, testDir, o)
	appendN(t, l, 0, 3)
	faulty.Add(disk.Rule{Op: disk.OpDatasync, Path: "*.log", Action: disk.Fail(syscall.EIO)})
	err := l.Append(ctx, &Batch{Payloads: [][]byte{payload(3)}})
	require.ErrorIs(t, err, ErrUnknownOutcome)
	require.ErrorIs(t, err, syscall.EIO)
	for range 3 {
		var poisoned *PoisonedError
		require.ErrorAs(t, l.Append(ctx, &Batch{Payloads: [][]byte{payload(4)}}), &poisoned)
		require.ErrorAs(t, l.Enqueue(&Batch{Payloads: [][]byte{payload(4)}}), &poisoned)
	}
	require.Equal(t, StatePoisoned, l.Health().State)
	require.Equal(t, wantPayloads(0, 3), readAll(t, l), "reads still work")
	require.Equal(t, []string{"sync failure", "poisoned"}, events)
	require.NoError(t, l.Reopen(ctx))
	require.Equal(t, []string{"sync failure", "poisoned", "reopened"}, events)
	require.Equal(t, wantPayloads(0, 4), readAll(t, l), "the unknown one was there")
	appendN(t, l, 4, 2)
	require.Equal(t, wantPayloads(0, 6), readAll(t, l))
}

func TestCase19FlushAfterAFailedFlush(t *testing.T) {
	strict := disk.NewStrict(1, disk.Options{})
	faulty := disk.NewFaulty(strict)
	o := manual(faulty, OnCommit)
	l := mustOpen(t, testDir, o)
	appendN(t, l, 0, 3)
	// The flush fails and the kernel forgets the dirty pages; the next one would succeed.
	faulty.Add(disk.Rule{Op: disk.OpDatasync, Path: "*.log", Action: disk.FailAndDrop(syscall.EIO)})
	var got []error
	batches := make([]*Batch, 5)
	for i := range batches {
		batches[i] = &Batch{Payloads: [][]byte{payload(3 + i)}, Done: func(b *Batch) { got = append(got, b.Err) }}
		err := l.Enqueue(batches[i])
		if err != nil {
			got = append(got, err)
		}
		if i == 2 {
			settleAll(l)
		}
	}
	settleAll(l)
	require.Len(t, got, 5)
	for _, err := range got {
		require.Error(t, err)
	}
	o.FS = strict.Crash()
	o.Restarted = true
	l = openClosed(t, testDir, o)
	all := readAll(t, l)
	require.GreaterOrEqual(t, len(all), 3)
	require.Equal(t, wantPayloads(0, len(all)), all)
}

func TestCase20DiskFull(t *testing.T) {
	for _, mode := range []FsyncMode{None, Periodic, OnCommit} {
		t.Run(mode.String(), func(t *testing.T) {
			d := disk.NewStrict(1, disk.Options{Capacity: 1 << 20})
			d.Put("/filler", make([]byte, 200<<10))
			o := manual(d, mode)
			clock := newTestClock()
			o.Clock = clock.Now
			l := openClosed(t, testDir, o)
			record := make([]byte, 10<<10)
			var err error
			n := 0
			for ; err == nil; n++ {
				err = l.Append(ctx, &Batch{Payloads: [][]byte{record}})
			}
			n--
			require.Greater(t, n, 60)
			require.ErrorIs(t, err, ErrDiskFull)
			require.NotErrorIs(t, err, ErrUnknownOutcome)
			require.ErrorIs(t, err, syscall.ENOSPC)
			require.ErrorIs(t, l.Append(ctx, &Batch{Payloads: [][]byte{record}}), ErrDiskFull)
			require.NoError(t, d.Remove("/filler"))
			clock.Advance(Micros(time.Second / time.Microsecond))
			settleAll(l)
			for range 5 {
				b := &Batch{Payloads: [][]byte{record}}
				require.NoError(t, l.Append(ctx, b))
				require.Equal(t, Offset(n), b.First)
				n++
			}
			var all []string
			require.Len(t, append(all, readAll(t, l)...), n)
		})
	}
}

func TestCase20FlushRunsOutOfSpace(t *testing.T) {
	faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
	o := manual(faulty, OnCommit)
	clock := newTestClock()
	o.Clock = clock.Now
	var reopened [][2]Offset
	o.Hooks.Reopened = func(from, next Offset) error { reopened = append(reopened, [2]Offset{from, next}); return nil }
	l := openClosed(t, testDir, o)
	appendN(t, l, 0, 2)
	faulty.Add(disk.Rule{Op: disk.OpDatasync, Path: "*.log", Action: disk.NoSpace(0)})
	require.ErrorIs(t, l.Append(ctx, &Batch{Payloads: [][]byte{payload(2)}}), ErrUnknownOutcome)
	require.Equal(t, StatePoisoned, l.Health().State)
	require.False(t, l.Step(), "not yet due")
	clock.Advance(Micros(time.Second / time.Microsecond))
	require.True(t, l.Step())
	require.Equal(t, StateServing, l.Health().State, "room is there again")
	require.Equal(t, [][2]Offset{{2, 3}}, reopened)
	appendN(t, l, 3, 1)
	require.Equal(t, wantPayloads(0, 4), readAll(t, l))
}

func TestCase24RecordFromTheFuture(t *testing.T) {
	clock := newTestClock()
	d := disk.NewStrict(1, disk.Options{})
	o := manual(d, None)
	small(&o)
	o.Clock = clock.Now
	o.RetentionAge = 2 * time.Second
	var ahead int
	o.Events.OnClockAhead = func(string, Micros, Micros) { ahead++ }
	l := openClosed(t, testDir, o)
	const tenYears = Micros(10 * 365 * 24 * time.Hour / time.Microsecond)
	start := clock.Now()
	clock.Set(start + tenYears)
	appendN(t, l, 0, 1)
	clock.Set(start)
	appendN(t, l, 1, 100)
	require.Positive(t, ahead)
	closed := len(l.Segments()) - 1
	require.Greater(t, closed, 3)
	off, ok, err := l.OffsetForTime(ctx, start+tenYears/2)
	require.NoError(t, err)
	require.True(t, ok)
	require.Zero(t, off, "the first at or before which such a time was given")
	res, err := l.EnforceRetention(ctx, 0)
	require.NoError(t, err)
	require.Zero(t, res.Segments, "too young")
	clock.Advance(Micros(5 * time.Second / time.Microsecond))
	settleAll(l)
	res, err = l.EnforceRetention(ctx, 0)
	require.NoError(t, err)
	for _, s := range l.Segments() {
		require.False(t, s.Sealed, "a closed segment outlived its age: %+v (removed %d)", s, res.Segments)
	}
	// Times do not descend from now on, and the log still takes records.
	appendN(t, l, 101, 5)
}

// TestCase24FutureThroughout is the same log without a record of the right time: age then
// counts from when the segments were found.
func TestCase24FutureThroughout(t *testing.T) {
	clock := newTestClock()
	start := clock.Now()
	clock.Set(start + Micros(10*365*24*time.Hour/time.Microsecond))
	_, o := builtLog(t, 100, func(o *Options) {
		small(o)
		o.Clock = clock.Now
	})
	clock.Set(start)
	o.RetentionAge = 2 * time.Second
	l := openClosed(t, testDir, o)
	_, err := l.EnforceRetention(ctx, 0)
	require.NoError(t, err)
	require.Zero(t, l.Head(), "found a moment ago")
	clock.Advance(Micros(5 * time.Second / time.Microsecond))
	_, err = l.EnforceRetention(ctx, 0)
	require.NoError(t, err)
	require.Greater(t, l.Head(), Offset(50))
	clock.Advance(Micros(5 * time.Second / time.Microsecond)) // the quiet one was sealed at the last look
	_, err = l.EnforceRetention(ctx, 0)
	require.NoError(t, err)
	require.Equal(t, Offset(100), l.Head())
}

func TestCase26SegmentSizeTooSmall(t *testing.T) {
	for _, size := range []int64{1, 100, MinSegmentBytes - 1, -5} {
		_, err := Open(ctx, testDir, Options{FS: disk.NewStrict(1, disk.Options{}), SegmentBytes: size})
		var oe *OptionError
		require.ErrorAs(t, err, &oe)
		require.Equal(t, "SegmentBytes", oe.Name)
		require.ErrorContains(t, err, fmt.Sprint(MinSegmentBytes))
	}
	o := manual(disk.NewStrict(1, disk.Options{}), OnCommit)
	o.SegmentBytes = MinSegmentBytes
	l := openClosed(t, testDir, o)
	big := make([]byte, 3*MinSegmentBytes)
	for range 10 {
		require.NoError(t, l.Append(ctx, &Batch{Payloads: [][]byte{big}}))
	}
	settleAll(l)
	require.Len(t, l.Segments(), 10, "one record a segment")
	require.Len(t, readAll(t, l), 10)
}

func TestCase81ReadBelowTheHead(t *testing.T) {
	_, o := builtLog(t, 200, small)
	l := openClosed(t, testDir, o)
	_, err := l.TrimHead(ctx, 100)
	require.NoError(t, err)
	head := l.Head()
	require.Positive(t, head)
	require.LessOrEqual(t, head, Offset(100))
	for _, from := range []Offset{0, head - 1} {
		var p Page
		var trimmed *TrimmedError
		require.ErrorAs(t, l.Read(ctx, &p, ReadRange{From: from}), &trimmed)
		require.Equal(t, TrimmedError{Requested: from, Oldest: head}, *trimmed)
	}
	require.Equal(t, wantPayloads(int(head), 200), readAll(t, l))
}

func TestCase117RecoveryIsBoundedAndTellsProgress(t *testing.T) {
	d, o := builtLog(t, 2000, func(o *Options) { o.SegmentBytes = 64 << 10 })
	o.FS = d
	o.VerifyAllOnOpen = true
	var last, total int64
	o.Events.OnRecoveryProgress = func(_ string, read, of int64) {
		require.GreaterOrEqual(t, read, last)
		last, total = read, of
	}
	l := openClosed(t, testDir, o)
	require.Positive(t, total)
	require.GreaterOrEqual(t, last, total-int64(len(l.Segments()))*segment.HeaderSize)
	require.Equal(t, 2000, len(readAll(t, l)))
}

// TestCase117RecoveryKeepsNoIndexOfASealedSegment: what recovery holds in memory does not
// grow with the number of segments.
func TestCase117RecoveryKeepsNoIndexOfASealedSegment(t *testing.T) {
	for _, all := range []bool{false, true} {
		_, o := builtLog(t, 500, small)
		o.VerifyAllOnOpen = all
		l := openClosed(t, testDir, o)
		require.Greater(t, len(l.Segments()), 10)
		require.NoError(t, l.Close(ctx))
		r, err := l.recover(ctx, false)
		require.NoError(t, err)
		for i, s := range r.segs {
			require.Equal(t, i == len(r.segs)-1, s.index != nil, "segment %d of %d", i, len(r.segs))
		}
	}
}

// A process is killed between the removal of a segment and the flush of the directory,
// and the next one serves from the new head: a power cut then brings nothing back.
func TestATrimSeenOnceStays(t *testing.T) {
	d, o := builtLog(t, 200, small)
	l := mustOpen(t, testDir, o)
	segs := l.Segments()
	require.Greater(t, len(segs), 3)
	faulty := disk.NewFaulty(d)
	require.NoError(t, l.Close(ctx))
	o.FS = faulty
	l = mustOpen(t, testDir, o)
	faulty.Add(disk.Rule{Op: disk.OpSyncDir, Path: testDir, Nth: 1, Count: disk.Forever, Action: disk.Fail(errDevice)})
	_, err := l.TrimHead(ctx, segs[2].Base)
	require.ErrorIs(t, err, errDevice)
	d = d.Kill()
	o.FS = d
	l = mustOpen(t, testDir, o)
	head := l.Head()
	require.Greater(t, head, segs[0].Base)
	o.FS, o.Restarted = d.Crash(), true
	l = openClosed(t, testDir, o)
	require.Equal(t, head, l.Head())
}
