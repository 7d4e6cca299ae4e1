package partition

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// durable opens the shard in dir. It is closed with the test, if not before.
func durable(t testing.TB, dir string, change ...func(*Options)) *Partition {
	t.Helper()
	o := Options{Name: "t/ns/s/0"}
	for _, c := range change {
		c(&o)
	}
	p, err := Open(deadline(t), dir, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close(context.Background())) })
	return p
}

func segments(n int64) func(*Options) { return func(o *Options) { o.Storage.SegmentBytes = n } }

func TestPublishGivesOffsetsAndSubscribersSeeThem(t *testing.T) {
	for _, mode := range []storage.FsyncMode{storage.None, storage.Periodic, storage.OnCommit} {
		t.Run(mode.String(), func(t *testing.T) {
			p := durable(t, t.TempDir(), func(o *Options) { o.Storage.Fsync = mode })
			require.Zero(t, publish(t, p, "a", "b"))
			live := reader{sub: subscribe(t, p, StartLatest())}
			require.Equal(t, storage.Offset(2), live.sub.StartOffset())
			require.Equal(t, storage.Offset(2), live.sub.LiveOffset())
			all := reader{sub: subscribe(t, p, StartEarliest())}
			require.Zero(t, all.sub.StartOffset())
			require.Equal(t, storage.Offset(2), all.sub.LiveOffset())
			require.Equal(t, storage.Offset(2), publish(t, p, "c"))
			require.NoError(t, live.take(deadline(t), 1))
			require.Equal(t, []event{{2, "c"}}, live.events)
			require.NoError(t, all.take(deadline(t), 3))
			require.Equal(t, []event{{0, "a"}, {1, "b"}, {2, "c"}}, all.events)
			require.Equal(t, Positions{Oldest: 0, Next: 3, Stable: 3, Readable: 3, Live: 3}, p.Positions())
		})
	}
}

// Case 108 and 81: positions that are not there.
func TestStartsOutsideTheLog(t *testing.T) {
	p := durable(t, t.TempDir(), segments(storage.MinSegmentBytes))
	for i := range 100 {
		publish(t, p, fmt.Sprintf("record %d of some length, so that segments fill up", i))
	}
	start := func(s Start) error {
		sub, err := p.Subscribe(deadline(t), SubscribeOptions{Start: s})
		if err == nil {
			sub.Close()
		}
		return err
	}
	for _, far := range []storage.Offset{1<<64 - 1, 1 << 63, 101} {
		require.Equal(t, &InFutureError{Requested: far, Available: 100}, start(StartAt(far)))
		require.Equal(t, &InFutureError{Requested: far, Available: 100}, p.Read(deadline(t), ReadRequest{From: far}, new(ReadPage)))
	}
	require.NoError(t, start(StartAt(100)), "one past the last waits")
	_, err := p.Log().TrimHead(deadline(t), 50)
	require.NoError(t, err)
	oldest := p.Positions().Oldest
	require.Positive(t, oldest)
	require.Equal(t, &TooOldError{Requested: 0, Available: oldest}, start(StartAt(0)))
	require.Equal(t, &TooOldError{Requested: oldest - 1, Available: oldest}, start(StartAt(oldest-1)))
	require.Equal(t, &TooOldError{Requested: 0, Available: oldest}, p.Read(deadline(t), ReadRequest{}, new(ReadPage)))
	require.NoError(t, start(StartAt(oldest)))
	r := reader{sub: subscribe(t, p, StartEarliest())}
	require.Equal(t, oldest, r.sub.StartOffset())
	require.NoError(t, r.take(deadline(t), int(100-oldest)))
	require.Equal(t, oldest, r.events[0].offset)
}

