package storage

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/segment"
)

func enqueue(t *testing.T, l *Log, bs ...*Batch) {
	t.Helper()
	for _, b := range bs {
		require.NoError(t, l.Enqueue(b))
	}
}

func plain(payloads ...string) *Batch {
	b := &Batch{}
	for _, p := range payloads {
		b.Payloads = append(b.Payloads, []byte(p))
	}
	return b
}

func TestBatchIsRefusedByName(t *testing.T) {
	o := manual(disk.NewStrict(1, disk.Options{}), None)
	o.MaxRecordBytes = 100
	o.QueueBatches, o.QueueBytes = 2, 1000
	l := openClosed(t, testDir, o)
	require.ErrorIs(t, l.Enqueue(&Batch{}), ErrEmptyBatch)
	require.ErrorIs(t, l.Enqueue(&Batch{Barrier: true, Payloads: [][]byte{nil}}), ErrEmptyBatch)
	var large *RecordTooLargeError
	require.ErrorAs(t, l.Enqueue(plain(string(make([]byte, 101)))), &large)
	require.Equal(t, RecordTooLargeError{Size: 101, Max: 100}, *large)
	require.ErrorAs(t, l.Enqueue(&Batch{Payloads: [][]byte{make([]byte, 98)}, Publisher: []byte("me")}), &large)
	require.ErrorContains(t, l.Enqueue(&Batch{Payloads: [][]byte{{1}}, Kind: KindProducerNext}), "producer")
	require.ErrorContains(t, l.Enqueue(&Batch{Payloads: [][]byte{{1}}, Kind: KindGenerationStart}), "8")
	require.ErrorIs(t, l.Enqueue(&Batch{Payloads: [][]byte{{1}}, Publisher: make([]byte, 256)}), segment.ErrPublisherTooLong)
	require.ErrorIs(t, l.Enqueue(&Batch{Encoded: []byte("not a record")}), ErrEmptyBatch)
	require.ErrorContains(t, l.Enqueue(&Batch{Encoded: make([]byte, 28)}), "RecordHeaderChecksum")

	enqueue(t, l, plain("a"), plain("b"))
	require.ErrorIs(t, l.Enqueue(plain("c")), ErrQueueFull)
	settleAll(l)
	enqueue(t, l, plain(string(make([]byte, 100))))
	b := &Batch{}
	for range 8 {
		b.Payloads = append(b.Payloads, make([]byte, 100))
	}
	require.ErrorIs(t, l.Enqueue(b), ErrQueueFull, "over the bound in bytes")
	settleAll(l)
	require.NoError(t, l.Enqueue(b), "one batch over the bound is taken when nothing else waits")
	settleAll(l)
	require.Equal(t, Offset(11), l.Next())
}

func TestKindsAreStored(t *testing.T) {
	l := openClosed(t, testDir, manual(disk.NewStrict(1, disk.Options{}), OnCommit))
	tag := ProducerTag{ID: 7, Sequence: 3, Len: 2}
	commit := segment.AppendCommit(nil, &segment.Commit{Event: []byte("ev")})
	enqueue(t, l,
		plain("p"),
		&Batch{Payloads: [][]byte{[]byte("a"), []byte("b")}, Producer: tag, HasProducer: true},
		&Batch{Payloads: [][]byte{{0, 0, 0, 0, 0, 0, 0, 5}}, Kind: KindGenerationStart},
		&Batch{Payloads: [][]byte{commit}, Kind: KindCommit},
		&Batch{Payloads: [][]byte{[]byte("hi"), {}}, Publisher: []byte("alice")},
		plain("q"))
	settleAll(l)
	var p Page
	require.NoError(t, l.Read(ctx, &p, ReadRange{}))
	var got []string
	for _, r := range p.Records {
		got = append(got, fmt.Sprintf("%d %v %q %q %v", r.Offset, r.Kind, r.Payload, r.Publisher, r.Producer))
	}
	none := ProducerTag{}
	require.Equal(t, []string{
		fmt.Sprintf(`0 %v "p" "" %v`, KindPlain, none),
		fmt.Sprintf(`1 %v "a" "" %v`, KindProducerFirst, tag),
		fmt.Sprintf(`2 %v "b" "" %v`, KindProducerNext, none),
		fmt.Sprintf(`3 %v %q "" %v`, KindGenerationStart, "\x00\x00\x00\x00\x00\x00\x00\x05", none),
		fmt.Sprintf(`4 %v %q "" %v`, KindCommit, commit, none),
		fmt.Sprintf(`5 %v "hi" "alice" %v`, KindPlain, none),
		fmt.Sprintf(`6 %v "" "alice" %v`, KindPlain, none),
		fmt.Sprintf(`7 %v "q" "" %v`, KindPlain, none),
	}, got)
	require.Equal(t, []GenerationStart{{Generation: 5, Start: 3}}, l.Generations())
	// Each higher version opened a segment; what needs less stays in it.
	var versions []segment.Version
	for _, s := range l.list.Load().all {
		versions = append(versions, s.version())
	}
	require.Equal(t, []segment.Version{2, 3, 4, 5, 6}, versions)
}

