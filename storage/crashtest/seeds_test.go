package crashtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/internal/testkit/leak"
	"github.com/felixlog/felix/storage"
)

func TestMain(m *testing.M) {
	if child := os.Getenv(childEnv); child != "" {
		os.Exit(runChild(child))
	}
	leak.Main(m)
}

// setting reads a number from the environment.
func setting(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%s: %v", name, text, err)
	}
	return n
}

// configFor draws what a seed runs with. Modes and faults take turns, so that any
// run of consecutive seeds meets all.
func configFor(seed uint64) config {
	r := rand.New(rand.NewPCG(seed, 0xcf9))
	pick := func(list ...int64) int64 { return list[r.IntN(len(list))] }
	c := config{opts: storage.Options{
		Fsync:           []storage.FsyncMode{storage.OnCommit, storage.Periodic, storage.None}[seed%3],
		SegmentBytes:    pick(1024, 1024, 2048, 4096, 65536),
		IndexSpacing:    pick(28, 128, 512, 4096),
		Preallocate:     r.IntN(2) == 0,
		ZeroAhead:       r.IntN(4) == 0,
		VerifyAllOnOpen: r.IntN(2) == 0,
	}}
	if r.IntN(4) == 0 {
		c.maxOpen = 8 // the least
	}
	switch seed / 3 % 7 {
	case 1:
		c.faults.flushFails = true
	case 2:
		c.faults.writes = true
	case 3:
		c.faults.space = true
	case 4:
		c.faults.dirs = true
	case 5:
		c.faults.lies = true
	}
	return c
}

func (c config) String() string {
	o := c.opts
	return fmt.Sprintf("%v, segments of %d, index every %d, preallocate %v, zero ahead %v, verify all %v, %d open files, %+v",
		o.Fsync, o.SegmentBytes, o.IndexSpacing, o.Preallocate, o.ZeroAhead, o.VerifyAllOnOpen, c.maxOpen, c.faults)
}

// long runs the long script of a seed: several lives with a power cut, a kill or a
// close at the end of each.
func long(seed uint64) (s *sim, err error) {
	s = newSim(seed, configFor(seed))
	s.note("seed %d: %v", seed, s.cfg)
	s.guard(func() { err = s.lives(2+s.r.IntN(3), 60) })
	if errors.Is(err, stop) {
		err = nil
	}
	if s.err != nil {
		err = s.err
	}
	return s, err
}

func (s *sim) lives(n, steps int) error {
	if err := s.open(false); err != nil {
		return err
	}
	for range n {
		s.arm()
		if s.r.IntN(3) > 0 {
			s.disk.StopAfter(s.disk.Ops() + s.r.IntN(2*steps))
		}
		if err := s.life(1 + s.r.IntN(steps)); err != nil {
			return err
		}
		if err := s.restart(s.r.IntN(3) > 0, false); err != nil {
			return err
		}
	}
	return nil
}

// short runs the short script of a seed with the power going off after n operations,
// or with n negative never, and returns how many operations it took.
func short(seed uint64, n int, power bool) (s *sim, ops int, err error) {
	cfg := configFor(seed)
	cfg.faults = faults{}
	s = newSim(seed, cfg)
	s.note("short seed %d, off after %d, power %v: %v", seed, n, power, s.cfg)
	s.disk.StopAfter(n)
	s.guard(func() {
		err = s.open(false)
		if err == nil {
			err = s.life(14)
		}
		ops = s.disk.Ops()
		if err == nil || errors.Is(err, disk.ErrPowerOff) {
			err = s.restart(power, n%5 == 0)
		}
		if err == nil {
			err = s.life(3)
		}
		if errors.Is(err, disk.ErrPowerOff) {
			err = nil
		}
	})
	if s.err != nil {
		err = s.err
	}
	return s, ops, err
}

