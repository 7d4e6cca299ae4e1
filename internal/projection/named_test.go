package projection

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/felixlog/felix/storage/segment"
)

// TestWhatIsNamedIsKnown compares what compaction may pass over with the index: nothing
// that a key names, and all the rest as long as a record decides one key.
func TestWhatIsNamedIsKnown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := segment.Offset(rapid.SampledFrom([]uint64{0, namedPage - 20, 1 << 40}).Draw(t, "first"))
		several := rapid.Bool().Draw(t, "several keys a record")
		p := New(EntrySetCodec{}, first)
		next := first
		for ; next < first+segment.Offset(rapid.IntRange(1, 200).Draw(t, "records")); next++ {
			var entries []Entry
			for range rapid.IntRange(0, 1).Draw(t, "entries") + rapid.SampledFrom([]int{0, 2}).Draw(t, "more")*map[bool]int{true: 1}[several] {
				key := strconv.Itoa(rapid.IntRange(0, 9).Draw(t, "key"))
				entries = append(entries, Entry{Key: []byte(key), Delete: rapid.IntRange(0, 3).Draw(t, "delete") == 0})
			}
			if err := p.Apply(recordOf(next, entries...)); err != nil {
				t.Fatal(err)
			}
		}
		live := map[segment.Offset]bool{}
		p.Walk(func(_ []byte, ref Ref) bool { live[ref.Offset] = true; return true })
		for at := first; at < next; at++ {
			if got := p.names(at); got != live[at] && (live[at] || !several) {
				t.Fatalf("record %d: may be named %t, is named %t", at, got, live[at])
			}
		}
	})
}

// The set of a log whose records were all replaced takes no memory.
func TestWhatIsNamedIsGivenBack(t *testing.T) {
	p := New(EntrySetCodec{}, 0)
	const records = 5 * namedPage
	for at := range segment.Offset(records) {
		require.NoError(t, p.Apply(recordOf(at, Entry{Key: []byte{byte(at % 8)}})))
	}
	require.LessOrEqual(t, len(p.mu.named.pages), 2)
	require.False(t, p.mu.named.shared)
}
