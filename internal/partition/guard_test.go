package partition

import (
	"context"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/internal/testkit/heap"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// pipeline publishes batches of 64 records of 128 bytes over again, as a session does:
// a burst, one Drive, the answers.
type pipeline struct {
	p       *Partition
	pubs    []*Publish
	pending sync.WaitGroup
	err     error
}

func newPipeline(p *Partition, burst int) *pipeline {
	l := &pipeline{p: p}
	payload := make([]byte, 128)
	done := func(b *Publish) {
		if b.Err != nil {
			l.err = b.Err
		}
		l.pending.Done()
	}
	for range burst {
		b := &Publish{Done: done}
		for range 64 {
			b.Payloads = append(b.Payloads, payload)
		}
		l.pubs = append(l.pubs, b)
	}
	return l
}

func (l *pipeline) burst(t testing.TB) {
	l.pending.Add(len(l.pubs))
	for _, b := range l.pubs {
		if err := l.p.Publish(b); err != nil {
			t.Fatal(err)
		}
	}
	l.p.Drive(true)
	l.pending.Wait()
	if l.err != nil {
		t.Fatal(l.err)
	}
}

// The target is 0.2 allocations per published record in the whole server; the shard may
// use a tenth of it.
func TestGuardPublishingAllocatesNextToNothing(t *testing.T) {
	for name, subscribers := range map[string]int{"no subscriber": 0, "one subscriber": 1} {
		t.Run(name, func(t *testing.T) {
			p := durable(t, t.TempDir(), func(o *Options) { o.Storage.Fsync = storage.None })
			ctx, cancel := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			for range subscribers {
				sub := subscribe(t, p, StartLatest())
				wg.Go(func() {
					var d Delivery
					for sub.Next(ctx, &d) == nil {
					}
				})
			}
			l := newPipeline(p, 16)
			for range 20 {
				l.burst(t)
			}
			perRecord := heap.Allocs(50, func() { l.burst(t) }) / (16 * 64)
			cancel()
			wg.Wait()
			limit := 0.001
			if subscribers > 0 {
				limit = 0.05
			}
			if raceEnabled {
				limit = 0.2
			}
			require.LessOrEqual(t, perRecord, limit)
		})
	}
}

// A claim and the ack of the one before it, decided together, take their memory from those
// before.
func TestGuardClaimingAllocatesNextToNothing(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector makes pools forget")
		return
	}
	s := openGroups(t, vfs.OS(), t.TempDir(), GroupsOptions{})
	defer s.close()
	const rounds = 400
	publish(t, s.p, make([]string, 20*rounds)...) // measured again where others allocate
	var polled Polled
	ctx := context.Background()
	var at storage.Offset
	ack := func(now segment.Micros, g *queue.Group, _, tail storage.Offset) error { return g.Ack(now, at, tail) }
	var answered error
	done := func(err error) { answered = err }
	round := func() {
		if err := s.groups.Poll(ctx, PollCall{Group: "g", Max: 1}, &polled); err != nil || len(polled.Records) != 1 || answered != nil {
			t.Fatal(err, answered, len(polled.Records))
		}
		at = polled.Records[0].Offset
		if err := s.groups.Submit("g", true, ack, done); err != nil {
			t.Fatal(err)
		}
	}
	for range rounds {
		round()
	}
	require.LessOrEqual(t, heap.Allocs(rounds, round), 0.2)
}

// A subscriber that lags and is in the middle of its page holds at most 256 KiB,
// whatever the backlog; one that waits holds next to nothing.
func TestGuardMemoryOfALaggingSubscriber(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector's own memory is not measured")
		return
	}
	p := durable(t, t.TempDir(), func(o *Options) { o.Storage.Fsync, o.RingBytes = storage.None, 64<<10 })
	const subscribers = 64
	patient := deadline(t)
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	var readers []*reader
	for range subscribers {
		readers = append(readers, &reader{sub: subscribe(t, p, StartLatest())})
	}
	heap := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // pools let go in the second
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	for name, size := range map[string]int{"128 B": 128, "1 B": 1, "8 KiB": 8 << 10} {
		backlog := (2 << 20) / max(size, 64)
		batch := make([][]byte, 64)
		for i := range batch {
			batch[i] = make([]byte, size)
		}
		for range backlog / 64 {
			s := send(p, &Publish{Payloads: batch})
			p.Drive(true)
			<-s.answered
			require.NoError(t, s.Err)
		}
		before := heap()
		for _, r := range readers {
			require.NoError(t, r.sub.Next(patient, &r.d))
		}
		lagging := (heap() - before) / subscribers
		require.LessOrEqual(t, lagging, 256<<10, "%s records", name)
		for _, r := range readers {
			for r.sub.Position() < p.Positions().Readable {
				require.NoError(t, r.sub.Next(patient, &r.d))
			}
			require.ErrorIs(t, r.sub.Next(gone, &r.d), context.Canceled)
		}
		waiting := (heap() - before) / subscribers
		require.LessOrEqual(t, waiting, 16<<10, "%s records", name)
		t.Logf("%s records: lagging %d bytes, waiting %d", name, lagging, waiting)
	}
}

// Sixty-four subscribers cost the encoding of one.
func TestGuardSixtyFourSubscribersShareFrames(t *testing.T) {
	p := durable(t, t.TempDir())
	var readers []*reader
	for range 64 {
		readers = append(readers, &reader{sub: subscribeWith(t, p, SubscribeOptions{Shape: stream.ShapeOffsets})})
	}
	const batches = 100
	for range batches {
		publish(t, p, "a", "b")
		for _, r := range readers {
			require.NoError(t, r.next(deadline(t)))
		}
	}
	require.Equal(t, int64(batches), p.ring.Builds())
	require.Zero(t, p.Counters().DiskPages.Load(), "no one read the disk")
}

func BenchmarkPublish(b *testing.B) {
	for name, subscribers := range map[string]int{"alone": 0, "1 subscriber": 1, "64 subscribers": 64} {
		b.Run(name, func(b *testing.B) {
			p := durable(b, b.TempDir(), func(o *Options) { o.Storage.Fsync = storage.None })
			ctx, cancel := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			for range subscribers {
				sub := subscribe(b, p, StartLatest())
				wg.Go(func() {
					var d Delivery
					for sub.Next(ctx, &d) == nil {
					}
				})
			}
			l := newPipeline(p, 16)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				l.burst(b)
				n += 16 * 64
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "records/s")
			b.ReportMetric(float64(p.Counters().DeliveredEvents.Load())/b.Elapsed().Seconds(), "deliveries/s")
			cancel()
			wg.Wait()
		})
	}
}

func BenchmarkReplay(b *testing.B) {
	p := durable(b, b.TempDir(), func(o *Options) { o.Storage.Fsync = storage.None })
	l := newPipeline(p, 16)
	for range 100 {
		l.burst(b)
	}
	records := int(p.Positions().Next)
	n := 0
	var d Delivery
	for b.Loop() {
		sub := subscribe(b, p, StartEarliest())
		for got := 0; got < records; got += d.Events {
			if err := sub.Next(context.Background(), &d); err != nil {
				b.Fatal(err)
			}
		}
		sub.Close()
		n += records
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "records/s")
}
