package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/felixlog/felix/wire"
)

// clientFlags are the parts we read. Publisher and timestamps cost bytes on
// every event; a subscription asks for them by itself.
const clientFlags = wire.FlagsKnown &^ (wire.FlagEventBatchPublisher | wire.FlagEventBatchTimestamps)

const clientFeatures = wire.FeatureErrorCodes | wire.FeatureShardMoved | wire.FeatureUnsupported | wire.FeatureSequenceReused |
	wire.FeaturePublishPipeline | wire.FeatureIdempotentProducer | wire.FeatureSubscriptionLagged | wire.FeatureRedirect |
	wire.FeatureCacheConditional | wire.FeatureRecordTimestamps | wire.FeatureGroupSkipped | wire.FeatureExtended

// session is an authenticated connection and what was negotiated on it.
type session struct {
	addr   string
	conn   net.Conn
	reader *wire.Reader
	auth   wire.AuthOK
}

func (s *session) close() {
	// The socket is closed under TLS: saying goodbye could wait for a peer that
	// does not read. There is nothing to do about an error.
	if t, ok := s.conn.(*tls.Conn); ok {
		ignore(t.NetConn().Close())
		return
	}
	ignore(s.conn.Close())
}

// ignore marks an error that nobody can act on.
func ignore(error) {}

// endpoints are the addresses to try, the one that worked last first.
type endpoints struct {
	mu    sync.Mutex
	addrs []string
	first int
}

func (e *endpoints) list() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append(append([]string(nil), e.addrs[e.first:]...), e.addrs[:e.first]...)
}

func (e *endpoints) good(addr string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, a := range e.addrs {
		if a == addr {
			e.first = i
		}
	}
}

// connect makes one session to the first endpoint that answers. flags are added
// to what we read.
func (c *core) connect(ctx context.Context, flags wire.Flags) (*session, error) {
	var last error
	for _, addr := range c.endpoints.list() {
		s, err := c.connectTo(ctx, addr, flags)
		if err == nil {
			c.endpoints.good(addr)
			return s, nil
		}
		last = err
		if ctx.Err() != nil || errors.Is(err, ErrUnauthenticated) || errors.Is(err, ErrForbidden) {
			break
		}
	}
	return nil, last
}

func (c *core) connectTo(ctx context.Context, addr string, flags wire.Flags) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, c.config.dialTimeout)
	defer cancel()
	token, err := c.config.token(ctx)
	if err != nil {
		return nil, &Error{Op: "token", Retry: wire.RetryNow, Err: err}
	}
	s, err := c.authenticate(ctx, addr, token, flags)
	if errors.Is(err, ErrUnauthenticated) {
		fresh, tokenErr := c.config.token(ctx)
		if tokenErr != nil || fresh == token {
			return nil, err
		}
		s, err = c.authenticate(ctx, addr, fresh, flags)
	}
	if err != nil {
		return nil, err
	}
	if f := c.config.events.OnConnect; f != nil {
		f(addr)
	}
	return s, nil
}

// unreachable makes the error of a connection that could not be made. Nothing
// was sent on it.
func unreachable(addr string, err error) *Error {
	return &Error{Op: "connect to " + addr, Retry: wire.RetryNow, Err: fmt.Errorf("%w: %w", ErrUnavailable, err)}
}

func (c *core) authenticate(ctx context.Context, addr, token string, flags wire.Flags) (*session, error) {
	dialed, err := c.config.dial(ctx, "tcp", addr)
	if err != nil {
		return nil, unreachable(addr, err)
	}
	config := c.config.tls
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			host = addr
		}
		config = config.Clone()
		config.ServerName = host
	}
	below := newSocket(dialed)
	conn := tls.Client(below, config)
	s := &session{addr: addr, conn: conn, reader: wire.NewReader(together{conn, below}, c.config.maxFrame)}
	if err := s.handshake(ctx, c.config.tenant, token, flags); err != nil {
		s.close()
		var e *Error
		if errors.As(err, &e) {
			return nil, err
		}
		return nil, unreachable(addr, err)
	}
	return s, nil
}

func (s *session) handshake(ctx context.Context, tenant, token string, flags wire.Flags) error {
	stop := context.AfterFunc(ctx, func() { ignore(s.conn.SetDeadline(longAgo)) })
	defer stop()
	if err := s.conn.(*tls.Conn).HandshakeContext(ctx); err != nil {
		return err
	}
	request := &wire.Auth{Tenant: tenant, Token: token, ClientFlags: clientFlags | flags, HasClientFlags: true, Features: clientFeatures, Extensions: true}
	if _, err := s.conn.Write(wire.AppendMessage(nil, request)); err != nil {
		return err
	}
	m, err := s.message()
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	switch m := m.(type) {
	case *wire.AuthOK:
		s.auth = *m
	case *wire.OK:
		s.auth = wire.AuthOK{ServerFlags: wire.FlagsOriginal}
	case *wire.Error:
		return failed("connect to "+s.addr, &m.Failure)
	default:
		return fmt.Errorf("auth was answered with %s", m.Type())
	}
	if !stop() {
		return context.Cause(ctx)
	}
	return nil
}

// message reads one frame that must be a message.
func (s *session) message() (wire.Message, error) {
	f, err := s.reader.Next()
	if err != nil {
		return nil, err
	}
	if f.Flags.Layout() != wire.LayoutMessage {
		return nil, fmt.Errorf("expected a message, got a frame with flags %s", f.Flags)
	}
	return wire.DecodeMessage(f.Payload)
}
