package projection

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage/segment"
)

func recordOf(at segment.Offset, entries ...Entry) *segment.Record {
	payload := AppendEntrySet(nil, 0, entries)
	return &segment.Record{Offset: at, Payload: payload, Size: segment.RecordHeaderSize + len(payload)}
}

// TestAWalkLetsWritesIn has a write come while the first key is visited: it is applied
// before the second block.
func TestAWalkLetsWritesIn(t *testing.T) {
	const keys = 3 * walkBlock
	p := New(EntrySetCodec{}, 0)
	var next segment.Offset
	for ; next < keys; next++ {
		require.NoError(t, p.Apply(recordOf(next, Entry{Key: fmt.Appendf(nil, "k%d", next)})))
	}
	seen := map[string]int{}
	applied := make(chan error, 1)
	p.Walk(func(key []byte, _ Ref) bool {
		if len(seen) == 0 {
			go func() { applied <- p.Apply(recordOf(next, Entry{Key: []byte("new")})) }()
			// A read lock is refused once the writer waits for ours.
			for p.mu.TryRLock() {
				p.mu.RUnlock()
				runtime.Gosched()
			}
		}
		if len(seen) < walkBlock {
			require.Equal(t, next, p.mu.applied)
		} else {
			require.Equal(t, next+1, p.mu.applied, "the write waits for the whole walk")
		}
		seen[string(key)]++
		return true
	})
	require.NoError(t, <-applied)
	for i := range keys {
		require.Equal(t, 1, seen[fmt.Sprintf("k%d", i)])
	}
}

func TestAWalkEndsWhereItIsTold(t *testing.T) {
	p := New(EntrySetCodec{}, 0)
	for i := range segment.Offset(2*walkBlock + 1) {
		require.NoError(t, p.Apply(recordOf(i, Entry{Key: fmt.Appendf(nil, "k%d", i)})))
	}
	for _, n := range []int{1, walkBlock, walkBlock + 1, 2*walkBlock + 1} {
		met := 0
		p.Walk(func([]byte, Ref) bool { met++; return met < n })
		require.Equal(t, n, met)
	}
	New(EntrySetCodec{}, 0).Walk(func([]byte, Ref) bool { t.Error("nothing is there"); return true })
}
