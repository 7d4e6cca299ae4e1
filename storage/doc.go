// Package storage is the durable log as a library: one append-only log of records in one
// directory, which survives what its fsync mode promises and says so no earlier.
//
// It owns the order of records, the files of a log, when they are written and flushed,
// what is acknowledged, and what is done about what a crash left. It owns no network, no
// broker and no logging: what happens is told through Events. The bytes of a segment
// belong to package segment, the system calls to package vfs.
//
//	l, err := storage.Open(ctx, dir, storage.Options{Fsync: storage.OnCommit})
//	b := &storage.Batch{Payloads: [][]byte{[]byte("hello")}}
//	err = l.Append(ctx, b)           // b.First is its offset
//	var p storage.Page
//	err = l.Read(ctx, &p, storage.ReadRange{From: b.First})
//	err = l.Close(ctx)
//
// # What an error means
//
// Append and Done answer one of three things: success; ErrUnknownOutcome, when the batch
// has its place and may or may not survive; or anything else, and then none of its
// records is in the log nor will be. ErrNotWritten is said only after what a failed write
// left was cut and the cut flushed. An offset that was acknowledged, handed to Written or
// named in a refusal is never given to another record, except by TruncateTo and Reset.
//
// # The way of a batch
//
// A batch passes four stages. Each has one token, and whoever holds it alone does that
// work; the tokens are fields under one mutex, which is never held across I/O, a callback
// or a wait.
//
//	queue   accepted in order, without an offset: a short critical section
//	pen     takes what queued (1 MiB or 1,024 batches), asks Admit batch by batch, gives
//	        offsets, encodes into one buffer, writes it with one call, calls Written
//	flush   OnCommit only: one flush at a time covers all that was written before it began
//	apply   calls Stable for the group, then Done for each of its batches, in offset order
//
// There is no goroutine behind this at rest. An appender that finds a token free does the
// work itself, for itself and all who queued; one that has its answer while there is work
// left hands on to a waiting appender, or to a goroutine that ends when there is nothing
// left (see pump.go). While a flush is under way little is written: what comes meanwhile
// is written together when it ends, for it could not be on the device earlier.
//
// # Segments
//
// The log is a list of segment files; the last is active. A batch is never split. The
// next file is made ahead, empty, its name flushed; a roll writes its header and takes it
// into use. The segment before is sealed off the pen: flushed, trimmed, flushed, indexed.
// Readers work on an immutable list and see a record once the position they read moved
// past it.
//
// # Goroutines
//
// Of a log: at most one runner, while there is work nobody waits for. Of a Disk: up to
// MaxFlushes workers while there is background work, and one timer while something is due.
// Close of either waits for its own. In Manual mode there is none: Step does the work, in
// an order that is a function of the calls, for simulation.
//
// # Invariants
//
//  1. Head <= Durable <= Written <= Next, and Stable is Durable under OnCommit, else Written.
//  2. Work that can be done has somebody who will do it: choose() is actNone, or a
//     goroutine is in the pump, or the holder of a token will call resume.
//  3. Nothing is acknowledged under OnCommit before a flush that began after its write.
//  4. After a failed flush nothing is appended, acknowledged or flushed until Reopen.
//  5. The durable mark never runs ahead of the device, and is lowered before a cut below it.
//  6. Durable does not pass a segment before it is sealed.
//  7. A name is on the device before what is in the file counts.
//  8. Recovery looks at everything before it changes anything; run twice, or stopped
//     anywhere and run again, it comes to the same log.
//  9. Times do not descend within a segment.
//
// Package internal/rules names those of them that tests take away one by one.
package storage
