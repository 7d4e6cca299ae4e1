package client

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkSend is a client that sends without waiting, with the broker of the
// tests in the same process.
func BenchmarkSend(b *testing.B) {
	broker := newBroker(b)
	c := dial(b, broker)
	p, err := c.Producer("orders")
	require.NoError(b, err)
	payload := make([]byte, 128)
	b.SetBytes(128)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Send(context.Background(), payload); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, p.Flush(context.Background()))
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

func BenchmarkPublishOneInFlight(b *testing.B) {
	broker := newBroker(b)
	c := dial(b, broker)
	payload := make([]byte, 128)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Publish(context.Background(), "orders", payload); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPublish64InFlight(b *testing.B) {
	broker := newBroker(b)
	c := dial(b, broker)
	payload := make([]byte, 128)
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.Publish(context.Background(), "orders", payload); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
