package storage_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage"
)

// Rolls that overtake the preparation of the next file must not have it prepared twice:
// the second would empty the segment in use, and the roll after remove it.
func TestRollsOvertakePreparation(t *testing.T) {
	for range 3 {
		dir := t.TempDir()
		o := storage.Options{Fsync: storage.None, SegmentBytes: 40 << 10, Preallocate: true}
		l, err := storage.Open(t.Context(), dir, o)
		require.NoError(t, err)
		const appenders, appends = 4, 100
		var wg sync.WaitGroup
		for range appenders {
			wg.Go(func() {
				b := storage.Batch{Payloads: [][]byte{make([]byte, 1500), make([]byte, 1500)}}
				for range appends {
					if err := l.Append(t.Context(), &b); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		require.NoError(t, l.Close(t.Context()))

		o.VerifyAllOnOpen = true
		l, err = storage.Open(t.Context(), dir, o)
		require.NoError(t, err)
		require.EqualValues(t, 2*appenders*appends, l.Next())
		require.EqualValues(t, 0, l.Head())
		require.NoError(t, l.Close(t.Context()))
	}
}
