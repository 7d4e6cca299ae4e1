package client

import (
	"context"

	"github.com/felixlog/felix/wire"
)

// Publish appends a record to a stream and waits for its answer. Publishes of
// several goroutines travel together. The payload is copied. Without [WithKey] or
// [WithShard] the record goes to shard 0, however many shards the stream has.
//
// ctx ends the waiting, not the write: the error then matches ErrOutcomeUnknown
// as well as the context's. Errors: ErrNotFound, ErrForbidden, ErrTooLarge,
// ErrLimitExceeded, ErrOverloaded, ErrUnavailable, ErrOutcomeUnknown.
func (c *Client) Publish(ctx context.Context, stream string, payload []byte, opts ...PublishOption) (Ack, error) {
	p, err := c.shared(stream, merge(opts).delivery)
	if err != nil {
		return Ack{}, err
	}
	return p.Publish(ctx, payload, opts...)
}

// shared returns the producer that Publish uses for a stream.
func (c *Client) shared(stream string, d Delivery) (*Producer, error) {
	k := producerKey{streamKey{c.namespace, stream}, d}
	c.mu.Lock()
	p := c.producers[k]
	c.mu.Unlock()
	if p != nil {
		return p, nil
	}
	p, err := c.Producer(stream, WithDelivery(d))
	if err != nil {
		return nil, &Error{Op: "publish " + stream, Retry: wire.RetryFatal, Err: err}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if had := c.producers[k]; had != nil {
		// Another was first. This one has done nothing and has nothing to end.
		delete(c.closers, p)
		p.cancel()
		return had, nil
	}
	c.producers[k] = p
	return p, nil
}

// PublishIf appends records to a shard of a durable stream, as a unit, only if
// the next offset of the shard is exactly expected. It is tried again only when
// nothing was applied. Errors: *OffsetMismatchError, ErrOutcomeUnknown.
func (c *Client) PublishIf(ctx context.Context, stream string, expected uint64, payloads [][]byte, opts ...PublishOption) (Ack, error) {
	op := "publish " + stream + " if"
	o := merge(opts)
	if err := o.validate(op); err != nil {
		return Ack{}, err
	}
	id := c.requestID()
	m := &wire.PublishIf{Tenant: c.config.tenant, Namespace: c.namespace, Stream: stream, Payloads: payloads, ExpectedOffset: expected, RequestID: id,
		Key: o.key, HasKey: o.hasKey}
	ack := Ack{Shard: o.shard, Offset: expected, HasOffset: true}
	if o.hasKey || o.shard > 0 {
		w, err := c.learnWidth(ctx, streamKey{c.namespace, stream})
		if err != nil {
			return Ack{}, wrap(op, err)
		}
		switch {
		case o.hasKey:
			ack.Shard = wire.Shard(w.routing, o.key, w.shards)
		case o.shard >= w.shards:
			return Ack{}, noShard(op, o.shard)
		default:
			m.Key, m.HasKey = keyOf(&w, o.shard), true
		}
	}
	a, err := c.do(ctx, &request{op: op, id: id, message: m, needs: wire.FeaturePublishConditional})
	switch {
	case err != nil:
		return Ack{}, err
	case a.refused != nil && a.refused.Reason == wire.RefusedOffsetMismatch:
		return Ack{}, &Error{Op: op, Retry: wire.RetryFatal, Err: &OffsetMismatchError{Expected: expected, Tail: a.refused.Tail}}
	case a.refused != nil:
		return Ack{}, &Error{Op: op, Retry: wire.RetryFatal, Message: string(a.refused.Reason) + ": " + a.refused.Message}
	case a.message != nil:
		return Ack{}, unexpected(op, a)
	}
	if a.hasOffset {
		ack.Offset = a.offset
	}
	return ack, nil
}
