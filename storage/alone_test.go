package storage

import (
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
)

// start appends b in a goroutine and gives its answer.
func start(l *Log, b *Batch) <-chan error {
	answer := make(chan error, 1)
	go func() { answer <- l.Append(ctx, b) }()
	return answer
}

func one(i int) *Batch { return &Batch{Payloads: [][]byte{payload(i)}} }

// TestWhatComesDuringALoneAppendIsHandedOn: who is alone neither writes for those who come
// meanwhile nor forgets them.
func TestWhatComesDuringALoneAppendIsHandedOn(t *testing.T) {
	for _, mode := range []FsyncMode{None, Periodic} {
		synctest.Test(t, func(t *testing.T) {
			faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
			l := openClosed(t, testDir, Options{FS: faulty, Fsync: mode})
			appendN(t, l, 0, 1)
			synctest.Wait() // background work would hand on as well
			gate := disk.NewGate()
			faulty.Add(disk.Rule{Op: disk.OpWrite, Path: "*.log", Action: disk.Hold(gate)})
			first, second := one(1), one(2)
			a := start(l, first)
			require.NoError(t, gate.Await(ctx, 1))
			b := start(l, second)
			synctest.Wait()
			require.Empty(t, b)
			require.Equal(t, []Offset{1, 1}, []Offset{l.Written(), l.Next()}, "what is being written does not count")
			gate.Open()
			require.NoError(t, <-a)
			require.NoError(t, <-b)
			require.Equal(t, []Offset{1, 2}, []Offset{first.First, second.First})
			require.Equal(t, wantPayloads(0, 3), readAll(t, l))
		})
	}
}

// TestALoneAppendHasItsTurn: it does not overtake an answer that is being given, calls what
// is to be called, and is nobody's when the log is closing.
func TestALoneAppendHasItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openClosed(t, testDir, Options{FS: disk.NewStrict(1, disk.Options{}), Fsync: None})
		gate, called := make(chan struct{}), 0
		slow := one(0)
		slow.Done = func(*Batch) {
			called++
			<-gate
		}
		a := start(l, slow)
		synctest.Wait()
		b := start(l, one(1))
		synctest.Wait()
		require.Empty(t, b, "the batch before it has no answer yet")
		close(gate)
		require.NoError(t, <-a)
		require.NoError(t, <-b)
		require.Equal(t, 1, called)

		var stable []Offset
		l.opt.Hooks.Stable = func(g *Group) { stable = append(stable, g.Next) }
		require.NoError(t, l.Append(ctx, one(2)))
		require.Equal(t, []Offset{3}, stable)
		l.opt.Hooks.Stable = nil

		closing := func(is bool) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.mu.closing = is
		}
		closing(true)
		require.ErrorIs(t, l.Append(ctx, one(3)), ErrClosed)
		closing(false)
	})
}

// TestCloseWaitsForALoneAppend: it counts as accepted like any other.
func TestCloseWaitsForALoneAppend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
		l := mustOpen(t, testDir, Options{FS: faulty, Fsync: None})
		gate := disk.NewGate()
		faulty.Add(disk.Rule{Op: disk.OpWrite, Path: "*.log", Action: disk.Hold(gate)})
		a := start(l, one(0))
		require.NoError(t, gate.Await(ctx, 1))
		closed := make(chan error, 1)
		go func() { closed <- l.Close(ctx) }()
		synctest.Wait()
		require.Empty(t, closed)
		gate.Open()
		require.NoError(t, <-a)
		require.NoError(t, <-closed)
	})
}

// TestNextIsBehindWhatAFailedWriteMayHaveLeft: from it a caller knows whether a batch of
// unknown outcome can be in the log.
func TestNextIsBehindWhatAFailedWriteMayHaveLeft(t *testing.T) {
	faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
	l := openClosed(t, testDir, Options{FS: faulty, Fsync: None})
	appendN(t, l, 0, 3)
	faulty.Add(disk.Rule{Op: disk.OpWrite, Path: "*.log", Action: disk.FailAfter(syscall.EIO)})
	faulty.Add(disk.Rule{Op: disk.OpTruncate, Path: "*.log", Action: disk.Fail(syscall.EIO)})
	require.ErrorIs(t, l.Append(ctx, one(3)), ErrUnknownOutcome)
	require.Equal(t, []Offset{3, 4}, []Offset{l.Written(), l.Next()})
	require.NoError(t, l.Reopen(ctx))
	require.Equal(t, l.Written(), l.Next())
}

// TestWhatIsWrittenDuringAFlushIsFlushedByTheNext: of a periodic log, whether the flush or
// the append ends first.
func TestWhatIsWrittenDuringAFlushIsFlushedByTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
		l := openClosed(t, testDir, Options{FS: faulty, Fsync: Periodic, FsyncInterval: 100 * time.Millisecond})
		gate := disk.NewGate()
		faulty.Add(disk.Rule{Op: disk.OpDatasync, Path: "*.log", Action: disk.Hold(gate)})
		appendN(t, l, 0, 1)
		require.NoError(t, gate.Await(ctx, 1))
		appendN(t, l, 1, 1)
		gate.Open()
		synctest.Wait()
		require.Equal(t, []Offset{1, 2}, []Offset{l.Durable(), l.Written()})
		bytes, _ := l.unsynced()
		require.EqualValues(t, 28+len(payload(1)), bytes)
		waitUntil(t, func() bool { return l.Durable() == 2 })
		bytes, _ = l.unsynced()
		require.Zero(t, bytes)
	})
}
