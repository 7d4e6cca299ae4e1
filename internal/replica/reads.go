package replica

import (
	"slices"
	"time"

	"github.com/felixlog/felix/internal/meta"
)

// readState is the linearizable reads that wait for a round. Reads are numbered by the
// caller, ascending; one round serves all that came before it began.
type readState struct {
	round  uint64 // the last round begun
	sentAt time.Duration
	open   bool // a round is under way
	// in the open round: the highest read it serves, and the mark it serves it at.
	read uint64
	mark Offset
	// waiting for the next round.
	next    uint64
	nextN   int
	inRound int

	lease  time.Duration // reads may be served without a round until here
	leases bool
}

func (s *readState) waiting() bool { return s.open || s.nextN > 0 }

func (s *readState) reset() { *s = readState{round: s.round} }

func (s *readState) fail(r *Replica) {
	if last := max(s.next, s.read); s.waiting() && last > 0 {
		r.effect(Effect{Type: ReadFailed, Read: last})
	}
	s.reset()
}

// Read asks to serve the read numbered id (ascending) as of now or later: ReadReady or
// ReadFailed answers it and all before it.
func (r *Replica) Read(now time.Duration, id uint64) {
	r.now = now
	s := &r.reads
	if r.role != Leading || s.nextN+s.inRound >= MaxWaitingReads {
		r.effect(Effect{Type: ReadFailed, Read: id})
		return
	}
	if !r.rules.Hold(ReadRound) || r.now < s.lease && !s.waiting() {
		r.effect(Effect{Type: ReadReady, Read: id, At: r.ReadLimit(0)})
		return
	}
	s.next = id
	s.nextN++
	if !s.open {
		r.beginRound()
	}
}

// beginRound sends one heartbeat round for all the reads that wait.
func (r *Replica) beginRound() {
	s := &r.reads
	s.round++
	s.open, s.sentAt = true, r.now
	s.read, s.mark, s.inRound = s.next, r.logs[0].mark, s.nextN
	s.next, s.nextN = 0, 0
	r.sendRound()
	r.checkRound()
}

func (r *Replica) sendRound() {
	r.reads.sentAt = r.now
	for i := range r.peers {
		if p := &r.peers[i]; p.round < r.reads.round {
			r.beat(p, r.reads.round)
		}
	}
}

// beat sends a Beat: marks and heads, and a round's question when round is not zero.
func (r *Replica) beat(p *peer, round uint64) {
	p.telling, p.toldAt = true, r.now
	m := r.send(Beat, p.node, r.term)
	m.Round, m.SentAt, m.Lease, m.Peer = round, r.now, r.cfg.Leases && round > 0, p.opening.Count
	m.Marks = make([]LogMark, len(r.logs))
	for i := range r.logs {
		l := &r.logs[i]
		m.Marks[i] = LogMark{Mark: l.mark, Head: l.head, Tail: l.tail}
		p.logs[i].told, p.logs[i].toldHead = l.mark, l.head
	}
}

// receiveBeat takes marks and heads from the leader and answers that it did.
func (r *Replica) receiveBeat(m *Message) {
	if len(m.Marks) == len(r.logs) {
		for i := range r.logs {
			l := &r.logs[i]
			if m.Peer == r.opening.Count {
				l.vouch = leaderTails{tail: max(l.vouch.tail, m.Marks[i].Tail), known: true}
			}
			r.learnMark(l, m.Marks[i].Mark)
			r.learnHead(l, m.Marks[i].Head)
		}
	}
	a := r.send(BeatAnswer, m.From, m.Term)
	a.Round, a.SentAt = m.Round, m.SentAt
	if m.Lease && r.cfg.Leases && r.role == Follower && !(r.persistBusy && r.persisting != r.accepted) {
		// Nothing is granted once another term is on its way to the disk, or asked for: the
		// fence that follows was judged by the grants before.
		a.Lease = true
		r.granted = r.now + LeaseTime
	}
	if r.forgetful {
		r.checkLevel()
	}
}

// beatAnswered counts an answer towards the open round and the lease.
func (r *Replica) beatAnswered(p *peer, m *Message) {
	if m.Refused != NotRefused || m.Round > r.reads.round {
		return
	}
	p.round = max(p.round, m.Round)
	p.telling = p.telling && m.SentAt < p.toldAt
	if m.Lease && (!p.leased || m.SentAt > p.leaseAt) {
		p.leased, p.leaseAt = true, m.SentAt
		if !r.rules.Hold(LeaseMargin) {
			p.leaseAt = r.now
		}
		r.extendLease()
	}
	r.checkRound()
}

// checkRound serves the round's reads once a majority of the set, or of both sets,
// answered it.
func (r *Replica) checkRound() {
	s := &r.reads
	if !s.open || r.role != Leading {
		return
	}
	if !r.agreed(func(p *peer) bool { return p.round >= s.round }) {
		return
	}
	s.open, s.inRound = false, 0
	mark := s.mark
	if !r.rules.Hold(ReadersStop) {
		mark = r.ReadLimit(0)
	}
	r.effect(Effect{Type: ReadReady, Read: s.read, At: mark})
	if s.nextN > 0 {
		r.beginRound()
	}
}

// agreed says whether the leader with the peers for which yes holds are a majority of
// each set in force.
func (r *Replica) agreed(yes func(*peer) bool) bool {
	majority := func(set []meta.Member) bool {
		n := 0
		for _, m := range set {
			if m.Node == r.cfg.Node {
				n++
			} else if p := r.peer(m.Node); p != nil && p.opening.Disk == m.Disk && yes(p) {
				n++
			}
		}
		return n > len(set)/2
	}
	return majority(r.set) && (r.proposal == nil || majority(r.proposal.assignment.Members))
}

// extendLease recomputes how long reads may go without a round: from when the latest
// Beat that a majority granted was sent, for 7/8 of the lease, so that clocks may differ
// in rate by an eighth.
func (r *Replica) extendLease() {
	if !r.cfg.Leases || r.role != Leading {
		return
	}
	var at []time.Duration
	for i := range r.peers {
		if r.peers[i].leased {
			at = append(at, r.peers[i].leaseAt)
		}
	}
	slices.Sort(at)
	for i := len(at) - 1; i >= 0; i-- {
		t := at[i]
		if r.agreed(func(p *peer) bool { return p.leased && p.leaseAt >= t }) {
			length := LeaseTime * 7 / 8
			if !r.rules.Hold(LeaseMargin) {
				length = LeaseTime
			}
			r.reads.lease = max(r.reads.lease, t+length)
			return
		}
	}
}

func (r *Replica) tickReads() {
	s := &r.reads
	if s.open && r.now-s.sentAt >= ResendAfter {
		r.sendRound()
	}
}

// tellMarks tells followers a mark or head that no batch carried to them, until they answer.
func (r *Replica) tellMarks() {
	for i := range r.peers {
		p := &r.peers[i]
		again := p.telling && r.now-p.toldAt >= ResendAfter
		for j := range p.logs {
			pr, l := &p.logs[j], &r.logs[j]
			if (again || pr.told != l.mark || pr.toldHead != l.head) && pr.state == streaming {
				r.beat(p, 0)
				break
			}
		}
	}
}
