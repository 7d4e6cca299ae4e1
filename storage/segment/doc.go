// Package segment is the format of one segment file and of the small files beside
// it: bytes in, values out, and back. It knows no log: which segment is active, what
// recovery does about damage, when to roll and when to flush belong to package
// storage, which builds on this one.
//
// It owns the segment header and record codecs with their checksums, the validating
// scan and the bounded read, the sparse index, the side files (durable.mark, replica,
// epochs, producers) and the names of files and shard directories.
//
// Goroutines: none. Values are not safe for concurrent use unless they say so.
//
// Errors: bytes that are not what they should be are a *Corruption, which says where
// and what; an operation of the file system that failed is returned as it came,
// wrapped with what was being done, and is never turned into a Corruption.
//
// Invariants:
//   - no field of a record is believed before its header checksum is verified;
//   - no length read from disk sizes an allocation before it is range-checked;
//   - what is decoded from encoded bytes and encoded again is byte for byte the same;
//   - an index built while appending and one rebuilt by a scan are the same bytes.
package segment
