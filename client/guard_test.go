package client

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client/felixtest"
	"github.com/felixlog/felix/internal/testkit/heap"
	"github.com/felixlog/felix/wire"
)

// While batches are under way the others gather: however many records, no more
// than the window of frames is sent before the first answer, and after it they
// are full.
func TestGuardFramesGather(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	release := make(chan struct{})
	var frames atomic.Int64
	b.Intercept(func(r felixtest.Request) felixtest.Action {
		if !publishes(r) {
			return felixtest.Action{}
		}
		frames.Add(1)
		return felixtest.Action{Hold: release}
	})
	const n = 50_000
	p, err := c.Producer("orders", WithMaxBuffered(64<<20))
	require.NoError(t, err)
	ctx := soon(t)
	for i := range n {
		_, err := p.Send(ctx, numbered(i))
		require.NoError(t, err)
	}
	close(release)
	require.NoError(t, p.Close(soon(t)))
	requireNumbered(t, b.Records("orders", 0), n)
	require.LessOrEqual(t, int(frames.Load()), window+n/1024+2)
}

// Publishers that wait for their answers share frames.
func TestGuardPublishersShareFrames(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	var frames atomic.Int64
	b.Intercept(func(r felixtest.Request) felixtest.Action {
		if publishes(r) {
			frames.Add(1)
		}
		return felixtest.Action{}
	})
	const publishers, each = 64, 100
	var wg sync.WaitGroup
	for range publishers {
		wg.Go(func() {
			for range each {
				if _, err := c.Publish(context.Background(), "orders", []byte("x")); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	require.Less(t, int(frames.Load()), publishers*each/4)
}

func TestLinger(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	var frames atomic.Int64
	b.Intercept(func(r felixtest.Request) felixtest.Action {
		if publishes(r) {
			frames.Add(1)
		}
		return felixtest.Action{}
	})
	p, err := c.Producer("orders", WithLinger(time.Hour))
	require.NoError(t, err)
	ctx := soon(t)
	for i := range 1500 {
		_, err := p.Send(ctx, numbered(i))
		require.NoError(t, err)
	}
	require.NoError(t, p.Flush(soon(t)), "Flush does not linger")
	require.Equal(t, int64(2), frames.Load())
	require.NoError(t, p.Close(soon(t)))

	p, err = c.Producer("orders", WithLinger(time.Millisecond))
	require.NoError(t, err)
	_, err = p.Publish(soon(t), numbered(1500))
	require.NoError(t, err)
	requireNumbered(t, b.Records("orders", 0), 1501)
}

// Sending costs no allocation for a record: what there is, is for a batch.
func TestGuardSendAllocations(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	release := make(chan struct{})
	b.Intercept(func(r felixtest.Request) felixtest.Action {
		if publishes(r) {
			return felixtest.Action{Hold: release}
		}
		return felixtest.Action{}
	})
	p, err := c.Producer("orders", WithMaxBuffered(64<<20))
	require.NoError(t, err)
	ctx := context.Background()
	record := make([]byte, 128)
	key := []byte("k")
	for range 10_000 {
		_, err := p.Send(ctx, record)
		require.NoError(t, err)
	}
	allocs := heap.Allocs(20_000, func() {
		if _, err := p.Send(ctx, record, WithKey(key)); err != nil {
			t.Error(err)
		}
	})
	require.Less(t, allocs, 0.5)
	close(release)
	require.NoError(t, p.Close(soon(t)))
}

// A get costs the client one allocation, which is the value, and a put none; what a
// request is called is made up only for its error.
func TestGuardAllocationsOfACache(t *testing.T) {
	if raced {
		return
	}
	s := newScript(t, func(p *peer) {
		var d wire.Decoder
		var out []byte
		value := make([]byte, 128)
		for {
			f, err := p.r.Next()
			if err != nil {
				return
			}
			m, err := d.Decode(f.Payload)
			if err != nil {
				t.Error(err)
				return
			}
			switch m := m.(type) {
			case *wire.CacheGet:
				if m.Key == "refused" {
					p.send(&wire.Error{Failure: *wire.NewFailure(wire.CodeForbidden, "no")})
					continue
				}
				out = wire.AppendMessage(out[:0], &wire.CacheValue{
					Tenant: m.Tenant, Namespace: m.Namespace, Cache: m.Cache, Key: m.Key, Value: value, HasValue: m.Key != "absent",
					RequestID: m.RequestID, HasRequestID: true, Version: 7, HasVersion: true,
				})
			case *wire.CachePut:
				out = wire.AppendMessage(out[:0], &wire.CacheOK{RequestID: m.RequestID})
			}
			_, err = p.conn.Write(out)
			ignore(err)
		}
	})
	k := s.dial().Cache("kept")
	ctx := context.Background()
	allocs := heap.Allocs(2000, func() {
		v, ok, err := k.Get(ctx, "user:1234567890")
		if err != nil || !ok || len(v.Data) != 128 || v.Version != 7 {
			t.Errorf("%v %t %v", v, ok, err)
		}
	})
	// Of these, one is an answer that the script makes, and TLS makes one for each of its
	// two records.
	t.Logf("%.2f a get", allocs)
	require.LessOrEqual(t, allocs, 4.5)
	value := make([]byte, 128)
	allocs = heap.Allocs(2000, func() {
		if err := k.Put(ctx, "user:1234567890", value); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%.2f a put", allocs)
	require.LessOrEqual(t, allocs, 3.5)
	_, ok, err := k.Get(ctx, "absent")
	require.NoError(t, err)
	require.False(t, ok)
	_, _, err = k.Get(ctx, "refused")
	require.ErrorContains(t, err, "get kept/refused")
	v, ok, err := k.Get(soon(t), "again")
	require.NoError(t, err)
	require.True(t, ok)
	require.Len(t, v.Data, 128)
}

// A record that a consumer works on by itself costs the client seven allocations of its
// own: the record and its payload, the context of the claim and its end, two for the
// handler's goroutine, and the ack.
func TestGuardAllocationsOfAConsumer(t *testing.T) {
	if raced {
		return
	}
	s := newScript(t, func(p *peer) {
		var d wire.Decoder
		var out []byte
		record := []wire.GroupRecord{{Payload: make([]byte, 128), Attempts: 1}}
		for {
			f, err := p.r.Next()
			if err != nil {
				return
			}
			m, err := d.Decode(f.Payload)
			if err != nil {
				t.Error(err)
				return
			}
			out = out[:0]
			switch m := m.(type) {
			case *wire.StreamShards:
				out = wire.AppendMessage(out, &wire.StreamShardsView{Shards: 1, RequestID: m.RequestID})
			case *wire.GroupAck:
				out = wire.AppendMessage(out, &wire.CacheOK{RequestID: m.RequestID})
			case *wire.GroupPoll:
				record[0].Offset++
				out = wire.AppendMessage(out, &wire.GroupRecords{RequestID: m.RequestID, Records: record})
			}
			_, err = p.conn.Write(out)
			ignore(err)
		}
	})
	handled := make(chan struct{})
	stop := consume(t, s.dial(), func(ctx context.Context, m Message) error {
		if len(m.Payload) != 128 || m.Attempts != 1 {
			t.Errorf("%v", m)
		}
		select {
		case handled <- struct{}{}:
		case <-t.Context().Done():
		}
		return nil
	}, WithConcurrency(1))
	round := func() { <-handled }
	for range 100 {
		round()
	}
	allocs := heap.Allocs(2000, round)
	t.Logf("%.2f a record", allocs)
	// Beside its own: those of TLS, for its records both ways.
	require.LessOrEqual(t, allocs, 12.5)
	go func() {
		for range handled {
		}
	}()
	require.NoError(t, stop())
	close(handled)
}