func TestEmptySegmentTakesAHigherVersion(t *testing.T) {
	d := disk.NewStrict(1, disk.Options{})
	o := manual(d, OnCommit)
	l := mustOpen(t, testDir, o)
	require.NoError(t, l.Append(ctx, &Batch{Payloads: [][]byte{[]byte("a")}, HasProducer: true, Producer: ProducerTag{ID: 1, Sequence: 1, Len: 1}}))
	require.Len(t, l.Segments(), 1)
	require.NoError(t, l.Close(ctx))
	b, _ := fileOn(d, logPath(0))
	h, err := segment.DecodeHeader([]byte(b))
	require.NoError(t, err)
	require.Equal(t, segment.VersionProducer, h.Version)
	l = openClosed(t, testDir, o)
	require.Len(t, readAll(t, l), 1)
}

// TestOrderOfOutcomes: refusals, barriers and successes complete in order, a refusal only
// when everything before it is stable.
func TestOrderOfOutcomes(t *testing.T) {
	o := manual(disk.NewStrict(1, disk.Options{}), OnCommit)
	refused := errors.New("refused")
	var log []string
	o.Hooks = Hooks{
		Admit: func(b *Batch, next Offset) error {
			log = append(log, fmt.Sprintf("admit %v at %d", b.User, next))
			if b.User == "no" {
				b.First = 42
				return refused
			}
			return nil
		},
		Written: func(g *Group) {
			log = append(log, fmt.Sprintf("written [%d, %d) %d bytes", g.First, g.Next, len(g.Encoded)))
		},
		Stable: func(g *Group) {
			log = append(log, fmt.Sprintf("stable [%d, %d) %d batches", g.First, g.Next, len(g.Batches)))
		},
	}
	l := openClosed(t, testDir, o)
	done := func(b *Batch) { log = append(log, fmt.Sprintf("done %v first %d err %v", b.User, b.First, b.Err)) }
	enqueue(t, l,
		&Batch{Payloads: [][]byte{{1}, {2}}, User: "a", Done: done},
		&Batch{Payloads: [][]byte{{3}}, User: "no", Done: done},
		&Batch{Barrier: true, User: "barrier", Done: done},
		&Batch{Payloads: [][]byte{{3}}, User: "late", HasExpected: true, Expected: 1, Done: done},
		&Batch{Payloads: [][]byte{{3}}, User: "b", HasExpected: true, Expected: 2, Done: done})
	require.True(t, l.Step())
	log = append(log, "-- written")
	require.Equal(t, Offset(3), l.Written())
	require.Equal(t, Offset(0), l.Stable())
	require.True(t, l.Step())
	log = append(log, "-- flushed")
	require.True(t, l.Step())
	require.Equal(t, []string{
		"admit a at 0", "admit no at 2", "admit barrier at 2", "admit b at 2",
		"written [0, 3) 87 bytes",
		"-- written", "-- flushed",
		"stable [0, 3) 5 batches",
		"done a first 0 err <nil>", "done no first 42 err refused", "done barrier first 2 err <nil>",
		"done late first 2 err storage: expected offset 1, the next is 2", "done b first 2 err <nil>",
	}, log)
	// A group of refusals alone is complete at once when nothing before it waits.
	log = nil
	enqueue(t, l, &Batch{Payloads: [][]byte{{3}}, User: "no", Done: done})
	l.Step()
	l.Step()
	require.Equal(t, []string{"admit no at 3", "stable [3, 3) 1 batches", "done no first 42 err refused"}, log)
}

