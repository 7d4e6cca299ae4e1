package replica

import (
	"sort"

	"github.com/felixlog/felix/storage"
)

// pending is what a log is busy with; while it is, further batches for it are refused
// and sent again by their sender.
type pending uint8

const (
	idle pending = iota
	comparing
	cutting
	rebasing
)

// shardLog is the replica's view of one of its logs.
type shardLog struct {
	id LogID

	// head is the oldest offset retained, for replication: the log may keep older
	// segments. It moves up by retention and by rebasing. head <= mark.
	head Offset
	// mark is one past the last record known to be committed. It moves up with the
	// quorum on a leader and with what the leader says on a follower, and never down.
	// head <= mark <= tail.
	mark Offset
	// durable is one past the last record as durable as the policy acknowledges. It
	// moves up by Stable and down by a cut. durable <= written.
	durable Offset
	// written is one past the last record the log has written. written <= tail.
	written Offset
	// tail is one past the last record handed to the log. It moves up when a batch is
	// handed over (on a leader: when it was written) and down by a cut.
	tail Offset
	// matched is how far a follower compared its log with the log of the leader it
	// follows, by Prev and bytes. Zero with each new term. A follower answers
	// min(matched, durable). matched <= tail.
	matched Offset
	// last is the place tail stands at, as this log itself names it. last.Next == tail.
	last Place
	// gens are the generation starts in the log, ascending by start; a generation may
	// be stated again, so that retention can drop the older statement.
	gens []storage.GenerationStart
	// unknown: the log cannot say the generation of its last record.
	unknown bool

	busy  pending
	held  heldBatch   // what to go on with when busy ends
	vouch leaderTails // follower: what it takes to be level

	adopt adoption // candidate

	start     Offset // leader: of its own generation-start record
	hasStart  bool
	restating bool   // leader: its generation is being stated again
	acked     Offset // leader: Acknowledge was emitted up to here. acked <= written
	sizes     ring   // leader: the batches not yet committed
}

type heldBatch struct {
	term  Term
	prev  Place
	bytes []byte
	end   Offset
	from  *peer      // nil: the leader's Append; else a Pulled answer's (adoption)
	at    Generation // with from: of the record before prev, there
	start Offset     // with from: where that generation began, there
	mark  Offset
	base  Offset // of a rebasing
	waits bool   // a rebasing waits for the disk
}

// leaderTails is how far the leader's log was when it last spoke to this very opening.
type leaderTails struct {
	tail  Offset
	known bool
}

// lastGeneration is that of the newest generation-start record.
func (l *shardLog) lastGeneration() Generation {
	if n := len(l.gens); n > 0 {
		return l.gens[n-1].Generation
	}
	return 0
}

// generationAt is the generation of the record before next, and where it was first
// started. Zero when nothing says.
func (l *shardLog) generationAt(next Offset) (Generation, Offset) {
	i := sort.Search(len(l.gens), func(i int) bool { return l.gens[i].Start >= next })
	if i == 0 {
		return 0, l.head
	}
	i--
	for i > 0 && l.gens[i-1].Generation == l.gens[i].Generation {
		i--
	}
	return l.gens[i].Generation, l.gens[i].Start
}

// endOf is one past the last record of generations up to g.
func (l *shardLog) endOf(g Generation) Offset {
	i := sort.Search(len(l.gens), func(i int) bool { return l.gens[i].Generation > g })
	if i == len(l.gens) {
		return l.tail
	}
	return l.gens[i].Start
}

// inCommon is the furthest place that the log of a follower, as its answer m describes it,
// may have in common with this one: its tail, or where its generation ends here. One that
// cannot say its generation has the committed records in common; of these it is asked from
// a statement on, so that it can say its generation once it has compared them.
func (l *shardLog) inCommon(m *Message) Offset {
	if m.At != 0 {
		return min(m.Tail, l.endOf(m.At))
	}
	return min(m.Tail, l.statedBefore(min(m.Tail, m.Mark)))
}

// statedBefore is where the generation of the record before next was last stated, and the
// head where that is not known.
func (l *shardLog) statedBefore(next Offset) Offset {
	i := sort.Search(len(l.gens), func(i int) bool { return l.gens[i].Start >= next })
	if i == 0 {
		return l.head
	}
	return l.gens[i-1].Start
}

// unsaid says that nothing tells the generation of the log's last record, though the
// leader that named place could tell, and that the log was not compared with the leader's:
// it is to be asked further back first.
func (l *shardLog) unsaid(named Place) bool {
	return l.unknown && l.matched < named.Next && l.head < named.Next && named.Generation != 0
}

// said ends that a log cannot say its generation, if all from its last statement on was
// compared with the leader's log.
func (l *shardLog) said() {
	if l.matched >= l.tail && len(l.gens) > 0 {
		l.unknown = false
	}
}

// cutTo takes the cursors back after the log was cut to place p.
func (l *shardLog) cutTo(p Place) {
	i := sort.Search(len(l.gens), func(i int) bool { return l.gens[i].Start >= p.Next })
	l.gens = l.gens[:i]
	l.unknown = l.unknown || i == 0 && p.Next > 0
	l.tail, l.last = p.Next, p
	l.written = min(l.written, p.Next)
	l.durable = min(l.durable, p.Next)
	l.matched = min(l.matched, p.Next)
	l.mark = min(l.mark, p.Next)
}

// rebaseTo empties the log to begin at base.
func (l *shardLog) rebaseTo(base Offset) {
	l.gens = l.gens[:0]
	l.head, l.tail, l.written, l.durable, l.matched = base, base, base, base, base
	l.last = Place{Next: base}
	l.mark = max(l.mark, base)
	l.unknown = base > 0
}

// ring is a queue of the uncommitted batches of a leader: where each ends, how many
// bytes were before it, when it was written.
type ring struct {
	ends []batchEnd
	from int
	sum  int64 // bytes of all batches ever pushed
}

type batchEnd struct {
	end Offset
	sum int64 // bytes up to and including the batch
	at  int64 // nanoseconds of the replica's clock
}

func (q *ring) push(end Offset, size int, at int64) {
	q.sum += int64(size)
	if q.from > 0 && len(q.ends) == cap(q.ends) {
		q.ends = q.ends[:copy(q.ends, q.ends[q.from:])]
		q.from = 0
	}
	q.ends = append(q.ends, batchEnd{end, q.sum, at})
}

// drop forgets the batches that end at or below next.
func (q *ring) drop(next Offset) {
	for q.from < len(q.ends) && q.ends[q.from].end <= next {
		q.from++
	}
	if q.from == len(q.ends) {
		q.ends, q.from = q.ends[:0], 0
	}
}

func (q *ring) reset() { q.ends, q.from, q.sum = q.ends[:0], 0, 0 }

// bound is how far acknowledgements may run: at most maxBytes above what was dropped,
// and not at all while the oldest kept batch is older than since.
func (q *ring) bound(maxBytes int64, since int64) Offset {
	if q.from == len(q.ends) {
		return ^Offset(0)
	}
	live := q.ends[q.from:]
	if live[0].at < since {
		return 0
	}
	base := q.sum
	if len(live) > 0 {
		base = live[0].sum
	}
	// The first batch may always go; the next ones while they fit.
	i := sort.Search(len(live), func(i int) bool { return live[i].sum-base > maxBytes })
	return live[i-1].end
}
