// Package disk holds the test disks: file systems that behave worse than a good
// one and can say afterwards what happened.
//
// Strict is a file system in memory that models the loss of power. What was not
// flushed comes back old, new or as garbage; what was flushed comes back. Faulty
// lays rules over any file system: errors, short writes, flushes that are held,
// that lie, that fail and forget. Counting counts operations, bytes and flushes.
// All three implement vfs.FS; Faulty and Counting wrap any of the others.
//
// The package owns no policy of the log and imports nothing above vfs. It starts
// no goroutines and reads no clock, except that a rule asked to delay sleeps; all
// of it works inside a testing/synctest bubble.
//
// Errors wrap *fs.PathError, as the FS contract asks. ErrPowerOff is returned by
// every operation on a Strict that has been stopped, killed or crashed.
//
// The model of Strict, in full:
//
//   - A file has contents as processes see them (the page cache) and contents on
//     the device. Sync and Datasync make the device's equal to the cache's. Between
//     two flushes each 512-byte sector collects the versions it went through, and
//     the file collects the lengths it went through.
//   - A power cut picks one of the lengths, and for each sector one of its versions
//     or the contents last flushed. Length and data are picked apart, so a file may
//     be longer than its data (zeros) or the data may have come without the length
//     (it is gone). Bytes never flushed before may be garbage. Bytes flushed before
//     and not rewritten since are intact, in whatever sector they are; bytes
//     rewritten since are old or new, one choice for the whole sector.
//   - A cut by Truncate is taken in order with the other lengths of its file: where
//     the power cut undoes it, whole blocks behind it have their old bytes.
//   - A directory entry made, replaced or removed is pending until SyncDir of its
//     directory (for a rename, of both). A power cut takes or drops each pending
//     operation by itself, but an operation on a name only together with the earlier
//     ones on that name; both halves of a rename go together.
//   - A flush that fails and drops leaves the sectors it should have written readable
//     and clean: later flushes skip them, though they do store the length. A process
//     may find them changed back at any later start.
//   - Kill is the end of the process: cache and pending operations stay as they are,
//     open files and locks are gone.
//   - The operation that meets the end of the power may have happened or not, a write
//     also in part, up to a 4096-byte boundary of the file; its caller is told
//     ErrPowerOff.
//
// Everything random is drawn from the seed; the same calls in the same order give
// the same disk.
package disk
