package storage

import "time"

// Events are told what happened, for logs and metrics. All are optional; they are
// called without locks held, from whichever goroutine did the work, and must not
// block or call back into the log except for its positions.
type Events struct {
	// OnAppend: a group was written.
	OnAppend func(AppendEvent)
	// OnSync: a flush succeeded.
	OnSync func(SyncEvent)
	// OnSyncFailure: a flush failed.
	OnSyncFailure func(shard string, err error)
	// OnRoll: a segment was taken into use after another.
	OnRoll func(shard string, sealed, active Descriptor)
	// OnSeal: a segment was flushed, trimmed and indexed.
	OnSeal func(shard string, d Descriptor)
	// OnRecovery: Open or Reopen finished looking at the directory.
	OnRecovery func(shard string, r RecoveryReport)
	// OnRecoveryProgress: recovery has read so many bytes of about total.
	OnRecoveryProgress func(shard string, read, total int64)
	// OnCut: bytes were cut from the log, by recovery, a failed write or a truncation.
	OnCut func(shard string, c CutEvent)
	// OnTrim: whole segments were removed from the head.
	OnTrim func(shard string, r RetentionResult)
	// OnPoison: the log refuses appends from now on.
	OnPoison func(shard string, err *PoisonedError)
	// OnReopen: a poisoned log serves again.
	OnReopen func(shard string)
	// OnStray: a file that is not the log's lies in its directory and is left alone.
	OnStray func(shard, name string)
	// OnClockAhead: the newest record is more than ten minutes ahead of the wall
	// clock, so that times descend once.
	OnClockAhead func(shard string, last, wall Micros)
	// OnIndexRebuilt: an index was missing or damaged and was made again. The reason is
	// IndexMissing for one that was not there when the log was opened.
	OnIndexRebuilt func(shard string, id SegmentID, reason string)
	// OnBackgroundError: work off the append path failed and will be tried again.
	OnBackgroundError func(shard, op string, err error)
}

// AppendEvent describes one write.
type AppendEvent struct {
	Shard   string
	Records int
	Batches int
	Bytes   int
}

// SyncEvent describes one flush.
type SyncEvent struct {
	Shard    string
	Duration time.Duration
	Appends  int   // batches that became durable with it
	Bytes    int64 // that became durable with it
}

// CutEvent describes bytes that are no longer in the log.
type CutEvent struct {
	Segment   SegmentID
	From, To  int64  // byte positions
	Next      Offset // the next offset to be given after it
	Reason    string
	Saved     string // file under lost/, empty if nothing was worth saving
	MayBeLost bool   // acknowledged records may have been among them
	Zeros     bool   // recovery found nothing but zeros there: room written ahead of the log
}

// IndexMissing is the reason of OnIndexRebuilt for an index that a copy of a log may lack.
const IndexMissing = "missing"
