package storage

import (
	"fmt"
	"time"

	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// FsyncMode says when a log is flushed, and so what an acknowledgement survives.
type FsyncMode uint8

const (
	// Periodic flushes on a timer; an acknowledgement survives the process, and
	// the machine but for the last interval.
	Periodic FsyncMode = iota
	// OnCommit flushes before it acknowledges; appends that wait together share a
	// flush.
	OnCommit
	// None flushes at seal and close; an acknowledgement survives the process only.
	None
)

// String is the mode's name in settings.
func (m FsyncMode) String() string {
	switch m {
	case Periodic:
		return "periodic"
	case OnCommit:
		return "on_commit"
	case None:
		return "none"
	}
	return fmt.Sprintf("fsync_mode_%d", uint8(m))
}

// ParseFsyncMode reads a mode's name.
func ParseFsyncMode(s string) (FsyncMode, error) {
	switch s {
	case "periodic":
		return Periodic, nil
	case "on_commit":
		return OnCommit, nil
	case "none":
		return None, nil
	}
	return 0, &OptionError{Name: "fsync", Reason: fmt.Sprintf("%q is none of none, periodic, on_commit", s)}
}

// Defaults and limits.
const (
	DefaultFsyncInterval     = 250 * time.Millisecond
	DefaultSegmentBytes      = 256 << 20
	MinSegmentBytes          = 1 << 10
	MaxSegmentBytes          = 1 << 40
	DefaultMaxRecordsPerRead = 10_000
	DefaultMaxReadBytes      = 1 << 20
	DefaultMaxRecordBytes    = 8 << 20
	DefaultQueueBytes        = 64 << 20
	DefaultQueueBatches      = 65_536
	DefaultRetentionInterval = time.Minute

	// MaxBatchBytes bounds the encoded size of one batch.
	MaxBatchBytes = 256 << 20

	groupBytes   = 1 << 20 // bound of what one write takes, beyond its first batch
	groupBatches = 1024
)

// ZeroAheadLargest is the largest write, in bytes, for which zeros are written ahead. A
// larger one takes the device longer than recording a new length does, and would be
// written twice.
const ZeroAheadLargest = 64 << 10

// Options say how a log is kept. The zero value, with FS left nil for the real
// file system, is usable.
type Options struct {
	// FS is the file system; nil is vfs.OS().
	FS vfs.FS
	// Disk is what logs on one disk share; nil makes a private one, closed with the
	// log.
	Disk *Disk
	// Shard names the log in errors and events.
	Shard string
	// Fsync is when to flush, FsyncInterval how often under Periodic (default 250 ms,
	// at least 1 ms).
	Fsync         FsyncMode
	FsyncInterval time.Duration
	// SegmentBytes is the size at which a segment is rolled: default 256 MiB, at
	// least MinSegmentBytes.
	SegmentBytes int64
	// IndexSpacing is the distance of index entries in bytes, default 4096.
	IndexSpacing int64
	// MaxRecordsPerRead bounds the records of one Read, default 10,000.
	MaxRecordsPerRead int
	// MaxRecordBytes bounds a record's payload with its publisher: default 8 MiB, at
	// most 64 MiB.
	MaxRecordBytes int
	// QueueBytes and QueueBatches bound what is accepted and not completed; beyond
	// it Enqueue answers ErrQueueFull.
	QueueBytes   int64
	QueueBatches int
	// Preallocate reserves disk space ahead in steps of 4 MiB.
	Preallocate bool
	// ZeroAhead writes zeros ahead of the tail under OnCommit, so that a flush need
	// not record a new length: at most 1 MiB at once, as much as the segment holds, and
	// none for writes above ZeroAheadLargest.
	ZeroAhead bool
	// RefuseGone has Open refuse, and change nothing, when the log ends before what had been
	// on the device: for a log that is worth more than what is left of it.
	RefuseGone bool
	// VerifyAllOnOpen checks every record of every segment at open.
	VerifyAllOnOpen bool
	// RepairChecksumTail lets recovery cut a complete last record that fails its
	// checksum. It may have been acknowledged.
	RepairChecksumTail bool
	// RetentionBytes and RetentionAge are the first retention policy; 0 is no bound.
	RetentionBytes int64
	RetentionAge   time.Duration
	// Restarted says that the machine was started anew since the directory was last
	// open, so that bytes past the durable mark may be an unfinished write.
	Restarted bool
	// Base is the first offset of a log whose directory is empty.
	Base Offset
	// Clock is the wall clock; nil is the system's.
	Clock func() Micros
	// Colder serves what retention removed here; nil: it is gone.
	Colder SegmentSource
	// Hooks and Events are the owner's; see there.
	Hooks  Hooks
	Events Events
	// Manual: no goroutine and no timer exists; Step does the work.
	Manual bool
}

func (o *Options) normalise() error {
	if o.FS == nil {
		if o.Disk != nil {
			o.FS = o.Disk.fs
		} else {
			o.FS = vfs.OS()
		}
	}
	setDefault(&o.FsyncInterval, DefaultFsyncInterval)
	setDefault(&o.SegmentBytes, int64(DefaultSegmentBytes))
	setDefault(&o.IndexSpacing, int64(segment.DefaultIndexSpacing))
	setDefault(&o.MaxRecordsPerRead, DefaultMaxRecordsPerRead)
	setDefault(&o.MaxRecordBytes, DefaultMaxRecordBytes)
	setDefault(&o.QueueBytes, int64(DefaultQueueBytes))
	setDefault(&o.QueueBatches, DefaultQueueBatches)
	if o.Clock == nil {
		o.Clock = new(wallClock).now
	}
	switch {
	case o.Fsync > None:
		return &OptionError{"Fsync", o.Fsync.String() + " is unknown"}
	case o.FsyncInterval < time.Millisecond:
		return &OptionError{"FsyncInterval", fmt.Sprintf("%v is below the minimum of 1ms", o.FsyncInterval)}
	case o.SegmentBytes < MinSegmentBytes || o.SegmentBytes > MaxSegmentBytes:
		return &OptionError{"SegmentBytes", fmt.Sprintf("%d is outside %d (minimum) to %d", o.SegmentBytes, int64(MinSegmentBytes), int64(MaxSegmentBytes))}
	case o.IndexSpacing < segment.RecordHeaderSize || o.IndexSpacing > 1<<30:
		return &OptionError{"IndexSpacing", fmt.Sprintf("%d is outside %d to %d", o.IndexSpacing, segment.RecordHeaderSize, 1<<30)}
	case o.MaxRecordsPerRead < 1:
		return &OptionError{"MaxRecordsPerRead", "must be positive"}
	case o.MaxRecordBytes < 1 || o.MaxRecordBytes > segment.MaxBodySize:
		return &OptionError{"MaxRecordBytes", fmt.Sprintf("%d is outside 1 to %d", o.MaxRecordBytes, segment.MaxBodySize)}
	case o.QueueBytes < 1 || o.QueueBatches < 1:
		return &OptionError{"QueueBytes", "the queue's bounds must be positive"}
	case o.RetentionBytes < 0 || o.RetentionAge < 0:
		return &OptionError{"Retention", "bounds must not be negative"}
	}
	return nil
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}
