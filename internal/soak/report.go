package soak

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Second is what was seen of one second. Times are in milliseconds.
type Second struct {
	At        int     `json:"at"` // seconds since the load began
	Published int     `json:"published"`
	Missed    int     `json:"missed"` // of those, left out because the load itself was late
	P50       float64 `json:"p50_ms"` // of the publishes that were due in it
	P99       float64 `json:"p99_ms"`
	P999      float64 `json:"p999_ms"`
	Worst     float64 `json:"worst_ms"`

	Resident    float64 `json:"resident_bytes"`
	Goroutines  float64 `json:"goroutines"`
	Descriptors float64 `json:"descriptors"`

	Rolls       int  `json:"rolls"`
	Trims       int  `json:"trims"`       // segments gone by retention
	Compactions int  `json:"compactions"` // segments gone when what is needed of them was copied
	Compacting  bool `json:"compacting"`  // the second before such a one

	SleepLate float64 `json:"sleep_late_ms"` // the most by which a sleep of 1 ms ended late
	FlushTook float64 `json:"flush_took_ms"` // the longest write and flush of a page beside the broker

	// Others is the share of the machine's processors that other processes than the broker
	// and the load used, 0 to 1.
	Others float64 `json:"others_cpu"`

	Replayed        int `json:"replayed"`
	CacheOperations int `json:"cache_operations"`
	Settled         int `json:"settled"`
	Dials           int `json:"dials"`
}

func (s *Second) mark(kind string) {
	switch kind {
	case roll:
		s.Rolls++
	case trim:
		s.Trims++
	case compaction:
		s.Compactions++
	}
}

// Marked reports whether the broker did something by itself in the second.
func (s *Second) Marked() bool {
	return s.Rolls+s.Trims+s.Compactions > 0 || s.Compacting
}

// Stall is what the machine itself lost in the second, the longer of both probes.
func (s *Second) Stall() float64 { return max(s.SleepLate, s.FlushTook) }

// Report is a run: what was seen, and the verdict on it.
type Report struct {
	Begin          time.Time `json:"begin"`
	Time           string    `json:"time"`
	Rate           int       `json:"publishes_per_second"`
	SegmentBytes   int64     `json:"segment_bytes"`
	RetentionBytes int64     `json:"retention_bytes"`
	Seconds        []Second  `json:"seconds"`

	// StructureOnly is Options': there is no verdict.
	StructureOnly bool `json:"structure_only,omitempty"`

	Drifts   []Drift    `json:"drifts"`
	Baseline float64    `json:"baseline_p999_ms"` // median of the p99.9 of the seconds without a mark
	Marked   int        `json:"marked_seconds"`
	StandOut []StandOut `json:"stand_out"`
}

// Drift is how something changed over the last half of a run: from the median of its
// first third to that of its last.
type Drift struct {
	What string  `json:"what"`
	From float64 `json:"from"`
	To   float64 `json:"to"`
	Rise float64 `json:"rise"` // as a share of From
}

// StandOut is a second whose p99.9 is more than standsOut times the baseline.
type StandOut struct {
	At     int     `json:"at"`
	P999   float64 `json:"p999_ms"`
	Times  float64 `json:"times_baseline"`
	Marked bool    `json:"marked"`
	// Stall is the machine's own, in milliseconds, of the second and those beside it: a
	// stall at the end of one second is seen in the latencies of the next.
	Stall  float64 `json:"machine_stall_ms"`
	Others float64 `json:"others_cpu"` // the most of the same seconds
}

// OfMachine reports whether the machine stood still for most of what the second stands out
// by, or was at work for others.
func (s *StandOut) OfMachine() bool { return s.Stall >= s.P999/2 || s.Others >= othersBusy }

const (
	standsOut  = 5
	mostRise   = 0.05
	othersBusy = 0.5
)

// Judge works out the verdict.
func (r *Report) Judge() {
	half := r.Seconds[len(r.Seconds)/2:]
	third := max(1, len(half)/3)
	r.Drifts = nil
	for _, f := range []struct {
		what string
		of   func(*Second) float64
	}{
		{"resident memory", func(s *Second) float64 { return s.Resident }},
		{"goroutines", func(s *Second) float64 { return s.Goroutines }},
		{"descriptors", func(s *Second) float64 { return s.Descriptors }},
	} {
		d := Drift{What: f.what, From: median(half[:third], f.of), To: median(half[len(half)-third:], f.of)}
		if d.From > 0 {
			d.Rise = d.To/d.From - 1
		}
		r.Drifts = append(r.Drifts, d)
	}

	var plain []Second
	r.Marked = 0
	for _, s := range r.Seconds {
		if s.Marked() {
			r.Marked++
		} else {
			plain = append(plain, s)
		}
	}
	r.Baseline = median(plain, func(s *Second) float64 { return s.P999 })
	r.StandOut = []StandOut{}
	for i := range r.Seconds {
		s := &r.Seconds[i]
		if r.Baseline == 0 || s.P999 <= standsOut*r.Baseline {
			continue
		}
		out := StandOut{At: s.At, P999: s.P999, Times: s.P999 / r.Baseline, Marked: s.Marked()}
		for j := max(0, i-1); j <= min(i+1, len(r.Seconds)-1); j++ {
			out.Stall = max(out.Stall, r.Seconds[j].Stall())
			out.Others = max(out.Others, r.Seconds[j].Others)
		}
		r.StandOut = append(r.StandOut, out)
	}
}

