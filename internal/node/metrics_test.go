package node

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/vfs"
)

func (r *rig) createStream(body string) {
	r.t.Helper()
	status, raw := r.call("POST", "/v1/tenants/default/namespaces/default/streams", body)
	require.Equal(r.t, 201, status, string(raw))
}

func (r *rig) dial(opts ...client.ClientOption) *client.Client {
	r.t.Helper()
	token, err := r.node.creds.keys.Mint(auth.MintRequest{Tenant: "default", Subject: "p:test", Permissions: auth.AllPermissions("default")})
	require.NoError(r.t, err)
	c, err := r.dialWith(token, opts...)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, c.Close()) })
	return c
}

func (r *rig) dialWith(token string, opts ...client.ClientOption) (*client.Client, error) {
	r.t.Helper()
	trust, err := auth.ClientTLS(r.node.creds.ca, "localhost")
	require.NoError(r.t, err)
	return client.Dial(r.t.Context(), []string{r.node.ClientAddr()}, append([]client.ClientOption{client.WithTLS(trust), client.WithToken(client.StaticToken(token))}, opts...)...)
}

// metric sums the samples of a name whose labels hold all of with.
func (r *rig) metric(name string, with ...string) float64 {
	r.t.Helper()
	status, raw := r.call("GET", "/metrics", "")
	require.Equal(r.t, 200, status)
	sum, found := 0.0, false
next:
	for line := range strings.Lines(string(raw)) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), name)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		for _, w := range with {
			if !strings.Contains(rest, w) {
				continue next
			}
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		require.NoError(r.t, err, line)
		sum, found = sum+v, true
	}
	require.True(r.t, found, "no metric %s %v", name, with)
	return sum
}

// reaches waits until a metric is as wanted.
func (r *rig) reaches(want func(float64) bool, name string, with ...string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return want(r.metric(name, with...)) }, patience, 5*time.Millisecond, "%s %v", name, with)
}

func positive(v float64) bool { return v > 0 }
func zero(v float64) bool     { return v == 0 }

