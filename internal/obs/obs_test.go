package obs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/heap"
	"github.com/felixlog/felix/internal/testkit/leak"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
	"github.com/felixlog/felix/wire"
)

func TestMain(m *testing.M) { leak.Main(m) }

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	require.Equal(t, 200, w.Code)
	raw, err := io.ReadAll(w.Body)
	require.NoError(t, err)
	return string(raw)
}

// value is the sample of a series, as text; "" when there is none.
func value(metrics, series string) string {
	for line := range strings.SplitSeq(metrics, "\n") {
		if v, ok := strings.CutPrefix(line, series+" "); ok {
			return v
		}
	}
	return ""
}

func allGauges() Gauges {
	return Gauges{
		Unsynced:    func() (int64, time.Duration) { return 7, 1500 * time.Millisecond },
		Subscribers: func() int { return 3 },
		SlowestLag:  func() uint64 { return 11 },
		Inflight:    func() int64 { return 13 },
		Tenants:     func() map[string]int64 { return map[string]int64{"acme": 12} },
		Limits:      Limits{NodeInFlight: 130, TenantInFlight: 120, Connections: 8},
		Shards:      func() map[string]int { return map[string]int{"active": 4, "damaged": 1} },
		Recovery:    func() Recovery { return Recovery{Done: 5, Total: 6, Percent: 83, BytesRead: 7, Bytes: 9} },
		Disk:        func() (int64, int64) { return 100, 10 },
		Dropped:     func() map[string]uint64 { return map[string]uint64{"drop_new": 2} },
	}
}

func allReadings() Readings {
	return Readings{
		Streams: func() ([]StreamFigures, int) {
			return []StreamFigures{{Tenant: "t", Namespace: "n", Stream: "s", Shards: 2, Subscribers: 3, Lag: 4, Records: 5, Bytes: 6, DeliveredRecords: 7, DeliveredFrames: 8}}, 9
		},
		Caches: func() []CacheFigures {
			return []CacheFigures{{Tenant: "t", Namespace: "n", Cache: "c", Keys: 2, MaxKeys: 5, MaxBytes: 6}}
		},
		Values: func() CacheValueFigures { return CacheValueFigures{Count: 2, Bytes: 300, Hits: 4, Misses: 5} },
		Groups: func() ([]GroupFigures, int) {
			return []GroupFigures{{Tenant: "t", Namespace: "n", Stream: "s", Shard: "0", Group: "g", Ready: 2}}, 1
		},
	}
}

var typeLine = regexp.MustCompile(`(?m)^# TYPE (felix_\w+) (\w+)$`)

// The names promised to operators are there from the first scrape, and every name
// has its line in the document for operators.
func TestPromisedMetrics(t *testing.T) {
	m := New("test")
	require.NoError(t, m.Watch(allGauges()))
	require.NoError(t, m.WatchReadings(allReadings()))
	m.Published(Publish{Records: 1, Bytes: 1, Took: time.Millisecond})
	m.Refused("x")
	m.Paused("x")
	text := scrape(t, m)
	have := map[string]string{}
	for _, l := range typeLine.FindAllStringSubmatch(text, -1) {
		have[l[1]] = l[2]
	}
	promised, err := os.Open("testdata/seed-metrics.txt")
	require.NoError(t, err)
	defer promised.Close()
	n := 0
	for sc := bufio.NewScanner(promised); sc.Scan(); n++ {
		require.Contains(t, have, sc.Text())
	}
	require.Equal(t, 9, n)
	doc, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	for name := range have {
		require.Contains(t, string(doc), "`"+name+"`", "docs/operations.md does not explain it")
	}
	for _, named := range regexp.MustCompile("`(felix_[a-z_]+)`").FindAllStringSubmatch(string(doc), -1) {
		require.Contains(t, have, named[1], "docs/operations.md names a metric that is not there")
	}
}

