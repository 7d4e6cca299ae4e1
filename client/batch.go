package client

import (
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felixlog/felix/wire"
)

// Ack is where a record went.
type Ack struct {
	Shard int
	// Offset is set when HasOffset is: a stream in memory may give none.
	Offset    uint64
	HasOffset bool
}

// Future is a record under way. It is a small value and may be copied.
type Future struct {
	b     *batch
	index uint64
}

// Done is closed when the record has been answered.
func (f Future) Done() <-chan struct{} { return f.b.done }

// Wait returns the answer. When ctx ends first, the record is still under way
// and the error matches ErrOutcomeUnknown and the context's.
func (f Future) Wait(ctx context.Context) (Ack, error) {
	select {
	case <-f.b.done:
	default:
		select {
		case <-f.b.done:
		case <-ctx.Done():
			return Ack{}, givenUp(f.b.lane.op(), ctx, true)
		}
	}
	o, offset := f.b.outcome, f.b.offset+f.index
	if f.b.parts != nil {
		o = f.b.parts[f.index]
		offset = o.offset
	}
	if o.err != nil {
		return Ack{}, o.err
	}
	return Ack{Shard: f.b.lane.shard, Offset: offset, HasOffset: o.hasOffset}, nil
}

// outcome is what became of a batch, or of a record of one that was split.
type outcome struct {
	// offset is that of the first record.
	offset    uint64
	hasOffset bool
	err       error
}

// batch is records of one shard in one frame, from the first record on until it
// is answered. Everything but done and, once that is closed, the outcome is
// under the lane's lock.
type batch struct {
	lane *lane
	// frame is the whole frame. Its count and length are set when it is sealed,
	// its request id and sequence when it is sent.
	frame  []byte
	prefix int
	count  uint32
	sealed bool
	// due: a lingering batch may go.
	due bool
	// awaited: who added its last record waits for the answer.
	awaited bool
	created time.Time
	// held is what it counts for in the producer's bound.
	held int64

	sequence uint64
	// epoch is that of the connection it was last sent on.
	epoch uint64
	// maybe: an earlier try ended without an answer, so that the broker may
	// have appended it.
	maybe bool
	// verdict is the answer of the last try that was not a success.
	verdict *answer
	// firstRefused is when it was first refused.
	firstRefused time.Time

	done chan struct{}
	outcome

	// A batch that was refused because one of its records is too large is sent
	// again as one batch for each: parts has their outcomes, left counts those
	// still under way, and each of them knows its place.
	parts  []outcome
	left   atomic.Int64
	parent *batch
	place  int
}

// frames are the buffers of batches.
var frames = sync.Pool{New: func() any { return new([]byte) }}

func (l *lane) newBatch() *batch {
	b := &batch{lane: l, done: make(chan struct{}), created: time.Now()}
	buf := frames.Get().(*[]byte)
	b.frame = wire.AppendPublishPrefix((*buf)[:0], &wire.PublishBatchFrame{
		Acked: true, AckMode: wire.AckPerBatch, Idempotent: l.idempotent(),
		HasKey: l.hasKey, Key: l.key,
		Tenant: l.p.client.config.tenant, Namespace: l.p.key.namespace, Stream: l.p.key.stream,
	})
	b.prefix = len(b.frame)
	return b
}

func (b *batch) add(payload []byte) uint64 {
	b.frame = wire.AppendBlob(b.frame, payload)
	b.count++
	b.held += heldBytes(payload)
	return uint64(b.count - 1)
}

// fits reports whether a payload may join.
func (b *batch) fits(payload []byte, c *producerConfig) bool {
	return int(b.count) < c.batchRecords && len(b.frame)+4+len(payload) <= c.batchBytes
}

func (b *batch) seal() {
	b.frame = wire.FinishPublish(b.frame, 0, b.prefix, b.count)
	b.sealed = true
}

// fail ends b with what became of its last try. What an earlier one may have appended is
// not known to be absent, whatever refused the last: its outcome is unknown. Every error
// of a batch passes here.
func (b *batch) fail(e *Error) {
	if b.maybe {
		e.Retry = wire.RetryOutcomeUnknown
	}
	b.err = e
}

// complete answers everyone who waits. It is called once, without the lane's
// lock, for a batch that is in none of its lists any more.
func (b *batch) complete() {
	held := b.held
	if cap(b.frame) <= framesKept {
		buf := b.frame[:0]
		frames.Put(&buf)
	}
	b.frame = nil
	if p := b.parent; p != nil {
		p.parts[b.place] = b.outcome
		if p.left.Add(-1) == 0 {
			p.complete()
		}
	}
	b.lane.p.release(held)
	close(b.done)
}

// split makes a batch of each record. They count for nothing in the producer's
// bound: their parent still does.
func (b *batch) split() []*batch {
	b.parts = make([]outcome, b.count)
	b.left.Store(int64(b.count))
	records := make([]*batch, b.count)
	rest := b.frame[b.prefix:]
	for i := range records {
		size := binary.BigEndian.Uint32(rest)
		r := b.lane.newBatch()
		r.created, r.firstRefused = b.created, b.firstRefused
		r.parent, r.place = b, i
		r.add(rest[4 : 4+size])
		r.held = 0
		r.seal()
		records[i] = r
		rest = rest[4+size:]
	}
	return records
}

// framesKept bounds the buffers that are kept for later batches.
const framesKept = 256 << 10

// heldBytes is what a record counts for: its payload and its share of the rest.
func heldBytes(payload []byte) int64 { return int64(len(payload)) + 16 }
