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

// commitQueue holds the answers that wait for a commit, in offset order.
type commitQueue struct {
	mu        sync.Mutex
	committed storage.Offset
	last      storage.Offset // what the newest answer needs
	waiting   []*Publish
	spare     []*Publish
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
	if b.needs <= q.committed && len(q.waiting) == 0 {
		q.mu.Unlock()
		b.finish()
		return
	}
	q.waiting = append(q.waiting, b)
	q.mu.Unlock()
}

// Commit says that everything below to is committed: it becomes readable, and what
// waited for it is answered. to never goes back.
func (p *Partition) Commit(to storage.Offset) {
	q := &p.commits
	q.mu.Lock()
	if to <= q.committed {
		q.mu.Unlock()
		return
	}
	q.committed = to
	n := 0
	for n < len(q.waiting) && q.waiting[n].needs <= to {
		n++
	}
	done := append(q.spare[:0], q.waiting[:n]...)
	q.spare = nil
	rest := copy(q.waiting, q.waiting[n:])
	clear(q.waiting[rest:])
	q.waiting = q.waiting[:rest]
	q.mu.Unlock()

	p.advance(to)
	for i, b := range done {
		done[i] = nil
		b.finish()
	}
	q.mu.Lock()
	q.spare = done[:0]
	q.mu.Unlock()
}

// Abandon answers everything that waits for a commit with err, because this replica no
// longer leads: the records may survive.
func (p *Partition) Abandon(err error) {
	q := &p.commits
	q.mu.Lock()
	done := q.waiting
	q.waiting = nil
	q.mu.Unlock()
	for _, b := range done {
		if b.Err == nil {
			b.Err = err
		}
		b.finish()
	}
}
