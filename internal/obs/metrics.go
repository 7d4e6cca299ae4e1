package obs

import (
	"net/http"
	"regexp"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Buckets from 16 µs to about 8 s, four to each factor of sixteen.
var latencyBuckets = prometheus.ExponentialBuckets(16e-6, 2, 20)

// Metrics is the broker's registry. The zero value is not usable; see New.
type Metrics struct {
	reg *prometheus.Registry

	appendDuration   prometheus.Histogram
	syncDuration     prometheus.Histogram
	syncBatch        prometheus.Histogram
	syncFailures     prometheus.Counter
	rolls            prometheus.Counter
	recoveryDuration prometheus.Histogram
	recoveryCut      prometheus.Counter
	maybeLost        prometheus.Counter
	trimmedBytes     prometheus.Counter
	trimmedSegments  prometheus.Counter
	poisoned         prometheus.Counter
	stray            prometheus.Counter
	clockAhead       prometheus.Counter

	compactions     prometheus.Histogram
	compactWritten  prometheus.Counter
	compactFreed    prometheus.Counter
	compacted       prometheus.Gauge
	clamped         prometheus.Counter
	publishes       prometheus.Counter
	records         prometheus.Counter
	bytes           prometheus.Counter
	publishDuration prometheus.Histogram
	acks            *prometheus.CounterVec
	refused         *prometheus.CounterVec
	paused          *prometheus.CounterVec
	deliveredEvents prometheus.Counter
	deliveredBytes  prometheus.Counter
	answers         sync.Map // answerKey to prometheus.Counter: WithLabelValues hashes its labels on each call
	connections     *prometheus.GaugeVec
	connectionsEver *prometheus.CounterVec
}

// New makes a registry with every metric present, at zero.
func New(version string) *Metrics {
	m := &Metrics{reg: prometheus.NewRegistry()}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		m.reg.MustRegister(c)
		return c
	}
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		m.reg.MustRegister(c)
		return c
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
		m.reg.MustRegister(h)
		return h
	}
	m.appendDuration = histogram("felix_storage_append_duration_seconds", "Time of a durable append, from hand-over to its acknowledgement.", latencyBuckets)
	m.syncDuration = histogram("felix_storage_sync_duration_seconds", "Time of one device flush.", latencyBuckets)
	m.syncBatch = histogram("felix_storage_sync_batch_appends", "Appends that waited for one flush (on_commit); near 1 under load means no sharing.", prometheus.ExponentialBuckets(1, 2, 12))
	m.syncFailures = counter("felix_storage_sync_failures_total", "Flushes that failed; each poisons its log.")
	m.rolls = counter("felix_storage_segment_roll_total", "Segments sealed because the next one began.")
	m.recoveryDuration = histogram("felix_storage_recovery_duration_seconds", "Time to open and check one shard.", latencyBuckets)
	m.recoveryCut = counter("felix_storage_recovery_truncated_bytes", "Bytes of torn tails that opening cut from logs, without the zeros written ahead of them; copies are in lost/.")
	m.maybeLost = counter("felix_storage_recovery_acknowledged_lost_total", "Shards whose cut may hold acknowledged records.")
	m.trimmedBytes = counter("felix_storage_trimmed_bytes_total", "Bytes that retention deleted.")
	m.trimmedSegments = counter("felix_storage_trimmed_segments_total", "Segments that retention deleted.")
	m.poisoned = counter("felix_storage_poisoned_total", "Logs that stopped because a write or flush could not be undone.")
	m.stray = counter("felix_storage_stray_files_total", "Files in data directories that are not the log's, found at open.")
	m.clockAhead = counter("felix_storage_clock_ahead_total", "Logs opened whose last record is more than ten minutes ahead of the clock.")

	m.compactions = histogram("felix_compaction_duration_seconds", "Time of one compaction of a shard's log, as many of its segments as were due.", prometheus.ExponentialBuckets(0.01, 2, 16))
	m.compactWritten = counter("felix_compaction_written_bytes_total", "Bytes that compaction wrote again to keep them.")
	m.compactFreed = counter("felix_compaction_freed_bytes_total", "Bytes of segments that compaction deleted.")
	m.compacted = prometheus.NewGauge(prometheus.GaugeOpts{Name: "felix_compaction_last_timestamp_seconds", Help: "When a compaction last ended, seconds since 1970; 0 before the first."})
	m.reg.MustRegister(m.compacted)
	m.clamped = counter("felix_groups_clamped_total", "Consumer groups that were past the end of their stream and were set back to it.")
	m.publishes = counter("felix_publishes_total", "Publish requests that were acknowledged.")
	m.records = counter("felix_published_records_total", "Records that were acknowledged.")
	m.bytes = counter("felix_published_bytes_total", "Payload bytes that were acknowledged.")
	m.publishDuration = histogram("felix_publish_duration_seconds", "Time of a publish in the broker, from request to answer.", latencyBuckets)
	m.acks = vec("felix_acks_total", "Answers to publishes by result (ok, refused, unknown) and code.", "result", "code")
	m.refused = vec("felix_refused_total", "Requests and connections turned away, by reason.", "reason")
	m.paused = vec("felix_paused_total", "Times a client's stream was not read for a while, by reason.", "reason")
	m.deliveredEvents = counter("felix_delivered_records_total", "Records written to subscribers.")
	m.deliveredBytes = counter("felix_delivered_bytes_total", "Bytes written to subscribers.")
	m.connectionsEver = vec("felix_connections_total", "Client connections accepted, by transport.", "transport")
	m.connections = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "felix_connections", Help: "Client connections open, by transport."}, []string{"transport"})
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: "felix_build_info", Help: "Always 1.", ConstLabels: prometheus.Labels{"version": version}})
	info.Set(1)
	// The share of garbage collection, and what it left.
	golang := collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(
		collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/(cpu/classes/gc/total:cpu-seconds|gc/heap/live:bytes)$`)}))
	m.reg.MustRegister(m.connections, info, golang, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, transport := range []string{"quic", "tcp"} {
		m.connections.WithLabelValues(transport)
		m.connectionsEver.WithLabelValues(transport)
	}
	return m
}

// Compacted counts a compaction of a log.
func (m *Metrics) Compacted(written, freed int64, took time.Duration) {
	m.compactWritten.Add(float64(written))
	m.compactFreed.Add(float64(freed))
	m.compacted.SetToCurrentTime()
	m.compactions.Observe(took.Seconds()) // last: whoever sees one more sees the rest of it
}

// Handler serves the metrics in the text format.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{})
}

// Recovery is how far opening the shards is. Bytes are those of logs being opened now.
type Recovery struct {
	Done, Total, Percent int
	BytesRead, Bytes     int64
}

// Limits are the bounds of what is measured beside them; those that are 0 are left out.
type Limits struct {
	NodeInFlight, TenantInFlight int64 // bytes
	Connections                  int
}

// Gauges are the values asked for at each scrape. A nil function leaves its
// metrics out. The functions may be called from several goroutines and must not block.
type Gauges struct {
	Unsynced    func() (bytes int64, oldest time.Duration)
	Subscribers func() int
	SlowestLag  func() uint64
	Inflight    func() int64
	// Tenants are the same bytes by tenant.
	Tenants  func() map[string]int64
	Limits   Limits
	Shards   func() map[string]int
	Recovery func() Recovery
	Disk     func() (free, reserve int64)
	// Dropped counts by overflow policy: batches left out by drop_new and drop_old,
	// subscriptions ended by block. It must not fall.
	Dropped func() map[string]uint64
}

var (
	unsyncedBytes   = desc("felix_storage_unsynced_bytes", "Bytes acknowledged or not that a power cut now would lose.")
	unsyncedSeconds = desc("felix_storage_unsynced_seconds", "Age of the oldest byte not yet flushed.")
	subscribers     = desc("felix_subscribers", "Subscriptions open.")
	slowestLag      = desc("felix_subscription_lag_records", "Records by which the slowest subscription is behind.")
	inflight        = desc("felix_inflight_bytes", "Publish payload bytes admitted and not yet answered.")
	inflightLimit   = desc("felix_inflight_limit_bytes", "Bound on felix_inflight_bytes.")
	tenantInflight  = desc("felix_tenant_inflight_bytes", "Publish payload bytes of a tenant admitted and not yet answered, of tenants that have written.", "tenant")
	tenantLimit     = desc("felix_tenant_inflight_limit_bytes", "Bound on felix_tenant_inflight_bytes, of each tenant.")
	connectionLimit = desc("felix_connections_limit", "Bound on felix_connections, over both transports.")
	shards          = desc("felix_shards", "Shards by state.", "state")
	recoveryDone    = desc("felix_recovery_shards_done", "Shards whose opening has ended since the start.")
	recoveryTotal   = desc("felix_recovery_shards", "Shards to open at the start.")
	recoveryPercent = desc("felix_recovery_percent", "How far opening the shards is; one being opened counts by the bytes read of its log.")
	recoveryRead    = desc("felix_recovery_read_bytes", "Bytes read of the logs being opened now.")
	recoveryBytes   = desc("felix_recovery_bytes", "Bytes of the logs being opened now.")
	diskFree        = desc("felix_disk_free_bytes", "Room left on the data directory's file system.")
	dropped         = desc("felix_dropped_total", "Lost to slow subscribers by overflow policy: batches with drop_new and drop_old, subscriptions with block.", "policy")
	diskReserve     = desc("felix_disk_reserve_bytes", "Room below which publishes are refused.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Watch registers g. It may be called once.
func (m *Metrics) Watch(g Gauges) error { return m.reg.Register(&gaugeCollector{g}) }

type gaugeCollector struct{ g Gauges }

func (c *gaugeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{unsyncedBytes, unsyncedSeconds, subscribers, slowestLag, inflight, inflightLimit, tenantInflight, tenantLimit, connectionLimit, shards, recoveryDone, recoveryTotal, recoveryPercent, recoveryRead, recoveryBytes, diskFree, diskReserve, dropped} {
		ch <- d
	}
}

func (c *gaugeCollector) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if f := c.g.Unsynced; f != nil {
		n, age := f()
		send(unsyncedBytes, float64(n))
		send(unsyncedSeconds, age.Seconds())
	}
	if f := c.g.Subscribers; f != nil {
		send(subscribers, float64(f()))
	}
	if f := c.g.SlowestLag; f != nil {
		send(slowestLag, float64(f()))
	}
	if f := c.g.Inflight; f != nil {
		send(inflight, float64(f()))
	}
	if f := c.g.Tenants; f != nil {
		for tenant, n := range f() {
			send(tenantInflight, float64(n), tenant)
		}
	}
	for d, limit := range map[*prometheus.Desc]int64{
		inflightLimit: c.g.Limits.NodeInFlight, tenantLimit: c.g.Limits.TenantInFlight, connectionLimit: int64(c.g.Limits.Connections),
	} {
		if limit > 0 {
			send(d, float64(limit))
		}
	}
	if f := c.g.Shards; f != nil {
		for state, n := range f() {
			send(shards, float64(n), state)
		}
	}
	if f := c.g.Recovery; f != nil {
		r := f()
		send(recoveryDone, float64(r.Done))
		send(recoveryTotal, float64(r.Total))
		send(recoveryPercent, float64(r.Percent))
		send(recoveryRead, float64(r.BytesRead))
		send(recoveryBytes, float64(r.Bytes))
	}
	if f := c.g.Dropped; f != nil {
		for policy, n := range f() {
			ch <- prometheus.MustNewConstMetric(dropped, prometheus.CounterValue, float64(n), policy)
		}
	}
	if f := c.g.Disk; f != nil {
		free, reserve := f()
		send(diskFree, float64(free))
		send(diskReserve, float64(reserve))
	}
}
