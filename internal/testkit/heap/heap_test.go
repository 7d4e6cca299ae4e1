package heap_test

import (
	"testing"

	"github.com/felixlog/felix/internal/testkit/heap"
	"github.com/stretchr/testify/require"
)

var sink []byte

func TestAllocsSeesWhatEveryCallAllocates(t *testing.T) {
	require.EqualValues(t, 1, heap.Allocs(20, func() { sink = make([]byte, 64) }))
}

func TestAllocsForgivesWhatOneSeriesAllocates(t *testing.T) {
	calls := 0
	require.Zero(t, heap.Allocs(20, func() {
		if calls++; calls <= 30 {
			sink = make([]byte, 64)
		}
	}))
}
