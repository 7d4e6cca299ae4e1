package client

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/felixlog/felix/wire"
)

// ShardOwner is who leads a shard. NodeID and Addr are empty on a broker
// without a cluster, and when nobody leads; Unavailable then says why.
type ShardOwner struct {
	Shard        int
	NodeID, Addr string
	Generation   uint64
	Unavailable  string
}

// StreamShards returns the count of shards of a stream. Errors: ErrNotFound for
// a stream that the broker does not know.
func (c *Client) StreamShards(ctx context.Context, stream string) (int, error) {
	w, err := c.askWidth(ctx, "shards of "+stream, streamKey{c.namespace, stream})
	return w.shards, err
}

// ShardOwners returns the leader of each shard of a stream, in order.
func (c *Client) ShardOwners(ctx context.Context, stream string) ([]ShardOwner, error) {
	op := "shard owners of " + stream
	id := c.requestID()
	a, err := c.do(ctx, &request{op: op, id: id, needs: wire.FeatureShardOwners, repeatable: true,
		message: &wire.ShardOwners{Tenant: c.config.tenant, Namespace: c.namespace, Name: stream, RequestID: id}})
	if err != nil {
		return nil, err
	}
	m, ok := a.message.(*wire.ShardOwnersView)
	if !ok {
		return nil, unexpected(op, a)
	}
	if len(m.Owners) == 0 {
		return nil, unknownStream(op)
	}
	owners := make([]ShardOwner, len(m.Owners))
	for i, o := range m.Owners {
		owners[i] = ShardOwner{Shard: int(o.Shard), NodeID: o.NodeID, Addr: o.Addr, Generation: o.Generation, Unavailable: o.Unavailable}
	}
	return owners, nil
}

func unknownStream(op string) *Error {
	return &Error{Op: op, Code: wire.CodeNotFound, Retry: wire.RetryAfter, Message: "the broker knows no such stream"}
}

// learnWidth asks for the width of a stream. One that is unknown is asked for again for a
// while: it may just have been created. Nothing remembers it but the producers, who hear of
// every answer: a stream may be removed and made again with other shards.
func (c *core) learnWidth(ctx context.Context, k streamKey) (width, error) {
	b := c.config.retry.begin()
	for {
		w, err := c.askWidth(ctx, "shards of "+k.stream, k)
		if err == nil {
			return w, nil
		}
		d, again := b.again(err, true)
		if !again || pause(ctx, d) != nil {
			return width{}, err
		}
	}
}

func (c *core) askWidth(ctx context.Context, op string, k streamKey) (width, error) {
	id := c.requestID()
	a, err := c.do(ctx, &request{op: op, id: id, needs: wire.FeatureStreamShards, repeatable: true,
		message: &wire.StreamShards{Tenant: c.config.tenant, Namespace: k.namespace, Stream: k.stream, RequestID: id}})
	if err != nil {
		return width{}, err
	}
	m, ok := a.message.(*wire.StreamShardsView)
	switch {
	case !ok:
		return width{}, unexpected(op, a)
	case m.Shards == 0:
		return width{}, unknownStream(op)
	}
	w := width{shards: int(m.Shards), routing: m.Routing}
	for _, p := range c.producersOf(k) {
		p.setWidth(w)
	}
	return w, nil
}

// OffsetForTime returns the first offset of a shard whose record is not older
// than at; found is false when there is no record that recent.
func (c *Client) OffsetForTime(ctx context.Context, stream string, shard int, at time.Time) (offset uint64, found bool, err error) {
	op := "offset for time in " + stream
	id := c.requestID()
	micros := uint64(max(at.UnixMicro(), 0))
	a, err := c.do(ctx, &request{op: op, id: id, needs: wire.FeatureRecordTimestamps, repeatable: true,
		message: &wire.OffsetForTime{Tenant: c.config.tenant, Namespace: c.namespace, Stream: stream, Shard: wireCount(shard), AtMicros: micros, RequestID: id}})
	if err != nil {
		return 0, false, err
	}
	m, ok := a.message.(*wire.OffsetValue)
	if !ok {
		return 0, false, unexpected(op, a)
	}
	return m.Offset, m.HasOffset, nil
}

