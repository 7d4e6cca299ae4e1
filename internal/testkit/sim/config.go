package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/replica"
	"github.com/felixlog/felix/storage"
)

// Options say what Run does.
type Options struct {
	Seed uint64
	// Rules are the clauses switched off.
	Rules replica.Rules
	// Memory keeps logs in memory instead of on the strict disk.
	Memory bool
	// Keep, when not nil, are the indices of the seed's faults to apply; the others are
	// left out.
	Keep []int
	// Trace, when not nil, gets a line for each thing that happens.
	Trace io.Writer
	// Profile names a bias of what seeds draw: see Profiles.
	Profile string
}

// Workload is what the shard's records mean.
type Workload uint8

// Workloads.
const (
	// StreamWorkload: publishers, readers and a consumer group (two logs).
	StreamWorkload Workload = iota
	// CacheWorkload: registers with linearizable reads (one log).
	CacheWorkload
)

// Shape is what a seed draws before anything happens.
type Shape struct {
	Factor      int // replication factor: 1, 2, 3 or 5
	Nodes       int // at least Factor
	Fsync       storage.FsyncMode
	Consistency meta.Consistency
	Leases      bool
	Workload    Workload
	Retention   bool          // heads move
	Coarse      bool          // record times are of whole seconds, and clocks stand still
	Churn       bool          // faults come fast, leaders change often
	Sets        bool          // the set changes often, and metadata answers get lost
	Unsure      bool          // outcomes of set changes stay unknown, and the network is split
	Lazy        bool          // power is cut often
	SlowDisks   bool          // a flush takes tens of milliseconds
	SmallShips  bool          // followers that are behind get one record at a time
	SlowMeta    bool          // transactions take up to two seconds
	Caught      bool          // publishers are slow, consumers keep up
	Wipes       bool          // disks are replaced by empty ones
	Usurped     bool          // leaders are cut off, readers stay with them, and another soon asks to lead
	Same        bool          // all records look alike; only logs are judged
	Lopsided    bool          // messages to the first node are late, and its clock is slow beside the others'
	FewBytes    bool          // little may be acknowledged that is not committed
	Outside     bool          // replicas leave the set and come back, and it loses what they kept
	Aimed       []FaultKind   // faults with an aim, which take the places of most others
	Loss        float64       // of messages, while faults last
	Duplicate   float64       // of messages
	Delay       time.Duration // longest ordinary delay of a message
	FaultTime   time.Duration // faults fall into this time; then all is healed
	Faults      []Fault
}

func (s *Shape) String() string {
	kind := "stream"
	if s.Workload == CacheWorkload {
		kind = "cache"
	}
	return fmt.Sprintf("%s rf=%d nodes=%d fsync=%s %s leases=%t retention=%t coarse=%t loss=%.2f dup=%.2f delay=%v faults=%d over %v",
		kind, s.Factor, s.Nodes, s.Fsync, s.Consistency, s.Leases, s.Retention, s.Coarse, s.Loss, s.Duplicate, s.Delay, len(s.Faults), s.FaultTime)
}

// drawShape draws a shape. Every choice draws the same number of times whatever the
// others gave, so that shapes of neighbouring seeds have nothing in common.
func drawShape(seed uint64, profile string) *Shape {
	rng := rand.New(rand.NewPCG(seed, 1))
	s := &Shape{
		Factor:      [...]int{1, 2, 3, 3, 3, 3, 5, 5}[rng.IntN(8)],
		Fsync:       [...]storage.FsyncMode{storage.OnCommit, storage.OnCommit, storage.Periodic, storage.None}[rng.IntN(4)],
		Consistency: [...]meta.Consistency{meta.ConsistencyQuorum, meta.ConsistencyQuorum, meta.ConsistencyLeader}[rng.IntN(3)],
		Leases:      rng.IntN(3) == 0,
		Workload:    Workload(rng.IntN(2)),
		Retention:   rng.IntN(4) == 0,
		Coarse:      rng.IntN(3) == 0,
		Loss:        [...]float64{0, 0.01, 0.05, 0.15}[rng.IntN(4)],
		Duplicate:   [...]float64{0, 0.01, 0.1}[rng.IntN(3)],
		Delay:       [...]time.Duration{2 * time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond}[rng.IntN(3)],
		FaultTime:   time.Duration(20+rng.IntN(30)) * time.Second,
	}
	// The registers are read from the log alone: it keeps its head.
	s.Retention = s.Retention && s.Workload == StreamWorkload
	if bias := Profiles[profile]; bias != nil {
		bias(s)
	}
	s.Nodes = s.Factor + rng.IntN(3)
	s.Faults = drawFaults(rng, s)
	return s
}

// cell is the profile of one cell of the acknowledgement table: power cuts and kills of
// a shard with that consistency and fsync mode.
func cell(c meta.Consistency, f storage.FsyncMode) func(*Shape) {
	return func(s *Shape) {
		s.Churn, s.Lazy = true, true
		s.FaultTime = 20 * time.Second
		s.Factor, s.Consistency, s.Fsync = 3, c, f
	}
}

