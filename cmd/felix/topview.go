package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// topView is what `felix top` shows, and prints with --json. A rate is over the time
// between two samples; it is nil where there are no two: at first, for what is new, and
// over a restart of the broker, whose counters begin at zero.
type topView struct {
	Time      time.Time `json:"time"`
	Broker    string    `json:"broker"`
	Version   string    `json:"version"`
	Status    string    `json:"status"`
	Reasons   []string  `json:"reasons,omitempty"`
	Uptime    float64   `json:"uptime_seconds"`
	Interval  float64   `json:"interval_seconds"` // 0: there is one sample only
	Restarted bool      `json:"restarted"`        // since the sample before

	Records     *float64           `json:"records_per_second"`
	Bytes       *float64           `json:"bytes_per_second"`
	Delivered   *float64           `json:"delivered_records_per_second"`
	Refused     *float64           `json:"refused_per_second"`
	Connections map[string]float64 `json:"connections"`
	Inflight    float64            `json:"inflight_bytes"`
	Unsynced    float64            `json:"unsynced_bytes"`
	UnsyncedAge float64            `json:"unsynced_seconds"`
	DiskFree    *float64           `json:"disk_free_bytes"` // nil without storage
	Memory      float64            `json:"memory_bytes"`

	StreamCount float64     `json:"stream_count"` // there may be more than are named
	GroupCount  float64     `json:"group_count"`
	Streams     []topStream `json:"streams"`
	Groups      []topGroup  `json:"groups"`
	Caches      []topCache  `json:"caches"`
}

type topStream struct {
	Tenant      string   `json:"tenant"`
	Namespace   string   `json:"namespace"`
	Stream      string   `json:"stream"`
	Shards      float64  `json:"shards"`
	Records     *float64 `json:"records_per_second"`
	Bytes       *float64 `json:"bytes_per_second"`
	Delivered   *float64 `json:"delivered_records_per_second"`
	Subscribers float64  `json:"subscribers"`
	Lag         float64  `json:"lag_records"`
}

type topGroup struct {
	Tenant    string  `json:"tenant"`
	Namespace string  `json:"namespace"`
	Stream    string  `json:"stream"`
	Group     string  `json:"group"`
	Ready     float64 `json:"ready"`
	Delayed   float64 `json:"delayed"`
	Claimed   float64 `json:"claimed"`
	Dead      float64 `json:"dead"`
	Lag       float64 `json:"lag_records"`
}

type topCache struct {
	Tenant     string   `json:"tenant"`
	Namespace  string   `json:"namespace"`
	Cache      string   `json:"cache"`
	Keys       float64  `json:"keys"`
	Bytes      float64  `json:"bytes"`
	Operations *float64 `json:"operations_per_second"`
}

// viewOf compares two samples of one broker; before may be nil.
func viewOf(broker string, before, now *brokerSample) *topView {
	v := &topView{
		Time: now.at, Broker: broker, Status: now.ready.Status,
		Uptime:      max(0, float64(now.at.UnixMilli())/1e3-now.started),
		Connections: map[string]float64{},
		Inflight:    now.value("felix_inflight_bytes"),
		Unsynced:    now.value("felix_storage_unsynced_bytes"), UnsyncedAge: now.value("felix_storage_unsynced_seconds"),
		Memory:      now.value("process_resident_memory_bytes"),
		StreamCount: now.value("felix_streams"), GroupCount: now.value("felix_groups"),
		Streams: []topStream{}, Groups: []topGroup{}, Caches: []topCache{},
	}
	if info := now.series["felix_build_info"]; len(info) > 0 {
		v.Version = string(info[0].Metric["version"])
	}
	for _, r := range now.ready.Reasons {
		v.Reasons = append(v.Reasons, r.Detail)
	}
	for o, n := range now.by("felix_connections", []string{"transport"}) {
		v.Connections[o[0]] = n
	}
	if len(now.series["felix_disk_free_bytes"]) > 0 {
		free := now.value("felix_disk_free_bytes")
		v.DiskFree = &free
	}
	if before != nil {
		v.Restarted = before.started != now.started
		v.Interval = now.at.Sub(before.at).Seconds()
	}
	rates := func(name string, labels ...string) func(topObject) *float64 {
		return rateOf(before, now, v, name, labels)
	}
	all := topObject{}
	v.Records, v.Bytes = rates("felix_published_records_total")(all), rates("felix_published_bytes_total")(all)
	v.Delivered, v.Refused = rates("felix_delivered_records_total")(all), rates("felix_refused_total")(all)

	labels := []string{"tenant", "namespace", "stream"}
	records, bytes, delivered := rates("felix_stream_records_total", labels...), rates("felix_stream_bytes_total", labels...), rates("felix_stream_delivered_records_total", labels...)
	subscribers, lag := now.by("felix_stream_subscribers", labels), now.by("felix_stream_lag_records", labels)
	for o, shards := range now.by("felix_stream_shards", labels) {
		v.Streams = append(v.Streams, topStream{o[0], o[1], o[2], shards, records(o), bytes(o), delivered(o), subscribers[o], lag[o]})
	}
	slices.SortFunc(v.Streams, func(a, b topStream) int {
		return cmp.Or(compareRates(b.Records, a.Records), compareRates(b.Delivered, a.Delivered), cmp.Compare(fullName(a.Tenant, a.Namespace, a.Stream), fullName(b.Tenant, b.Namespace, b.Stream)))
	})

	labels = append(labels, "group")
	state := func(s string) map[topObject]float64 { return now.by("felix_group_records", labels, "state", s) }
	ready, delayed, claimed, dead := state("ready"), state("delayed"), state("claimed"), state("dead")
	for o, lag := range now.by("felix_group_lag_records", labels) {
		v.Groups = append(v.Groups, topGroup{o[0], o[1], o[2], o[3], ready[o], delayed[o], claimed[o], dead[o], lag})
	}
	slices.SortFunc(v.Groups, func(a, b topGroup) int {
		return cmp.Or(cmp.Compare(b.Lag, a.Lag), cmp.Compare(fullName(a.Tenant, a.Namespace, a.Stream), fullName(b.Tenant, b.Namespace, b.Stream)), cmp.Compare(a.Group, b.Group))
	})

	labels = []string{"tenant", "namespace", "cache"}
	operations, size := rates("felix_cache_requests_total", labels...), now.by("felix_cache_bytes", labels)
	for o, keys := range now.by("felix_cache_keys", labels) {
		v.Caches = append(v.Caches, topCache{o[0], o[1], o[2], keys, size[o], operations(o)})
	}
	slices.SortFunc(v.Caches, func(a, b topCache) int {
		return cmp.Or(compareRates(b.Operations, a.Operations), cmp.Compare(fullName(a.Tenant, a.Namespace, a.Cache), fullName(b.Tenant, b.Namespace, b.Cache)))
	})
	return v
}

