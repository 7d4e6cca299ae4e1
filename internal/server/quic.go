package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
)

// handshakeTimeout is how long a handshake may take: no longer than the client has to
// authenticate.
func (s *Server) handshakeTimeout() time.Duration {
	const most = 10 * time.Second
	if t := s.limits.AuthTimeout; t > 0 && t < most {
		return t
	}
	return most
}

// mostUnproved is how many handshakes over QUIC may be under way before further clients
// have to show first that packets reach them at their address. A packet of one that has
// not costs an answer of its size at most, and neither memory nor a place among the
// connections; one that has pays a round trip.
const mostUnproved = 64

type quicListener struct {
	transport *quic.Transport
	listener  *quic.Listener
	// shaking counts the connections whose handshake is not over.
	shaking *atomic.Int64
}

func (s *Server) listenQUIC(packets net.PacketConn) (*quicListener, error) {
	t := &quic.Transport{Conn: packets}
	shaking := new(atomic.Int64)
	t.VerifySourceAddress = func(net.Addr) bool { return shaking.Load() >= mostUnproved }
	if s.resetKey != [32]byte{} {
		key := quic.StatelessResetKey(s.resetKey)
		t.StatelessResetKey = &key
	}
	t.ConnContext = func(ctx context.Context, _ *quic.ClientInfo) (context.Context, error) {
		if !s.takeSlot() {
			return nil, errors.New("connection refused")
		}
		shaking.Add(1)
		context.AfterFunc(ctx, func() {
			shaking.Add(-1)
			s.releaseSlot()
		})
		return ctx, nil
	}
	l, err := t.Listen(s.tls, s.quicConfig())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s (udp): %w", packets.LocalAddr(), err), t.Close())
	}
	return &quicListener{transport: t, listener: l, shaking: shaking}, nil
}

// acceptQUIC serves until ctx ends. It closes the socket when every QUIC connection
// has been told that the server stops.
func (s *Server) acceptQUIC(ctx context.Context, q *quicListener) error {
	var err error
	for {
		var conn *quic.Conn
		if conn, err = q.listener.Accept(ctx); err != nil {
			break
		}
		// Its handshake is over; what ConnContext counted for it is taken back at its end.
		q.shaking.Add(-1)
		context.AfterFunc(conn.Context(), func() { q.shaking.Add(1) })
		c := s.newConnection(conn.Context(), transportQUIC, conn.RemoteAddr())
		c.closeLink = func(code uint64, reason string) {
			closeQUIC(conn, code, reason)
		}
		c.openEvents = func() (eventLink, error) {
			stream, err := conn.OpenUniStream()
			if err != nil {
				return nil, err
			}
			return quicEvents{stream}, nil
		}
		if !s.add(c) {
			c.closeLink(closeShutdown, "")
			continue
		}
		c.startAuthTimer()
		c.run(func() { c.acceptBidi(conn) })
		c.run(func() { c.acceptUni(conn) })
		go func() {
			<-conn.Context().Done()
			c.close(closeShutdown, "", context.Cause(conn.Context()))
			c.wait()
			s.remove(c)
		}()
	}
	if ctx.Err() != nil {
		err = nil
	}
	s.closeAll()
	s.waitEmpty()
	return errors.Join(err, q.listener.Close(), q.transport.Close(), closeSocket(q.transport.Conn))
}

func closeSocket(packets net.PacketConn) error {
	if err := packets.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// closeQUIC tells the client; that it is gone already is as good.
func closeQUIC(conn *quic.Conn, code uint64, reason string) {
	if err := conn.CloseWithError(quic.ApplicationErrorCode(code), reason); err != nil {
		return
	}
}

// acceptBidi runs a session for each bidirectional stream.
func (c *connection) acceptBidi(conn *quic.Conn) {
	for c.mayAccept() {
		stream, err := conn.AcceptStream(c.ctx)
		if err != nil {
			return
		}
		c.run(func() { c.serve(bidiLink{stream}, false) })
	}
}

func (c *connection) acceptUni(conn *quic.Conn) {
	for c.mayAccept() {
		stream, err := conn.AcceptUniStream(c.ctx)
		if err != nil {
			return
		}
		c.run(func() { c.serve(uniLink{stream}, true) })
	}
}

// mayAccept waits, once as many streams were accepted as are read before one has
// authenticated, for that. It reports false when the connection ends first. Both kinds
// of stream count together, and one of each kind may be accepted past the limit.
func (c *connection) mayAccept() bool {
	select {
	case <-c.authenticated:
		return true
	default:
	}
	limit := int64(c.server.limits.PreAuthStreams)
	if n := c.accepted.Add(1); n <= limit {
		return true
	} else if n == limit+1 {
		c.server.events.refused(RefusedPreAuthStreams)
	}
	select {
	case <-c.authenticated:
		return true
	case <-c.ctx.Done():
		return false
	}
}
