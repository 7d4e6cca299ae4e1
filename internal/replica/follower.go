package replica

import (
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/storage"
)

// receiveLeader handles what only the leader of an accepted term may say.
func (r *Replica) receiveLeader(m *Message) {
	switch {
	case r.same(m.Term) && !r.leads():
	case r.above(m.Term):
		if r.persistBusy && r.persisting.Generation >= m.Term.Generation {
			return // its sender asks again
		}
		r.deposed(m.Term)
		r.newcomer = m.From
		r.persist(m.Term)
		if !r.same(m.Term) {
			return
		}
	case !r.rules.Hold(RefuseOlder) && !r.leads():
	default:
		r.refuseOlder(m)
		return
	}
	if r.following != m.Term {
		r.follows(m.Term)
	}
	r.followNode(m.From)
	r.leaderOpening = max(r.leaderOpening, m.Peer)
	switch m.Type {
	case Append:
		r.receiveAppend(m)
	case Beat:
		r.receiveBeat(m)
	case Reset:
		r.receiveReset(m)
	}
}

func (r *Replica) refuseOlder(m *Message) {
	t := Appended
	if m.Type == Beat {
		t = BeatAnswer
	}
	a := r.send(t, m.From, m.Term)
	a.Log, a.Prev, a.Round = m.Log, m.Prev, m.Round
	a.Refused, a.Accepted = RefusedOlder, r.accepted
}

// deposed makes room for a higher term.
func (r *Replica) deposed(by Term) {
	if r.leads() || r.role == Asking {
		r.resign("generation " + generationText(by.Generation) + " leads")
	}
}

// introduce tells a leader that was just accepted where this replica stands, so that it
// need not guess.
func (r *Replica) introduce() {
	r.followNode(r.newcomer)
	r.newcomer = ""
	r.introduceTo(r.leader)
}

// followNode takes note of who leads the term that is followed.
func (r *Replica) followNode(n meta.NodeID) {
	if r.leader != n {
		r.leader = n
		r.effect(Effect{Type: Followed, Term: r.following, Peer: n})
	}
}

// overlooking is the node that leads the accepted term and has not named this opening yet,
// empty when there is none. It may count on what an opening before this one held and, with
// nothing to ship, say nothing.
func (r *Replica) overlooking() meta.NodeID {
	a := r.assignment
	if r.role != Follower || r.persistBusy || a == nil || a.Leader == r.cfg.Node || r.leaderOpening == r.opening.Count || !r.same(termOf(a)) || r.following != r.accepted {
		return ""
	}
	return a.Leader
}

// introduceAgain tells a leader that overlooks this opening where it stands.
func (r *Replica) introduceAgain() {
	n := r.overlooking()
	if n == "" {
		return
	}
	r.introducedAt = r.now
	r.introduceTo(n)
}

func (r *Replica) introduceTo(n meta.NodeID) {
	for i := range r.logs {
		r.answerTo(n, &r.logs[i], Introduced, r.logs[i].last)
	}
}

// receiveAppend follows the leader's records for one log.
func (r *Replica) receiveAppend(m *Message) {
	l := &r.logs[m.Log]
	if m.Peer == r.opening.Count {
		l.vouch = leaderTails{tail: max(l.vouch.tail, m.Tail), known: true}
	}
	if l.busy != idle {
		r.answer(l, RefusedBusy, m.Prev)
		return
	}
	tail := l.tail
	if m.Prev.Next < l.head && m.Tail >= l.head {
		// What is below the head is committed and gone here: only from there on can the
		// logs be compared.
		r.answer(l, RefusedPlace, m.Prev)
		return
	}
	if r.follow(l, heldBatch{term: m.Term, prev: m.Prev, bytes: m.Bytes, mark: m.Mark}) && (l.tail == tail || !r.rules.Hold(AnswerDurable)) {
		r.answer(l, NotRefused, m.Prev) // what is being written is answered when it is durable
	}
	r.learnHead(l, m.Head)
}

