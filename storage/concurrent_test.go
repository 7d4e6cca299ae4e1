package storage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
)

// TestCase79ProduceAndConsumeAtOnce reads the tail of a log that is written as fast as it
// goes, in the smallest segments, and expects no offset twice and none left out. What was
// read is trimmed. FELIX_TEST_LONG for the full five minutes.
func TestCase79ProduceAndConsumeAtOnce(t *testing.T) {
	l, err := Open(ctx, t.TempDir(), Options{Fsync: None, SegmentBytes: MinSegmentBytes})
	require.NoError(t, err)
	done := func(n int) bool { return n == 3000 }
	if os.Getenv("FELIX_TEST_LONG") != "" {
		over := time.After(5 * time.Minute)
		done = func(int) bool {
			select {
			case <-over:
				return true
			default:
				return false
			}
		}
	}
	moved := make(chan struct{}, 1)
	l.opt.Hooks.Stable = func(*Group) {
		select {
		case moved <- struct{}{}:
		default:
		}
	}
	written := make(chan int, 1)
	go func() {
		n := 0
		defer func() { written <- n }()
		for ; !done(n); n++ {
			if err := l.Append(ctx, &Batch{Payloads: [][]byte{payload(n)}}); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	var p Page
	for next, end, trimmed := Offset(0), ^Offset(0), Offset(0); next < end; {
		require.NoError(t, l.Read(ctx, &p, ReadRange{From: next, MaxRecords: 10}))
		for _, r := range p.Records {
			require.Equal(t, next, r.Offset)
			require.Equal(t, string(payload(int(next))), string(r.Payload))
			next++
		}
		if next-trimmed >= 1000 {
			_, err := l.TrimHead(ctx, next)
			require.NoError(t, err)
			trimmed = next
		}
		if len(p.Records) == 0 {
			select {
			case <-moved:
			case n := <-written:
				end = Offset(n)
				t.Log(n, "records")
			}
		}
	}
	require.NoError(t, l.Close(ctx))
}

// TestGuardOneFlushForAllWhoWait: appends that queue while a flush is held share the next.
func TestGuardOneFlushForAllWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counting := disk.NewCounting(disk.NewStrict(1, disk.Options{}))
		faulty := disk.NewFaulty(counting)
		l, err := Open(ctx, testDir, Options{FS: faulty, Fsync: OnCommit})
		require.NoError(t, err)
		gate := disk.NewGate()
		rule := faulty.Add(disk.Rule{Op: disk.OpDatasync, Path: "*.log", Count: disk.Forever, Action: disk.Hold(gate)})
		const appenders, rounds = 64, 10
		flushes := counting.Path("*.log").Flushes()
		writes := counting.Path("*.log").Writes()
		for range rounds {
			var wg sync.WaitGroup
			wg.Go(func() { // its flush is held while the others queue
				if err := l.Append(ctx, &Batch{Payloads: [][]byte{payload(0)}}); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
			for i := range appenders {
				wg.Go(func() {
					if err := l.Append(ctx, &Batch{Payloads: [][]byte{payload(i)}}); err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
			gate.Release(1)
			synctest.Wait()
			gate.Release(1)
			wg.Wait()
		}
		require.EqualValues(t, 2*rounds, counting.Path("*.log").Flushes()-flushes, "one flush for the first, one for the 64 that waited")
		require.EqualValues(t, 2*rounds, counting.Path("*.log").Writes()-writes, "and one write")
		rule.Remove()
		gate.Open()
		require.NoError(t, l.Close(ctx))
	})
}

// TestPeriodicFlushesWithinTheInterval: what is written is on the device an interval
// later, and an idle log is not flushed again.
func TestPeriodicFlushesWithinTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counting := disk.NewCounting(disk.NewStrict(1, disk.Options{}))
		d, err := NewDisk(DiskOptions{FS: counting, Dir: "/"})
		require.NoError(t, err)
		var logs []*Log
		for i := range 20 {
			l, err := Open(ctx, fmt.Sprintf("/log%d", i), Options{Disk: d, Fsync: Periodic, FsyncInterval: 100 * time.Millisecond})
			require.NoError(t, err)
			logs = append(logs, l)
		}
		for _, l := range logs {
			require.NoError(t, l.Append(ctx, &Batch{Payloads: [][]byte{payload(0)}}))
			require.Equal(t, Offset(1), l.Stable())
			require.Equal(t, Offset(0), l.Durable())
		}
		time.Sleep(50 * time.Millisecond)
		bytes, oldest := d.Unsynced()
		require.EqualValues(t, 20*(28+len(payload(0))), bytes)
		require.Equal(t, 50*time.Millisecond, oldest)
		time.Sleep(60 * time.Millisecond)
		synctest.Wait()
		for _, l := range logs {
			require.Equal(t, Offset(1), l.Durable())
		}
		bytes, _ = d.Unsynced()
		require.Zero(t, bytes)
		time.Sleep(time.Second)
		synctest.Wait()
		before := counting.Total().Ops
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, before, counting.Total().Ops, "an idle log does nothing")
		for _, l := range logs {
			require.NoError(t, l.Close(ctx))
		}
		require.NoError(t, d.Close())
	})
}