// rateOf gives the rate of a counter by object, nil where there is none. A counter that
// went back belongs to something made anew since.
func rateOf(before, now *brokerSample, v *topView, metric string, labels []string) func(topObject) *float64 {
	if before == nil || v.Restarted || v.Interval <= 0 {
		return func(topObject) *float64 { return nil }
	}
	old, present := before.by(metric, labels), now.by(metric, labels)
	return func(o topObject) *float64 {
		was, known := old[o]
		// A sum over no series at all is a counter that has not begun.
		if is := present[o]; is >= was && (known || o == topObject{}) {
			rate := (is - was) / v.Interval
			return &rate
		}
		return nil
	}
}

// compareRates compares rates; one that is not known is the least.
func compareRates(a, b *float64) int {
	value := func(p *float64) float64 {
		if p == nil {
			return -1
		}
		return *p
	}
	return cmp.Compare(value(a), value(b))
}

// fullName leaves out tenant and namespace where they are those of the first start.
func fullName(tenant, namespace, object string) string {
	if tenant == "default" && namespace == "default" {
		return object
	}
	return tenant + "/" + namespace + "/" + object
}

// topSize is the room a view has; 0 is no bound.
type topSize struct{ width, height int }

// render is the view as text, cut to the screen. problem, if there is one, is the line
// below the head: what is shown is then older than it says.
func (v *topView) render(s topSize, problem string) string {
	head := []string{
		joined("felix "+v.Version, v.Broker, v.Status, "up "+showSpan(v.Uptime), v.Time.Format(time.TimeOnly)),
		joined("in "+showCount(v.Records)+" records/s "+showSize(v.Bytes)+"/s", "out "+showCount(v.Delivered)+" records/s", "refused "+showCount(v.Refused)+"/s"),
		joined(fmt.Sprintf("connections %.0f quic %.0f tcp", v.Connections["quic"], v.Connections["tcp"]), "in flight "+showSize(&v.Inflight), "memory "+showSize(&v.Memory)),
		joined("unsynced "+showSize(&v.Unsynced)+" "+showAge(v.UnsyncedAge), "disk free "+showSize(v.DiskFree)),
	}
	for _, r := range v.Reasons {
		head = append(head, "! "+r)
	}
	if v.Restarted {
		head = append(head, "! the broker was restarted: rates begin anew")
	}
	if problem != "" {
		head = append(head, "! "+problem)
	}
	tables := []topTable{{title: []string{"STREAM", "SHARDS", "RECORDS/S", "BYTES/S", "OUT/S", "SUBSCRIBERS", "LAG"}, more: int(v.StreamCount) - len(v.Streams)}}
	for _, r := range v.Streams {
		tables[0].add(fullName(r.Tenant, r.Namespace, r.Stream), showWhole(r.Shards), showCount(r.Records), showSize(r.Bytes), showCount(r.Delivered), showWhole(r.Subscribers), showWhole(r.Lag))
	}
	if len(v.Groups) > 0 {
		t := topTable{title: []string{"GROUP", "READY", "DELAYED", "CLAIMED", "DEAD", "LAG"}}
		for _, r := range v.Groups {
			t.add(fullName(r.Tenant, r.Namespace, r.Stream)+" "+r.Group, showWhole(r.Ready), showWhole(r.Delayed), showWhole(r.Claimed), showWhole(r.Dead), showWhole(r.Lag))
		}
		tables = append(tables, t)
	}
	if len(v.Caches) > 0 {
		t := topTable{title: []string{"CACHE", "KEYS", "BYTES", "OPERATIONS/S"}}
		for _, r := range v.Caches {
			t.add(fullName(r.Tenant, r.Namespace, r.Cache), showWhole(r.Keys), showSize(&r.Bytes), showCount(r.Operations))
		}
		tables = append(tables, t)
	}
	lines := head
	room := topShare(tables, s.height-len(head))
	for i := range tables {
		lines = append(lines, tables[i].lines(s.width, room[i])...)
	}
	if s.height > 0 && len(lines) > s.height {
		lines = lines[:s.height]
	}
	for i, l := range lines {
		lines[i] = fit(strings.TrimRight(strings.Map(printable, l), " "), s.width)
	}
	return strings.Join(lines, "\n") + "\n"
}

