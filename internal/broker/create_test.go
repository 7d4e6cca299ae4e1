package broker

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/wire"
)

// several are n durable streams s0, s1, ... and the cache c.
func several(n int) (defs []meta.Definition) {
	for i := range n {
		s := durableStream(fmt.Sprintf("s%d", i))
		defs = append(defs, meta.Definition{Stream: &s})
	}
	return append(defs, meta.Definition{Cache: &meta.Cache{Tenant: "t1", Namespace: "ns", Name: "c", Durable: true}})
}

// requireServed checks that every shard of what is defined is open, or that nothing is there.
func requireServed(t *testing.T, b *Broker, defs []meta.Definition, served bool) {
	t.Helper()
	for _, d := range defs {
		r := b.served(d)
		if !served {
			require.Nil(t, r, d.String())
			continue
		}
		require.NotNil(t, r, d.String())
		for i := range r.shards {
			require.Equal(t, partition.Active, r.ShardState(i), d.String())
		}
	}
}

func TestSeveralAreCreatedAndTakenBackAtOnce(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	s1 := durableStream("s1")
	create(t, b, s1)
	defs := several(3)
	created, err := b.CreateAll(deadline(t), defs)
	require.NoError(t, err)
	require.Equal(t, []bool{true, false, true, true}, created)
	requireServed(t, b, defs, true)
	mine := slices.Delete(slices.Clone(defs), 1, 2)
	require.NoError(t, b.RemoveAll(deadline(t), mine))
	requireServed(t, b, mine, false)
	requireServed(t, b, defs[1:2], true)
}

// What this broker could not serve keeps all from being made, and is named.
func TestOneThatCannotBeServedKeepsAllFromBeingMade(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	for i, change := range map[int]func(d meta.Definition){
		1: func(d meta.Definition) { d.Stream.ReplicationFactor = 3 },
		3: func(d meta.Definition) { d.Cache.ReplicationFactor = 3 },
	} {
		defs := several(3)
		change(defs[i])
		_, err := b.CreateAll(deadline(t), defs)
		var item *meta.ItemError
		require.ErrorAs(t, err, &item)
		require.Equal(t, i, item.Index)
		require.Equal(t, wire.CodeInvalidRequest, codeOf(err))
		requireServed(t, b, defs, false)
	}
	b.draining.Store(true)
	_, err := b.CreateAll(deadline(t), several(3))
	require.ErrorIs(t, err, ErrDraining)
}

// A broker that was killed between the transaction and the directories makes them all when
// it starts again.
func TestSeveralAreMadeAfterAKill(t *testing.T) {
	w := newWorld(t)
	defs := several(3)
	_, err := w.catalog.CreateAll(deadline(t), defs)
	require.NoError(t, err)
	requireServed(t, w.open(), defs, true)
}
