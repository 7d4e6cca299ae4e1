package storage

import (
	"encoding/binary"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/segment"
)

func generation(g Generation) *Batch {
	return &Batch{Payloads: [][]byte{binary.BigEndian.AppendUint64(nil, uint64(g))}, Kind: KindGenerationStart}
}

func mustAppend(t testing.TB, l *Log, b *Batch) Offset {
	t.Helper()
	require.NoError(t, l.Append(ctx, b))
	return b.First
}

// ship copies what follower lacks from leader, a few bytes at a time.
func ship(t *testing.T, leader, follower *Log, maxBytes int) {
	t.Helper()
	for follower.Next() < leader.Written() {
		from := follower.Next()
		var prev RecordID
		if from > leader.Head() {
			var err error
			prev, err = leader.RecordID(ctx, from-1)
			require.NoError(t, err)
		}
		b, next, err := leader.ReadEncoded(ctx, from, maxBytes, nil)
		require.NoError(t, err)
		require.Greater(t, next, from)
		require.NoError(t, follower.AppendEncoded(ctx, prev, b))
		require.Equal(t, next, follower.Next())
	}
}

func encodedAll(t *testing.T, l *Log) (out []byte) {
	t.Helper()
	for off := l.Head(); off < l.Written(); {
		var err error
		out, off, err = l.ReadEncoded(ctx, off, 300, out)
		require.NoError(t, err)
	}
	return out
}

func leaderAndFollower(t *testing.T) (leader, follower *Log) {
	t.Helper()
	lo := manual(disk.NewStrict(1, disk.Options{}), OnCommit)
	small(&lo)
	fo := manual(disk.NewStrict(2, disk.Options{}), OnCommit)
	small(&fo)
	fo.SegmentBytes = 3 * MinSegmentBytes
	return openClosed(t, testDir, lo), openClosed(t, testDir, fo)
}

func TestShippedRecordsAreTheSameBytes(t *testing.T) {
	leader, follower := leaderAndFollower(t)
	mustAppend(t, leader, generation(1))
	appendN(t, leader, 0, 40)
	mustAppend(t, leader, &Batch{Payloads: [][]byte{[]byte("x"), []byte("y")}, HasProducer: true, Producer: ProducerTag{ID: 1, Sequence: 1, Len: 2}})
	mustAppend(t, leader, generation(4))
	appendN(t, leader, 40, 40)
	ship(t, leader, follower, 500)
	require.Equal(t, encodedAll(t, leader), encodedAll(t, follower))
	require.Equal(t, leader.Generations(), follower.Generations())
	require.Equal(t, leader.LastRecordID(), follower.LastRecordID())
	require.Equal(t, Generation(4), follower.LastRecordID().Generation)
	require.Equal(t, leader.Stable(), follower.Stable())
	for off := Offset(0); off < leader.Next(); off++ {
		a, err := leader.RecordID(ctx, off)
		require.NoError(t, err)
		b, err := follower.RecordID(ctx, off)
		require.NoError(t, err)
		require.Equal(t, a, b)
	}
}

func TestShippedRecordsMustContinueTheLog(t *testing.T) {
	leader, follower := leaderAndFollower(t)
	mustAppend(t, leader, generation(2))
	appendN(t, leader, 0, 20)
	ship(t, leader, follower, 1<<20)
	tail := follower.Next()
	id := func(off Offset) RecordID {
		r, err := leader.RecordID(ctx, off)
		require.NoError(t, err)
		return r
	}
	encoded := func(from, to Offset) (out []byte) {
		for off := from; off < to; {
			var err error
			out, off, err = leader.ReadEncoded(ctx, off, 1, out)
			require.NoError(t, err)
		}
		return out
	}
	refuse := func(prev RecordID, b []byte, reason string) {
		t.Helper()
		var m *MismatchError
		err := follower.AppendEncoded(ctx, prev, b)
		require.ErrorAs(t, err, &m)
		require.ErrorContains(t, err, reason)
		require.Equal(t, MismatchError{Reason: m.Reason, Tail: tail, LastGeneration: 2, LastStart: 0}, *m)
		require.Equal(t, tail, follower.Next())
	}
	appendN(t, leader, 20, 10)
	good := encoded(tail, tail+3)
	refuse(id(tail), encoded(tail+1, tail+3), "missing")
	refuse(id(tail-2), good, "named")
	wrong := id(tail - 1)
	wrong.Generation = 1
	refuse(wrong, good, "differs")
	wrong = id(tail - 1)
	wrong.Checksum++
	refuse(wrong, good, "differs")
	// An overlap is compared byte for byte.
	require.NoError(t, follower.AppendEncoded(ctx, id(tail-6), encoded(tail-5, tail)), "nothing new, nothing wrong")
	require.Equal(t, tail, follower.Next())
	other := segment.AppendRecord(nil, &segment.RecordSpec{Offset: tail - 1, Timestamp: 5, Payload: []byte("other")})
	refuse(id(tail-2), append(other, good...), "differ")
	require.NoError(t, follower.AppendEncoded(ctx, id(tail-6), encoded(tail-5, tail+3)))
	require.Equal(t, tail+3, follower.Next())
	require.Equal(t, encodedAll(t, leader)[:len(encodedAll(t, follower))], encodedAll(t, follower))
	// Damage on the way is refused before anything is looked at.
	bad := encoded(tail+3, tail+4)
	bad[len(bad)-1] ^= 1
	require.ErrorContains(t, follower.AppendEncoded(ctx, id(tail+2), bad), "RecordChecksum")
}

