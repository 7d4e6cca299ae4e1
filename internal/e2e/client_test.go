package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/api"
)

// rounds is how often a broker is killed: few by default, FELIX_CRASH_ROUNDS for
// a long run.
func rounds(t testing.TB, few int) int {
	t.Helper()
	text := os.Getenv("FELIX_CRASH_ROUNDS")
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "FELIX_CRASH_ROUNDS")
	return n
}

func requireNext(t testing.TB, s *client.Subscription, from, to int) {
	t.Helper()
	ctx := soon(t)
	for i := from; i < to; i++ {
		r, err := s.Next(ctx)
		require.NoError(t, err)
		require.Equal(t, uint64(i), r.Offset)
		require.Equal(t, string(numbered(i)), string(r.Payload))
	}
}

// Everything the client offers, against a real broker.
func TestClientServed(t *testing.T) {
	p := newProcess(t, "")
	p.createStream("orders", 1)
	p.createStream("wide", 4)
	c := p.dial()
	before := time.Now()

	for i, d := range []client.Delivery{client.Idempotent, client.AtLeastOnce, client.AtMostOnce} {
		ack, err := c.Publish(soon(t), "orders", numbered(i), client.Deliver(d))
		require.NoError(t, err)
		require.Equal(t, client.Ack{Offset: uint64(i), HasOffset: true}, ack)
	}
	ack, err := c.PublishIf(soon(t), "orders", 3, [][]byte{numbered(3), numbered(4)})
	require.NoError(t, err)
	require.Equal(t, uint64(3), ack.Offset)
	_, err = c.PublishIf(soon(t), "orders", 3, [][]byte{numbered(3)})
	require.ErrorIs(t, err, client.ErrOffsetMismatch)

	s, err := c.Subscribe(soon(t), "orders", client.FromEarliest(), client.WithTimestamps())
	require.NoError(t, err)
	for i := range 5 {
		r, err := s.Next(soon(t))
		require.NoError(t, err)
		require.Equal(t, uint64(i), r.Offset)
		require.WithinRange(t, r.Timestamp, before.Add(-time.Second), time.Now().Add(time.Second))
	}
	require.NoError(t, s.Close())
	s, err = c.Subscribe(soon(t), "orders", client.FromTime(before.Add(-time.Second)))
	require.NoError(t, err)
	requireNext(t, s, 0, 5)
	require.NoError(t, s.Close())

	page, err := c.Read(soon(t), "orders", 0, 2, client.ReadRecords(2))
	require.NoError(t, err)
	require.Len(t, page.Records, 2)
	require.Equal(t, uint64(4), page.Next)
	_, err = c.Subscribe(soon(t), "orders", client.FromOffset(1<<63))
	require.ErrorIs(t, err, client.ErrInFuture)
	_, err = c.Read(soon(t), "orders", 0, 1<<64-1)
	require.ErrorIs(t, err, client.ErrInFuture)

	n, err := c.StreamShards(soon(t), "wide")
	require.NoError(t, err)
	require.Equal(t, 4, n)
	owners, err := c.ShardOwners(soon(t), "wide")
	require.NoError(t, err)
	require.Len(t, owners, 4)
	all, err := c.Subscribe(soon(t), "wide", client.AllShards())
	require.NoError(t, err)
	for shard := range 4 {
		ack, err := c.Publish(soon(t), "wide", numbered(shard), client.ToShard(shard))
		require.NoError(t, err)
		require.Equal(t, client.Ack{Shard: shard, HasOffset: true}, ack)
		r, err := all.Next(soon(t))
		require.NoError(t, err)
		require.Equal(t, shard, r.Shard)
	}
	require.NoError(t, all.Close())

	_, err = c.Publish(soon(t), "wide", make([]byte, 9<<20))
	require.ErrorIs(t, err, client.ErrLimitExceeded)
	require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
	_, err = c.Publish(soon(t), "wide", make([]byte, 8<<20))
	require.NoError(t, err)
	p.stop()
}

