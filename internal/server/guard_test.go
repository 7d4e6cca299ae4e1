package server

import (
	"bytes"
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

// Requests of a cache that come in bursts of 64 cost the server little or no allocation
// each. The client of this test counts too.
func TestGuardAllocationsOfACache(t *testing.T) {
	if raceEnabled {
		return
	}
	const key = "user:1234567890, longer than what the compiler keeps on a stack"
	value := make([]byte, 128)
	for _, tc := range []struct {
		name string
		ask  func(id uint64) wire.Message
		most float64
	}{
		{"get", func(id uint64) wire.Message {
			m := &wire.CacheGet{Tenant: "t1", Namespace: "ns", Cache: "kept", Key: key, RequestID: id, HasRequestID: true}
			if id%4 == 3 {
				m.Key = "nobody" // what a miss leaves behind serves the next get too
			}
			return m
		}, 0.1},
		{"put", func(id uint64) wire.Message {
			return &wire.CachePut{Tenant: "t1", Namespace: "ns", Cache: "kept", Key: key, Value: value, RequestID: id, HasRequestID: true}
		}, 0.1},
		{"put if absent", func(id uint64) wire.Message {
			return &wire.CachePutIf{Tenant: "t1", Namespace: "ns", Cache: "kept", Key: key, Value: value, Condition: wire.CacheCondition{Absent: true}, RequestID: id}
		}, 0.1},
		{"delete of nothing", func(id uint64) wire.Message {
			return &wire.CacheDelete{Tenant: "t1", Namespace: "ns", Cache: "kept", Key: "nobody", RequestID: id, HasRequestID: true}
		}, 4.1},
		{"counter add", func(id uint64) wire.Message {
			return &wire.CounterAdd{Tenant: "t1", Namespace: "ns", Cache: "kept", Key: key, Delta: 1, RequestID: id}
		}, 1.2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			w.cache("kept", 1)
			p := w.dial(transportTCP).login()
			p.send(&wire.CachePut{Tenant: "t1", Namespace: "ns", Cache: "kept", Key: key, Value: value, RequestID: 1, HasRequestID: true})
			require.IsType(t, &wire.CacheOK{}, p.recv())
			const burst = 64
			var frames []byte
			for id := range uint64(burst) {
				frames = wire.AppendMessage(frames, tc.ask(id))
			}
			round := func() {
				if _, err := p.rw.Write(frames); err != nil {
					t.Fatal(err)
				}
				for range burst {
					if f, err := p.reader.Next(); err != nil || bytes.HasPrefix(f.Payload, []byte(`{"type":"error"`)) {
						t.Fatalf("%v %s", err, f.Payload)
					}
				}
			}
			for range 20 {
				round()
			}
			each := heap.Allocs(100, round) / burst
			t.Logf("%.3f allocations each", each)
			require.LessOrEqual(t, each, tc.most)
		})
	}
}