// Room written ahead of a log holds no record: that it is cut is neither counted nor warned of.
func TestZerosWrittenAheadAreNotLost(t *testing.T) {
	fsys := vfs.OS()
	dir := t.TempDir()
	m := New("test")
	var log bytes.Buffer
	o := storage.Options{Shard: "s", FS: fsys, Fsync: storage.OnCommit, SegmentBytes: 1 << 20, ZeroAhead: true,
		Events: m.StorageEvents(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))}
	l, err := storage.Open(t.Context(), dir, o)
	require.NoError(t, err)
	require.NoError(t, l.Append(t.Context(), &storage.Batch{Payloads: [][]byte{[]byte("x")}}))
	require.NoError(t, l.Close(t.Context()))
	file := filepath.Join(dir, segment.SegmentName(0))
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	reopen := func(tail []byte) {
		require.NoError(t, os.WriteFile(file, append(slices.Clone(whole), tail...), 0o600)) // as a kill leaves it
		log.Reset()
		l, err := storage.Open(t.Context(), dir, o)
		require.NoError(t, err)
		require.EqualValues(t, len(tail), l.Recovery().TruncatedBytes)
		require.NoError(t, l.Close(t.Context()))
	}
	const series = "felix_storage_recovery_truncated_bytes"
	reopen(make([]byte, 65_416))
	require.Contains(t, scrape(t, m), series+" 0\n")
	require.NotContains(t, log.String(), "level=WARN")
	require.Contains(t, log.String(), "level=DEBUG")
	reopen([]byte{1, 2, 3})
	require.Contains(t, scrape(t, m), series+" 3\n")
	require.Contains(t, log.String(), `level=WARN msg="log cut"`)
	reopen(make([]byte, 10))
	require.Contains(t, scrape(t, m), series+" 3\n")

	// What a cut is told for is for people to read, whatever it says.
	log.Reset()
	o.Events.OnCut("s", storage.CutEvent{To: 20, Reason: "for another reason"})
	o.Events.OnRecovery("s", storage.RecoveryReport{TruncatedBytes: 20})
	require.Contains(t, scrape(t, m), series+" 23\n")
	require.Contains(t, log.String(), `level=WARN msg="log cut"`)
	log.Reset()
	o.Events.OnCut("s", storage.CutEvent{To: 30, Reason: "truncated", Zeros: true})
	o.Events.OnRecovery("s", storage.RecoveryReport{TruncatedBytes: 30})
	require.Contains(t, scrape(t, m), series+" 23\n")
	require.NotContains(t, log.String(), "level=WARN")
}

func TestStorageEventsMoveMetrics(t *testing.T) {
	m := New("test")
	var log bytes.Buffer
	e := m.StorageEvents(slog.New(slog.NewTextHandler(&log, nil)))
	e.OnSync(storage.SyncEvent{Duration: time.Millisecond, Appends: 64, Bytes: 1})
	e.OnSyncFailure("s", io.ErrUnexpectedEOF)
	e.OnRoll("s", storage.Descriptor{}, storage.Descriptor{})
	e.OnRecovery("s", storage.RecoveryReport{Duration: time.Second, TruncatedBytes: 17, MayHaveLost: true})
	e.OnRecovery("without", storage.RecoveryReport{MarkMissing: true, Next: 9})
	for id := range storage.SegmentID(3) {
		e.OnIndexRebuilt("restored", id, storage.IndexMissing)
	}
	e.OnIndexRebuilt("restored", 3, "checksum")
	e.OnRecovery("restored", storage.RecoveryReport{})
	e.OnTrim("s", storage.RetentionResult{Segments: 2, Bytes: 300})
	e.OnPoison("s", &storage.PoisonedError{Op: "flush", Cause: io.EOF})
	e.OnStray("s", "x")
	e.OnClockAhead("s", 2, 1)
	text := scrape(t, m)
	for series, want := range map[string]string{
		"felix_storage_sync_duration_seconds_count":      "1",
		"felix_storage_sync_batch_appends_sum":           "64",
		"felix_storage_sync_failures_total":              "1",
		"felix_storage_segment_roll_total":               "1",
		"felix_storage_recovery_duration_seconds_sum":    "1",
		"felix_storage_recovery_truncated_bytes":         "17",
		"felix_storage_recovery_acknowledged_lost_total": "1",
		"felix_storage_trimmed_bytes_total":              "300",
		"felix_storage_trimmed_segments_total":           "2",
		"felix_storage_poisoned_total":                   "1",
		"felix_storage_stray_files_total":                "1",
		"felix_storage_clock_ahead_total":                "1",
	} {
		require.Equal(t, want, value(text, series), series)
	}
	require.Contains(t, log.String(), "flush failed")
	var indexes []string
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "shard=restored") {
			indexes = append(indexes, line)
		}
	}
	require.Len(t, indexes, 2, "a damaged index, and one line about those that were not there")
	require.Contains(t, indexes[0], "level=WARN")
	require.Contains(t, indexes[0], "segment=3")
	require.Contains(t, indexes[1], "level=INFO")
	require.Contains(t, indexes[1], "indexes=3")
	var warned []string
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, segment.MarkName) {
			warned = append(warned, line)
		}
	}
	require.Len(t, warned, 1)
	require.Contains(t, warned[0], "level=WARN")
	require.Contains(t, warned[0], "shard=without")
	require.Contains(t, warned[0], "next_offset=9")
}