// printable keeps what a name or a reason holds from steering the terminal.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return '?'
}

// topTable is a table whose first column is a name and whose others are figures.
type topTable struct {
	title []string
	rows  [][]string
	more  int // that the broker did not name
}

func (t *topTable) add(cells ...string) { t.rows = append(t.rows, cells) }

// topShare divides lines among the tables: each has an empty line, a title and as many rows
// as its share leaves, and what one does not need goes to the others. Without a bound
// each has all its rows.
func topShare(tables []topTable, lines int) []int {
	rows := make([]int, len(tables))
	if lines <= 0 {
		for i := range tables {
			rows[i] = math.MaxInt
		}
		return rows
	}
	left := lines - 2*len(tables)
	for left > 0 {
		given := false
		for i := range tables {
			if left > 0 && rows[i] < len(tables[i].rows) {
				rows[i]++
				left--
				given = true
			}
		}
		if !given {
			break
		}
	}
	return rows
}

// lines is the table in as many rows; the last says how many are left out.
func (t *topTable) lines(width, rows int) []string {
	shown, hidden := t.rows, t.more
	if len(shown) > rows {
		hidden += len(shown) - max(0, rows-1)
		shown = shown[:max(0, rows-1)]
	}
	widths := make([]int, len(t.title))
	for _, row := range append([][]string{t.title}, shown...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	if width > 0 {
		rest := 0
		for _, w := range widths[1:] {
			rest += 2 + w
		}
		widths[0] = min(widths[0], max(8, width-rest))
	}
	out := []string{""}
	for _, row := range append([][]string{t.title}, shown...) {
		var b strings.Builder
		fmt.Fprintf(&b, "%-*s", widths[0], fit(row[0], widths[0]))
		for i, cell := range row[1:] {
			fmt.Fprintf(&b, "  %*s", widths[i+1], cell)
		}
		out = append(out, b.String())
	}
	if hidden > 0 {
		out = append(out, fmt.Sprintf("and %d more", hidden))
	}
	return out
}

// fit shortens text to a width, in characters; 0 is no bound.
func fit(text string, width int) string {
	if width <= 0 || utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

func joined(parts ...string) string { return strings.Join(parts, "  ") }

func showWhole(v float64) string { return showCount(&v) }

// showCount shows a number or a rate in at most six characters: 999, 12.3k, 4.56M.
func showCount(p *float64) string {
	if p == nil {
		return "-"
	}
	return showScaled(*p, 1000, []string{"", "k", "M", "G", "T"})
}

// showSize is the same for bytes: 999 B, 12.3 KiB.
func showSize(p *float64) string {
	if p == nil {
		return "-"
	}
	return showScaled(*p, 1024, []string{" B", " KiB", " MiB", " GiB", " TiB"})
}

func showScaled(v, base float64, units []string) string {
	i := 0
	for v >= base && i < len(units)-1 {
		v /= base
		i++
	}
	switch {
	case v == math.Trunc(v) && i == 0, v >= 100:
		return fmt.Sprintf("%.0f%s", v, units[i])
	case v >= 10:
		return fmt.Sprintf("%.1f%s", v, units[i])
	}
	return fmt.Sprintf("%.2f%s", v, units[i])
}

// showSpan is a time in its two largest units.
func showSpan(seconds float64) string {
	s := int64(seconds)
	switch {
	case s >= 86400:
		return fmt.Sprintf("%dd%dh", s/86400, s%86400/3600)
	case s >= 3600:
		return fmt.Sprintf("%dh%dm", s/3600, s%3600/60)
	case s >= 60:
		return fmt.Sprintf("%dm%ds", s/60, s%60)
	}
	return fmt.Sprintf("%ds", s)
}

// showAge is a short time.
func showAge(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond).String()
}
