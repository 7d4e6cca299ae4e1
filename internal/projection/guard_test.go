package projection

import (
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage/segment"
)

// cpuSeconds are those spent on collecting garbage and those spent at all, idle ones left
// out.
func cpuSeconds() (collecting, all float64) {
	s := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/cpu/classes/total:cpu-seconds"}, {Name: "/cpu/classes/idle:cpu-seconds"}}
	metrics.Read(s)
	return s[0].Value.Float64(), s[1].Value.Float64() - s[2].Value.Float64()
}

// TestGuardMemoryOfTheIndex holds what the index costs, as the runtime counts it: at most
// 64 bytes a key beside the key, and, being without pointers, next to nothing of the
// collections while values are made and thrown away beside it. FELIX_GUARD_KEYS makes it
// larger.
func TestGuardMemoryOfTheIndex(t *testing.T) {
	n := 100_000
	if v, err := strconv.Atoi(os.Getenv("FELIX_GUARD_KEYS")); err == nil {
		n = v
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const keyLen = 40
	var key [keyLen]byte
	keyOf := func(i int) []byte { return fmt.Appendf(key[:0], "%0*d", keyLen, i) }
	before := heap()
	x := NewIndex()
	for i := range n {
		_, _, err := x.Put(keyOf(i), Ref{Offset: segment.Offset(i), Version: segment.Offset(i), Size: 200})
		if err != nil {
			t.Fatal(err)
		}
	}
	each := float64(heap()-before)/float64(n) - keyLen
	t.Logf("%.1f bytes a key beside the key, of %d keys", each, n)
	require.LessOrEqual(t, each, 64.0)

	// A cache at work: a look-up, a value read, an answer; now and then a new version.
	collecting, all := cpuSeconds()
	var sink []byte
	for i := range 4 * n {
		k := keyOf(i * 7919 % n)
		r, ok := x.Get(k)
		if !ok {
			t.Fatal(i)
		}
		sink = make([]byte, 200)
		if i%4 == 0 {
			r.Offset += segment.Offset(n)
			if _, _, err := x.Put(k, r); err != nil {
				t.Fatal(err)
			}
		}
	}
	runtime.KeepAlive(sink)
	runtime.GC() // what it counts is published by a collection
	gc, total := cpuSeconds()
	share := (gc - collecting) / (total - all)
	t.Logf("%.1f %% of the processor's time for collections", 100*share)
	if n >= 1_000_000 {
		require.Less(t, share, 0.05)
	}
	require.Equal(t, n, x.Len())
}
