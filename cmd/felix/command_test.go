package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
)

func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal([]byte(text), &v), text)
	return v
}

func TestPublishAndSubscribe(t *testing.T) {
	s := newShell(t)
	s.serve()
	s.ok("stream", "create", "orders", "--durable", "--shards", "4")

	require.Equal(t, "0\n", s.ok("pub", "orders", "hello"))
	require.Equal(t, "{\"stream\":\"orders\",\"shard\":0,\"offset\":1}\n", s.ok("pub", "orders", "", "--json"))
	out, _ := s.feed("one\r\ntwo\n\nlast", "pub", "orders", "--idempotent")
	require.Equal(t, "2\n3\n4\n5\n", out)
	require.Equal(t, "6\n7\n8\n", s.ok("pub", "orders", "again", "--count", "3"))
	file := filepath.Join(s.dir, "blob")
	require.NoError(t, os.WriteFile(file, []byte("a\nb\xff"), 0o600))
	require.Equal(t, "9\n", s.ok("pub", "orders", "--file", file, "--whole"))
	out, _ = s.feed(strings.Repeat("line\n", 5000), "pub", "orders", "--ack", "none", "--shard", "2")
	require.Empty(t, out)

	require.Equal(t, "hello\n\none\ntwo\n\nlast\n", s.ok("sub", "orders", "--shard", "0", "--from", "earliest", "--count", "6"))
	require.Equal(t, "0\t8\tagain\n", s.ok("sub", "orders", "--shard", "0", "--from", "8", "--count", "1", "--format", "offsets"))
	line := decode[recordLine](t, s.ok("sub", "orders", "--shard", "0", "--from", "9", "--count", "1", "--json"))
	require.Equal(t, "YQpi/w==", line.PayloadBase64)
	require.Nil(t, line.Payload)
	require.Equal(t, uint64(9), *line.Offset)
	require.WithinDuration(t, time.Now(), *line.Timestamp, time.Minute)
	require.Equal(t, 5000, strings.Count(s.ok("sub", "orders", "--shard", "2", "--from", "earliest", "--count", "5000"), "line\n"))
	all := map[string]bool{}
	for line := range strings.Lines(s.ok("sub", "orders", "--from", "1h", "--count", "5010", "--format", "offsets")) {
		if f := strings.SplitN(line, "\t", 3); len(f) == 3 { // one payload has two lines
			all[f[0]+"/"+f[1]] = true
		}
	}
	require.Equal(t, 5010, len(all))
	require.Empty(t, s.ok("sub", "orders", "--idle", "200ms"), "it ends though nothing comes")
}

// TestPubSaysThatOneShardTakesAll: once a run, and on standard error alone.
func TestPubSaysThatOneShardTakesAll(t *testing.T) {
	s := newShell(t)
	s.serve()
	s.ok("stream", "create", "orders", "--shards", "4")
	s.ok("stream", "create", "single")
	for _, c := range []struct {
		args  []string
		warns int
	}{
		{[]string{"orders"}, 1},
		{[]string{"orders", "--json"}, 1},
		{[]string{"orders", "--ack", "none"}, 1},
		{[]string{"orders", "--key", "k"}, 0},
		{[]string{"orders", "--shard", "0"}, 0},
		{[]string{"single"}, 0},
	} {
		out, errs := s.feed("one\ntwo\n", append([]string{"pub"}, c.args...)...)
		require.Zero(t, s.exit, errs)
		require.Equal(t, c.warns, strings.Count(errs, "records without a key go to shard 0, one of 4 of stream orders"), "%v: %s", c.args, errs)
		require.NotContains(t, out, "shard 0")
	}
	_, errs := s.felix("pub", "none", "x")
	require.Equal(t, exitMissing, s.exit)
	require.NotContains(t, errs, "without a key")
}

