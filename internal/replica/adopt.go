package replica

import (
	"time"

	"github.com/felixlog/felix/internal/meta"
)

// adoption is what a candidate takes over of one log.
type adoption struct {
	from    meta.NodeID // the replica with the furthest log; empty: this one
	head    Offset      // of that replica's log
	tail    Offset      // how far it goes
	at      Offset      // the place asked for
	asked   bool
	askedAt time.Duration
	tries   int
	done    bool
}

// maxPullTries bounds how often the furthest replica is asked for the same records
// before the fence is taken again.
const maxPullTries = 10

// adoptStep does the next step for one log: ask, cut, or be done.
func (r *Replica) adoptStep(l *shardLog) {
	a := &l.adopt
	if r.role != Adopting || l.busy != idle || a.done {
		return
	}
	switch {
	case a.from == "":
		a.done = true
	case l.tail < a.head:
		// All that is missing was trimmed there, so it is committed: begin where it does.
		r.beginAnew(l, r.term, a.head)
		return
	case l.matched >= a.tail && l.tail > a.tail:
		if a.tail < l.mark && r.rules.Hold(KeepCommitted) {
			r.halt(logText(l.id) + ": the furthest log ends at " + offsetText(a.tail) + ", below the committed mark " + offsetText(l.mark))
			return
		}
		l.busy, l.held = cutting, heldBatch{term: r.term, prev: Place{Next: a.tail}, end: a.tail}
		r.effect(Effect{Type: Cut, Log: l.id, At: a.tail})
		return
	case l.matched >= a.tail:
		a.done = true
	case !a.asked:
		if a.at == 0 || l.matched > a.at {
			a.at = min(l.tail, a.tail)
			if l.matched > 0 {
				a.at = l.matched
			}
		}
		r.pull(l)
		return
	default:
		return
	}
	r.adoptDone()
}

// adoptDone begins the term once every log is what was agreed on.
func (r *Replica) adoptDone() {
	for i := range r.logs {
		if !r.logs[i].adopt.done {
			return
		}
	}
	r.start()
}

func (r *Replica) pull(l *shardLog) {
	l.adopt.asked, l.adopt.askedAt = true, r.now
	m := r.send(Pull, l.adopt.from, r.term)
	m.Log, m.Match = l.id, l.adopt.at
}

// receivePull serves a candidate that found this log the furthest.
func (r *Replica) receivePull(m *Message) {
	if !r.same(m.Term) || r.leads() {
		if r.role != Stopped && m.Term.Generation < r.accepted.Generation {
			a := r.send(Pulled, m.From, m.Term)
			a.Log, a.Refused, a.Accepted = m.Log, RefusedOlder, r.accepted
		}
		return
	}
	l := &r.logs[m.Log]
	if m.Match > l.tail || m.Match < l.head {
		a := r.send(Pulled, m.From, m.Term)
		a.Log, a.Refused, a.Match, a.Tail, a.Head = m.Log, RefusedGap, m.Match, l.tail, l.head
		return
	}
	r.effect(Effect{Type: Fetch, Log: m.Log, At: m.Match, Limit: r.cfg.ShipBytes, Peer: m.From})
}

// pulled takes over what the furthest replica sent.
func (r *Replica) pulled(p *peer, m *Message) {
	l := &r.logs[m.Log]
	a := &l.adopt
	if r.role != Adopting || a.done || !a.asked || p.node != a.from || l.busy != idle {
		return
	}
	if m.Refused != NotRefused {
		r.nextFence() // it does not hold any more what it said; ask everybody again
		return
	}
	if m.Prev.Next != a.at {
		return
	}
	if m.Match <= a.at && a.at < a.tail {
		r.nextFence() // its log is shorter than it said
		return
	}
	a.asked, a.tries = false, 0
	bytes := m.Bytes
	b := heldBatch{term: r.term, prev: m.Prev, bytes: bytes, from: p, at: m.At, start: m.Start}
	if r.follow(l, b) {
		r.adoptStep(l)
	}
}

// pullRefused goes back when the furthest log has another record before the place asked
// for: to where the younger of the two generations there began.
func (r *Replica) pullRefused(l *shardLog, b heldBatch, why Refusal) {
	if r.role != Adopting || why == RefusedCommitted {
		return
	}
	a := &l.adopt
	if b.prev.Next <= a.head && l.mark < a.head {
		// What that log trimmed is committed, and what this one has there cannot be
		// compared with it: begin where it does.
		if !r.beginAnew(l, r.term, a.head) {
			r.pull(l)
		}
		return
	}
	gen, start := l.generationAt(b.prev.Next)
	to := start
	if b.at > gen {
		to = b.start
	}
	if to >= b.prev.Next && b.prev.Next > 0 {
		to = b.prev.Next - 1
	}
	// All below the mark is committed, so the furthest log has it too.
	a.at = max(to, min(l.mark, b.prev.Next), a.head)
	r.pull(l)
}

func (r *Replica) tickAdopting() {
	for i := range r.logs {
		l := &r.logs[i]
		a := &l.adopt
		if a.done || !a.asked || r.now-a.askedAt < ResendAfter {
			continue
		}
		if a.tries++; a.tries > maxPullTries {
			r.nextFence()
			return
		}
		r.pull(l)
	}
}

// start appends the term's first records: the logs are what the fenced majority agreed
// on.
func (r *Replica) start() {
	r.role = Starting
	for i := range r.logs {
		l := &r.logs[i]
		l.adopt = adoption{}
		l.unknown = false // the generation start that follows says it
		r.effect(Effect{Type: AppendStart, Log: l.id, Term: r.term})
	}
	for i := range r.peers {
		p := &r.peers[i]
		for j := range p.logs {
			p.logs[j] = progress{next: r.logs[j].tail, state: probing}
			if len(p.votes) > j {
				p.logs[j].next = min(p.logs[j].next, max(p.votes[j].Tail, r.logs[j].head))
			}
		}
		for j := range p.logs {
			if p.logs[j].next < r.logs[j].tail {
				r.pump(p, &r.logs[j])
			}
			// One that is level is asked by the first record itself.
		}
	}
	if !r.rules.Hold(ServeAfterStart) {
		r.serve()
	}
}
