package storage

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/felixlog/felix/storage/vfs"
)

// Errors a caller branches on. What happened to the records is in their words:
// ErrNotWritten, ErrDiskFull, ErrQueueFull, ErrClosed and *PoisonedError mean that
// none of the batch's records is or will be in the log; ErrUnknownOutcome means
// that they may be.
var (
	// ErrClosed reports a log that was closed, or a disk that was.
	ErrClosed = errors.New("storage: log is closed")
	// ErrQueueFull reports that too much is waiting to be written; to be retried
	// after something completed.
	ErrQueueFull = errors.New("storage: append queue is full")
	// ErrUnknownOutcome reports that a batch has its place but may not survive, or
	// that the caller stopped waiting before the outcome was known.
	ErrUnknownOutcome = errors.New("storage: outcome unknown")
	// ErrNotWritten reports that a write failed and that what it left behind was
	// cut off, the cut being on the device.
	ErrNotWritten = errors.New("storage: not written")
	// ErrDiskFull reports that the disk has less room than its reserve, or none: as a
	// *DiskFullError, which says where.
	ErrDiskFull = errors.New("storage: disk full")
	// ErrEmptyBatch reports a batch with neither records nor a barrier.
	ErrEmptyBatch = errors.New("storage: batch without records")
)

// DiskFullError is ErrDiskFull of a log. None of the batch's records is or will be in it.
type DiskFullError struct {
	Shard string // the log's name, empty if it has none
	Dir   string // its directory
	// Free and Reserve are what the disk had, and what of it is kept back, as bytes, when
	// the batch was refused for the reserve; else Cause is what the file system said.
	Free, Reserve int64
	Cause         error
}

func (e *DiskFullError) Error() string {
	where, why := e.Dir, fmt.Sprintf("%d bytes are free and %d reserved", e.Free, e.Reserve)
	if e.Shard != "" {
		where = e.Shard + " in " + e.Dir
	}
	if e.Cause != nil {
		why = e.Cause.Error()
	}
	return fmt.Sprintf("%v: %s: %s; nothing of this was written: make room on that file system, then send it again", ErrDiskFull, where, why)
}

// Is makes it ErrDiskFull.
func (e *DiskFullError) Is(target error) bool { return target == ErrDiskFull }

// Unwrap gives what the file system said, nil when the batch was refused for the reserve.
func (e *DiskFullError) Unwrap() error { return e.Cause }

// IsDiskFull reports that err is a refusal for lack of room: ErrDiskFull, or what a file
// system says that has none, or none left for this user. A log that this has poisoned, and a
// write of unknown outcome, are more than refused.
func IsDiskFull(err error) bool {
	return (errors.Is(err, ErrDiskFull) || vfs.OutOfSpace(err)) && isRefusal(err)
}

// IsOutOfFiles reports that err is a refusal for lack of descriptors, of the process or of
// the machine. See IsDiskFull of what is more than that.
func IsOutOfFiles(err error) bool {
	return outOfFiles(err) && isRefusal(err)
}

// outOfFiles reports that a file could not be opened for lack of descriptors.
func outOfFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// passes reports that err is a lack of room or descriptors, which ends without the log
// being told.
func passes(err error) bool { return vfs.OutOfSpace(err) || outOfFiles(err) }

// isRefusal reports that with err nothing was done, and that the log serves on.
func isRefusal(err error) bool {
	_, poisoned := errors.AsType[*PoisonedError](err)
	return !poisoned && !errors.Is(err, ErrUnknownOutcome)
}

// PoisonedError reports that a flush, or the cut after a failed write, failed.
// Nothing is appended until the log is reopened; reads still work.
type PoisonedError struct {
	Op    string // what failed: "flush", "cut", "seal"
	Cause error
}

func (e *PoisonedError) Error() string {
	return fmt.Sprintf("storage: log is poisoned: %s: %v", e.Op, e.Cause)
}

// Unwrap gives what the file system said.
func (e *PoisonedError) Unwrap() error { return e.Cause }

// TrimmedError reports that a record existed and is gone.
type TrimmedError struct {
	Requested Offset
	Oldest    Offset // the oldest that can be read
}

func (e *TrimmedError) Error() string {
	return fmt.Sprintf("storage: offset %d was trimmed; the oldest is %d", e.Requested, e.Oldest)
}

// OffsetMismatchError refuses a batch whose expected offset is not the next one.
type OffsetMismatchError struct {
	Expected Offset
	Tail     Offset // the next offset to be given
}

func (e *OffsetMismatchError) Error() string {
	return fmt.Sprintf("storage: expected offset %d, the next is %d", e.Expected, e.Tail)
}

// RecordTooLargeError refuses a record over the log's limit.
type RecordTooLargeError struct {
	Size int // bytes of the record's payload and publisher
	Max  int
}

func (e *RecordTooLargeError) Error() string {
	return fmt.Sprintf("storage: record of %d bytes exceeds the limit of %d", e.Size, e.Max)
}

// BatchTooLargeError refuses a batch that no single write can hold.
type BatchTooLargeError struct {
	Size int64 // encoded bytes
	Max  int64
}

func (e *BatchTooLargeError) Error() string {
	return fmt.Sprintf("storage: batch of %d encoded bytes exceeds the limit of %d; split it", e.Size, e.Max)
}

// DamagedError reports that stored bytes are not what was written. From Open it
// means that the log was refused and that every byte is as it was found.
type DamagedError struct {
	Dir    string
	Advice string // what an operator can do
	Cause  error  // usually a *Corruption
}

func (e *DamagedError) Error() string {
	s := fmt.Sprintf("storage: %s: damaged: %v", e.Dir, e.Cause)
	if e.Advice != "" {
		s += "; " + e.Advice
	}
	return s
}

// Unwrap gives the damage itself.
func (e *DamagedError) Unwrap() error { return e.Cause }

// MismatchError refuses shipped records that do not continue this log. The leader
// steps back to what it says and tries again.
type MismatchError struct {
	Reason         string
	Tail           Offset     // one past this log's last record
	LastGeneration Generation // of the newest generation start in it, 0 if none
	LastStart      Offset     // where that generation starts
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("storage: shipped records do not continue the log: %s (tail %d, generation %d from %d)",
		e.Reason, e.Tail, e.LastGeneration, e.LastStart)
}

// LostError says that the device dropped records which were acknowledged or read.
type LostError struct {
	From, Until Offset // Until is exclusive
}

func (e *LostError) Error() string {
	return fmt.Sprintf("storage: the device dropped stable records: offsets %d to %d (exclusive); opening the log anew goes on without them", e.From, e.Until)
}

// OptionError names a setting that cannot be.
type OptionError struct {
	Name   string
	Reason string
}

func (e *OptionError) Error() string { return "storage: option " + e.Name + ": " + e.Reason }
