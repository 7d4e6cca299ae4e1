package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Rows are whole, ratios are there, a peer's row is found beside ours.
func TestBenchRows(t *testing.T) {
	s := newShell(t)
	peer := filepath.Join(s.dir, "peer.md")
	require.NoError(t, os.WriteFile(peer, []byte("| case | rate /s (median) | min..max over runs | p50 µs | p99 µs | p999 µs |\n|---|---:|---|---:|---:|---:|\n"+
		"| publish, wait for each ack, 64 B, 8 in flight on up to 8 connections | 1000 | 900..1100 | 50.0 | 60.0 | 70.0 |\n"), 0o600))
	out := s.ok("bench", "--json", "--time", "50ms", "--runs", "1", "--records", "5000", "--subscribers", "3", "--payload", "64",
		"--keys", "300", "--messages", "1000", "--fsync", "none,on_commit", "--peer", "on_commit="+peer)
	r := decode[benchReport](t, out)
	require.Equal(t, 1, r.Version)
	require.Len(t, r.Rows, 2*(len(benchCases)+1))
	for _, row := range r.Rows {
		require.Positive(t, row.Rate, row.Name)
		if row.Name == benchRestart {
			require.Positive(t, row.ResidentMiB)
			require.InDelta(t, 64+28, row.BytesPerRecord, 8, "payload, header, and a tag a batch")
			continue
		}
		if c := caseNamed(row.Name); c.floor != nil {
			require.NotNil(t, row.Floor, row.Name)
			require.Positive(t, row.Floor.Rate, row.Name)
			require.Positive(t, row.Ratio, row.Name)
		} else {
			require.Positive(t, row.P50, row.Name)
			require.Positive(t, row.P999, row.Name)
		}
		require.Equal(t, row.Name == "publish-8" && row.Params.Fsync == "on_commit", row.Peer != nil, row.Name)
		if row.Params.Fsync == "on_commit" && row.Name != "replay" && !strings.HasPrefix(row.Name, "cache-get") {
			require.Positive(t, row.FlushesPerOp, row.Name)
		}
	}
}

func caseNamed(name string) *benchCase {
	return &benchCases[slices.IndexFunc(benchCases, func(c benchCase) bool { return c.name == name })]
}

// What a broker keeps in memory, with few keys: the figures are there.
func TestBenchMemory(t *testing.T) {
	s := newShell(t)
	out := s.ok("bench", "--json", "--tests", "memory", "--fsync", "periodic", "--keys", "2000", "--time", "100ms", "--payload", "16")
	r := decode[benchReport](t, out)
	require.Len(t, r.Rows, 1)
	m := r.Rows[0].Memory
	require.NotNil(t, m)
	require.Equal(t, 2000, m.Keys)
	require.Positive(t, m.RestMiB)
	require.Positive(t, m.HeapPerKey)
	require.Positive(t, m.GCShare)
	require.Less(t, m.GCShare, 1.0)
}

