package storage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/segment"
)

// Zeros are written ahead of small writes, as much as the segment holds and at least
// 64 KiB; a large write gets none, and a seal leaves none.
func TestZerosAheadOfSmallWrites(t *testing.T) {
	d := disk.NewStrict(1, disk.Options{})
	o := manual(d, OnCommit)
	o.ZeroAhead = true
	l := mustOpen(t, testDir, o)
	size := func() int {
		b, ok := fileOn(d, logPath(0))
		require.True(t, ok)
		return len(b)
	}
	end := func() int { return int(l.Segments()[0].Bytes) }
	require.Equal(t, segment.HeaderSize, size())
	appendN(t, l, 0, 1)
	require.Equal(t, end()+zeroLeast, size())
	appendN(t, l, 1, 1)
	require.Equal(t, end()+zeroLeast-(end()-segment.HeaderSize)/2, size(), "what is there is used first")
	require.NoError(t, l.Append(ctx, &Batch{Payloads: [][]byte{make([]byte, ZeroAheadLargest)}}))
	require.Equal(t, end(), size(), "none for a large one")
	appendN(t, l, 3, 1)
	require.Equal(t, 2*end(), size(), "as much as there is")
	_, err := l.Seal(ctx)
	require.NoError(t, err)
	require.Equal(t, end(), size())
	require.NoError(t, l.Close(ctx))
}