// A broker that works moves each of the metrics that operators are promised. Those that
// only move when something goes wrong, or at a bound, are in moves_test.go and
// settings_test.go.
func TestWorkMovesEveryMetric(t *testing.T) {
	faulty := disk.NewFaulty(vfs.OS())
	r := start(t, func(o *Options) {
		o.FS = faulty
		c := &o.Config
		c.Storage.FsyncInterval = time.Hour // what is not flushed stays so, to be seen
		c.Storage.SegmentBytes = 8192       // so that segments roll
		c.Streams.QueueCapacity = 4
	})
	r.awaitReady()
	r.createStream(`{"stream":"lazy","durable":true}`)
	r.createStream(`{"stream":"safe","durable":true,"fsync":"on_commit"}`)
	r.createStream(`{"stream":"memory","overflow":"drop_new"}`)
	c := r.dial()

	for range 20 {
		for _, s := range []string{"lazy", "safe"} {
			_, err := c.Publish(t.Context(), s, make([]byte, 512))
			require.NoError(t, err)
		}
	}
	require.Equal(t, 40.0, r.metric("felix_published_records_total"))
	require.Equal(t, 40*512.0, r.metric("felix_published_bytes_total"))
	require.Equal(t, 3.0, r.metric("felix_streams"))
	require.Equal(t, 20.0, r.metric("felix_stream_records_total", `stream="lazy"`))
	require.Equal(t, 20*512.0, r.metric("felix_stream_bytes_total", `stream="lazy"`))
	require.Zero(t, r.metric("felix_stream_records_total", `stream="memory"`))
	require.Equal(t, 1.0, r.metric("felix_stream_shards", `stream="safe"`))
	require.Positive(t, r.metric("felix_publishes_total"))
	require.Positive(t, r.metric("felix_acks_total", `result="ok"`))
	require.Positive(t, r.metric("felix_publish_duration_seconds_count"))
	require.Positive(t, r.metric("felix_storage_append_duration_seconds_count"))
	require.Positive(t, r.metric("felix_storage_sync_duration_seconds_count"))
	require.Positive(t, r.metric("felix_storage_sync_batch_appends_count"))
	require.Positive(t, r.metric("felix_storage_unsynced_bytes"))
	require.Positive(t, r.metric("felix_storage_unsynced_seconds"))
	r.reaches(positive, "felix_storage_segment_roll_total")
	require.Positive(t, r.metric("felix_storage_recovery_duration_seconds_count"))
	require.Equal(t, 3.0, r.metric("felix_shards", `state="active"`))
	require.Equal(t, 3.0, r.metric("felix_recovery_shards"))
	require.Equal(t, 3.0, r.metric("felix_recovery_shards_done"))
	require.Positive(t, r.metric("felix_disk_free_bytes"))
	require.Zero(t, r.metric("felix_disk_reserve_bytes"))
	require.Positive(t, r.metric("felix_connections", `transport="tcp"`))
	require.Positive(t, r.metric("felix_connections_total", `transport="tcp"`))

	// A flush that is held keeps bytes in flight.
	gate := disk.NewGate()
	faulty.Add(disk.Rule{Op: disk.OpFlush, Path: "*.log", Count: disk.Forever, Action: disk.Hold(gate)})
	published := make(chan error, 1)
	go func() {
		_, err := c.Publish(context.WithoutCancel(t.Context()), "safe", make([]byte, 777))
		published <- err
	}()
	r.reaches(func(v float64) bool { return v >= 777 }, "felix_inflight_bytes")
	r.reaches(func(v float64) bool { return v >= 777 }, "felix_tenant_inflight_bytes", `tenant="default"`)
	gate.Open()
	require.NoError(t, <-published)
	r.reaches(zero, "felix_inflight_bytes")
	r.reaches(zero, "felix_tenant_inflight_bytes", `tenant="default"`)

	sub, err := c.Subscribe(t.Context(), "lazy", client.FromEarliest())
	require.NoError(t, err)
	r.reaches(func(v float64) bool { return v == 1 }, "felix_subscribers")
	require.Equal(t, 1.0, r.metric("felix_stream_subscribers", `stream="lazy"`))
	require.Zero(t, r.metric("felix_stream_subscribers", `stream="safe"`))
	_, err = sub.Next(t.Context())
	require.NoError(t, err)
	r.reaches(positive, "felix_delivered_records_total")
	r.reaches(positive, "felix_delivered_bytes_total")
	r.reaches(positive, "felix_stream_delivered_records_total", `stream="lazy"`)
	r.reaches(positive, "felix_stream_delivered_bytes_total", `stream="lazy"`)
	// Nobody takes what comes: the subscription falls behind, for good once nothing of a
	// round is delivered any more.
	lagging := func(delivered float64) bool {
		return r.metric("felix_subscription_lag_records") > 0 && r.metric("felix_delivered_records_total") == delivered
	}
	for range 3000 {
		delivered := r.metric("felix_delivered_records_total")
		p, err := c.Producer("lazy")
		require.NoError(t, err)
		for range 64 {
			_, err := p.Send(t.Context(), make([]byte, 64<<10))
			require.NoError(t, err)
		}
		require.NoError(t, p.Close(t.Context()))
		if lagging(delivered) {
			break
		}
	}
	require.Positive(t, r.metric("felix_subscription_lag_records"))
	require.Positive(t, r.metric("felix_stream_lag_records", `stream="lazy"`))
	require.NoError(t, sub.Close())
	r.reaches(zero, "felix_subscribers")

	// A slow reader of a stream in memory loses by its policy.
	slow, err := c.Subscribe(t.Context(), "memory")
	require.NoError(t, err)
	for range 3000 {
		_, err := c.Publish(t.Context(), "memory", make([]byte, 1<<20), client.Deliver(client.AtMostOnce))
		require.NoError(t, err)
		if r.metric("felix_dropped_total", `policy="drop_new"`) > 0 {
			break
		}
	}
	dropped := r.metric("felix_dropped_total", `policy="drop_new"`)
	require.Positive(t, dropped)
	require.NoError(t, slow.Close())
	status, _ := r.call("DELETE", "/v1/tenants/default/namespaces/default/streams/memory", "")
	require.Equal(t, 204, status)
	require.GreaterOrEqual(t, r.metric("felix_dropped_total", `policy="drop_new"`), dropped, "a total does not fall when its stream goes")

	_, err = r.dialWith("no.such.token")
	require.ErrorIs(t, err, client.ErrUnauthenticated)
	require.Positive(t, r.metric("felix_refused_total", `reason="token"`))
}

