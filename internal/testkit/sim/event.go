package sim

import (
	"slices"
	"time"
)

// event is something that happens at a virtual time. An event of a node is put off
// while the node is suspended, and dropped when its process is gone.
type event struct {
	at    time.Duration
	seq   uint64
	node  *node
	epoch int
	run   func()
}

// eventHeap is a binary heap by time, then by order of scheduling.
type eventHeap []event

func (h eventHeap) less(i, j int) bool {
	if h[i].at != h[j].at {
		return h[i].at < h[j].at
	}
	return h[i].seq < h[j].seq
}

func (h *eventHeap) push(e event) {
	*h = append(*h, e)
	q := *h
	for i := len(q) - 1; i > 0; {
		up := (i - 1) / 2
		if !q.less(i, up) {
			break
		}
		q[i], q[up] = q[up], q[i]
		i = up
	}
}

func (h *eventHeap) pop() event {
	q := *h
	e := q[0]
	last := len(q) - 1
	q[0], q[last] = q[last], event{}
	q = q[:last]
	*h = q
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < last; c++ {
			if q.less(c, least) {
				least = c
			}
		}
		if least == i {
			return e
		}
		q[i], q[least] = q[least], q[i]
		i = least
	}
}

// after schedules run in the world itself.
func (w *world) after(d time.Duration, run func()) {
	w.seq++
	w.events.push(event{at: w.now + d, seq: w.seq, run: run})
}

// after schedules run in the node's process as it is now.
func (n *node) after(d time.Duration, run func()) {
	w := n.world
	w.seq++
	w.events.push(event{at: w.now + d, seq: w.seq, node: n, epoch: n.epoch, run: run})
}

// when asks a watcher after every event, until it says that it has seen enough. A watcher
// sets no other.
func (w *world) when(done func() bool) { w.watchers = append(w.watchers, done) }

func (w *world) watch() {
	if len(w.watchers) > 0 {
		w.watchers = slices.DeleteFunc(w.watchers, func(done func() bool) bool { return done() })
	}
}

// runUntil runs events up to a time, or until a violation.
func (w *world) runUntil(end time.Duration) {
	for w.violation == nil && len(w.events) > 0 && w.events[0].at <= end {
		e := w.events.pop()
		w.now = e.at
		if n := e.node; n != nil {
			if e.epoch != n.epoch || !n.alive {
				continue
			}
			if w.now < n.suspended {
				w.seq++
				e.at, e.seq = n.suspended, w.seq
				w.events.push(e)
				continue
			}
		}
		w.steps++
		e.run()
		w.watch()
	}
	if w.violation == nil {
		w.now = max(w.now, end)
	}
}
