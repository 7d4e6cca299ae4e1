//go:build !race

package storage

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/internal/testkit/heap"
)

// TestGuardAppendAllocatesNothing counts the log's own allocations; the test disk under it
// would allocate, so that a file system that keeps nothing stands in for it.
func TestGuardAppendAllocatesNothing(t *testing.T) {
	for _, mode := range []FsyncMode{None, OnCommit} {
		l, err := Open(ctx, testDir, Options{FS: nullFS{disk.NewStrict(1, disk.Options{})}, Fsync: mode})
		require.NoError(t, err)
		b := &Batch{Payloads: benchPayloads(1)}
		for range 100 {
			require.NoError(t, l.Append(ctx, b))
		}
		n := heap.Allocs(20_000, func() {
			if err := l.Append(ctx, b); err != nil {
				t.Fatal(err)
			}
		})
		require.Zero(t, n, "one appender, %v", mode)

		var wg sync.WaitGroup
		before := allocations()
		const appenders, each = 64, 500
		for range appenders {
			wg.Go(func() {
				b := &Batch{Payloads: benchPayloads(1)}
				for range each {
					if err := l.Append(ctx, b); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		// Those of the appenders themselves are a few each.
		require.Less(t, float64(allocations()-before)/(appenders*each), 0.1, "64 appenders, %v", mode)
		require.NoError(t, l.Close(ctx))
	}
}

// TestGuardReadAllocatesNothing reads page after page into one Page.
func TestGuardReadAllocatesNothing(t *testing.T) {
	_, o := builtLog(t, 400, nil)
	l := openClosed(t, testDir, o)
	var p Page
	for range 3 {
		require.NoError(t, l.Read(ctx, &p, ReadRange{From: 0}))
	}
	require.Zero(t, heap.Allocs(200, func() {
		if err := l.Read(ctx, &p, ReadRange{From: 0}); err != nil || len(p.Records) != 400 {
			t.Fatal(err)
		}
	}))
}
