package replica

import (
	"slices"
	"time"

	"github.com/felixlog/felix/internal/meta"
)

type shipState uint8

const (
	probing   shipState = iota // one batch or question at a time, until one is followed
	streaming                  // batches follow one another without waiting
)

// nowhere is where a follower was asked that could not say yet.
const nowhere = ^Offset(0)

// progress is one log of one follower as the leader sees it.
type progress struct {
	// match is one past the last record the follower holds, verified and durable. It
	// moves up with its answers, and starts anew with each opening of the follower.
	// match <= next.
	match Offset
	// next is the offset of the next record to ship. It moves up by shipping and down
	// when a batch was refused or lost. next <= the log's tail.
	next  Offset
	state shipState
	// asked: a probe is unanswered. fetching: the log is being read for this follower.
	asked    bool
	probeAt  Offset // the place the unanswered probe named; nowhere if it was refused for now
	probeEnd Offset // one past the records it carried
	fetching bool
	sentAt   time.Duration // of the oldest unanswered batch or probe
	inflight int           // batches shipped and not answered
	ends     [MaxInflight]Offset
	first    int
	// held is one past the last record the follower had of its own when it was last asked.
	// It compares what it has one batch at a time, so until match gets there a second batch
	// would find it busy, and be sent again by the clock.
	held Offset
	// told is the mark the follower was last told.
	told     Offset
	toldHead Offset
}

func (p *progress) shipped(end Offset, now time.Duration) {
	if p.inflight == 0 {
		p.sentAt = now
	}
	p.ends[(p.first+p.inflight)%MaxInflight] = end
	p.inflight++
	p.next = end
}

func (p *progress) answered(match Offset, now time.Duration) {
	for p.inflight > 0 && p.ends[p.first] <= match {
		p.first = (p.first + 1) % MaxInflight
		p.inflight--
		p.sentAt = now
	}
}

// full says that nothing more may be shipped before an answer comes.
func (p *progress) full() bool {
	return p.asked || p.inflight == MaxInflight || p.inflight > 0 && p.match < p.held
}

// again is where to ask when an answer is missing: the same question, or, of batches in
// flight, from where they were last answered.
func (p *progress) again() Offset {
	if p.state == probing {
		return p.next
	}
	return p.match
}

func (p *progress) probe(next Offset) {
	p.state, p.next, p.inflight, p.asked = probing, max(next, p.match), 0, false
}

// peer is another replica as the leader sees it: member, proposed member or learner.
type peer struct {
	node    meta.NodeID
	opening Opening // zero until heard
	heard   time.Duration
	logs    []progress
	learner bool // kept although no set lists it

	votes     []LogVote
	voted     bool
	forgetful bool

	round   uint64        // the highest read round it answered
	leaseAt time.Duration // the sending time of the latest Beat it granted a lease for
	leased  bool
	telling bool // the last Beat, sent at toldAt, is unanswered
	toldAt  time.Duration
}

// admit takes note of who answers. It reports false for an answer of an opening that is
// over.
func (p *peer) admit(m *Message, r *Replica) bool {
	o := m.Opening
	if o.Disk == p.opening.Disk && o.Count < p.opening.Count {
		return false
	}
	if o != p.opening {
		p.opening = o
		p.votes, p.voted = nil, false
		p.leased, p.round, p.telling = false, 0, false
		for i := range p.logs {
			p.logs[i] = progress{next: r.logs[i].tail, state: probing}
		}
	}
	p.heard = r.now
	return true
}

func (r *Replica) peer(n meta.NodeID) *peer {
	for i := range r.peers {
		if r.peers[i].node == n {
			return &r.peers[i]
		}
	}
	return nil
}

// meetPeers makes a peer for every node the sets list, and drops those that are neither
// listed nor learners.
func (r *Replica) meetPeers() {
	listed := func(n meta.NodeID) bool {
		in := func(set []meta.Member) bool {
			return slices.ContainsFunc(set, func(m meta.Member) bool { return m.Node == n })
		}
		return in(r.set) || r.proposal != nil && in(r.proposal.assignment.Members)
	}
	r.peers = slices.DeleteFunc(r.peers, func(p peer) bool { return !listed(p.node) && !p.learner })
	meet := func(set []meta.Member) {
		for _, m := range set {
			if m.Node != r.cfg.Node && r.peer(m.Node) == nil {
				r.addPeer(m.Node, false)
			}
		}
	}
	meet(r.set)
	if r.proposal != nil {
		meet(r.proposal.assignment.Members)
	}
}

func (r *Replica) addPeer(n meta.NodeID, learner bool) *peer {
	p := peer{node: n, learner: learner, heard: r.now, logs: make([]progress, len(r.logs))}
	for i := range p.logs {
		p.logs[i] = progress{next: r.logs[i].tail, state: probing}
	}
	r.peers = append(r.peers, p)
	return &r.peers[len(r.peers)-1]
}

