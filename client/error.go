package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/felixlog/felix/wire"
)

// What callers branch on, for errors.Is.
var (
	// ErrOutcomeUnknown: the request may have been applied, or not.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrClosed: the client, producer or subscription was closed.
	ErrClosed = errors.New("closed")
	// ErrBufferFull: a producer with WithFailWhenFull has no room for the record.
	ErrBufferFull = errors.New("producer buffer is full")
	// ErrTooLarge: the record does not fit a frame.
	ErrTooLarge = errors.New("record is too large")
	// ErrUnavailable: no broker could be reached in time. Nothing was applied.
	ErrUnavailable = errors.New("no broker reachable")
	// ErrUnsupported: the broker does not serve the request.
	ErrUnsupported = errors.New("not served by this broker")
	// ErrConnectionLost: the connection ended before the answer.
	ErrConnectionLost = errors.New("connection lost")
	// ErrShardLostRecords: the shard no longer has records it acknowledged to
	// this producer, so that its numbers do not fit any more.
	ErrShardLostRecords = errors.New("shard lost acknowledged records")

	// ErrShardsChanged: the stream was made again with other shards, and the record was
	// placed by those it had. Sent again, it is placed anew.
	ErrShardsChanged = errors.New("the stream has other shards than it had")

	// ErrUnauthenticated: the token was not accepted.
	ErrUnauthenticated = errors.New("unauthenticated")
	// ErrForbidden: the token does not permit the request.
	ErrForbidden = errors.New("forbidden")
	// ErrNotFound: unknown tenant, namespace, stream or cache.
	ErrNotFound = errors.New("not found")
	// ErrInvalidRequest: the broker refused the form of the request.
	ErrInvalidRequest = errors.New("invalid request")
	// ErrShardUnavailable: the shard is not served at the moment.
	ErrShardUnavailable = errors.New("shard unavailable")
	// ErrOverloaded: the broker has no room at the moment.
	ErrOverloaded = errors.New("overloaded")
	// ErrLimitExceeded: more than a limit of the broker allows.
	ErrLimitExceeded = errors.New("limit exceeded")
	// ErrStaleClaim: the claim no longer stands.
	ErrStaleClaim = errors.New("stale claim")

	// ErrCursorTooOld matches a *CursorError below the oldest retained record.
	ErrCursorTooOld = errors.New("cursor too old")
	// ErrInFuture matches a *CursorError past the tail.
	ErrInFuture = errors.New("cursor in the future")
	// ErrOffsetMismatch matches an *OffsetMismatchError.
	ErrOffsetMismatch = errors.New("offset mismatch")
)

var codeErrors = map[wire.Code]error{
	wire.CodeUnauthenticated:  ErrUnauthenticated,
	wire.CodeForbidden:        ErrForbidden,
	wire.CodeNotFound:         ErrNotFound,
	wire.CodeInvalidRequest:   ErrInvalidRequest,
	wire.CodeShardUnavailable: ErrShardUnavailable,
	wire.CodeNotLeader:        ErrShardUnavailable,
	wire.CodeOverloaded:       ErrOverloaded,
	wire.CodeLimitExceeded:    ErrLimitExceeded,
	wire.CodeDraining:         ErrUnavailable,
	wire.CodeStaleClaim:       ErrStaleClaim,
}

// Error is a failed request. errors.Is tells its kind: see the Err variables.
type Error struct {
	// Op is the request, such as "publish orders".
	Op string
	// Code is the broker's, zero when the failure is not the broker's answer.
	Code wire.Code
	// Retry says what is safe: RetryNow, RetryAfter and RetryRedirect promise
	// that nothing was applied, RetryOutcomeUnknown that it may have been.
	Retry wire.Retry
	// Reason narrows the code.
	Reason string
	// RetryAfter is the broker's wish, or zero.
	RetryAfter time.Duration
	// Message is for people.
	Message string
	// Err is the cause on this side: a lost connection, an ended context.
	Err error
}

// Error names the request, the kind and the cause.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Code != 0 {
		b.WriteString(": ")
		b.WriteString(e.Code.String())
		if e.Reason != "" {
			b.WriteString(" (" + e.Reason + ")")
		}
	}
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	if e.Retry == wire.RetryOutcomeUnknown {
		b.WriteString(": outcome unknown")
	}
	return b.String()
}

// Unwrap returns the cause on this side.
func (e *Error) Unwrap() error { return e.Err }

// Is matches the sentinel of the code, and ErrOutcomeUnknown by the class.
func (e *Error) Is(target error) bool {
	if target == ErrOutcomeUnknown {
		return e.Retry == wire.RetryOutcomeUnknown
	}
	want, ok := codeErrors[e.Code]
	return ok && target == want
}

// CursorError refuses a start offset outside what the shard holds.
type CursorError struct {
	Shard int
	// InFuture: Requested is past Available, the tail. Otherwise it is below
	// Available, the oldest retained offset.
	InFuture             bool
	Requested, Available uint64
}

// Error names both offsets.
func (e *CursorError) Error() string {
	if e.InFuture {
		return fmt.Sprintf("shard %d: offset %d is in the future, the next is %d", e.Shard, e.Requested, e.Available)
	}
	return fmt.Sprintf("shard %d: offset %d is no longer retained, the oldest is %d", e.Shard, e.Requested, e.Available)
}

// Is matches ErrCursorTooOld or ErrInFuture.
func (e *CursorError) Is(target error) bool {
	return target == ErrInFuture && e.InFuture || target == ErrCursorTooOld && !e.InFuture
}

// OffsetMismatchError refuses a conditional publish. Nothing was appended.
type OffsetMismatchError struct {
	Expected, Tail uint64
}

// Error names both offsets.
func (e *OffsetMismatchError) Error() string {
	return fmt.Sprintf("expected offset %d, the next is %d", e.Expected, e.Tail)
}

// Is matches ErrOffsetMismatch.
func (*OffsetMismatchError) Is(target error) bool { return target == ErrOffsetMismatch }

// failed makes the error of an answer.
func failed(op string, f *wire.Failure) *Error {
	e := &Error{Op: op, Code: f.Code, Retry: f.Retry, Reason: f.Reason, RetryAfter: f.RetryAfter, Message: f.Message}
	if e.Retry == 0 {
		e.Retry = classFromText(f)
	}
	return e
}

// classFromText guesses the class that an older broker does not name.
func classFromText(f *wire.Failure) wire.Retry {
	if f.Code != 0 {
		return f.Code.DefaultRetry()
	}
	if strings.Contains(strings.ToLower(f.Message), "forbidden") {
		return wire.RetryFatal
	}
	return wire.RetryNow
}

// lost makes the error of a request whose connection ended. sent says whether
// the broker can have it.
func lost(op string, cause error, sent bool) *Error {
	if cause == nil {
		cause = ErrConnectionLost
	} else if !errors.Is(cause, ErrConnectionLost) && !errors.Is(cause, ErrClosed) {
		cause = fmt.Errorf("%w: %w", ErrConnectionLost, cause)
	}
	e := &Error{Op: op, Retry: wire.RetryNow, Err: cause}
	if sent {
		e.Retry = wire.RetryOutcomeUnknown
	}
	return e
}

// givenUp makes the error of a caller whose context ended while it waited.
func givenUp(op string, ctx context.Context, sent bool) *Error {
	e := &Error{Op: op, Retry: wire.RetryNow, Err: context.Cause(ctx)}
	if sent {
		e.Retry = wire.RetryOutcomeUnknown
	}
	return e
}
