package server

import (
	"context"
	"errors"
	"sync"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/wire"
)

// streamHandlers serve every broker.
func streamHandlers() Handlers {
	return Handlers{Requests: map[string]Handler{
		"producer_init": producerInit,
		"stream_shards": streamShards,
		"shard_owners":  shardOwners,
		"subscribe":     subscribe,
	}}
}

// durableHandlers serve brokers that keep durable streams.
func durableHandlers() Handlers {
	return Handlers{Requests: map[string]Handler{
		"publish_if":      func(_ context.Context, r *Request) { publishIf(r) },
		"stream_read":     streamRead,
		"offset_for_time": offsetForTime,
	}}
}

func producerInit(_ context.Context, r *Request) {
	m := r.Message.(*wire.ProducerInit)
	r.Answer(&wire.ProducerInitOK{RequestID: m.RequestID, ProducerID: r.s.server.broker.NewProducerID()})
}

// streamOf finds a stream, or nil when there is none of that name.
func (r *Request) streamOf(tenant, namespace, name string) (*broker.Stream, error) {
	st, err := r.s.server.broker.Stream(tenant, namespace, name)
	if err != nil && errors.Is(broker.Failure(err), &wire.Failure{Code: wire.CodeNotFound}) {
		return nil, nil
	}
	return st, err
}

// streamShards answers 0 shards for a stream that is not known: not an error.
func streamShards(_ context.Context, r *Request) {
	m := r.Message.(*wire.StreamShards)
	if !r.AllowTenant(m.Tenant) {
		return
	}
	st, err := r.streamOf(m.Tenant, m.Namespace, m.Stream)
	if err != nil {
		r.Fail(err)
		return
	}
	view := &wire.StreamShardsView{RequestID: m.RequestID}
	if st != nil {
		view.Shards = uint32(st.Shards())
		view.HasRouting = true
		if st.Meta().Routing == meta.RoutingJumpHash {
			view.Routing = wire.RoutingJump
		}
	}
	r.Answer(view)
}

// shardOwners names no owner: a broker by itself serves every shard.
func shardOwners(_ context.Context, r *Request) {
	m := r.Message.(*wire.ShardOwners)
	if !r.AllowTenant(m.Tenant) {
		return
	}
	var shards int
	var err error
	if m.Cache {
		var ca *broker.Cache
		if ca, err = r.s.server.broker.Cache(m.Tenant, m.Namespace, m.Name); err == nil {
			shards = ca.Shards()
		}
	} else {
		var st *broker.Stream
		if st, err = r.s.server.broker.Stream(m.Tenant, m.Namespace, m.Name); err == nil {
			shards = st.Shards()
		}
	}
	if err != nil && !isNotFound(err) {
		r.Fail(err)
		return
	}
	view := &wire.ShardOwnersView{RequestID: m.RequestID}
	for i := range shards {
		view.Owners = append(view.Owners, wire.ShardOwner{Shard: uint32(i)})
	}
	r.Answer(view)
}

// readShard finds the shard of a request that reads, and answers when it may not or
// there is none.
func (r *Request) readShard(tenant, namespace, name string, shard uint32) *partition.Partition {
	if !r.Allow(auth.StreamSubscribe, auth.StreamObject(tenant, namespace, name)) {
		return nil
	}
	st, err := r.s.server.broker.Stream(tenant, namespace, name)
	if err != nil {
		r.Fail(err)
		return nil
	}
	p, err := st.Shard(int(shard))
	if err != nil {
		r.Fail(err)
		return nil
	}
	return p
}

// failRead answers a position outside what is kept as such, and everything else as an
// error.
func (r *Request) failRead(err error) {
	if m := cursorError(err); m != nil {
		r.Answer(m)
		return
	}
	r.Fail(err)
}

func cursorError(err error) wire.Message {
	if e, ok := errors.AsType[*partition.TooOldError](err); ok {
		return &wire.SubscribeCursorError{Requested: uint64(e.Requested), Available: uint64(e.Available)}
	}
	if e, ok := errors.AsType[*partition.InFutureError](err); ok {
		return &wire.SubscribeCursorError{InFuture: true, Requested: uint64(e.Requested), Available: uint64(e.Available)}
	}
	return nil
}

var readPages = sync.Pool{New: func() any { return new(partition.ReadPage) }}

func streamRead(ctx context.Context, r *Request) {
	m := r.Message.(*wire.StreamRead)
	p := r.readShard(m.Tenant, m.Namespace, m.Stream, m.Shard)
	if p == nil {
		return
	}
	r.Behind(true)
	page := readPages.Get().(*partition.ReadPage)
	defer readPages.Put(page)
	request := partition.ReadRequest{
		From: storage.Offset(m.From), End: storage.Offset(m.End), HasEnd: m.HasEnd,
		MaxRecords: clampInt(uint64(m.MaxRecords)), MaxBytes: clampInt(m.MaxBytes),
	}
	if err := p.Read(ctx, request, page); err != nil {
		r.failRead(err)
		return
	}
	fit := r.s.server.fitting(len(page.Records), func(i int) int { return costOf(page.Records[i].Payload, page.Records[i].Publisher) })
	if fit < len(page.Records) {
		page.Records, page.Next = page.Records[:fit], page.Records[fit].Offset
	}
	answer := &wire.StreamRecords{NextOffset: uint64(page.Next), RequestID: m.RequestID, Records: make([]wire.StreamRecord, len(page.Records))}
	for i := range page.Records {
		rec := &page.Records[i]
		answer.Records[i] = wire.StreamRecord{Offset: uint64(rec.Offset), Payload: rec.Payload, TimestampMicros: uint64(max(rec.Timestamp, 0)),
			Publisher: string(rec.Publisher)}
	}
	r.Answer(answer)
}