// Learn makes the leader bring a node level that no set lists yet.
func (r *Replica) Learn(now time.Duration, n meta.NodeID) {
	r.now = now
	if r.role != Starting && r.role != Leading || n == r.cfg.Node || r.peer(n) != nil {
		return
	}
	r.pumpAll(r.addPeer(n, true))
}

// Dismiss ends Learn for a node.
func (r *Replica) Dismiss(now time.Duration, n meta.NodeID) {
	r.now = now
	if p := r.peer(n); p != nil {
		p.learner = false
		r.meetPeers()
	}
}

// shipWritten takes a group the leader's log has written and ships it, from the bytes
// the log wrote, to every follower that is level with it.
func (r *Replica) shipWritten(l *shardLog, first, next Offset, encoded []byte) {
	before := l.last
	end, err := walk(encoded, first, before.Generation, &l.gens)
	if err != nil || first != before.Next || end.Next != next {
		r.halt(logText(l.id) + ": the log wrote something else than it says")
		return
	}
	l.tail, l.written, l.last = next, next, end
	l.sizes.push(next, len(encoded), int64(r.now))
	if !l.hasStart && (r.role == Starting || r.role == Leading) && end.Generation == r.term.Generation {
		l.hasStart, l.start = true, first
	}
	for i := range r.peers {
		p := &r.peers[i]
		pr := &p.logs[l.id]
		if pr.next != first || pr.fetching || pr.full() {
			continue // it is behind: it is fed from the log as it answers
		}
		r.ship(p, l, before, encoded, next)
	}
}

// ship sends records that follow prev.
func (r *Replica) ship(p *peer, l *shardLog, prev Place, encoded []byte, next Offset) {
	pr := &p.logs[l.id]
	if prev.Next == l.head {
		prev = Place{Next: prev.Next} // what is before the head is committed and not named
	}
	m := r.send(Append, p.node, r.term)
	m.Log, m.Prev, m.Bytes = l.id, prev, encoded
	m.Mark, m.Head, m.Tail, m.Peer = l.mark, l.head, l.tail, p.opening.Count
	pr.told, pr.toldHead = l.mark, l.head
	if pr.state == streaming {
		pr.shipped(next, r.now)
		return
	}
	pr.asked, pr.sentAt = true, r.now
	pr.probeAt, pr.probeEnd = prev.Next, next
}

// pump gives a follower the next thing it needs of one log: a probe, or records read
// from the log when it is behind.
func (r *Replica) pump(p *peer, l *shardLog) {
	pr := &p.logs[l.id]
	if r.role != Starting && r.role != Leading || pr.fetching || pr.full() {
		return
	}
	switch {
	case pr.next < l.head:
		m := r.send(Reset, p.node, r.term)
		m.Log, m.Match, m.Mark, m.Head, m.Tail, m.Peer = l.id, l.head, l.mark, l.head, l.tail, p.opening.Count
		pr.asked, pr.sentAt = true, r.now
		pr.probeAt, pr.probeEnd = l.head, l.head
	case pr.next < l.written:
		pr.fetching, pr.sentAt = true, r.now
		r.effect(Effect{Type: Fetch, Log: l.id, At: pr.next, Limit: r.cfg.ShipBytes, Peer: p.node})
	case pr.next < l.tail: // being written: it is fetched when it is there
	case pr.state == probing:
		r.ship(p, l, l.last, nil, l.tail)
	}
}

func (r *Replica) pumpAll(p *peer) {
	for i := range r.logs {
		r.pump(p, &r.logs[i])
	}
}

// Fetched answers Fetch: the records from at on, and the place before them. failed says
// that they cannot be read; trimmed that they are no longer there.
func (r *Replica) Fetched(now time.Duration, id LogID, to meta.NodeID, at Place, encoded []byte, next Offset, failed bool) {
	r.now = now
	l := &r.logs[id]
	if !r.leads() {
		if r.role == Follower && r.leader == to && r.following == r.accepted {
			m := r.send(Pulled, to, r.following)
			m.Log, m.Prev, m.Bytes, m.Match = id, at, encoded, next
			m.Tail, m.Head = l.tail, l.head
			if failed {
				m.Refused = RefusedUnable
			}
			m.At, m.Start = l.generationAt(at.Next)
		}
		return
	}
	p := r.peer(to)
	if p == nil {
		return
	}
	pr := &p.logs[id]
	if !pr.fetching {
		return
	}
	pr.fetching = false
	if failed || next > l.written {
		return // Tick tries again
	}
	if at.Next == pr.next {
		r.ship(p, l, at, encoded, next)
	} // else an answer led elsewhere while it was read
	r.pump(p, l)
}

