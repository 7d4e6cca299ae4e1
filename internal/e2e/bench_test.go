package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/api"
	"github.com/felixlog/felix/internal/node"
)

// benchNode is a broker in this process, so that one profile shows both sides.
func benchNode(b *testing.B) (*settings, *client.Client) {
	b.Helper()
	s, n := startBench(b)
	s.createStream(b, n.HTTPURL(), api.Stream{Stream: "orders", Shards: 1, Durable: true})
	return s, s.dial(b, n.ClientAddr())
}

func startBench(b *testing.B) (*settings, *node.Node) {
	b.Helper()
	s := &settings{Dir: b.TempDir(), Listen: "127.0.0.1:0", HTTP: "127.0.0.1:0", Fsync: "periodic"}
	n, err := node.Start(context.Background(), s.options())
	require.NoError(b, err)
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(b, n.Stop(ctx))
	})
	return s, n
}

var record = make([]byte, 128)

// cpu is the processor time of this process, both sides of it, for each operation: what
// a busy machine does not change much.
func cpu(b *testing.B) func() {
	used := func() time.Duration {
		var r syscall.Rusage
		require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &r))
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	began := used()
	return func() { b.ReportMetric(float64(used()-began)/1e3/float64(b.N), "cpu-µs/op") }
}

func BenchmarkPublish1(b *testing.B) {
	_, c := benchNode(b)
	b.ReportAllocs()
	defer cpu(b)()
	for b.Loop() {
		if _, err := c.Publish(context.Background(), "orders", record); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPublish64(b *testing.B) {
	_, c := benchNode(b)
	b.ReportAllocs()
	defer cpu(b)()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.Publish(context.Background(), "orders", record); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func BenchmarkPipelined(b *testing.B) {
	_, c := benchNode(b)
	p, err := c.Producer("orders")
	require.NoError(b, err)
	b.ReportAllocs()
	defer cpu(b)()
	for b.Loop() {
		if _, err := p.Send(context.Background(), record); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, p.Flush(context.Background()))
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

func BenchmarkReplay(b *testing.B) {
	_, c := benchNode(b)
	p, err := c.Producer("orders")
	require.NoError(b, err)
	const stored = 1_000_000
	for range stored {
		_, err := p.Send(context.Background(), record)
		require.NoError(b, err)
	}
	require.NoError(b, p.Flush(context.Background()))
	s, err := c.Subscribe(context.Background(), "orders", client.FromEarliest())
	require.NoError(b, err)
	read := 0
	b.ReportAllocs()
	defer cpu(b)()
	for b.Loop() {
		if read == stored {
			require.NoError(b, s.Close())
			s, err = c.Subscribe(context.Background(), "orders", client.FromEarliest())
			require.NoError(b, err)
			read = 0
		}
		if _, err := s.Next(context.Background()); err != nil {
			b.Fatal(err)
		}
		read++
	}
	require.NoError(b, s.Close())
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// benchCache is a cache with values under keys of a few thousand.
func benchCache(b *testing.B) (*client.Cache, []string) {
	s, n := startBench(b)
	s.createCache(b, n.HTTPURL(), api.Cache{Cache: "bench", Shards: 1})
	k := s.dial(b, n.ClientAddr()).Cache("bench")
	keys := make([]string, 4096)
	var filling sync.WaitGroup
	for i := range keys {
		keys[i] = fmt.Sprintf("key:%012d", i)
	}
	for part := range slices.Chunk(keys, 64) {
		filling.Go(func() {
			for _, key := range part {
				if err := k.Put(context.Background(), key, record); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	filling.Wait()
	return k, keys
}

func BenchmarkCacheGet1(b *testing.B) {
	k, keys := benchCache(b)
	b.ReportAllocs()
	defer cpu(b)()
	for i := 0; b.Loop(); i++ {
		if _, ok, err := k.Get(context.Background(), keys[i&4095]); err != nil || !ok {
			b.Fatal(ok, err)
		}
	}
}

func BenchmarkCacheGet64(b *testing.B) {
	k, keys := benchCache(b)
	b.ReportAllocs()
	defer cpu(b)()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, ok, err := k.Get(context.Background(), keys[rand.IntN(4096)]); err != nil || !ok {
				b.Error(ok, err)
				return
			}
		}
	})
}

func BenchmarkCachePut64(b *testing.B) {
	k, keys := benchCache(b)
	b.ReportAllocs()
	defer cpu(b)()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := k.Put(context.Background(), keys[rand.IntN(4096)], record); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkQueue1 has four consumers handle b.N records, each one at a time.
func BenchmarkQueue1(b *testing.B) {
	groups := benchGroups(b)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var handled atomic.Int64
	b.ReportAllocs()
	defer cpu(b)()
	b.ResetTimer()
	var working sync.WaitGroup
	for _, g := range groups {
		working.Go(func() {
			err := g.Consume(ctx, func(context.Context, client.Message) error {
				if handled.Add(1) == int64(b.N) {
					stop()
				}
				return nil
			}, client.WithConcurrency(1), client.OnConsumeError(func(err error) { b.Error(err) }))
			if err != nil {
				b.Error(err)
			}
		})
	}
	working.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkQueue100 has four workers claim and ack b.N records in hundreds.
func BenchmarkQueue100(b *testing.B) { benchClaims(b, 100) }

// BenchmarkQueueByHand is BenchmarkQueue1 with a request for each claim and each ack.
func BenchmarkQueueByHand(b *testing.B) { benchClaims(b, 1) }

// benchGroups is a group on a stream of b.N records, for four workers with a client each.
func benchGroups(b *testing.B) []*client.Group {
	s, n := startBench(b)
	s.createStream(b, n.HTTPURL(), api.Stream{Stream: "orders", Shards: 1, Durable: true})
	c := s.dial(b, n.ClientAddr())
	p, err := c.Producer("orders")
	require.NoError(b, err)
	for range b.N {
		_, err := p.Send(context.Background(), record)
		require.NoError(b, err)
	}
	require.NoError(b, p.Flush(context.Background()))
	groups := make([]*client.Group, 4)
	for i := range groups {
		groups[i] = s.dial(b, n.ClientAddr()).Group("orders", "workers")
		_, err := groups[i].Describe(context.Background(), 0)
		require.NoError(b, err)
	}
	return groups
}

func benchClaims(b *testing.B, most int) {
	groups := benchGroups(b)
	b.ReportAllocs()
	defer cpu(b)()
	b.ResetTimer()
	var working sync.WaitGroup
	for _, g := range groups {
		working.Go(func() {
			for {
				ms, err := g.Poll(context.Background(), 0, most)
				if err == nil && len(ms) > 0 {
					err = g.AckAll(context.Background(), ms)
				}
				if err != nil {
					b.Error(err)
				}
				if err != nil || len(ms) == 0 {
					return
				}
			}
		})
	}
	working.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}
