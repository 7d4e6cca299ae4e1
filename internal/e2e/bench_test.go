package e2e

import (
	"context"
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
	s := &settings{Dir: b.TempDir(), Listen: "127.0.0.1:0", HTTP: "127.0.0.1:0", Fsync: "periodic"}
	n, err := node.Start(context.Background(), s.options())
	require.NoError(b, err)
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(b, n.Stop(ctx))
	})
	s.createStream(b, n.HTTPURL(), api.Stream{Stream: "orders", Shards: 1, Durable: true})
	return s, s.dial(b, n.ClientAddr())
}

var record = make([]byte, 128)

func BenchmarkPublish1(b *testing.B) {
	_, c := benchNode(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Publish(context.Background(), "orders", record); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPublish64(b *testing.B) {
	_, c := benchNode(b)
	b.ReportAllocs()
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
