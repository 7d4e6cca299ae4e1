package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/wire"
)

// Verifier says who bears a token. [*auth.Verifier] is one.
type Verifier interface {
	Verify(tenant, token string) (*auth.Principal, error)
}

// Options configure a [Server].
type Options struct {
	// Broker holds the streams. Required.
	Broker *broker.Broker
	// Verifier checks tokens. Required.
	Verifier Verifier
	// TLS is the listener's configuration, as [auth.ServerTLS] makes it. Required.
	TLS *tls.Config
	// StatelessResetKey lets clients of a killed broker notice at once; it is kept from
	// one start to the next. Zero: no stateless resets.
	StatelessResetKey [32]byte
	// Durable says that the broker keeps durable streams: without it nothing that needs
	// them is advertised.
	Durable bool
	// Handlers answer requests beyond those of streams.
	Handlers []Handlers
	Limits   Limits
	Events   Events
	// Log is slog.Default when nil.
	Log *slog.Logger
}

// Server speaks FLX1 with clients over QUIC and over TLS on TCP.
type Server struct {
	broker   *broker.Broker
	verifier Verifier
	tls      *tls.Config
	resetKey [32]byte
	limits   Limits
	events   Events
	log      *slog.Logger

	flags      wire.Flags
	features   wire.Features
	handlers   map[string]Handler
	extensions map[string]Handler
	// extensionNames are the keys of extensions, in order.
	extensionNames []string

	connectionIDs   atomic.Uint64
	subscriptionIDs atomic.Uint64
	connected       atomic.Int64

	// draining ends when the server stops taking on work.
	draining context.Context
	drain    context.CancelFunc

	mu struct {
		sync.Mutex
		connections map[*connection]struct{}
		serving     bool
		stopped     bool
	}
	// empty is signalled when the last connection has gone.
	empty *sync.Cond
}

// New makes a server. It starts nothing.
func New(o Options) (*Server, error) {
	if o.Broker == nil || o.Verifier == nil || o.TLS == nil {
		return nil, errors.New("server options: broker, verifier and TLS are required")
	}
	o.Limits = o.Limits.withDefaults()
	if err := o.Limits.validate(); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	s := &Server{
		broker: o.Broker, verifier: o.Verifier, tls: o.TLS, resetKey: o.StatelessResetKey,
		limits: o.Limits, events: o.Events, log: o.Log,
		handlers: make(map[string]Handler), extensions: make(map[string]Handler),
	}
	s.draining, s.drain = context.WithCancel(context.Background())
	s.mu.connections = make(map[*connection]struct{})
	s.empty = sync.NewCond(&s.mu)
	s.flags, s.features = baseFlags, baseFeatures
	sets := []Handlers{streamHandlers()}
	if o.Durable {
		s.flags |= durableFlags
		s.features |= durableFeatures
		sets = append(sets, durableHandlers(), groupHandlers(), cacheHandlers())
	}
	for _, set := range append(sets, o.Handlers...) {
		if err := s.register(set); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Serve accepts clients on both sockets, either of which may be nil, until ctx ends or
// [Server.Close] is called; it returns when every connection has ended. The sockets
// are closed. A second call is refused.
func (s *Server) Serve(ctx context.Context, packets net.PacketConn, listener net.Listener) error {
	s.mu.Lock()
	again := s.mu.serving
	s.mu.serving = true
	s.mu.Unlock()
	if again {
		return errors.New("serve: already called")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	var accepting sync.WaitGroup
	fail := func(err error) {
		if err != nil {
			cancel(err)
		}
	}
	if packets != nil {
		q, err := s.listenQUIC(packets)
		if err != nil {
			return err
		}
		accepting.Go(func() { fail(s.acceptQUIC(ctx, q)) })
	}
	if listener != nil {
		accepting.Go(func() { fail(s.acceptTCP(ctx, listener)) })
	}
	accepting.Wait()
	s.closeAll()
	s.waitEmpty()
	if cause := context.Cause(ctx); ctx.Err() != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}

// Drain stops taking on work: new connections are refused, an auth is answered
// draining, subscriptions end after what is queued for them, publishes in flight are
// answered. It returns when no subscription is left, or when ctx ends. The connections
// themselves are closed, with code 0, when the context of [Server.Serve] ends; what was
// written last gets a moment to arrive before Drain returns.
func (s *Server) Drain(ctx context.Context) error {
	s.drain()
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		s.empty.Broadcast()
		s.mu.Unlock()
	})
	defer stop()
	s.mu.Lock()
	for s.busyLocked() {
		if ctx.Err() != nil {
			s.mu.Unlock()
			return fmt.Errorf("drain: %w", ctx.Err())
		}
		s.empty.Wait()
	}
	connected := len(s.mu.connections) > 0
	s.mu.Unlock()
	if connected {
		// Closing a QUIC connection drops what it has not sent yet.
		linger := time.NewTimer(drainLinger)
		defer linger.Stop()
		select {
		case <-linger.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// drainLinger is how long the last answers and events of a drain have to arrive: some
// round trips, and no time an operator notices.
const drainLinger = 100 * time.Millisecond

func (s *Server) busyLocked() bool {
	for c := range s.mu.connections {
		if c.busy() {
			return true
		}
	}
	return false
}

func (s *Server) isDraining() bool { return s.draining.Err() != nil }

// Connections is how many clients are connected.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.connections)
}

// takeSlot counts a client in, handshake included, unless there are as many as
// allowed or the server drains.
func (s *Server) takeSlot() bool {
	if s.isDraining() {
		s.events.refused(RefusedDraining)
		return false
	}
	if s.connected.Add(1) > int64(s.limits.Connections) {
		s.connected.Add(-1)
		s.events.refused(RefusedConnections)
		return false
	}
	return true
}

func (s *Server) releaseSlot() { s.connected.Add(-1) }

// add registers the connection; it fails when the server is stopping.
func (s *Server) add(c *connection) bool {
	s.mu.Lock()
	stopped := s.mu.stopped
	if !stopped {
		s.mu.connections[c] = struct{}{}
	}
	s.mu.Unlock()
	if stopped {
		return false
	}
	callTransport(s.events.OnConnect, c.transport)
	return true
}

func (s *Server) remove(c *connection) {
	s.mu.Lock()
	delete(s.mu.connections, c)
	s.empty.Broadcast()
	s.mu.Unlock()
	callTransport(s.events.OnDisconnect, c.transport)
}

// nudge has a waiting Drain look again.
func (s *Server) nudge() {
	if s.isDraining() {
		s.mu.Lock()
		s.empty.Broadcast()
		s.mu.Unlock()
	}
}

func (s *Server) closeAll() {
	s.mu.Lock()
	s.mu.stopped = true
	all := make([]*connection, 0, len(s.mu.connections))
	for c := range s.mu.connections {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		c.close(closeShutdown, "", errShutdown)
	}
}

func (s *Server) waitEmpty() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.mu.connections) > 0 {
		s.empty.Wait()
	}
}

func (s *Server) quicConfig() *quic.Config {
	return &quic.Config{
		HandshakeIdleTimeout:           s.handshakeTimeout(),
		MaxIdleTimeout:                 s.limits.IdleTimeout,
		KeepAlivePeriod:                s.limits.KeepAlive,
		MaxIncomingStreams:             int64(s.limits.Streams),
		MaxIncomingUniStreams:          int64(s.limits.Streams),
		InitialStreamReceiveWindow:     512 << 10,
		MaxStreamReceiveWindow:         16 << 20,
		InitialConnectionReceiveWindow: 1 << 20,
		MaxConnectionReceiveWindow:     64 << 20,
	}
}
