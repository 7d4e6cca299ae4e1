package partition

import (
	"sync"

	"github.com/felixlog/felix/storage"
)

// Gate stands between stable and committed on a shard with several replicas: the
// leader's replication implements it. Its methods are called by the log, in offset
// order, and must not block.
type Gate interface {
	// Written is told of a group before it is flushed, so that shipping and flushing
	// go on together. The group is valid during the call.
	Written(g *storage.Group)
	// Stable is told how far this replica's own log is as durable as its policy says.
	// It leads, then or later, to [Partition.Commit].
	Stable(next storage.Offset)
}

// commitQueue holds the answers that wait for a commit, in offset order. Whoever brings
// an answer or a commit drains it, one at a time: while one goroutine answers, what others
// bring is answered by it, behind what it has in hand.
type commitQueue struct {
	mu        sync.Mutex
	committed storage.Offset
	advanced  storage.Offset // readers were told up to here
	last      storage.Offset // what the newest answer needs
	waiting   []*Publish
	spare     []*Publish
	draining  bool
}

// await answers b once everything up to it is committed. A refusal has no place of its
// own: it waits for what came before it.
func (p *Partition) await(b *Publish) {
	q := &p.commits
	q.mu.Lock()
	if b.Err == nil && b.HasOffset && !b.Duplicate {
		q.last = max(q.last, b.First+storage.Offset(len(b.Payloads)))
	}
	b.needs = q.last
	q.waiting = append(q.waiting, b)
	p.drainCommits()
}

// Commit says that everything below to is committed: it becomes readable, and what
// waited for it is answered. to never goes back.
func (p *Partition) Commit(to storage.Offset) {
	q := &p.commits
	q.mu.Lock()
	q.committed = max(q.committed, to)
	p.drainCommits()
}

// Abandon answers everything that waits for a commit with err, because this replica no
// longer leads: the records may survive.
func (p *Partition) Abandon(err error) {
	q := &p.commits
	q.mu.Lock()
	for _, b := range q.waiting {
		if b.Err == nil {
			b.Err = err
		}
		b.needs = 0
	}
	q.last = q.committed // nothing that comes has to wait for what was abandoned
	p.drainCommits()
}

// drainCommits moves the readable bound to what is committed and then answers what waited
// for that, until neither is left, unless a goroutine is at it. commits.mu is held, and
// released.
func (p *Partition) drainCommits() {
	q := &p.commits
	defer q.mu.Unlock()
	if q.draining {
		return
	}
	q.draining = true
	for {
		n := 0
		for n < len(q.waiting) && q.waiting[n].needs <= q.committed {
			n++
		}
		if n == 0 && q.advanced >= q.committed {
			break
		}
		done := append(q.spare[:0], q.waiting[:n]...)
		rest := copy(q.waiting, q.waiting[n:])
		clear(q.waiting[rest:])
		q.waiting = q.waiting[:rest]
		q.advanced = q.committed
		to := q.committed
		q.mu.Unlock()

		p.advance(to)
		for i, b := range done {
			done[i] = nil
			b.finish()
		}
		q.mu.Lock()
		q.spare = done[:0]
	}
	q.draining = false
}
