package felixtest

import (
	"bytes"
	"crypto/tls"
	"net"
	"time"

	"github.com/felixlog/felix/wire"
)

const served = wire.FeatureStreamShards | wire.FeatureShardOwners | wire.FeatureIdempotentProducer | wire.FeatureErrorCodes |
	wire.FeatureUnsupported | wire.FeaturePublishPipeline | wire.FeatureStreamPublishWindow | wire.FeatureStreamRead |
	wire.FeatureRecordTimestamps | wire.FeaturePublishConditional | wire.FeatureSubscriptionLagged

// conn is one connection of a client. closed is under the broker's lock.
type conn struct {
	b      *Broker
	socket net.Conn
	tls    *tls.Conn
	closed bool

	flags wire.Flags
	out   []byte
	cut   bool
}

func (c *conn) serve() {
	defer func() {
		ignore(c.socket.Close())
		c.b.mu.Lock()
		c.closed = true
		delete(c.b.conns, c)
		c.b.grown.Broadcast()
		c.b.mu.Unlock()
	}()
	r := wire.NewReader(c.tls, wire.DefaultMaxFrame)
	defer r.Close()
	if !c.authenticate(r) {
		return
	}
	for !c.cut {
		f, err := r.Next()
		if err != nil || !c.handle(f) {
			return
		}
		if !r.Buffered() && !c.flush() {
			return
		}
	}
}

func (c *conn) flush() bool {
	_, err := c.tls.Write(c.out)
	c.out = c.out[:0]
	return err == nil
}

func (c *conn) answer(m wire.Message) { c.out = wire.AppendMessage(c.out, m) }

func (c *conn) authenticate(r *wire.Reader) bool {
	f, err := r.Next()
	if err != nil {
		return false
	}
	m, err := wire.DecodeMessage(f.Payload)
	auth, ok := m.(*wire.Auth)
	if err != nil || !ok {
		return false
	}
	act := c.act(Request{Type: "auth"})
	refuse := act.Refuse
	if auth.Token != c.b.Token() {
		refuse = wire.NewFailure(wire.CodeUnauthenticated, "the token is not the one that is accepted")
	}
	if act.CutBefore {
		return false
	}
	if refuse != nil {
		c.answer(&wire.Error{Failure: *refuse})
		c.flush()
		return false
	}
	c.flags = auth.ClientFlags
	c.answer(&wire.AuthOK{ServerFlags: wire.FlagsKnown &^ wire.FlagEventBatchPublisher, Features: served, PublishWindow: 256, HasPublishWindow: true})
	return c.flush()
}

// act asks the interceptor.
func (c *conn) act(r Request) Action {
	c.b.mu.Lock()
	f := c.b.intercept
	c.b.mu.Unlock()
	if f == nil {
		return Action{}
	}
	a := f(r)
	if a.Hold != nil {
		<-a.Hold
	}
	return a
}

func (c *conn) handle(f wire.Frame) bool {
	switch f.Flags.Layout() {
	case wire.LayoutPublish:
		var p wire.PublishBatchFrame
		if p.Decode(f.Flags, f.Payload, nil) != nil {
			return false
		}
		return c.publishFrame(&p)
	case wire.LayoutMessage:
		m, err := wire.DecodeMessage(f.Payload)
		if unknown, ok := err.(*wire.UnknownRequestError); ok {
			c.answer(&wire.Unsupported{RequestType: unknown.Type, RequestID: unknown.RequestID, HasRequestID: unknown.HasRequestID})
			return true
		}
		return err == nil && c.message(m)
	}
	return false
}

func (c *conn) publishFrame(p *wire.PublishBatchFrame) bool {
	r := Request{Type: "publish", Stream: p.Stream, ProducerID: p.ProducerID, Sequence: p.Sequence, Payloads: p.Payloads}
	c.b.mu.Lock()
	s := c.b.streams[p.Stream]
	if s != nil && p.HasKey {
		r.Shard = wire.Shard(s.routing, p.Key, len(s.shards))
	}
	c.b.mu.Unlock()
	act := c.act(r)
	if act.CutBefore {
		return false
	}
	var offset uint64
	var refused *wire.PublishRefused
	failure := act.Refuse
	if failure == nil {
		offset, refused, failure = c.b.publish(&r, p.Idempotent)
	}
	if act.CutAfter {
		return false
	}
	switch {
	case !p.Acked:
	case p.Idempotent && failure != nil:
		c.answer(&wire.PublishError{RequestID: p.RequestID, Failure: *failure})
	case refused != nil:
		refused.RequestID = p.RequestID
		c.answer(refused)
	case p.Idempotent:
		c.answer(&wire.PublishOK{RequestID: p.RequestID, Offset: offset, HasOffset: true})
	case failure != nil:
		c.out = wire.AppendPublishAck(c.out, &wire.PublishAck{RequestID: p.RequestID, Failed: true, Failure: *failure, HasCode: true, HasDetail: true})
	default:
		c.out = wire.AppendPublishAck(c.out, &wire.PublishAck{RequestID: p.RequestID, Offset: offset, HasOffset: true})
	}
	return true
}

func notFound(name string) *wire.Failure {
	return wire.NewFailure(wire.CodeNotFound, "no stream "+name)
}

// publish appends a batch and returns the offset of its first record.
func (b *Broker) publish(r *Request, idempotent bool) (uint64, *wire.PublishRefused, *wire.Failure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.streams[r.Stream]
	if s == nil {
		return 0, nil, notFound(r.Stream)
	}
	for _, p := range r.Payloads {
		if s.maxRecord > 0 && len(p) > s.maxRecord {
			return 0, nil, wire.NewFailure(wire.CodeLimitExceeded, "record is too large").WithReason(wire.ReasonRecordTooLarge)
		}
	}
	shard := s.shards[r.Shard]
	tail := shard.head + uint64(len(shard.records))
	if idempotent {
		if offset, refused := shard.admit(r.ProducerID, r.Sequence, tail); refused != nil || offset != tail {
			return offset, refused, nil
		}
	}
	now := time.Now()
	for _, p := range r.Payloads {
		shard.records = append(shard.records, stored{bytes.Clone(p), now})
	}
	b.grown.Broadcast()
	return tail, nil, nil
}

// remembered is how many batches of a producer are known.
const remembered = 64

// admit checks a sequence. It returns tail when the batch is new, and the
// offset it got when it is known.
func (s *shard) admit(id, sequence, tail uint64) (uint64, *wire.PublishRefused) {
	p := s.producers[id]
	if p == nil {
		if sequence != 0 {
			return 0, &wire.PublishRefused{Reason: wire.RefusedUnknownProducer, Message: "unknown producer"}
		}
		p = &producer{first: make(map[uint64]uint64)}
		s.producers[id] = p
	}
	first, known := p.first[sequence]
	switch {
	case known:
		return first, nil
	case sequence > p.next:
		return 0, &wire.PublishRefused{Reason: wire.RefusedSequenceGap, Expected: p.next, Message: "gap"}
	case sequence < p.next:
		return 0, &wire.PublishRefused{Reason: wire.RefusedSequenceExpired, Message: "expired"}
	}
	p.first[sequence] = tail
	delete(p.first, sequence-remembered)
	p.next++
	return tail, nil
}
