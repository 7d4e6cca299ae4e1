// Package sim runs whole replicated shards in one goroutine, in virtual time, from a
// seed: nodes with their logs and disks, clients, metadata and a network, under faults,
// with checkers that judge what clients were told and what disks hold.
//
// A run (Run) draws from its seed a topology, an fsync mode, a consistency level, a
// workload and a list of faults. First the faults happen, then everything is healed and
// progress is demanded. Everything that happens is an event at a virtual time; events of
// one time run in the order they were scheduled; nothing reads a clock, draws from
// another source or iterates over a map where order shows. The same seed gives the same
// trace hash.
//
// The protocol under test is package replica. The logs are either real (package
// storage, single-stepped on the strict disk) or in memory (Memory), behind one small
// interface (logPort). Messages pass through the codec.
//
// What a run finds is a Violation naming the invariant, with the seed and the faults
// that matter; Shrink drops faults as long as the violation stays.
//
// Goroutines: none. Errors: a Violation is an error.
package sim
