package broker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/wire"
)

// seeds is how many histories a test tries: few by default, FELIX_SEEDS for more.
func seeds(n int) int {
	if v, err := strconv.Atoi(os.Getenv("FELIX_SEEDS")); err == nil {
		return v
	}
	return n
}

// incarnationRun is what was published to one incarnation of a stream.
type incarnationRun struct {
	acked   []string // in order
	unknown []string // may be there, after the acknowledged ones
}

// A broker whose machine loses power while streams are made, written, deleted and made
// anew: each stream of the catalog is served afterwards, with every record that was
// acknowledged to it and none of another incarnation.
func TestDirectoriesAcrossPowerCuts(t *testing.T) {
	names := []string{"a", "b", "c"}
	for seed := range seeds(25) {
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		d := disk.NewStrict(uint64(seed), disk.Options{})
		w := newWorld(t)
		runs := map[uint64]*incarnationRun{}
		count := 0
		for life := range 3 {
			last := life == 2
			require.NoError(t, d.MkdirAll("/data"))
			require.NoError(t, d.SyncDir("/"))
			b, err := Open(deadline(t), Options{Catalog: w.catalog, Root: "/data/streams", FS: d, Restarted: true, Defaults: Defaults{
				Fsync: storage.OnCommit, SegmentBytes: storage.MinSegmentBytes,
			}})
			require.NoError(t, err, "seed %d life %d", seed, life)
			require.NoError(t, b.WaitReady(deadline(t)))
			require.Empty(t, b.Damaged(), "seed %d life %d", seed, life)
			b.Streams(func(s *Stream) { checkRun(t, s, runs[s.Meta().Incarnation], seed) })
			if last {
				require.NoError(t, b.Close(context.Background()))
				break
			}
			d.StopAfter(r.IntN(250))
			for range 60 {
				if d.Off() {
					break
				}
				name := names[r.IntN(len(names))]
				switch op := r.IntN(10); {
				case op < 2:
					// With the disk gone the shard does not open, the definition is made.
					if _, err := b.CreateStream(deadline(t), durableStream(name)); err != nil {
						t.Fatalf("seed %d: create: %v", seed, err)
					}
				case op < 3:
					if err := b.DeleteStream(deadline(t), "t1", "ns", name); err != nil && !errors.Is(err, meta.ErrNotFound) {
						t.Fatalf("seed %d: delete: %v", seed, err)
					}
				default:
					s, err := b.Stream("t1", "ns", name)
					if err != nil {
						continue
					}
					p, err := s.Shard(0)
					if err != nil {
						continue
					}
					run := runs[s.Meta().Incarnation]
					if run == nil {
						run = new(incarnationRun)
						runs[s.Meta().Incarnation] = run
					}
					v := fmt.Sprintf("%s-%d", name, count)
					count++
					switch _, err := put(p, v); {
					case err == nil && len(run.unknown) > 0:
						t.Fatalf("seed %d: acknowledged after an unknown outcome without a reopening", seed)
					case err == nil:
						run.acked = append(run.acked, v)
					case Failure(err).Retry == wire.RetryOutcomeUnknown:
						run.unknown = append(run.unknown, v)
					}
				}
			}
			dying := d
			d = d.Crash()
			if err := b.Close(context.Background()); err == nil && len(runs) > 0 && !dying.Off() {
				t.Fatalf("seed %d: a broker without a disk closed cleanly", seed)
			}
			// What was unknown is now there or not; from here on it is known.
			if life == 0 {
				settleUnknown(t, w, d.Fork(uint64(seed)), runs)
			}
		}
	}
}

