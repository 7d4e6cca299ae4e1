package partition

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
)

// seeds is how many histories a test tries: few by default, FELIX_SEEDS for more.
func seeds(n int) int {
	if v, err := strconv.Atoi(os.Getenv("FELIX_SEEDS")); err == nil {
		return v
	}
	return n
}

// producerRun is what one producer knows: the payloads of each sequence, and the offset
// of those it was told of.
type producerRun struct {
	id     uint64
	sent   [][]string
	acked  map[uint64]storage.Offset
	refuse error
}

// run sends batches one after the other until n are through or something fails.
func (r *producerRun) run(p *Partition, n int) {
	for len(r.sent) < n {
		seq := uint64(len(r.sent))
		batch := numbered(fmt.Sprintf("%d/%d/", r.id, seq), 1+int(seq+r.id)%3)
		r.sent = append(r.sent, batch)
		if err := r.send(p, seq); err != nil {
			r.refuse = err
			return
		}
	}
}

// send sends a sequence, for the first time or again.
func (r *producerRun) send(p *Partition, seq uint64) error {
	s := send(p, &Publish{Payloads: payloads(r.sent[seq]...), Idempotent: true, ProducerID: r.id, Sequence: seq})
	p.Drive(r.id%2 == 0)
	<-s.answered
	if s.Err == nil {
		if first, ok := r.acked[seq]; ok && first != s.First {
			return fmt.Errorf("sequence %d was at %d and is at %d", seq, first, s.First)
		}
		r.acked[seq] = s.First
	}
	return s.Err
}

// A shard whose machine or process dies at any moment: what was acknowledged is there,
// at its offset; a producer that sends again what it does not know of has each batch
// once, whole and in order; and a second crash changes nothing.
func TestProducersAcrossCrashes(t *testing.T) {
	const producers, batches = 4, 15
	for seed := range seeds(40) {
		power := seed%2 == 0
		d := disk.NewStrict(uint64(seed), disk.Options{})
		mode := storage.OnCommit
		if !power {
			mode = []storage.FsyncMode{storage.None, storage.Periodic, storage.OnCommit}[seed%3]
		}
		open := func() (*Partition, error) {
			return Open(deadline(t), "/shard", Options{SnapshotEvery: 700, Storage: storage.Options{FS: d, Fsync: mode, SegmentBytes: storage.MinSegmentBytes, Restarted: power}})
		}
		runs := make([]*producerRun, producers)
		for i := range runs {
			runs[i] = &producerRun{id: uint64(i + 1), acked: map[uint64]storage.Offset{}}
		}
		require.NoError(t, d.MkdirAll("/shard"))
		require.NoError(t, d.SyncDir("/"))
		for life, stop := range []int{20 + seed*7%150, 10 + seed*13%60} {
			p, err := open()
			require.NoError(t, err, "seed %d life %d", seed, life)
			d.StopAfter(stop)
			var wg sync.WaitGroup
			for _, r := range runs {
				wg.Go(func() {
					// What is not known is sent again before anything else.
					for seq := range uint64(len(r.sent)) {
						if _, ok := r.acked[seq]; !ok {
							if err := r.send(p, seq); err != nil {
								r.refuse = err
								return
							}
						}
					}
					r.run(p, batches)
				})
			}
			wg.Wait()
			for _, r := range runs {
				if errors.Is(r.refuse, stream.ErrUnknownProducer) || isA[*stream.SequenceGapError](r.refuse) {
					t.Fatalf("seed %d life %d: producer %d: %v", seed, life, r.id, r.refuse)
				}
				r.refuse = nil
			}
			dying := d
			if power {
				d = d.Crash()
			} else {
				d = d.Kill()
			}
			closeAnyhow(p, dying)
		}
		p, err := open()
		require.NoError(t, err, "seed %d", seed)
		for _, r := range runs {
			for seq := range uint64(len(r.sent)) {
				require.NoError(t, r.send(p, seq), "seed %d: producer %d sends %d again", seed, r.id, seq)
			}
		}
		checkOnce(t, p, runs, seed)
		require.NoError(t, p.Close(context.Background()))
		p, err = open()
		require.NoError(t, err)
		checkOnce(t, p, runs, seed)
		require.NoError(t, p.Close(context.Background()))
	}
}

// closeAnyhow closes a shard whose disk is gone: it must come to an end, and that it
// cannot flush is no news.
func closeAnyhow(p *Partition, d *disk.Strict) {
	if err := p.Close(context.Background()); err == nil && !d.Off() {
		panic("closed a shard whose disk should be off")
	}
}

