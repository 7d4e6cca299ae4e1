// Package archive is the format of a backup: one tar file that holds prefixes of the logs
// of a broker, what they are the logs of, and a manifest that says what there has to be.
//
// It owns the manifest, the names of entries, writing (Writer) and the verification of a
// whole file before anything of it is used (Open). It does not decide what is cut where
// (package broker), who may ask for it (package api), or where it is restored to (package
// node).
//
//	felix-backup.json                          format, version, how many bytes follow
//	<kind>/<tenant>/<namespace>/<name>/<shard>/<20 digits>.log
//	secrets/<path>                             only where they were asked for
//	manifest.json                              {"format", "version", "crc32", "manifest": {...}}
//
// The kinds are stream, groups, cache and counters. The manifest is the last entry, and
// the two blocks of zeros behind it are part of the file: a backup that was cut off, at
// whatever byte, has no end and is refused. Side files of a log are not in it: they are
// made anew from the records, and what they say of the device is not true of another.
//
// Goroutines: none.
//
// Errors: *RefusedError from Open, whose reason is one of ErrNotBackup, ErrVersion,
// ErrIncomplete and ErrDamaged, with the entry and the byte it was found at.
//
// Invariants:
//
//   - of a file that Open accepted every byte that is used was compared with its checksum,
//     every record decodes, offsets are dense, and each entry is one the manifest names,
//     once;
//   - no name of an entry becomes a path: it is parsed into parts that are names;
//   - no length sizes an allocation before it is compared with the length of the file.
package archive