// appended takes a follower's answer.
func (r *Replica) appended(p *peer, m *Message) {
	if r.role != Starting && r.role != Leading {
		return
	}
	l := &r.logs[m.Log]
	pr := &p.logs[m.Log]
	if match := min(m.Match, l.tail); match > pr.match {
		pr.match = match
		pr.next = max(pr.next, match)
		pr.answered(match, r.now)
		r.advance(l)
	}
	if pr.match >= l.mark {
		pr.told = min(pr.told, m.Mark) // a Beat may have come before the records it is about
	}
	switch m.Refused {
	case NotRefused:
		switch {
		case !pr.asked:
		case pr.probeAt == nowhere:
			pr.asked = false // what it was busy with is done
		case m.Prev.Next == pr.probeAt || pr.match >= pr.probeEnd && m.Match >= pr.probeAt:
			pr.asked, pr.state, pr.inflight, pr.held = false, streaming, 0, m.Tail
			pr.next = max(pr.match, pr.probeEnd)
			if pr.match < pr.probeEnd {
				pr.shipped(pr.probeEnd, r.now)
			}
		}
		pr.held = min(pr.held, m.Tail) // it may have cut its log
	case Introduced:
		if !pr.fetching {
			to := l.inCommon(m)
			if m.Tail >= l.head {
				// What it cannot name may still be the same from the head on.
				to = max(to, l.head)
			}
			pr.probe(to)
		}
	case RefusedBusy, RefusedLater, RefusedUnable, RefusedCommitted:
		if pr.state == streaming || pr.asked {
			pr.probe(pr.again())
			pr.asked, pr.sentAt, pr.probeAt = true, r.now, nowhere // its next answer asks again, or Tick
		}
		return
	default:
		r.stepBack(l, pr, m)
	}
	r.pump(p, l)
}

// stepBack chooses the place to try next after a refusal: where the follower ends or its
// generation does here, or where the younger of the two generations at the refused place
// began.
func (r *Replica) stepBack(l *shardLog, pr *progress, m *Message) {
	asked := m.Prev.Next
	if asked < pr.match || pr.state == probing && (!pr.asked || asked != pr.probeAt && pr.probeAt != nowhere) {
		return // an answer that later ones overtook
	}
	to := min(l.inCommon(m), asked)
	if to == asked && asked > 0 {
		gen, start := l.generationAt(asked)
		if m.At > gen {
			start = m.Start
		}
		to = min(start, asked-1)
	}
	if to < l.head && asked > l.head && m.Tail >= l.head {
		// What neither can name may still be the same from the head on; only a follower that
		// refuses there has to begin anew.
		to = l.head
	}
	if m.Head > to {
		to = m.Head
		if asked == m.Head {
			// Nothing above its head is the same: it begins anew at this log's head.
			to = 0
		}
	}
	pr.probe(to)
}

// tickLeader sends again what was not answered, and tells marks that nothing else told.
func (r *Replica) tickLeader() {
	switch r.role {
	case Fencing:
		if r.now-r.round.sentAt >= ResendAfter {
			r.sendFences()
			if !r.round.selfDone && !r.round.flushing {
				r.round.flushing = true
				r.effect(Effect{Type: Flush})
			}
		}
		return
	case Adopting:
		r.tickAdopting()
		return
	}
	for i := range r.peers {
		p := &r.peers[i]
		for j := range p.logs {
			pr := &p.logs[j]
			l := &r.logs[j]
			if (pr.asked || pr.inflight > 0) && r.now-pr.sentAt >= ResendAfter {
				pr.probe(pr.again())
			}
			if pr.fetching && r.now-pr.sentAt >= 10*ResendAfter {
				pr.fetching = false
			}
			r.pump(p, l)
		}
	}
	for i := range r.logs {
		r.acknowledge(&r.logs[i])
	}
	r.tickReads()
	r.tellMarks()
	r.tickChange()
}

// settledLeader says that no follower waits for anything and nothing waits for one.
func (r *Replica) settledLeader() bool {
	if r.proposal != nil || r.asking || r.reads.waiting() {
		return false
	}
	for i := range r.peers {
		p := &r.peers[i]
		if p.telling {
			return false
		}
		for j := range p.logs {
			pr, l := &p.logs[j], &r.logs[j]
			if pr.match != l.tail || pr.told != l.mark || pr.toldHead != l.head {
				return false
			}
		}
	}
	for i := range r.logs {
		if r.logs[i].mark != r.logs[i].tail {
			return false
		}
	}
	return true
}

// resign ends leading, or the way to it.
func (r *Replica) resign(reason string) {
	was := r.role
	if !r.leads() && r.role != Asking {
		return
	}
	r.role = Follower
	r.asked, r.proposal = nil, nil
	r.serving = false
	r.leader = ""
	r.fence = pendingFence{waiting: r.fence.waiting, flushing: r.fence.flushing, term: r.fence.term, from: r.fence.from, round: r.fence.round, peer: r.fence.peer}
	r.round.flushing = false
	r.peers = r.peers[:0]
	for i := range r.logs {
		r.logs[i].matched = 0
		r.logs[i].adopt = adoption{}
	}
	if was == Asking {
		return
	}
	outcome := OutcomeUnknown
	if !r.rules.Hold(UnknownOutcome) {
		outcome = OutcomeNotDone
	}
	r.reads.fail(r)
	if was == Starting || was == Leading {
		r.effect(Effect{Type: Resigned, Term: r.term, Outcome: outcome, Reason: reason})
	}
}
