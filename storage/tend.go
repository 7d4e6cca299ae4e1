package storage

import "time"

// Background work of a log: flushing a dirty periodic log, sealing, making the next
// segment's file, reserving room, pushing dirty data out, the durable mark, retention,
// reopening after the disk was full, or descriptors were lacking. It is done one piece at a time by whoever holds the
// tending token: a worker of the disk, or Step.

const (
	// writebackStep is how much dirty data is left to the system at once where nothing
	// else flushes. A roll leaves at most this much to the flush of its seal; pushing
	// more often costs appends a third of their rate on a small machine.
	writebackStep = 64 << 20
	// retendStep is how much is written before work that could not be done is tried again.
	retendStep = 8 << 20
	// retryDelay is when background work that could not be done is tried again.
	retryDelay = 20 * time.Millisecond
	// failedDelay is the same after it failed.
	failedDelay = time.Second
	// passingDelay is how often a log that ran out of room or descriptors looks for some.
	passingDelay = 250 * time.Millisecond
)

// kick has background work looked at soon.
func (l *Log) kick() {
	if l.opt.Manual {
		return
	}
	l.disk.submit(l)
}

// schedule has a task looked at after a time.
func (l *Log) schedule(t task, after time.Duration) {
	if l.opt.Manual {
		l.agenda.set(t, l.wall().Add(after))
		return
	}
	l.disk.schedule(l, t, after)
}

// wall is the wall clock as the agenda of a log in Manual mode sees it.
func (l *Log) wall() time.Time { return time.UnixMicro(int64(l.opt.Clock())) }

// maintain does all background work there is now.
func (l *Log) maintain() {
	m := &l.mu
	m.Lock()
	switch {
	case m.tending:
		m.tendAgain = true
		m.Unlock()
		return
	case m.exclusive || m.exclusives > 0:
		closed := m.closing
		m.Unlock()
		if !closed {
			l.schedule(taskRetry, retryDelay)
		}
		return
	case m.state == StateClosed:
		m.Unlock()
		return
	}
	m.tending = true
	m.Unlock()
	for {
		for l.tend() {
		}
		m.Lock()
		if m.tendAgain && m.exclusives == 0 {
			m.tendAgain = false
			m.Unlock()
			continue
		}
		m.tending = false
		l.freed()
		l.resume()
		m.Unlock()
		break
	}
	if l.agenda.take(taskReopen) {
		l.reopenPassing()
	}
}

// tendStep does one piece of background work in Manual mode.
func (l *Log) tendStep() bool {
	l.agenda.ripe(l.wall())
	if l.agenda.take(taskReopen) {
		return l.reopenPassing()
	}
	return l.tend()
}

// tend does one piece of background work that is due. The tending token is held.
func (l *Log) tend() bool {
	l.mu.Lock()
	serving := l.mu.state == StateServing && l.mu.exclusives == 0
	sealing := len(l.mu.sealing) > 0 && !l.mu.flushOff
	l.mu.Unlock()
	if !serving {
		return false
	}
	l.agenda.take(taskRetry)
	switch {
	case l.agenda.take(taskFlush), sealing:
		return l.flushInBackground()
	case l.prepareNext(), l.allocateAhead(), l.pushOut():
		return true
	case l.agenda.take(taskMark):
		l.flushMark()
		return true
	case l.agenda.take(taskRetain):
		l.retainNow()
		return true
	}
	l.setTendAt()
	return false
}

// flushInBackground flushes, which seals what waits to be sealed.
func (l *Log) flushInBackground() bool {
	m := &l.mu
	m.Lock()
	defer m.Unlock()
	if m.flushing || m.exclusives > 0 || m.state != StateServing {
		// Who flushes now may have begun too early.
		l.schedule(taskFlush, retryDelay)
		return false
	}
	_ = l.flushGroups() // told of, and the log's state says what came of it
	l.resume()          // what was settled waits for nothing else here
	return true
}

// pushOut asks the system to write dirty data, in steps, where no flush does.
func (l *Log) pushOut() bool {
	if l.opt.Fsync == OnCommit {
		return false
	}
	l.mu.Lock()
	s, pos := l.mu.active, l.mu.activePos
	l.mu.Unlock()
	if l.pushed.seg != s.id {
		l.pushed = filePos{seg: s.id}
	}
	n := pos - l.pushed.pos
	if n < writebackStep {
		return false
	}
	f, err := s.handle.acquire()
	if err == nil {
		err = f.StartWriteback(l.pushed.pos, n)
		s.handle.release()
	}
	if err != nil {
		l.backgroundError("start writeback", err)
	}
	l.pushed.pos = pos
	return true
}

// setTendAt says at which size of the active segment there will be background work
// again.
func (l *Log) setTendAt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.opt.SegmentBytes
	if l.mu.prepared == nil && l.prepareFailed != l.mu.active.id+1 {
		at = min(at, l.opt.SegmentBytes/2)
	}
	if l.opt.Preallocate && l.allocated.Load() < l.opt.SegmentBytes {
		at = min(at, max(allocateFrom, l.allocated.Load()-allocateStep/2))
	}
	if l.opt.Fsync != OnCommit && l.pushed.seg == l.mu.active.id {
		at = min(at, l.pushed.pos+writebackStep)
	}
	if l.mu.activePos >= at {
		at = l.mu.activePos + retendStep
	}
	l.tendAt.Store(at)
}