func TestTruncateTo(t *testing.T) {
	for _, cut := range []Offset{0, 1, 7, 20, 55, 99, 100} {
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			d, o := builtLog(t, 100, small)
			l := mustOpen(t, testDir, o)
			var saved []string
			l.opt.Events.OnCut = func(_ string, e CutEvent) { saved = append(saved, e.Saved) }
			before := len(d.Trace())
			require.NoError(t, l.TruncateTo(ctx, cut))
			checkCutOrder(t, d.Trace()[before:])
			require.Equal(t, cut, l.Next())
			require.Equal(t, cut, l.Stable())
			require.Equal(t, cut, l.Durable())
			require.Equal(t, wantPayloads(0, int(cut)), readAll(t, l))
			kept := 0
			for name := range d.Files() {
				if strings.Contains(name, "/lost/0") {
					kept++
				}
			}
			require.Len(t, saved, kept)
			if cut < 100 {
				require.Positive(t, kept)
			}
			appendN(t, l, int(cut), 30)
			require.Equal(t, wantPayloads(0, int(cut)+30), readAll(t, l))
			require.NoError(t, l.Close(ctx))
			l = mustOpen(t, testDir, o)
			require.Equal(t, wantPayloads(0, int(cut)+30), readAll(t, l))
			require.False(t, l.Recovery().MayHaveLost)
			require.NoError(t, l.Close(ctx))
		})
	}
}

// checkCutOrder wants the mark written and flushed before the first truncate.
func checkCutOrder(t *testing.T, trace []disk.Event) {
	t.Helper()
	marked := false
	for _, e := range trace {
		if strings.HasSuffix(e.Path, segment.MarkName) && e.Op == disk.OpDatasync {
			marked = true
		}
		if e.Op == disk.OpTruncate && strings.HasSuffix(e.Path, ".log") {
			require.True(t, marked, "cut before the mark was lowered")
			return
		}
	}
}

func TestTruncateRefuses(t *testing.T) {
	_, o := builtLog(t, 100, small)
	l := openClosed(t, testDir, o)
	var mismatch *OffsetMismatchError
	require.ErrorAs(t, l.TruncateTo(ctx, 101), &mismatch)
	_, err := l.TrimHead(ctx, 50)
	require.NoError(t, err)
	var trimmed *TrimmedError
	require.ErrorAs(t, l.TruncateTo(ctx, 0), &trimmed)
	require.Len(t, readAll(t, l), 100-int(l.Head()))
}

func TestTruncateAnswersWhatWasWritten(t *testing.T) {
	l := openClosed(t, testDir, manual(disk.NewStrict(1, disk.Options{}), OnCommit))
	var outcomes []error
	done := func(b *Batch) { outcomes = append(outcomes, b.Err) }
	enqueue(t, l, &Batch{Payloads: [][]byte{payload(0)}, Done: done}, &Batch{Payloads: [][]byte{payload(1)}, Done: done})
	require.True(t, l.Step())
	enqueue(t, l, &Batch{Payloads: [][]byte{payload(0)}, Done: done})
	require.NoError(t, l.TruncateTo(ctx, 0))
	settleAll(l)
	require.Len(t, outcomes, 3)
	require.ErrorIs(t, outcomes[0], ErrUnknownOutcome)
	require.ErrorIs(t, outcomes[1], ErrUnknownOutcome)
	require.NoError(t, outcomes[2])
	require.Equal(t, wantPayloads(0, 1), readAll(t, l))
}

