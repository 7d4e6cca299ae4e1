package replica

import (
	"strconv"
	"time"

	"github.com/felixlog/felix/internal/meta"
)

// pendingFence is a fence that this replica is about to answer: the term goes to disk,
// the logs are flushed, a lease runs out, then the answer leaves.
type pendingFence struct {
	waiting  bool
	flushing bool
	term     Term
	from     meta.NodeID
	round    uint64
	peer     uint64
}

// receiveFence handles a candidate's fence.
func (r *Replica) receiveFence(m *Message) {
	switch {
	case r.role == Stopped:
		a := r.send(FenceAnswer, m.From, m.Term)
		a.Round, a.Refused = m.Round, RefusedUnable
		return
	case m.Term.Generation < r.accepted.Generation && r.rules.Hold(RefuseOlder),
		m.Term.Generation == r.accepted.Generation && m.Term != r.accepted,
		r.persistBusy && r.persisting.Generation > m.Term.Generation:
		a := r.send(FenceAnswer, m.From, m.Term)
		a.Round, a.Refused, a.Accepted = m.Round, RefusedOlder, r.accepted
		if r.persistBusy && r.persisting.Generation > r.accepted.Generation {
			a.Accepted = r.persisting
		}
		return
	}
	if wait := r.fenceWait(m.Term); wait > 0 && r.rules.Hold(LeaseHeld) {
		a := r.send(FenceAnswer, m.From, m.Term)
		a.Round, a.Refused = m.Round, RefusedLater
		return
	}
	if r.above(m.Term) {
		r.deposed(m.Term)
	}
	r.fence = pendingFence{waiting: true, term: m.Term, from: m.From, round: m.Round, peer: m.Peer}
	if r.same(m.Term) || !r.above(m.Term) {
		r.answerFence()
		return
	}
	r.persist(m.Term)
}

// fenceWait is how long a lease still binds this replica to another leader than t's.
func (r *Replica) fenceWait(t Term) time.Duration {
	if !r.cfg.Leases || t == r.accepted {
		return 0
	}
	return max(r.granted, r.fenceAfter) - r.now
}

// answerFence goes on once the term is on disk: the logs are flushed, so that nothing
// that is reported can be lost, and no batch that was under way changes them.
func (r *Replica) answerFence() {
	f := &r.fence
	if f.flushing {
		return
	}
	f.flushing = true
	r.effect(Effect{Type: Flush})
}

// Flushed answers Flush.
func (r *Replica) Flushed(now time.Duration) {
	r.now = now
	if r.round.flushing {
		r.round.flushing = false
		r.selfFlushed()
	}
	f := &r.fence
	if !f.waiting || !f.flushing {
		return
	}
	f.waiting, f.flushing = false, false
	if r.role == Stopped || r.rules.Hold(RefuseOlder) && f.term != r.accepted {
		return // a higher fence came in the meantime
	}
	if r.following != f.term {
		r.follows(f.term)
	}
	r.followNode(f.from)
	r.leaderOpening = max(r.leaderOpening, f.peer)
	m := r.send(FenceAnswer, f.from, f.term)
	m.Round, m.Forgetful = f.round, r.forgetful
	m.Votes = make([]LogVote, len(r.logs))
	for i := range r.logs {
		m.Votes[i] = r.vote(&r.logs[i])
	}
}

// vote is what this replica says of a log.
func (r *Replica) vote(l *shardLog) LogVote {
	v := LogVote{Last: l.lastGeneration(), Head: l.head, Tail: l.written, Mark: l.mark, Unknown: l.unknown}
	if !r.rules.Hold(GenerationFromLog) {
		v.Last, v.Unknown = r.accepted.Generation, false
	}
	if !r.rules.Hold(UnknownIsLearner) {
		v.Unknown = false
	}
	return v
}

func generationText(g Generation) string { return strconv.FormatUint(uint64(g), 10) }

func logText(id LogID) string { return "log " + strconv.Itoa(int(id)) }
