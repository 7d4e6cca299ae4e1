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
// # Fsync modes and what can be lost
//
// A record that was acknowledged survives a process that is killed, in every mode: it was
// handed to the operating system before. The modes differ in what a machine that loses
// power may take with it.
//
//	OnCommit   nothing that was acknowledged: a flush that began after the write has ended.
//	           Appends that wait together share a flush.
//	Periodic   what was acknowledged in the last Options.FsyncInterval, 250 ms by default,
//	           and as long as a flush takes. It is the zero value.
//	None       what was acknowledged since the last seal of a segment, Sync or Close.
//
// Durable says up to where records survive a power cut, whatever the mode, and Sync moves
// it to the end. What is lost is always the end of the log: no record is there without
// those before it. All of this takes a device that has stored what it says it flushed.
//
// # What an error means
//
// Append and Done answer one of three things: success; ErrUnknownOutcome, when the batch
// has its place and may or may not survive; or anything else, and then none of its
// records is in the log nor will be. ErrNotWritten is said only after what a failed write
// left was cut and the cut flushed. An offset that was acknowledged, handed to Written or
// named in a refusal is never given to another record, except by TruncateTo and Reset.
//
// A context ends the waiting and never the write: an append that was given up on has an
// unknown outcome. After a flush that failed the log is poisoned: it refuses appends with
// *PoisonedError and is read as before, until Reopen. A full disk refuses with ErrDiskFull
// and goes on by itself when there is room. Without descriptors writes are refused
// (IsOutOfFiles) and flushes put off: a file that was not opened was not flushed, which is
// no failed flush.
//
// # Reading, and following the tail
//
// Read gives what is below Stable: what the mode acknowledges, so Durable under OnCommit
// and all that was written in the others. At the tail it gives an empty page and no error,
// and does not wait. A reader that follows the log is woken by Hooks.Stable, which is
// called in offset order each time the bound moved, before the appenders have their
// answers:
//
//	moved := make(chan struct{}, 1)
//	o.Hooks.Stable = func(*storage.Group) {
//		select {
//		case moved <- struct{}{}:
//		default: // it has been told and has not looked yet
//		}
//	}
//	...
//	for {
//		err := l.Read(ctx, &p, storage.ReadRange{From: next})
//		// handle err and p.Records
//		if next = p.Next; len(p.Records) == 0 {
//			<-moved
//		}
//	}
//
// The hook must not block, nor append and wait for it. Below Head reading fails with
// *TrimmedError, which names the oldest offset; OffsetForTime finds a place by time. The
// payloads of a Page belong to it until its next use.
//
// # Recovery, and lost/
//
// Open looks at everything before it changes anything. Either it refuses with
// *DamagedError, and every byte is as it was, or it serves, and what is readable is on the
// device. What an unfinished write can have left at the end is cut. Whatever else is
// wrong, a byte that flipped or a segment that is missing, is refused: to cut it could
// take records that were acknowledged. Options.RepairChecksumTail lets it cut a last
// record that is complete and fails its checksum; Options.Restarted says that the machine
// was started anew, so that what is past the durable mark may be an unfinished write.
//
// No byte with anything in it is thrown away: what is cut is copied, and segments that are
// given up are moved, to the directory lost/ of the log, flushed before the log is changed.
// A part of a segment is named <segment>.from-<position>, with a number behind it. Nothing
// reads lost/ or removes it; `felix log dump` shows what is in it.
//
// Recovery gives the report: what was cut and moved, and whether records that had been
// acknowledged may be gone (MayHaveLost, DurableGone). The latter is known from the file
// durable.mark, which says how far the log has been on the device; MarkMissing says that
// there was none to compare with. Open again, or stopped anywhere and run again, recovery
// comes to the same log.
//
// # Retention
//
// A RetentionPolicy bounds bytes and age; SetRetention replaces it, EnforceRetention
// applies it now, and TrimHead removes up to an offset. Whole sealed segments go, the
// oldest first, and the active one never does, so a log may be larger than its bound by a
// segment; one that holds records over the age is rolled so that it can go. Nothing at or
// above Stable, the policy's Limit or a Hold is removed. Head moves up and never back.
//
// # Sharing a disk
//
// Logs on one device should be given one Disk: it bounds their flushes in flight, their
// open files and the memory of their indexes together, watches the free room, and does
// their background work. Ten thousand logs at rest need no goroutine and no more
// descriptors than DiskOptions.MaxOpenFiles. A log without one makes its own. Close the
// logs first, then the Disk.
//
// # One process
//
// The library takes no lock. Two processes that have one directory open would write over
// each other, and nothing here would notice; two Logs of one process neither. Whoever
// owns the directory, or one above it, takes the lock: vfs.OS().Lock on a file LOCK in it,
// which is what brokers and `felix log` take, so that they keep out as well.
//
// # Goroutines
//
// Of a log: at most one, while there is work nobody waits for; an appender does its own
// work, and that of those who queued behind it. Of a Disk: up to MaxFlushes workers while
// there is background work, and one timer while something is due. Close of either waits for
// its own. In Manual mode there is none: Step does the work, in an order that is a function
// of the calls, for simulation.
//
// # Invariants
//
//   - Head <= Durable <= Written <= Next, and Stable is Durable under OnCommit, else Written.
//   - Nothing is acknowledged under OnCommit before a flush that began after its write.
//   - After a failed flush nothing is appended, acknowledged or flushed until Reopen.
//   - The durable mark never runs ahead of the device, and is lowered before a cut below it.
//   - Durable does not pass a segment before it is sealed.
//   - A name is on the device before what is in the file counts.
//   - A batch is never split over segments. Times do not descend within a segment.
//
// Package internal/rules names those of them that tests take away one by one.
package storage