func TestStreamCommands(t *testing.T) {
	s := newShell(t)
	s.serve()
	require.Equal(t, "stream a created\n", s.ok("stream", "create", "a", "--durable", "--fsync", "on_commit", "--retention-age", "7d", "--retention-bytes", "10GiB"))
	require.Equal(t, "stream a exists\n", s.ok("stream", "create", "a", "--durable", "--fsync", "on_commit", "--retention-age", "7d", "--retention-bytes", "10GiB"))
	_, errs := s.felix("stream", "create", "a", "--durable", "--fsync", "none")
	require.Equal(t, exitRefused, s.exit)
	require.Contains(t, errs, "exists with another")
	s.ok("stream", "create", "jobs", "--durable", "--kind", "queue")
	s.ok("stream", "create", "live", "--overflow", "drop_old", "--shards", "3")
	info := decode[map[string]any](t, s.ok("stream", "info", "a", "--json"))
	require.Equal(t, map[string]any{"max_age_seconds": 604800.0, "max_size_bytes": 10737418240.0}, info["retention"])
	list := decode[items[map[string]any]](t, s.ok("stream", "ls", "--json"))
	require.Len(t, list.Items, 3)
	require.Contains(t, s.ok("stream", "ls"), "jobs  queue   1       yes      default\n")
	_, errs = s.felix("stream", "rm", "a")
	require.Equal(t, exitUsage, s.exit)
	require.Contains(t, errs, "--yes")
	s.ok("stream", "rm", "a", "--yes")
	s.felix("stream", "info", "a")
	require.Equal(t, exitMissing, s.exit)
	s.felix("sub", "a", "--from", "earliest", "--count", "1")
	require.Equal(t, exitMissing, s.exit)
}

// Definitions and records outlive the broker, stopped or killed.
func TestStreamsOutliveTheBroker(t *testing.T) {
	s := newShell(t)
	broker := s.serve()
	s.ok("stream", "create", "orders", "--durable")
	s.ok("pub", "orders", "first")
	require.NoError(t, broker.Stop())
	broker = s.serve("--listen", broker.Clients)
	s.ok("pub", "orders", "second")
	require.NoError(t, broker.Kill())
	s.serve("--listen", broker.Clients)
	require.Equal(t, "first\nsecond\n", s.ok("sub", "orders", "--from", "earliest", "--count", "2"))
}

func TestTenantsAndTokens(t *testing.T) {
	s := newShell(t)
	s.serve()
	s.ok("tenant", "create", "acme", "--display-name", "Acme Corp")
	_, errs := s.felix("tenant", "create", "acme", "--display-name", "Acme Corp")
	require.Equal(t, exitRefused, s.exit)
	require.Contains(t, errs, "exists")
	require.Regexp(t, `(?m)^acme +Acme Corp +default +default$`, s.ok("tenant", "ls"))
	keys, err := filepath.Glob(filepath.Join(s.dir, "felix-data", "keys", "acme", "*.pem"))
	require.NoError(t, err)
	require.Len(t, keys, 1)
	as := []string{"--tenant", "acme", "--signing-key", keys[0]}
	s.ok(append([]string{"namespace", "create", "payments"}, as...)...)
	as = append(as, "-n", "payments")
	s.ok(append([]string{"stream", "create", "orders", "--durable"}, as...)...)
	require.Equal(t, "0\n", s.ok(append([]string{"pub", "orders", "theirs"}, as...)...))
	s.felix("pub", "orders", "ours")
	require.Equal(t, exitMissing, s.exit, "the default tenant has no such stream")

	// A token that may only read.
	reader := strings.TrimSpace(s.ok("token", "mint", "--tenant", "acme", "--signing-key", keys[0], "--perm", "stream.subscribe:stream:acme/payments/orders", "--ttl", "1h"))
	as = []string{"--tenant", "acme", "-n", "payments", "--token", reader}
	require.Equal(t, "theirs\n", s.ok(append([]string{"sub", "orders", "--from", "earliest", "--count", "1"}, as...)...))
	_, errs = s.felix(append([]string{"pub", "orders", "x", "--json"}, as...)...)
	require.Equal(t, exitRefused, s.exit)
	report := decode[map[string]any](t, errs)
	require.Equal(t, 4.0, report["exit"])
	require.Contains(t, report["error"], "stream.publish")
	s.felix("pub", "orders", "x", "--token", reader)
	require.Equal(t, exitRefused, s.exit, "a token of another tenant")
}

