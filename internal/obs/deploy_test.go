package obs

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/wire"
)

// series are the metrics of a broker: for each the labels it has, and for labels whose
// values are a fixed set, that set.
type series map[string]map[string]map[string]bool

// free are labels of which any value may come; Prometheus itself sets the last three.
var free = []string{"tenant", "namespace", "stream", "shard", "group", "cache", "version", "instance", "job", "le"}

func allSeries(t *testing.T) series {
	m := New("test")
	g := allGauges()
	g.Shards = func() map[string]int {
		states := map[string]int{}
		for s := partition.Opening; s <= partition.Closed; s++ {
			states[s.String()] = 1
		}
		return states
	}
	require.NoError(t, m.Watch(g))
	require.NoError(t, m.WatchReadings(allReadings()))
	// A vector appears with its first use.
	m.Published(Publish{})
	for code := wire.Code(1); code.String() != "unknown"; code++ {
		for _, retry := range []wire.Retry{wire.RetryFatal, wire.RetryOutcomeUnknown} {
			m.Published(Publish{Failure: wire.NewFailure(code, "x").WithRetry(retry)})
		}
	}
	families, err := m.reg.Gather()
	require.NoError(t, err)
	all := series{}
	for _, f := range families {
		labels := map[string]map[string]bool{"instance": nil, "job": nil}
		for _, one := range f.GetMetric() {
			for _, l := range one.GetLabel() {
				if labels[l.GetName()] == nil {
					labels[l.GetName()] = map[string]bool{}
				}
				labels[l.GetName()][l.GetValue()] = true
			}
		}
		for _, suffix := range []string{"", "_sum", "_count"} {
			all[f.GetName()+suffix] = labels
		}
		bucket := maps.Clone(labels)
		bucket["le"] = nil
		all[f.GetName()+"_bucket"] = bucket
	}
	return all
}

var (
	selector = regexp.MustCompile(`(felix_\w+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`^(\w+)(=~|!~|!=|=)"([^"]*)"$`)
	grouping = regexp.MustCompile(`\bby \(([^)]*)\)`)
	used     = regexp.MustCompile(`\$labels\.(\w+)`)
	legend   = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)
)

// check says what is wrong with an expression, and with the labels that are shown of what
// it results in.
func (all series) check(expr string, shown []string) error {
	selectors := selector.FindAllStringSubmatch(expr, -1)
	if len(selectors) == 0 {
		return fmt.Errorf("%s: names no metric", expr)
	}
	results := map[string]bool{}
	for _, s := range selectors {
		labels, ok := all[s[1]]
		if !ok {
			return fmt.Errorf("no broker has %s", s[1])
		}
		for _, part := range strings.Split(s[2], ",") {
			if part == "" {
				continue
			}
			m := matcher.FindStringSubmatch(strings.TrimSpace(part))
			if m == nil {
				return fmt.Errorf("%s: %s is no matcher", s[1], part)
			}
			values, ok := labels[m[1]]
			if !ok {
				return fmt.Errorf("%s has no label %s", s[1], m[1])
			}
			if slices.Contains(free, m[1]) {
				continue
			}
			for value := range strings.SplitSeq(m[3], "|") {
				if !values[value] {
					return fmt.Errorf("%s: %s is never %q, but one of %s", s[1], m[1], value, strings.Join(slices.Sorted(maps.Keys(values)), ", "))
				}
			}
		}
		for l := range labels {
			results[l] = true
		}
	}
	if by := grouping.FindAllStringSubmatch(expr, -1); by != nil {
		kept := map[string]bool{}
		for _, g := range by {
			for l := range strings.SplitSeq(g[1], ",") {
				l = strings.TrimSpace(l)
				if !results[l] {
					return fmt.Errorf("%s: by %s, which its metrics do not have", expr, l)
				}
				kept[l] = true
			}
		}
		results = kept
	}
	for _, l := range shown {
		if !results[l] {
			return fmt.Errorf("%s: shows %s, which the result does not have", expr, l)
		}
	}
	return nil
}

