package client

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

// Keys of several shards, whose pages the broker bounds by itself, are merged without one
// passed over, whatever the limit.
func TestKeysOfSeveralShards(t *testing.T) {
	const shards, page = 3, 10
	var all []string
	of := make([][]string, shards)
	for i := range 100 {
		key := fmt.Sprintf("%03d", i)
		all = append(all, key)
		shard := i % shards
		if i >= 60 {
			shard = 2 // much the largest
		}
		of[shard] = append(of[shard], key)
	}
	s := newScript(t, func(p *peer) {
		for m := p.next(); m != nil; m = p.next() {
			switch m := m.(type) {
			case *wire.CacheShards:
				p.send(&wire.CacheShardsView{Shards: shards, RequestID: m.RequestID})
			case *wire.Extension:
				var q struct {
					Shard, Limit int
					After        string
				}
				if err := json.Unmarshal(m.Body, &q); err != nil {
					t.Error(err)
				}
				at, found := slices.BinarySearch(of[q.Shard], q.After)
				if found {
					at++
				}
				rest := of[q.Shard][at:]
				n := min(len(rest), q.Limit, page)
				body, err := json.Marshal(map[string]any{"keys": rest[:n], "more": n < len(rest)})
				if err != nil {
					t.Error(err)
				}
				p.send(&wire.ExtensionOK{Name: m.Name, RequestID: m.RequestID, Body: body})
			}
		}
	})
	k := s.dial().Cache("k")
	for _, limit := range []int{1, 7, page, 25, 99, 100, 1000} {
		var seen []string
		for after, more := "", true; more; {
			keys, others, err := k.Keys(soon(t), "", after, limit)
			require.NoError(t, err)
			require.NotEmpty(t, keys)
			require.LessOrEqual(t, len(keys), limit)
			require.True(t, len(keys) == limit || !others, "a page that is not full, and more")
			seen, after, more = append(seen, keys...), keys[len(keys)-1], others
		}
		require.Equal(t, all, seen, "limit %d", limit)
	}
	for _, limit := range []int{0, -1} {
		_, _, err := k.Keys(soon(t), "", "", limit)
		require.ErrorIs(t, err, ErrInvalidRequest)
	}
}