func TestClientInMemoryStream(t *testing.T) {
	p := newProcess(t, "")
	p.settings.createStream(t, p.http, api.Stream{Stream: "ticks", Shards: 1})
	c := p.dial()
	s, err := c.Subscribe(soon(t), "ticks")
	require.NoError(t, err)
	for i := range 100 {
		_, err := c.Publish(soon(t), "ticks", numbered(i))
		require.NoError(t, err)
		r, err := s.Next(soon(t))
		require.NoError(t, err)
		require.Equal(t, string(numbered(i)), string(r.Payload))
	}
	require.NoError(t, s.Close())
}

// The broker is stopped and started, and killed and started, while records are
// published and read: what was acknowledged is there once and in order, and the
// reader sees each record once. The page cache survives a kill, so that this
// holds in every mode.
func TestClientAcrossBrokerRestarts(t *testing.T) {
	for _, fsync := range []string{"none", "periodic", "on_commit"} {
		t.Run(fsync, func(t *testing.T) {
			p := newProcess(t, fsync)
			p.createStream("orders", 1)
			c := p.dial()
			s, err := c.Subscribe(soon(t), "orders")
			require.NoError(t, err)
			const each = 1500
			n := rounds(t, 3)
			producer, err := c.Producer("orders", client.WithDeliveryTimeout(time.Minute))
			require.NoError(t, err)
			var wg sync.WaitGroup
			futures := make(chan client.Future, each) // of size each: the sender may be a round ahead
			wg.Go(func() {
				defer close(futures)
				for i := range n * each {
					f, err := producer.Send(context.Background(), numbered(i))
					if err != nil {
						t.Error(err)
						return
					}
					futures <- f
				}
			})
			wg.Go(func() {
				var i uint64
				for f := range futures {
					ack, err := f.Wait(context.Background())
					if err != nil || ack.Offset != i {
						t.Errorf("record %d: %v %v", i, ack, err)
						return
					}
					i++
				}
			})
			for round := range n {
				requireNext(t, s, round*each, round*each+each/2)
				if round%2 == 0 {
					p.kill()
				} else {
					p.stop()
				}
				p.start()
				requireNext(t, s, round*each+each/2, (round+1)*each)
			}
			wg.Wait()
			require.NoError(t, s.Close())
			requireStored(t, c, n*each)
		})
	}
}

// requireStored reads everything anew.
func requireStored(t testing.TB, c *client.Client, n int) {
	t.Helper()
	var next uint64
	for {
		page, err := c.Read(soon(t), "orders", 0, next)
		require.NoError(t, err)
		if len(page.Records) == 0 {
			break
		}
		for _, r := range page.Records {
			require.Equal(t, string(numbered(int(next))), string(r.Payload))
			next++
		}
	}
	require.Equal(t, n, int(next))
}

// Many publishers and keys over several shards and connections: each key's
// records come out once and in its order.
func TestClientKeysInOrder(t *testing.T) {
	p := newProcess(t, "")
	p.createStream("wide", 4)
	c := p.dial()
	s, err := c.Subscribe(soon(t), "wide", client.FromEarliest(), client.AllShards())
	require.NoError(t, err)
	const keys, each = 16, 500
	producer, err := c.Producer("wide", client.WithBatchRecords(11))
	require.NoError(t, err)
	var wg sync.WaitGroup
	for k := range keys {
		wg.Go(func() {
			for i := range each {
				if _, err := producer.Send(context.Background(), fmt.Appendf(nil, "%d %d", k, i), client.WithKey(fmt.Append(nil, k))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, producer.Close(soon(t)))
	next := make([]int, keys)
	ctx := soon(t)
	for range keys * each {
		r, err := s.Next(ctx)
		require.NoError(t, err)
		var k, i int
		_, err = fmt.Sscan(string(r.Payload), &k, &i)
		require.NoError(t, err)
		require.Equal(t, next[k], i)
		next[k]++
	}
	require.NoError(t, s.Close())
}
