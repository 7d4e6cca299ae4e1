package partition

import (
	"errors"
	"fmt"
	"time"

	"github.com/felixlog/felix/storage"
)

// Errors a caller branches on.
var (
	// ErrClosed: the shard is closing or closed here. Nothing of the request was done.
	ErrClosed = errors.New("partition: shard is closed")
	// ErrDeleted: the stream was deleted. Nothing of the request was done.
	ErrDeleted = errors.New("partition: stream was deleted")
	// ErrMemoryStream: the request needs a durable stream.
	ErrMemoryStream = errors.New("partition: stream is in memory only")
	// ErrEmptyBatch: a conditional or idempotent publish without records.
	ErrEmptyBatch = errors.New("partition: batch without records")
	// ErrSlow ends a subscription of an in-memory stream that blocks its publishers
	// for longer than allowed.
	ErrSlow = errors.New("partition: subscriber held back publishes for too long")
	// ErrUnsubscribed ends a subscription that was closed.
	ErrUnsubscribed = errors.New("partition: unsubscribed")
	// ErrOpenAnew: what was read from the shard's log cannot be trusted; it serves again
	// once it has been closed and opened.
	ErrOpenAnew = errors.New("partition: shard has to be closed and opened anew")
	// ErrLeadershipLost answers publishes that were written here and not committed when
	// the shard moved: they may survive.
	ErrLeadershipLost = errors.New("partition: leadership was lost before the commit")
)

// TooOldError says that the records at a position existed and are gone.
type TooOldError struct {
	Requested storage.Offset
	Available storage.Offset // the oldest that can be read
}

func (e *TooOldError) Error() string {
	return fmt.Sprintf("partition: offset %d is no longer retained; the oldest is %d", e.Requested, e.Available)
}

// InFutureError says that a position is past the tail.
type InFutureError struct {
	Requested storage.Offset
	Available storage.Offset // the tail: the offset of the next record
}

func (e *InFutureError) Error() string {
	return fmt.Sprintf("partition: offset %d is past the tail %d", e.Requested, e.Available)
}

// OverloadedError refuses a publish for want of room. Nothing was done.
type OverloadedError struct {
	Scope      Scope
	RetryAfter time.Duration
}

// Scope says whose room was used up.
type Scope uint8

// The scopes of an overload.
const (
	ScopeShard Scope = iota
	ScopeTenant
	ScopeNode
)

var scopeNames = [...]string{ScopeShard: "shard", ScopeTenant: "tenant", ScopeNode: "node"}

func (s Scope) String() string { return scopeNames[s] }

func (e *OverloadedError) Error() string {
	return "partition: too many bytes in flight for the " + e.Scope.String()
}

// retryOverloaded is how long a publisher should wait for room: a few flushes.
const retryOverloaded = 20 * time.Millisecond

var overloads = [...]*OverloadedError{
	ScopeShard:  {ScopeShard, retryOverloaded},
	ScopeTenant: {ScopeTenant, retryOverloaded},
	ScopeNode:   {ScopeNode, retryOverloaded},
}
