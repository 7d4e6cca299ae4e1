package soak

import (
	"context"
	"encoding/json"
	"image/png"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/config"
	"github.com/felixlog/felix/internal/node"
	"github.com/felixlog/felix/internal/testkit/leak"
)

// asBroker makes this test program a broker, for when there is no felix at hand.
const asBroker = "FELIX_SOAK_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(asBroker) != "" {
		if err := serve(os.Args[2:]); err != nil {
			slog.Error("failed", "error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leak.Main(m)
}

// serve is `felix serve` with flags that each have a value.
func serve(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	flags, contextFile := map[string]string{}, ""
	for i := 0; i+1 < len(args); i += 2 {
		name := strings.TrimPrefix(args[i], "--")
		if name == "context-file" {
			contextFile = args[i+1]
			continue
		}
		flags[name] = args[i+1]
	}
	cfg, err := config.Load(config.Sources{Flags: flags})
	if err != nil {
		return err
	}
	n, err := node.Start(ctx, node.Options{Config: cfg.Options, Version: "soak", ContextFile: contextFile, Log: log})
	if err != nil {
		return err
	}
	log.Info("serving", "clients", n.ClientAddr(), "http", n.HTTPURL())
	<-ctx.Done()
	return n.Stop(context.Background())
}

func brokerCommand(t *testing.T) func(args ...string) *exec.Cmd {
	binary := os.Getenv("FELIX_SOAK_BROKER")
	self, err := os.Executable()
	require.NoError(t, err)
	return func(args ...string) *exec.Cmd {
		if binary != "" {
			return exec.Command(binary, args...)
		}
		c := exec.Command(self, args...)
		c.Env = append(os.Environ(), asBroker+"=1")
		return c
	}
}

// A few seconds of everything at once, so that the long run works when it is wanted;
// FELIX_SOAK_TIME makes it one, which is judged.
func TestSoak(t *testing.T) {
	o := Options{Time: 6 * time.Second, Dir: t.TempDir(), Broker: brokerCommand(t), SegmentBytes: 64 << 10, RetentionBytes: 128 << 10, Guests: 10, StructureOnly: true}
	out := t.TempDir()
	if text := os.Getenv("FELIX_SOAK_TIME"); text != "" {
		var err error
		o.Time, err = time.ParseDuration(text)
		require.NoError(t, err)
		o.SegmentBytes, o.RetentionBytes, o.Guests, o.StructureOnly = 4<<20, 32<<20, tableFull, false
		o.Progress = func(s Second) {
			if s.At%60 == 59 {
				t.Logf("%d s: %.0f MiB, %.0f goroutines, %.0f descriptors", s.At+1, s.Resident/(1<<20), s.Goroutines, s.Descriptors)
			}
		}
	}
	if dir := os.Getenv("FELIX_SOAK_OUT"); dir != "" {
		require.NoError(t, os.MkdirAll(dir, 0o755))
		out = dir
		// Beside the report, on the disk that is asked about: a folder for temporary files
		// may be memory.
		var err error
		o.Dir, err = os.MkdirTemp(dir, "data-")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(o.Dir)) })
	}
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.NoError(t, r.Write(out))
	t.Logf("\n%s", r)

	var all Second
	for _, s := range r.Seconds {
		all.Published += s.Published
		all.Replayed += s.Replayed
		all.CacheOperations += s.CacheOperations
		all.Settled += s.Settled
		all.Dials += s.Dials
		all.Rolls += s.Rolls
		all.Trims += s.Trims
		all.Compactions += s.Compactions
		all.SleepLate = max(all.SleepLate, s.SleepLate)
		all.FlushTook = max(all.FlushTook, s.FlushTook)
		all.Resident += s.Resident
		all.Goroutines += s.Goroutines
		all.Descriptors += s.Descriptors
	}
	for what, v := range map[string]float64{
		"published": float64(all.Published), "replayed": float64(all.Replayed), "cache operations": float64(all.CacheOperations),
		"settled": float64(all.Settled), "dials": float64(all.Dials), "rolls": float64(all.Rolls), "trims": float64(all.Trims),
		"sleeps": all.SleepLate, "flushes": all.FlushTook, "memory": all.Resident, "goroutines": all.Goroutines, "descriptors": all.Descriptors,
	} {
		require.Positive(t, v, what)
	}
	raw, err := os.ReadFile(filepath.Join(out, "soak.json"))
	require.NoError(t, err)
	var back Report
	require.NoError(t, json.Unmarshal(raw, &back))
	require.Equal(t, r.Seconds, back.Seconds)
	f, err := os.Open(filepath.Join(out, "soak.png"))
	require.NoError(t, err)
	defer f.Close()
	picture, err := png.Decode(f)
	require.NoError(t, err)
	require.Greater(t, picture.Bounds().Dx(), 1000)
	require.NoError(t, r.Err())
}

func TestUsageOfOthers(t *testing.T) {
	before := &usage{all: 100, idle: 50, ours: 10}
	require.Zero(t, before.others(nil))
	require.InDelta(t, 0.25, (&usage{all: 104, idle: 51, ours: 12}).others(before), 1e-9, "busy 3 of 4, 2 of them ours")
	require.Zero(t, (&usage{all: 104, idle: 54, ours: 12}).others(before), "clocks of different grain")
	now, err := usageNow(0)
	require.NoError(t, err)
	for now.ours == 0 { // the clock's grain is coarse, and this is work too
		now, err = usageNow(0)
		require.NoError(t, err)
	}
	require.Greater(t, now.all, now.idle)
}