func TestRetentionThatOvertakesASubscriberIsAnError(t *testing.T) {
	p := durable(t, t.TempDir(), segments(storage.MinSegmentBytes))
	behind := reader{sub: subscribe(t, p, StartAt(0))}
	early := reader{sub: subscribe(t, p, StartEarliest())}
	for i := range 100 {
		publish(t, p, fmt.Sprintf("record %d of some length, so that segments fill up", i))
	}
	// Not from the ring: let it forget.
	p.ring.DropBelow(100)
	_, err := p.Log().TrimHead(deadline(t), 50)
	require.NoError(t, err)
	oldest := p.Positions().Oldest
	require.Equal(t, &TooOldError{Requested: 0, Available: oldest}, behind.next(deadline(t)))
	require.Zero(t, behind.sub.Position())
	require.Equal(t, uint64(1), p.Counters().Trimmed.Load())
	require.NoError(t, early.next(deadline(t)), "earliest never fails")
	require.Equal(t, oldest, early.events[0].offset)
}

func TestStartAtATime(t *testing.T) {
	var now atomic.Uint64
	p := durable(t, t.TempDir(), func(o *Options) {
		o.Storage.Clock = func() storage.Micros { return storage.Micros(now.Load()) }
	})
	for i := range 10 {
		now.Store(uint64(1000 + 10*i))
		publish(t, p, fmt.Sprint(i))
	}
	for at, want := range map[storage.Micros]storage.Offset{0: 0, 1000: 0, 1001: 1, 1050: 5, 1090: 9, 1091: 10, 1 << 63: 10} {
		require.Equal(t, want, subscribe(t, p, StartTime(at)).StartOffset(), "at %d", at)
		offset, found, err := p.OffsetForTime(deadline(t), at)
		require.NoError(t, err)
		require.Equal(t, want < 10, found)
		if found {
			require.Equal(t, want, offset)
		}
	}
}

func TestReadGivesPages(t *testing.T) {
	p := durable(t, t.TempDir(), func(o *Options) { o.StorePublisher = true })
	s := send(p, &Publish{Payloads: payloads("a", "b", "c", "d"), Publisher: []byte("alice")})
	p.Drive(true)
	require.NoError(t, s.wait(t).Err)
	var page ReadPage
	require.NoError(t, p.Read(deadline(t), ReadRequest{From: 1, MaxRecords: 2}, &page))
	require.Equal(t, storage.Offset(3), page.Next)
	require.Len(t, page.Records, 2)
	require.Equal(t, "b", string(page.Records[0].Payload))
	require.Equal(t, "alice", string(page.Records[0].Publisher))
	require.NotZero(t, page.Records[0].Timestamp)
	require.NoError(t, p.Read(deadline(t), ReadRequest{From: 1, End: 2, HasEnd: true}, &page))
	require.Len(t, page.Records, 1)
	for _, end := range []storage.Offset{0, 1} {
		require.NoError(t, p.Read(deadline(t), ReadRequest{From: 1, End: end, HasEnd: true}, &page))
		require.Empty(t, page.Records)
		require.Equal(t, storage.Offset(1), page.Next)
	}
	require.NoError(t, p.Read(deadline(t), ReadRequest{From: 0, MaxBytes: 1}, &page))
	require.Len(t, page.Records, 1, "one record always fits")
	require.NoError(t, p.Read(deadline(t), ReadRequest{From: 4}, &page))
	require.Empty(t, page.Records)
}