// TestMarkIsFlushedWithinASecond also says that appends do not wait for it.
func TestMarkIsFlushedWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counting := disk.NewCounting(disk.NewStrict(1, disk.Options{}))
		l, err := Open(ctx, testDir, Options{FS: counting, Fsync: OnCommit})
		require.NoError(t, err)
		before := counting.Path("durable.mark").Flushes()
		for i := range 100 {
			require.NoError(t, l.Append(ctx, &Batch{Payloads: [][]byte{payload(i)}}))
		}
		require.Equal(t, before, counting.Path("durable.mark").Flushes())
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, before+1, counting.Path("durable.mark").Flushes())
		require.NoError(t, l.Close(ctx))
		require.Equal(t, before+1, counting.Path("durable.mark").Flushes(), "close has nothing to add")
	})
}

// TestContextEndsTheWaiting: an append given up on has an unknown outcome, and happens.
func TestContextEndsTheWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
		l, err := Open(ctx, testDir, Options{FS: faulty, Fsync: OnCommit})
		require.NoError(t, err)
		gate := disk.NewGate()
		faulty.Add(disk.Rule{Op: disk.OpDatasync, Path: "*.log", Action: disk.Hold(gate)})
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := l.Append(ctx, &Batch{Payloads: [][]byte{payload(0)}}); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		done := make(chan error, 1)
		err = l.Append(short, &Batch{Payloads: [][]byte{payload(1)}, Done: func(b *Batch) { done <- b.Err }})
		require.ErrorIs(t, err, ErrUnknownOutcome)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		gate.Open()
		require.NoError(t, <-done)
		wg.Wait()
		require.Equal(t, wantPayloads(0, 2), readAll(t, l))
		require.NoError(t, l.Close(ctx))
	})
}

