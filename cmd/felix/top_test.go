package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "write golden files anew")

// brokerFigures is the text of /metrics; each line's second number is what it is five seconds
// later.
const brokerFigures = `felix_build_info{version="1.2.3"} 1 1
process_start_time_seconds 1000 1000
process_resident_memory_bytes 52428800 52428800
felix_published_records_total 100 61100
felix_published_bytes_total 0 7808000
felix_delivered_records_total 5 5
felix_connections{transport="quic"} 2 2
felix_connections{transport="tcp"} 3 3
felix_inflight_bytes 0 2048
felix_storage_unsynced_bytes 0 4096
felix_storage_unsynced_seconds 0 0.1234
felix_disk_free_bytes 137438953472 137438953472
felix_streams 1202 1202
felix_stream_shards{tenant="default",namespace="default",stream="orders"} 4 4
felix_stream_records_total{tenant="default",namespace="default",stream="orders"} 100 51100
felix_stream_bytes_total{tenant="default",namespace="default",stream="orders"} 0 6528000
felix_stream_delivered_records_total{tenant="default",namespace="default",stream="orders"} 5 5
felix_stream_subscribers{tenant="default",namespace="default",stream="orders"} 1 2
felix_stream_lag_records{tenant="default",namespace="default",stream="orders"} 0 1234567
felix_stream_shards{tenant="acme",namespace="payments",stream="a-stream-with-quite-a-long-name"} 1 1
felix_stream_records_total{tenant="acme",namespace="payments",stream="a-stream-with-quite-a-long-name"} 0 10000
felix_stream_bytes_total{tenant="acme",namespace="payments",stream="a-stream-with-quite-a-long-name"} 0 1280000
felix_stream_shards{tenant="default",namespace="default",stream="idle"} 1 1
felix_stream_records_total{tenant="default",namespace="default",stream="idle"} 7 7
felix_stream_shards{tenant="default",namespace="default",stream="remade"} 1 1
felix_stream_records_total{tenant="default",namespace="default",stream="remade"} 7 3
felix_groups 2 2
felix_group_lag_records{tenant="default",namespace="default",stream="jobs",shard="0",group="workers"} 10 10
felix_group_lag_records{tenant="default",namespace="default",stream="jobs",shard="1",group="workers"} 20 20
felix_group_records{tenant="default",namespace="default",stream="jobs",shard="0",group="workers",state="ready"} 4 4
felix_group_records{tenant="default",namespace="default",stream="jobs",shard="1",group="workers",state="ready"} 5 5
felix_group_records{tenant="default",namespace="default",stream="jobs",shard="0",group="workers",state="dead"} 1 1
felix_group_lag_records{tenant="default",namespace="default",stream="jobs",shard="0",group="\u001b[2J"} 1 1
felix_cache_keys{tenant="default",namespace="default",cache="sessions"} 12345 12345
felix_cache_bytes{tenant="default",namespace="default",cache="sessions"} 1048576 1048576
felix_cache_requests_total{tenant="default",namespace="default",cache="sessions",operation="get"} 0 500
felix_cache_requests_total{tenant="default",namespace="default",cache="sessions",operation="put"} 0 100
`

// twoSamples are the figures at their two moments.
func twoSamples(t *testing.T) (before, now *brokerSample) {
	t.Helper()
	var text [2]strings.Builder
	for line := range strings.Lines(strings.ReplaceAll(brokerFigures, `\u001b`, "\x1b")) {
		fields := strings.Fields(line)
		for i := range text {
			fmt.Fprintln(&text[i], fields[0], fields[1+i])
		}
	}
	samples := [2]*brokerSample{}
	for i := range samples {
		s := &brokerSample{at: time.Unix(5000+int64(5*i), 0).UTC(), series: seriesOf(t, text[i].String())}
		s.started, s.ready.Status = s.value("process_start_time_seconds"), "ready"
		samples[i] = s
	}
	return samples[0], samples[1]
}

func seriesOf(t *testing.T, text string) map[string][]*model.Sample {
	t.Helper()
	s := &brokerSample{series: map[string][]*model.Sample{}}
	require.NoError(t, s.read(strings.NewReader(text)))
	return s.series
}

