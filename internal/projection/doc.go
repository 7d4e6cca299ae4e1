// Package projection reads a log as key to latest record. Caches, counters, the
// state of consumer groups and the metadata are all this one reading; they differ
// only in what their records say (Codec) and in what they keep beside it.
//
// It owns the index (key to the place of the newest record), its snapshot file,
// the catching-up and the compaction. It does not own the log: the owner opens it,
// appends to it and closes it, and hands its records over in offset order.
//
// Invariants
//
//  1. Records are applied in offset order, each once; Applied() is one past the
//     last. Whatever reached the log without passing through the owner (by
//     replication, before a restart) is applied by CatchUp before anything reads.
//  2. The index names, for each live key, the newest record of that key below
//     Applied(). An older record never replaces a newer one, whatever the order
//     in which a snapshot and the log's records are met.
//  3. A compaction copy carries its origin offset; the version of a key is the
//     offset of the put that made its value and survives every copy.
//  4. A record leaves the log's head only when nothing in the index names it and
//     every copy made for it is durable. Offsets never rewind.
//  5. The snapshot is a cache of the index. It is believed only if its checksum
//     holds and the log still contains, at the offset it ends with, the very
//     record it was cut after; at any doubt it is dropped and the log is read.
//
// The index holds no pointers per key, so its size does not show in garbage
// collection: entries lie in pages, keys in a slab of size classes, and the hash
// table is made of entry numbers.
//
// Goroutines: none. Compactor.Step and Projection.CatchUp run on the caller's.
// A Projection may be read from many goroutines while one applies.
package projection