// TestFailedWriteIsTakenBack: whatever a failed write left is cut and the cut flushed
// before anybody is told, and the offsets are given again.
func TestFailedWriteIsTakenBack(t *testing.T) {
	for _, mode := range []FsyncMode{None, Periodic, OnCommit} {
		for name, action := range map[string]disk.Action{
			"error": disk.Fail(syscall.EIO), "short": disk.Short(20, nil), "short with error": disk.Short(40, io.ErrUnexpectedEOF), "no space": disk.NoSpace(33),
			"late error": disk.FailAfter(syscall.EIO),
		} {
			t.Run(mode.String()+" "+name, func(t *testing.T) {
				strict := disk.NewStrict(1, disk.Options{})
				faulty := disk.NewFaulty(strict)
				o := manual(faulty, mode)
				var reverted []Offset
				var flushesAtRevert int
				o.Hooks.Reverted = func(next Offset) {
					reverted = append(reverted, next)
					trace := strict.Trace()
					last := trace[len(trace)-2:]
					require.Equal(t, disk.OpTruncate, last[0].Op, "%v", last)
					require.Equal(t, disk.OpDatasync, last[1].Op, "%v", last)
					flushesAtRevert++
				}
				l := mustOpen(t, testDir, o)
				appendN(t, l, 0, 3)
				size, _ := fileOn(strict, logPath(0))
				var outcomes []error
				done := func(b *Batch) { outcomes = append(outcomes, b.Err) }
				enqueue(t, l,
					&Batch{Payloads: [][]byte{payload(3)}, Done: done},
					&Batch{Payloads: [][]byte{payload(9)}, HasExpected: true, Expected: 9, Done: done},
					&Batch{Payloads: [][]byte{payload(4)}, Done: done})
				faulty.Add(disk.Rule{Op: disk.OpWrite, Path: "*.log", Action: action})
				settleAll(l)
				require.Len(t, outcomes, 3)
				for _, err := range outcomes {
					require.ErrorIs(t, err, ErrNotWritten, "a refusal that names an offset of the group is not let out either")
				}
				require.Equal(t, []Offset{3}, reverted)
				require.Equal(t, 1, flushesAtRevert)
				after, _ := fileOn(strict, logPath(0))
				require.Equal(t, size, after)
				b := &Batch{Payloads: [][]byte{payload(3)}}
				require.NoError(t, l.Append(ctx, b))
				require.Equal(t, Offset(3), b.First)
				appendN(t, l, 4, 200)
				require.Equal(t, wantPayloads(0, 204), readAll(t, l))
				require.NoError(t, l.Close(ctx))
				o.VerifyAllOnOpen = true
				l = mustOpen(t, testDir, o)
				require.Equal(t, wantPayloads(0, 204), readAll(t, l))
				require.NoError(t, l.Close(ctx))
			})
		}
	}
}

