package server

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/heap"
	"github.com/felixlog/felix/wire"
)

// Guards count; they hold the figures of docs/testing.

// A published record costs the server at most 0.2 allocations in batches of 64. The
// client of this test allocates too, so the bound is kept for both together.
func TestGuardAllocationsPerRecord(t *testing.T) {
	if raceEnabled {
		return
	}
	w := newWorld(t)
	for _, stream := range []string{"orders", "memory"} {
		p := w.dial(transportTCP).login()
		payloads := make([]string, 64)
		for i := range payloads {
			payloads[i] = strings.Repeat("x", 128)
		}
		const window = 16
		var frames []byte
		for id := range uint64(window) {
			frames = wire.AppendPublishBatch(frames, acked(id, batch(stream, payloads...)))
		}
		round := func() {
			if _, err := p.rw.Write(frames); err != nil {
				t.Fatal(err)
			}
			for range window {
				f, err := p.reader.Next()
				if err != nil || f.Flags.Layout() != wire.LayoutAck || f.Payload[0] != 0 {
					t.Fatalf("%v %v %s", err, f.Flags, f.Payload)
				}
			}
		}
		for range 20 {
			round()
		}
		perRecord := heap.Allocs(100, round) / (window * 64)
		t.Logf("%s: %.3f allocations a record", stream, perRecord)
		require.LessOrEqual(t, perRecord, 0.2)
	}
}

// An idle connection with forty authenticated streams, which is what an official client
// opens, costs at most 512 KiB. Server and client are in this process, so both together
// get twice that.
func TestGuardIdleConnection(t *testing.T) {
	w := newWorld(t)
	measure := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	const connections, streams = 20, 40
	before := measure()
	var open []*peer
	for range connections {
		h := w.dial(transportQUIC)
		for range streams {
			open = append(open, h.login())
		}
	}
	each := int64(measure()-before) / connections
	runtime.KeepAlive(open)
	t.Logf("%d KiB a connection, client included", each>>10)
	if !raceEnabled {
		require.Less(t, each, int64(1<<20))
	}
}

// A get whose value is in memory costs next to no allocation in the server, in bursts of
// 64. The client of this test counts too.
func TestGuardAllocationsOfAGet(t *testing.T) {
	if raceEnabled {
		return
	}
	w := newWorld(t)
	w.cache("kept", 1)
	p := w.dial(transportTCP).login()
	p.send(&wire.CachePut{Tenant: "t1", Namespace: "ns", Cache: "kept", Key: "user:1234567890", Value: make([]byte, 128), RequestID: 1, HasRequestID: true})
	require.IsType(t, &wire.CacheOK{}, p.recv())
	const burst = 64
	var frames []byte
	for id := range uint64(burst) {
		key := "user:1234567890"
		if id%4 == 3 {
			key = "nobody" // what a miss leaves behind serves the next get too
		}
		frames = wire.AppendMessage(frames, &wire.CacheGet{Tenant: "t1", Namespace: "ns", Cache: "kept", Key: key, RequestID: id, HasRequestID: true})
	}
	round := func() {
		if _, err := p.rw.Write(frames); err != nil {
			t.Fatal(err)
		}
		for id := range burst {
			if f, err := p.reader.Next(); err != nil || (len(f.Payload) < 250) != (id%4 == 3) {
				t.Fatalf("%v %s", err, f.Payload)
			}
		}
	}
	for range 20 {
		round()
	}
	perGet := heap.Allocs(100, round) / burst
	t.Logf("%.3f allocations a get", perGet)
	require.LessOrEqual(t, perGet, 0.2)
}
