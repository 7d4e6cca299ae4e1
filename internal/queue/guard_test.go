package queue

import (
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// heapBytes is what the program holds after a collection.
func heapBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestGuardMemoryOfAGroup holds what a group costs: at most 64 bytes for each record that
// is claimed, or acked out of order behind one that is not. FELIX_GUARD_RECORDS makes it
// larger.
func TestGuardMemoryOfAGroup(t *testing.T) {
	n := 90_000 // the most that may be in flight is 100,000
	if v, err := strconv.Atoi(os.Getenv("FELIX_GUARD_RECORDS")); err == nil {
		n = v
	}
	const most = 10 * DefaultMaxInFlight
	claim := func(g *Group, tail Offset, f func(Handout)) {
		var out []Handout
		for {
			var err error
			out, err = g.Poll(1, PollRequest{Max: MaxPollRecords, Member: "consumer", Conn: 7, Tail: tail}, out[:0])
			require.NoError(t, err)
			if len(out) == 0 {
				return
			}
			for _, h := range out {
				f(h)
			}
			g.Encode(nil)
		}
	}
	for name, tc := range map[string]struct {
		records int
		f       func(g *Group, h Handout)
	}{
		"claimed":                      {min(n, most), func(*Group, Handout) {}},
		"every other acked":            {min(n, 2*most), func(g *Group, h Handout) { ackOdd(t, g, h, 2) }},
		"acked behind one that is not": {n, func(g *Group, h Handout) { ackOdd(t, g, h, 1<<40) }},
		"delayed":                      {min(n, most), func(g *Group, h Handout) { nackLater(t, g, h) }},
	} {
		t.Run(name, func(t *testing.T) {
			before := heapBytes()
			g := newGroup("g", 0)
			require.NoError(t, g.Configure(Config{MaxInFlight: most, Visibility: time.Hour}))
			claim(g, Offset(tc.records), func(h Handout) { tc.f(g, h) })
			each := float64(heapBytes()-before) / float64(tc.records)
			t.Logf("%.1f bytes for each of %d records", each, tc.records)
			require.LessOrEqual(t, each, 64.0)
			require.NoError(t, g.Stats(1, 0, Offset(tc.records)).Check())
		})
	}
}

// ackOdd acks every record whose offset is no multiple of stride.
func ackOdd(t *testing.T, g *Group, h Handout, stride Offset) {
	if h.Offset%stride != 0 {
		require.NoError(t, g.Ack(1, h.Offset, h.Offset+1))
	}
}

func nackLater(t *testing.T, g *Group, h Handout) {
	require.NoError(t, g.Nack(1, NackRequest{Offset: h.Offset, Delay: time.Minute, HasDelay: true, Tail: h.Offset + 1}))
}
