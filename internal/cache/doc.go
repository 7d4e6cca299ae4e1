// Package cache is a log read as key to newest value: the entries in its records, and
// the state that decides what a write may do. It is a pure core: it opens no file, holds
// no goroutine, and time is an argument.
//
// A put or a delete is one record; so is an expiry, which is a delete the leader writes.
// The version of a key is the offset of the put that made its value; compaction copies
// the value forward and keeps the version (Entry.Origin).
//
// State.Admit runs under the log's pen, as a record is about to get its offset: what it
// decides (absent, version, room) holds for the very place the record gets, writes in
// flight included. State.Apply runs in offset order when the record is stable.
//
// Invariants
//
//  1. Live keys and bytes, in flight included, never exceed the limits.
//  2. A refused write changes nothing; the value that was there stays.
//  3. A key whose deadline has passed reads as absent from that moment on, whenever its
//     delete is written.
//  4. A compaction copy is written only if nothing newer is known of its key.
package cache