// follow brings a batch into the log: at the tail it is written at once, elsewhere it is
// compared first. It reports whether all of it is matched (written or being written);
// otherwise the batch was refused, or its fate comes with the answer to an effect.
func (r *Replica) follow(l *shardLog, b heldBatch) bool {
	gen := b.prev.Generation
	if gen == 0 && b.prev.Next == l.tail {
		gen = l.last.Generation // the sender cannot name what is before its head
	}
	r.starts = r.starts[:0]
	end, err := walk(b.bytes, b.prev.Next, gen, &r.starts)
	if err != nil {
		r.refuse(l, b, RefusedPlace) // damaged on its way; the sender tries again
		return false
	}
	b.end = end.Next
	at := b.prev.Next
	switch {
	case at > l.tail:
		if !r.rules.Hold(NamePlace) {
			// Without the clause a batch beyond the tail counts as held.
			l.matched, l.tail, l.written, l.durable = b.end, b.end, b.end, b.end
			l.last = end
			return true
		}
		r.refuse(l, b, RefusedGap)
		return false
	case at == l.tail:
		if !r.samePlace(l, b.prev, l.last) || b.from == nil && l.unsaid(b.prev) {
			r.refuse(l, b, RefusedPlace)
			return false
		}
		r.append(l, b, end)
		return true
	case !r.rules.Hold(CompareOverlap):
		// Without the clause what is already there counts as the same.
		if b.end > l.tail {
			b.bytes = skip(b.bytes, l.tail)
			b.prev = l.last
			r.write(l, b)
		} else {
			l.matched = max(l.matched, b.end)
			r.learnMark(l, b.mark)
		}
		return true
	case !r.rules.Hold(CutWhereDiffers):
		// Without the clause every batch ends the log.
		l.busy, l.held = cutting, b
		r.effect(Effect{Type: Cut, Log: l.id, At: at, Prev: b.prev})
		return false
	case b.end <= l.matched && at >= l.head:
		r.learnMark(l, b.mark) // sent twice; compared with this leader before
		return true
	}
	l.busy, l.held = comparing, b
	r.effect(Effect{Type: Compare, Log: l.id, Prev: b.prev, Bytes: b.bytes})
	return false
}

// samePlace compares the place a batch names with the replica's own.
func (r *Replica) samePlace(l *shardLog, named, own Place) bool {
	if named.Next != own.Next {
		return false
	}
	if named.Next <= l.mark && (named.Generation == 0 && named.Checksum == 0 || named.Next == l.head) {
		// What is before a head is committed and may be trimmed: nobody can name it, and
		// nobody needs to.
		return true
	}
	if r.rules.Hold(NameChecksum) && named.Checksum != own.Checksum {
		return false
	}
	if r.rules.Hold(NameGeneration) && named.Generation != own.Generation {
		// Below the first statement of a trimmed log the generation cannot be said; all of
		// that is committed, so the record itself is enough. So it is where the log was
		// compared with this leader's: the mark may be behind, and it moves only once
		// followers came past here.
		return named.Next <= max(l.mark, l.matched) && (own.Generation == 0 || named.Generation == 0)
	}
	return true
}

// write hands a batch that begins at the tail to the log.
func (r *Replica) write(l *shardLog, b heldBatch) {
	gen := b.prev.Generation
	if gen == 0 {
		gen = l.last.Generation
	}
	r.starts = r.starts[:0]
	end, err := walk(b.bytes, b.prev.Next, gen, &r.starts)
	if err != nil || b.prev.Next != l.tail {
		// follow checked these bytes; a caller that changed them broke its contract.
		r.halt("batch changed after it was received")
		return
	}
	r.append(l, b, end)
}

// append hands a batch that was walked to the log: end is the place after it, r.starts
// its generation starts.
func (r *Replica) append(l *shardLog, b heldBatch, end Place) {
	if len(b.bytes) > 0 {
		l.gens = append(l.gens, r.starts...)
		if len(r.starts) > 0 {
			l.unknown = false
		} else {
			// What the sender can say of its log, one that began anew cannot say of its own
			// before a statement came; and it takes the next batch only at its own place.
			end.Generation = l.last.Generation
		}
		r.effect(Effect{Type: Write, Log: l.id, Prev: l.last, Bytes: b.bytes, At: end.Next})
		l.tail, l.last = end.Next, end
	}
	l.matched = max(l.matched, b.end)
	r.learnMark(l, b.mark)
}

// refuse answers a batch that does not fit, to whoever sent it.
func (r *Replica) refuse(l *shardLog, b heldBatch, why Refusal) {
	if b.from != nil {
		r.pullRefused(l, b, why)
		return
	}
	r.answer(l, why, b.prev)
}

// answer tells the leader how far this log is verified and durable, or why a batch at
// asked was refused and where to go back to.
func (r *Replica) answer(l *shardLog, why Refusal, asked Place) {
	if r.leader != "" {
		r.answerTo(r.leader, l, why, asked)
	}
}

func (r *Replica) answerTo(n meta.NodeID, l *shardLog, why Refusal, asked Place) {
	m := r.send(Appended, n, r.following)
	m.Log, m.Prev, m.Refused = l.id, asked, why
	m.Tail, m.Head, m.Mark = l.tail, l.head, l.mark
	m.Match = r.answerable(l)
	r.describe(m, l, asked)
	if why == NotRefused && r.forgetful {
		r.checkLevel()
	}
}

// describe fills in where a sender whose place did not fit should go back to.
func (r *Replica) describe(m *Message, l *shardLog, asked Place) {
	if m.Refused == NotRefused {
		return
	}
	m.At, m.Start = l.generationAt(min(asked.Next, l.tail))
	m.Start = max(m.Start, l.head)
}