// Profiles are biases under which a seed reaches certain corners sooner.
var Profiles = map[string]func(*Shape){
	"leader-none":      cell(meta.ConsistencyLeader, storage.None),
	"leader-periodic":  cell(meta.ConsistencyLeader, storage.Periodic),
	"leader-on_commit": cell(meta.ConsistencyLeader, storage.OnCommit),
	"quorum-none":      cell(meta.ConsistencyQuorum, storage.None),
	"quorum-periodic":  cell(meta.ConsistencyQuorum, storage.Periodic),
	"quorum-on_commit": cell(meta.ConsistencyQuorum, storage.OnCommit),

	// churn: faults come fast, leaders change often.
	"churn": func(s *Shape) {
		s.Churn = true
		s.FaultTime = 20 * time.Second
		if s.Factor < 3 {
			s.Factor = 3
		}
	},
	// alike: and all records look alike, also in their time, so that only their
	// generation tells them apart.
	"alike": func(s *Shape) {
		s.Churn, s.Same, s.Coarse = true, true, true
		s.FaultTime = 20 * time.Second
		s.Factor, s.Workload, s.Retention = 3, StreamWorkload, false
	},
	// cache: churn over registers with linearizable reads.
	"cache": func(s *Shape) {
		s.Churn = true
		s.FaultTime = 20 * time.Second
		s.Factor, s.Workload, s.Retention, s.Consistency = 3, CacheWorkload, false, meta.ConsistencyQuorum
	},
	// lease: reads use leases; leaders are cut off while clients read from them, clocks
	// run apart, and another asks to lead all the while.
	"lease": func(s *Shape) {
		s.Churn, s.Leases, s.Usurped = true, true, true
		s.FaultTime = 30 * time.Second
		s.Factor, s.Workload, s.Retention = 3, CacheWorkload, false
		s.Consistency, s.Fsync = meta.ConsistencyQuorum, storage.OnCommit
	},
	// margin: and the first node hears late, by a clock that is slow beside the others'.
	"margin": func(s *Shape) {
		s.Churn, s.Leases, s.Usurped, s.Lopsided = true, true, true, true
		s.FaultTime = 30 * time.Second
		s.Factor, s.Workload, s.Retention = 3, CacheWorkload, false
		s.Consistency, s.Fsync = meta.ConsistencyQuorum, storage.OnCommit
	},
	// sets: churn over the replica set.
	"sets": func(s *Shape) {
		s.Churn, s.Sets = true, true
		s.FaultTime = 20 * time.Second
		s.Factor, s.Consistency, s.Fsync = 3, meta.ConsistencyQuorum, storage.OnCommit
	},
	// trims: heads move all the time.
	"trims": func(s *Shape) {
		s.Churn, s.Retention = true, true
		s.FaultTime = 20 * time.Second
		s.Factor, s.Workload = 3, StreamWorkload
	},
	// slow: flushes take long, and power is cut while they last.
	"slow": func(s *Shape) {
		s.Churn, s.Lazy, s.SlowDisks = true, true, true
		s.FaultTime = 20 * time.Second
		s.Factor, s.Fsync, s.Consistency = 3, storage.OnCommit, meta.ConsistencyQuorum
	},
	// chain: five replicas, one record at a time, leaders that do not last.
	"chain": func(s *Shape) {
		s.Churn, s.SmallShips = true, true
		s.FaultTime = 30 * time.Second
		s.Factor, s.Fsync = 5, storage.OnCommit
	},
	// anew: logs that begin anew at a moving head, and are fed one record at a time.
	"anew": func(s *Shape) {
		s.Churn, s.Retention, s.SmallShips, s.Wipes = true, true, true, true
		s.FaultTime = 30 * time.Second
		s.Factor, s.Workload = 3, StreamWorkload
		s.Fsync, s.Consistency = storage.OnCommit, meta.ConsistencyQuorum
	},
	// joint: set changes whose transactions are long under way.
	"joint": func(s *Shape) {
		s.Churn, s.Sets, s.SlowMeta = true, true, true
		s.FaultTime = 30 * time.Second
		s.Factor, s.Consistency, s.Fsync = 3, meta.ConsistencyQuorum, storage.OnCommit
	},
	// unsure: set changes whose outcome stays unknown, partitions, and rivals in them.
	"unsure": func(s *Shape) {
		s.Churn, s.Sets, s.Unsure = true, true, true
		s.FaultTime = 30 * time.Second
		s.Factor, s.Consistency, s.Fsync = 3, meta.ConsistencyQuorum, storage.OnCommit
	},
	// bytes: what a leader acknowledges alone soon reaches its bound.
	"bytes": func(s *Shape) {
		s.Churn, s.FewBytes = true, true
		s.FaultTime = 20 * time.Second
		s.Factor, s.Consistency = 3, meta.ConsistencyLeader
	},
	// caught: consumers at the tail, logs that are flushed seldom, power cuts.
	"caught": func(s *Shape) {
		s.Churn, s.Lazy, s.Caught = true, true, true
		s.FaultTime = 20 * time.Second
		s.Factor, s.Workload, s.Fsync, s.Retention = 3, StreamWorkload, storage.None, false
	},
	// wipe: disks are replaced.
	"wipe": func(s *Shape) {
		s.Churn, s.Wipes = true, true
		s.FaultTime = 20 * time.Second
		s.Factor, s.Fsync, s.Consistency = 3, storage.OnCommit, meta.ConsistencyQuorum
	},
	// split: the set changes, and the network splits while it does.
	"split": splitProfile,
	// relay: leaders in a row, whose records come to one other each.
	"relay": relayProfile,
	// lapse: members forget records, and the leader that knows better dies.
	"lapse": lapseProfile,
	// unsaid: or the generations of their records.
	"unsaid": unsaidProfile,
	// regiven: the metadata gives a generation again.
	"regiven": regivenProfile,
	// outside: replicas leave the set, and come back with what the set has lost.
	"outside": outsideProfile,
	// lazy: logs that are flushed seldom, and power cuts.
	"lazy": func(s *Shape) {
		s.Churn, s.Lazy = true, true
		s.FaultTime = 20 * time.Second
		s.Factor = 3
		if s.Fsync == storage.OnCommit {
			s.Fsync = storage.Periodic
		}
	},
}
