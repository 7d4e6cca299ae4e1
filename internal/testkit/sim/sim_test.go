package sim

import (
	"flag"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/felixlog/felix/internal/replica"
	"github.com/felixlog/felix/internal/testkit/leak"
)

var (
	seedFlag    = flag.Uint64("sim.seed", 0, "run this one seed, with its trace on standard error")
	seedsFlag   = flag.Int("sim.seeds", 0, "how many seeds to run (default FELIX_SEEDS, else 100, 20 with -short)")
	fromFlag    = flag.Uint64("sim.from", 1, "the first seed")
	keepFlag    = flag.String("sim.keep", "", "with sim.seed: the indices of the faults to keep, separated by commas")
	offFlag     = flag.String("sim.off", "", "clauses to switch off, separated by commas")
	profileFlag = flag.String("sim.profile", "", "a bias of what seeds draw: the names of Profiles")
	memoryFlag  = flag.Bool("sim.memory", false, "keep logs in memory instead of on the strict disk")
	quietFlag   = flag.Bool("sim.quiet", false, "with sim.seed: no trace")
)

func TestMain(m *testing.M) {
	// Runs are short and leave only garbage: half of their time would go into collecting it.
	debug.SetGCPercent(400)
	leak.Main(m)
}

func options(t *testing.T) Options {
	o := Options{Memory: *memoryFlag, Profile: *profileFlag}
	for _, name := range strings.FieldsFunc(*offFlag, func(r rune) bool { return r == ',' }) {
		rule, ok := replica.ParseRule(name)
		if !ok {
			t.Fatalf("unknown clause %q", name)
		}
		o.Rules = o.Rules.Without(rule)
	}
	return o
}

// TestSeed runs the seed named by -sim.seed.
func TestSeed(t *testing.T) {
	if *seedFlag == 0 {
		return // nothing was asked for
	}
	o := options(t)
	o.Seed = *seedFlag
	if *keepFlag != "" {
		o.Keep = []int{}
		for _, s := range strings.FieldsFunc(*keepFlag, func(r rune) bool { return r == ',' }) {
			i, err := strconv.Atoi(s)
			if err != nil {
				t.Fatal(err)
			}
			o.Keep = append(o.Keep, i)
		}
	}
	if !*quietFlag {
		o.Trace = os.Stderr
	}
	res := Run(o)
	t.Logf("seed %d: %s\nhash %016x steps %d %+v", res.Seed, res.Shape.String(), res.Hash, res.Steps, res.Stats)
	if res.Violation != nil {
		t.Fatal(res.Violation)
	}
}

// seeds is how many seeds were asked for: -sim.seeds, FELIX_SEEDS, else byDefault.
func seeds(t *testing.T, byDefault int) int {
	if *seedsFlag > 0 {
		return *seedsFlag
	}
	if s := os.Getenv("FELIX_SEEDS"); s != "" {
		v, err := strconv.Atoi(s)
		if err != nil || v < 1 {
			t.Fatalf("FELIX_SEEDS=%q is no number of seeds", s)
		}
		return v
	}
	return byDefault
}

// TestSeeds runs many seeds; none may find a violation.
func TestSeeds(t *testing.T) {
	n := 100
	if testing.Short() {
		n = 20
	}
	n = seeds(t, n)
	var runs []Options
	for i := range uint64(n) {
		o := options(t)
		o.Seed = *fromFlag + i
		runs = append(runs, o)
	}
	runAll(t, runs)
}

// TestProfiles runs every profile with logs in memory: a twentieth of the seeds each. What
// they are biased to is where faults of the protocol were found.
func TestProfiles(t *testing.T) {
	n := max(3, seeds(t, 0)/20)
	var runs []Options
	for _, name := range slices.Sorted(maps.Keys(Profiles)) {
		for i := range uint64(n) {
			o := options(t)
			o.Seed, o.Profile, o.Memory = *fromFlag+i, name, true
			runs = append(runs, o)
		}
	}
	runAll(t, runs)
}