func (r *Replica) answerable(l *shardLog) Offset {
	match := l.matched
	if !r.rules.Hold(AnswerVerified) {
		match = l.tail
	}
	if r.rules.Hold(AnswerDurable) {
		match = min(match, l.durable)
	}
	return match
}

// Written says that the log wrote records up to next. Of the log's own appends encoded
// are the records from first on as they are on the disk, valid during the call; it is nil
// for what Write handed over. One group is one or the other: of a mixed one each part is
// reported by itself.
func (r *Replica) Written(now time.Duration, id LogID, first, next Offset, encoded []byte) {
	r.now = now
	l := &r.logs[id]
	if r.leads() && next > l.tail {
		r.shipWritten(l, first, next, encoded)
		return
	}
	if encoded != nil && !r.leads() {
		// An append that was under way when the replica resigned: a suffix nobody was sent.
		if first < l.tail {
			// It took the place of records that were handed over since. The log refuses
			// those, and until it is opened again nothing it says can be told apart.
			r.halt(logText(l.id) + ": an append of the last generation took the place of the leader's record " + offsetText(first))
			return
		}
		end, err := walk(encoded, first, l.last.Generation, &l.gens)
		if err != nil || end.Next != next {
			r.halt(logText(l.id) + ": the log wrote something else than it says")
			return
		}
		l.tail, l.last = next, end
	}
	l.written = max(l.written, min(next, l.tail))
	switch r.role {
	case Adopting:
		r.adoptStep(l)
	case Starting, Leading:
		// The last of what was adopted: followers may be waiting for it.
		for i := range r.peers {
			r.pump(&r.peers[i], l)
		}
	}
}

// Stable says that the records up to next are as durable as the policy acknowledges.
func (r *Replica) Stable(now time.Duration, id LogID, next Offset) {
	r.now = now
	l := &r.logs[id]
	next = min(next, l.tail)
	if next <= l.durable {
		return
	}
	l.durable = next
	l.written = max(l.written, next)
	switch {
	case r.role == Starting || r.role == Leading:
		r.advance(l)
		r.acknowledge(l)
	case r.role == Follower && l.matched > 0:
		r.answer(l, NotRefused, l.last)
	}
}

// Compared answers Compare: whether the log holds the named place (own is its own
// there), and how far it holds the same bytes. differ is the offset of the first record
// that is not the same, or one past the last compared.
func (r *Replica) Compared(now time.Duration, id LogID, own Place, differ Offset) {
	r.now = now
	l := &r.logs[id]
	if l.busy != comparing {
		return
	}
	b := l.held
	l.busy, l.held = idle, heldBatch{}
	if r.overtaken(l, b) {
		return
	}
	if !r.samePlace(l, b.prev, own) {
		r.refuse(l, b, RefusedPlace)
		return
	}
	switch {
	case differ >= min(b.end, l.tail): // the same as far as both go
		l.matched = max(l.matched, min(b.end, l.tail))
		r.learnStarts(l, b, l.matched)
		if b.end > l.tail {
			b.bytes = skip(b.bytes, l.tail)
			b.prev = l.last
			r.write(l, b)
		} else {
			r.learnMark(l, b.mark)
		}
		r.followed(l, b)
	case r.role == Adopting && !r.rules.Hold(CutDivergent):
		l.matched = l.tail // without the clause what differs stays
		l.adopt.done = true
		r.adoptDone()
	case differ < l.mark && r.rules.Hold(KeepCommitted):
		r.refuse(l, b, RefusedCommitted)
		r.halt(logText(id) + ": the leader's record " + offsetText(differ) + " differs from a committed one")
	default:
		r.learnStarts(l, b, differ)
		b.bytes = skip(b.bytes, differ)
		l.busy, l.held = cutting, b
		r.effect(Effect{Type: Cut, Log: id, At: differ})
	}
}

// WasCut answers Cut: the log ends at place p, flushed.
func (r *Replica) WasCut(now time.Duration, id LogID, p Place) {
	r.now = now
	l := &r.logs[id]
	if l.busy != cutting {
		return
	}
	b := l.held
	l.busy, l.held = idle, heldBatch{}
	l.cutTo(p)
	if r.overtaken(l, b) {
		return
	}
	l.matched = max(l.matched, p.Next)
	l.said()
	b.prev = p
	r.write(l, b)
	r.followed(l, b)
}

// learnStarts takes over the generation starts of a batch, up to where the log holds the
// same, if the log cannot say them itself.
func (r *Replica) learnStarts(l *shardLog, b heldBatch, end Offset) {
	if !l.unknown {
		return
	}
	r.starts = r.starts[:0]
	if _, err := walk(b.bytes, b.prev.Next, b.prev.Generation, &r.starts); err != nil {
		return // follow checked these bytes
	}
	for _, s := range r.starts {
		if n := len(l.gens); s.Start < end && (n == 0 || s.Start > l.gens[n-1].Start) {
			l.gens = append(l.gens, s)
		}
	}
	l.said()
}

