package replica

import (
	"time"

	"github.com/felixlog/felix/internal/meta"
)

// fenceRound is a candidate's collection of answers.
type fenceRound struct {
	number   uint64
	sentAt   time.Duration
	flushing bool // the own logs are being flushed, for the own vote
	selfDone bool
	refused  Generation // the highest generation a refusal named
}

// Campaign asks the metadata for a generation, to lead it. It does nothing if the
// replica leads already, is no listed member with this disk, or knows no assignment.
func (r *Replica) Campaign(now time.Duration) {
	r.now = now
	if r.role != Follower || r.assignment == nil || r.asking {
		return
	}
	if m, ok := r.assignment.Lookup(r.cfg.Node); !ok || m.Disk != r.opening.Disk && r.rules.Hold(CountListed) {
		return
	}
	if r.assignment.Incarnation != r.cfg.Shard.Incarnation {
		return
	}
	if r.fenceWait(Term{}) > 0 && r.rules.Hold(LeaseHeld) {
		return // it granted a lease itself
	}
	r.ask()
}

func (r *Replica) ask() {
	a := r.assignment.Clone()
	highest := max(Generation(a.Generation), r.accepted.Generation, r.floor)
	if r.persistBusy {
		highest = max(highest, r.persisting.Generation)
	}
	a.Generation = meta.Generation(highest + 1)
	a.Leader, a.LeaderDisk, a.LeaderOpening = r.cfg.Node, r.opening.Disk, r.opening.Count
	r.role, r.asked, r.askedBase = Asking, a, r.version
	r.propose(a, r.version)
}

// propose writes a if the stored assignment is at base, the version a was made from. A
// proposal that is repeated keeps its base: what was stored since is not in it.
func (r *Replica) propose(a *meta.Assignment, base meta.Version) {
	r.asking, r.askedAt = true, r.now
	r.effect(Effect{Type: Propose, Assignment: a.Clone(), Version: base, Blind: r.role == Asking && !r.rules.Hold(SetInTransaction)})
}

// Proposal outcomes.
type ProposalOutcome uint8

const (
	// ProposalDone: the assignment is stored, at the version given.
	ProposalDone ProposalOutcome = iota
	// ProposalConflict: the stored assignment was at another version; nothing was written.
	ProposalConflict
	// ProposalUnavailable: the metadata could not be asked; nothing was written.
	ProposalUnavailable
	// ProposalUnknown: it may have been written, or may be yet.
	ProposalUnknown
)

// Proposed answers Propose.
func (r *Replica) Proposed(now time.Duration, outcome ProposalOutcome, version meta.Version) {
	r.now = now
	if !r.asking {
		return
	}
	r.asking = false
	switch outcome {
	case ProposalDone:
		switch {
		case r.role == Asking:
			r.won(r.asked, version)
		case r.proposal != nil:
			r.changed(r.proposal.assignment, version)
		}
	case ProposalConflict:
		// Either somebody changed the assignment, or an earlier attempt of this very
		// proposal was applied and its answer lost: what is stored says which.
		r.effect(Effect{Type: ReadAssignment})
	case ProposalUnavailable:
		if r.proposal != nil && !r.proposal.unsure {
			r.proposal = nil // it was never handed over
			r.recount()
		}
	case ProposalUnknown:
		if r.proposal != nil {
			r.proposal.unsure = true
			if !r.rules.Hold(OneAtATime) {
				r.proposal = nil // without the clause a missing answer counts as a no
				r.recount()
			}
		}
	}
}

// Assigned tells the replica the assignment as stored at version: read on its behalf,
// or seen by a watch.
func (r *Replica) Assigned(now time.Duration, a *meta.Assignment, version meta.Version) {
	r.now = now
	if a == nil || r.role == Stopped {
		return
	}
	if version < r.version && !r.leads() && r.role != Asking {
		// The store was restored from a backup, or a read was overtaken. Members follow
		// generations, not versions; the next transaction finds out.
		r.floor = max(r.floor, Generation(a.Generation))
	}
	r.assignment, r.version = a.Clone(), version
	mine := termOf(a).By == r.opening && a.Leader == r.cfg.Node
	switch {
	case r.role == Asking:
		if r.asking {
			return // the transaction's own answer decides
		}
		if mine && r.asked != nil && a.Generation == r.asked.Generation {
			r.won(a, version)
			return
		}
		r.role = Follower
		r.asked = nil
	case r.leads():
		r.reassigned(a, version, mine)
	case r.role == Follower && !r.rules.Hold(NewGeneration) && a.Leader == r.cfg.Node && a.LeaderDisk == r.opening.Disk:
		// Without the clause a reopened leader goes on in its generation.
		r.role, r.asked = Asking, r.assignment
		r.opening.Count = a.LeaderOpening
		r.won(r.assignment, version)
	default:
		r.introduceAgain()
	}
}

