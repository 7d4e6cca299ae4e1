package obs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// TestDashboardsAndAlertsNameMetricsThatExist compares the files for Prometheus and
// Grafana with what a broker registers.
func TestDashboardsAndAlertsNameMetricsThatExist(t *testing.T) {
	m := New("test")
	require.NoError(t, m.Watch(allGauges()))
	require.NoError(t, m.WatchReadings(allReadings()))
	families, err := m.reg.Gather()
	require.NoError(t, err)
	known := map[string]bool{}
	for _, f := range families {
		known[f.GetName()] = true
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			known[f.GetName()+suffix] = true
		}
	}
	// A vector appears with its first use.
	known["felix_acks_total"] = true

	root := filepath.Join("..", "..", "deploy")
	rules, err := os.ReadFile(filepath.Join(root, "prometheus", "alerts.yml"))
	require.NoError(t, err)
	var alerts struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	require.NoError(t, yaml.Unmarshal(rules, &alerts))
	board, err := os.ReadFile(filepath.Join(root, "grafana", "felix.json"))
	require.NoError(t, err)
	var panels struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(board, &panels))

	exprs := map[string]string{}
	for _, r := range alerts.Groups[0].Rules {
		require.NotEmpty(t, r.Alert)
		exprs[r.Alert] = r.Expr
	}
	for _, p := range panels.Panels {
		for _, target := range p.Targets {
			exprs[p.Title+": "+target.Expr] = target.Expr
		}
	}
	require.Greater(t, len(exprs), 20)
	for where, expr := range exprs {
		names := regexp.MustCompile(`felix_\w+`).FindAllString(expr, -1)
		require.NotEmpty(t, names, where)
		for _, name := range names {
			require.True(t, known[name], "%s names %s, which no broker has", where, name)
		}
	}
}