// overtaken says that a batch under way belongs to a term that is no longer followed.
func (r *Replica) overtaken(l *shardLog, b heldBatch) bool {
	if r.role == Stopped {
		return true
	}
	if b.term == r.following && b.prev.Next <= l.tail {
		return false
	}
	if r.role == Adopting {
		r.adoptStep(l)
	}
	return true
}

// followed goes on after a batch that took effects to follow.
func (r *Replica) followed(l *shardLog, b heldBatch) {
	if b.from != nil || r.role == Adopting {
		r.adoptStep(l)
		return
	}
	r.answer(l, NotRefused, b.prev)
}

// receiveReset begins the log anew where the leader's begins, if nothing committed is
// lost by it.
func (r *Replica) receiveReset(m *Message) {
	l := &r.logs[m.Log]
	switch {
	case l.busy != idle:
		r.answer(l, RefusedBusy, m.Prev)
	case l.tail >= m.Match && (l.mark >= m.Match || l.head >= m.Match):
		// It holds the leader's first record or what is before it: no need to begin anew.
		r.answer(l, Introduced, l.last)
	case !r.beginAnew(l, m.Term, m.Match):
		r.answer(l, RefusedBusy, m.Prev)
	}
}

// beginAnew empties the log to begin at base, under term. A log that reaches above base
// may drop records it answered for; until it is level again its vote is as that of a
// replica that forgot them, and that is on disk first. It reports false while the disk
// is busy with another term.
func (r *Replica) beginAnew(l *shardLog, term Term, base Offset) bool {
	if l.tail <= base || r.forgetful {
		l.busy, l.held = rebasing, heldBatch{term: term}
		r.effect(Effect{Type: Rebase, Log: l.id, At: base})
		return true
	}
	if r.persistBusy {
		return false
	}
	l.busy, l.held = rebasing, heldBatch{term: term, base: base, waits: true}
	r.forgetful, r.persisting, r.persistBusy = true, r.accepted, true
	r.effect(Effect{Type: Persist, Term: r.accepted, Forgetful: true})
	return true
}

// rebaseWaiting goes on with rebasings that waited for the disk.
func (r *Replica) rebaseWaiting() {
	for i := range r.logs {
		l := &r.logs[i]
		if l.busy != rebasing || !l.held.waits {
			continue
		}
		if l.held.term != r.following {
			l.busy, l.held = idle, heldBatch{}
			continue
		}
		l.held.waits = false
		r.effect(Effect{Type: Rebase, Log: l.id, At: l.held.base})
	}
}

// WasReset answers Rebase.
func (r *Replica) WasReset(now time.Duration, id LogID, base Offset) {
	r.now = now
	l := &r.logs[id]
	if l.busy != rebasing {
		return
	}
	l.busy, l.held = idle, heldBatch{}
	l.rebaseTo(base)
	switch r.role {
	case Follower:
		r.effect(Effect{Type: Committed, Log: id, At: l.mark})
		r.answer(l, NotRefused, l.last)
	case Adopting:
		r.adoptStep(l)
	}
}

// learnMark moves the committed mark to what the leader says, as far as this log is
// known to be the leader's.
func (r *Replica) learnMark(l *shardLog, mark Offset) {
	to := min(mark, l.matched)
	if to > l.mark {
		l.mark = to
		r.effect(Effect{Type: Committed, Log: l.id, At: to})
	}
}

// learnHead trims to the leader's head, below the own mark.
func (r *Replica) learnHead(l *shardLog, head Offset) {
	if r.rules.Hold(TrimBelowMark) {
		head = min(head, l.mark)
	}
	head = min(head, l.tail)
	if n := len(l.gens); n == 0 || l.gens[n-1].Start < head {
		return // the log must go on saying its generation
	}
	if head > l.head {
		l.head = head
		r.effect(Effect{Type: Trim, Log: l.id, At: head})
	}
}

// checkLevel ends a forgetful replica's doubt: it holds, durably, all that the leader
// had written when it last spoke to this very opening.
func (r *Replica) checkLevel() {
	if !r.forgetful || r.persistBusy || r.leaderOpening != r.opening.Count {
		return
	}
	for i := range r.logs {
		l := &r.logs[i]
		if r.rules.Hold(DoubtUntilLevel) && (l.unknown || !l.vouch.known || min(l.matched, l.durable) < l.vouch.tail) {
			return
		}
	}
	r.persisting, r.persistBusy = r.accepted, true
	r.effect(Effect{Type: Persist, Term: r.accepted, Forgetful: false})
}

func offsetText(o Offset) string { return storage.Offset(o).String() }