// Err is what a run fails for: something of the broker that went on rising, and seconds
// that stand out by more than the machine itself stood still. Nil of a run that is looked
// at for its structure alone.
func (r *Report) Err() error {
	if r.StructureOnly {
		return nil
	}
	var failures []string
	var rising []string
	for _, d := range r.Drifts {
		if d.Rise >= mostRise {
			rising = append(rising, d.String())
		}
	}
	if rising != nil {
		failures = append(failures, fmt.Sprintf("over the last half of the run there rose by %.0f %% or more: %s", 100*mostRise, strings.Join(rising, "; ")))
	}
	if own := r.ofBroker(); own != nil {
		var worst []string
		for _, s := range own[:min(len(own), 10)] {
			worst = append(worst, s.String())
		}
		failures = append(failures, fmt.Sprintf("the p99.9 of %d seconds is above %d times the %.2f ms of one without a roll, a trim or a compaction, and the machine did not stand still for half of it: %s",
			len(own), standsOut, r.Baseline, strings.Join(worst, "; ")))
	}
	if failures == nil {
		return nil
	}
	return errors.New(strings.Join(failures, "\n"))
}

// ofBroker are the seconds that stand out and are not the machine's, the worst first.
func (r *Report) ofBroker() []StandOut {
	var own []StandOut
	for _, s := range r.worst() {
		if !s.OfMachine() {
			own = append(own, s)
		}
	}
	return own
}

// worst are the seconds that stand out, the worst first.
func (r *Report) worst() []StandOut {
	return slices.SortedStableFunc(slices.Values(r.StandOut), func(x, y StandOut) int { return cmp.Compare(y.P999, x.P999) })
}

func (s StandOut) String() string {
	return fmt.Sprintf("second %d: %.1f ms, %.1f times; marked: %t; machine stall %.1f ms, %.0f %% others'", s.At, s.P999, s.Times, s.Marked, s.Stall, 100*s.Others)
}

func (d Drift) String() string {
	return fmt.Sprintf("%s from %.4g to %.4g (%+.1f %%)", d.What, d.From, d.To, 100*d.Rise)
}

// String is the verdict in words.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d seconds, %d of them with a roll, a trim or a compaction\n", len(r.Seconds), r.Marked)
	for _, d := range r.Drifts {
		fmt.Fprintf(&b, "last half: %s\n", d)
	}
	p50 := median(r.Seconds, func(s *Second) float64 { return s.P50 })
	missed := 0
	for _, s := range r.Seconds {
		missed += s.Missed
	}
	others := median(r.Seconds, func(s *Second) float64 { return s.Others })
	fmt.Fprintf(&b, "machine: %.0f %% used by others (median); %d publishes left out because the load itself was late\n", 100*others, missed)
	fmt.Fprintf(&b, "publishes: p50 %.2f ms, p99.9 of a second without a mark %.2f ms (medians)\n", p50, r.Baseline)
	marked, machine := 0, 0
	for i := range r.StandOut {
		s := &r.StandOut[i]
		if s.Marked {
			marked++
		}
		if s.OfMachine() {
			machine++
		}
	}
	fmt.Fprintf(&b, "seconds with a p99.9 above %d times that: %d, of them %d marked, %d in which the machine itself stood still for half of it or more, or half of it was others'\n", standsOut, len(r.StandOut), marked, machine)
	worst := r.worst()
	for _, s := range worst[:min(len(worst), 10)] {
		fmt.Fprintf(&b, "  %s\n", s)
	}
	if r.StructureOnly {
		b.WriteString("no verdict: the run was for its structure alone\n")
	}
	return b.String()
}

// Write leaves soak.json and soak.png in dir.
func (r *Report) Write(dir string) error {
	raw, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "soak.json"), append(raw, '\n'), 0o644); err != nil {
		return err
	}
	return r.draw(filepath.Join(dir, "soak.png"))
}

// median of the values that are there; 0 without any.
func median(seconds []Second, of func(*Second) float64) float64 {
	var values []float64
	for i := range seconds {
		if v := of(&seconds[i]); v > 0 {
			values = append(values, v)
		}
	}
	if values == nil {
		return 0
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// latencies are the publishes by the second they were due in, in microseconds.
type latencies struct {
	mu       sync.Mutex
	bySecond [][]uint32
}

func newLatencies(seconds int) *latencies { return &latencies{bySecond: make([][]uint32, seconds)} }

func (l *latencies) add(due, took time.Duration) {
	i := int(due / time.Second)
	l.mu.Lock()
	defer l.mu.Unlock()
	if i < len(l.bySecond) {
		l.bySecond[i] = append(l.bySecond[i], uint32(min(max(took.Microseconds(), 0), math.MaxUint32)))
	}
}

// summarize fills in the figures of a second. Publishes that were not answered when the
// load ended are of the last moment and not in them.
func (l *latencies) summarize(i int, s *Second) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.bySecond[i]
	if s.Published = len(all); len(all) == 0 {
		return
	}
	slices.Sort(all)
	at := func(p float64) float64 {
		return float64(all[min(len(all)-1, int(p*float64(len(all))))]) / 1000
	}
	s.P50, s.P99, s.P999, s.Worst = at(0.5), at(0.99), at(0.999), at(1)
}
