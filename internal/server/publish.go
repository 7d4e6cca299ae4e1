package server

import (
	"errors"
	"sync"
	"time"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/wire"
)

// answerKind is how a publish is answered (docs/protocol).
type answerKind uint8

const (
	answerNone answerKind = iota
	answerBinary
	answerJSON
	// answerReply is JSON in its turn among the other requests.
	answerReply
)

// publication is one publish on its way: what the shard needs, the memory of its
// payloads, and how it is answered. They are pooled: a publish costs no allocation.
type publication struct {
	partition.Publish
	s *session
	// frame is the publish as decoded; its list of payloads serves JSON publishes too.
	frame wire.PublishBatchFrame
	// held keeps the payloads' memory until the shard is done with them.
	held      wire.Frame
	isHeld    bool
	answer    answerKind
	reply     *Reply
	requestID uint64
	// size is what it takes of the connection's bytes in flight.
	size int
	// began is when it was handed to its shard, zero if nobody asks or it was not.
	began   time.Time
	durable bool
	// done: settled, and waiting for its turn to be answered.
	done bool
}

var publications = sync.Pool{New: func() any { return new(publication) }}

// keptPayloads bounds the payload list a pooled publication keeps.
const keptPayloads = 1024

// newPublication is a publication that is in its place.
func (s *session) newPublication(answer answerKind, requestID uint64) *publication {
	p := publications.Get().(*publication)
	s.enlist(p, answer, requestID)
	return p
}

// enlist gives p its place among the publishes in flight, waiting for one if the
// window is used up.
func (s *session) enlist(p *publication, answer answerKind, requestID uint64) {
	if s.uni {
		answer = answerNone
	}
	p.s, p.answer, p.requestID = s, answer, requestID
	o, l := &s.out, &s.ledger
	o.mu.Lock()
	if !s.windowOpen(answer) {
		o.mu.Unlock()
		s.waitLedger(func() bool { return s.windowOpen(answer) }, PausedWindow)
		o.mu.Lock()
	}
	if answer == answerNone {
		l.unacked++
	} else {
		l.acked++
	}
	if s.pipeline && (answer == answerBinary || answer == answerJSON) {
		l.publishes.push(p)
	}
	o.mu.Unlock()
}

// windowOpen needs the outbox's lock. Only the reader closes a window, so one that is
// open stays so for it.
func (s *session) windowOpen(answer answerKind) bool {
	if answer == answerNone {
		return s.ledger.unacked < s.server.limits.UnackedWindow
	}
	return s.ledger.acked < s.server.limits.PublishWindow
}

// publishFrame takes a binary publish.
func (s *session) publishFrame(frame wire.Frame) error {
	p := publications.Get().(*publication)
	f := &p.frame
	err := f.Decode(frame.Flags, frame.Payload, &s.decoder.Names)
	answer := answerNone
	switch {
	case f.Idempotent:
		answer = answerJSON
	case f.Acked:
		answer = answerBinary
	}
	if err != nil {
		refusal := malformed(err)
		if !f.Acked {
			recycle(p)
			return s.refuse(RefusedRequest, refusal)
		}
		s.server.events.refused(RefusedRequest)
		s.enlist(p, answer, f.RequestID)
		s.failPublish(p, refusal)
		return nil
	}
	s.enlist(p, answer, f.RequestID)
	frame.Retain()
	p.held, p.isHeld = frame, true
	p.Idempotent, p.ProducerID, p.Sequence = f.Idempotent, f.ProducerID, f.Sequence
	s.publish(p, len(frame.Payload)+len(f.Payloads)*wire.ElementBytes, &route{f.Tenant, f.Namespace, f.Stream, f.Key, f.HasKey, 0, false})
	return nil
}

func (s *session) publishMessage(m *wire.Publish) error {
	p, err := s.messagePublication(m.Ack, m.RequestID, m.HasRequestID)
	if err != nil || p == nil {
		return err
	}
	p.frame.Payloads = append(p.frame.Payloads[:0], m.Payload)
	s.publish(p, len(m.Payload), &route{m.Tenant, m.Namespace, m.Stream, m.Key, m.HasKey, m.Shard, m.HasShard})
	return nil
}

func (s *session) publishBatchMessage(m *wire.PublishBatch) error {
	p, err := s.messagePublication(m.Ack, m.RequestID, m.HasRequestID)
	if err != nil || p == nil {
		return err
	}
	size := p.take(&m.Payloads)
	s.publish(p, size, &route{m.Tenant, m.Namespace, m.Stream, m.Key, m.HasKey, m.Shard, m.HasShard})
	return nil
}

