package partition

import (
	"errors"
	"sync/atomic"

	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// Result is how a publish ended, for counting.
type Result uint8

// The results.
const (
	ResultOK         Result = iota // written
	ResultDuplicate                // an idempotent batch that was there already
	ResultRefused                  // a condition did not hold
	ResultInvalid                  // too large, empty, not for this kind of stream
	ResultOverloaded               // no room; also a full disk
	ResultClosed                   // shard closed or stream deleted
	ResultFailed                   // not written
	ResultUnknown                  // may have been written
	Results          = int(ResultUnknown) + 1
)

var resultNames = [Results]string{"ok", "duplicate", "refused", "invalid", "overloaded", "closed", "failed", "unknown"}

// String is the result's name in metrics.
func (r Result) String() string { return resultNames[r] }

// Counters count what the shards of a stream did. All are totals.
type Counters struct {
	Publishes [Results]atomic.Uint64 // answers by result
	Records   atomic.Uint64          // written
	Bytes     atomic.Uint64          // payload bytes written

	DeliveredEvents atomic.Uint64
	DeliveredBytes  atomic.Uint64 // of frames
	DiskPages       atomic.Uint64 // pages read from disk for subscribers

	DroppedNew atomic.Uint64 // batches a full queue left out
	DroppedOld atomic.Uint64 // batches a full queue dropped from its front
	SlowEnded  atomic.Uint64 // subscriptions ended because they blocked too long
	Trimmed    atomic.Uint64 // subscriptions ended because retention overtook them
	Blocked    atomic.Uint64 // publishes that were held back for a slow subscriber

	PollsCut  atomic.Uint64 // looks for records of a group that its bound on records in flight cut short
	Forgotten atomic.Uint64 // producers that had to make room for others
}

func resultOf(b *Publish) Result {
	err := b.Err
	switch {
	case err == nil && b.Duplicate:
		return ResultDuplicate
	case err == nil:
		return ResultOK
	case errors.Is(err, storage.ErrUnknownOutcome), errors.Is(err, ErrLeadershipLost):
		return ResultUnknown
	case errors.Is(err, ErrClosed), errors.Is(err, ErrDeleted):
		return ResultClosed
	case errors.Is(err, stream.ErrUnknownProducer), errors.Is(err, stream.ErrSequenceExpired), errors.Is(err, stream.ErrSequenceReused):
		return ResultRefused
	case errors.Is(err, storage.ErrQueueFull), storage.IsDiskFull(err), storage.IsOutOfFiles(err):
		return ResultOverloaded
	case errors.Is(err, ErrMemoryStream), errors.Is(err, ErrEmptyBatch), errors.Is(err, segment.ErrPublisherTooLong):
		return ResultInvalid
	}
	if isA[*stream.SequenceGapError](err) || isA[*storage.OffsetMismatchError](err) {
		return ResultRefused
	}
	if isA[*OverloadedError](err) || isA[*QuotaError](err) {
		return ResultOverloaded
	}
	if isA[*storage.RecordTooLargeError](err) || isA[*storage.BatchTooLargeError](err) {
		return ResultInvalid
	}
	return ResultFailed
}

func isA[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}
