package logtool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/storage/vfs"
)

// benchOptions say what bench measures.
type benchOptions struct {
	logOptions
	writeOptions
	suite  bool
	rows   string
	rounds int
	slice  time.Duration
	floor  string
	peer   string
}

// side is one contender's figures.
type side struct {
	What string  `json:"what,omitempty"`
	Rate float64 `json:"rate"`
	P50  float64 `json:"p50_us"`
	P99  float64 `json:"p99_us"`
	P999 float64 `json:"p999_us"`
	Best float64 `json:"best_rate"` // of the fastest slice
}

// benchRow is one line of the result. Rates are records a second.
type benchRow struct {
	Name   string         `json:"name"`
	Params map[string]any `json:"params"`
	side
	Allocs  float64         `json:"allocs_per_op"`
	Flushes float64         `json:"flushes_per_op"`
	Floor   *side           `json:"floor,omitempty"`
	Peer    json.RawMessage `json:"peer,omitempty"`
	// Ratio is our rate over the floor's, LatencyRatio our p50 over the floor's, BestRatio
	// our fastest slice over the floor's: what is left when others leave the machine alone.
	Ratio        float64 `json:"ratio,omitempty"`
	LatencyRatio float64 `json:"latency_ratio,omitempty"`
	BestRatio    float64 `json:"best_ratio,omitempty"`
	Note         string  `json:"note,omitempty"`
}

// benchReport is what bench prints as JSON.
type benchReport struct {
	Version int            `json:"version"`
	Env     map[string]any `json:"env"`
	Rows    []*benchRow    `json:"rows"`
}

func benchCommand() *cobra.Command {
	var c command
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench --dir DIR",
		Short: "Measure the log beside what this machine allows",
		Long: "bench appends with the given size, batch and concurrency, and beside it, in short slices taken in turn, runs a bare loop\n" +
			"of the same shape: encode, write, and flush if asked. Figures are medians over the slices; the ratio is ours to the bare loop.\n" +
			"It makes a directory of its own below DIR and removes it. With --suite it measures every row, " + strings.Join(suiteNames(), ", ") + ".",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return c.bench(cmd, o)
		},
	}
	c.flags(cmd, "directory on the disk to measure")
	o.logOptions.flags(cmd)
	o.writeOptions.flags(cmd)
	f := cmd.Flags()
	f.Int64Var(&o.records, "records", 0, "records each side appends (0: as many as fit in the slices)")
	f.BoolVar(&o.suite, "suite", false, "measure every row instead of one")
	f.StringVar(&o.rows, "rows", "", "with --suite, only the rows whose name contains one of these, separated by commas")
	f.IntVar(&o.rounds, "rounds", 12, "slices of each side")
	f.DurationVar(&o.slice, "slice", 200*time.Millisecond, "length of a slice")
	f.StringVar(&o.floor, "floor-space", "", "what the bare loop writes into: appended, reserved, zeroed (default: as the log)")
	f.StringVar(&o.peer, "peer", "", "JSON file with a peer's rows of the same names from the same run")
	return cmd
}

func (o *benchOptions) check() error {
	switch {
	case o.rounds < 1:
		return usagef("--rounds %d is below 1", o.rounds)
	case o.slice <= 0:
		return usagef("--slice %v is not positive", o.slice)
	case o.rows != "" && !o.suite:
		return usagef("--rows needs --suite")
	case o.floor != "" && !slices.Contains([]space{spaceAppended, spaceReserved, spaceZeroed}, space(o.floor)):
		return usagef("--floor-space %q is none of appended, reserved, zeroed", o.floor)
	}
	return o.writeOptions.check()
}

func (c *command) bench(cmd *cobra.Command, o benchOptions) (err error) {
	fsys := vfs.OS()
	dir := filepath.Join(c.dir, fmt.Sprintf("felix-log-bench-%d", os.Getpid()))
	if err := fsys.MkdirAll(dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fsys.RemoveAll(dir)) }()
	peers, err := readPeers(o.peer)
	if err != nil {
		return err
	}
	report := &benchReport{Version: 1, Env: environment(o), Rows: []*benchRow{}}
	todo := []benchCase{appendCase(o)}
	if o.suite {
		todo = suite(o)
	}
	for i, bc := range todo {
		if o.suite {
			fmt.Fprintf(cmd.ErrOrStderr(), "%d/%d %s\n", i+1, len(todo), bc.name)
		}
		rowDir := filepath.Join(dir, fmt.Sprint(i))
		if err := fsys.MkdirAll(rowDir); err != nil {
			return err
		}
		row, err := bc.run(cmd.Context(), rowDir)
		if err != nil {
			return fmt.Errorf("%s: %w", bc.name, err)
		}
		if err := fsys.RemoveAll(rowDir); err != nil {
			return err
		}
		row.Name = bc.name
		row.Peer = peers[bc.name]
		report.Rows = append(report.Rows, row)
	}
	if c.json {
		return printJSON(cmd.OutOrStdout(), report)
	}
	return printBench(cmd, report)
}

