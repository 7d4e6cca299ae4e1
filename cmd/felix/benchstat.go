package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// benchReport is what `felix bench --json` prints.
type benchReport struct {
	Version int        `json:"version"`
	Env     benchEnv   `json:"env"`
	Rows    []benchRow `json:"rows"`
}

type benchEnv struct {
	Felix string `json:"felix"`
	Go    string `json:"go"`
	OS    string `json:"os"`
	Arch  string `json:"arch"`
	CPUs  int    `json:"cpus"`
	Time  string `json:"time"`
	Load1 string `json:"load1,omitempty"` // of the machine, when the run began
}

// benchRow is one case: the medians over the runs.
type benchRow struct {
	Name   string      `json:"name"`
	Params benchParams `json:"params"`
	benchFigures
	AllocsPerOp  float64       `json:"allocs_per_op"`  // in the broker, for each record
	FlushesPerOp float64       `json:"flushes_per_op"` // device flushes, for each record
	Floor        *benchFigures `json:"floor,omitempty"`
	Peer         *benchFigures `json:"peer,omitempty"`
	// Ratio is ours to the floor: of the rates, or for a row that waits for each answer,
	// one at a time, of the median times.
	Ratio     float64 `json:"ratio,omitempty"`
	PeerRatio float64 `json:"peer_ratio,omitempty"`
	// Of restart: what the broker has in memory when it is ready again, and what a
	// record takes on disk.
	ResidentMiB    float64 `json:"resident_mib,omitempty"`
	BytesPerRecord float64 `json:"bytes_per_record,omitempty"`
}

type benchParams struct {
	Payload  int    `json:"payload"`
	Fsync    string `json:"fsync"`
	Shards   int    `json:"shards"`
	InFlight int    `json:"in_flight,omitempty"`
	Runs     int    `json:"runs"`
}

// benchFigures are one side's: a rate in records a second, and times in microseconds
// where the case has them.
type benchFigures struct {
	Rate float64 `json:"rate"`
	P50  float64 `json:"p50_us,omitempty"`
	P99  float64 `json:"p99_us,omitempty"`
	P999 float64 `json:"p999_us,omitempty"`
}

func newBenchReport() *benchReport {
	r := &benchReport{Version: 1, Rows: []benchRow{}, Env: benchEnv{
		Felix: version(), Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(),
		Time: time.Now().UTC().Format(time.RFC3339),
	}}
	if raw, err := os.ReadFile("/proc/loadavg"); err == nil {
		r.Env.Load1, _, _ = strings.Cut(string(raw), " ")
	}
	return r
}

// figures are those of n records in d, with the times of single operations, if any.
func figures(n int, d time.Duration, times []time.Duration) benchFigures {
	slices.Sort(times)
	at := func(share float64) float64 {
		if len(times) == 0 {
			return 0
		}
		// Nearest rank.
		i := int(share*float64(len(times))+0.5) - 1
		return float64(times[min(max(i, 0), len(times)-1)]) / 1e3
	}
	return benchFigures{Rate: float64(n) / d.Seconds(), P50: at(0.5), P99: at(0.99), P999: at(0.999)}
}

// median takes the median of each figure over the runs.
func median(runs []benchFigures) benchFigures {
	of := func(get func(*benchFigures) float64) float64 {
		var v []float64
		for i := range runs {
			v = append(v, get(&runs[i]))
		}
		slices.Sort(v)
		return v[len(v)/2]
	}
	return benchFigures{
		Rate: of(func(f *benchFigures) float64 { return f.Rate }), P50: of(func(f *benchFigures) float64 { return f.P50 }),
		P99: of(func(f *benchFigures) float64 { return f.P99 }), P999: of(func(f *benchFigures) float64 { return f.P999 }),
	}
}

// compare sets the ratios of a row. byTime rows compare their medians: below 1 is
// faster than the other side; the others compare rates: above 1 is.
func (r *benchRow) compare(byTime bool) {
	ratio := func(o *benchFigures) float64 {
		switch {
		case o == nil:
			return 0
		case byTime && o.P50 > 0:
			return r.P50 / o.P50
		case !byTime && o.Rate > 0:
			return r.Rate / o.Rate
		}
		return 0
	}
	r.Ratio, r.PeerRatio = ratio(r.Floor), ratio(r.Peer)
}

