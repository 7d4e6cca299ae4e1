package projection

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/felixlog/felix/internal/testkit/heap"
	"github.com/felixlog/felix/storage/segment"
)

// modelIndex is an Index without cleverness.
type modelIndex map[string]Ref

func (m modelIndex) live() (n int64) {
	for _, r := range m {
		n += int64(r.Size)
	}
	return n
}

func (m modelIndex) expired(now Millis) map[string]Ref {
	out := map[string]Ref{}
	for k, r := range m {
		if r.Expires != 0 && r.Expires <= now {
			out[k] = r
		}
	}
	return out
}

func TestIndexAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, m := NewIndex(), modelIndex{}
		key := rapid.OneOf(
			rapid.SliceOfN(rapid.ByteRange('a', 'd'), 0, 3),
			rapid.Custom(func(t *rapid.T) []byte {
				return bytes.Repeat([]byte{'k'}, rapid.IntRange(120, 700).Draw(t, "len"))
			}),
		)
		steps := rapid.IntRange(1, 200).Draw(t, "steps")
		for i := range steps {
			k := key.Draw(t, "key")
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0, 1:
				ref := Ref{Offset: segment.Offset(i), Version: segment.Offset(i), Size: uint32(1 + i), Expires: Millis(rapid.Uint64Range(0, 5).Draw(t, "expires"))}
				old, had, err := x.Put(k, ref)
				require.NoError(t, err)
				want, wantHad := m[string(k)]
				require.Equal(t, wantHad, had)
				require.Equal(t, want, old)
				m[string(k)] = ref
			case 2:
				old, had := x.Delete(k)
				want, wantHad := m[string(k)]
				require.Equal(t, wantHad, had)
				require.Equal(t, want, old)
				delete(m, string(k))
			case 3:
				now := Millis(rapid.Uint64Range(0, 5).Draw(t, "now"))
				got := map[string]Ref{}
				x.Expired(now, 1000, func(k []byte, r Ref) { got[string(k)] = r })
				require.Equal(t, m.expired(now), got)
			}
			got, had := x.Get(k)
			want, wantHad := m[string(k)]
			require.Equal(t, wantHad, had)
			require.Equal(t, want, got)
		}
		require.Equal(t, len(m), x.Len())
		require.Equal(t, m.live(), x.LiveBytes())
		got := modelIndex{}
		x.Each(func(k []byte, r Ref) bool { got[string(k)] = r; return true })
		require.Equal(t, m, got)
		if next, ok := x.NextExpiry(); ok {
			for _, r := range m {
				require.True(t, r.Expires == 0 || next <= r.Expires)
			}
		}
	})
}

// TestIndexSplits fills an index past many splits, empties it in another order and
// finds every key at each stage.
func TestIndexSplits(t *testing.T) {
	const n = 60_000
	x := NewIndex()
	key := func(i int) []byte { return fmt.Appendf(nil, "customer-%d", i) }
	for i := range n {
		_, _, err := x.Put(key(i), Ref{Offset: segment.Offset(i), Size: 1})
		require.NoError(t, err)
	}
	for i := range n {
		r, ok := x.Get(key(i))
		require.True(t, ok, i)
		require.Equal(t, segment.Offset(i), r.Offset)
	}
	for i := range n {
		j := i * 7919 % n
		r, ok := x.Delete(key(j))
		require.True(t, ok, j)
		require.Equal(t, segment.Offset(j), r.Offset)
	}
	require.Zero(t, x.Len())
	require.Zero(t, x.LiveBytes())
	before := x.MemoryBytes()
	for i := range n {
		_, _, err := x.Put(key(i), Ref{Offset: segment.Offset(i), Size: 1})
		require.NoError(t, err)
	}
	require.Equal(t, before, x.MemoryBytes(), "a refill reuses what was given back")
}

// TestIndexMemory holds the bound a key: 64 bytes beside the key itself.
func TestIndexMemory(t *testing.T) {
	const n, keyLen = 300_000, 40
	x := NewIndex()
	for i := range n {
		_, _, err := x.Put(fmt.Appendf(nil, "%040d", i), Ref{Offset: segment.Offset(i), Size: 200})
		require.NoError(t, err)
	}
	perKey := float64(x.MemoryBytes())/n - keyLen
	require.LessOrEqual(t, perKey, 64.0)
}

func TestIndexRefusesAnOverlongKey(t *testing.T) {
	x := NewIndex()
	_, _, err := x.Put(make([]byte, MaxKeyBytes+1), Ref{Size: 1})
	require.ErrorContains(t, err, "at most 16384")
	require.Zero(t, x.Len())
	_, _, err = x.Put(make([]byte, MaxKeyBytes), Ref{Size: 1})
	require.NoError(t, err)
}

func TestIndexPutAllocatesNothingForAKnownKey(t *testing.T) {
	x := NewIndex()
	k := []byte("orders")
	_, _, err := x.Put(k, Ref{Size: 1})
	require.NoError(t, err)
	require.Zero(t, heap.Allocs(100, func() {
		if _, _, err := x.Put(k, Ref{Size: 2}); err != nil {
			t.Fatal(err)
		}
		x.Get(k)
	}))
}

func BenchmarkIndexGet(b *testing.B) {
	x := NewIndex()
	const n = 1 << 20
	keys := make([][]byte, n)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "%040d", i)
		if _, _, err := x.Put(keys[i], Ref{Size: 1}); err != nil {
			b.Fatal(err)
		}
	}
	for i := 0; b.Loop(); i++ {
		x.Get(keys[i*7919&(n-1)])
	}
	b.ReportMetric(float64(x.MemoryBytes())/n-40, "B/key")
}