// clampInt is n as an int that holds on every platform; every limit is far below it.
func clampInt(n uint64) int { return int(min(n, 1<<31-1)) }

func offsetForTime(ctx context.Context, r *Request) {
	m := r.Message.(*wire.OffsetForTime)
	p := r.readShard(m.Tenant, m.Namespace, m.Stream, m.Shard)
	if p == nil {
		return
	}
	r.Behind(true)
	at, found, err := p.OffsetForTime(ctx, storage.Micros(min(m.AtMicros, 1<<63-1)))
	if err != nil {
		r.failRead(err)
		return
	}
	r.Answer(&wire.OffsetValue{RequestID: m.RequestID, Offset: uint64(at), HasOffset: found})
}

func subscribe(ctx context.Context, r *Request) {
	m := r.Message.(*wire.Subscribe)
	p := r.readShard(m.Tenant, m.Namespace, m.Stream, m.Shard)
	if p == nil {
		return
	}
	s := r.s
	o := partition.SubscribeOptions{
		Shape: stream.ShapeOf(s.flags), Principal: s.principal.Subject, Connection: s.conn.remote.String(),
	}
	switch m.Start.Kind {
	case wire.StartEarliest:
		o.Start = partition.StartEarliest()
	case wire.StartOffset:
		o.Start = partition.StartAt(storage.Offset(m.Start.Offset))
	}
	if m.HasQueueCapacity {
		o.QueueCapacity = max(1, clampInt(uint64(m.QueueCapacity)))
	}
	r.Behind(true)
	sub, err := p.Subscribe(ctx, o)
	if err != nil {
		r.failRead(err)
		return
	}
	answer := &wire.Subscribed{SubscriptionID: sub.ID()}
	if sub.HasOffsets() && s.flags.Has(wire.FlagEventBatchOffsets) {
		answer.StartOffset, answer.HasStartOffset = uint64(sub.StartOffset()), true
		answer.LiveOffset, answer.HasLiveOffset = uint64(sub.LiveOffset()), true
	}
	if m.HasQueueCapacity {
		answer.QueueCapacity, answer.HasQueueCapacity = uint32(sub.QueueCapacity()), true
	}
	f := r.Events(sub.ID(), answer, func(ctx context.Context, e *EventStream) (wire.Message, error) {
		defer sub.Close()
		return s.deliver(ctx, sub, e)
	})
	if f != nil {
		sub.Close()
		r.Fail(f)
	}
}

// deliver writes a subscription's events until it ends, and says how.
func (s *session) deliver(ctx context.Context, sub *partition.Subscription, e *EventStream) (wire.Message, error) {
	// Once the server drains, what can be read without waiting is still delivered.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.server.draining, cancel)
	defer stop()

	var d partition.Delivery
	defer d.Release()
	for {
		if err := sub.Next(ctx, &d); err != nil {
			return s.ender(sub, err)
		}
		if err := e.Write(d.Frames...); err != nil {
			return nil, err
		}
		if f := s.server.events.OnDelivered; f != nil {
			f(d.Events, d.Bytes)
		}
	}
}

// moved reports whether a subscription or watch that ended with err can go on elsewhere,
// or here after a while.
func (s *session) moved(err error) bool {
	return s.server.isDraining() && errors.Is(err, context.Canceled) || errors.Is(err, partition.ErrClosed)
}

// ender is the last frame of a subscription that ends with err: none means a plain
// end, an error that the stream is reset as lost.
func (s *session) ender(sub *partition.Subscription, err error) (wire.Message, error) {
	moved := s.moved(err)
	_, overtaken := errors.AsType[*partition.TooOldError](err)
	switch {
	case errors.Is(err, partition.ErrDeleted), errors.Is(err, partition.ErrUnsubscribed):
		return nil, nil
	case overtaken && s.features.Has(wire.FeatureSubscriptionLagged) && s.flags.Has(wire.FlagEventBatchOffsets):
		return &wire.SubscriptionLagged{SubscriptionID: sub.ID(), ResumeFrom: uint64(sub.Position())}, nil
	case moved && s.features.Has(wire.FeatureShardMoved):
		m := &wire.ShardMoved{SubscriptionID: sub.ID()}
		if sub.HasOffsets() {
			m.ResumeFrom, m.HasResumeFrom = uint64(sub.Position()), true
		}
		return m, nil
	case moved:
		return nil, nil
	}
	return nil, ErrReset
}
