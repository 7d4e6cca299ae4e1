package crashtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

const sideName = segment.ReplicaName

// errDisk is what failing operations fail with.
var errDisk = syscall.EIO

// action is one kind of step of a script and how often it comes.
type action struct {
	weight int
	run    func(s *sim) error
}

var actions = []action{
	{40, (*sim).enqueue},
	{30, (*sim).someSteps},
	{10, (*sim).drain},
	{6, (*sim).readBack},
	{4, (*sim).ship},
	{4, (*sim).passTime},
	{3, (*sim).sync},
	{3, (*sim).seal},
	{3, (*sim).truncate},
	{2, (*sim).trim},
	{2, (*sim).retain},
	{2, (*sim).writeSide},
	{1, (*sim).reset},
	{1, (*sim).closeAndOpen},
}

var actionWeights = func() (sum int) {
	for _, a := range actions {
		sum += a.weight
	}
	return sum
}()

// act does one step of the script. It returns disk.ErrPowerOff once the power is
// gone, whatever the step made of it.
func (s *sim) act() error {
	var err error
	s.guard(func() {
		if s.log.Health().State == storage.StatePoisoned && s.r.IntN(3) == 0 {
			err = s.reopen()
		} else {
			n := s.r.IntN(actionWeights)
			for _, a := range actions {
				if n -= a.weight; n < 0 {
					err = a.run(s)
					break
				}
			}
		}
		s.watch()
		if err == nil && s.reopened && !s.disk.Off() {
			err = s.resume()
		}
		if err == nil && s.err == nil {
			err = s.crashAside()
		}
	})
	if s.err != nil {
		return s.err
	}
	if s.disk.Off() {
		return disk.ErrPowerOff
	}
	return err
}

// crashAside cuts the power on forks of the disk at times, and more often after a
// batch was told that it is not written, while the run itself goes on.
func (s *sim) crashAside() error {
	forks := 0
	switch {
	case s.telling:
		forks = 6
	case s.r.IntN(12) == 0:
		forks = 1
	}
	s.telling = false
	return s.crashForks(forks)
}

// crashForks cuts the power on so many forks of the disk and opens what is left.
func (s *sim) crashForks(n int) error {
	for range n {
		f := s.aside()
		f.use(f.disk.Crash())
		f.disk.SetCapacity(0)
		f.library = s.r.IntN(4) == 0
		if err := s.take(f, f.open(true), "crashed aside"); err != nil {
			return err
		}
	}
	return nil
}

// newEntry draws a batch.
func (s *sim) newEntry() *entry {
	e := &entry{kind: storage.KindPlain, zeros: s.r.IntN(3) == 0}
	if s.r.IntN(15) == 0 {
		e.kind, e.sizes = storage.KindGenerationStart, []int{8}
		return s.model.add(e)
	}
	for range 1 + s.r.IntN(4) {
		size := payloadHead + s.r.IntN(120)
		switch s.r.IntN(12) {
		case 0:
			size = payloadHead
		case 1:
			size += s.r.IntN(1500) // over a segment at times
		}
		e.sizes = append(e.sizes, size)
	}
	s.model.add(e)
	if s.r.IntN(4) == 0 {
		e.tagged = true
		e.tag = storage.ProducerTag{ID: 1 + s.r.Uint64N(3), Sequence: e.number, Len: uint32(len(e.sizes))}
	}
	if s.r.IntN(6) == 0 {
		e.publisher = "who"
	}
	return e
}

func (e *entry) payloads() [][]byte {
	list := make([][]byte, len(e.sizes))
	for i := range list {
		list[i] = e.payload(i)
	}
	return list
}

// hand gives a batch to the log.
func (s *sim) hand(e *entry, b *storage.Batch) error {
	b.User = e
	log := s.log
	b.Done = func(b *storage.Batch) {
		switch {
		case b.Err == nil:
			s.stats.acked++
			if end := b.First + storage.Offset(len(e.sizes)); end > s.stableNext {
				s.finding(fmt.Errorf("batch %d acknowledged up to %d, stable is %d", e.number, end, s.stableNext))
			}
		case outcomeUnknown(b.Err):
			s.stats.unknown++
		default:
			s.stats.never++
			// The moment in which a cut that is not on the device would show.
			s.telling = s.telling || errors.Is(b.Err, storage.ErrNotWritten)
		}
		s.finding(s.model.answered(e, b, s.cfg.opts.Fsync == storage.OnCommit))
	}
	if err := log.Enqueue(b); err != nil {
		e.fate, e.limit = fateNever, 0
		if poisoned, ok := errors.AsType[*storage.PoisonedError](err); ok {
			s.note("batch %d not accepted: %v", e.number, poisoned)
			return nil
		}
		if errors.Is(err, storage.ErrDiskFull) {
			s.note("batch %d not accepted: %v", e.number, err)
			return nil
		}
		return fmt.Errorf("enqueue batch %d: %w", e.number, err)
	}
	return nil
}

