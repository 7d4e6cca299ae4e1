package partition

import "github.com/felixlog/felix/storage"

// Stats is a shard at one moment.
type Stats struct {
	State       State
	Positions   Positions
	Subscribers int
	// Slowest is the position of the subscriber furthest behind, Lag how many records
	// that is.
	Slowest storage.Offset
	Lag     uint64
	// RingBytes is what is kept in memory for subscribers; of an in-memory shard, for
	// those that begin in the past.
	RingBytes int
	Producers int
}

// Stats gives the shard's figures.
func (p *Partition) Stats() Stats {
	s := Stats{State: p.State(), Positions: p.Positions()}
	s.Subscribers, s.Slowest = p.subs.stats(s.Positions.Readable)
	if s.Slowest < s.Positions.Readable {
		s.Lag = uint64(s.Positions.Readable - s.Slowest)
	}
	if p.memory != nil {
		s.RingBytes = p.memory.bytes()
		return s
	}
	s.RingBytes = p.ring.Bytes()
	p.producers.mu.Lock()
	s.Producers = p.producers.table.Len()
	p.producers.mu.Unlock()
	return s
}

// Subscriptions gives those of the shard, in no order.
func (p *Partition) Subscriptions() []*Subscription { return p.subs.list() }

// Subscribers is how many there are.
func (p *Partition) Subscribers() int {
	p.subs.mu.Lock()
	defer p.subs.mu.Unlock()
	return len(p.subs.all)
}
