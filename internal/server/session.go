package server

import (
	"context"
	"errors"
	"io"
	"reflect"
	"runtime/debug"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/wire"
)

// session is one stream a client opened: what it negotiated, what it has in flight, and
// the goroutine that reads it. The same code serves a QUIC stream and a TLS connection.
//
// Everything is the reader's but for the ledger, which is under the outbox's lock.
type session struct {
	server *Server
	conn   *connection
	link   link
	ahead  lookahead
	// uni is a publish-only stream: nothing is ever answered.
	uni bool

	ctx    context.Context
	cancel context.CancelFunc
	reader *wire.Reader
	out    outbox
	ledger ledger

	principal *auth.Principal
	flags     wire.Flags
	features  wire.Features
	// pipeline: publishes are answered in the order they came.
	pipeline bool

	// publisherBytes is the principal's subject, once a publish needed it.
	publisherBytes []byte

	decoder wire.Decoder
	request Request
	got     got
	key     []byte // see Request.keyOf
	target  target
	touched []Driver

	// ended: nothing more is read; what was taken on is answered, then the stream ends.
	ended bool
	// eventsTaken: the stream carries events from now on (TCP).
	eventsTaken bool
}

// serve runs a stream from its first frame to its end.
func (c *connection) serve(l link, uni bool) {
	s := &session{server: c.server, conn: c, link: l, uni: uni}
	s.ctx, s.cancel = context.WithCancel(c.ctx)
	defer s.cancel()
	s.request.s = s
	s.ahead.init(l, c.run)
	s.reader = wire.NewReader(&s.ahead, uint32(c.server.limits.PreAuthFrameBytes))
	s.out.init(l, c.server.limits.UnreadBytes, c.run, s.broken,
		func() { c.server.events.paused(PausedUnread) })

	// A read does not end by itself when the connection does, on TCP.
	stop := context.AfterFunc(c.ctx, s.abort)
	defer stop()

	err := s.authenticate()
	if err == nil {
		err = s.read()
	}
	s.end(err)
}

// abort makes the reader and the writer meet an error now.
func (s *session) abort() {
	s.out.close(errOutboxClosed)
	s.link.stop()
}

// broken is told by the outbox that the client cannot be written to any more: no use
// in reading on.
func (s *session) broken(error) { s.link.stop() }

// errEnded ends a stream that has been answered why.
var errEnded = errors.New("stream ended by the server")

// authenticate reads the first frame and answers it.
func (s *session) authenticate() error {
	frame, err := s.reader.Next()
	if err != nil {
		return err
	}
	if frame.Flags.Layout() != wire.LayoutMessage {
		return s.refuseFrame(frame)
	}
	m, err := s.decoder.Decode(frame.Payload)
	if _, unknown := errors.AsType[*wire.UnknownRequestError](err); err != nil && !unknown {
		return s.refuse(RefusedRequest, wire.NewFailure(wire.CodeInvalidRequest, err.Error()))
	}
	request, ok := m.(*wire.Auth)
	if !ok {
		return s.refuse(RefusedRequest, wire.NewFailure(wire.CodeUnauthenticated, "the first frame of a stream is an auth"))
	}
	// What a refusal may say is read from this very request.
	if request.HasClientFlags {
		s.features = request.Features
	}
	if s.server.isDraining() {
		return s.refuse(RefusedDraining, wire.NewFailure(wire.CodeDraining, "the broker is shutting down"))
	}
	principal, err := s.server.verifier.Verify(request.Tenant, request.Token)
	if err != nil {
		return s.refuse(RefusedToken, wire.NewFailure(wire.CodeUnauthenticated, err.Error()))
	}
	s.principal = principal
	answer := s.negotiate(request)
	s.reader.SetLimit(uint32(s.server.limits.FrameBytes))
	s.conn.markAuthenticated()
	s.out.hold()
	s.answer(answer)
	s.out.flush()
	return nil
}

