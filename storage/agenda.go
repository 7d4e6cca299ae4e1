package storage

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"
)

// task is work of a log that is due at a time.
type task int

const (
	taskFlush  task = iota // a periodic log is dirty, or a flush was put off
	taskMark               // the durable mark moved
	taskRetain             // retention is to be looked at
	taskRetry              // background work could not be done before
	taskReopen             // poisoned for want of room or descriptors: look whether there are some
	tasks
)

// agenda says when a log's tasks are due; zero is never.
type agenda struct {
	mu  sync.Mutex
	at  [tasks]time.Time
	now atomic.Uint32 // bit per task: found due, to be done by the next maintain
}

func (a *agenda) set(t task, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at[t].IsZero() || at.Before(a.at[t]) {
		a.at[t] = at
	}
}

func (a *agenda) clear(t task) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at[t] = time.Time{}
}

// ripe moves what is due to now, and returns when the next thing is; zero is never.
func (a *agenda) ripe(now time.Time) (due bool, next time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for t := range a.at {
		at := a.at[t]
		switch {
		case at.IsZero():
		case !at.After(now):
			a.at[t] = time.Time{}
			a.now.Or(1 << t)
			due = true
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	return due, next
}

// take says whether t was found due, and forgets it.
func (a *agenda) take(t task) bool {
	return a.now.And(^uint32(1<<t))&(1<<t) != 0
}

// schedule has l.maintain called with t due after d.
func (d *Disk) schedule(l *Log, t task, after time.Duration) {
	at := time.Now().Add(after)
	l.agenda.set(t, at)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.closed {
		return
	}
	if _, ok := d.mu.logs[l]; !ok {
		return
	}
	d.mu.timed.set(l, at)
	d.arm(at)
}

// arm makes the timer fire at the latest at that time. d.mu is held.
func (d *Disk) arm(at time.Time) {
	if !d.mu.armed.IsZero() && !at.Before(d.mu.armed) {
		return
	}
	if d.mu.timer == nil {
		d.work.Add(1)
		d.mu.armed = at
		d.mu.timer = time.AfterFunc(time.Until(at), d.tick)
		return
	}
	// A timer that is set owns one count of d.work, which its tick gives back.
	if !d.mu.timer.Stop() {
		d.work.Add(1)
	}
	d.mu.armed = at
	d.mu.timer.Reset(time.Until(at))
}

// tick submits the logs that have something due.
func (d *Disk) tick() {
	defer d.work.Done()
	var due []*Log
	d.mu.Lock()
	d.mu.armed = time.Time{}
	now := time.Now()
	for l := d.mu.timed.first(); l != nil && !l.due.at.After(now); l = d.mu.timed.first() {
		ripe, next := l.agenda.ripe(now)
		if ripe {
			due = append(due, l)
		}
		d.mu.timed.remove(l)
		if !next.IsZero() {
			d.mu.timed.set(l, next)
		}
	}
	if l := d.mu.timed.first(); l != nil && !d.mu.closed {
		// Logs that become due together are found together.
		d.arm(later(l.due.at, now.Add(sweepGap)))
	}
	d.mu.Unlock()
	for _, l := range due {
		d.submit(l)
	}
}

// due is a log's place among those with something due.
type due struct {
	at    time.Time // the earliest of its agenda, or before
	place int       // in timed, from 1; 0 is none
}

// timed is a heap of logs by when something of theirs is due: thousands have retention
// due in an hour while a few are flushed every millisecond.
type timed struct{ logs []*Log }

func (t *timed) first() *Log {
	if len(t.logs) == 0 {
		return nil
	}
	return t.logs[0]
}

// set has l due at that time, unless it is already due earlier.
func (t *timed) set(l *Log, at time.Time) {
	switch {
	case l.due.place == 0:
		l.due.at = at
		heap.Push(t, l)
	case at.Before(l.due.at):
		l.due.at = at
		heap.Fix(t, l.due.place-1)
	}
}

func (t *timed) remove(l *Log) {
	if l.due.place > 0 {
		heap.Remove(t, l.due.place-1)
	}
}

// Len, Less, Swap, Push and Pop are for package heap.
func (t *timed) Len() int           { return len(t.logs) }
func (t *timed) Less(i, j int) bool { return t.logs[i].due.at.Before(t.logs[j].due.at) }

func (t *timed) Swap(i, j int) {
	t.logs[i], t.logs[j] = t.logs[j], t.logs[i]
	t.logs[i].due.place, t.logs[j].due.place = i+1, j+1
}

func (t *timed) Push(l any) {
	t.logs = append(t.logs, l.(*Log))
	t.logs[len(t.logs)-1].due.place = len(t.logs)
}

func (t *timed) Pop() any {
	last := len(t.logs) - 1
	l := t.logs[last]
	t.logs[last], t.logs = nil, t.logs[:last]
	l.due.place = 0
	return l
}

// sweepGap is the least time between two looks at what is due.
const sweepGap = 2 * time.Millisecond

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