// A tenant writes as fast as it may, and no faster; the client waits as it is told.
func TestTenantQuotaCommands(t *testing.T) {
	s := newShell(t)
	broker := s.serve("--limits-tenant-records-per-second", "1000000")
	s.ok("tenant", "create", "acme", "--bytes-per-second", "10MiB")
	require.Regexp(t, `(?m)^acme +acme +10MiB +default$`, s.ok("tenant", "ls"))
	require.Equal(t, "tenant acme: none bytes/s, 20 records/s\n", s.ok("tenant", "set", "acme", "--bytes-per-second", "none", "--records-per-second", "20"))
	set := decode[map[string]any](t, s.ok("tenant", "set", "acme", "--bytes-per-second", "default", "--json"))
	require.Equal(t, map[string]any{"bytes_per_second": nil, "records_per_second": 20.0}, set["quota"])
	for _, args := range [][]string{{}, {"--bytes-per-second", "0"}, {"--records-per-second", "-1"}, {"--records-per-second", "fast"}} {
		_, errs := s.felix(append([]string{"tenant", "set", "acme"}, args...)...)
		require.Equal(t, exitUsage, s.exit, "%v: %s", args, errs)
	}
	s.felix("tenant", "set", "nobody", "--bytes-per-second", "1")
	require.Equal(t, exitMissing, s.exit)

	keys, err := filepath.Glob(filepath.Join(s.dir, "felix-data", "keys", "acme", "*.pem"))
	require.NoError(t, err)
	as := []string{"--tenant", "acme", "--signing-key", keys[0]}
	s.ok(append([]string{"namespace", "create", "default"}, as...)...)
	s.ok(append([]string{"stream", "create", "orders", "--durable"}, as...)...)
	// Each record is a request of its own: a batch is taken as a whole.
	s.env = append(s.env, "FELIX_PUBLISH_INFLIGHT_BYTES=1")
	began := time.Now()
	out, errs := s.feed(strings.Repeat("line\n", 60), append([]string{"pub", "orders", "--idempotent"}, as...)...)
	require.Equal(t, 60, strings.Count(out, "\n"), "all are written in the end: %s", errs)
	require.Greater(t, time.Since(began), 1900*time.Millisecond, "a second's worth at once, and then 20 a second")
	s.ok("tenant", "set", "acme", "--records-per-second", "1")
	out, errs = s.feed(strings.Repeat("line\n", 60), append([]string{"pub", "orders"}, as...)...)
	require.Equal(t, exitRefused, s.exit, "one that is never sent again says so: %s", out)
	require.Regexp(t, "(1|20) records a second; write again after", errs)
	require.Positive(t, broker.says().value("felix_refused_total", "reason", "tenant_quota"))
}

// says is what the broker says of itself.
func (b *serving) says() *brokerSample {
	b.t.Helper()
	base, err := url.Parse(b.HTTP)
	require.NoError(b.t, err)
	watch := &brokerWatch{client: &http.Client{Transport: &http.Transport{}}, base: base}
	defer watch.client.CloseIdleConnections()
	s, err := watch.sample(b.t.Context())
	require.NoError(b.t, err)
	return s
}