// read handles frames until the stream ends. It takes what has arrived, within bounds,
// then drives the shards that were touched, then writes what there is to answer.
func (s *session) read() error {
	for {
		// A client that does not read its answers is not read either.
		if err := s.waitRoom(); err != nil {
			return err
		}
		frame, err := s.reader.Next()
		if err != nil {
			return err
		}
		s.out.hold()
		taken := 0
		for {
			taken += len(frame.Payload)
			err = s.handle(frame)
			if err != nil || s.ended || !s.hasMore(taken) {
				break
			}
			if frame, err = s.reader.Next(); err != nil {
				break
			}
		}
		s.settleBurst(taken <= inlineMost || s.inFlight() <= 1)
		switch {
		case err != nil:
			return err
		case s.ended:
			return errEnded
		}
	}
}

const (
	// burstBytes is how much a burst reads on for. With more, most of a client's window is
	// read before any of it is flushed; with half of it, where nothing is flushed, the writes
	// and answers of a pipeline of 1 KiB records cost a tenth of its rate.
	burstBytes = 512 << 10
	// inlineMost is the largest burst whose flush is the reader's work, as is that of a
	// request which is alone: it is spared the way to another goroutine and back. Behind
	// others more is likely on its way, and is decrypted, decoded and queued during the flush.
	inlineMost = 64 << 10
)

// hasMore reports whether another frame has arrived, after so many bytes of a burst.
// Frames larger than a read would otherwise be driven, and flushed, one by one.
func (s *session) hasMore(taken int) bool {
	l, ok := s.link.(arriving)
	// While somebody may be reading ahead, the link is not ours alone.
	if !ok || s.ahead.used {
		return s.reader.Buffered()
	}
	return s.reader.Gather(burstBytes-taken, l.more(), l.readNow)
}

// settleBurst drives what was touched and writes what was answered. Inline, a log that is
// alone in the burst is flushed here too.
func (s *session) settleBurst(inline bool) {
	for i, d := range s.touched {
		d.Drive(inline && len(s.touched) == 1)
		s.touched[i] = nil
	}
	s.touched = s.touched[:0]
	s.out.flush()
}

// touch remembers to drive d at the end of the burst.
func (s *session) touch(d Driver) {
	for _, t := range s.touched {
		if t == d {
			return
		}
	}
	s.touched = append(s.touched, d)
}

// handle takes one frame. An error ends the stream.
func (s *session) handle(frame wire.Frame) error {
	if s.eventsTaken {
		return s.refuse(RefusedRequest, wire.NewFailure(wire.CodeInvalidRequest, "this connection carries events now: use another for requests"))
	}
	switch frame.Flags.Layout() {
	case wire.LayoutPublish:
		return s.publishFrame(frame)
	case wire.LayoutMessage:
		return s.handleMessage(frame)
	}
	return s.refuseFrame(frame)
}

func (s *session) refuseFrame(frame wire.Frame) error {
	text := "frame flags " + frame.Flags.String() + " are not those of a request"
	return s.refuse(RefusedRequest, wire.NewFailure(wire.CodeInvalidRequest, text))
}

func (s *session) handleMessage(frame wire.Frame) error {
	m, err := s.decoder.Decode(frame.Payload)
	if err != nil {
		return s.undecodable(err)
	}
	switch m := m.(type) {
	case *wire.Publish:
		return s.publishMessage(m)
	case *wire.PublishBatch:
		return s.publishBatchMessage(m)
	case *wire.PublishIdempotent:
		return s.publishIdempotent(m)
	}
	if s.uni {
		return s.refuse(RefusedRequest, wire.NewFailure(wire.CodeInvalidRequest, "a unidirectional stream carries publishes only"))
	}
	if _, again := m.(*wire.Auth); again {
		return s.refuse(RefusedRequest, wire.NewFailure(wire.CodeInvalidRequest, "the stream has authenticated already"))
	}
	if !wire.IsRequest(m) {
		return s.refuse(RefusedRequest, wire.NewFailure(wire.CodeInvalidRequest, m.Type()+" is not a request"))
	}
	// Answers other than those of publishes can be large: none is made for a client
	// that does not read.
	if err := s.makeRoom(); err != nil {
		return err
	}
	handler, known := s.handlerOf(m)
	if !known {
		return s.unsupported(m)
	}
	s.request.Message, s.request.reply = m, nil
	s.run(handler)
	s.request.Message = nil
	return nil
}

