package main

import (
	"os"
	"runtime"
	"slices"
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
	// PeerCase is the peer's own name of the row compared with.
	PeerCase string              `json:"peer_case,omitempty"`
	Memory   *benchMemoryFigures `json:"memory,omitempty"`
}

type benchParams struct {
	Payload  int    `json:"payload"`
	Fsync    string `json:"fsync"`
	Shards   int    `json:"shards"`
	InFlight int    `json:"in_flight,omitempty"`
	Records  int    `json:"records,omitempty"` // of restart
	Runs     int    `json:"runs"`
}

// benchFigures are one side's: a rate in records a second, and times in microseconds
// where the case has them.
type benchFigures struct {
	Rate float64 `json:"rate"`
	P50  float64 `json:"p50_us,omitempty"`
	P99  float64 `json:"p99_us,omitempty"`
	P999 float64 `json:"p999_us,omitempty"`
	// CPU is the processor time that client and broker together took for a record. Where
	// others use the machine too, it says more than the rate.
	CPU float64 `json:"cpu_us,omitempty"`
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
		CPU: of(func(f *benchFigures) float64 { return f.CPU }),
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