// The variables of clients bound what a command sends.
func TestClientLimitsFromTheEnvironment(t *testing.T) {
	s := newShell(t)
	broker := s.serve()
	s.ok("stream", "create", "orders", "--durable")
	env := s.env
	with := func(kv string) { s.env = append(env[:len(env):len(env)], kv) }

	file := filepath.Join(s.dir, "blob")
	require.NoError(t, os.WriteFile(file, make([]byte, 100<<10), 0o600))
	s.ok("pub", "orders", "--file", file, "--whole")
	with("FELIX_MAX_FRAME_BYTES=64KiB")
	_, errs := s.felix("pub", "orders", "--file", file, "--whole")
	require.Equal(t, exitRefused, s.exit, errs)

	// One byte under way: each record waits for the one before it and is a request of its own.
	with("FELIX_PUBLISH_INFLIGHT_BYTES=1")
	before := broker.says().value("felix_publishes_total")
	s.feed(strings.Repeat("line\n", 100), "pub", "orders", "--ack", "none")
	require.Zero(t, s.exit)
	require.Equal(t, 100.0, broker.says().value("felix_publishes_total")-before)

	for _, kv := range []string{"FELIX_MAX_FRAME_BYTES=1KiB", "FELIX_MAX_FRAME_BYTES=large", "FELIX_PUBLISH_INFLIGHT_BYTES=0", "FELIX_PUBLISH_INFLIGHT_BYTES=-1"} {
		with(kv)
		_, errs := s.felix("pub", "orders", "x")
		require.Equal(t, exitUsage, s.exit, "%s: %s", kv, errs)
		require.Contains(t, errs, strings.Split(kv, "=")[0])
	}
}

func TestContextAndConfigCommands(t *testing.T) {
	s := newShell(t)
	broker := s.serve()
	contexts := decode[items[map[string]any]](t, s.ok("context", "ls", "--json"))
	require.Equal(t, "local", contexts.Items[0]["name"])
	require.Equal(t, true, contexts.Items[0]["current"])
	require.Contains(t, s.ok("context", "show"), broker.Clients)
	s.felix("context", "use", "nowhere")
	require.Equal(t, exitMissing, s.exit)
	s.felix("stream", "ls", "--context", "nowhere")
	require.Equal(t, exitUsage, s.exit)
	all := decode[items[map[string]string]](t, s.ok("config", "--json", "--storage-fsync-mode", "none"))
	found := false
	for _, e := range all.Items {
		if e["path"] == "storage.fsync_mode" {
			found = true
			require.Equal(t, map[string]string{"path": "storage.fsync_mode", "value": "none", "source": "flag --storage-fsync-mode"}, e)
		}
	}
	require.True(t, found)
	require.Contains(t, s.ok("version"), "felix ")
	require.Contains(t, s.ok("completion", "bash"), "felix")
	require.Contains(t, s.ok("__complete", "stream", "create", "--fsync", ""), "on_commit")
}

func TestOfflineLog(t *testing.T) {
	s := newShell(t)
	broker := s.serve()
	s.ok("stream", "create", "orders", "--durable")
	s.ok("pub", "orders", "x", "--count", "10")
	require.NoError(t, broker.Stop())
	dirs, err := filepath.Glob(filepath.Join(s.dir, "felix-data", "streams", "*orders*"))
	require.NoError(t, err)
	require.Len(t, dirs, 1)
	require.Contains(t, s.ok("log", "verify", "--dir", dirs[0]), "10")
	s.serve()
	_, errs := s.felix("log", "verify", "--dir", dirs[0])
	require.NotZero(t, s.exit, "a running broker holds the directory")
	require.Contains(t, errs, "lock")
}

// A stop answers within its time, also when a client does not read what it asked for.
// stopLoad is what clients of a broker that is about to stop were answered.
type stopLoad struct {
	mu        sync.Mutex
	published map[string]uint64 // offsets by payload
	put       map[string]int    // the last value by key
	acked     map[uint64]bool
}

