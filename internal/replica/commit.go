package replica

import (
	"math"
	"slices"
	"time"

	"github.com/felixlog/felix/internal/meta"
)

// held is one past the last record that a majority of set, the leader included, holds
// as durable as the policy says.
func (r *Replica) held(l *shardLog, set []meta.Member) Offset {
	var match [meta.MaxReplicationFactor + 2]Offset
	n := 0
	for _, m := range set {
		if n == len(match) {
			break
		}
		switch {
		case m.Node == r.cfg.Node:
			if m.Disk == r.opening.Disk {
				match[n] = l.durable
			}
		default:
			if p := r.peer(m.Node); p != nil && (p.opening.Disk == m.Disk || !r.rules.Hold(CountListed)) {
				match[n] = p.logs[l.id].match
			}
		}
		n++
	}
	if n == 0 {
		return 0
	}
	slices.Sort(match[:n])
	return min(match[(n-1)/2], l.durable)
}

// advance moves the committed mark to what the set, or both sets while a change's
// outcome is unknown, hold of this generation.
func (r *Replica) advance(l *shardLog) {
	if r.role != Starting && r.role != Leading {
		return
	}
	set := r.set
	to := l.durable
	switch {
	case r.proposal == nil:
		to = r.held(l, set)
	case !r.rules.Hold(JointMajority):
		to = r.held(l, r.proposal.assignment.Members)
	default:
		to = min(r.held(l, set), r.held(l, r.proposal.assignment.Members))
	}
	if r.rules.Hold(CommitOwnGeneration) && (!l.hasStart || to <= l.start) {
		return
	}
	if to <= l.mark {
		return
	}
	l.mark = to
	l.sizes.drop(to)
	r.effect(Effect{Type: Committed, Log: l.id, At: to})
	if r.role == Starting {
		r.checkStart()
	}
	r.acknowledge(l)
}

// recount advances all logs after the sets changed.
func (r *Replica) recount() {
	r.meetPeers()
	for i := range r.logs {
		r.advance(&r.logs[i])
	}
}

// checkStart serves once the generation's first record is committed in every log.
func (r *Replica) checkStart() {
	for i := range r.logs {
		l := &r.logs[i]
		if !l.hasStart || l.mark <= l.start {
			return
		}
	}
	r.serve()
}

func (r *Replica) serve() {
	r.role = Leading
	if r.serving {
		return
	}
	r.serving = true
	if r.forgetful && !r.persistBusy {
		// It holds all that a fenced majority held: there is nothing left to have forgotten.
		r.persisting, r.persistBusy = r.accepted, true
		r.effect(Effect{Type: Persist, Term: r.accepted, Forgetful: false})
	}
	clamp := ^Offset(0)
	if r.rules.Hold(ClampPositions) {
		clamp = r.logs[0].mark
	}
	r.effect(Effect{Type: Serve, Term: r.term, At: clamp})
	r.effect(Effect{Type: SetChanged, Assignment: r.assignment.Clone(), Version: r.version})
	for i := range r.logs {
		r.acknowledge(&r.logs[i])
	}
}

// acknowledge says how far writes may be answered: with quorum consistency up to the
// mark; with leader consistency up to what is durable here, as long as what is not yet
// committed stays within its bounds.
func (r *Replica) acknowledge(l *shardLog) {
	if r.role != Leading {
		return
	}
	to := l.mark
	if r.cfg.Consistency == meta.ConsistencyLeader {
		to = l.durable
		if len(r.set) > 1 {
			size, since := r.cfg.UnshippedBytes, int64(r.now-UnshippedTime)
			if !r.rules.Hold(BoundUnshippedBytes) {
				size = math.MaxInt64
			}
			if !r.rules.Hold(BoundUnshipped) {
				since = math.MinInt64
			}
			to = max(l.mark, min(to, l.sizes.bound(size, since)))
		}
	}
	if to > l.acked {
		l.acked = to
		r.effect(Effect{Type: Acknowledge, Log: l.id, At: to})
	}
}

// TrimTo asks to let go of what is below to (retention, compaction). It goes as far as
// the committed mark, and followers go with it.
func (r *Replica) TrimTo(now time.Duration, id LogID, to Offset) {
	r.now = now
	l := &r.logs[id]
	if r.role != Leading {
		return
	}
	if r.rules.Hold(TrimBelowMark) {
		to = min(to, l.mark)
	}
	for i := range r.peers {
		// Never under a copy: a follower being fed keeps what it is about to be sent.
		if pr := &r.peers[i].logs[id]; pr.fetching {
			to = min(to, pr.next)
		}
	}
	if to <= l.head || to > l.tail {
		return
	}
	if n := len(l.gens); n > 0 && (l.gens[n-1].Start < to || r.rules.Hold(TrimBelowMark) && l.gens[n-1].Start >= l.mark) {
		// The log must go on saying its generation: it is stated again above the new head,
		// and committed, before the old statement goes.
		if l.gens[n-1].Start < to && !l.restating {
			l.restating = true
			r.effect(Effect{Type: AppendStart, Log: id, Term: r.term})
		}
		return
	}
	l.restating = false
	l.head = to
	r.effect(Effect{Type: Trim, Log: id, At: to})
}
