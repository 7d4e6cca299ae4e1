package obs

import "github.com/prometheus/client_golang/prometheus"

// StreamFigures are a stream at one moment, over the shards of this broker; those that
// count only rise.
type StreamFigures struct {
	Tenant, Namespace, Stream         string
	Shards, Subscribers               int
	Lag                               uint64 // records, of the slowest subscriber
	Records, Bytes                    uint64 // written
	DeliveredRecords, DeliveredFrames uint64 // to subscribers: records, and bytes of frames
	PollsCut, Forgotten               uint64 // polls at a group's bound in flight, producers that made room
}

// CacheFigures are a cache at one moment; those that count only rise.
type CacheFigures struct {
	Tenant, Namespace, Cache                  string
	Keys, Bytes                               int64
	MaxKeys, MaxBytes                         int64 // 0: no bound
	Watchers                                  int
	Gets, Hits, Puts, Deletes                 uint64
	Conditions, Full, Failed                  uint64 // writes that were refused, and why
	Expired, Evicted                          uint64
	WatchEvents, CounterAdds, CounterRepeated uint64
}

// GroupFigures are a consumer group of one stream shard at one moment.
type GroupFigures struct {
	Tenant, Namespace, Stream, Group string
	Shard                            string
	Ready, Delayed, Claimed, Dead    uint64
	Acked, Discarded, Lost, Lag      uint64
}

// CacheValueFigures are the values of all caches that are kept in memory.
type CacheValueFigures struct {
	Count, Bytes int64
	Hits, Misses uint64
}

// Readings are the streams, the caches and the groups, asked for at each scrape. streams
// and groups are how many there are; fewer may be named, so that a scrape stays small. A
// nil function leaves its metrics out.
type Readings struct {
	Streams func() (named []StreamFigures, streams int)
	Caches  func() []CacheFigures
	Values  func() CacheValueFigures
	Groups  func() (named []GroupFigures, groups int)
}

var (
	streamLabels = []string{"tenant", "namespace", "stream"}

	streamCount       = desc("felix_streams", "Streams.")
	streamShards      = desc("felix_stream_shards", "Shards of a stream.", streamLabels...)
	streamRecords     = desc("felix_stream_records_total", "Records written to a stream.", streamLabels...)
	streamBytes       = desc("felix_stream_bytes_total", "Payload bytes written to a stream.", streamLabels...)
	streamDelivered   = desc("felix_stream_delivered_records_total", "Records of a stream written to its subscribers.", streamLabels...)
	streamFrames      = desc("felix_stream_delivered_bytes_total", "Bytes of frames of a stream written to its subscribers.", streamLabels...)
	streamSubscribers = desc("felix_stream_subscribers", "Subscriptions of a stream.", streamLabels...)
	streamLag         = desc("felix_stream_lag_records", "Records by which a stream's slowest subscription is behind.", streamLabels...)

	streamPollsCut  = desc("felix_stream_polls_cut_total", "Looks for records of a stream's groups that were cut short by the bound on records in flight.", streamLabels...)
	streamForgotten = desc("felix_stream_producers_forgotten_total", "Idempotent producers of a stream that were forgotten because others came.", streamLabels...)

	cacheLabels = []string{"tenant", "namespace", "cache"}
	groupLabels = []string{"tenant", "namespace", "stream", "shard", "group"}

	cacheKeys     = desc("felix_cache_keys", "Keys of a cache, writes in flight included.", cacheLabels...)
	cacheBytes    = desc("felix_cache_bytes", "Bytes of the newest records of a cache's keys.", cacheLabels...)
	cacheMaxKeys  = desc("felix_cache_max_keys", "Bound of a cache on keys; absent without one.", cacheLabels...)
	cacheMaxBytes = desc("felix_cache_max_bytes", "Bound of a cache on bytes; absent without one.", cacheLabels...)
	cacheWatchers = desc("felix_cache_watchers", "Watches of a cache.", cacheLabels...)
	cacheRequests = desc("felix_cache_requests_total", "Requests to a cache by operation (get, put, delete, counter_add).", append(cacheLabels, "operation")...)
	cacheHits     = desc("felix_cache_hits_total", "Gets that found a value.", cacheLabels...)
	cacheRefused  = desc("felix_cache_refused_total", "Writes refused by reason (condition, full, failed), and additions already counted (repeated).", append(cacheLabels, "reason")...)
	cacheRemoved  = desc("felix_cache_removed_total", "Values that expired, or were evicted at the cache's bound.", append(cacheLabels, "reason")...)
	cacheEvents   = desc("felix_cache_watch_events_total", "Changes handed to watches.", cacheLabels...)

	valueCount   = desc("felix_cache_values", "Values of all caches kept in memory.")
	valueBytes   = desc("felix_cache_values_bytes", "Memory of the values kept, their places included.")
	valueLookups = desc("felix_cache_values_lookups_total", "Looks for a value in memory, by result (hit, miss); a miss reads the log.", "result")

	groupCount   = desc("felix_groups", "Consumer groups of all stream shards.")
	groupRecords = desc("felix_group_records", "Records of a group by state (ready, delayed, claimed, dead).", append(groupLabels, "state")...)
	groupSettled = desc("felix_group_settled_records", "Records of a group settled since its start by outcome (acked, discarded, lost).", append(groupLabels, "outcome")...)
	groupLag     = desc("felix_group_lag_records", "Records between a group's position and the end of its shard.", groupLabels...)
)

