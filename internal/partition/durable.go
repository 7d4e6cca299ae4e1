package partition

import (
	"context"

	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// onStable takes a group in that is as durable as the log acknowledges. The log calls
// it in offset order, before it answers the group's batches.
func (p *Partition) onStable(g *storage.Group) {
	if forgotten := p.producers.stable(g.Next, len(g.Encoded)); forgotten > 0 {
		p.counters.Forgotten.Add(uint64(forgotten))
	}
	p.maybeSnapshot()
	p.keep(g)
	if p.gate != nil {
		p.gate.Stable(g.Next)
		return
	}
	p.advance(g.Next)
}

// advance moves the readable bound and wakes those who wait for it.
func (p *Partition) advance(to storage.Offset) {
	if uint64(to) <= p.readable.Load() {
		return
	}
	p.readable.Store(uint64(to))
	p.subs.wake()
	if g := p.groups.Load(); g != nil {
		g.wakeAll()
	}
}

// keep copies a group into the ring, if anybody is there to read it.
func (p *Partition) keep(g *storage.Group) {
	if g.First == g.Next {
		return
	}
	ring, ok := p.ring.Append(g.First, len(g.Encoded), p.gate != nil)
	if !ok {
		return
	}
	defer ring.Close()
	at := g.First
	for buf := g.Encoded; len(buf) > 0; {
		r, n, err := segment.DecodeRecord(buf, at)
		if err != nil {
			// The log encoded or checked these bytes a moment ago. Should they not
			// decode, readers find the truth on the disk.
			return
		}
		if payload, visible := r.Visible(); visible {
			ring.Add(r.Offset, r.Timestamp, r.Publisher, payload)
		} else {
			ring.Skip(r.Offset)
		}
		buf, at = buf[n:], at+1
	}
}

func (p *Partition) onAdmit(s *storage.Batch, next storage.Offset) error {
	b, ok := s.User.(*Publish)
	if !ok || !b.Idempotent {
		return nil
	}
	first, err := p.producers.admit(b, next)
	if err != nil {
		s.First = first
	}
	return err
}

func (p *Partition) onReverted(next storage.Offset) { p.producers.revert(next) }

// onReopened takes in what a poisoned log turned out to hold.
func (p *Partition) onReopened(from, next storage.Offset) error {
	p.producers.revert(from)
	if err := p.producers.reopened(p, from, next); err != nil {
		return err
	}
	if p.gate == nil {
		p.advance(next)
	}
	return nil
}

func (p *Partition) stopLog(ctx context.Context) error {
	p.background.stop()
	err := p.log.Close(ctx)
	if err == nil {
		// Everything is stable or answered: the snapshot says how far it goes.
		p.writeSnapshot(context.WithoutCancel(ctx))
	}
	return err
}

// Reopen makes a poisoned log serve again, if the disk lets it, and the groups.
func (p *Partition) Reopen(ctx context.Context) error {
	if p.log == nil {
		return ErrMemoryStream
	}
	if err := p.log.Reopen(ctx); err != nil {
		return err
	}
	return p.reopenGroups(ctx)
}
