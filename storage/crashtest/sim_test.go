package crashtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

const logDir = "/data/shard"

// outcomeUnknown says whether an answer leaves open what became of a batch.
func outcomeUnknown(err error) bool { return errors.Is(err, storage.ErrUnknownOutcome) }

var errRefused = errors.New("refused by the owner")

// faults is what a life of the disk may do wrong beyond losing power.
type faults struct {
	flushFails bool // flushes fail, with and without dropping what was dirty
	writes     bool // writes fail, in part or whole
	space      bool // the disk runs full
	dirs       bool // directory flushes, renames, creates and removes fail
	lies       bool // flushes report success and do nothing
}

// config is what a seed's runs have in common.
type config struct {
	opts    storage.Options
	maxOpen int // of a Disk of its own; 0: the log makes its own
	faults  faults
}

// sim is one run: a disk, a log on it in Manual mode, and the model of it.
type sim struct {
	r      *rand.Rand
	cfg    config
	disk   *disk.Strict
	faulty *disk.Faulty
	log    *storage.Log
	model  *model
	clock  storage.Micros
	side   []string // contents a side file may have, the last one asked for at the end
	story  []string
	err    error // the first finding

	cuts       []storage.CutEvent
	stableNext storage.Offset
	reopened   bool
	telling    bool // a batch has just been told that it is not written
	lied       []*disk.Added
	dropped    []*disk.Added
	uncut      []*disk.Added

	// What the disk has done that weakens what may be asked of a recovery.
	hasLied    bool // since the last power cut
	hasDropped bool // since the last successful open
	hasTorn    bool // since then: a write failed half-way, and so did the cut

	// Opens do not tell the log that the machine was started anew, as a program does
	// that has no note of it.
	library bool

	stats stats
}

// stats counts what runs came across, so that a test can see that it met it.
type stats struct {
	opens, refused, cuts, lost, acked, unknown, never, poisoned, reopened, rolls, interrupted int
}

func (s *stats) add(o stats) {
	s.opens += o.opens
	s.refused += o.refused
	s.cuts += o.cuts
	s.lost += o.lost
	s.acked += o.acked
	s.unknown += o.unknown
	s.never += o.never
	s.poisoned += o.poisoned
	s.reopened += o.reopened
	s.rolls += o.rolls
	s.interrupted += o.interrupted
}

// stop ends a run without a finding: the disk is in a state of which nothing is
// asked.
var stop = errors.New("nothing more to be asked of this disk")

func newSim(seed uint64, cfg config) *sim {
	r := rand.New(rand.NewPCG(seed, 0xc0ffee))
	s := &sim{r: r, cfg: cfg, model: newModel(), clock: 1_000_000}
	limit := 0
	if cfg.maxOpen > 0 {
		limit = cfg.maxOpen + 6 // side files and those in use come on top
	}
	s.use(disk.NewStrict(r.Uint64(), disk.Options{MaxOpen: limit}))
	return s
}

// use takes a life of a disk into use.
func (s *sim) use(d *disk.Strict) {
	s.disk, s.faulty = d, disk.NewFaulty(d)
	s.lied, s.dropped, s.uncut, s.cuts = nil, nil, nil, nil
}

func (s *sim) note(format string, args ...any) {
	s.story = append(s.story, fmt.Sprintf("%4d  %s", s.disk.Ops(), fmt.Sprintf(format, args...)))
}

// finding keeps the first one.
func (s *sim) finding(err error) {
	if err != nil && s.err == nil {
		s.err = err
		s.note("FINDING: %v", err)
	}
}