func TestRefusalsNameWhatIsWrong(t *testing.T) {
	p := durable(t, t.TempDir(), func(o *Options) { o.MaxRecordBytes = 10 })
	require.Equal(t, error(&storage.RecordTooLargeError{Size: 11, Max: 10}), send(p, &Publish{Payloads: payloads("12345678901")}).Err)
	publish(t, p, "1234567890")
	require.NoError(t, send(p, &Publish{Publisher: make([]byte, 300)}).Err, "not kept here")
	p.Configure(11, true, storage.RetentionPolicy{})
	require.ErrorIs(t, send(p, &Publish{Payloads: payloads("x"), Publisher: make([]byte, 256)}).Err, segment.ErrPublisherTooLong)
	publish(t, p, "12345678901")

	s := send(p, &Publish{Payloads: payloads("x"), HasExpected: true, Expected: 5})
	p.Drive(true)
	require.Equal(t, error(&storage.OffsetMismatchError{Expected: 5, Tail: 2}), s.wait(t).Err)
	s = send(p, &Publish{Payloads: payloads("x"), HasExpected: true, Expected: 2})
	p.Drive(true)
	require.NoError(t, s.wait(t).Err)
	require.Equal(t, uint64(1), p.Counters().Publishes[ResultRefused].Load())
	require.Equal(t, uint64(2), p.Counters().Publishes[ResultInvalid].Load())
	require.Equal(t, uint64(4), p.Counters().Publishes[ResultOK].Load())
}

// Answers leave in the order of the log, refusals and duplicates in their turn.
func TestAnswersComeInTurn(t *testing.T) {
	p := durable(t, t.TempDir())
	var c collector
	var sends []*Publish
	add := func(b *Publish) {
		b.Done = c.add
		sends = append(sends, b)
		require.NoError(t, p.Publish(b))
	}
	add(&Publish{Payloads: payloads("a"), Idempotent: true, ProducerID: 1})
	add(&Publish{Payloads: payloads("a"), Idempotent: true, ProducerID: 1})              // duplicate, in flight
	add(&Publish{Payloads: payloads("b"), Idempotent: true, ProducerID: 1})              // reused
	add(&Publish{Payloads: payloads("c"), Idempotent: true, ProducerID: 1, Sequence: 5}) // gap
	add(&Publish{Payloads: payloads("d"), HasExpected: true, Expected: 1})
	add(&Publish{Payloads: payloads("e"), HasExpected: true, Expected: 1}) // mismatch: d is in flight
	add(&Publish{Payloads: payloads("f"), Idempotent: true, ProducerID: 1, Sequence: 1})
	require.Empty(t, c.done, "nothing is answered before it is driven")
	p.Drive(true)
	require.Equal(t, sends, c.done)
	require.NoError(t, sends[0].Err)
	require.True(t, sends[1].Duplicate)
	require.Zero(t, sends[1].First)
	require.ErrorIs(t, sends[2].Err, stream.ErrSequenceReused)
	var gap *stream.SequenceGapError
	require.ErrorAs(t, sends[3].Err, &gap)
	require.Equal(t, uint64(1), gap.Expected)
	require.NoError(t, sends[4].Err)
	require.Equal(t, error(&storage.OffsetMismatchError{Expected: 1, Tail: 2}), sends[5].Err)
	require.NoError(t, sends[6].Err)
	require.Equal(t, storage.Offset(2), sends[6].First)
}

// Sixty-four publishers: what subscribers see is what is on the disk, in its order, and
// every publisher was told its place.
func TestOneOrderNotThree(t *testing.T) {
	for _, mode := range []storage.FsyncMode{storage.Periodic, storage.OnCommit} {
		t.Run(mode.String(), func(t *testing.T) {
			const publishers, each = 64, 20
			p := durable(t, t.TempDir(), func(o *Options) { o.Storage.Fsync = mode })
			live := reader{sub: subscribe(t, p, StartLatest())}
			told := make([]string, publishers*each)
			var order atomic.Uint64 // answers come in the order of offsets
			var wg sync.WaitGroup
			for n := range publishers {
				wg.Go(func() {
					for i := range each {
						v := fmt.Sprintf("%d/%d", n, i)
						done := make(chan struct{})
						b := Publish{Payloads: payloads(v), Done: func(b *Publish) {
							if b.Err == nil && order.Swap(uint64(b.First)) > uint64(b.First) {
								t.Errorf("answer for %d came late", b.First)
							}
							close(done)
						}}
						if err := p.Publish(&b); err != nil {
							t.Error(err)
							return
						}
						p.Drive(n%2 == 0)
						<-done
						told[b.First] = v
					}
				})
			}
			require.NoError(t, live.take(deadline(t), publishers*each))
			wg.Wait()
			require.Equal(t, told, live.payloads())
			replay := reader{sub: subscribe(t, p, StartEarliest())}
			require.NoError(t, replay.take(deadline(t), publishers*each))
			require.Equal(t, live.events, replay.events)
		})
	}
}