// tailOf returns the next offset of a durable stream's shard. Nothing says it but the
// refusal to read what lies past every record.
func (c *Client) tailOf(ctx context.Context, stream string, shard int) (uint64, error) {
	_, err := c.Read(ctx, stream, shard, math.MaxUint64)
	var cursor *CursorError
	if errors.As(err, &cursor) && cursor.InFuture {
		return cursor.Available, nil
	}
	if err == nil {
		err = &Error{Op: "read " + stream, Retry: wire.RetryFatal, Message: "a read past every record was not refused"}
	}
	return 0, err
}

// startAt is where a shard's records of a time or later begin: at the first of them, or
// where the next record comes when there is none. That place is learned before it is
// asked whether there is one, so that none which comes meanwhile is passed over.
func (c *Client) startAt(ctx context.Context, stream string, shard int, at time.Time) (uint64, error) {
	if offset, found, err := c.OffsetForTime(ctx, stream, shard, at); err != nil || found {
		return offset, err
	}
	tail, err := c.tailOf(ctx, stream, shard)
	if err != nil {
		return 0, err
	}
	offset, found, err := c.OffsetForTime(ctx, stream, shard, at)
	if err != nil || found {
		return offset, err
	}
	return tail, nil
}

// Page is what one Read returned.
type Page struct {
	Records []Record
	// Next is where to read on. It may pass over offsets without a record.
	Next uint64
}

// ReadOption bounds a Read.
type ReadOption func(*wire.StreamRead)

// ReadUntil stops before an offset.
func ReadUntil(end uint64) ReadOption {
	return func(m *wire.StreamRead) { m.End, m.HasEnd = end, true }
}

// ReadRecords bounds the count of records; the broker has a bound of its own.
func ReadRecords(n int) ReadOption {
	return func(m *wire.StreamRead) { m.MaxRecords = uint32(max(n, 1)) }
}

// ReadBytes bounds the bytes of payload; one record is always returned. The
// broker's own bound is 4 MiB.
func ReadBytes(n int) ReadOption {
	return func(m *wire.StreamRead) { m.MaxBytes = uint64(max(n, 1)) }
}

// Read returns the records of a durable stream's shard from an offset on, as
// many as fit one page. It never waits: at the tail the page is empty.
// Errors: *CursorError.
func (c *Client) Read(ctx context.Context, stream string, shard int, from uint64, opts ...ReadOption) (*Page, error) {
	op := "read " + stream
	id := c.requestID()
	m := &wire.StreamRead{Tenant: c.config.tenant, Namespace: c.namespace, Stream: stream, Shard: wireCount(shard), From: from, RequestID: id}
	for _, o := range opts {
		o(m)
	}
	a, err := c.do(ctx, &request{op: op, id: id, needs: wire.FeatureStreamRead, repeatable: true, message: m})
	if err != nil {
		return nil, err
	}
	switch m := a.message.(type) {
	case *wire.StreamRecords:
		page := &Page{Next: m.NextOffset, Records: make([]Record, len(m.Records))}
		for i, r := range m.Records {
			page.Records[i] = Record{Shard: shard, Offset: r.Offset, HasOffset: true, Payload: r.Payload, Publisher: r.Publisher,
				Timestamp: time.UnixMicro(int64(r.TimestampMicros))}
		}
		return page, nil
	case *wire.SubscribeCursorError:
		return nil, cursorError(op, shard, m)
	}
	return nil, unexpected(op, a)
}

func cursorError(op string, shard int, m *wire.SubscribeCursorError) error {
	return &Error{Op: op, Retry: wire.RetryFatal, Err: &CursorError{Shard: shard, InFuture: m.InFuture, Requested: m.Requested, Available: m.Available}}
}
