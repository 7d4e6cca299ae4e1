package replica

import (
	"slices"
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/storage"
)

// Role is what a replica is doing.
type Role uint8

// Roles.
const (
	// Follower: it follows whoever leads, as a member or a learner.
	Follower Role = iota
	// Asking: it asked the metadata for a generation.
	Asking
	// Fencing: it leads the generation and waits for a majority's answers.
	Fencing
	// Adopting: it takes over the furthest log.
	Adopting
	// Starting: it waits for its generation-start records to be committed.
	Starting
	// Leading: it serves.
	Leading
	// Stopped: it takes no part until reopened.
	Stopped
)

// String is the role's name.
func (r Role) String() string {
	return [...]string{"follower", "asking", "fencing", "adopting", "starting", "leading", "stopped"}[r]
}

// Replica is one replica of one shard. See the package comment for how it is driven.
type Replica struct {
	cfg     Config
	rules   Rules
	opening Opening
	now     time.Duration
	role    Role
	logs    []shardLog

	// accepted is the highest term this replica follows or leads; it is on disk (but
	// with PersistGeneration off). It only rises.
	accepted Term
	// persisting is the term being written, zero when none; persisting > accepted
	// unless only the forgetful flag is written.
	persisting    Term
	persistBusy   bool
	forgetful     bool
	leader        meta.NodeID // of accepted, once heard
	newcomer      meta.NodeID // who spoke under the term being persisted
	following     Term        // whose batches are followed: accepted, once it is on disk
	fence         pendingFence
	fenceAfter    time.Duration // grants of an earlier opening may last until here
	granted       time.Duration // a lease was granted to accepted's leader until here
	leaderOpening uint64        // this opening's count, as the leader last named it
	introducedAt  time.Duration // to a leader that does not name this opening

	// assignment is the last one read or written, at version.
	assignment *meta.Assignment
	version    meta.Version
	floor      Generation // a campaign asks for more than this

	// The leader's and the candidate's.
	term      Term
	set       []meta.Member    // what metadata lists, as far as the outcome is known
	proposal  *proposal        // a change whose outcome is not known
	asked     *meta.Assignment // what a campaign asks for, made from askedBase
	askedBase meta.Version
	askedAt   time.Duration
	asking    bool // a transaction or a read of the assignment is under way
	peers     []peer
	round     fenceRound
	voters    []meta.DiskID // whose logs the last fence chose from
	reads     readState
	serving   bool

	starts []storage.GenerationStart // of the batch being looked at

	messages, spareMessages []Message
	effects, spareEffects   []Effect
}

// New is a replica as it was opened. A replica that led before its directory was
// opened again is a follower like any other.
func New(cfg Config, o Opened) *Replica {
	if cfg.ShipBytes == 0 {
		cfg.ShipBytes = MaxShipBytes
	}
	if cfg.UnshippedBytes == 0 {
		cfg.UnshippedBytes = UnshippedBytes
	}
	r := &Replica{cfg: cfg, rules: cfg.Rules, opening: o.Opening, now: o.Now, accepted: o.Accepted, forgetful: o.Forgetful, following: o.Accepted}
	if cfg.Leases && cfg.Rules.Hold(LeaseAfterOpening) {
		r.fenceAfter = o.Now + LeaseTime
	}
	r.logs = make([]shardLog, len(o.Logs))
	for i := range o.Logs {
		l, from := &r.logs[i], &o.Logs[i]
		l.id = LogID(i)
		l.head, l.tail, l.written, l.durable = from.Head, from.Next, from.Next, from.Next
		l.mark = max(from.Head, min(from.Mark, from.Next))
		l.last = from.Last
		l.gens = slices.Clone(from.Generations)
		l.unknown = from.Unknown || len(l.gens) == 0 && from.Head > 0
		if from.Mark > from.Next && cfg.Rules.Hold(ShortIsForgetful) {
			r.forgetful = true
		}
	}
	if r.forgetful {
		// What was committed may be lost wherever power was cut, and then another record is
		// committed in its place: a leader has to say anew how far this log is committed.
		for i := range r.logs {
			r.logs[i].mark = r.logs[i].head
		}
	}
	return r
}

// Role is what the replica is doing.
func (r *Replica) Role() Role { return r.role }

// Serving says whether writes and reads may be taken.
func (r *Replica) Serving() bool { return r.role == Leading }

// Accepted is the highest term accepted.
func (r *Replica) Accepted() Term { return r.accepted }

// Term is the term the replica leads, or asks a majority to follow; zero when it does
// neither.
func (r *Replica) Term() Term {
	if !r.leads() && r.role != Asking {
		return Term{}
	}
	return r.term
}

// Forgetful says whether the replica's vote is conditional (rule 6). Of a replica that New
// found to be so it is on disk before the first Take.
func (r *Replica) Forgetful() bool { return r.forgetful }

// Leader is the node the replica follows, empty when it does not know.
func (r *Replica) Leader() meta.NodeID { return r.leader }

// Set is the replica set a leader counts with; pending is the one proposed, nil when
// none is.
func (r *Replica) Set() (set, pending []meta.Member) {
	if r.proposal != nil {
		return r.set, r.proposal.assignment.Members
	}
	return r.set, nil
}

// Voters are the disks whose votes the term this replica leads was built on.
func (r *Replica) Voters() []meta.DiskID { return slices.Clone(r.voters) }

