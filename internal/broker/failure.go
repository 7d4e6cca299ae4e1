package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/internal/counter"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/wire"
)

// How long a client should wait before it tries again.
const (
	retryFull     = 20 * time.Millisecond
	retryDisk     = time.Second
	retryPoisoned = time.Second
	retryOpening  = 100 * time.Millisecond
	retryMeta     = 500 * time.Millisecond
)

// Failure is how an error of a request is told to a client: one table for every
// transport. nil for nil. An error that is not in the table is internal, its outcome
// unknown. [*partition.TooOldError], [*partition.InFutureError] and the refusals of
// idempotent and conditional publishes have messages of their own on the wire; what
// they get here is for where those cannot be sent.
func Failure(err error) *wire.Failure {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*wire.Failure](err); ok {
		return f
	}
	fail := func(c wire.Code) *wire.Failure { return wire.NewFailure(c, textOf(err)) }
	switch {
	case errors.Is(err, partition.ErrDeleted):
		return fail(wire.CodeNotFound)
	case errors.Is(err, partition.ErrClosed), errors.Is(err, storage.ErrClosed):
		return fail(wire.CodeShardUnavailable).WithReason(wire.ReasonNotReady).After(retryOpening)
	case errors.Is(err, ErrDraining):
		return fail(wire.CodeDraining)
	case errors.Is(err, partition.ErrMemoryStream), errors.Is(err, partition.ErrEmptyBatch), errors.Is(err, storage.ErrEmptyBatch),
		errors.Is(err, segment.ErrPublisherTooLong):
		return fail(wire.CodeInvalidRequest)
	case errors.Is(err, partition.ErrNoGroups), errors.Is(err, queue.ErrInvalid), errors.Is(err, queue.ErrNotDead),
		errors.Is(err, cache.ErrKey), errors.Is(err, cache.ErrTTL), errors.Is(err, counter.ErrOverflow):
		return fail(wire.CodeInvalidRequest)
	case errors.Is(err, queue.ErrStale):
		return fail(wire.CodeStaleClaim)
	case errors.Is(err, partition.ErrGroupsReloading):
		return fail(wire.CodeShardUnavailable).WithReason(wire.ReasonNotReady).After(retryOpening)
	case errors.Is(err, cache.ErrFull), errors.Is(err, counter.ErrFull):
		return fail(wire.CodeOverloaded).WithReason(wire.ReasonCacheFull).After(retryDisk)
	case errors.Is(err, partition.ErrLeadershipLost):
		return fail(wire.CodeLeadershipLost)
	case errors.Is(err, stream.ErrUnknownProducer), errors.Is(err, stream.ErrSequenceExpired), errors.Is(err, stream.ErrSequenceReused):
		return fail(wire.CodeInvalidRequest)
	case errors.Is(err, storage.ErrUnknownOutcome):
		return fail(wire.CodeStorage).WithRetry(wire.RetryOutcomeUnknown)
	case errors.Is(err, storage.ErrQueueFull):
		return fail(wire.CodeOverloaded).WithReason(wire.ReasonPublishQueueFull).After(retryFull)
	case storage.IsDiskFull(err):
		return wire.NewFailure(wire.CodeOverloaded, fullText(err)).WithReason(wire.ReasonDiskFull).After(retryDisk)
	case storage.IsOutOfFiles(err):
		return wire.NewFailure(wire.CodeOverloaded, textOf(err)+"; nothing was done: the broker has no descriptor left, raise its limit of open files (ulimit -n), then try again").
			WithReason(wire.ReasonTooManyFiles).After(retryDisk)
	case errors.Is(err, partition.ErrSlow):
		return fail(wire.CodeOverloaded).WithRetry(wire.RetryNow)
	case errors.Is(err, meta.ErrNotFound):
		return fail(wire.CodeNotFound)
	case errors.Is(err, meta.ErrUnavailable):
		return fail(wire.CodeShardUnavailable).WithReason(wire.ReasonNotReady).After(retryMeta)
	}
	if e, ok := errors.AsType[*partition.OverloadedError](err); ok {
		reason := wire.ReasonPublishQueueFull
		if e.Scope == partition.ScopeTenant {
			reason = wire.ReasonTenantQuota
		}
		return fail(wire.CodeOverloaded).WithReason(reason).After(e.RetryAfter)
	}
	if e, ok := errors.AsType[*partition.QuotaError](err); ok {
		return fail(wire.CodeOverloaded).WithReason(wire.ReasonTenantQuota).After(e.RetryAfter)
	}
	if isA[*storage.PoisonedError](err) {
		return fail(wire.CodeStorage).WithReason(wire.ReasonPoisoned).WithRetry(wire.RetryAfter).After(retryPoisoned)
	}
	if isA[*storage.RecordTooLargeError](err) {
		return fail(wire.CodeLimitExceeded).WithReason(wire.ReasonRecordTooLarge)
	}
	if isA[*storage.BatchTooLargeError](err) {
		return fail(wire.CodeLimitExceeded)
	}
	if isA[*stream.SequenceGapError](err) || isA[*storage.OffsetMismatchError](err) || isA[*partition.TooOldError](err) ||
		isA[*partition.InFutureError](err) || isA[*meta.InvalidError](err) || isA[*meta.FixedError](err) || isA[*meta.ExistsError](err) {
		return fail(wire.CodeInvalidRequest)
	}
	if isA[*storage.DamagedError](err) || isA[*storage.Corruption](err) || isA[*projection.UnreadableError](err) {
		return fail(wire.CodeShardUnavailable).WithReason(wire.ReasonDamaged).WithRetry(wire.RetryFatal)
	}
	if isA[*MissingError](err) {
		return fail(wire.CodeShardUnavailable).WithReason(wire.ReasonNotReady).WithRetry(wire.RetryAfter).After(retryPoisoned)
	}
	if errors.Is(err, storage.ErrNotWritten) {
		return fail(wire.CodeStorage).WithRetry(wire.RetryNow)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fail(wire.CodeUnacknowledged)
	}
	return fail(wire.CodeInternal)
}

