package storage

// The way of a batch. It passes four stages. Each has one token, and whoever holds it alone
// does that work; the tokens are fields under one mutex, which is never held across I/O, a
// callback or a wait.
//
//	queue   accepted in order, without an offset: a short critical section
//	pen     takes what queued (1 MiB or 1,024 batches), asks Admit batch by batch, gives
//	        offsets, encodes into one buffer, writes it with one call, calls Written
//	flush   OnCommit only: one flush at a time covers all that was written before it began
//	apply   calls Stable for the group, then Done for each of its batches, in offset order
//
// There is no goroutine behind this at rest. An appender that finds a token free does the
// work itself, for itself and all who queued; one that has its answer while there is work
// left hands on to a waiting appender, or to a goroutine that ends when there is nothing
// left. While a flush is under way little is written: what comes meanwhile is written
// together when it ends, for it could not be on the device earlier.
//
// An appender that is alone, without a flush to wait for or a callback to run, goes through
// the same stages by itself, without the queue and the pump: see appendAlone.
//
// The segments a batch goes to are a list of files; the last is active. The next file is
// made ahead, empty, its name flushed; a roll writes its header and takes it into use. The
// segment before is sealed off the pen: flushed, trimmed, flushed, indexed. Readers work on
// an immutable list and see a record once the position they read moved past it.
//
// The pump. All work on batches is one of three actions, and which one is next is
// decided in one place, under the mutex. Whoever does an action decides anew after it;
// who wants to leave while there is work hands it to a waiting appender or to the log's
// runner. So work that can be done is never without somebody who will do it:
//
//	choose() != actNone  =>  pumps > 0, or the holder of a token will call resume.

type action uint8

const (
	actNone  action = iota
	actApply        // complete groups whose outcome is known
	actFlush        // flush what is written, under OnCommit
	actWrite        // write a group
)

// duty bounds what a goroutine does in the pump.
type duty struct {
	own     *waiter // leaves once this one is done
	limited bool    // leaves after writes, flushes or applies are used up
	writes  int
	flushes int
	applies int  // times applyMost groups
	applied bool // has completed groups since it was over
	noFlush bool // leaves flushes to others
	runner  bool // it is the log's runner
}

func (d *duty) over() bool {
	if d.own != nil {
		return d.own.done()
	}
	return d.limited && (d.writes <= 0 || d.flushes <= 0 || d.applies <= 0)
}

const (
	// overlapBytes is how much must wait for it to be written while a flush is under
	// way. Less is written with what comes until the flush ends: one write instead of
	// many, and no later on the device.
	overlapBytes = 256 << 10
	// driveWrites is how many groups a Drive writes before it leaves the rest to the
	// runner.
	driveWrites = 8
	// driveApplies is how many times applyMost groups it completes.
	driveApplies = 2
)

// choose says what can be done now, flushes left out if they are left to others. l.mu is
// held.
func (l *Log) choose(noFlush bool) action {
	m := &l.mu
	if m.exclusive || m.exclusives > 0 {
		return actNone
	}
	if m.apply.head != nil && !m.applying {
		return actApply
	}
	if m.state != StateServing {
		return actNone
	}
	unflushed := m.unstable.head != nil
	if unflushed && !m.flushing && !m.flushOff && !noFlush {
		return actFlush
	}
	if m.queue.n > 0 && !m.pen {
		if l.opt.Fsync == OnCommit && m.flushing && m.queue.bytes < overlapBytes {
			return actNone
		}
		return actWrite
	}
	return actNone
}

// pump works until there is nothing to do or d is over. l.mu is held, and the caller
// counted in m.pumps; pump releases both.
func (l *Log) pump(d *duty) {
	m := &l.mu
	for {
		act := l.choose(d.noFlush)
		if act == actNone || d.over() && (act != actApply || d.applied) {
			break
		}
		switch act {
		case actApply:
			d.applied = d.over()
			d.applies--
			l.applyGroups(d.own)
		case actFlush:
			d.flushes--
			_ = l.flushGroups() // those who wait for it are told
		case actWrite:
			d.writes--
			l.writeGroup()
		}
	}
	m.pumps--
	if d.runner {
		m.runner = false
	}
	l.resume()
	m.Unlock()
}

// resume finds somebody for work that nobody will look at. l.mu is held.
func (l *Log) resume() {
	if l.opt.Manual || l.choose(false) == actNone || l.mu.pumps > 0 {
		return
	}
	if b := l.mu.queue.head; b != nil {
		switch b.wait.state.Load() {
		case waiterRuns, waiterParked:
			l.mu.pumps++
			b.wait.duty.Store(true)
			b.wait.wake()
			return
		}
	}
	l.mu.pumps++
	l.startRunner()
}

// startRunner has a goroutine of the log pump, which is already counted in m.pumps.
// l.mu is held.
func (l *Log) startRunner() {
	if l.mu.runner {
		l.mu.pumps--
		return
	}
	l.mu.runner = true
	l.work.Add(1)
	go func() {
		defer l.work.Done()
		l.mu.Lock()
		l.pump(&duty{runner: true})
	}()
}

// Drive does queued work. Inline, the caller writes some groups and, under OnCommit,
// flushes once, unless another goroutine is at it; what is left goes to a goroutine of
// the log. Not inline, the caller only writes, and flushes are left to that goroutine.
func (l *Log) Drive(inline bool) {
	l.mu.Lock()
	d := duty{limited: true, writes: driveWrites, flushes: 1, applies: driveApplies, noFlush: !inline}
	if l.opt.Manual || l.choose(d.noFlush) == actNone {
		l.resume()
		l.mu.Unlock()
		return
	}
	l.mu.pumps++
	l.pump(&d)
}

// Step does one unit of work of a log in Manual mode: it completes groups, flushes,
// writes a group, or does one piece of background work that is due. It says whether
// there was any. The order of its choices is fixed, so that one script gives one
// history.
func (l *Log) Step() bool {
	if !l.opt.Manual {
		return false
	}
	return l.work1() || l.tendStep()
}

// work1 does one action of the pump.
func (l *Log) work1() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.choose(false) {
	case actApply:
		l.applyGroups(nil)
	case actFlush:
		_ = l.flushGroups()
	case actWrite:
		l.writeGroup()
	default:
		return false
	}
	return true
}