// Case 79: producing and consuming at once over 1 KiB segments; subscribers join at the
// start, at the tail and in between, from disk and ring, and each sees every record from
// its start once.
func TestJoinsUnderFire(t *testing.T) {
	p := durable(t, t.TempDir(), segments(storage.MinSegmentBytes), func(o *Options) { o.RingBytes = 8 << 10 })
	const records = 4000
	batchAt := func(i int) int { return 1 + i%7 }
	total := 0 // the first offset that is never written
	for total < records {
		total += batchAt(total)
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	ctx := deadline(t)
	wg.Go(func() {
		for i := 0; i < total; {
			var batch [][]byte
			for range batchAt(i) {
				batch = append(batch, fmt.Appendf(nil, "record %d", i))
				i++
			}
			done := make(chan struct{})
			b := Publish{Payloads: batch, Done: func(*Publish) { close(done) }}
			if err := p.Publish(&b); err != nil {
				t.Error(err)
				break
			}
			p.Drive(true)
			<-done
		}
		stop.Store(true)
	})
	follow := func(start Start, cancelAfter int) {
		sub, err := p.Subscribe(ctx, SubscribeOptions{Start: start, Shape: stream.ShapeOffsets})
		if err != nil {
			t.Error(err)
			return
		}
		defer sub.Close()
		r := reader{sub: sub}
		defer r.d.Release()
		next := sub.StartOffset()
		for {
			if int(next) == total || len(r.events) > cancelAfter {
				break
			}
			seen := len(r.events)
			if err := r.next(ctx); err != nil {
				t.Errorf("at %d: %v", next, err)
				return
			}
			for _, e := range r.events[seen:] {
				if e.offset != next || e.payload != fmt.Sprintf("record %d", next) {
					t.Errorf("at %d: got %v", next, e)
					return
				}
				next++
			}
		}
	}
	for i := range 4 {
		wg.Go(func() { follow(StartEarliest(), records) })
		wg.Go(func() {
			for !stop.Load() {
				tail := p.Positions().Readable
				follow(StartAt(tail*storage.Offset(i)/4), 200)
				follow(StartLatest(), 20)
			}
		})
	}
	wg.Wait()
}

// A join in the middle of a frame that others share gets its own part of it.
func TestAJoinInTheMiddleOfAGroup(t *testing.T) {
	p := durable(t, t.TempDir())
	idle := reader{sub: subscribe(t, p, StartLatest())}
	publish(t, p, "a", "b")
	joined := reader{sub: subscribe(t, p, StartAt(1))}
	latest := reader{sub: subscribe(t, p, StartLatest())}
	publish(t, p, "c")
	require.NoError(t, joined.take(deadline(t), 2))
	require.Equal(t, []event{{1, "b"}, {2, "c"}}, joined.events)
	require.NoError(t, latest.take(deadline(t), 1))
	require.Equal(t, []event{{2, "c"}}, latest.events)
	require.NoError(t, idle.take(deadline(t), 3))
	require.Zero(t, p.Counters().DiskPages.Load())
}

func TestClosingDeliversWhatWasInFlight(t *testing.T) {
	p := durable(t, t.TempDir())
	idle := reader{sub: subscribe(t, p, StartLatest())}
	got := make(chan error, 1)
	go func() { got <- idle.take(deadline(t), 1000) }()
	slow := reader{sub: subscribe(t, p, StartLatest())}
	var c collector
	for i := range 100 {
		require.NoError(t, p.Publish(&Publish{Payloads: payloads(fmt.Sprint(i)), Done: c.add}))
	}
	require.NoError(t, p.Close(deadline(t)))
	require.Len(t, c.done, 100)
	for _, b := range c.done {
		require.NoError(t, b.Err, "accepted before the close: finished by it")
	}
	require.ErrorIs(t, <-got, ErrClosed)
	require.Len(t, idle.events, 100)
	require.NoError(t, slow.take(deadline(t), 100))
	require.ErrorIs(t, slow.next(deadline(t)), ErrClosed)
	require.ErrorIs(t, send(p, &Publish{Payloads: payloads("late")}).Err, ErrClosed)
	_, err := p.Subscribe(deadline(t), SubscribeOptions{})
	require.ErrorIs(t, err, ErrClosed)
	require.Equal(t, Closed, p.State())
}

// Records that only replication sees take offsets; clients are told how many.
func TestGenerationStartsAreSkippedAndCounted(t *testing.T) {
	dir := t.TempDir()
	p := durable(t, dir)
	generation := func(g uint64) {
		require.NoError(t, p.Log().Append(deadline(t), &storage.Batch{Kind: storage.KindGenerationStart, Payloads: [][]byte{binary.BigEndian.AppendUint64(nil, g)}}))
	}
	live := reader{sub: subscribe(t, p, StartAt(0))}
	generation(1)
	publish(t, p, "a")
	require.NoError(t, live.take(deadline(t), 1))
	generation(2)
	generation(3)
	require.Equal(t, storage.Offset(2), p.Positions().Live)
	require.Equal(t, storage.Offset(4), p.Positions().Readable)
	waiting := reader{sub: subscribe(t, p, StartLatest())}
	require.Equal(t, storage.Offset(4), waiting.sub.StartOffset())
	require.Equal(t, storage.Offset(4), waiting.sub.LiveOffset(), "never below the start")
	require.Equal(t, storage.Offset(2), subscribe(t, p, StartAt(0)).LiveOffset())
	publish(t, p, "b")
	require.NoError(t, live.take(deadline(t), 1))
	require.Equal(t, []event{{1, "a"}, {4, "b"}}, live.events)
	require.Equal(t, uint64(3), live.skipped)
	replay := reader{sub: subscribe(t, p, StartEarliest())}
	require.NoError(t, replay.take(deadline(t), 2))
	require.Equal(t, live.events, replay.events)
	require.Equal(t, uint64(3), replay.skipped)
	require.NoError(t, waiting.take(deadline(t), 1))
	var page ReadPage
	require.NoError(t, p.Read(deadline(t), ReadRequest{}, &page))
	require.Len(t, page.Records, 2)
	require.Equal(t, storage.Offset(5), page.Next)
}

// gateStub stands where replication will: it commits when the test says so.
type gateStub struct {
	mu      sync.Mutex
	written []storage.Offset
	stable  storage.Offset
}

func (g *gateStub) Written(group *storage.Group) {
	g.mu.Lock()
	g.written = append(g.written, group.Next)
	g.mu.Unlock()
}

func (g *gateStub) Stable(next storage.Offset) {
	g.mu.Lock()
	g.stable = next
	g.mu.Unlock()
}

func TestWithAGateNothingIsSeenOrAnsweredBeforeTheCommit(t *testing.T) {
	g := new(gateStub)
	p := durable(t, t.TempDir(), func(o *Options) { o.Gate = g })
	live := reader{sub: subscribe(t, p, StartLatest())}
	a := send(p, &Publish{Payloads: payloads("a0", "a1")})
	p.Drive(true)
	b := send(p, &Publish{Payloads: payloads("b")})
	refused := send(p, &Publish{Payloads: payloads("x"), HasExpected: true, Expected: 99})
	p.Drive(true)
	require.Equal(t, storage.Offset(3), g.stable)
	require.Equal(t, []storage.Offset{2, 3}, g.written)
	require.True(t, a.waiting() && b.waiting() && refused.waiting())
	require.Zero(t, p.Positions().Readable)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, live.next(ctx), context.Canceled)

	p.Commit(2)
	require.False(t, a.waiting())
	require.True(t, b.waiting() && refused.waiting())
	require.NoError(t, live.take(deadline(t), 2))
	require.ErrorIs(t, live.next(ctx), context.Canceled)
	p.Commit(3)
	require.NoError(t, b.wait(t).Err)
	require.ErrorContains(t, refused.wait(t).Err, "expected offset 99")
	require.NoError(t, live.take(deadline(t), 1))
	require.Equal(t, []string{"a0", "a1", "b"}, live.payloads())

	lost := send(p, &Publish{Payloads: payloads("lost")})
	p.Drive(true)
	p.Abandon(ErrLeadershipLost)
	require.ErrorIs(t, lost.wait(t).Err, ErrLeadershipLost)
	require.Equal(t, uint64(1), p.Counters().Publishes[ResultUnknown].Load())
}