// guard turns a panic into a finding.
func (s *sim) guard(do func()) {
	defer func() {
		if p := recover(); p != nil {
			s.finding(fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
	}()
	do()
}

func (s *sim) options(restarted bool) storage.Options {
	o := s.cfg.opts
	o.FS = s.faulty
	if s.cfg.maxOpen > 0 {
		d, err := storage.NewDisk(storage.DiskOptions{FS: s.faulty, Dir: "/", MaxOpenFiles: s.cfg.maxOpen})
		if err != nil {
			s.finding(err)
		}
		o.Disk = d
	}
	o.Shard = "shard"
	o.Manual = true
	o.Restarted = restarted
	o.Clock = func() storage.Micros { return s.clock }
	o.Hooks = storage.Hooks{
		Admit: func(b *storage.Batch, _ storage.Offset) error {
			if e, ok := b.User.(*entry); ok && e.number%19 == 7 {
				return errRefused
			}
			return nil
		},
		Stable: func(g *storage.Group) {
			if g.First != s.stableNext {
				s.finding(fmt.Errorf("stable: group [%d, %d) after %d", g.First, g.Next, s.stableNext))
			}
			s.stableNext = g.Next
		},
		Reopened: func(_, next storage.Offset) error {
			s.reopened, s.stableNext = true, next
			return nil
		},
	}
	o.Events = storage.Events{
		OnCut:    func(_ string, c storage.CutEvent) { s.cuts = append(s.cuts, c) },
		OnPoison: func(string, *storage.PoisonedError) { s.stats.poisoned++ },
		OnRoll:   func(string, storage.Descriptor, storage.Descriptor) { s.stats.rolls++ },
	}
	return o
}

// open opens the log on the disk as it is and holds it against the model. power says
// whether it was lost before.
func (s *sim) open(power bool) error {
	floor, name := s.model.killFloor, "kill"
	if power {
		floor, name = s.model.cutFloor, "power cut"
	}
	if s.hasDropped {
		floor = min(floor, s.model.cutFloor)
	}
	mayRefuse := power && (s.hasLied || s.library) || (s.hasDropped || s.hasTorn) && !power
	before := s.disk.Files()
	s.cuts = nil
	log, err := storage.Open(context.Background(), logDir, s.options(power && !s.library))
	if s.disk.Off() {
		return disk.ErrPowerOff
	}
	if err != nil {
		if damaged, ok := errors.AsType[*storage.DamagedError](err); ok && mayRefuse {
			s.stats.refused++
			s.note("refused, as it may be: %v", damaged)
			if after := s.disk.Files(); !equalFiles(before, after) {
				return fmt.Errorf("a refused open changed %s", difference(before, after))
			}
			return stop
		}
		return fmt.Errorf("open after %s: %w", name, err)
	}
	s.log = log
	s.stats.opens++
	records, err := s.readAll(storage.LimitStable)
	if damaged, ok := errors.AsType[*storage.DamagedError](err); ok && s.hasLied && power {
		s.note("a sealed segment is damaged, as it may be: %v", damaged)
		return stop
	}
	if err != nil {
		return fmt.Errorf("after %s: %w", name, err)
	}
	head, next := log.Head(), log.Next()
	s.note("opened after %s: [%d, %d), floor %d, %d cuts", name, head, next, floor, len(s.cuts))
	if log.Stable() != next || log.Durable() != next || log.Written() != next {
		return fmt.Errorf("after %s: next %d, written %d, durable %d, stable %d: must be one", name, next, log.Written(), log.Durable(), log.Stable())
	}
	if s.hasLied && power {
		// Anything may be missing, but what is there is what was written.
		for _, h := range records {
			if _, err := s.model.identify(h); err != nil {
				return fmt.Errorf("after %s: %w", name, err)
			}
		}
	} else if err := s.model.check(head, next, records, floor); err != nil {
		return fmt.Errorf("after %s: %w", name, err)
	}
	// The copies are on the device before the cut is.
	if len(s.cuts) > 0 && !s.hasLied {
		for _, after := range []*disk.Strict{s.disk, s.disk.Fork(s.r.Uint64()).Crash()} {
			if err := s.checkCuts(before, after.Files()); err != nil {
				return fmt.Errorf("after %s: %w", name, err)
			}
		}
	}
	s.stats.cuts += len(s.cuts)
	if err := s.checkSide(s.hasLied && power); err != nil {
		return fmt.Errorf("after %s: %w", name, err)
	}
	if s.model.killFloor > next {
		s.stats.lost++
	}
	// Under on_commit, or where nothing but the process ended, nothing acknowledged is
	// lost, and recovery must not say it may be.
	if report := log.Recovery(); report.MayHaveLost && !s.hasLied && (s.cfg.opts.Fsync == storage.OnCommit || !power && !s.hasDropped) {
		return fmt.Errorf("after %s: a false alarm: %s", name, report.Lost)
	}
	if log.Recovery().MarkMissing && !s.hasLied {
		return fmt.Errorf("after %s: a log of several segments has no durable mark", name)
	}
	if power {
		s.hasLied = false
	}
	s.hasDropped, s.hasTorn = false, false
	s.stableNext = next
	return s.model.recovered(head, next, records, false)
}

// checkCuts wants the bytes that were cut under lost/.
func (s *sim) checkCuts(before, after map[string]string) error {
	for _, c := range s.cuts {
		content := before[strings.TrimPrefix(logDir, "/")+"/"+segment.SegmentName(c.Segment)]
		if c.From < 0 || c.From > c.To || c.To > int64(len(content)) {
			return fmt.Errorf("cut %+v of a segment of %d bytes", c, len(content))
		}
		cut := content[c.From:c.To]
		if strings.Trim(cut, "\x00") == "" {
			continue
		}
		saved := false
		for name, content := range after {
			saved = saved || strings.Contains(name, "/"+segment.LostDir+"/") && strings.Contains(content, strings.TrimRight(cut, "\x00"))
		}
		if !saved {
			return fmt.Errorf("cut %+v: its bytes are not under %s/", c, segment.LostDir)
		}
	}
	return nil
}

// readAll reads the log from its oldest record to its limit, in pages of random
// sizes.
func (s *sim) readAll(limit storage.ReadLimit) ([]held, error) {
	var records []held
	end := s.log.Stable()
	if limit == storage.LimitWritten {
		end = s.log.Written()
	}
	var page storage.Page
	for at := s.log.Head(); at < end; {
		err := s.log.Read(context.Background(), &page, storage.ReadRange{
			From: at, MaxBytes: 1 + s.r.IntN(2000), MaxRecords: 1 + s.r.IntN(20), Limit: limit,
		})
		if err != nil {
			return nil, fmt.Errorf("read at %d: %w", at, err)
		}
		if len(page.Records) == 0 || page.Next != at+storage.Offset(len(page.Records)) {
			return nil, fmt.Errorf("read at %d below %d: %d records, next %d", at, end, len(page.Records), page.Next)
		}
		for _, r := range page.Records {
			records = append(records, held{
				offset: r.Offset, timestamp: r.Timestamp, kind: r.Kind, payload: slices.Clone(r.Payload),
				publisher: string(r.Publisher), tag: r.Producer,
			})
		}
		at = page.Next
	}
	// And some of them by themselves: what leads to a record in the middle is the index.
	for range min(4, len(records)) {
		want := records[s.r.IntN(len(records))]
		if err := s.log.Read(context.Background(), &page, storage.ReadRange{From: want.offset, MaxRecords: 1, Limit: limit}); err != nil {
			return nil, fmt.Errorf("read %d alone: %w", want.offset, err)
		}
		if len(page.Records) != 1 || page.Records[0].Offset != want.offset || string(page.Records[0].Payload) != string(want.payload) {
			return nil, fmt.Errorf("read %d alone: %d records, not the one that reading on found", want.offset, len(page.Records))
		}
	}
	return records, nil
}

// watch looks at the positions after something happened.
func (s *sim) watch() {
	if s.log == nil || s.err != nil {
		return
	}
	l := s.log
	head, stable, durable, written, next := l.Head(), l.Stable(), l.Durable(), l.Written(), l.Next()
	if stable > written || durable > written || written > next || head > next {
		s.finding(fmt.Errorf("positions: head %d stable %d durable %d written %d next %d", head, stable, durable, written, next))
	}
	if s.cfg.opts.Fsync == storage.OnCommit && stable > durable {
		s.finding(fmt.Errorf("positions: stable %d beyond durable %d under on_commit", stable, durable))
	}
	s.model.raise(stable, durable)
	for _, a := range s.lied {
		s.hasLied = s.hasLied || a.Hits() > 0
	}
	for _, a := range s.dropped {
		s.hasDropped = s.hasDropped || a.Hits() > 0
	}
	for _, a := range s.uncut {
		s.hasTorn = s.hasTorn || a.Hits() > 0
	}
}

// restart ends the life of the disk, by power cut or kill, and opens the log on what
// is left. often says how many of the ways to interrupt the recovery are tried.
func (s *sim) restart(power bool, thorough bool) error {
	s.log = nil
	var next *disk.Strict
	if power {
		next = s.disk.Crash()
	} else {
		next = s.disk.Kill()
	}
	next.SetCapacity(0)
	s.use(next)
	s.note("---- %s", map[bool]string{true: "power cut", false: "kill"}[power])
	if thorough || s.r.IntN(4) == 0 {
		ops, err := s.openTwice(power)
		if err != nil {
			return err
		}
		if thorough {
			for n := range ops {
				if err := s.interrupt(power, n); err != nil {
					return err
				}
			}
		} else if ops > 0 {
			if err := s.interrupt(power, s.r.IntN(ops)); err != nil {
				return err
			}
		}
		if err := s.openFailing(power); err != nil {
			return err
		}
	}
	if err := s.open(power); err != nil {
		return err
	}
	// What an open found it has made sure of: a power cut right after it takes nothing
	// away and brings nothing back.
	return s.crashForks(2)
}

// aside is a run on a fork of the disk with the same model.
func (s *sim) aside() *sim {
	m := *s.model
	m.at = make(map[storage.Offset]ref, len(s.model.at))
	for o, r := range s.model.at {
		m.at[o] = r
	}
	m.entries = make([]*entry, len(s.model.entries))
	for i, e := range s.model.entries {
		c := *e
		m.entries[i] = &c
	}
	f := &sim{
		r: rand.New(rand.NewPCG(s.r.Uint64(), 1)), cfg: s.cfg, model: &m, clock: s.clock, side: slices.Clone(s.side),
		hasLied: s.hasLied, hasDropped: s.hasDropped, hasTorn: s.hasTorn, library: s.library, story: slices.Clone(s.story),
	}
	f.use(s.disk.Fork(s.r.Uint64()))
	return f
}

// take brings what a run aside found back.
func (s *sim) take(f *sim, err error, where string) error {
	s.finding(f.err)
	s.stats.add(f.stats)
	if err == nil || err == stop {
		return nil
	}
	s.story = f.story
	return fmt.Errorf("%s: %w", where, err)
}

// openTwice opens the log twice on a fork, the second time after a kill, and wants
// the second to change nothing. It returns how many operations the first took.
func (s *sim) openTwice(power bool) (int, error) {
	f := s.aside()
	err := f.open(power)
	ops := f.disk.Ops()
	if err != nil {
		return ops, s.take(f, err, "opened aside")
	}
	f.use(f.disk.Kill())
	before := f.disk.Files()
	if err := f.open(false); err != nil {
		return ops, s.take(f, err, "opened a second time")
	}
	if after := f.disk.Files(); !equalFiles(before, after) {
		return ops, s.take(f, fmt.Errorf("the second open changed %s", difference(before, after)), "opened a second time")
	}
	if len(f.cuts) > 0 {
		return ops, s.take(f, fmt.Errorf("the second open cut %+v", f.cuts), "opened a second time")
	}
	return ops, s.take(f, nil, "")
}

// openFailing opens on a fork while some operation fails, and then again without: the
// first may fail with what the disk said, the second must do what it would have done.
func (s *sim) openFailing(power bool) error {
	f := s.aside()
	ops := []disk.Op{
		disk.OpRead, disk.OpOpen, disk.OpReadDir, disk.OpWrite, disk.OpFlush, disk.OpSyncDir, disk.OpTruncate,
		disk.OpCreate, disk.OpRename, disk.OpRemove, disk.OpSize, disk.OpClose,
	}
	op, nth := ops[f.r.IntN(len(ops))], 1+f.r.IntN(12)
	rule := f.faulty.Add(disk.Rule{Op: op, Nth: nth, Action: disk.Fail(errDisk)})
	err := f.open(power)
	where := fmt.Sprintf("opened while %v number %d fails", op, nth)
	f.note("%s: hits %d: %v", where, rule.Hits(), err)
	if err == nil || !errors.Is(err, errDisk) {
		return s.take(f, err, where)
	}
	f.faulty.Clear()
	if f.r.IntN(2) == 0 {
		f.use(f.disk.Crash())
		f.model.killFloor = f.model.cutFloor
		power = true
	}
	return s.take(f, f.open(power), where+", and again")
}

// interrupt stops an open on a fork after n operations, by power cut and by kill, and
// wants the next one to finish it.
func (s *sim) interrupt(power bool, n int) error {
	f := s.aside()
	f.disk.StopAfter(n)
	err := f.open(power)
	if !errors.Is(err, disk.ErrPowerOff) {
		return s.take(f, err, "opened aside") // it needed fewer operations this time
	}
	s.stats.interrupted++
	died := f.disk
	for _, how := range []bool{true, false} {
		g := f.aside()
		g.use(died.Fork(f.r.Uint64()))
		if how {
			g.use(g.disk.Crash())
		} else {
			g.use(g.disk.Kill())
		}
		g.note("---- opening was interrupted after %d operations: power cut %v", n, how)
		if how && !power {
			// What only the cache held is gone.
			g.model.killFloor = g.model.cutFloor
		}
		if power && !how {
			// The machine has been started anew since; the process is told so until
			// an open succeeds.
			err = g.openRestarted()
		} else {
			err = g.open(how)
		}
		if err := s.take(g, err, "opened after an interrupted open"); err != nil {
			return err
		}
	}
	return nil
}

// openRestarted opens after a kill that came before the first open after a power cut
// had ended.
func (s *sim) openRestarted() error { return s.open(true) }

func equalFiles(a, b map[string]string) bool { return difference(a, b) == "" }

// difference names what differs between two states of a disk.
func difference(a, b map[string]string) string {
	var list []string
	for name := range a {
		if _, ok := b[name]; !ok {
			list = append(list, name+" (gone)")
		} else if a[name] != b[name] {
			list = append(list, fmt.Sprintf("%s (%d bytes, were %d)", name, len(b[name]), len(a[name])))
		}
	}
	for name := range b {
		if _, ok := a[name]; !ok {
			list = append(list, name+" (new)")
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

var _ vfs.FS = (*disk.Faulty)(nil)