// TestCloseAnswersEveryone: those who wait when a log is closed get their answer.
func TestCloseAnswersEveryone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
		l, err := Open(ctx, testDir, Options{FS: faulty, Fsync: OnCommit})
		require.NoError(t, err)
		gate := disk.NewGate()
		faulty.Add(disk.Rule{Op: disk.OpDatasync, Path: "*.log", Action: disk.Hold(gate)})
		var wg sync.WaitGroup
		var ok, unknown, closed atomic.Int32
		for i := range 10 {
			wg.Go(func() {
				err := l.Append(ctx, &Batch{Payloads: [][]byte{payload(i)}})
				switch {
				case err == nil:
					ok.Add(1)
				case errors.Is(err, ErrUnknownOutcome):
					unknown.Add(1)
				case errors.Is(err, ErrClosed):
					closed.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		wg.Go(func() {
			time.Sleep(2 * time.Second)
			gate.Open()
		})
		require.ErrorIs(t, l.Close(short), context.DeadlineExceeded)
		wg.Wait()
		require.EqualValues(t, 10, ok.Load()+unknown.Load()+closed.Load())
		require.Positive(t, closed.Load())
		require.ErrorIs(t, l.Append(ctx, &Batch{Payloads: [][]byte{payload(1)}}), ErrClosed)
		require.ErrorIs(t, l.Close(ctx), ErrClosed)
	})
}

// TestManyAppendersReadersAndTrims runs everything at once; what is read must be what was
// acknowledged.
func TestManyAppendersReadersAndTrims(t *testing.T) {
	for _, mode := range []FsyncMode{None, Periodic, OnCommit} {
		t.Run(mode.String(), func(t *testing.T) {
			const dir = testDir
			d, err := NewDisk(DiskOptions{FS: disk.NewStrict(1, disk.Options{}), MaxOpenFiles: 8})
			require.NoError(t, err)
			o := Options{Disk: d, Fsync: mode, FsyncInterval: 5 * time.Millisecond, SegmentBytes: 8 << 10, IndexSpacing: 256, Preallocate: true, ZeroAhead: mode == OnCommit}
			l, err := Open(ctx, dir, o)
			require.NoError(t, err)
			var acked sync.Map
			var appenders, others sync.WaitGroup
			stop := make(chan struct{})
			const workers, each = 8, 120
			for w := range workers {
				appenders.Go(func() {
					for i := range each {
						p := fmt.Appendf(nil, "%d-%d", w, i)
						b := &Batch{Payloads: [][]byte{p, p}}
						if i%3 == 0 {
							done := make(chan error, 1)
							b.Done = func(b *Batch) { done <- b.Err }
							if err := l.Enqueue(b); err != nil {
								t.Error(err)
								return
							}
							l.Drive(i%2 == 0)
							if err := <-done; err != nil {
								t.Error(err)
								return
							}
						} else if err := l.Append(ctx, b); err != nil {
							t.Error(err)
							return
						}
						acked.Store(b.First, string(p))
						acked.Store(b.First+1, string(p))
					}
				})
			}
			running := func() bool {
				select {
				case <-stop:
					return false
				default:
					return true
				}
			}
			for r := range 3 {
				others.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(r), 1))
					var p Page
					for running() {
						from := Offset(rng.Uint64N(uint64(l.Stable()) + 1))
						err := l.Read(ctx, &p, ReadRange{From: from, MaxRecords: 50})
						var trimmed *TrimmedError
						switch {
						case errors.As(err, &trimmed):
							if trimmed.Oldest <= from {
								t.Errorf("trimmed at %d, oldest %d", from, trimmed.Oldest)
							}
						case err != nil:
							t.Error(err)
							return
						}
						for _, r := range p.Records {
							if want, ok := acked.Load(r.Offset); ok && want != string(r.Payload) {
								t.Errorf("offset %d is %q, acknowledged %q", r.Offset, r.Payload, want)
							}
						}
					}
				})
			}
			others.Go(func() {
				for running() {
					release := l.Hold(l.Stable() / 2)
					if _, err := l.TrimHead(ctx, l.Stable()); err != nil {
						t.Error(err)
					}
					release()
					if _, _, err := l.OffsetForTime(ctx, l.LastTimestamp()); err != nil {
						t.Error(err)
					}
					if err := l.Sync(ctx); err != nil {
						t.Error(err)
					}
				}
			})
			appenders.Wait()
			close(stop)
			others.Wait()
			require.Equal(t, Offset(2*workers*each), l.Next())
			head := l.Head()
			require.NoError(t, l.Close(ctx))
			o.VerifyAllOnOpen = true
			l, err = Open(ctx, dir, o)
			require.NoError(t, err)
			require.Equal(t, head, l.Head())
			for i, got := range readAll(t, l) {
				want, ok := acked.Load(head + Offset(i))
				require.True(t, ok)
				require.Equal(t, want, got)
			}
			require.NoError(t, l.Close(ctx))
			require.NoError(t, d.Close())
		})
	}
}