func TestTopRender(t *testing.T) {
	before, now := twoSamples(t)
	v := viewOf("127.0.0.1:8080", before, now)
	first := viewOf("127.0.0.1:8080", nil, before)
	now.started++
	now.ready.Status = "degraded"
	now.ready.Reasons = append(now.ready.Reasons, struct {
		Code   string `json:"code"`
		Detail string `json:"detail"`
	}{"damaged", "shard default/default/orders/0: damaged"})
	restarted := viewOf("127.0.0.1:8080", before, now)

	var b strings.Builder
	for _, c := range []struct {
		what string
		text string
	}{
		{"no bounds", v.render(topSize{}, "")},
		{"80 by 24", v.render(topSize{80, 24}, "")},
		{"50 by 14, the broker away", v.render(topSize{50, 14}, "no answer from 127.0.0.1:8080: connection refused")},
		{"one sample", first.render(topSize{}, "")},
		{"restarted", restarted.render(topSize{100, 12}, "")},
		{"hardly any room", v.render(topSize{20, 4}, "")},
	} {
		fmt.Fprintf(&b, "== %s\n%s", c.what, c.text)
	}
	golden := filepath.Join("testdata", "top.golden")
	if *rewrite {
		require.NoError(t, os.WriteFile(golden, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String())

	for _, s := range []topSize{{80, 24}, {50, 14}, {20, 4}, {1, 1}, {200, 3}} {
		lines := strings.Split(strings.TrimSuffix(v.render(s, "x"), "\n"), "\n")
		require.LessOrEqual(t, len(lines), s.height)
		for _, l := range lines {
			require.LessOrEqual(t, len([]rune(l)), s.width)
			require.NotContains(t, l, "\x1b", "a group's name does not steer the terminal")
		}
	}
}

func TestTopRates(t *testing.T) {
	before, now := twoSamples(t)
	v := viewOf("b", before, now)
	require.Equal(t, 5.0, v.Interval)
	require.Equal(t, 12200.0, *v.Records)
	require.Equal(t, []string{"orders", "a-stream-with-quite-a-long-name", "idle", "remade"}, []string{v.Streams[0].Stream, v.Streams[1].Stream, v.Streams[2].Stream, v.Streams[3].Stream})
	require.Equal(t, 10200.0, *v.Streams[0].Records)
	require.Nil(t, v.Streams[3].Records, "it was made anew: what it counted before is not known")
	require.Equal(t, 120.0, *v.Caches[0].Operations)
	require.Equal(t, topGroup{"default", "default", "jobs", "workers", 9, 0, 0, 1, 30}, v.Groups[0], "over its shards")

	now.started = 4990
	v = viewOf("b", before, now)
	require.True(t, v.Restarted)
	require.Nil(t, v.Records)
	for _, s := range v.Streams {
		require.Nil(t, s.Records)
	}
	require.Nil(t, v.Caches[0].Operations)
}

// running is a command that runs; lines are those it prints, as they come.
type running struct {
	cmd    *exec.Cmd
	lines  chan string
	errors *bytes.Buffer
}

// begin runs a command line that does not end by itself.
func (s *shell) begin(args ...string) *running {
	s.t.Helper()
	self, err := os.Executable()
	require.NoError(s.t, err)
	r := &running{cmd: exec.Command(self, args...), lines: make(chan string), errors: &bytes.Buffer{}}
	r.cmd.Dir, r.cmd.Env, r.cmd.Stderr = s.dir, s.env, r.errors
	out, err := r.cmd.StdoutPipe()
	require.NoError(s.t, err)
	require.NoError(s.t, r.cmd.Start())
	go func() {
		defer close(r.lines)
		sc := bufio.NewScanner(out)
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			r.lines <- sc.Text()
		}
	}()
	return r
}

func TestTopOfARunningBroker(t *testing.T) {
	s := newShell(t)
	broker := s.serve()
	s.ok("stream", "create", "orders", "--durable", "--shards", "4")
	s.ok("stream", "create", "jobs", "--durable", "--kind", "queue")
	s.ok("cache", "create", "sessions")
	s.ok("cache", "put", "sessions", "user-7", "signed in")
	s.ok("pub", "jobs", "x", "--count", "3")
	s.ok("group", "poll", "jobs", "workers", "--max", "1")

	table := s.ok("top", "--interval", "200ms")
	require.Contains(t, table, "ready")
	require.Regexp(t, `(?m)^orders +4 +0 +0 B +0 +0 +0$`, table)
	require.Regexp(t, `(?m)^jobs workers +2 +0 +1 +0 +3$`, table)
	require.Regexp(t, `(?m)^sessions +1 +\d+ B +0$`, table)
	require.Regexp(t, `disk free \d`, table)
	require.NotContains(t, table, "\x1b", "no terminal, no control")
	one := decode[topView](t, s.ok("top", "--once", "--json", "--interval", "200ms"))
	require.Len(t, one.Streams, 2)
	require.Equal(t, 3.0, one.Groups[0].Lag)

	r := s.begin("top", "--json", "--interval", "200ms")
	next := func() topView {
		select {
		case line, ok := <-r.lines:
			require.True(t, ok, "it ended: %s", r.errors)
			v := decode[topView](t, line)
			require.Greater(t, v.Interval, 0.0)
			rates := []*float64{v.Records, v.Bytes, v.Delivered, v.Refused}
			for _, s := range v.Streams {
				rates = append(rates, s.Records)
			}
			for _, c := range v.Caches {
				rates = append(rates, c.Operations)
			}
			for _, rate := range rates {
				require.True(t, rate == nil || *rate >= 0, line)
			}
			return v
		case <-time.After(patience):
			t.Fatal("no line comes")
			panic("not reached")
		}
	}
	require.Zero(t, *next().Records)
	s.ok("pub", "orders", strings.Repeat("x", 100), "--count", "500")
	// What one look sees of the 500 depends on when it came, and it reads one counter after
	// the other; all of them together see all.
	records, bytes := 0.0, 0.0
	for records < 499.9 || bytes < 49_990 {
		v := next()
		records += *v.Records * v.Interval
		i := slices.IndexFunc(v.Streams, func(s topStream) bool { return s.Stream == "orders" })
		bytes += *v.Streams[i].Bytes * v.Interval
		if *v.Streams[i].Records > 0 {
			require.Zero(t, i, "sorted by rate")
		}
	}
	require.InDelta(t, 500, records, 0.1)
	require.InDelta(t, 50_000, bytes, 10)

	// A restart makes no negative rate, and no rate of what was counted before it.
	require.NoError(t, broker.Kill())
	s.serve("--listen", broker.Clients, "--http-listen", strings.TrimPrefix(broker.HTTP, "http://"))
	v := next()
	for !v.Restarted {
		v = next()
	}
	require.Nil(t, v.Records)
	for _, s := range v.Streams { // none yet, while it is starting
		require.Nil(t, s.Records)
	}
	require.NotNil(t, next().Records)
	require.NoError(t, r.cmd.Process.Signal(os.Interrupt))
	for range r.lines {
	}
	require.NoError(t, r.cmd.Wait(), "an interrupt is how it is meant to end")
}

func TestTopRefusals(t *testing.T) {
	s := newShell(t)
	_, errs := s.felix("top", "--interval", "199ms", "--controlplane-url", "http://127.0.0.1:1")
	require.Equal(t, exitUsage, s.exit)
	require.Contains(t, errs, "200ms")
	for _, mode := range [][]string{{"--once"}, {"--json"}, {}} {
		_, errs = s.felix(append([]string{"top", "--controlplane-url", "http://127.0.0.1:1"}, mode...)...)
		require.Equal(t, exitUnreachable, s.exit, mode)
		require.Contains(t, errs, "127.0.0.1:1")
		require.Contains(t, errs, "http.listen")
	}

	// Behind something that asks for a token.
	guarded := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer secret":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/ready":
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"status":"recovering","reasons":[{"code":"recovering","detail":"recovering 50%"}]}`)
		default:
			fmt.Fprint(w, "felix_build_info{version=\"x\"} 1\n")
		}
	}))
	defer guarded.Close()
	_, errs = s.felix("top", "--once", "--controlplane-url", guarded.URL)
	require.Equal(t, exitRefused, s.exit)
	require.Contains(t, errs, "--controlplane-token")
	out := s.ok("top", "--once", "--interval", "200ms", "--controlplane-url", guarded.URL, "--controlplane-token", "secret")
	require.Contains(t, out, "recovering 50%")
	require.Contains(t, out, "disk free -")

	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "up 1\n") }))
	defer other.Close()
	_, errs = s.felix("top", "--once", "--controlplane-url", other.URL)
	require.Equal(t, exitOther, s.exit)
	require.Contains(t, errs, "not that of a felix broker")
}