// run works on a connection until the broker no longer answers; each answer is noted.
func (l *stopLoad) run(ctx context.Context, c *client.Client, worker int, answered *atomic.Int64) {
	note := func(f func()) {
		l.mu.Lock()
		defer l.mu.Unlock()
		f()
		answered.Add(1)
	}
	switch group := c.Group("jobs", "g"); worker % 3 {
	case 0:
		for i := 0; ; i++ {
			payload := fmt.Sprintf("worker %d record %d", worker, i)
			ack, err := c.Publish(ctx, "orders", []byte(payload))
			if err != nil {
				return
			}
			note(func() { l.published[payload] = ack.Offset })
		}
	case 1:
		key := fmt.Sprintf("worker %d", worker)
		for i := 1; ; i++ {
			if c.Cache("prices").Put(ctx, key, strconv.AppendInt(nil, int64(i), 10)) != nil {
				return
			}
			note(func() { l.put[key] = i })
		}
	case 2:
		for {
			messages, err := group.Poll(ctx, 0, 5, client.WithWait(time.Minute))
			if err != nil {
				return
			}
			for _, m := range messages {
				if group.Ack(ctx, m) != nil {
					return
				}
				note(func() { l.acked[m.Offset] = true })
			}
		}
	}
}

// A stop in order, with a subscription, publishes, puts and polls under way: it ends within
// its time and says that it was clean, and the next start has all that was answered.
func TestServeStopsWithinItsTime(t *testing.T) {
	s := newShell(t)
	// Half of what a poll may wait, and much for a busy machine; a part is for the logs, on a
	// device that is as slow as it likes.
	broker := s.serve("--shutdown-timeout", "15s")
	s.ok("stream", "create", "orders", "--durable")
	s.ok("stream", "create", "jobs", "--durable", "--kind", "queue")
	s.ok("cache", "create", "prices")
	s.ok("pub", "orders", strings.Repeat("x", 1000), "--count", "1000")
	s.ok("pub", "jobs", "job", "--count", "20000", "--idempotent")
	dial := func(b *serving) *client.Client {
		own := b.use(&environment{in: os.Stdin, out: os.Stdout, err: os.Stderr, environ: append(s.env, "FELIX_CLI_CONFIG="+s.contextFile())})
		own.opts.contextFile, own.opts.timeout = s.contextFile(), time.Minute
		c, _, err := own.dial(t.Context(), client.WithRetry(client.RetryPolicy{Attempts: 1, Base: time.Millisecond, Max: time.Millisecond}))
		require.NoError(t, err)
		return c
	}
	c := dial(broker)
	defer c.Close()
	_, err := c.Subscribe(t.Context(), "orders")
	require.NoError(t, err)

	load := &stopLoad{published: map[string]uint64{}, put: map[string]int{}, acked: map[uint64]bool{}}
	const workers = 6
	var answered [workers]atomic.Int64
	var working sync.WaitGroup
	loading, end := context.WithCancel(t.Context())
	defer end()
	for worker := range workers {
		mine := dial(broker)
		working.Go(func() {
			defer mine.Close()
			load.run(loading, mine, worker, &answered[worker])
		})
	}
	for until := time.Now().Add(patience); ; {
		least := answered[0].Load()
		for i := range answered {
			least = min(least, answered[i].Load())
		}
		if least >= 10 {
			break
		}
		require.True(t, time.Now().Before(until), "the load is not under way")
		runtime.Gosched()
	}
	began := time.Now()
	require.NoError(t, broker.Signal(syscall.SIGTERM))
	select {
	case <-broker.Exited():
	case <-time.After(patience):
		t.Fatal("the broker does not stop")
	}
	log := broker.Tail()
	require.NoError(t, broker.Stop(), "its exit status")
	t.Logf("stopped after %s", time.Since(began))
	require.Contains(t, log, `"msg":"stopped"`)
	require.NotContains(t, log, `"level":"ERROR"`)
	raw, err := os.ReadFile(filepath.Join(s.dir, "felix-data", "node.json"))
	require.NoError(t, err)
	require.Equal(t, true, decode[map[string]any](t, string(raw))["clean"])
	end() // what has no answer yet gets none
	working.Wait()

	again := dial(s.serve())
	defer again.Close()
	have := map[string]uint64{}
	for from := uint64(0); ; {
		page, err := again.Read(t.Context(), "orders", 0, from)
		require.NoError(t, err)
		for _, r := range page.Records {
			have[string(r.Payload)] = r.Offset
		}
		if page.Next == from {
			break
		}
		from = page.Next
	}
	for payload, offset := range load.published {
		require.Contains(t, have, payload, "it was answered")
		require.Equal(t, offset, have[payload])
	}
	for key, least := range load.put {
		v, ok, err := again.Cache("prices").Get(t.Context(), key)
		require.NoError(t, err)
		require.True(t, ok, key)
		got, err := strconv.Atoi(string(v.Data))
		require.NoError(t, err)
		require.GreaterOrEqual(t, got, least, key)
		require.LessOrEqual(t, got, least+1, "one at most had no answer")
	}
	info, err := again.Group("jobs", "g").Describe(t.Context(), 0)
	require.NoError(t, err)
	require.GreaterOrEqual(t, info.Acked, uint64(len(load.acked)))
	for messages := []client.Message(nil); ; {
		messages, err = again.Group("jobs", "g").Poll(t.Context(), 0, 1000)
		require.NoError(t, err)
		if len(messages) == 0 {
			break
		}
		for _, m := range messages {
			require.False(t, load.acked[m.Offset], "record %d was acked and is delivered again", m.Offset)
		}
	}
	t.Logf("%d publishes, %d puts, %d acks were answered", len(load.published), len(load.put), len(load.acked))
}