// What recovery cuts is counted; a record that was never whole is no loss.
func TestRecoveryIsCounted(t *testing.T) {
	r := start(t, nil)
	r.createStream(`{"stream":"orders","durable":true}`)
	_, err := r.dial().Publish(t.Context(), "orders", []byte("hello"))
	require.NoError(t, err)
	r.stop()
	logs, err := filepath.Glob(filepath.Join(r.options.Config.Data, "streams", "*orders*", "*.log"))
	require.NoError(t, err)
	require.NotEmpty(t, logs)
	f, err := os.OpenFile(logs[len(logs)-1], os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	_, err = f.Write([]byte("0123456789"))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	second := start(t, func(o *Options) { *o = r.options })
	second.awaitReady()
	require.Equal(t, 10.0, second.metric("felix_storage_recovery_truncated_bytes"))
	require.Zero(t, second.metric("felix_storage_recovery_acknowledged_lost_total"))
}

// While shards are being opened, the broker is live and says how far it is; its
// logs are not taken for recovered before they are.
func TestReadinessDuringRecovery(t *testing.T) {
	r := start(t, nil)
	r.createStream(`{"stream":"orders","durable":true,"shards":4}`)
	_, err := r.dial().Publish(t.Context(), "orders", []byte("hello"))
	require.NoError(t, err)
	r.stop()

	faulty := disk.NewFaulty(vfs.OS())
	gate := disk.NewGate()
	faulty.Add(disk.Rule{Op: disk.OpReadDir, Path: "*orders*", Count: disk.Forever, Action: disk.Hold(gate)})
	second := start(t, func(o *Options) {
		*o = r.options
		o.FS = faulty
		o.Boot = "another boot"
	})
	status, raw := second.call("GET", "/live", "")
	require.Equal(t, 200, status, string(raw))
	status, raw = second.call("GET", "/ready", "")
	require.Equal(t, 503, status)
	require.Contains(t, string(raw), `"status":"recovering"`)
	require.Contains(t, string(raw), "recovering 0%: 0 of 4 shards opened")
	require.Equal(t, 4.0, second.metric("felix_shards", `state="opening"`))
	_, err = second.dial(once()).Publish(t.Context(), "orders", []byte("x"), client.Deliver(client.AtMostOnce))
	require.ErrorIs(t, err, client.ErrShardUnavailable)
	stored, err := os.ReadFile(filepath.Join(r.options.Config.Data, nodeName))
	require.NoError(t, err)
	require.NotContains(t, string(stored), "another boot")

	gate.Open()
	second.awaitReady()
	require.Eventually(t, func() bool {
		stored, err := os.ReadFile(filepath.Join(r.options.Config.Data, nodeName))
		return err == nil && strings.Contains(string(stored), "another boot")
	}, patience, time.Millisecond)
	ack, err := second.dial().Publish(t.Context(), "orders", []byte("again"))
	require.NoError(t, err)
	require.Equal(t, uint64(1), ack.Offset)
}

// A damaged shard is out of service by name; the others serve, and /ready says so.
func TestDamagedShardIsNamed(t *testing.T) {
	r := start(t, nil)
	r.createStream(`{"stream":"orders","durable":true}`)
	r.createStream(`{"stream":"others","durable":true}`)
	c := r.dial()
	for range 3 {
		_, err := c.Publish(t.Context(), "orders", []byte("hello, hello"))
		require.NoError(t, err)
	}
	require.NoError(t, c.Close())
	r.stop()
	logs, err := filepath.Glob(filepath.Join(r.options.Config.Data, "streams", "*orders*", "*.log"))
	require.NoError(t, err)
	raw, err := os.ReadFile(logs[0])
	require.NoError(t, err)
	raw[32+28+3] ^= 1 // in the first record's payload
	require.NoError(t, os.WriteFile(logs[0], raw, 0o600))

	second := start(t, func(o *Options) { *o = r.options })
	rd := second.awaitReady()
	require.Equal(t, "degraded", rd.Status)
	require.Len(t, rd.Reasons, 1)
	require.Equal(t, "damaged", rd.Reasons[0].Code)
	require.Contains(t, rd.Reasons[0].Detail, "default/default/orders/0")
	require.Equal(t, 1.0, second.metric("felix_shards", `state="damaged"`))
	c = second.dial(client.WithRetry(client.RetryPolicy{Attempts: 1, Base: time.Millisecond, Max: time.Millisecond}))
	_, err = c.Publish(t.Context(), "orders", []byte("x"), client.Deliver(client.AtMostOnce))
	require.ErrorIs(t, err, client.ErrShardUnavailable)
	require.ErrorContains(t, err, "damaged")
	_, err = c.Publish(t.Context(), "others", []byte("x"))
	require.NoError(t, err)
	after, err := os.ReadFile(logs[0])
	require.NoError(t, err)
	require.Equal(t, raw, after, "what was refused is left as it was")

	reopen := func() (shards []struct{ State, Error string }) {
		status, body := second.call("POST", "/v1/tenants/default/namespaces/default/streams/orders/reopen", "")
		require.Equal(t, 200, status, "%s", body)
		require.NoError(t, json.Unmarshal(body, &struct{ Shards any }{&shards}))
		return shards
	}
	require.Contains(t, reopen()[0].Error, "damaged")
	raw[32+28+3] ^= 1
	require.NoError(t, os.WriteFile(logs[0], raw, 0o600))
	require.Equal(t, []struct{ State, Error string }{{State: "active"}}, reopen(), "restored from a copy")
	require.Equal(t, "ready", second.node.Ready().Status)
	_, err = c.Publish(t.Context(), "orders", []byte("x"))
	require.NoError(t, err)
}

// An operator's pass of retention removes what is over the bound, at once.
func TestRetentionOnRequest(t *testing.T) {
	r := start(t, func(o *Options) {
		o.Config.Storage.SegmentBytes = 64 << 10
		o.Config.Storage.RetentionCheckInterval = time.Hour
	})
	r.createStream(`{"stream":"orders","durable":true,"retention":{"max_size_bytes":65536}}`)
	producer, err := r.dial().Producer("orders")
	require.NoError(t, err)
	for range 1000 {
		_, err := producer.Send(t.Context(), make([]byte, 500))
		require.NoError(t, err)
	}
	require.NoError(t, producer.Flush(t.Context()))
	var out struct {
		Shards []struct {
			Head, Segments uint64
			Error          string
		}
	}
	require.Eventually(t, func() bool { // segments are sealed in the background
		status, body := r.call("POST", "/v1/tenants/default/namespaces/default/streams/orders/retain", "")
		require.Equal(t, 200, status, "%s", body)
		require.NoError(t, json.Unmarshal(body, &out))
		require.Empty(t, out.Shards[0].Error)
		return out.Shards[0].Head > 700
	}, patience, 10*time.Millisecond)
	_, err = r.dial().Subscribe(t.Context(), "orders", client.FromOffset(0))
	require.ErrorIs(t, err, client.ErrCursorTooOld)
}

// Damage in a sealed segment is found by who reads it: the shard serves what is before
// and after, and /ready names it from then on.
func TestDamagedRecordsAreNamedWhenTheyAreFound(t *testing.T) {
	r := start(t, func(o *Options) { o.Config.Storage.SegmentBytes = 64 << 10 })
	r.createStream(`{"stream":"orders","durable":true}`)
	producer, err := r.dial().Producer("orders")
	require.NoError(t, err)
	for range 300 {
		_, err := producer.Send(t.Context(), make([]byte, 500))
		require.NoError(t, err)
	}
	require.NoError(t, producer.Flush(t.Context()))
	r.stop()
	logs, err := filepath.Glob(filepath.Join(r.options.Config.Data, "streams", "*orders*", "00000000000000000000.log"))
	require.NoError(t, err)
	raw, err := os.ReadFile(logs[0])
	require.NoError(t, err)
	raw[len(raw)/2] ^= 1
	require.NoError(t, os.WriteFile(logs[0], raw, 0o600))

	second := start(t, func(o *Options) { *o = r.options })
	require.Equal(t, "ready", second.awaitReady().Status)
	sub, err := second.dial().Subscribe(t.Context(), "orders", client.FromEarliest())
	require.NoError(t, err)
	for err == nil {
		_, err = sub.Next(t.Context())
	}
	require.ErrorContains(t, err, "damage")
	rd := second.node.Ready()
	require.True(t, rd.Ready)
	require.Equal(t, "degraded", rd.Status)
	require.Len(t, rd.Reasons, 1)
	require.Equal(t, "damaged_records", rd.Reasons[0].Code)
	require.Contains(t, rd.Reasons[0].Detail, "default/default/orders/0")
}

// Records that were on the device are gone, cut off by somebody while the broker was down:
// what is left serves, and /ready says so until the next start.
func TestRecordsThatAreGoneAreNamed(t *testing.T) {
	r := start(t, nil)
	r.createStream(`{"stream":"orders","durable":true,"fsync":"on_commit"}`)
	c := r.dial()
	for range 3 {
		_, err := c.Publish(t.Context(), "orders", make([]byte, 500))
		require.NoError(t, err)
	}
	r.stop()
	logs, err := filepath.Glob(filepath.Join(r.options.Config.Data, "streams", "*orders*", "00000000000000000000.log"))
	require.NoError(t, err)
	require.NoError(t, os.Truncate(logs[0], 32+2*(28+500)))
	second := start(t, func(o *Options) { *o = r.options })
	rd := second.awaitReady()
	require.Equal(t, "degraded", rd.Status)
	require.Equal(t, "records_gone", rd.Reasons[0].Code)
	require.Contains(t, rd.Reasons[0].Detail, "default/default/orders/0")
	second.stop()
	third := start(t, func(o *Options) { *o = r.options })
	require.Equal(t, "ready", third.awaitReady().Status)
}

// Out of space: publishes are refused by name and nothing is lost; with room again
// they go on by themselves.
func TestDiskFullAndRoomAgain(t *testing.T) {
	faulty := disk.NewFaulty(vfs.OS())
	r := start(t, func(o *Options) { o.FS = faulty })
	r.createStream(`{"stream":"orders","durable":true,"fsync":"on_commit"}`)
	c := r.dial()
	ack, err := c.Publish(t.Context(), "orders", []byte("before"))
	require.NoError(t, err)
	require.Zero(t, ack.Offset)
	faulty.Add(disk.Rule{Op: disk.OpWrite, Path: "*.log", Count: disk.Forever, Action: disk.NoSpace(3)})
	impatient := r.dial(client.WithRetry(client.RetryPolicy{Attempts: 1, Base: time.Millisecond, Max: time.Millisecond}))
	_, err = impatient.Publish(t.Context(), "orders", []byte("no room"), client.Deliver(client.AtMostOnce))
	require.ErrorIs(t, err, client.ErrOverloaded)
	require.ErrorContains(t, err, "disk_full")
	require.Positive(t, r.metric("felix_refused_total", `reason="disk_full"`))
	faulty.Clear()
	require.Eventually(t, func() bool {
		ack, err = impatient.Publish(t.Context(), "orders", []byte("after"), client.Deliver(client.AtMostOnce))
		return err == nil
	}, patience, 10*time.Millisecond)
	require.Equal(t, uint64(1), ack.Offset)
}

// A stream in whose place a start finds the directory of another begins anew, and /ready
// says where that went, until the next start or the deletion of the stream.
func TestDirectoriesSetAsideAreNamed(t *testing.T) {
	r := start(t, nil)
	for _, name := range []string{"orders", "bills"} {
		r.createStream(`{"stream":"` + name + `","durable":true}`)
		require.NoError(t, broker.RestoreIncarnation(vfs.OS(), r.shardDir(name), 7))
	}
	r.stop()
	second := start(t, func(o *Options) { *o = r.options })
	rd := second.awaitReady()
	require.Equal(t, "degraded", rd.Status)
	require.Len(t, rd.Reasons, 2)
	for i, name := range []string{"bills", "orders"} {
		require.Equal(t, "set_aside", rd.Reasons[i].Code)
		require.Contains(t, rd.Reasons[i].Detail, "default/default/"+name+"/0")
		_, moved, found := strings.Cut(rd.Reasons[i].Detail, "moved_to ")
		require.True(t, found)
		require.DirExists(t, moved)
	}
	status, _ := second.call("DELETE", "/v1/tenants/default/namespaces/default/streams/orders", "")
	require.Equal(t, 204, status)
	require.Eventually(t, func() bool { return len(second.node.Ready().Reasons) == 1 }, patience, time.Millisecond)
	require.Equal(t, rd.Reasons[0], second.node.Ready().Reasons[0])
	second.stop()
	third := start(t, func(o *Options) { *o = r.options })
	require.Equal(t, "ready", third.awaitReady().Status)
}