// TestPoisonUnderLoad: after a flush fails, nobody is left waiting and nothing that was
// acknowledged is lost.
func TestPoisonUnderLoad(t *testing.T) {
	strict := disk.NewStrict(3, disk.Options{})
	faulty := disk.NewFaulty(strict)
	l, err := Open(ctx, testDir, Options{FS: faulty, Fsync: OnCommit, SegmentBytes: 8 << 10})
	require.NoError(t, err)
	faulty.Add(disk.Rule{Op: disk.OpDatasync, Path: "*.log", Nth: 40, Count: disk.Forever, Action: disk.FailAndDrop(syscall.EIO)})
	var wg sync.WaitGroup
	var acked atomic.Uint64
	for w := range 16 {
		wg.Go(func() {
			for i := range 1000 {
				b := &Batch{Payloads: [][]byte{fmt.Appendf(nil, "%d-%d", w, i)}}
				if err := l.Append(ctx, b); err != nil {
					var poisoned *PoisonedError
					if !errors.As(err, &poisoned) {
						t.Error(err)
					}
					return
				}
				for {
					old := acked.Load()
					if old >= uint64(b.First)+1 || acked.CompareAndSwap(old, uint64(b.First)+1) {
						break
					}
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, StatePoisoned, l.Health().State)
	var poisoned *PoisonedError
	require.ErrorAs(t, l.Close(ctx), &poisoned)
	l = openClosed(t, testDir, Options{FS: strict.Crash(), Fsync: OnCommit, Restarted: true, SegmentBytes: 8 << 10})
	require.GreaterOrEqual(t, uint64(l.Next()), acked.Load())
	require.Len(t, readAll(t, l), int(l.Next()))
}

// TestGuardManyIdleLogs opens many logs on one disk within the descriptor bound.
func TestGuardManyIdleLogs(t *testing.T) {
	n := 300
	strict := disk.NewStrict(1, disk.Options{MaxOpen: 40})
	counting := disk.NewCounting(strict)
	d, err := NewDisk(DiskOptions{FS: counting, Dir: "/", MaxOpenFiles: 16})
	require.NoError(t, err)
	var logs []*Log
	for i := range n {
		l, err := Open(ctx, fmt.Sprintf("/log%d", i), Options{Disk: d, Fsync: OnCommit, SegmentBytes: 2 << 10})
		require.NoError(t, err)
		// More than half a segment, so that the next one's file is made ahead.
		require.NoError(t, l.Append(ctx, &Batch{Payloads: [][]byte{make([]byte, 1500)}}))
		logs = append(logs, l)
	}
	for i, l := range logs {
		require.NoError(t, l.Append(ctx, &Batch{Payloads: [][]byte{payload(i)}}))
		require.Len(t, readAll(t, l), 2)
	}
	// Those that may stay open, one for each piece of background work under way, and that
	// of the append.
	require.LessOrEqual(t, counting.Total().MaxOpen, 16+DefaultMaxFlushes+1)
	for _, l := range logs {
		require.NoError(t, l.Close(ctx))
	}
	require.Zero(t, counting.Total().Open)
	require.NoError(t, d.Close())
}

// A duty that comes with the completion is done all the same: nobody else will.
func TestADutyIsDoneByWhoHasItsAnswer(t *testing.T) {
	l, err := Open(ctx, testDir, Options{FS: disk.NewStrict(1, disk.Options{})})
	require.NoError(t, err)
	answered := &Batch{}
	answered.wait.state.Store(waiterDone)
	answered.wait.duty.Store(true)
	l.mu.Lock()
	l.mu.pumps++ // as who gives a duty counts it
	l.mu.Unlock()
	done := make(chan struct{})
	queued := &Batch{Payloads: [][]byte{payload(0)}, Done: func(*Batch) { close(done) }}
	require.NoError(t, l.Enqueue(queued))
	require.NoError(t, l.await(ctx, answered))
	select {
	case <-done:
	case <-time.After(5 * time.Minute):
		t.Fatal("what was queued is never written")
	}
	require.NoError(t, l.Close(ctx))
}
