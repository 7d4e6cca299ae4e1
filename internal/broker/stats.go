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
	b.Streams(func(s *Stream) {
		for i := range s.shards {
			sh := &s.shards[i]
			st := sh.status.Load()
			switch {
			case st.state == partition.Damaged:
				faults = append(faults, ShardFault{sh.name, st.state, st.err})
			case st.partition != nil && st.partition.State() == partition.Poisoned:
				faults = append(faults, ShardFault{sh.name, partition.Poisoned, st.partition.Health()})
			}
		}
	})
	return faults
}

// ShardStates counts the shards by state.
func (b *Broker) ShardStates() map[partition.State]int {
	n := make(map[partition.State]int)
	b.Streams(func(s *Stream) {
		for i := range s.shards {
			n[s.ShardState(i)]++
		}
	})
	return n
}

// ShardState is what the i-th shard is doing.
func (s *Stream) ShardState(i int) partition.State {
	st := s.shards[i].status.Load()
	if st.partition != nil {
		return st.partition.State()
	}
	return st.state
}

// Stats is a broker at one moment.
type Stats struct {
	Streams     int
	Shards      map[partition.State]int
	Progress    Progress
	InFlight    int64 // payload bytes of publishes accepted and not answered
	RingBytes   int64 // kept in memory for durable subscribers
	Subscribers int
}

// Stats gives the broker's figures.
func (b *Broker) Stats() Stats {
	s := Stats{Shards: make(map[partition.State]int), Progress: b.Progress(), InFlight: b.node.Used(), RingBytes: b.rings.Used()}
	b.Streams(func(st *Stream) {
		s.Streams++
		for i := range st.shards {
			s.Shards[st.ShardState(i)]++
			if p := st.shards[i].status.Load().partition; p != nil {
				s.Subscribers += p.Subscribers()
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
		st := s.shards[i].status.Load()
		r.Shards[i].State = st.state
		if st.partition == nil {
			continue
		}
		r.Shards[i] = st.partition.Stats()
		r.Subscribers += r.Shards[i].Subscribers
		r.Lag = max(r.Lag, r.Shards[i].Lag)
	}
	return r
}