// Case 113: a reader that stops costs a bounded amount of memory, whatever is
// published, and loses nothing. Case 114: it delays nobody.
func TestAStalledSubscriberIsBoundedAndDelaysNobody(t *testing.T) {
	const ring = 256 << 10
	p := durable(t, t.TempDir(), func(o *Options) { o.RingBytes = ring })
	stalled := reader{sub: subscribe(t, p, StartLatest())}
	live := reader{sub: subscribe(t, p, StartLatest())}
	publish(t, p, "first")
	require.NoError(t, stalled.next(deadline(t))) // holds a delivery from now on
	require.NoError(t, live.next(deadline(t)))
	payload := string(make([]byte, 16<<10))
	const records = 1000
	for i := range records {
		require.Equal(t, storage.Offset(i+1), publish(t, p, payload))
		require.NoError(t, live.take(deadline(t), 1), "the other one has it at once")
		require.LessOrEqual(t, p.Stats().RingBytes, ring+FrameSlack)
	}
	require.Equal(t, uint64(records), p.Stats().Lag)
	require.NoError(t, stalled.take(deadline(t), records))
	require.Equal(t, live.events, stalled.events)
	held := 0
	if b := stalled.d.buffers; b != nil {
		held = cap(b.frames)
	}
	require.LessOrEqual(t, held, 256<<10)
}