// LogStatus is one log as the replica sees it.
type LogStatus struct {
	Head, Mark, Durable, Written, Tail, Matched Offset
	Last                                        Generation
	Unknown                                     bool
}

// Log is the state of one log.
func (r *Replica) Log(id LogID) LogStatus {
	l := &r.logs[id]
	return LogStatus{l.head, l.mark, l.durable, l.written, l.tail, l.matched, l.lastGeneration(), l.unknown}
}

// ReadLimit is where readers of a log stop.
func (r *Replica) ReadLimit(id LogID) Offset {
	if !r.rules.Hold(ReadersStop) {
		return r.logs[id].written
	}
	return r.logs[id].mark
}

// above says that t is to be followed rather than the accepted term: it has a higher
// generation. same says that it is the accepted one.
func (r *Replica) above(t Term) bool { return t.Generation > r.accepted.Generation }
func (r *Replica) same(t Term) bool  { return t == r.accepted }

// Receive handles a message. Its bytes are kept until the effects that carry them are
// answered.
func (r *Replica) Receive(now time.Duration, m *Message) {
	r.now = now
	if m.Shard != r.cfg.Shard || m.From == r.cfg.Node || int(m.Log) >= len(r.logs) || r.role == Stopped && m.Type != Fence {
		return
	}
	switch m.Type {
	case Append, Beat, Reset:
		r.receiveLeader(m)
	case Fence:
		r.receiveFence(m)
	case Pull:
		r.receivePull(m)
	case Appended, BeatAnswer, FenceAnswer, Pulled:
		if r.leads() && m.Term == r.term && m.Refused == RefusedOlder && m.Accepted.Generation >= r.term.Generation {
			r.outdone(m.Accepted)
			return
		}
		if !r.leads() || m.Term != r.term {
			return
		}
		p := r.peer(m.From)
		if p == nil || !p.admit(m, r) {
			return
		}
		switch m.Type {
		case Appended:
			r.appended(p, m)
		case BeatAnswer:
			r.beatAnswered(p, m)
		case FenceAnswer:
			r.fenceAnswered(p, m)
		case Pulled:
			r.pulled(p, m)
		}
	}
}

// leads says that the replica holds a term of its own, serving or not.
func (r *Replica) leads() bool { return r.role >= Fencing && r.role <= Leading }

// Tick lets time pass: it sends again what was not answered, and ends what waited too
// long. It is not needed while Settled.
func (r *Replica) Tick(now time.Duration) {
	r.now = now
	switch {
	case r.role == Stopped:
	case r.role == Asking:
		r.tickAsking()
	case r.leads():
		r.tickLeader()
	case r.now-r.introducedAt >= ResendAfter:
		r.introduceAgain()
	}
}

// Settled says that nothing happens until something comes in: Tick has nothing to do.
func (r *Replica) Settled() bool {
	switch r.role {
	case Follower:
		return !r.fence.waiting && r.overlooking() == ""
	case Stopped:
		return !r.fence.waiting
	case Leading:
		return r.settledLeader()
	}
	return false
}

// Persisted says that the Persist of term is on the disk.
func (r *Replica) Persisted(now time.Duration, term Term, forgetful bool) {
	r.now = now
	if !r.persistBusy || r.persisting != term || r.role == Stopped {
		return
	}
	r.persistBusy = false
	r.forgetful = forgetful
	if term == r.accepted {
		r.rebaseWaiting()
		return
	}
	r.accepted = term
	r.granted = 0
	r.follows(term)
	r.rebaseWaiting()
	switch {
	case r.role == Asking && r.term == term:
		r.fenceAll()
	case r.fence.waiting && r.fence.term == term:
		r.answerFence()
	case r.newcomer != "":
		r.introduce()
	}
}

// follows begins with a term: nothing is compared with its leader's log yet.
func (r *Replica) follows(t Term) {
	r.following = t
	r.leader = ""
	r.leaderOpening = 0
	for i := range r.logs {
		r.logs[i].matched = 0
		r.logs[i].vouch = leaderTails{}
	}
}

// persist asks for t to be put on disk before anything is answered under it.
func (r *Replica) persist(t Term) {
	if r.persistBusy && r.persisting.Generation >= t.Generation {
		return
	}
	if !r.rules.Hold(PersistGeneration) {
		r.persisting, r.persistBusy = t, true
		r.Persisted(r.now, t, r.forgetful)
		return
	}
	r.persisting, r.persistBusy = t, true
	r.effect(Effect{Type: Persist, Term: t, Forgetful: r.forgetful})
}

// Failed says that a write, flush, cut or read of a log failed for good: the log is to
// be opened again, and the replica with it.
func (r *Replica) Failed(now time.Duration, id LogID, reason string) {
	r.now = now
	if r.role == Stopped {
		return
	}
	if r.leads() && !r.rules.Hold(ResignOnFailure) {
		return
	}
	r.halt(logText(id) + ": " + reason)
}

// Reopened takes over a log that was opened again under a leader that did not resign:
// only with ResignOnFailure switched off.
func (r *Replica) Reopened(now time.Duration, id LogID, o LogOpened) {
	r.now = now
	l := &r.logs[id]
	l.cutTo(Place{Next: o.Next, Generation: o.Last.Generation, Checksum: o.Last.Checksum})
	l.written, l.durable = o.Next, o.Next
	l.sizes.reset()
	for i := range r.peers {
		pr := &r.peers[i].logs[id]
		pr.next = min(pr.next, o.Next)
	}
}
