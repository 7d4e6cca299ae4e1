// Package queue is the state of the consumer groups of one stream shard: who has been
// handed what, until when, how often, and what is settled. It is a pure core: values
// in, values out, time an argument. It opens no file, holds no lock, starts no
// goroutine; its owner serialises the calls and appends what Encode says must last.
//
// A group is one position in the stream shard's log, and exceptions to it:
//
//	start ... position ........ next ......... handed ........ tail
//	          everything below  each offset is    first deliveries
//	          is settled        settled, ready,   below here may
//	                            delayed, claimed  have happened
//
// The life of an offset: new, claimed, then settled by an ack, or ready again by a
// lapse or a nack (after a delay, perhaps), or given up on: a dead letter, which an
// operator discards or redrives.
//
// Invariants, for each group, after every call
//
//  1. ready + delayed + claimed + acked + dead + discarded + lost + skipped + not yet
//     handed out = records published at or above start (Stats.Check).
//  2. start <= position <= next; the position moves only over settled offsets, and
//     back only by Seek.
//  3. No offset is claimed by two consumers. Claims and delays count against
//     MaxInFlight together.
//  4. Before an offset is handed out for the first time, handed is above it; before it
//     is handed out again, its number of attempts is written. So a crash at any moment
//     leaves no delivery uncounted, and a record that kills its consumer and the broker
//     with it is given up on all the same.
//  5. One decision is one record: what a call changed is encoded together.
//
// What lasts: position, handed, settled offsets above the position, attempts beyond the
// first, dead letters, redriven offsets, totals, configuration. What does not: claims,
// delays and who holds them; after a restart those records are ready. A broker that goes
// on, and only has to read its state again because a write was refused, takes them from
// the state before, as they stood after the last call that was written (Shard.Resume).
//
// Errors: ErrInvalid (an offset that cannot have been handed out, a limit), ErrStale (a
// claim that no longer stands), ErrNotDead (nothing to redrive).
package queue