// alertsIn and panelsIn are the expressions of the files for Prometheus and Grafana by
// where they are, each with the labels that are shown of it.
func alertsIn(t *testing.T, raw []byte) map[string][]string {
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(raw, &file))
	exprs := map[string][]string{}
	for _, g := range file.Groups {
		require.NotEmpty(t, g.Rules, g.Name)
		for _, r := range g.Rules {
			require.NotEmpty(t, r.Alert)
			require.NotEmpty(t, r.Annotations["summary"], r.Alert)
			require.NotEmpty(t, r.Annotations["action"], r.Alert)
			var shown []string
			for _, text := range r.Annotations {
				for _, l := range used.FindAllStringSubmatch(text, -1) {
					shown = append(shown, l[1])
				}
			}
			exprs[r.Expr] = append(exprs[r.Expr], shown...)
		}
	}
	return exprs
}

func panelsIn(t *testing.T, raw []byte) map[string][]string {
	type panel struct {
		Title   string
		Targets []struct{ Expr, LegendFormat string }
		Panels  []json.RawMessage
	}
	exprs := map[string][]string{}
	var add func(panels []json.RawMessage)
	add = func(panels []json.RawMessage) {
		for _, raw := range panels {
			var p panel
			require.NoError(t, json.Unmarshal(raw, &p))
			for _, target := range p.Targets {
				var shown []string
				for _, l := range legend.FindAllStringSubmatch(target.LegendFormat, -1) {
					shown = append(shown, l[1])
				}
				exprs[target.Expr] = append(exprs[target.Expr], shown...)
			}
			add(p.Panels) // of a row
		}
	}
	var board struct{ Panels []json.RawMessage }
	require.NoError(t, json.Unmarshal(raw, &board))
	add(board.Panels)
	return exprs
}

// What the files for Prometheus and Grafana ask for is what a broker has: metrics, labels
// and their values, in every group and panel.
func TestDashboardsAndAlertsNameMetricsThatExist(t *testing.T) {
	all := allSeries(t)
	root := filepath.Join("..", "..", "deploy")
	rules, err := os.ReadFile(filepath.Join(root, "prometheus", "alerts.yml"))
	require.NoError(t, err)
	board, err := os.ReadFile(filepath.Join(root, "grafana", "felix.json"))
	require.NoError(t, err)
	alerts, panels := alertsIn(t, rules), panelsIn(t, board)
	require.GreaterOrEqual(t, len(alerts), 10)
	require.GreaterOrEqual(t, len(panels), 20)
	for _, exprs := range []map[string][]string{alerts, panels} {
		for expr, shown := range exprs {
			require.NoError(t, all.check(expr, shown))
		}
	}
	// The value an alert shows is that of its left side: what may still be used of a disk is
	// what is free less the reserve.
	require.Contains(t, slices.Collect(maps.Keys(alerts)), "felix_disk_free_bytes - felix_disk_reserve_bytes < felix_disk_reserve_bytes")
	// The comparison itself finds what is wrong.
	for expr, want := range map[string]string{
		`rate(felix_cache_refused_total{reason="ful"}[5m])`:                    `reason is never "ful"`,
		`felix_shards{state=~"damaged|poisond"}`:                               `state is never "poisond"`,
		`rate(felix_acks_total{result!="okay"}[5m])`:                           `result is never "okay"`,
		`felix_cache_keys{stream="x"}`:                                         "has no label stream",
		`felix_cache_kees`:                                                     "no broker has felix_cache_kees",
		`sum by (code, cache) (rate(felix_acks_total[5m]))`:                    "by cache",
		`sum by (code) (rate(felix_acks_total{result!="ok"}[5m])) > 0`:         "shows group",
		`histogram_quantile(0.5, felix_storage_sync_duration_seconds_buckets)`: "no broker has",
		`up == 0`: "names no metric",
	} {
		require.ErrorContains(t, all.check(expr, []string{"group"}), want, expr)
	}
	second := append(slices.Clone(rules), []byte("  - name: more\n    rules:\n      - alert: X\n        expr: felix_nothing > 0\n        annotations: {summary: x, action: y}\n")...)
	require.Contains(t, alertsIn(t, second), "felix_nothing > 0", "every group is looked at")
	require.Contains(t, panelsIn(t, []byte(`{"panels":[{"title":"row","panels":[{"title":"x","targets":[{"expr":"felix_nothing"}]}]}]}`)), "felix_nothing", "and every row")
}
