package partition

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/storage"
)

// putter puts a value of 128 bytes under keys drawn evenly from a cache that holds them
// all, as a session does: a burst, one Drive, the answers.
type putter struct {
	c       *Cache
	keys    [][]byte
	value   []byte
	writes  []*CacheWrite
	pending sync.WaitGroup
	err     error
}

func newPutter(t testing.TB, c *Cache, keys, burst int) *putter {
	p := &putter{c: c, value: make([]byte, 128)}
	for i := range keys {
		p.keys = append(p.keys, fmt.Appendf(nil, "key:%012d", i))
	}
	for range burst {
		p.writes = append(p.writes, &CacheWrite{Done: func(w *CacheWrite) {
			if w.Err != nil {
				p.err = w.Err
			}
			p.pending.Done()
		}})
	}
	for i := 0; i < keys; i += burst {
		p.burst(t, func(n int) []byte { return p.keys[(i+n)%keys] })
	}
	return p
}

func (p *putter) burst(t testing.TB, key func(n int) []byte) {
	p.pending.Add(len(p.writes))
	for n, w := range p.writes {
		require.NoError(t, w.Put(key(n), p.value, 0, false, cache.Always, 0, p.c.Now()))
		require.NoError(t, p.c.Submit(w))
	}
	p.c.Drive(true)
	p.pending.Wait()
	require.NoError(t, p.err)
}

// drawn is any key.
func (p *putter) drawn(int) []byte { return p.keys[rand.IntN(len(p.keys))] }

// BenchmarkCachePut replaces values of 100,000 keys, 64 at a time, with what compaction
// has to do for it.
func BenchmarkCachePut(b *testing.B) {
	for name, above := range map[string]int64{"alone": 1 << 40, "compacting": 0} {
		b.Run(name, func(b *testing.B) {
			o := CacheOptions{Values: NewValues(32 << 20), CompactAbove: above, CompactPace: 1 << 30}
			o.Storage.SegmentBytes = 8 << 20
			o.Storage.Fsync = storage.Periodic
			c := openCache(b, b.TempDir(), o)
			defer closeCache(b, c)
			p := newPutter(b, c, 100_000, 64)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				p.burst(b, p.drawn)
				n += len(p.writes)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/put")
		})
	}
}