// The tables of the programs that drive other brokers are read as they are.
func TestPeerTables(t *testing.T) {
	file := filepath.Join(t.TempDir(), "peer.md")
	head := "| case | rate /s (median) | min..max over runs | p50 µs | p99 µs | p999 µs | max µs | cores used | others' CPU |\n|---|---:|---|---:|---:|---:|---:|---:|---:|\n"
	line := func(name string, rate int, p50 string) string {
		return fmt.Sprintf("| %s | %d | 1..2 | %s | 2.0 | 3.0 | 4.0 | 1.00 | 1%% |\n", name, rate, p50)
	}
	text := "\n### Redis ops, appendfsync always (runs 3, load1 0.1)\n\n" + head +
		line("go-redis set 128 B, 64 connections, no pipeline", 11, "1.0") +
		line("go-redis get 128 B, 1 connections, no pipeline", 12, "1.0") +
		line("redis-benchmark get 128 B, -c 50 -P 1 -n 200000", 99, "1.0") +
		line("XREADGROUP COUNT 1, one XACK a batch, 4 workers, 30000 x 128 B", 13, "–") +
		line("XREADGROUP COUNT 100, XACK each in a pipeline, 4 workers, 300000 x 128 B", 14, "–") +
		line("XREADGROUP COUNT 100, one XACK a batch, 4 workers, 300000 x 128 B", 15, "–") +
		line("XREADGROUP COUNT 100, one XACK a batch, 1 workers, 300000 x 128 B", 98, "–") +
		line("XADD to a blocked XREAD, 500 a second", 500, "9.0") +
		"\n### JetStream kv, sync default (runs 3, load1 0.1)\n\n" + head +
		line("KV put 128 B, 10000 keys, 64 in flight", 21, "1.0") +
		line("KV get 128 B, 10000 keys, 1 in flight", 22, "1.0") +
		line("work queue, 30000 x 128 B prefilled, 4 workers, ack confirmed one by one, till stream empty", 23, "–") +
		line("work queue, 300000 x 128 B prefilled, 4 workers, ack without answer, till stream empty", 97, "–") +
		line("fan-out, 128 B to 64 ordered consumers (pull, Consume), deliveries", 24, "–") +
		line("JetStream publish to push consumer (older API)", 500, "8.0") +
		line("ordered push consumer (older API), 1000000 messages of 128 B", 25, "–") +
		line("async publish, 1024 B, window 1000", 26, "–") +
		"| how stopped | stop took | start to stream usable | RSS then | messages | server log says |\n|---|---:|---:|---:|---:|---|\n" +
		"| killed | 3ms | 3.6s | 51 MiB | 5000001 | Restored |\n| terminated | 3ms | 0.6s | 51 MiB | 5000001 | Restored |\n"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	rows, err := readPeer(file)
	require.NoError(t, err)
	for _, c := range []struct {
		name, fsync string
		p           benchParams
		byTime      bool
		rate        float64 // 0: none
	}{
		{"cache-put-64", "on_commit", benchParams{Payload: 128, InFlight: 64}, false, 11},
		{"cache-put-64", "periodic", benchParams{Payload: 128, InFlight: 64}, false, 21},
		{"cache-put-64", "periodic", benchParams{Payload: 1024, InFlight: 64}, false, 0},
		{"cache-get-1", "periodic", benchParams{Payload: 128, InFlight: 1}, false, 22},
		{"cache-get-64", "periodic", benchParams{Payload: 128, InFlight: 64}, false, 0},
		{"queue-1", "on_commit", benchParams{Payload: 128, InFlight: queueWorkers}, false, 13},
		{"queue-100", "on_commit", benchParams{Payload: 128, InFlight: queueWorkers}, false, 15},
		{"queue-100", "periodic", benchParams{Payload: 128, InFlight: queueWorkers}, false, 23},
		{"queue-1", "periodic", benchParams{Payload: 128, InFlight: queueWorkers}, false, 23},
		{"fanout", "periodic", benchParams{Payload: 128}, false, 24},
		{"latency", "periodic", benchParams{Payload: 128, InFlight: 1}, true, 500},
		{"replay", "on_commit", benchParams{Payload: 128}, false, 25},
		{"pipelined", "periodic", benchParams{Payload: 1024, InFlight: 1000}, false, 26},
		{"restart", "on_commit", benchParams{Payload: 128, Records: 5_000_000}, true, 5000001 / 3.6},
		{"restart", "on_commit", benchParams{Payload: 128, Records: 1_000_000}, true, 0},
	} {
		c.p.Fsync = c.fsync
		best := bestPeer(rows, c.name, c.p, c.byTime)
		if c.rate == 0 {
			require.Nil(t, best, "%s %+v", c.name, c.p)
			continue
		}
		require.NotNil(t, best, "%s %+v", c.name, c.p)
		require.InDelta(t, c.rate, best.Rate, 0.01, "%s %+v", c.name, c.p)
		if c.name != benchRestart {
			require.InDelta(t, 1e6/c.rate, best.CPU, 1, "one core")
		}
	}
}

// TestBenchMakesItsDirectory: what --dir names need not be there, and stays empty.
func TestBenchMakesItsDirectory(t *testing.T) {
	s := newShell(t)
	dir := filepath.Join(s.dir, "not", "there")
	s.ok("bench", "--dir", dir, "--tests", "cache-get-1", "--fsync", "none", "--runs", "1", "--time", "50ms")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}