// fullText says of a disk without room what was not done, and what to do, also where it was
// met outside of a log that serves: while one is opened.
func fullText(err error) string {
	text := textOf(err)
	if !isA[*storage.DiskFullError](err) {
		text = fmt.Sprintf("%v: %s; nothing was done: make room on the broker's file system, then try again", storage.ErrDiskFull, text)
	}
	return text
}

// textOf is what a client is told of an error: where the broker keeps its files is not
// for clients.
func textOf(err error) string {
	text := err.Error()
	if d, ok := errors.AsType[*storage.DamagedError](err); ok {
		text = withoutPath(text, d.Dir)
	}
	if m, ok := errors.AsType[*MissingError](err); ok {
		if m.Mark != "" {
			text = strings.ReplaceAll(text, m.Mark, filepath.Join(madeDir, filepath.Base(m.Mark)))
		}
		text = withoutPath(text, m.Dir)
	}
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		text = withoutPath(text, p.Path)
		text = withoutPath(text, filepath.Dir(p.Path))
	}
	if f, ok := errors.AsType[*storage.DiskFullError](err); ok {
		text = withoutPath(text, f.Dir)
	}
	return text
}

// withoutPath leaves of a path its end: the name of the shard's directory, with what of the
// shard is meant where that is a part of it.
func withoutPath(text, path string) string {
	if !strings.ContainsRune(path, filepath.Separator) {
		return text
	}
	end := filepath.Base(path)
	if end == groupsDir {
		end = filepath.Join(filepath.Base(filepath.Dir(path)), end)
	}
	return strings.ReplaceAll(text, path, end)
}

func isA[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

// ErrDraining answers requests to a broker that is shutting down.
var ErrDraining = errors.New("broker: shutting down")

func notFound(kind string, k key) *wire.Failure {
	return wire.NewFailure(wire.CodeNotFound, fmt.Sprintf("%s %s/%s/%s does not exist", kind, k.tenant, k.namespace, k.name))
}