func (s *shell) contextFile() string {
	return filepath.Join(s.dir, "home", ".config", "felix", "context.yaml")
}

func TestDemoRestart(t *testing.T) {
	s := newShell(t)
	for _, mode := range []string{"none", "periodic", "on_commit"} {
		out := s.ok("demo", "restart", "--records", "2000", "--fsync", mode, "--json")
		n := 0
		for line := range strings.Lines(out) {
			c := decode[claim](t, line)
			require.True(t, c.Holds, line)
			n++
		}
		require.Equal(t, 6, n)
	}
}

func TestExitCodes(t *testing.T) {
	s := newShell(t)
	_, errs := s.felix("pub", "orders", "x")
	require.Equal(t, exitUsage, s.exit, "no context, no flags: %s", errs)
	require.Contains(t, errs, "felix serve")
	broker := s.serve()
	s.ok("stream", "create", "orders", "--durable")
	for _, c := range []struct {
		args []string
		exit int
		want string
	}{
		{[]string{"frobnicate"}, exitUsage, "unknown command"},
		{[]string{"pub"}, exitUsage, "arg"},
		{[]string{"pub", "orders", "x", "--bogus"}, exitUsage, "bogus"},
		{[]string{"stream"}, exitUsage, "needs a command"},
		{[]string{"stream", "frob"}, exitUsage, "unknown command"},
		{[]string{"stream", "create", "a", "--shards", "x"}, exitUsage, "shards"},
		{[]string{"stream", "create", "a", "--shards", "0"}, exitUsage, "at least 1"},
		{[]string{"stream", "create", "a", "--shards", "5000"}, exitRefused, "shards"},
		{[]string{"stream", "create", "a", "--durable", "--fsync", "always"}, exitUsage, "none, periodic, on_commit"},
		{[]string{"stream", "create", "a", "--durable", "--retention-age", "0"}, exitUsage, "keep nothing"},
		{[]string{"stream", "create", "a", "--durable", "--retention-age", "1500ms"}, exitUsage, "1500ms is not a whole number of seconds"},
		{[]string{"stream", "create", "a", "--durable", "--retention-bytes", "0"}, exitUsage, "keep nothing"},
		{[]string{"stream", "create", "a", "--durable", "--overflow", "block"}, exitUsage, "in-memory"},
		{[]string{"stream", "create", "a", "--max-record-bytes", "64MiB"}, exitRefused, "limits.frame_bytes"},
		{[]string{"stream", "create", ""}, exitUsage, "empty"},
		{[]string{"stream", "create", "."}, exitUsage, `"."`},
		{[]string{"stream", "create", ".."}, exitUsage, `".."`},
		{[]string{"stream", "create", "a/../b"}, exitUsage, "unusable character"},
		{[]string{"stream", "create", strings.Repeat("a", 10<<10)}, exitUsage, "too long"},
		{[]string{"stream", "create", "a\xff"}, exitUsage, "unusable character"},
		{[]string{"pub", "nowhere", "x"}, exitMissing, "does not exist"},
		{[]string{"pub", "orders", "x", "--shard", "7"}, exitRefused, "shard 7"},
		{[]string{"pub", "orders", "x", "--key", "a", "--shard", "0"}, exitUsage, "exclude each other"},
		{[]string{"pub", "orders", "--file", "missing"}, exitUsage, "missing"},
		{[]string{"sub", "orders", "--from", "yesterday"}, exitUsage, "yesterday"},
		{[]string{"sub", "orders", "--from", "99", "--count", "1"}, exitRefused, "future"},
		{[]string{"sub", "orders", "--from", "18446744073709551615", "--count", "1"}, exitRefused, "future"},
		{[]string{"stream", "ls", "--token", "x", "--controlplane-token", "x"}, exitRefused, ""},
		{[]string{"pub", "orders", "x", "--brokers", "127.0.0.1:1"}, exitUnreachable, "127.0.0.1:1"},
		{[]string{"stream", "ls", "--controlplane-url", "http://127.0.0.1:1"}, exitUnreachable, "127.0.0.1:1"},
		{[]string{"pub", "orders", "x", "--server-name", "elsewhere"}, exitUnreachable, "certificate"},
		{[]string{"pub", "orders", "x", "--ca-file", "missing.pem"}, exitUsage, "missing.pem"},
		{[]string{"demo", "restart", "--fsync", "x"}, exitUsage, "none, periodic, on_commit"},
		{[]string{"bench", "--tests", "x"}, exitUsage, "no case"},
		{[]string{"token", "mint", "--perm", "stream.publish"}, exitUsage, "action:object"},
	} {
		out, errs := s.felix(c.args...)
		require.Equal(t, c.exit, s.exit, "felix %q: %s%s", c.args, out, errs)
		require.Contains(t, errs, c.want, "felix %q", c.args)
		_, errs = s.felix(append(c.args, "--json")...)
		report := decode[map[string]any](t, lastLine(errs))
		require.Equal(t, float64(c.exit), report["exit"], "felix %q --json", c.args)
		require.Contains(t, report["error"], strings.ReplaceAll(c.want, "\xff", "\ufffd"))
	}
	require.NoError(t, broker.Stop())
	s.felix("pub", "orders", "x")
	require.Equal(t, exitUnreachable, s.exit, "the broker is gone")
	entries, err := os.ReadDir(s.dir)
	require.NoError(t, err)
	for _, e := range entries {
		require.Contains(t, []string{"felix", "felix-data", "home"}, e.Name(), "a file was made outside the data directory")
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

func TestProgressOnStandardError(t *testing.T) {
	var out strings.Builder
	e := &environment{err: &out}
	p := e.progress("published", 100)
	p.add(1)
	require.Empty(t, out.String(), "nothing within the first second")
	p.begun = p.begun.Add(-2 * time.Second)
	p.said = p.begun
	p.add(9)
	require.Equal(t, "published: 10 of 100\n", out.String())
	p.add(1)
	require.Equal(t, 1, strings.Count(out.String(), "\n"), "not more often than every ten seconds")
}