// messagePublication is the publication of a JSON publish; nil when the request has
// been answered already.
func (s *session) messagePublication(ack wire.AckMode, id uint64, hasID bool) (*publication, error) {
	if ack == wire.AckNone {
		return s.newPublication(answerNone, 0), nil
	}
	if !hasID && !s.uni {
		s.server.events.refused(RefusedRequest)
		s.answer(&wire.Error{Failure: s.visible(wire.NewFailure(wire.CodeInvalidRequest, "a publish with an ack needs a request_id"))})
		return nil, nil
	}
	return s.newPublication(answerJSON, id), nil
}

func (s *session) publishIdempotent(m *wire.PublishIdempotent) error {
	p := s.newPublication(answerJSON, m.RequestID)
	size := p.take(&m.Payloads)
	p.Idempotent, p.ProducerID, p.Sequence = true, m.ProducerID, m.Sequence
	s.publish(p, size, &route{m.Tenant, m.Namespace, m.Stream, m.Key, m.HasKey, m.Shard, m.HasShard})
	return nil
}

// publishIf answers publish_if: in its turn among requests, not among publishes.
func publishIf(r *Request) {
	m := r.Message.(*wire.PublishIf)
	s := r.s
	reply := r.Defer()
	p := s.newPublication(answerReply, m.RequestID)
	p.reply = reply
	size := p.take(&m.Payloads)
	p.Expected, p.HasExpected = storage.Offset(m.ExpectedOffset), true
	s.publish(p, size, &route{m.Tenant, m.Namespace, m.Stream, m.Key, m.HasKey, m.Shard, m.HasShard})
}

// take moves the payloads of a message to p, so that the message holds nothing of them,
// and returns what they take of the bytes in flight.
func (p *publication) take(payloads *[][]byte) int {
	list := append(p.frame.Payloads[:0], *payloads...)
	p.frame.Payloads, *payloads = list, nil
	n := len(list) * wire.ElementBytes
	for _, b := range list {
		n += len(b)
	}
	return n
}

// route is where a publish goes.
type route struct {
	tenant, namespace, stream string
	key                       []byte
	hasKey                    bool
	shard                     uint32
	hasShard                  bool
}

// target remembers what the stream's last publish was allowed.
type target struct {
	tenant, namespace, stream string
	allowed                   bool
}

// publish hands p to its shard, which is driven at the end of the burst, or fails it.
func (s *session) publish(p *publication, size int, to *route) {
	shard, err := s.shardFor(to)
	if err != nil {
		s.failPublish(p, err)
		return
	}
	if !s.conn.admit(size) {
		s.settleBurst(true)
		s.server.events.paused(PausedInFlight)
		if err := s.conn.admitWait(size); err != nil {
			s.failPublish(p, wire.NewFailure(wire.CodeOverloaded, "the connection ends"))
			return
		}
		s.out.hold()
	}
	p.size = size
	if s.server.events.OnPublished != nil {
		p.began, p.durable = time.Now(), shard.Durable()
	}
	p.Payloads = p.frame.Payloads
	p.Publisher = s.publisher()
	p.User = p
	p.Done = published
	if err := shard.Publish(&p.Publish); err != nil {
		s.failPublish(p, err)
		return
	}
	s.touch(shard)
}

// publisher is stored, by the shard, only where the stream asks for it.
func (s *session) publisher() []byte {
	if s.publisherBytes == nil {
		s.publisherBytes = []byte(s.principal.Subject)
	}
	return s.publisherBytes
}

func (s *session) shardFor(to *route) (*partition.Partition, error) {
	t := &s.target
	if t.stream != to.stream || t.namespace != to.namespace || t.tenant != to.tenant {
		*t = target{tenant: to.tenant, namespace: to.namespace, stream: to.stream}
		t.allowed = s.principal.Allows(auth.StreamPublish, auth.StreamObject(to.tenant, to.namespace, to.stream))
	}
	if !t.allowed {
		s.server.events.refused(RefusedForbidden)
		return nil, forbidden(auth.StreamPublish, auth.StreamObject(to.tenant, to.namespace, to.stream))
	}
	st, err := s.server.broker.Stream(to.tenant, to.namespace, to.stream)
	if err != nil {
		return nil, err
	}
	if !to.hasShard {
		return st.Shard(st.Route(to.key, to.hasKey))
	}
	if to.hasKey {
		return nil, wire.NewFailure(wire.CodeInvalidRequest, "a publish names a key or a shard, not both")
	}
	return st.Shard(int(to.shard))
}

// failPublish settles a publish of which nothing was done.
func (s *session) failPublish(p *publication, err error) {
	p.Err, p.HasOffset = err, false
	s.settle(p)
}

// published is the Done of every publish. It runs on the goroutine of whoever drives
// the shard, which may belong to another client: it must not wait.
func published(b *partition.Publish) {
	p := b.User.(*publication)
	p.s.settle(p)
}