func (s *sim) enqueue() error {
	e := s.newEntry()
	s.note("enqueue batch %d: %v %v", e.number, e.kind, e.sizes)
	b := &storage.Batch{Payloads: e.payloads(), Kind: e.kind, Producer: e.tag, HasProducer: e.tagged}
	if e.publisher != "" {
		b.Publisher = []byte(e.publisher)
	}
	if s.r.IntN(8) == 0 {
		b.Expected, b.HasExpected = s.log.Next()+storage.Offset(s.r.IntN(2)), true
	}
	return s.hand(e, b)
}

// ship hands over records as a leader would have encoded them.
func (s *sim) ship() error {
	if err := s.drain(); err != nil || s.disk.Off() {
		return err
	}
	if s.log.Health().State != storage.StateServing {
		return nil
	}
	e := s.newEntry()
	s.note("ship batch %d: %v %v", e.number, e.kind, e.sizes)
	var encoded []byte
	next := s.log.Next()
	stamp := max(s.clock, s.log.LastTimestamp())
	for i := range e.sizes {
		spec := &segment.RecordSpec{Offset: next + storage.Offset(i), Timestamp: stamp, Kind: e.recordKind(i), Payload: e.payload(i)}
		if i == 0 {
			spec.Producer = e.tag
		}
		if e.publisher != "" {
			spec.Publisher = []byte(e.publisher)
		}
		encoded = segment.AppendRecord(encoded, spec)
	}
	return s.hand(e, &storage.Batch{Encoded: encoded, Prev: s.log.LastRecordID()})
}

func (s *sim) someSteps() error {
	n := 1 + s.r.IntN(4)
	s.note("%d steps", n)
	for range n {
		s.log.Step()
		s.watch()
	}
	return nil
}

func (s *sim) drain() error {
	s.note("drain")
	for range 10_000 {
		if !s.log.Step() {
			return nil
		}
		s.watch()
		if s.err != nil || s.disk.Off() {
			return nil
		}
	}
	return errors.New("10,000 steps and no end")
}

func (s *sim) readBack() error {
	if s.model.ceiling != ^storage.Offset(0) {
		return nil // half truncated
	}
	limit := storage.LimitStable
	if s.r.IntN(3) == 0 {
		limit = storage.LimitWritten
	}
	records, err := s.readAll(limit)
	if s.disk.Off() || s.hasDropped || s.hasLied {
		return nil
	}
	if err != nil {
		return err
	}
	s.note("read %d records", len(records))
	if limit == storage.LimitWritten {
		return nil
	}
	if err := s.model.check(s.log.Head(), s.log.Stable(), records, 0); err != nil {
		return fmt.Errorf("reading back: %w", err)
	}
	// What a reader saw keeps its offset.
	for _, h := range records {
		r, err := s.model.identify(h)
		if err != nil {
			return err
		}
		if err := s.model.place(h.offset, r); err != nil {
			return err
		}
	}
	return nil
}

func (s *sim) passTime() error {
	d := storage.Micros(s.r.IntN(2_000_000))
	if s.r.IntN(5) == 0 {
		s.clock -= min(s.clock, d)
	} else {
		s.clock += d
	}
	return nil
}