// WatchReadings registers r. It may be called once.
func (m *Metrics) WatchReadings(r Readings) error { return m.reg.Register(&readingCollector{r}) }

type readingCollector struct{ r Readings }

func (c *readingCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{streamCount, streamShards, streamRecords, streamBytes, streamDelivered, streamFrames, streamSubscribers, streamLag, streamPollsCut, streamForgotten,
		cacheKeys, cacheBytes, cacheMaxKeys, cacheMaxBytes, cacheWatchers, cacheRequests, cacheHits, cacheRefused, cacheRemoved, cacheEvents,
		valueCount, valueBytes, valueLookups, groupCount, groupRecords, groupSettled, groupLag} {
		ch <- d
	}
}

func (c *readingCollector) Collect(ch chan<- prometheus.Metric) {
	out := sink{ch}
	if f := c.r.Streams; f != nil {
		named, streams := f()
		out.gauge(streamCount, float64(streams))
		for i := range named {
			out.stream(&named[i])
		}
	}
	if f := c.r.Caches; f != nil {
		for _, k := range f() {
			out.cache(&k)
		}
	}
	if f := c.r.Values; f != nil {
		v := f()
		out.gauge(valueCount, float64(v.Count))
		out.gauge(valueBytes, float64(v.Bytes))
		out.count(valueLookups, v.Hits, "hit")
		out.count(valueLookups, v.Misses, "miss")
	}
	if f := c.r.Groups; f != nil {
		named, groups := f()
		out.gauge(groupCount, float64(groups))
		for i := range named {
			out.group(&named[i])
		}
	}
}

// sink is a scrape under way.
type sink struct{ ch chan<- prometheus.Metric }

func (s sink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (s sink) count(d *prometheus.Desc, v uint64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func (s sink) stream(f *StreamFigures) {
	l := []string{f.Tenant, f.Namespace, f.Stream}
	s.gauge(streamShards, float64(f.Shards), l...)
	s.count(streamRecords, f.Records, l...)
	s.count(streamBytes, f.Bytes, l...)
	s.count(streamDelivered, f.DeliveredRecords, l...)
	s.count(streamFrames, f.DeliveredFrames, l...)
	s.gauge(streamSubscribers, float64(f.Subscribers), l...)
	s.gauge(streamLag, float64(f.Lag), l...)
	s.count(streamPollsCut, f.PollsCut, l...)
	s.count(streamForgotten, f.Forgotten, l...)
}

func (s sink) cache(k *CacheFigures) {
	l := []string{k.Tenant, k.Namespace, k.Cache}
	with := func(v string) []string { return append(l[:len(l):len(l)], v) }
	s.gauge(cacheKeys, float64(k.Keys), l...)
	s.gauge(cacheBytes, float64(k.Bytes), l...)
	if k.MaxKeys > 0 {
		s.gauge(cacheMaxKeys, float64(k.MaxKeys), l...)
	}
	if k.MaxBytes > 0 {
		s.gauge(cacheMaxBytes, float64(k.MaxBytes), l...)
	}
	s.gauge(cacheWatchers, float64(k.Watchers), l...)
	s.count(cacheRequests, k.Gets, with("get")...)
	s.count(cacheRequests, k.Puts, with("put")...)
	s.count(cacheRequests, k.Deletes, with("delete")...)
	s.count(cacheRequests, k.CounterAdds, with("counter_add")...)
	s.count(cacheHits, k.Hits, l...)
	s.count(cacheRefused, k.Conditions, with("condition")...)
	s.count(cacheRefused, k.Full, with("full")...)
	s.count(cacheRefused, k.Failed, with("failed")...)
	s.count(cacheRefused, k.CounterRepeated, with("repeated")...)
	s.count(cacheRemoved, k.Expired, with("expired")...)
	s.count(cacheRemoved, k.Evicted, with("evicted")...)
	s.count(cacheEvents, k.WatchEvents, l...)
}

func (s sink) group(g *GroupFigures) {
	l := []string{g.Tenant, g.Namespace, g.Stream, g.Shard, g.Group}
	with := func(v string) []string { return append(l[:len(l):len(l)], v) }
	s.gauge(groupRecords, float64(g.Ready), with("ready")...)
	s.gauge(groupRecords, float64(g.Delayed), with("delayed")...)
	s.gauge(groupRecords, float64(g.Claimed), with("claimed")...)
	s.gauge(groupRecords, float64(g.Dead), with("dead")...)
	s.gauge(groupSettled, float64(g.Acked), with("acked")...)
	s.gauge(groupSettled, float64(g.Discarded), with("discarded")...)
	s.gauge(groupSettled, float64(g.Lost), with("lost")...)
	s.gauge(groupLag, float64(g.Lag), l...)
}