func TestPublishesByResultAndCode(t *testing.T) {
	m := New("test")
	m.Published(Publish{Records: 16, Bytes: 2048, Took: time.Millisecond, Durable: true})
	m.Published(Publish{Records: 1, Bytes: 10, Failure: wire.NewFailure(wire.CodeOverloaded, "full").WithReason(wire.ReasonDiskFull)})
	m.Published(Publish{Records: 1, Bytes: 10, Failure: wire.NewFailure(wire.CodeStorage, "flush")})
	text := scrape(t, m)
	for series, want := range map[string]string{
		"felix_publishes_total":                                "1",
		"felix_published_records_total":                        "16",
		"felix_published_bytes_total":                          "2048",
		"felix_storage_append_duration_seconds_count":          "1",
		"felix_publish_duration_seconds_count":                 "1",
		`felix_acks_total{code="",result="ok"}`:                "1",
		`felix_acks_total{code="overloaded",result="refused"}`: "1",
		`felix_acks_total{code="storage",result="unknown"}`:    "1",
		`felix_refused_total{reason="disk_full"}`:              "1",
	} {
		require.Equal(t, want, value(text, series), series)
	}
}

func TestGauges(t *testing.T) {
	m := New("test")
	require.NoError(t, m.Watch(allGauges()))
	m.Connected("tcp")
	m.Connected("tcp")
	m.Disconnected("tcp")
	m.Delivered(5, 50)
	text := scrape(t, m)
	for series, want := range map[string]string{
		"felix_storage_unsynced_bytes": "7", "felix_storage_unsynced_seconds": "1.5", "felix_subscribers": "3",
		"felix_subscription_lag_records": "11", "felix_inflight_bytes": "13", "felix_inflight_limit_bytes": "130", "felix_connections_limit": "8",
		`felix_tenant_inflight_bytes{tenant="acme"}`: "12", "felix_tenant_inflight_limit_bytes": "120", `felix_shards{state="damaged"}`: "1",
		"felix_recovery_shards_done": "5", "felix_recovery_shards": "6", "felix_recovery_percent": "83", "felix_recovery_read_bytes": "7", "felix_recovery_bytes": "9", "felix_disk_free_bytes": "100", "felix_disk_reserve_bytes": "10",
		`felix_dropped_total{policy="drop_new"}`: "2", `felix_connections{transport="tcp"}`: "1", `felix_connections_total{transport="tcp"}`: "2",
		"felix_delivered_records_total": "5", "felix_delivered_bytes_total": "50",
	} {
		require.Equal(t, want, value(text, series), series)
	}
}

func TestReadings(t *testing.T) {
	m := New("test")
	require.NoError(t, m.WatchReadings(allReadings()))
	text := scrape(t, m)
	const stream = `{namespace="n",stream="s",tenant="t"}`
	for series, want := range map[string]string{
		"felix_streams": "9", "felix_stream_shards" + stream: "2", "felix_stream_subscribers" + stream: "3", "felix_stream_lag_records" + stream: "4",
		"felix_stream_records_total" + stream: "5", "felix_stream_bytes_total" + stream: "6",
		"felix_stream_delivered_records_total" + stream: "7", "felix_stream_delivered_bytes_total" + stream: "8",
		`felix_cache_keys{cache="c",namespace="n",tenant="t"}`:                                                "2",
		`felix_group_records{group="g",namespace="n",shard="0",state="ready",stream="s",tenant="t"}`:          "2",
		`felix_group_settled_records{group="g",namespace="n",outcome="lost",shard="0",stream="s",tenant="t"}`: "0",
	} {
		require.Equal(t, want, value(text, series), series)
	}
}

// A publish is counted without allocating: it is on the path of every publish.
func TestGuardPublishedDoesNotAllocate(t *testing.T) {
	m := New("test")
	m.Published(Publish{Records: 1, Bytes: 1, Took: time.Millisecond})
	require.Zero(t, heap.Allocs(1000, func() { m.Published(Publish{Records: 1, Bytes: 128, Took: time.Millisecond, Durable: true}) }))
}

func TestLogFormats(t *testing.T) {
	var b bytes.Buffer
	for _, format := range []string{FormatJSON, FormatAuto} {
		b.Reset()
		log, err := NewLog(&b, "info", format)
		require.NoError(t, err)
		log.Info("hello", "n", 1)
		var line map[string]any
		require.NoError(t, json.Unmarshal(b.Bytes(), &line), "%s: %s", format, b.String())
		require.Equal(t, "hello", line["msg"])
	}
	b.Reset()
	log, err := NewLog(&b, "info", FormatText)
	require.NoError(t, err)
	log.Info("hello", "n", 1)
	require.Contains(t, b.String(), "hello")
	require.NotContains(t, b.String(), "\x1b", "no colours off a terminal")
	_, err = NewLog(&b, "info", "xml")
	require.ErrorContains(t, err, "xml")
}

func TestLogLevels(t *testing.T) {
	var b bytes.Buffer
	log, err := NewLog(&b, "warn", FormatJSON)
	require.NoError(t, err)
	log.Info("quiet")
	log.Warn("loud")
	require.NotContains(t, b.String(), "quiet")
	require.Contains(t, b.String(), "loud")
	_, err = NewLog(&b, "shout", FormatJSON)
	require.ErrorContains(t, err, "level")
}
