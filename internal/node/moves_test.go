package node

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/server"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/vfs"
)

// shardDir is the directory of the only shard of a stream.
func (r *rig) shardDir(stream string) string {
	r.t.Helper()
	found, err := filepath.Glob(filepath.Join(r.options.Config.Data, "streams", "*"+stream+"*"))
	require.NoError(r.t, err)
	require.Len(r.t, found, 1)
	return found[0]
}

func (r *rig) createCache(body string) {
	r.t.Helper()
	status, raw := r.call("POST", "/v1/tenants/default/namespaces/default/caches", body)
	require.Equal(r.t, 201, status, string(raw))
}

// What is bounded is measured beside its bound, so that an alert can tell how near it is.
func TestBoundsAreMeasured(t *testing.T) {
	r := start(t, func(o *Options) {
		l := &o.Config.Limits
		l.NodeInflightBytes, l.TenantInflightBytes, l.Connections = 200<<20, 100<<20, 77
	})
	require.EqualValues(t, 200<<20, r.metric("felix_inflight_limit_bytes"))
	require.EqualValues(t, 100<<20, r.metric("felix_tenant_inflight_limit_bytes"))
	require.Equal(t, 77.0, r.metric("felix_connections_limit"))

	r.createCache(`{"cache":"bounded","max_keys":2,"max_bytes":65536,"on_full":"evict"}`)
	r.createCache(`{"cache":"open"}`)
	require.Equal(t, 2.0, r.metric("felix_cache_max_keys"), "of the one that has a bound")
	require.Equal(t, 65536.0, r.metric("felix_cache_max_bytes"))
	c := r.dial().Cache("bounded")
	for i := range 3 {
		require.NoError(t, c.Put(t.Context(), fmt.Sprint(i), []byte("v"), client.WithTTL(time.Hour)))
	}
	require.Equal(t, 1.0, r.metric("felix_cache_removed_total", `reason="evicted"`))
	require.Equal(t, 2.0, r.metric("felix_cache_keys", `cache="bounded"`))
	require.NoError(t, c.Put(t.Context(), "short", []byte("v"), client.WithTTL(time.Millisecond)))
	r.reaches(positive, "felix_cache_removed_total", `reason="expired"`)
	status, raw := r.call("PATCH", "/v1/tenants/default/namespaces/default/caches/bounded", `{"max_keys":9}`)
	require.Equal(t, 200, status, string(raw))
	r.reaches(func(v float64) bool { return v == 9 }, "felix_cache_max_keys")
}

// Producers that had to make room for others are counted.
func TestForgottenProducersAreCounted(t *testing.T) {
	r := start(t, func(o *Options) { o.Config.Storage.FsyncMode = "none" })
	r.createStream(`{"stream":"orders","durable":true}`)
	c := r.dial()
	const remembered = 4096
	for i := range remembered + 3 {
		p, err := c.Producer("orders")
		require.NoError(t, err)
		_, err = p.Send(t.Context(), []byte("x"))
		require.NoError(t, err)
		require.NoError(t, p.Close(t.Context()))
		if i == remembered-1 {
			require.Zero(t, r.metric("felix_stream_producers_forgotten_total", `stream="orders"`))
		}
	}
	require.Equal(t, 3.0, r.metric("felix_stream_producers_forgotten_total", `stream="orders"`))
}

// A group that is past the end of its stream, because the stream lost records, is set
// back to it and counted.
func TestGroupsSetBackAreCounted(t *testing.T) {
	r := start(t, nil)
	r.createStream(`{"stream":"orders","durable":true,"fsync":"on_commit"}`)
	c := r.dial()
	for range 3 {
		_, err := c.Publish(t.Context(), "orders", make([]byte, 500))
		require.NoError(t, err)
	}
	for _, name := range []string{"a", "b"} {
		g := c.Group("orders", name)
		messages, err := g.Poll(t.Context(), 0, 3)
		require.NoError(t, err)
		require.Len(t, messages, 3)
		require.NoError(t, g.AckAll(t.Context(), messages))
	}
	require.Zero(t, r.metric("felix_groups_clamped_total"))
	dir := r.shardDir("orders")
	r.stop()
	require.NoError(t, os.Truncate(filepath.Join(dir, "00000000000000000000.log"), 32+2*(28+500)))
	second := start(t, func(o *Options) { *o = r.options })
	second.awaitReady()
	require.Equal(t, 2.0, second.metric("felix_groups_clamped_total"))
	require.Contains(t, second.log.String(), "groups were past the end of their stream")
}

