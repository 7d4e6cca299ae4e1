package storage

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

var ctx = context.Background()

func TestAppendReadReopen(t *testing.T) {
	for _, mode := range []FsyncMode{None, Periodic, OnCommit} {
		t.Run(mode.String(), func(t *testing.T) {
			dir := t.TempDir()
			o := Options{Fsync: mode, SegmentBytes: 4096, Preallocate: true}
			l, err := Open(ctx, dir, o)
			require.NoError(t, err)
			var wg sync.WaitGroup
			const workers, each = 16, 50
			seen := make([][]Offset, workers)
			for w := range workers {
				wg.Go(func() {
					for i := range each {
						b := &Batch{Payloads: [][]byte{fmt.Appendf(nil, "w%d-%d", w, i)}}
						if err := l.Append(ctx, b); err != nil {
							t.Error(err)
							return
						}
						seen[w] = append(seen[w], b.First)
					}
				})
			}
			wg.Wait()
			require.Equal(t, Offset(workers*each), l.Stable())
			check := func() {
				got := map[string]Offset{}
				var p Page
				for off := Offset(0); off < workers*each; off = p.Next {
					require.NoError(t, l.Read(ctx, &p, ReadRange{From: off, MaxRecords: 37}))
					require.NotEmpty(t, p.Records)
					for _, r := range p.Records {
						require.Equal(t, off, r.Offset)
						off++
						got[string(r.Payload)] = r.Offset
					}
				}
				for w := range workers {
					for i := range each {
						require.Equal(t, seen[w][i], got[fmt.Sprintf("w%d-%d", w, i)])
					}
				}
			}
			check()
			require.NoError(t, l.Close(ctx))
			l, err = Open(ctx, dir, o)
			require.NoError(t, err)
			require.Equal(t, Offset(workers*each), l.Next())
			require.Zero(t, l.Recovery().RewrittenBytes)
			check()
			require.NoError(t, l.Close(ctx))
		})
	}
}