// steady is a run in which nothing happens.
func steady(seconds int) *Report {
	r := &Report{}
	for i := range seconds {
		r.Seconds = append(r.Seconds, Second{At: i, Published: 1000, P50: 1, P99: 2, P999: 4, Worst: 5, Resident: 100 << 20, Goroutines: 50, Descriptors: 30, SleepLate: 0.1, FlushTook: 1})
	}
	return r
}

func TestVerdict(t *testing.T) {
	r := steady(120)
	r.Judge()
	require.NoError(t, r.Err())
	require.Equal(t, 4.0, r.Baseline)
	require.Empty(t, r.StandOut)

	// What rises in the first half only is what a broker fills once.
	for i := range 60 {
		r.Seconds[i].Resident /= 3
	}
	r.Judge()
	require.NoError(t, r.Err())
	for what, rise := range map[string]func(s *Second, f float64){
		"resident memory": func(s *Second, f float64) { s.Resident *= f },
		"goroutines":      func(s *Second, f float64) { s.Goroutines *= f },
		"descriptors":     func(s *Second, f float64) { s.Descriptors *= f },
	} {
		r := steady(120)
		for i := range r.Seconds {
			rise(&r.Seconds[i], 1+0.002*float64(i))
		}
		r.Judge()
		require.ErrorContains(t, r.Err(), what)
		for i := range r.Seconds {
			r.Seconds[i].Resident, r.Seconds[i].Goroutines, r.Seconds[i].Descriptors = 100, 50, 30
		}
		r.Seconds[115].Resident *= 10 // one peak is no drift
		r.Judge()
		require.NoError(t, r.Err())
	}

	r = steady(120)
	r.Seconds[10].P999, r.Seconds[10].Rolls = 19.9, 1
	r.Seconds[20].P999, r.Seconds[20].Trims = 21, 1
	r.Seconds[30].P999, r.Seconds[31].SleepLate = 50, 45
	r.Seconds[40].mark(compaction)
	r.Judge()
	require.Equal(t, []StandOut{{At: 20, P999: 21, Times: 5.25, Marked: true, Stall: 1}, {At: 30, P999: 50, Times: 12.5, Stall: 45}}, r.StandOut)
	require.False(t, r.StandOut[0].OfMachine())
	require.True(t, r.StandOut[1].OfMachine())
	r.StandOut[0].Others = 0.6
	require.True(t, r.StandOut[0].OfMachine())
	require.Equal(t, 3, r.Marked)
	require.Contains(t, r.String(), "seconds with a p99.9 above 5 times that: 2, of them 1 marked, 2 in which the machine itself stood still")
}

// A second that stands out fails the run and is named, unless the machine itself stood
// still or was at work for others.
func TestASecondThatStandsOutFails(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(r *Report)
		failed []string // what the error says; none: the run passes
	}{
		"just not five times": {change: func(r *Report) { r.Seconds[30].P999 = 20 }},
		"without a mark":      {change: func(r *Report) { r.Seconds[30].P999 = 20.1 }, failed: []string{"of 1 seconds is above 5 times the 4.00 ms", "second 30: 20.1 ms, 5.0 times; marked: false"}},
		"of a roll":           {change: func(r *Report) { r.Seconds[30].P999, r.Seconds[30].Rolls = 30, 1 }, failed: []string{"second 30: 30.0 ms, 7.5 times; marked: true"}},
		"of a compaction":     {change: func(r *Report) { r.Seconds[30].P999, r.Seconds[30].Compacting = 30, true }, failed: []string{"second 30"}},
		"two, the worst first": {change: func(r *Report) { r.Seconds[30].P999, r.Seconds[70].P999 = 30, 40 },
			failed: []string{"of 2 seconds", "second 70: 40.0 ms, 10.0 times; marked: false; machine stall 1.0 ms, 0 % others'; second 30"}},
		"the machine's sleep was late":         {change: func(r *Report) { r.Seconds[30].P999, r.Seconds[30].SleepLate = 30, 15 }},
		"the machine's flush the second after": {change: func(r *Report) { r.Seconds[30].P999, r.Seconds[31].FlushTook = 30, 15 }},
		"the machine stood still for less":     {change: func(r *Report) { r.Seconds[30].P999, r.Seconds[30].SleepLate = 30, 14.9 }, failed: []string{"second 30"}},
		"a stall of two seconds before":        {change: func(r *Report) { r.Seconds[30].P999, r.Seconds[28].SleepLate = 30, 29 }, failed: []string{"second 30"}},
		"half the machine was others'":         {change: func(r *Report) { r.Seconds[30].P999, r.Seconds[30].Others = 30, 0.5 }},
		"one of the machine, one of the broker": {change: func(r *Report) {
			r.Seconds[30].P999, r.Seconds[30].SleepLate, r.Seconds[70].P999 = 90, 80, 30
		}, failed: []string{"of 1 seconds", "second 70"}},
		"and what rises is said as well": {change: func(r *Report) {
			r.Seconds[30].P999 = 30
			for i := range r.Seconds {
				r.Seconds[i].Goroutines *= 1 + 0.01*float64(i)
			}
		}, failed: []string{"goroutines", "second 30"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := steady(120)
			tc.change(r)
			r.Judge()
			if tc.failed == nil {
				require.NoError(t, r.Err())
			}
			for _, want := range tc.failed {
				require.ErrorContains(t, r.Err(), want)
			}
			r.StructureOnly = true
			require.NoError(t, r.Err(), "looked at for its structure alone")
			require.Contains(t, r.String(), "no verdict")
		})
	}
}