// A device that refuses a flush, files that are not the log's, and a clock that was set
// back are counted.
func TestWhatGoesWrongIsCounted(t *testing.T) {
	faulty := disk.NewFaulty(vfs.OS())
	r := start(t, func(o *Options) { o.FS = faulty })
	r.createStream(`{"stream":"orders","durable":true,"fsync":"on_commit"}`)
	r.createStream(`{"stream":"later","durable":true,"fsync":"on_commit"}`)
	c := r.dial(once())
	_, err := c.Publish(t.Context(), "orders", []byte("x"))
	require.NoError(t, err)
	for _, name := range []string{"felix_storage_sync_failures_total", "felix_storage_poisoned_total", "felix_storage_stray_files_total", "felix_storage_clock_ahead_total"} {
		require.Zero(t, r.metric(name), name)
	}
	faulty.Add(disk.Rule{Op: disk.OpFlush, Path: "*.log", Count: disk.Forever, Action: disk.Fail(syscall.EIO)})
	_, err = c.Publish(t.Context(), "orders", []byte("x"), client.Deliver(client.AtMostOnce))
	require.Error(t, err)
	r.reaches(positive, "felix_storage_sync_failures_total")
	r.reaches(func(v float64) bool { return v == 1 }, "felix_storage_poisoned_total")
	faulty.Clear()
	status, raw := r.call("POST", "/v1/tenants/default/namespaces/default/streams/orders/reopen", "")
	require.Equal(t, 200, status, string(raw)) // a poisoned log cannot be stopped cleanly
	orders, later := r.shardDir("orders"), r.shardDir("later")
	r.stop()

	require.NoError(t, os.WriteFile(filepath.Join(orders, "notes.txt"), []byte("x"), 0o600))
	log, err := storage.Open(t.Context(), later, storage.Options{
		Shard: "later", FS: vfs.OS(), Fsync: storage.OnCommit,
		Clock: func() storage.Micros { return storage.Micros(time.Now().Add(time.Hour).UnixMicro()) },
	})
	require.NoError(t, err)
	require.NoError(t, log.Append(t.Context(), &storage.Batch{Payloads: [][]byte{[]byte("of tomorrow")}}))
	require.NoError(t, log.Close(t.Context()))
	second := start(t, func(o *Options) { *o = r.options; o.FS = vfs.OS() })
	second.awaitReady()
	require.Equal(t, 1.0, second.metric("felix_storage_stray_files_total"))
	_, err = second.dial(once()).Publish(t.Context(), "later", []byte("x"))
	require.NoError(t, err)
	require.Equal(t, 1.0, second.metric("felix_storage_clock_ahead_total"))
}

// A stream that is not read for a while is counted by the reason; when that is, the tests of
// package server say (TestInFlightBytes, TestPublishWindow).
func TestPausesAreCounted(t *testing.T) {
	r := start(t, nil)
	for i, reason := range []server.Pause{server.PausedWindow, server.PausedWrites, server.PausedInFlight, server.PausedUnread, server.PausedTurn} {
		for range i + 1 {
			r.node.serverEvents().OnPaused(reason)
		}
		require.Equal(t, float64(i+1), r.metric("felix_paused_total", fmt.Sprintf("reason=%q", reason)))
	}
}

// What a slow subscriber of a stream in memory loses is counted by the stream's policy, and
// said at its end.
func TestLossesOfSlowSubscribersAreCounted(t *testing.T) {
	for _, policy := range []string{"drop_old", "block"} {
		t.Run(policy, func(t *testing.T) {
			r := start(t, func(o *Options) {
				o.Config.Streams.QueueCapacity, o.Config.Streams.BlockTimeout = 4, time.Millisecond
			})
			r.createStream(fmt.Sprintf(`{"stream":"memory","overflow":%q}`, policy))
			c := r.dial()
			slow, err := c.Subscribe(t.Context(), "memory")
			require.NoError(t, err)
			require.Zero(t, r.metric("felix_dropped_total"))
			for range 3000 {
				_, err := c.Publish(t.Context(), "memory", make([]byte, 1<<20), client.Deliver(client.AtMostOnce))
				require.NoError(t, err)
				if r.metric("felix_dropped_total", fmt.Sprintf("policy=%q", policy)) > 0 {
					break
				}
			}
			require.Positive(t, r.metric("felix_dropped_total", fmt.Sprintf("policy=%q", policy)))
			_ = slow.Close()
			said := "missed batches"
			if policy == "block" {
				said = "held back publishes"
			}
			require.Eventually(t, func() bool { return strings.Contains(r.log.String(), said) }, patience, time.Millisecond)
		})
	}
}

// A compaction is counted and said: what the log held and holds, what was written again.
func TestCompactionsAreCountedAndSaid(t *testing.T) {
	r := start(t, nil)
	r.awaitReady()
	r.createCache(`{"cache":"sessions"}`)
	k := r.dial().Cache("sessions")
	require.NoError(t, k.Put(t.Context(), "kept", make([]byte, 1000)))
	require.Zero(t, r.metric("felix_compaction_duration_seconds_count"))
	for range 40 { // a compaction is due from 8 MiB on, of which half is of no use any more
		require.NoError(t, k.Put(t.Context(), "changing", make([]byte, 1<<20)))
	}
	r.reaches(positive, "felix_compaction_duration_seconds_count")
	require.GreaterOrEqual(t, r.metric("felix_compaction_written_bytes_total"), 1000.0)
	require.GreaterOrEqual(t, r.metric("felix_compaction_freed_bytes_total"), 1000.0+1<<20)
	require.Positive(t, r.metric("felix_compaction_last_timestamp_seconds"))
	var said struct {
		Shard   string
		Before  int64 `json:"bytes_before"`
		After   int64 `json:"bytes_after"`
		Freed   int64 `json:"freed_bytes"`
		Written int64 `json:"written_bytes"`
		Dropped int   `json:"records_dropped"`
	}
	require.Eventually(t, func() bool {
		for line := range strings.Lines(r.log.String()) {
			if strings.Contains(line, `"msg":"log compacted"`) {
				return json.Unmarshal([]byte(line), &said) == nil
			}
		}
		return false
	}, patience, time.Millisecond)
	require.Equal(t, "cache default/default/sessions/0", said.Shard)
	require.GreaterOrEqual(t, said.Before, int64(8<<20))
	require.Positive(t, said.After)
	require.Positive(t, said.Freed)
	require.GreaterOrEqual(t, said.Written, int64(1000))
	require.Positive(t, said.Dropped)
}
