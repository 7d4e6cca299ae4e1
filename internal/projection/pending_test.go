package projection

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/felixlog/felix/storage/segment"
)

// TestPendingAgainstModel compares with a plain list of what is in flight, from which
// the front leaves when it is applied and the back when the log takes it back.
func TestPendingAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type write struct {
			key string
			InFlight
		}
		var p Pending
		var model []write
		var next, applied segment.Offset
		keys := []string{"a", "b", "", "ccc"}
		if rapid.Bool().Draw(t, "many keys") { // so that some share a bucket
			for i := range 200 {
				keys = append(keys, strconv.Itoa(i))
			}
		}
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "op") {
			case 0, 1, 2, 3:
				k := rapid.SampledFrom(keys).Draw(t, "key")
				w := InFlight{Ref: Ref{Offset: next}, Deleted: rapid.Bool().Draw(t, "deleted"), Keys: 1, Bytes: rapid.Int64Range(-9, 9).Draw(t, "bytes")}
				p.Set([]byte(k), w)
				model = append(model, write{k, w})
				// Several keys of one record have one offset.
				next += segment.Offset(rapid.IntRange(0, 1).Draw(t, "ends"))
			case 4:
				if applied <= next {
					applied = segment.Offset(rapid.Uint64Range(uint64(applied), uint64(next)).Draw(t, "applied"))
					p.Settle(applied)
					for len(model) > 0 && model[0].Ref.Offset <= applied {
						model = model[1:]
					}
					applied++
					next = max(next, applied)
				}
			case 5:
				next = segment.Offset(rapid.Uint64Range(uint64(applied), uint64(next)).Draw(t, "back to"))
				p.Revert(next)
				for len(model) > 0 && model[len(model)-1].Ref.Offset >= next {
					model = model[:len(model)-1]
				}
			}
			var adds, bytes int64
			newest := map[string]InFlight{}
			for _, w := range model {
				newest[w.key] = w.InFlight
				adds += w.Keys
				bytes += w.Bytes
			}
			for _, k := range keys {
				want, in := newest[k]
				got, ok := p.Get([]byte(k))
				require.Equal(t, in, ok, k)
				require.Equal(t, want, got, k)
			}
			gotKeys, gotBytes := p.Adds()
			require.Equal(t, []int64{adds, bytes}, []int64{gotKeys, gotBytes})
		}
	})
}

// TestPendingThatIsNeverEmpty gives back the room of what has left while more comes.
func TestPendingThatIsNeverEmpty(t *testing.T) {
	var p Pending
	key := func(i segment.Offset) []byte { return []byte{byte('a' + i%3)} }
	const n, behind = 1000, 10
	for i := range segment.Offset(n) {
		p.Set(key(i), InFlight{Ref: Ref{Offset: i}, Keys: 1, Bytes: int64(i)})
		if i >= behind {
			p.Settle(i - behind)
		}
		w, ok := p.Get(key(i))
		require.True(t, ok)
		require.Equal(t, i, w.Ref.Offset)
	}
	require.LessOrEqual(t, len(p.mu.flights), 2*keepFlights+behind)
	require.LessOrEqual(t, len(p.mu.names), 2*keepFlights+behind)
	p.Revert(n - 5)
	for i := segment.Offset(n - 8); i < n-5; i++ {
		w, ok := p.Get(key(i))
		require.True(t, ok)
		require.Equal(t, i, w.Ref.Offset, "the newest that stands")
	}
	keys, bytes := p.Adds()
	require.Equal(t, []int64{5, 990 + 991 + 992 + 993 + 994}, []int64{keys, bytes})
	p.Settle(n - 6)
	keys, bytes = p.Adds()
	require.Zero(t, keys)
	require.Zero(t, bytes)
	require.LessOrEqual(t, cap(p.mu.flights), keepFlights, "an idle shard keeps little")
	require.LessOrEqual(t, len(p.mu.buckets), keepFlights)
	require.LessOrEqual(t, cap(p.mu.names), keepNames)
}
