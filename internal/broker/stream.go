package broker

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/wire"
)

// Stream is a stream as this node serves it. It may be kept and used as long as one
// likes: once the stream is deleted every request to it says so.
type Stream struct {
	broker   *Broker
	key      key
	meta     atomic.Pointer[meta.Stream]
	routing  wire.Routing
	shards   []shard
	counters partition.Counters
	deleted  atomic.Bool
	// gone is closed when its directories are out of the way of another stream of the
	// name; before is that of the one that had the name last, nil if none had.
	gone, before chan struct{}
	openers      sync.WaitGroup // shards being opened
}

// shard is one place of a stream; its partition comes and goes.
type shard struct {
	stream *Stream
	index  uint32
	name   string
	status atomic.Pointer[status]
}

// status is immutable.
type status struct {
	state     partition.State
	partition *partition.Partition // Active
	err       error                // Damaged
}

// Meta is the stream's definition; it is never changed, a later call may give another.
func (s *Stream) Meta() *meta.Stream { return s.meta.Load() }

// Shards is how many there are.
func (s *Stream) Shards() int { return len(s.shards) }

// Deleted says that the stream does not exist any more.
func (s *Stream) Deleted() bool { return s.deleted.Load() }

// Counters are the totals over all shards of this node.
func (s *Stream) Counters() *partition.Counters { return &s.counters }

// Route is the shard of a key; without one, shard 0.
func (s *Stream) Route(key []byte, hasKey bool) int {
	if !hasKey {
		return 0
	}
	return wire.Shard(s.routing, key, len(s.shards))
}

// Shard is the i-th shard. The error is a *wire.Failure: invalid_request for a number
// out of range, not_found once deleted, shard_unavailable while it opens or when it is
// damaged.
func (s *Stream) Shard(i int) (*partition.Partition, error) {
	if uint(i) >= uint(len(s.shards)) {
		return nil, wire.NewFailure(wire.CodeInvalidRequest, fmt.Sprintf("shard %d does not exist: the stream has %d", i, len(s.shards)))
	}
	st := s.shards[i].status.Load()
	if st.partition != nil {
		return st.partition, nil
	}
	return nil, s.shards[i].unavailable(st)
}

func (sh *shard) unavailable(st *status) error {
	if sh.stream.deleted.Load() {
		return Failure(partition.ErrDeleted)
	}
	switch st.state {
	case partition.Damaged:
		f := Failure(st.err)
		if f.Code != wire.CodeShardUnavailable {
			f = wire.NewFailure(wire.CodeShardUnavailable, st.err.Error()).WithReason(wire.ReasonNotReady).After(retryPoisoned)
		}
		return f
	case partition.Closed:
		return Failure(ErrDraining)
	default:
		return wire.NewFailure(wire.CodeShardUnavailable, "shard "+sh.name+" is being recovered").
			WithReason(wire.ReasonNotReady).WithRetry(wire.RetryAfter).After(retryOpening)
	}
}

func (sh *shard) set(st *status) {
	sh.status.Store(st)
	b := sh.stream.broker
	if b.o.Events.OnState != nil {
		b.o.Events.OnState(sh.name, st.state, st.err)
	}
	b.changed()
}