// report prints a failing run: what to type to see it again, and its story.
func report(t *testing.T, s *sim, err error, replay string) {
	t.Helper()
	story := s.story
	if len(story) > 80 {
		story = story[len(story)-80:]
	}
	t.Errorf("%v\nreplay: %s\n%s\ntrace hash %016x", err, replay, strings.Join(story, "\n"), s.disk.TraceHash())
	if testing.Verbose() {
		for _, e := range s.disk.Trace() {
			t.Log(e)
		}
	}
}

// seeds runs do for the seeds of a range on all cores until it fails for one, and
// sums up what the runs met.
func seeds(from, count uint64, do func(seed uint64) (stats, bool)) stats {
	var sum stats
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := atomic.Uint64{}
	var failed atomic.Bool
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for !failed.Load() {
				n := next.Add(1) - 1
				if n >= count {
					return
				}
				found, ok := do(from + n)
				mu.Lock()
				sum.add(found)
				mu.Unlock()
				if !ok {
					failed.Store(true)
				}
			}
		})
	}
	wg.Wait()
	return sum
}

// TestSeeds runs long scripts: FELIX_CRASH_SEEDS of them from FELIX_CRASH_FROM on, or
// the one of FELIX_CRASH_SEED.
func TestSeeds(t *testing.T) {
	from, count := setting(t, "FELIX_CRASH_FROM", 0), setting(t, "FELIX_CRASH_SEEDS", 300)
	if one := setting(t, "FELIX_CRASH_SEED", ^uint64(0)); one != ^uint64(0) {
		from, count = one, 1
	}
	met := seeds(from, count, func(seed uint64) (stats, bool) {
		s, err := long(seed)
		if err != nil {
			report(t, s, err, fmt.Sprintf("FELIX_CRASH_SEED=%d go test ./storage/crashtest -run 'TestSeeds$' -v", seed))
		} else if count == 1 && testing.Verbose() {
			t.Log(strings.Join(s.story, "\n"))
		}
		return s.stats, err == nil
	})
	t.Logf("%+v", met)
	if count < 200 || t.Failed() {
		return
	}
	// A run that met nothing shows nothing.
	for name, n := range map[string]int{
		"cuts": met.cuts, "lost": met.lost, "acked": met.acked, "unknown": met.unknown, "never": met.never,
		"poisoned": met.poisoned, "reopened": met.reopened, "rolls": met.rolls, "interrupted": met.interrupted,
	} {
		if n == 0 {
			t.Errorf("%d seeds and no %s", count, name)
		}
	}
}

// TestEveryOperation cuts the power, and in another run kills the process, at every
// operation of short scripts, and at every operation of some of the recoveries.
func TestEveryOperation(t *testing.T) {
	from, count := uint64(0), setting(t, "FELIX_CRASH_SEEDS", 300)/40+1
	if one := setting(t, "FELIX_CRASH_SEED", ^uint64(0)); one != ^uint64(0) {
		from, count = one, 1
	}
	seeds(from, count, func(seed uint64) (stats, bool) {
		var met stats
		replay := fmt.Sprintf("FELIX_CRASH_SEED=%d go test ./storage/crashtest -run 'TestEveryOperation$' -v", seed)
		s, ops, err := short(seed, -1, true)
		if err != nil {
			report(t, s, err, replay)
			return met, false
		}
		for n := range ops {
			for _, power := range []bool{true, false} {
				s, _, err := short(seed, n, power)
				met.add(s.stats)
				if err != nil && !errors.Is(err, stop) {
					report(t, s, err, replay)
					return met, false
				}
			}
		}
		return met, true
	})
}

// The same seed tells the same story, which is what makes a replay one.
func TestSameSeedSameStory(t *testing.T) {
	for seed := range uint64(21) {
		a, errA := long(seed)
		b, errB := long(seed)
		if errA != nil || errB != nil {
			continue // TestSeeds has it
		}
		if a.disk.TraceHash() != b.disk.TraceHash() {
			for i := range min(len(a.story), len(b.story)) {
				if a.story[i] != b.story[i] {
					t.Fatalf("seed %d differs at\n%s\n%s", seed, a.story[i], b.story[i])
				}
			}
			t.Fatalf("seed %d: same story, other operations", seed)
		}
	}
}