// termOf is the term an assignment gives.
func termOf(a *meta.Assignment) Term {
	return Term{Generation: Generation(a.Generation), By: Opening{Disk: a.LeaderDisk, Count: a.LeaderOpening}}
}

// reassigned judges a stored assignment against the term this replica leads.
func (r *Replica) reassigned(a *meta.Assignment, version meta.Version, mine bool) {
	switch {
	case Generation(a.Generation) > r.term.Generation:
		r.resign("generation " + generationText(Generation(a.Generation)) + " was given")
	case mine && Generation(a.Generation) == r.term.Generation && !r.asking:
		if r.proposal != nil {
			switch base := r.proposal.base; {
			case version > base:
				// Its version is taken: what is stored is the outcome, this change or not.
				r.changed(a, version)
			case version == base && r.proposal.unsure:
				// Not applied yet, and still it may be. The same proposal is made again.
				r.propose(r.proposal.assignment, base)
			case version == base:
				r.proposal = nil
				r.recount()
			}
			// A version below: an answer that others overtook, or a restored store.
		}
	}
	// A lower generation is a store restored from a backup: this term goes on; whoever is
	// given a lower one is refused by this set's members and asks for more.
}

func (r *Replica) tickAsking() {
	// An answer that is under way comes, if only as unknown; and a term that is won waits
	// for the disk.
	if !r.asking && r.asked != nil && r.now-r.askedAt >= ResendAfter {
		r.propose(r.asked, r.askedBase)
	}
}

// won begins a term that metadata gave to this opening.
func (r *Replica) won(a *meta.Assignment, version meta.Version) {
	if r.rules.Hold(SetInTransaction) || r.assignment == nil {
		r.assignment = a.Clone()
	} else {
		set := r.assignment.Members // without the clause: the set as read before
		r.assignment = a.Clone()
		r.assignment.Members = set
	}
	r.version = version
	r.term = Term{Generation: Generation(a.Generation), By: r.opening}
	r.set = r.assignment.Clone().Members
	r.asked = nil
	if r.term.Generation <= r.accepted.Generation && r.term != r.accepted {
		// A store restored from a backup gave a generation that was accepted already.
		r.role = Follower
		r.floor = max(r.floor, r.accepted.Generation)
		return
	}
	r.role = Asking
	if r.term == r.accepted {
		r.fenceAll()
		return
	}
	r.persist(r.term)
}

// fenceAll asks the set for its votes. The own term is on disk.
func (r *Replica) fenceAll() {
	r.role = Fencing
	r.proposal, r.serving = nil, false
	r.reads.reset()
	r.leader = r.cfg.Node
	r.peers = r.peers[:0]
	for i := range r.logs {
		l := &r.logs[i]
		l.hasStart, l.start, l.acked, l.restating = false, 0, 0, false
		l.sizes.reset()
	}
	r.meetPeers()
	r.nextFence()
}

func (r *Replica) nextFence() {
	r.role = Fencing
	r.round = fenceRound{number: r.round.number + 1, sentAt: r.now}
	for i := range r.peers {
		r.peers[i].voted = false
		r.peers[i].votes = nil
	}
	r.sendFences()
	r.round.flushing = true
	r.effect(Effect{Type: Flush})
}

func (r *Replica) sendFences() {
	r.round.sentAt = r.now
	for i := range r.peers {
		if p := &r.peers[i]; !p.voted {
			m := r.send(Fence, p.node, r.term)
			m.Round, m.Peer = r.round.number, p.opening.Count
		}
	}
}

// selfFlushed counts the own vote.
func (r *Replica) selfFlushed() {
	if r.role != Fencing {
		return
	}
	for i := range r.logs {
		if r.logs[i].busy != idle {
			// A batch of the last leader is still being compared or cut; its answer comes.
			r.round.sentAt = 0
			return
		}
	}
	r.round.selfDone = true
	r.judgeFence()
}