// run calls a handler. A defect in one request must not take the others down: it is
// answered internal, in its turn, logged with its stack, and counted.
func (s *session) run(h Handler) {
	defer func() {
		if p := recover(); p != nil {
			s.server.events.refused(RefusedInternal)
			s.server.log.Error("request handler panicked", "request", s.request.Message.Type(), "panic", p, "stack", string(debug.Stack()))
			f := wire.NewFailure(wire.CodeInternal, "internal error")
			if reply := s.request.reply; reply != nil {
				// Nobody else may be left to answer it, and the stream's end waits for it.
				reply.Fail(f)
			} else {
				s.request.Fail(f)
			}
			s.ended = true
		}
	}()
	h(s.ctx, &s.request)
}

func (s *session) handlerOf(m wire.Message) (Handler, bool) {
	if e, ok := m.(*wire.Extension); ok {
		h, ok := s.server.extensions[e.Name]
		return h, ok
	}
	h, ok := s.server.handlers[m.Type()]
	return h, ok
}

// undecodable answers a payload that is no request. One of a type that nobody knows
// leaves the stream usable; anything else ends it, except that a publish which could be
// named is answered as a publish.
func (s *session) undecodable(err error) error {
	if u, ok := errors.AsType[*wire.UnknownRequestError](err); ok {
		if s.uni || !s.features.Has(wire.FeatureUnsupported) {
			return s.refuse(RefusedUnsupported, wire.NewFailure(wire.CodeInvalidRequest, err.Error()))
		}
		s.server.events.refused(RefusedUnsupported)
		s.answer(&wire.Unsupported{RequestType: u.Type, RequestID: u.RequestID, HasRequestID: u.HasRequestID})
		return nil
	}
	f := malformed(err)
	if m, ok := errors.AsType[*wire.MalformedError](err); ok && m.HasRequestID && isPublish(m.What) && !s.uni {
		s.server.events.refused(RefusedRequest)
		if m.What == "publish_if" {
			// Its turn is among the other requests.
			s.answer(&wire.PublishError{RequestID: m.RequestID, Failure: s.visible(f)})
			return nil
		}
		p := s.newPublication(answerJSON, m.RequestID)
		s.failPublish(p, f)
		return nil
	}
	return s.refuse(RefusedRequest, f)
}

func malformed(err error) *wire.Failure {
	if m, ok := errors.AsType[*wire.MalformedError](err); ok {
		return wire.NewFailure(m.Code(), err.Error())
	}
	return wire.NewFailure(wire.CodeInvalidRequest, err.Error())
}

func isPublish(kind string) bool {
	switch kind {
	case "publish", "publish_batch", "publish_idempotent", "publish_if":
		return true
	}
	return false
}

// unsupported answers a request that the protocol knows and this server does not serve.
func (s *session) unsupported(m wire.Message) error {
	answer := &wire.Unsupported{RequestType: m.Type()}
	if e, ok := m.(*wire.Extension); ok {
		answer.Extension, answer.RequestID, answer.HasRequestID = e.Name, e.RequestID, e.HasRequestID
	} else if id, ok := requestID(m); ok {
		answer.RequestID, answer.HasRequestID = id, true
	}
	if !s.features.Has(wire.FeatureUnsupported) {
		return s.refuse(RefusedUnsupported, wire.NewFailure(wire.CodeInvalidRequest, "request "+m.Type()+" is not served"))
	}
	s.server.events.refused(RefusedUnsupported)
	s.answer(answer)
	return nil
}