// readPeers takes rows by name from a file of bench's own shape.
func readPeers(path string) (map[string]json.RawMessage, error) {
	if path == "" {
		return nil, nil
	}
	dir, name := filepath.Split(path)
	b, err := readSmall(dir, name)
	if err != nil {
		return nil, err
	}
	var file struct {
		Rows []json.RawMessage `json:"rows"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	peers := map[string]json.RawMessage{}
	for _, raw := range file.Rows {
		var head struct {
			Name string `json:"name"`
		}
		if err := json.Unmarshal(raw, &head); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		peers[head.Name] = raw
	}
	return peers, nil
}

func environment(o benchOptions) map[string]any {
	env := map[string]any{
		"go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH, "cpus": runtime.NumCPU(),
		"gomaxprocs": runtime.GOMAXPROCS(0), "time": time.Now().UTC().Format(time.RFC3339),
		"rounds": o.rounds, "slice_ms": o.slice.Milliseconds(),
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				env["revision"] = s.Value
			}
		}
	}
	return env
}

func printBench(cmd *cobra.Command, r *benchReport) error {
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "row\trate/s\tp50 µs\tp99 µs\tp999 µs\tflushes/op\tallocs/op\tbare/s\tbare p50\tratio\tp50 ratio\tbest ratio\t")
	for _, row := range r.Rows {
		fmt.Fprintf(w, "%s\t%.0f\t%.1f\t%.1f\t%.1f\t%.4f\t%.2f\t", row.Name, row.Rate, row.P50, row.P99, row.P999, row.Flushes, row.Allocs)
		if row.Floor != nil {
			fmt.Fprintf(w, "%.0f\t%.1f\t%.2f\t%.2f\t%.2f\t", row.Floor.Rate, row.Floor.P50, row.Ratio, row.LatencyRatio, row.BestRatio)
		} else {
			fmt.Fprint(w, "\t\t\t\t\t")
		}
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, row := range r.Rows {
		if row.Note != "" {
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", row.Name, row.Note)
		}
	}
	return nil
}

// contender is one side of a comparison: what a slice does, and what comes before it,
// outside the measured time.
type contender struct {
	prepare func() error
	slice   func(ctx context.Context) (*sliceResult, error)
}

// figures gathers the slices of one contender.
type figures struct {
	rates []float64
	hist  histogram
	ops   int64
}

func (f *figures) add(r *sliceResult, recordsPerOp int) {
	f.rates = append(f.rates, float64(r.ops)*float64(recordsPerOp)/r.elapsed.Seconds())
	f.hist.merge(&r.hist)
	f.ops += r.ops
}

func (f *figures) side(what string) side {
	return side{What: what, Rate: median(f.rates), Best: slices.Max(f.rates), P50: f.hist.quantile(.5), P99: f.hist.quantile(.99), P999: f.hist.quantile(.999)}
}

// compare runs slices of both in turn, after one of each that does not count. The ratio
// is the median of the ratios of neighbours, which share what else the machine did.
func compare(ctx context.Context, rounds, recordsPerOp int, ours, floor contender) (o, f figures, ratio float64, err error) {
	var ratios []float64
	for i := range rounds + 1 {
		var rates [2]float64
		for k, c := range []contender{floor, ours} {
			if c.prepare != nil {
				if err := c.prepare(); err != nil {
					return o, f, 0, err
				}
			}
			r, err := c.slice(ctx)
			if err != nil {
				return o, f, 0, err
			}
			if i == 0 {
				continue
			}
			into := &f
			if k == 1 {
				into = &o
			}
			into.add(r, recordsPerOp)
			rates[k] = into.rates[len(into.rates)-1]
		}
		if i > 0 {
			ratios = append(ratios, rates[1]/rates[0])
		}
	}
	return o, f, median(ratios), nil
}

// against sets the ratios of a row to its floor.
func (r *benchRow) against(floor side, ratio float64) {
	r.Floor = &floor
	r.Ratio = ratio
	r.LatencyRatio = r.P50 / floor.P50
	r.BestRatio = r.Best / floor.Best
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}