// TestTruncateHalfWay stops the power after every operation of a truncation.
func TestTruncateHalfWay(t *testing.T) {
	_, o := builtLog(t, 60, small)
	base := o.FS.(*disk.Strict)
	for n := 0; ; n++ {
		d := base.Fork(uint64(n))
		o.FS, o.Restarted = d, false
		l := mustOpen(t, testDir, o)
		start := d.Ops()
		d.StopAfter(start + n)
		err := l.TruncateTo(ctx, 17)
		finished := !d.Off()
		for seed := range uint64(3) {
			o.FS, o.Restarted = d.Fork(seed).Crash(), true
			l, err := Open(ctx, testDir, o)
			require.NoError(t, err, "after %d operations", n)
			all := readAll(t, l)
			require.GreaterOrEqual(t, len(all), 17)
			require.Equal(t, wantPayloads(0, len(all)), all)
			if finished {
				require.Len(t, all, 17)
			}
			require.NoError(t, l.Close(ctx))
		}
		if finished {
			require.NoError(t, err)
			require.Greater(t, n, 5)
			return
		}
	}
}

func TestFailedTruncatePoisonsAndReopens(t *testing.T) {
	d, o := builtLog(t, 60, small)
	faulty := disk.NewFaulty(d)
	o.FS = faulty
	l := openClosed(t, testDir, o)
	faulty.Add(disk.Rule{Op: disk.OpTruncate, Path: "*.log", Action: disk.Fail(syscall.EIO)})
	require.ErrorIs(t, l.TruncateTo(ctx, 17), syscall.EIO)
	require.Equal(t, StatePoisoned, l.Health().State)
	require.NoError(t, l.Reopen(ctx))
	all := readAll(t, l)
	require.Equal(t, wantPayloads(0, len(all)), all)
	require.NoError(t, l.TruncateTo(ctx, 17))
	require.Len(t, readAll(t, l), 17)
}

func TestReset(t *testing.T) {
	for _, base := range []Offset{0, 50, 100, 5000} {
		d, o := builtLog(t, 100, small)
		l := mustOpen(t, testDir, o)
		mustAppend(t, l, generation(3))
		require.NoError(t, l.Reset(ctx, base))
		require.Equal(t, base, l.Head())
		require.Equal(t, base, l.Next())
		require.Empty(t, l.Generations())
		require.Equal(t, RecordID{}, l.LastRecordID())
		kept := false
		for name := range d.Files() {
			kept = kept || strings.Contains(name, "/lost/0")
		}
		require.Equal(t, base < 101, kept)
		rec := segment.AppendRecord(nil, &segment.RecordSpec{Offset: base, Timestamp: 5, Payload: []byte("first")})
		require.NoError(t, l.AppendEncoded(ctx, RecordID{Offset: base - 1, Generation: 9, Checksum: 9}, rec), "nothing here says otherwise")
		require.Equal(t, []string{"first"}, readAll(t, l))
		require.NoError(t, l.Close(ctx))
		l = mustOpen(t, testDir, o)
		require.Equal(t, base, l.Head())
		require.Equal(t, []string{"first"}, readAll(t, l))
		require.NoError(t, l.Close(ctx))
	}
}

// TestGenerationsSurvive: with and without epochs, with lies in it, and after the segment
// with a generation's start was trimmed.
func TestGenerationsSurvive(t *testing.T) {
	d := disk.NewStrict(1, disk.Options{})
	o := manual(d, OnCommit)
	small(&o)
	l := mustOpen(t, testDir, o)
	var want []GenerationStart
	n := 0
	for g := Generation(1); g <= 5; g++ {
		want = append(want, GenerationStart{Generation: g * g, Start: mustAppend(t, l, generation(g*g))})
		appendN(t, l, n, 30)
		n += 30
	}
	require.Equal(t, want, l.Generations())
	require.NoError(t, l.Close(ctx))
	lies := append([]GenerationStart{{Generation: 7, Start: 3}}, want...)
	for name, epochs := range map[string][]byte{
		"as written": nil, "damaged": []byte("FLEP"), "empty": segment.AppendEpochs(nil, nil), "lies": segment.AppendEpochs(nil, lies),
	} {
		fork := d.Fork(1)
		if epochs != nil {
			fork.Put(testDir+"/"+segment.EpochsName, epochs)
		}
		o.FS = fork
		l := mustOpen(t, testDir, o)
		if name != "empty" { // a whole file that lacks entries cannot be told from one that needs none
			require.Equal(t, want, l.Generations(), name)
		}
		require.NoError(t, l.Close(ctx))
	}
	o.FS = d
	l = mustOpen(t, testDir, o)
	_, err := l.TrimHead(ctx, want[2].Start+5)
	require.NoError(t, err)
	require.Greater(t, l.Head(), want[1].Start)
	id, err := l.RecordID(ctx, l.Head())
	require.NoError(t, err)
	require.NoError(t, l.Close(ctx))
	l = openClosed(t, testDir, o)
	require.Equal(t, want, l.Generations())
	again, err := l.RecordID(ctx, l.Head())
	require.NoError(t, err)
	require.Equal(t, id, again)
}
