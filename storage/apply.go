package storage

// applyMost is how many groups are completed before somebody else may go on: who drives
// or appends has other work than that of those who keep coming behind.
const applyMost = 256

// applyGroups completes groups in offset order, at most applyMost. l.mu is held before
// and after, not while a hook or a Done runs or somebody is woken; own is who calls.
func (l *Log) applyGroups(own *waiter) {
	m := &l.mu
	m.applying = true
	for n := 0; n < applyMost && m.apply.head != nil && m.exclusives == 0; n++ {
		g := m.completed()
		if l.isOwn(g, own) {
			g.Batches[0].complete()
		} else {
			m.Unlock()
			l.complete(g)
			m.Lock()
		}
		l.putGroup(g)
	}
	m.applying = false
	l.freed()
}

// completed takes the next group to be completed, which no longer counts as accepted. l.mu
// is held.
func (m *logMu) completed() *Group {
	g := m.apply.pop()
	m.inCount -= len(g.Batches)
	m.inBytes -= g.bytes
	return g
}

// isOwn says whether g is nothing but the batch of who calls: there is nobody to be woken
// and no callback to run. l.mu is held.
func (l *Log) isOwn(g *Group, own *waiter) bool {
	return len(g.Batches) == 1 && &g.Batches[0].wait == own && g.Batches[0].Done == nil && l.opt.Hooks.Stable == nil
}

// complete runs the hook and the callbacks of one group.
func (l *Log) complete(g *Group) {
	if h := l.opt.Hooks.Stable; h != nil && g.Err == nil {
		h(g)
	}
	for _, b := range g.Batches {
		b.complete()
	}
}

// completeAll completes what has an outcome, when nothing else does.
func (l *Log) completeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.mu.apply.head != nil {
		g := l.mu.completed()
		l.mu.Unlock()
		l.complete(g)
		l.mu.Lock()
		l.putGroup(g)
	}
}

// failQueue gives the batches that have no offset yet their outcome. l.mu is held.
func (l *Log) failQueue(err error) {
	m := &l.mu
	for m.queue.n > 0 {
		g := l.getGroup()
		g.Batches = m.queue.take(g.Batches)
		for _, b := range g.Batches {
			g.bytes += b.charge
		}
		g.fail(err)
		m.apply.push(g)
	}
}

// failUnstable gives the batches that were written and not flushed theirs. l.mu is held.
func (l *Log) failUnstable(err error) {
	m := &l.mu
	for m.unstable.head != nil {
		g := m.unstable.pop()
		if g.Err == nil {
			g.fail(err)
		}
		m.apply.push(g)
	}
}