// checkOnce reads the log and finds every batch once, at the offset its producer was
// told.
func checkOnce(t *testing.T, p *Partition, runs []*producerRun, seed int) {
	t.Helper()
	want := map[storage.Offset]string{}
	for _, r := range runs {
		for seq, batch := range r.sent {
			first, ok := r.acked[uint64(seq)]
			require.True(t, ok)
			for i, v := range batch {
				at := first + storage.Offset(i)
				require.Empty(t, want[at], "seed %d: two records at %d", seed, at)
				want[at] = v
			}
		}
	}
	got := map[storage.Offset]string{}
	var page ReadPage
	for at := storage.Offset(0); at < p.Positions().Readable; at = page.Next {
		require.NoError(t, p.Read(deadline(t), ReadRequest{From: at}, &page))
		for _, r := range page.Records {
			got[r.Offset] = string(r.Payload)
		}
	}
	require.Equal(t, want, got, "seed %d", seed)
}

func faulty(t *testing.T) (*disk.Faulty, func(*Options)) {
	f := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
	require.NoError(t, f.MkdirAll("/shard"))
	return f, func(o *Options) {
		o.Storage.FS = f
		o.Storage.Fsync = storage.OnCommit
	}
}

// A failed write takes back what was admitted with it: the sequence may be sent again,
// and is then written once.
func TestAFailedWriteForgetsItsAdmissions(t *testing.T) {
	f, on := faulty(t)
	p := durable(t, "/shard", on)
	require.NoError(t, idempotent(t, p, 1, 0, "a").Err)
	live := reader{sub: subscribe(t, p, StartLatest())}
	f.Add(disk.Rule{Op: disk.OpWrite, Path: "*.log", Action: disk.Short(3, errors.New("i/o error"))})
	failed := idempotent(t, p, 1, 1, "b")
	require.ErrorIs(t, failed.Err, storage.ErrNotWritten)
	again := idempotent(t, p, 1, 1, "b")
	require.NoError(t, again.Err)
	require.False(t, again.Duplicate)
	require.Equal(t, storage.Offset(1), again.First)
	require.NoError(t, live.take(deadline(t), 1))
	require.Equal(t, []event{{1, "b"}}, live.events)
}

// A failed flush poisons the shard: publishes are refused, reading goes on, and once it
// is reopened a batch whose outcome was unknown is found to be there.
func TestAPoisonedShardReadsOnAndIsReopened(t *testing.T) {
	f, on := faulty(t)
	p := durable(t, "/shard", on)
	require.NoError(t, idempotent(t, p, 1, 0, "a").Err)
	live := reader{sub: subscribe(t, p, StartEarliest())}
	f.Add(disk.Rule{Op: disk.OpFlush, Path: "*.log", Action: disk.Fail(syscall.EIO)})
	unknown := idempotent(t, p, 1, 1, "b")
	require.ErrorIs(t, unknown.Err, storage.ErrUnknownOutcome)
	require.Equal(t, Poisoned, p.State())
	require.Error(t, p.Health())
	var poisoned *storage.PoisonedError
	require.ErrorAs(t, idempotent(t, p, 1, 2, "c").Err, &poisoned)
	require.NoError(t, live.take(deadline(t), 1))
	require.Equal(t, []event{{0, "a"}}, live.events, "what is not stable is not delivered")

	require.NoError(t, p.Reopen(deadline(t)))
	require.Equal(t, Active, p.State())
	again := idempotent(t, p, 1, 1, "b")
	require.NoError(t, again.Err)
	require.True(t, again.Duplicate, "it was written after all")
	require.NoError(t, idempotent(t, p, 1, 2, "c").Err)
	require.NoError(t, live.take(deadline(t), 2))
	require.Equal(t, []event{{0, "a"}, {1, "b"}, {2, "c"}}, live.events)
}

// The readable bound does not pass a flush that is under way.
func TestNothingIsDeliveredBeforeItsFlush(t *testing.T) {
	f, on := faulty(t)
	p := durable(t, "/shard", on)
	publish(t, p, "a")
	live := reader{sub: subscribe(t, p, StartLatest())}
	gate := disk.NewGate()
	f.Add(disk.Rule{Op: disk.OpFlush, Path: "*.log", Action: disk.Hold(gate)})
	b := send(p, &Publish{Payloads: payloads("b")})
	p.Drive(false)
	require.NoError(t, gate.Await(deadline(t), 1))
	require.True(t, b.waiting())
	require.Equal(t, storage.Offset(1), p.Positions().Readable)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, live.next(ctx), context.Canceled)
	gate.Open()
	require.NoError(t, b.wait(t).Err)
	require.NoError(t, live.take(deadline(t), 1))
}
