// Package replica is the protocol that copies a shard: leader and follower of one
// shard, with its sibling logs, as a step function. docs/replication.md describes it.
//
// A Replica is a value that is told what happened (a message came, the log wrote, a
// transaction was answered, time passed) and answers with messages to send and effects
// to carry out (Take). It does no I/O, reads no clock, starts no goroutine and draws no
// random number; time, openings and disk identities are arguments. The same inputs give
// the same outputs.
//
// It owns: who may append what where, how far records are committed and acknowledged,
// fences and promotion, the replica set's changes, read rounds and leases, and what may
// be trimmed. It does not own the log (package storage), the metadata (package meta),
// the transport, or what records mean.
//
// The caller's duties:
//
//   - methods are called by one goroutine at a time, and Take after each;
//   - effects on one log are carried out in the order given, and each that says so is
//     answered by its method; messages of one Take may be sent while its effects are
//     carried out, because the replica never emits a message that depends on an effect
//     of the same Take;
//   - bytes handed in stay unchanged until the effects that carry them are answered;
//     bytes handed out are valid until the next call and are copied by then;
//   - an append of its own gets its place only while Term is the one it was taken under,
//     and is told from what Write handed over when it is Written;
//   - the mark that is stored for the next opening is no higher than what is durable;
//   - if New says Forgetful where Opened did not, that is on disk before the first Take;
//   - now never goes back and counts time while the machine sleeps (CLOCK_BOOTTIME).
//
// Goroutines: none. Errors: decoding returns *CodecError; everything else is an effect
// (Resigned, Halted) with a reason.
//
// Invariants (each names the checker that watches it in docs/replication.md):
//
//   - head <= mark <= tail and durable <= written <= tail of each log, on each replica;
//   - match <= next of each follower, as the leader sees it;
//   - mark never goes down while the replica is open, and nothing below it is cut;
//   - a message that grants or answers something for a generation leaves only after
//     that generation is on the disk.
package replica