// expected sorts an error of a call: with the power on and no fault at work, only
// nil will do.
func (s *sim) expected(what string, err error) error {
	s.note("%s: %v", what, err)
	if err == nil || s.disk.Off() || s.faulted() {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// faulted says whether errors may come from the disk or their consequences.
func (s *sim) faulted() bool {
	return s.cfg.faults != faults{} || s.log.Health().State != storage.StateServing
}

func (s *sim) sync() error {
	return s.expected("sync", s.log.Sync(context.Background()))
}

func (s *sim) seal() error {
	_, err := s.log.Seal(context.Background())
	if errors.Is(err, storage.ErrNothingToSeal) {
		err = nil
	}
	return s.expected("seal", err)
}

func (s *sim) truncate() error {
	if err := s.drain(); err != nil || s.disk.Off() {
		return err
	}
	head, next := s.log.Head(), s.log.Next()
	to := next - min(next-head, storage.Offset(s.r.IntN(8)))
	s.model.cutting(to)
	err := s.log.TruncateTo(context.Background(), to)
	if err := s.expected(fmt.Sprintf("truncate to %d of [%d, %d)", to, head, next), err); err != nil {
		return err
	}
	if err == nil {
		if got := s.log.Next(); got != to {
			return fmt.Errorf("truncated to %d, next is %d", to, got)
		}
		s.model.cut(to)
		s.stableNext = min(s.stableNext, to)
	}
	return nil
}

func (s *sim) reset() error {
	if s.r.IntN(3) > 0 { // it ends so much that a script was about
		return nil
	}
	if err := s.drain(); err != nil || s.disk.Off() {
		return err
	}
	base := s.log.Next() + storage.Offset(s.r.IntN(100))
	if s.r.IntN(3) == 0 {
		base = s.log.Head()
	}
	s.model.resetting(base)
	err := s.log.Reset(context.Background(), base)
	if err := s.expected(fmt.Sprintf("reset to %d", base), err); err != nil {
		return err
	}
	if err == nil {
		if head, next := s.log.Head(), s.log.Next(); head != base || next != base {
			return fmt.Errorf("reset to %d: [%d, %d)", base, head, next)
		}
		s.model.reset(base)
		s.stableNext = base
	}
	return nil
}

func (s *sim) trim() error {
	head, stable := s.log.Head(), s.log.Stable()
	to := head + storage.Offset(s.r.Uint64N(uint64(stable-head)+1))
	s.model.headMax = max(s.model.headMax, to)
	_, err := s.log.TrimHead(context.Background(), to)
	if err == nil && !s.disk.Off() {
		s.trimmed()
	}
	return s.expected(fmt.Sprintf("trim head to %d", to), err)
}

// trimmed takes the log's head as where it must be from now on.
func (s *sim) trimmed() {
	head := s.log.Head()
	s.model.headMin = max(s.model.headMin, head)
	s.model.headMax = max(s.model.headMin, head)
}

func (s *sim) retain() error {
	s.log.SetRetention(storage.RetentionPolicy{Bytes: int64(500 + s.r.IntN(4000))})
	s.model.headMax = max(s.model.headMax, s.log.Written())
	_, err := s.log.EnforceRetention(context.Background(), s.log.Stable())
	if err == nil && !s.disk.Off() {
		s.trimmed()
	}
	s.log.SetRetention(storage.RetentionPolicy{})
	return s.expected("retention", err)
}

func (s *sim) writeSide() error {
	content := string(segment.AppendReplica(nil, segment.ReplicaState{Generation: segment.Generation(s.r.Uint32())}))
	s.side = append(s.side, content)
	err := s.log.WriteSide(context.Background(), sideName, []byte(content))
	if err == nil && !s.disk.Off() {
		s.side = []string{content}
	}
	return s.expected("write side file", err)
}

// checkSide wants the side file to be the last one whole, or one that was being
// written since.
func (s *sim) checkSide(anything bool) error {
	got, err := s.log.ReadSide(sideName)
	if errors.Is(err, fs.ErrNotExist) {
		got, err = nil, nil
	}
	if err != nil {
		return fmt.Errorf("side file: %w", err)
	}
	if len(s.side) == 0 {
		s.side = []string{""}
	}
	if anything {
		s.side = []string{string(got)}
		return nil
	}
	for _, may := range s.side {
		if string(got) == may {
			s.side = []string{may}
			return nil
		}
	}
	return fmt.Errorf("side file is %x, may be %x", got, s.side)
}

func (s *sim) closeAndOpen() error {
	poisoned := s.log.Health().State == storage.StatePoisoned
	err := s.log.Close(context.Background())
	s.watch()
	s.note("close: %v", err)
	if s.disk.Off() || s.err != nil {
		return nil
	}
	if err != nil && !s.faulted() {
		return fmt.Errorf("close: %w", err)
	}
	for _, e := range s.model.entries {
		if e.fate == fatePending {
			return fmt.Errorf("close left batch %d without an answer", e.number)
		}
	}
	if err == nil && !poisoned {
		s.model.raise(0, s.model.killFloor)
	}
	s.faulty.Clear()
	s.disk.SetCapacity(0)
	return s.open(false)
}

// reopen makes a poisoned log serve again.
func (s *sim) reopen() error {
	s.faulty.Clear()
	err := s.log.Reopen(context.Background())
	s.note("reopen: %v", err)
	if s.disk.Off() {
		return nil
	}
	if err != nil {
		if _, ok := errors.AsType[*storage.DamagedError](err); ok && (s.hasDropped || s.hasLied) {
			return nil
		}
		if s.cfg.faults.space && errors.Is(err, syscall.ENOSPC) {
			return nil
		}
		if _, ok := errors.AsType[*storage.LostError](err); ok && s.hasDropped && s.cfg.opts.Fsync != storage.OnCommit {
			if st := s.log.Health().State; st != storage.StatePoisoned {
				return fmt.Errorf("reopen: %w, and the log is %v", err, st)
			}
			return s.closeAndOpen()
		}
		return fmt.Errorf("reopen: %w", err)
	}
	return s.resume()
}

// resume holds a log that serves again after it was poisoned against the model.
func (s *sim) resume() error {
	s.reopened = false
	if s.log.Health().State != storage.StateServing {
		return nil
	}
	s.stats.reopened++
	head, next := s.log.Head(), s.log.Stable()
	records, err := s.readAll(storage.LimitStable)
	if err != nil {
		if s.disk.Off() {
			return nil
		}
		return fmt.Errorf("reopened: %w", err)
	}
	floor := s.model.killFloor
	if s.hasDropped {
		floor = min(floor, s.model.cutFloor)
	}
	if err := s.model.check(head, next, records, floor); err != nil {
		return fmt.Errorf("reopened: %w", err)
	}
	s.hasDropped, s.hasTorn = false, false
	s.lied, s.dropped, s.uncut = nil, nil, nil
	s.stableNext = next
	s.note("serves again: [%d, %d)", head, next)
	return s.model.recovered(head, next, records, true)
}

// arm sets the faults of a life at random places.
func (s *sim) arm() {
	add := func(op disk.Op, path string, a disk.Action) *disk.Added {
		return s.faulty.Add(disk.Rule{Op: op, Path: path, Nth: 1 + s.r.IntN(25), Count: 1 + s.r.IntN(2), Action: a})
	}
	f := s.cfg.faults
	if f.flushFails {
		switch s.r.IntN(3) {
		case 0:
			add(disk.OpFlush, "", disk.Fail(errDisk))
		case 1:
			s.dropped = append(s.dropped, add(disk.OpFlush, "*.log", disk.FailAndDrop(errDisk)))
		case 2:
			s.dropped = append(s.dropped, add(disk.OpFlush, "", disk.FailAndDrop(syscall.ENOSPC)))
		}
	}
	if f.writes {
		switch s.r.IntN(4) {
		case 0:
			add(disk.OpWrite, "*.log", disk.Short(s.r.IntN(600), errDisk))
		case 1:
			add(disk.OpWrite, "*.log", disk.NoSpace(s.r.IntN(300)))
		case 2:
			add(disk.OpWrite, "", disk.Fail(errDisk))
		case 3: // and the cut that follows
			add(disk.OpWrite, "*.log", disk.Short(s.r.IntN(300), errDisk))
			s.uncut = append(s.uncut, s.faulty.Add(disk.Rule{Op: disk.OpTruncate, Path: "*.log", Action: disk.Fail(errDisk)}))
		}
	}
	if f.dirs {
		add(disk.OpSyncDir, "", disk.Fail(errDisk))
		switch s.r.IntN(3) {
		case 0:
			add(disk.OpRename, "", disk.Fail(errDisk))
		case 1:
			add(disk.OpCreate, "", disk.FailAfter(errDisk))
		case 2:
			add(disk.OpRemove, "", disk.Fail(errDisk))
		}
	}
	if f.lies {
		s.lied = append(s.lied, add(disk.OpFlush, "", disk.Lie()))
		s.lied = append(s.lied, add(disk.OpSyncDir, "", disk.Lie()))
	}
	if f.space {
		s.disk.SetCapacity(int64(4+s.r.IntN(12)) * 4096)
	}
}

// life is one life of the disk: some steps, until they are done or the power goes.
func (s *sim) life(steps int) error {
	for range steps {
		if s.cfg.faults.space && s.r.IntN(10) == 0 {
			s.disk.SetCapacity(int64(2+s.r.IntN(30)) * 4096)
		}
		if err := s.act(); err != nil {
			if errors.Is(err, disk.ErrPowerOff) {
				s.note("the power is gone")
				return nil
			}
			return err
		}
	}
	return nil
}