func (r *Replica) fenceAnswered(p *peer, m *Message) {
	if r.role != Fencing || m.Round != r.round.number || m.Refused != NotRefused {
		return
	}
	if len(m.Votes) != len(r.logs) {
		return
	}
	p.voted, p.forgetful = true, m.Forgetful
	p.votes = append(p.votes[:0], m.Votes...)
	r.judgeFence()
}

// outdone handles a member that accepted a generation not below the own: ask for a
// higher one (rule 2).
func (r *Replica) outdone(by Term) {
	r.floor = max(r.floor, by.Generation)
	if r.role == Leading || r.role == Starting {
		r.resign("generation " + generationText(by.Generation) + " was accepted by a member")
		return
	}
	r.role = Follower
	r.ask()
}

// candidateVote is one replica's vote as the candidate counts it.
type candidateVote struct {
	peer  *peer // nil: the own
	votes []LogVote
}

// judgeFence goes on once a majority of the set is fenced.
func (r *Replica) judgeFence() {
	if !r.round.selfDone {
		return
	}
	own := make([]LogVote, len(r.logs))
	for i := range r.logs {
		own[i] = r.vote(&r.logs[i])
	}
	answered, counted := 0, 0
	var usable []candidateVote
	r.voters = r.voters[:0]
	count := func(listed, unknown, forgetful bool, v candidateVote) {
		if !listed {
			return
		}
		answered++
		if unknown {
			return
		}
		if !forgetful || !r.rules.Hold(ForgetfulVote) {
			counted++
		}
		usable = append(usable, v)
		disk := r.opening.Disk
		if v.peer != nil {
			disk = v.peer.opening.Disk
		}
		r.voters = append(r.voters, disk)
	}
	count(r.listed(r.set, r.cfg.Node, r.opening.Disk), anyUnknown(own), r.forgetful, candidateVote{nil, own})
	for i := range r.peers {
		if p := &r.peers[i]; p.voted {
			count(r.listed(r.set, p.node, p.opening.Disk), anyUnknown(p.votes), p.forgetful, candidateVote{p, p.votes})
		}
	}
	need := len(r.set)/2 + 1
	if !r.rules.Hold(FenceMajority) {
		need = 1
	}
	// A majority without doubts; or everybody, of whom a majority can say what it holds:
	// then nothing that is left anywhere is overlooked.
	if counted < need && (answered < len(r.set) || len(usable) < need) {
		return
	}
	r.adoptFrom(usable)
}

func anyUnknown(votes []LogVote) bool {
	for i := range votes {
		if votes[i].Unknown {
			return true
		}
	}
	return false
}

// listed says whether the replica on node with disk is a member of set.
func (r *Replica) listed(set []meta.Member, node meta.NodeID, disk meta.DiskID) bool {
	for _, m := range set {
		if m.Node == node {
			return m.Disk == disk || !r.rules.Hold(CountListed)
		}
	}
	return false
}

// adoptFrom chooses, log by log, the furthest of the fenced replicas and begins to take
// over what is missing.
func (r *Replica) adoptFrom(votes []candidateVote) {
	r.role = Adopting
	for i := range r.logs {
		l := &r.logs[i]
		best := candidateVote{}
		if len(votes) > 0 {
			best = votes[0]
			for _, v := range votes[1:] {
				if r.further(&v.votes[i], &best.votes[i]) {
					best = v
				}
			}
		}
		l.adopt = adoption{}
		if best.peer != nil && r.rules.Hold(AdoptFurthest) && (i == 0 || r.rules.Hold(FenceAllLogs)) {
			l.adopt = adoption{from: best.peer.node, head: best.votes[i].Head, tail: best.votes[i].Tail}
		}
		l.matched = 0
	}
	for i := range r.logs {
		r.adoptStep(&r.logs[i])
		if r.role != Adopting {
			return
		}
	}
}

// further says whether vote a is further than b.
func (r *Replica) further(a, b *LogVote) bool {
	if a.Last != b.Last && r.rules.Hold(FurthestByGeneration) {
		return a.Last > b.Last
	}
	return a.Tail > b.Tail
}
