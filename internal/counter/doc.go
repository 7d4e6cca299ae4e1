// Package counter is a log read as signed sums: each record adds to one key, and a
// checkpoint restates what was added before it. It is a pure core like package cache.
//
// An addition may carry its producer's id and sequence. A repeated one is not added
// again, across restarts and compaction too: the sequences seen of a producer are
// restated by checkpoints of their own.
//
// Invariants
//
//  1. The sum of a key is that of all additions before the tail, each counted once.
//     It never wraps: an addition that would is refused and changes nothing.
//  2. A checkpoint gets its value as it gets its place: it restates everything before
//     its offset, additions in flight included.
//  3. A record may leave the log's head once a durable checkpoint of its key, and of its
//     producer, stands behind it.
package counter