// settle answers p, in its turn, and gives back what it held.
func (s *session) settle(p *publication) {
	if f := s.server.events.OnPublished; f != nil {
		done := Published{Records: len(p.frame.Payloads), Durable: p.durable, Err: p.Err}
		for _, payload := range p.frame.Payloads {
			done.Bytes += len(payload)
		}
		if !p.began.IsZero() {
			done.Took = time.Since(p.began)
		}
		f(done)
	}
	if p.isHeld {
		p.held.Release()
		p.held, p.isHeld = wire.Frame{}, false
	}
	if p.size > 0 {
		s.conn.settle(p.size)
	}
	var late wire.Message
	reply := p.reply
	if p.answer == answerReply {
		late = s.publishAnswer(p, new(publishAnswers))
	}

	o, l := &s.out, &s.ledger
	o.mu.Lock()
	switch {
	case p.answer == answerNone:
		l.unacked--
		recycle(p)
	case p.answer == answerReply:
		l.acked--
		recycle(p)
	case !s.pipeline:
		s.answerLocked(p)
	default:
		p.done = true
		for next := l.publishes.front(); next != nil && next.done; next = l.publishes.front() {
			l.publishes.pop()
			s.answerLocked(next)
		}
	}
	s.settledLocked()
	o.kickUnlock()
	if late != nil {
		reply.Answer(late)
	}
}

// answerLocked needs the outbox's lock: it puts the answer into the buffer, and p away.
func (s *session) answerLocked(p *publication) {
	s.ledger.acked--
	o := &s.out
	if o.mu.err == nil {
		if p.answer == answerBinary {
			o.mu.buf = s.appendAck(o.mu.buf, p)
		} else {
			o.mu.buf = wire.AppendMessage(o.mu.buf, s.publishAnswer(p, &s.ledger.answers))
		}
	}
	recycle(p)
}

func (s *session) appendAck(dst []byte, p *publication) []byte {
	ack := &s.ledger.answers.ack
	*ack = wire.PublishAck{RequestID: p.requestID}
	if p.Err != nil {
		ack.Failed = true
		ack.Failure = *broker.Failure(p.Err)
		ack.HasCode = s.flags.Has(wire.FlagBinaryPublishAckCode)
		ack.HasDetail = ack.HasCode && s.flags.Has(wire.FlagBinaryPublishAckDetail) && (ack.Failure.Reason != "" || ack.Failure.RetryAfter > 0)
	} else if p.HasOffset && s.flags.Has(wire.FlagBinaryPublishAckOffset) {
		ack.HasOffset, ack.Offset = true, uint64(p.First)
	}
	return wire.AppendPublishAck(dst, ack)
}

// publishAnswers are the messages a session answers publishes with, used again and
// again under the outbox's lock.
type publishAnswers struct {
	ack     wire.PublishAck
	ok      wire.PublishOK
	failed  wire.PublishError
	refused wire.PublishRefused
}

// publishAnswer is the JSON answer of p.
func (s *session) publishAnswer(p *publication, a *publishAnswers) wire.Message {
	refused := &a.refused
	*refused = wire.PublishRefused{RequestID: p.requestID}
	switch err := p.Err; {
	case err == nil, errors.Is(err, stream.ErrSequenceReused) && !s.features.Has(wire.FeatureSequenceReused):
		a.ok = wire.PublishOK{RequestID: p.requestID}
		if p.HasOffset && s.flags.Has(wire.FlagBinaryPublishAckOffset) {
			a.ok.HasOffset, a.ok.Offset = true, uint64(p.First)
		}
		return &a.ok
	case errors.Is(err, stream.ErrUnknownProducer):
		refused.Reason = wire.RefusedUnknownProducer
	case errors.Is(err, stream.ErrSequenceExpired):
		refused.Reason = wire.RefusedSequenceExpired
	case errors.Is(err, stream.ErrSequenceReused):
		refused.Reason = wire.RefusedSequenceReused
	default:
		if gap, ok := errors.AsType[*stream.SequenceGapError](err); ok {
			refused.Reason, refused.Expected = wire.RefusedSequenceGap, gap.Expected
		} else if mismatch, ok := errors.AsType[*storage.OffsetMismatchError](err); ok {
			refused.Reason, refused.Tail = wire.RefusedOffsetMismatch, uint64(mismatch.Tail)
		} else {
			a.failed = wire.PublishError{RequestID: p.requestID, Failure: s.visible(broker.Failure(err))}
			return &a.failed
		}
	}
	refused.Message = p.Err.Error()
	return refused
}

// recycle puts p away; nobody may refer to it any more.
func recycle(p *publication) {
	payloads := p.frame.Payloads
	clear(payloads)
	if cap(payloads) > keptPayloads {
		payloads = nil
	}
	*p = publication{}
	p.frame.Payloads = payloads[:0]
	publications.Put(p)
}