// found are runs that found a fault of the protocol once: what was wrong, and the run as
// it was shrunk. Where the flow of messages has changed since, a run may miss the moment; the
// dialogues of package replica keep to it.
var found = []struct {
	name string
	run  Options
}{
	// A log that began anew was handed records after places it could not say itself, refused
	// them, and got one record further with each opening.
	{"begun anew below the statement, after a kill", Options{Seed: 25, Profile: "chain", Memory: true, Keep: []int{13, 14, 35}}},
	{"begun anew below the statement, after a power cut", Options{Seed: 72, Profile: "chain", Memory: true, Keep: []int{5, 17, 32, 36}}},
	// A candidate whose mark was behind refused what it had compared, and asked for ever.
	{"candidate begun anew above the mark", Options{Seed: 4, Profile: "anew", Memory: true}},
	// A log that began anew at the leader's head and was opened before a record came was told
	// to begin anew, and said that it had, for ever.
	{"begun anew at the head, then opened", Options{Seed: 2, Profile: "anew", Memory: true, Keep: []int{40, 42, 46, 47, 64, 65, 66, 68, 69, 70, 72}}},
	// A leader that cannot name the records before its first statement told a follower which
	// has them to begin anew, and the follower, which holds the head, saw no need.
	{"a place that the leader cannot name", Options{Seed: 196, Profile: "anew", Memory: true, Keep: []int{2, 5, 7, 9, 10, 11, 12, 20, 22, 23, 26, 27, 32, 33, 34, 35, 56, 57, 60, 61, 73}}},
	// A replica that came back from a power cut kept the mark it had stored, and stopped where
	// other records had taken the places of those that a majority lost.
	{"a forgetful replica's mark", Options{Seed: 17, Profile: "leader-none", Memory: true, Keep: []int{2, 3, 8}}},
	// Not the protocol: a replica outside of the set kept what the set lost, and no operator
	// came to set it aside.
	{"what the set lost is kept outside of it", Options{Seed: 300443, Memory: true, Keep: []int{1, 2, 5, 7}}},
	// A batch was lost while the next was read for the follower: all that was shipped after
	// it was refused, and each refusal that came during a read was overlooked.
	{"gap while fetching", Options{Seed: 273, Profile: "anew", Memory: true}},
}

// TestFound runs what once found a fault.
func TestFound(t *testing.T) {
	for _, f := range found {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			if res := Run(f.run); res.Violation != nil {
				t.Errorf("%v\n  replay: %s", res.Violation, ReplayCommand(f.run, f.run.Keep))
			}
		})
	}
}

// runAll runs each, as many at a time as there are processors, until five have failed.
func runAll(t *testing.T, runs []Options) {
	var mu sync.Mutex
	var total Stats
	next, failures := 0, 0
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				stop := i >= len(runs) || failures >= 5
				mu.Unlock()
				if stop {
					return
				}
				o := runs[i]
				res := Run(o)
				var keep []int
				violation := res.Violation
				if violation != nil {
					keep, violation = Shrink(o, 60)
				}
				mu.Lock()
				add(&total, &res.Stats)
				if res.Violation != nil {
					failures++
					t.Errorf("seed %d %s: %v\n  %s\n  with %d of %d faults: %v\n  replay: %s", o.Seed, o.Profile, res.Violation, res.Shape.String(),
						len(keep), len(res.Shape.Faults), violation, ReplayCommand(o, keep))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("%d runs: %+v", len(runs), total)
	judged(t, &total)
}

// unjudgedShare is one in how many histories may be too long to be judged, beside two that
// always may: few seeds have few histories. More of them, and the runs prove too little.
const unjudgedShare = 20

func judged(t *testing.T, s *Stats) {
	t.Helper()
	if s.Unjudged > 2 && s.Unjudged*unjudgedShare > s.Judged+s.Unjudged {
		t.Errorf("%d histories were judged and %d took too long; at most one in %d may", s.Judged, s.Unjudged, unjudgedShare)
	}
}

func add(a, b *Stats) {
	a.Acked += b.Acked
	a.Refused += b.Refused
	a.Unknown += b.Unknown
	a.Reads += b.Reads
	a.Elections += b.Elections
	a.SetChanges += b.SetChanges
	a.Cuts += b.Cuts
	a.Rebases += b.Rebases
	a.Forgetful += b.Forgetful
	a.AllowedLosses += b.AllowedLosses
	a.Halts += b.Halts
	a.Judged += b.Judged
	a.Unjudged += b.Unjudged
}

// TestOneSeedOneTrace runs seeds twice: one seed has one trace hash.
func TestOneSeedOneTrace(t *testing.T) {
	for seed := uint64(1); seed <= 5; seed++ {
		o := options(t)
		o.Seed = seed
		a, b := Run(o), Run(o)
		if a.Hash != b.Hash || a.Steps != b.Steps {
			t.Errorf("seed %d: hash %016x in %d steps, then %016x in %d", seed, a.Hash, a.Steps, b.Hash, b.Steps)
		}
	}
}
