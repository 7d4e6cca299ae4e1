package client

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

// requirePlaced publishes a record with each of several keys and finds it in the shard of
// its key.
func requirePlaced(t testing.TB, p *Producer, records func(shard int) [][]byte, shards int) {
	t.Helper()
	for i := range 20 {
		key := numbered(i)
		ack, err := p.Publish(soon(t), key, WithKey(key))
		require.NoError(t, err)
		require.Equal(t, wire.Shard(wire.RoutingModulo, key, shards), ack.Shard)
		in := records(ack.Shard)
		require.Equal(t, string(key), string(in[len(in)-1]))
	}
}

// The stream is removed and made again with other shards. A record that was placed by the
// old ones is refused, not put where it does not belong; those after it are placed anew.
func TestAStreamMadeAgainWithOtherShards(t *testing.T) {
	for _, shards := range []int{1, 2, 7} {
		b := newBroker(t)
		c := dial(t, b)
		p, err := c.Producer("wide")
		require.NoError(t, err)
		ack, err := p.Publish(soon(t), numbered(0), ToShard(3))
		require.NoError(t, err)
		require.Equal(t, 3, ack.Shard)
		b.CreateStream("wide", shards)
		_, err = p.Publish(soon(t), numbered(1), ToShard(3))
		require.ErrorIs(t, err, ErrShardsChanged)
		require.NotErrorIs(t, err, ErrOutcomeUnknown)
		for shard := range shards {
			require.Empty(t, b.Records("wide", shard))
		}
		if shards <= 3 {
			_, err = p.Publish(soon(t), numbered(1), ToShard(3))
			require.ErrorIs(t, err, ErrInvalidRequest)
		}
		requirePlaced(t, p, func(shard int) [][]byte { return b.Records("wide", shard) }, shards)
		require.NoError(t, p.Close(soon(t)))
		require.Zero(t, p.buffered.Load())
	}
}

// The same shards again are no change: the producer begins anew and goes on.
func TestAStreamMadeAgainWithTheSameShards(t *testing.T) {
	b := newBroker(t)
	p, err := dial(t, b).Producer("wide")
	require.NoError(t, err)
	requirePlaced(t, p, func(shard int) [][]byte { return b.Records("wide", shard) }, 4)
	b.CreateStream("wide", 4)
	requirePlaced(t, p, func(shard int) [][]byte { return b.Records("wide", shard) }, 4)
}

// A shard without a record so far is not taken to be where it was a while ago.
func TestALaneAsksWhetherItsShardIsStillThere(t *testing.T) {
	b := newBroker(t)
	p, err := dial(t, b).Producer("wide")
	require.NoError(t, err)
	_, err = p.Publish(soon(t), numbered(0), ToShard(1))
	require.NoError(t, err)
	b.CreateStream("wide", 2)
	earlier := *p.place.Load()
	earlier.asked = time.Now().Add(-time.Minute)
	p.place.Store(&earlier)
	_, err = p.Publish(soon(t), numbered(1), ToShard(3))
	require.ErrorIs(t, err, ErrShardsChanged)
	require.Empty(t, b.Records("wide", 1))
}

// Whoever asks for the shards tells the producers of the client.
func TestProducersHearOfOtherShards(t *testing.T) {
	b := newBroker(t)
	c := dial(t, b)
	_, err := c.Publish(soon(t), "wide", numbered(0), ToShard(3), Deliver(AtLeastOnce))
	require.NoError(t, err)
	b.CreateStream("wide", 2)
	_, err = c.StreamShards(soon(t), "wide")
	require.NoError(t, err)
	_, err = c.Publish(soon(t), "wide", numbered(1), ToShard(3), Deliver(AtLeastOnce))
	require.ErrorIs(t, err, ErrInvalidRequest)
	_, err = c.PublishIf(soon(t), "wide", 0, [][]byte{numbered(1)}, ToShard(3))
	require.ErrorIs(t, err, ErrInvalidRequest)
}

// What asks for all shards reads those that there are now, and a conditional publish goes
// by them.
func TestNothingRemembersTheShards(t *testing.T) {
	b := newBroker(t)
	b.CreateStream("again", 1)
	c := dial(t, b)
	subscribe(t, c, "again", AllShards())
	_, err := c.PublishIf(soon(t), "again", 0, [][]byte{numbered(0)}, WithKey(numbered(0)))
	require.NoError(t, err)
	b.CreateStream("again", 3)
	s := subscribe(t, c, "again", AllShards(), FromEarliest())
	for shard := range 3 {
		ack, err := c.PublishIf(soon(t), "again", 0, [][]byte{numbered(shard)}, ToShard(shard))
		require.NoError(t, err)
		require.Equal(t, shard, ack.Shard)
		r, err := s.Next(soon(t))
		require.NoError(t, err)
		require.Equal(t, shard, r.Shard)
		require.Equal(t, string(numbered(shard)), string(r.Payload))
	}
}