// FrameSlack is what the newest chunk of a ring may add to its bound.
const FrameSlack = 2 * stream.FrameBytes

func TestTheRingIsEmptyWithoutSubscribersAndWhenAllAreLevel(t *testing.T) {
	budget := stream.NewRingBudget(1 << 30)
	p := durable(t, t.TempDir(), func(o *Options) { o.Rings = budget })
	publish(t, p, "a")
	require.Zero(t, budget.Used())
	r := reader{sub: subscribe(t, p, StartLatest())}
	publish(t, p, "b")
	require.Positive(t, budget.Used())
	require.NoError(t, r.next(deadline(t)))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, r.next(ctx), context.Canceled)
	require.Zero(t, budget.Used(), "everybody is past it")
	publish(t, p, "c")
	require.Positive(t, budget.Used())
	r.sub.Close()
	require.Zero(t, budget.Used())
}

func TestWakingConcernsOnlyThoseWhoWait(t *testing.T) {
	p := durable(t, t.TempDir())
	waiter := reader{sub: subscribe(t, p, StartLatest())}
	for range 100 {
		subscribe(t, p, StartLatest()) // never reads
	}
	got := make(chan error, 1)
	go func() { got <- waiter.next(deadline(t)) }()
	for p.subs.waiting.Load() == 0 {
		select {
		case err := <-got:
			t.Fatal(err)
		default:
		}
	}
	p.subs.mu.Lock()
	require.Len(t, p.subs.waiters, 1)
	p.subs.mu.Unlock()
	publish(t, p, "a")
	require.NoError(t, <-got)
}
