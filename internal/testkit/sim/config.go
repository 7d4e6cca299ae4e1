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
	// Shape, when not nil, changes what the seed drew.
	Shape func(*Shape)
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
func drawShape(seed uint64) *Shape {
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
	s.Nodes = s.Factor + rng.IntN(3)
	s.Faults = drawFaults(rng, s)
	return s
}
