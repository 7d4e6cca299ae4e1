package logtool

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBenchPrintsOursBesideTheFloor(t *testing.T) {
	dir := t.TempDir()
	peer := filepath.Join(dir, "peer.json")
	require.NoError(t, os.WriteFile(peer, []byte(`{"rows":[{"name":"append/on_commit/batch=2/appenders=3","rate":5}]}`), 0o600))
	out, err := tool(t, "bench", "--dir", dir, "--fsync", "on_commit", "--concurrency", "3", "--batch", "2",
		"--rounds", "2", "--slice", "20ms", "--payload-bytes", "64", "--json", "--peer", peer)
	require.NoError(t, err)
	var r benchReport
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Equal(t, 1, r.Version)
	require.NotEmpty(t, r.Env["go"])
	require.Len(t, r.Rows, 1)
	row := r.Rows[0]
	require.Equal(t, "append/on_commit/batch=2/appenders=3", row.Name)
	require.Equal(t, 64.0, row.Params["payload_bytes"])
	for name, v := range map[string]float64{
		"rate": row.Rate, "p50": row.P50, "p99": row.P99, "p999": row.P999, "flushes": row.Flushes,
		"floor rate": row.Floor.Rate, "floor p50": row.Floor.P50, "ratio": row.Ratio, "latency ratio": row.LatencyRatio,
		"best": row.Best, "best ratio": row.BestRatio,
	} {
		require.Positive(t, v, name)
	}
	require.LessOrEqual(t, row.P50, row.P99)
	require.JSONEq(t, `{"name":"append/on_commit/batch=2/appenders=3","rate":5}`, string(row.Peer))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "bench left something behind")
}

func TestBenchByRecords(t *testing.T) {
	out, err := tool(t, "bench", "--dir", t.TempDir(), "--fsync", "none", "--records", "4000", "--concurrency", "2", "--rounds", "2")
	require.NoError(t, err)
	require.Contains(t, out, "append/none/batch=1/appenders=2")
	for _, args := range [][]string{
		{"--fsync", "sometimes"}, {"--batch", "0"}, {"--concurrency", "0"}, {"--payload-bytes", "-1"}, {"--rounds", "0"},
		{"--floor-space", "x"}, {"--rows", "read"}, {"--slice", "0s"},
	} {
		_, err := tool(t, append([]string{"bench", "--dir", t.TempDir()}, args...)...)
		require.Error(t, err, "%v", args)
	}
}

func TestHistogram(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var a, b histogram
	var all []float64
	for i := range 10_000 {
		d := time.Duration(rng.ExpFloat64() * 50_000)
		all = append(all, float64(d)/1e3)
		if i%2 == 0 {
			a.add(d)
		} else {
			b.add(d)
		}
	}
	a.merge(&b)
	slices.Sort(all)
	for _, q := range []float64{0, .01, .5, .9, .99, .999, 1} {
		want := all[int(q*float64(len(all)-1))]
		require.InEpsilon(t, want+.001, a.quantile(q)+.001, .04, "quantile %v", q)
	}
	for _, d := range []time.Duration{0, 1, 31, 32, 33, 1000, 1 << 40, 1<<62 + 5} {
		top := bucketTop(bucketOf(d))
		require.GreaterOrEqual(t, top, d)
		require.LessOrEqual(t, float64(top), float64(d)*(1+1.0/subBuckets)+1)
	}
}

func TestPattern(t *testing.T) {
	for _, n := range []int{0, 1, 7, 8, 9, 50, 128} {
		b := make([]byte, n)
		pattern(b, 12345)
		require.True(t, isPattern(b, n))
		require.False(t, isPattern(b, n+1))
		for i := range b {
			b[i] ^= 1 // up to eight bytes are the number itself, and any number will do
			require.Equal(t, n <= 8, isPattern(b, n), "size %d, byte %d", n, i)
			b[i] ^= 1
		}
	}
}
