package obs

import "github.com/prometheus/client_golang/prometheus"

// CacheFigures are a cache at one moment; those that count only rise.
type CacheFigures struct {
	Tenant, Namespace, Cache                  string
	Keys, Bytes                               int64
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

// Readings are the caches and the groups, asked for at each scrape. groups is how many
// there are; Groups may name fewer, so that a scrape stays small.
type Readings struct {
	Caches func() []CacheFigures
	Groups func() (named []GroupFigures, groups int)
}

var (
	cacheLabels = []string{"tenant", "namespace", "cache"}
	groupLabels = []string{"tenant", "namespace", "stream", "shard", "group"}

	cacheKeys     = desc("felix_cache_keys", "Keys of a cache, writes in flight included.", cacheLabels...)
	cacheBytes    = desc("felix_cache_bytes", "Bytes of the newest records of a cache's keys.", cacheLabels...)
	cacheWatchers = desc("felix_cache_watchers", "Watches of a cache.", cacheLabels...)
	cacheRequests = desc("felix_cache_requests_total", "Requests to a cache by operation (get, put, delete, counter_add).", append(cacheLabels, "operation")...)
	cacheHits     = desc("felix_cache_hits_total", "Gets that found a value.", cacheLabels...)
	cacheRefused  = desc("felix_cache_refused_total", "Writes refused by reason (condition, full, failed), and additions already counted (repeated).", append(cacheLabels, "reason")...)
	cacheRemoved  = desc("felix_cache_removed_total", "Values that expired, or were evicted at the cache's bound.", append(cacheLabels, "reason")...)
	cacheEvents   = desc("felix_cache_watch_events_total", "Changes handed to watches.", cacheLabels...)

	groupCount   = desc("felix_groups", "Consumer groups of all stream shards.")
	groupRecords = desc("felix_group_records", "Records of a group by state (ready, delayed, claimed, dead).", append(groupLabels, "state")...)
	groupSettled = desc("felix_group_settled_records", "Records of a group settled since its start by outcome (acked, discarded, lost).", append(groupLabels, "outcome")...)
	groupLag     = desc("felix_group_lag_records", "Records between a group's position and the end of its shard.", groupLabels...)
)

// WatchReadings registers r. It may be called once.
func (m *Metrics) WatchReadings(r Readings) error { return m.reg.Register(&readingCollector{r}) }

type readingCollector struct{ r Readings }

func (c *readingCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{cacheKeys, cacheBytes, cacheWatchers, cacheRequests, cacheHits, cacheRefused, cacheRemoved, cacheEvents,
		groupCount, groupRecords, groupSettled, groupLag} {
		ch <- d
	}
}

func (c *readingCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for _, k := range c.r.Caches() {
		l := []string{k.Tenant, k.Namespace, k.Cache}
		with := func(v string) []string { return append(l[:len(l):len(l)], v) }
		gauge(cacheKeys, float64(k.Keys), l...)
		gauge(cacheBytes, float64(k.Bytes), l...)
		gauge(cacheWatchers, float64(k.Watchers), l...)
		count(cacheRequests, k.Gets, with("get")...)
		count(cacheRequests, k.Puts, with("put")...)
		count(cacheRequests, k.Deletes, with("delete")...)
		count(cacheRequests, k.CounterAdds, with("counter_add")...)
		count(cacheHits, k.Hits, l...)
		count(cacheRefused, k.Conditions, with("condition")...)
		count(cacheRefused, k.Full, with("full")...)
		count(cacheRefused, k.Failed, with("failed")...)
		count(cacheRefused, k.CounterRepeated, with("repeated")...)
		count(cacheRemoved, k.Expired, with("expired")...)
		count(cacheRemoved, k.Evicted, with("evicted")...)
		count(cacheEvents, k.WatchEvents, l...)
	}
	named, groups := c.r.Groups()
	gauge(groupCount, float64(groups))
	for _, g := range named {
		l := []string{g.Tenant, g.Namespace, g.Stream, g.Shard, g.Group}
		with := func(v string) []string { return append(l[:len(l):len(l)], v) }
		gauge(groupRecords, float64(g.Ready), with("ready")...)
		gauge(groupRecords, float64(g.Delayed), with("delayed")...)
		gauge(groupRecords, float64(g.Claimed), with("claimed")...)
		gauge(groupRecords, float64(g.Dead), with("dead")...)
		gauge(groupSettled, float64(g.Acked), with("acked")...)
		gauge(groupSettled, float64(g.Discarded), with("discarded")...)
		gauge(groupSettled, float64(g.Lost), with("lost")...)
		gauge(groupLag, float64(g.Lag), l...)
	}
}
