package server

import (
	"context"
	"fmt"
	"slices"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/wire"
)

// Handler answers one request. It runs on the goroutine that reads the stream, so
// nothing else of that stream is read meanwhile; it may wait, for as long as ctx lives.
// It answers once: by [Request.Answer], by [Request.Fail], by [Request.Events], or,
// after [Request.Defer], through the [Reply]. The request is good until it returns.
type Handler func(ctx context.Context, r *Request)

// Handlers are requests served beside those of streams, and what serving them lets
// the server advertise.
type Handlers struct {
	Features wire.Features
	Flags    wire.Flags
	// Requests are by message type.
	Requests map[string]Handler
	// Extensions are by the name of the extension.
	Extensions map[string]Handler
}

// register adds a set; what is served once cannot be served again.
func (s *Server) register(set Handlers) error {
	for kind, h := range set.Requests {
		if s.handlers[kind] != nil || h == nil {
			return fmt.Errorf("server options: handler of %s is given twice, or is nil", kind)
		}
		s.handlers[kind] = h
	}
	for name, h := range set.Extensions {
		if s.extensions[name] != nil || h == nil {
			return fmt.Errorf("server options: handler of extension %s is given twice, or is nil", name)
		}
		s.extensions[name] = h
		s.extensionNames = append(s.extensionNames, name)
	}
	slices.Sort(s.extensionNames)
	s.features |= set.Features
	s.flags |= set.Flags
	return nil
}

// Driver is work that was queued and needs a push: a shard. See [Request.Drive].
type Driver interface {
	Drive(inline bool)
}

// Request is one request of an authenticated stream, and the way to answer it.
type Request struct {
	s *session
	// Message is the request as decoded. Its memory is good until the handler returns,
	// or as wire.Decoder says.
	Message wire.Message
	// reply is what Defer gave out.
	reply *Reply
}

// Principal is who asks.
func (r *Request) Principal() *auth.Principal { return r.s.principal }

// Flags are the frame flags the client can decode.
func (r *Request) Flags() wire.Flags { return r.s.flags }

// Offers reports whether the client offered all of these features.
func (r *Request) Offers(f wire.Features) bool { return r.s.features.Has(f) }

// ConnectionID is unique among the connections of this process.
func (r *Request) ConnectionID() uint64 { return r.s.conn.id }

// Allow reports whether the principal may do action to object, and answers
// forbidden when not.
func (r *Request) Allow(action auth.Action, object auth.Object) bool {
	if r.s.principal.Allows(action, object) {
		return true
	}
	r.s.server.events.refused(RefusedForbidden)
	r.Fail(forbidden(action, object))
	return false
}

// AllowTenant reports whether tenant is the principal's own, and answers forbidden
// when not.
func (r *Request) AllowTenant(tenant string) bool {
	if r.s.principal.Tenant == tenant {
		return true
	}
	r.s.server.events.refused(RefusedForbidden)
	r.Fail(wire.NewFailure(wire.CodeForbidden, "the token is of another tenant than the request"))
	return false
}

func forbidden(action auth.Action, object auth.Object) *wire.Failure {
	return wire.NewFailure(wire.CodeForbidden, "permission missing: "+string(action)+":"+object.String())
}

// Answer sends the answer.
func (r *Request) Answer(m wire.Message) { r.s.answer(m) }

// Fail answers with an error and keeps the stream.
func (r *Request) Fail(err error) { r.s.answer(r.s.errorMessage(err)) }

// Defer lets the handler return before there is an answer: the stream is read on, up
// to a window of such requests, and answers leave in the order of the requests. The
// reply must be answered once, from any goroutine.
func (r *Request) Defer() *Reply {
	r.reply = r.s.deferReply()
	return r.reply
}

// Behind waits until the requests that came before on this stream, and whose answers
// were deferred, are settled, so that a read sees what they wrote; with publishes, until
// those are too. What was queued for the end of the burst is driven first.
func (r *Request) Behind(publishes bool) {
	s := r.s
	s.waitLedger(func() bool { return s.ledger.deferred == 0 && (!publishes || s.ledger.acked+s.ledger.unacked == 0) }, PausedWrites)
}

// Wait runs f, which may wait for long for something to happen, with a context that also
// ends when nobody can be answered any more: when the client has closed or reset the
// stream or its connection. What came before on the stream is settled and answered first.
func (r *Request) Wait(ctx context.Context, f func(ctx context.Context)) {
	s := r.s
	r.Behind(true)
	s.settleBurst(true)
	defer s.out.hold()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if gone := s.link.gone(); gone != nil {
		stop := context.AfterFunc(gone, cancel)
		defer stop()
	}
	s.ahead.watch(func(err error) {
		if !s.link.listens(err) {
			cancel()
		}
	})
	defer s.ahead.unwatch()
	f(ctx)
}

// Drive has d driven when everything that has been read is handled: once, however
// many requests touched it.
func (r *Request) Drive(d Driver) { r.s.touch(d) }

// Reply is a deferred answer.
type Reply struct {
	s     *session
	frame []byte
	done  bool
}

// Answer sends the answer. It does not block.
func (p *Reply) Answer(m wire.Message) { p.s.replied(p, m) }

// Fail answers with an error.
func (p *Reply) Fail(err error) { p.s.replied(p, p.s.errorMessage(err)) }

// overloaded counts a request that was turned away for want of room; a publish is counted
// where it is settled.
func (s *session) overloaded(f *wire.Failure) {
	if f.Code == wire.CodeOverloaded && f.Reason != "" {
		s.server.events.refused(Refusal(f.Reason))
	}
}

// errorMessage is the error answer to this client: with code and detail only if it
// offered to read them.
func (s *session) errorMessage(err error) wire.Message {
	f := broker.Failure(err)
	s.overloaded(f)
	return &wire.Error{Failure: s.visible(f)}
}

// visible is the failure without what the client did not offer to read.
func (s *session) visible(f *wire.Failure) wire.Failure {
	if s.features.Has(wire.FeatureErrorCodes) {
		return *f
	}
	return wire.Failure{Message: f.Message}
}