// refuse answers error and ends the stream.
func (s *session) refuse(why Refusal, f *wire.Failure) error {
	s.server.events.refused(why)
	s.answer(&wire.Error{Failure: s.visible(f)})
	s.ended = true
	return errEnded
}

// end answers what was taken on, says why the stream ends where that can help, and
// gives everything back.
func (s *session) end(err error) {
	tooLarge, isTooLarge := errors.AsType[*wire.FrameTooLargeError](err)
	switch {
	case isTooLarge:
		why := RefusedFrameSize
		if s.principal == nil {
			why = RefusedPreAuthFrame
		}
		err = s.refuse(why, wire.NewFailure(wire.CodeLimitExceeded, tooLarge.Error()))
	case errors.Is(err, wire.ErrBadMagic), errors.Is(err, wire.ErrBadVersion), errors.Is(err, wire.ErrEmptyFrame):
		err = s.refuse(RefusedFrame, wire.NewFailure(wire.CodeInvalidRequest, err.Error()))
	case errors.Is(err, io.ErrUnexpectedEOF):
		s.server.events.refused(RefusedFrame)
	}
	s.settleBurst(true)
	s.waitSettled()
	if s.eventsTaken {
		// Closing the connection is how it is unsubscribed.
		s.cancel()
		s.abort()
		<-s.ledger.eventsDone
	}
	drainErr := s.out.drained()
	s.reader.Close()
	if drainErr == nil && (errors.Is(err, io.EOF) || errors.Is(err, errEnded)) {
		s.link.finish()
	} else {
		s.link.stop()
	}
	s.out.close(errOutboxClosed)
	s.server.nudge()
}

// answer sends an answer in its turn among those of the requests of this stream.
func (s *session) answer(m wire.Message) {
	if s.uni {
		return
	}
	o := &s.out
	o.mu.Lock()
	if o.mu.err == nil {
		if s.ledger.replies.empty() {
			o.mu.buf = wire.AppendMessage(o.mu.buf, m)
		} else {
			s.parkLocked(&Reply{s: s, done: true}, m)
		}
	}
	o.kickUnlock()
}

// answerOr is answer for one that must not get lost: f hears whether it was written. No
// answer is waited for before it.
func (s *session) answerOr(m wire.Message, f fate) {
	o := &s.out
	o.mu.Lock()
	if o.mu.err == nil {
		o.mu.buf = wire.AppendMessage(o.mu.buf, m)
		o.mu.fates = append(o.mu.fates, f)
	} else {
		o.loseLocked([]fate{f})
	}
	o.kickUnlock()
}

// makeRoom is waitRoom in the middle of a burst.
func (s *session) makeRoom() error {
	if !s.out.full() {
		return nil
	}
	s.settleBurst(true)
	err := s.waitRoom()
	s.out.hold()
	return err
}

// waitRoom waits while the client does not read its answers, or too much of them waits
// for one that is not there yet.
func (s *session) waitRoom() error {
	o := &s.out
	o.mu.Lock()
	defer o.mu.Unlock()
	s.ledger.waiting++
	defer func() { s.ledger.waiting-- }()
	for told := Pause(""); o.fullLocked() && o.mu.err == nil; {
		why := PausedUnread
		if len(o.mu.buf) <= o.limit {
			why = PausedTurn
		}
		if why == told {
			o.changed.Wait()
			continue
		}
		// The one can turn into the other.
		told = why
		o.mu.Unlock()
		s.server.events.paused(why)
		o.mu.Lock()
	}
	return o.mu.err
}

// requestID is the request_id of a request that has one.
func requestID(m wire.Message) (uint64, bool) {
	v := reflect.ValueOf(m).Elem()
	id, has := v.FieldByName("RequestID"), v.FieldByName("HasRequestID")
	if !id.IsValid() || has.IsValid() && !has.Bool() {
		return 0, false
	}
	return id.Uint(), true
}
