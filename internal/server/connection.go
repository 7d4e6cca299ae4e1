package server

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felixlog/felix/wire"
)

// The transports, as events and logs name them.
const (
	transportQUIC = "quic"
	transportTCP  = "tcp"
)

// Application close codes of a connection (docs/operations). On TCP closing is
// all there is.
const (
	closeShutdown    = 0
	closeAuthTimeout = 1
)

// errShutdown is the cause of the end of everything a stopping server had.
var errShutdown = errors.New("server stops")

// connection is one client: a QUIC connection, or one TLS connection over TCP. It owns
// the goroutines of its streams and subscriptions, and what they share: the time to
// authenticate, bytes in flight, the count of subscriptions.
type connection struct {
	server    *Server
	id        uint64
	transport string
	remote    net.Addr

	// ctx ends with the connection; its cause says why.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// closeLink ends the transport's connection.
	closeLink func(code uint64, reason string)
	// openEvents opens an event stream; nil where events share the client's stream.
	openEvents func() (eventLink, error)

	// authenticated is closed when the first stream authenticates.
	authenticated chan struct{}
	authOnce      sync.Once
	authTimer     *time.Timer

	running sync.WaitGroup

	mu struct {
		sync.Mutex
		inFlight      int
		closed        bool
		subscriptions int
		// waiting counts who waits for released.
		waiting int
	}
	// accepted counts the streams accepted before one has authenticated.
	accepted atomic.Int64
	// released is signalled when bytes in flight settle, and at the end.
	released *sync.Cond
}

func (s *Server) newConnection(ctx context.Context, transport string, remote net.Addr) *connection {
	c := &connection{
		server: s, id: s.connectionIDs.Add(1), transport: transport, remote: remote,
		authenticated: make(chan struct{}),
	}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	c.released = sync.NewCond(&c.mu)
	return c
}

// startAuthTimer gives the client until then to authenticate a stream.
func (c *connection) startAuthTimer() {
	timeout := c.server.limits.AuthTimeout
	if timeout < 0 {
		return
	}
	c.authTimer = time.AfterFunc(timeout, func() {
		c.authOnce.Do(func() {
			c.server.events.refused(RefusedAuthTimeout)
			c.close(closeAuthTimeout, "authentication timeout", errors.New("authentication timeout"))
		})
	})
}

func (c *connection) markAuthenticated() {
	c.authOnce.Do(func() {
		if c.authTimer != nil {
			c.authTimer.Stop()
		}
		close(c.authenticated)
	})
}

// close ends the connection and everything in it. It does not wait; wait does.
func (c *connection) close(code uint64, reason string, cause error) {
	c.cancel(cause)
	c.mu.Lock()
	c.mu.closed = true
	c.released.Broadcast()
	c.mu.Unlock()
	c.closeLink(code, reason)
}

// wait returns when every goroutine of the connection has ended.
func (c *connection) wait() {
	c.running.Wait()
	if c.authTimer != nil {
		c.authTimer.Stop()
	}
}

// run starts a goroutine the connection owns. It is called only from goroutines it
// owns already, or on behalf of a session that is still counted.
func (c *connection) run(f func()) { c.running.Go(f) }

// admit takes n bytes into flight if they fit, or if nothing else is in flight.
func (c *connection) admit(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.inFlight > 0 && c.mu.inFlight+n > c.server.limits.InFlightBytes {
		return false
	}
	c.mu.inFlight += n
	return true
}

// admitWait waits until n bytes fit. It fails when the connection ends.
func (c *connection) admitWait(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.waiting++
	defer func() { c.mu.waiting-- }()
	for c.mu.inFlight > 0 && c.mu.inFlight+n > c.server.limits.InFlightBytes {
		if c.mu.closed {
			return errOutboxClosed
		}
		c.released.Wait()
	}
	c.mu.inFlight += n
	return nil
}

// settle gives n bytes back.
func (c *connection) settle(n int) {
	c.mu.Lock()
	c.mu.inFlight -= n
	idle := c.mu.inFlight == 0
	if c.mu.waiting > 0 {
		c.released.Broadcast()
	}
	c.mu.Unlock()
	if idle {
		c.server.nudge()
	}
}

// busy reports whether the connection has something a drain waits for.
func (c *connection) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.inFlight > 0 || c.mu.subscriptions > 0
}

// addSubscription counts one more subscription, unless there are as many as allowed.
func (c *connection) addSubscription() *wire.Failure {
	most := c.server.limits.Subscriptions
	c.mu.Lock()
	full := c.mu.subscriptions >= most
	if !full {
		c.mu.subscriptions++
	}
	c.mu.Unlock()
	if full {
		c.server.events.refused(RefusedSubscriptions)
		return wire.NewFailure(wire.CodeLimitExceeded, "this connection has "+decimal(most)+" subscriptions, and more are not allowed: use another connection")
	}
	return nil
}

func (c *connection) removeSubscription() {
	c.mu.Lock()
	c.mu.subscriptions--
	c.mu.Unlock()
	c.server.nudge()
}