// settleUnknown looks at a copy of the disk to learn which records of an unknown outcome
// are there.
func settleUnknown(t *testing.T, w *world, d *disk.Strict, runs map[uint64]*incarnationRun) {
	b, err := Open(deadline(t), Options{Catalog: w.catalog, Root: "/data/streams", FS: d, Restarted: true, Defaults: Defaults{
		Fsync: storage.OnCommit, SegmentBytes: storage.MinSegmentBytes,
	}})
	require.NoError(t, err)
	require.NoError(t, b.WaitReady(deadline(t)))
	b.Streams(func(s *Stream) {
		run := runs[s.Meta().Incarnation]
		if run == nil {
			return
		}
		p := shardOf(t, s, 0)
		have := readAll(t, p, partition.StartEarliest(), int(p.Positions().Readable))
		require.GreaterOrEqual(t, len(have), len(run.acked))
		run.acked, run.unknown = have, nil
	})
	require.NoError(t, b.Close(context.Background()))
}

func checkRun(t *testing.T, s *Stream, run *incarnationRun, seed int) {
	t.Helper()
	if run == nil {
		run = new(incarnationRun)
	}
	p := shardOf(t, s, 0)
	have := readAll(t, p, partition.StartEarliest(), int(p.Positions().Readable))
	require.GreaterOrEqual(t, len(have), len(run.acked), "seed %d: %s lost records", seed, s.Meta().Name)
	require.Equal(t, run.acked, append([]string(nil), have[:len(run.acked)]...), "seed %d", seed)
	for _, v := range have[len(run.acked):] {
		require.Contains(t, run.unknown, v, "seed %d: %s holds what was not published to it", seed, s.Meta().Name)
	}
}

// Streams come and go under publishers and subscribers: every publish is answered, every
// subscription comes to an end, and what a stream that stays holds is what was
// acknowledged.
func TestStreamsComeAndGoUnderLoad(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	names := []string{"s0", "s1", "s2", "s3", "stays"}
	create(t, b, durableStream("stays"))
	ctx, stop := context.WithCancel(context.Background())
	var clients, churn sync.WaitGroup
	var kept atomic.Int64
	for i := range 8 {
		clients.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 2))
			for n := 0; ctx.Err() == nil; n++ {
				name := names[r.IntN(len(names))]
				s, err := b.Stream("t1", "ns", name)
				if err != nil {
					runtime.Gosched() // who makes and deletes streams comes first
					continue
				}
				p, err := s.Shard(0)
				if err != nil {
					runtime.Gosched() // who makes and deletes streams comes first
					continue
				}
				switch _, err := put(p, fmt.Sprintf("%d/%d", i, n)); {
				case err == nil && name == "stays":
					kept.Add(1)
				case err != nil && codeOf(err) != wire.CodeNotFound:
					t.Errorf("%s: %v", name, err)
				}
			}
		})
		clients.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 3))
			for ctx.Err() == nil {
				s, err := b.Stream("t1", "ns", names[r.IntN(len(names))])
				if err != nil {
					runtime.Gosched() // who makes and deletes streams comes first
					continue
				}
				p, err := s.Shard(0)
				if err != nil {
					runtime.Gosched() // who makes and deletes streams comes first
					continue
				}
				sub, err := p.Subscribe(ctx, partition.SubscribeOptions{Start: partition.StartEarliest()})
				if err != nil {
					runtime.Gosched() // who makes and deletes streams comes first
					continue
				}
				var d partition.Delivery
				for range 50 {
					if err = sub.Next(ctx, &d); err != nil {
						break
					}
				}
				if err != nil && ctx.Err() == nil && !errors.Is(err, partition.ErrDeleted) {
					t.Errorf("subscription: %v", err)
				}
				d.Release()
				sub.Close()
			}
		})
	}
	for i := range 4 {
		churn.Go(func() {
			for n := range 15 {
				def := memoryStream(names[i])
				def.Durable = n%3 > 0
				if _, err := b.CreateStream(deadline(t), def); err != nil {
					t.Error(err)
				}
				if err := b.DeleteStream(deadline(t), "t1", "ns", names[i]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	churn.Wait()
	stop()
	clients.Wait()
	s, err := b.Stream("t1", "ns", "stays")
	require.NoError(t, err)
	p := shardOf(t, s, 0)
	require.Equal(t, kept.Load(), int64(p.Positions().Next))
	require.Len(t, readAll(t, p, partition.StartEarliest(), int(kept.Load())), int(kept.Load()))
	require.Zero(t, b.Stats().InFlight)
}
