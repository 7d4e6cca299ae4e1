package broker

import (
	"github.com/felixlog/felix/internal/partition"
)

// ShardFault is a shard that does not serve as it should.
type ShardFault struct {
	Shard string // tenant/namespace/stream/shard
	State partition.State
	Err   error
}

// Damaged names the shards that are damaged or poisoned.
func (b *Broker) Damaged() []ShardFault {
	var faults []ShardFault
	b.resources(func(r *resource) {
		for i := range r.shards {
			sh := &r.shards[i]
			st := sh.status.Load()
			switch {
			case st.state == partition.Damaged:
				faults = append(faults, ShardFault{sh.name, st.state, st.err})
			case st.unit != nil:
				if state := st.unit.State(); state == partition.Poisoned || state == partition.Damaged {
					faults = append(faults, ShardFault{sh.name, state, st.unit.Health()})
				}
			}
		}
	})
	return faults
}

// ShardStates counts the shards by state.
func (b *Broker) ShardStates() map[partition.State]int {
	n := make(map[partition.State]int)
	b.resources(func(r *resource) {
		for i := range r.shards {
			n[r.ShardState(i)]++
		}
	})
	return n
}

// Stats is a broker at one moment.
type Stats struct {
	Streams     int
	Shards      map[partition.State]int
	Progress    Progress
	InFlight    int64 // payload bytes of publishes accepted and not answered
	RingBytes   int64 // kept in memory for durable subscribers
	Subscribers int
	Caches      int
	Watchers    int
}

// Stats gives the broker's figures.
func (b *Broker) Stats() Stats {
	s := Stats{Shards: make(map[partition.State]int), Progress: b.Progress(), InFlight: b.node.Used(), RingBytes: b.rings.Used()}
	b.resources(func(r *resource) {
		for i := range r.shards {
			s.Shards[r.ShardState(i)]++
		}
	})
	b.Streams(func(st *Stream) {
		s.Streams++
		for i := range st.shards {
			if p := st.partition(i); p != nil {
				s.Subscribers += p.Subscribers()
			}
		}
	})
	b.Caches(func(c *Cache) {
		s.Caches++
		for i := range c.shards {
			if u := c.open(i); u != nil {
				s.Watchers += u.Watchers()
			}
		}
	})
	return s
}

// StreamStats is a stream at one moment; its totals are in [Stream.Counters].
type StreamStats struct {
	Tenant, Namespace, Name string
	Shards                  []partition.Stats // by number; the state alone where none is open
	Subscribers             int
	Lag                     uint64 // records, of the slowest subscriber
}

// Stats gives the stream's figures.
func (s *Stream) Stats() StreamStats {
	r := StreamStats{Tenant: s.key.tenant, Namespace: s.key.namespace, Name: s.key.name, Shards: make([]partition.Stats, len(s.shards))}
	for i := range s.shards {
		r.Shards[i].State = s.ShardState(i)
		p := s.partition(i)
		if p == nil {
			continue
		}
		r.Shards[i] = p.Stats()
		r.Subscribers += r.Shards[i].Subscribers
		r.Lag = max(r.Lag, r.Shards[i].Lag)
	}
	return r
}
