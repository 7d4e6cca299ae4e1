package broker

import (
	"context"
	"sync/atomic"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/wire"
)

// Stream is a stream as this node serves it. It may be kept and used as long as one
// likes: once the stream is deleted every request to it says so.
type Stream struct {
	resource
	meta     atomic.Pointer[meta.Stream]
	routing  wire.Routing
	counters partition.Counters
}

// Meta is the stream's definition; it is never changed, a later call may give another.
func (s *Stream) Meta() *meta.Stream { return s.meta.Load() }

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
	u, err := s.unit(i)
	if err != nil {
		return nil, err
	}
	return u.(*partition.Partition), nil
}

// partition is the i-th shard if it is open.
func (s *Stream) partition(i int) *partition.Partition {
	p, _ := s.shards[i].status.Load().unit.(*partition.Partition)
	return p
}

// openShard opens a shard's log.
func (s *Stream) openShard(ctx context.Context, sh *shard, dir string) (unit, error) {
	def := s.Meta()
	o := s.broker.options(s, sh, dir, def)
	if !def.Durable {
		return partition.NewMemory(o), nil
	}
	return partition.Open(ctx, dir, o)
}

// opened takes in a change of the definition that came while the shard was opened.
func (s *Stream) opened(u unit) {
	def := s.Meta()
	u.(*partition.Partition).Configure(s.broker.recordLimit(def), def.StorePublisher, s.broker.retention(def))
}

func (s *Stream) incarnation() uint64 { return s.Meta().Incarnation }
func (s *Stream) durable() bool       { return s.Meta().Durable }