// TestFailedCutPoisons: when the cut or its flush fails, nobody is told "not written".
func TestFailedCutPoisons(t *testing.T) {
	for _, op := range []disk.Op{disk.OpTruncate, disk.OpDatasync} {
		t.Run(op.String(), func(t *testing.T) {
			faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
			o := manual(faulty, OnCommit)
			l := openClosed(t, testDir, o)
			appendN(t, l, 0, 3)
			faulty.Add(disk.Rule{Op: disk.OpWrite, Path: "*.log", Action: disk.Short(20, syscall.EIO)})
			faulty.Add(disk.Rule{Op: op, Path: "*.log", Action: disk.Fail(syscall.EIO)})
			var outcomes []error
			done := func(b *Batch) { outcomes = append(outcomes, b.Err) }
			enqueue(t, l, &Batch{Payloads: [][]byte{payload(3)}, Done: done})
			settleAll(l)
			require.Len(t, outcomes, 1)
			require.ErrorIs(t, outcomes[0], ErrUnknownOutcome)
			require.Equal(t, StatePoisoned, l.Health().State)
			require.Equal(t, wantPayloads(0, 3), readAll(t, l))
			require.NoError(t, l.Reopen(ctx))
			all := readAll(t, l)
			require.Equal(t, wantPayloads(0, 3), all, "the half record was cut when it was reopened")
			appendN(t, l, 3, 3)
		})
	}
}

// TestFailedRollIsTakenBack: a segment that cannot be made or begun fails the append, and
// the next one succeeds.
func TestFailedRollIsTakenBack(t *testing.T) {
	for name, rule := range map[string]disk.Rule{
		"create": {Op: disk.OpCreate, Path: "*.log", Action: disk.NoSpace(0)},
		"header": {Op: disk.OpWrite, Path: "*1.log", Action: disk.Short(7, syscall.ENOSPC)},
		"name":   {Op: disk.OpSyncDir, Action: disk.Fail(syscall.EIO)},
	} {
		t.Run(name, func(t *testing.T) {
			strict := disk.NewStrict(1, disk.Options{})
			faulty := disk.NewFaulty(strict)
			o := manual(faulty, OnCommit)
			small(&o)
			l := mustOpen(t, testDir, o)
			n := 0
			for len(l.Segments()) == 1 && l.Segments()[0].Bytes+int64(28+len(payload(0))) <= MinSegmentBytes {
				appendN(t, l, n, 1)
				n++
			}
			faulty.Add(rule)
			err := l.Append(ctx, &Batch{Payloads: [][]byte{payload(n)}})
			require.ErrorIs(t, err, ErrNotWritten)
			require.Len(t, l.Segments(), 1)
			appendN(t, l, n, 50)
			require.Equal(t, wantPayloads(0, n+50), readAll(t, l))
			require.NoError(t, l.Close(ctx))
			l = openClosed(t, testDir, o)
			require.Equal(t, wantPayloads(0, n+50), readAll(t, l))
		})
	}
}

// TestReserve: below MinFree only batches that may use the reserve are taken.
func TestReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		strict := disk.NewStrict(1, disk.Options{Capacity: 1 << 20})
		var low, room atomic.Int32
		d, err := NewDisk(DiskOptions{FS: strict, Dir: "/", MinFree: 512 << 10, Events: DiskEvents{
			OnLowSpace: func(free, reserve int64) { low.Add(1) }, OnRoom: func(free, reserve int64) { room.Add(1) },
		}})
		require.NoError(t, err)
		l, err := Open(ctx, testDir, Options{Disk: d, Fsync: None})
		require.NoError(t, err)
		record := make([]byte, 16<<10)
		n := 0
		for ; err == nil; n++ {
			err = l.Append(ctx, &Batch{Payloads: [][]byte{record}})
		}
		require.ErrorIs(t, err, ErrDiskFull)
		require.EqualValues(t, 1, low.Load())
		require.Less(t, n, 60, "refused before the disk is full")
		require.NoError(t, l.Append(ctx, &Batch{Payloads: [][]byte{record}, UseReserve: true}))
		require.ErrorIs(t, l.Enqueue(&Batch{Payloads: [][]byte{record}}), ErrDiskFull)
		strict.SetCapacity(4 << 20)
		synctest.Wait()
		waitUntil(t, func() bool { return !d.space.low() })
		require.EqualValues(t, 1, room.Load())
		require.NoError(t, l.Append(ctx, &Batch{Payloads: [][]byte{record}}))
		require.NoError(t, l.Close(ctx))
		require.NoError(t, d.Close())
	})
}
