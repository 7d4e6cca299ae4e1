package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
)

// The lag of a group is that of every shard of the stream: of one it has not asked for yet,
// all that is kept there is before it, in metrics and when it is described.
func TestLagCountsEveryShard(t *testing.T) {
	r := start(t, nil)
	r.createStream(`{"stream":"orders","durable":true,"shards":3}`)
	r.createStream(`{"stream":"others","durable":true}`)
	c := r.dial()
	publish := func(shard, n int) {
		for range n {
			_, err := c.Publish(t.Context(), "orders", []byte("x"), client.ToShard(shard))
			require.NoError(t, err)
		}
	}
	publish(0, 5)
	publish(1, 7)
	g := c.Group("orders", "g")
	got, err := g.Poll(t.Context(), 0, 2)
	require.NoError(t, err)
	require.NoError(t, g.AckAll(t.Context(), got))

	lag := func(shard int) float64 {
		return r.metric("felix_group_lag_records", `group="g"`, fmt.Sprintf(`shard="%d"`, shard), `stream="orders"`)
	}
	require.Equal(t, 3.0, lag(0))
	require.Equal(t, 7.0, lag(1), "a shard whose groups are not even open")
	require.Zero(t, lag(2))
	require.Equal(t, 10.0, r.metric("felix_group_lag_records"))
	require.Equal(t, 10.0, r.metric("felix_group_records", `state="ready"`))
	require.Equal(t, 1.0, r.metric("felix_groups"), "it has been seen on one shard")

	for shard, want := range []client.GroupInfo{
		{Exists: true, Position: 2, Tail: 5, Ready: 3, Lag: 3},
		{Tail: 7, Ready: 7, Lag: 7},
		{},
	} {
		i, err := g.Describe(t.Context(), shard)
		require.NoError(t, err)
		require.Equal(t, []any{want.Exists, want.Position, want.Tail, want.Ready, want.Lag}, []any{i.Exists, i.Position, i.Tail, i.Ready, i.Lag}, "shard %d", shard)
	}
	require.Equal(t, 7.0, lag(1), "describing a group does not make it")

	// What retention has removed is not before it.
	r.createStream(`{"stream":"short","durable":true,"shards":2,"retention":{"max_size_bytes":1},"max_record_bytes":1000}`)
	_, err = c.Group("short", "g").Poll(t.Context(), 0, 1, client.WithWait(time.Millisecond))
	require.NoError(t, err)
	s, err := r.node.broker.Stream("default", "default", "short")
	require.NoError(t, err)
	p, err := s.Shard(1)
	require.NoError(t, err)
	_, err = c.Publish(t.Context(), "short", []byte("old"), client.ToShard(1))
	require.NoError(t, err)
	_, err = p.Log().Seal(t.Context())
	require.NoError(t, err)
	ack, err := c.Publish(t.Context(), "short", []byte("new"), client.ToShard(1))
	require.NoError(t, err)
	require.EqualValues(t, 1, ack.Offset)
	_, err = p.Log().TrimHead(t.Context(), 1)
	require.NoError(t, err)
	i, err := c.Group("short", "g").Describe(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 1, 2, 1, 1}, []uint64{i.Start, i.Position, i.Tail, i.Ready, i.Lag})
}

// Where there are more groups than have metrics, those that have are whole: no shard that has
// seen a group is taken for one that has not.
func TestGroupFiguresAreBounded(t *testing.T) {
	r := start(t, nil)
	r.createStream(`{"stream":"orders","durable":true,"shards":2}`)
	c := r.dial()
	for i := range 6 {
		_, err := c.Publish(t.Context(), "orders", []byte("x"), client.ToShard(i%2))
		require.NoError(t, err)
	}
	settle := func(group string, shard int) {
		got, err := c.Group("orders", group).Poll(t.Context(), shard, 3)
		require.NoError(t, err)
		require.NoError(t, c.Group("orders", group).AckAll(t.Context(), got))
	}
	for _, name := range []string{"a", "b", "c", "z"} {
		settle(name, 0)
	}
	settle("z", 1)
	s, err := r.node.broker.Stream("default", "default", "orders")
	require.NoError(t, err)
	for limit := range 10 {
		figures, seen := groupFigures(s, limit)
		require.Equal(t, 5, seen)
		require.Len(t, figures, min(limit, 8), "each group of each shard, as far as the limit goes")
		for _, f := range figures {
			want := uint64(0)
			if f.Shard == "1" && f.Group != "z" {
				want = 3
			}
			require.Equal(t, want, f.Lag, "limit %d: %+v", limit, f)
		}
	}
}