// peerRow is a row of a peer's figures. A zero field of Params matches any.
type peerRow struct {
	Name   string      `json:"name"`
	Params benchParams `json:"params"`
	benchFigures
}

// How the cases of a peer's table are recognised.
var peerCases = []struct {
	re   *regexp.Regexp
	name string
}{
	{regexp.MustCompile(`wait for each ack.*?(?P<payload>\d+) B, (?P<n>\d+) `), "publish"},
	{regexp.MustCompile(`xadd (?P<payload>\d+) B, (?P<n>\d+) connections`), "publish"},
	{regexp.MustCompile(`(?:window|pipelines of) (?P<window>\d+)`), "pipelined"},
	{regexp.MustCompile(`500 a second`), "latency"},
	{regexp.MustCompile(`from the start|from the log|consume`), "replay"},
}

var payloadWords = regexp.MustCompile(`(\d+) B\b`)

// readPeer reads a peer's rows: our own JSON, or Markdown tables of case, rate,
// range, p50, p99, p999 in microseconds. The argument is FILE or FSYNC=FILE, for
// figures that were taken with one mode.
func readPeer(arg string) ([]peerRow, error) {
	fsync, file, ok := strings.Cut(arg, "=")
	if !ok {
		fsync, file = "", arg
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, &exitError{exitUsage, fmt.Errorf("--peer: %w", err)}
	}
	var rows []peerRow
	if strings.HasPrefix(strings.TrimSpace(string(raw)), "{") {
		var r struct {
			Rows []peerRow `json:"rows"`
		}
		if err := json.Unmarshal(raw, &r); err != nil {
			return nil, usagef("--peer %s: %v", file, err)
		}
		rows = r.Rows
	} else {
		for line := range strings.Lines(string(raw)) {
			if row, ok := peerLine(line); ok {
				rows = append(rows, row)
			}
		}
	}
	if len(rows) == 0 {
		return nil, usagef("--peer %s: no row of it is known", file)
	}
	for i := range rows {
		if fsync != "" {
			rows[i].Params.Fsync = fsync
		}
	}
	return rows, nil
}

func peerLine(line string) (peerRow, bool) {
	cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
	if len(cells) < 6 {
		return peerRow{}, false
	}
	number := func(i int) float64 {
		n, err := strconv.ParseFloat(strings.TrimSpace(cells[i]), 64)
		if err != nil {
			return 0
		}
		return n
	}
	row := peerRow{benchFigures: benchFigures{Rate: number(1), P50: number(3), P99: number(4), P999: number(5)}}
	if row.Rate == 0 {
		return peerRow{}, false
	}
	for _, c := range peerCases {
		m := c.re.FindStringSubmatch(cells[0])
		if m == nil {
			continue
		}
		row.Name = c.name
		group := func(name string) int {
			if i := c.re.SubexpIndex(name); i >= 0 {
				if n, err := strconv.Atoi(m[i]); err == nil {
					return n
				}
			}
			return 0
		}
		row.Params.Payload = group("payload")
		if row.Params.Payload == 0 {
			if p := payloadWords.FindStringSubmatch(cells[0]); p != nil {
				if n, err := strconv.Atoi(p[1]); err == nil {
					row.Params.Payload = n
				}
			}
		}
		row.Params.InFlight = max(group("n"), group("window"))
		if c.name == "publish" {
			row.Name += "-" + strconv.Itoa(row.Params.InFlight)
		}
		switch {
		case strings.Contains(cells[0], "sync true"):
			row.Params.Fsync = "on_commit"
		case strings.Contains(cells[0], "sync false"):
			row.Params.Fsync = "periodic"
		}
		return row, true
	}
	return peerRow{}, false
}

// bestPeer is the fastest of a peer's rows that fit.
func bestPeer(rows []peerRow, name string, p benchParams) *benchFigures {
	var best *benchFigures
	fits := func(have, want int) bool { return have == 0 || want == 0 || have == want }
	for i := range rows {
		r := &rows[i]
		if r.Name != name || !fits(r.Params.Payload, p.Payload) || !fits(r.Params.InFlight, p.InFlight) || r.Params.Fsync != "" && r.Params.Fsync != p.Fsync {
			continue
		}
		if best == nil || r.Rate > best.Rate {
			best = &r.benchFigures
		}
	}
	return best
}
