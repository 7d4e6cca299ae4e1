package server

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"
)

// acceptTCP serves until ctx ends.
func (s *Server) acceptTCP(ctx context.Context, listener net.Listener) error {
	stop := context.AfterFunc(ctx, func() { closeQuietly(listener) })
	defer stop()
	var pause time.Duration
	for {
		socket, err := listener.Accept()
		switch {
		case err == nil:
			pause = 0
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			// Out of descriptors, or a client that left at once: others may still come.
			s.log.Warn("accept client", "error", err)
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			continue
		}
		if !s.takeSlot() {
			closeQuietly(socket)
			continue
		}
		whole := newRecords(socket)
		conn := tls.Server(whole, s.tls)
		c := s.newConnection(context.Background(), transportTCP, socket.RemoteAddr())
		c.closeLink = func(uint64, string) { closeQuietly(socket) }
		if !s.add(c) {
			closeQuietly(socket)
			s.releaseSlot()
			continue
		}
		c.startAuthTimer()
		go func() {
			defer s.releaseSlot()
			defer s.remove(c)
			c.run(func() { c.serveTCP(socket, tcpLink{conn, whole}) })
			c.wait()
		}()
	}
}

func (c *connection) serveTCP(socket net.Conn, link tcpLink) {
	defer closeQuietly(socket)
	if t, ok := socket.(*net.TCPConn); ok {
		tune(t, c.server.limits.KeepAlive)
	}
	handshake, cancel := context.WithTimeout(c.ctx, c.server.handshakeTimeout())
	err := link.HandshakeContext(handshake)
	cancel()
	if err != nil {
		c.server.events.refused(RefusedHandshake)
		c.close(closeShutdown, "", err)
		return
	}
	c.serve(link, false)
	c.close(closeShutdown, "", errOutboxClosed)
}

// tune sets probes that notice a client whose host is gone. An operating system that
// does not know one of them keeps its own.
func tune(t *net.TCPConn, interval time.Duration) {
	if err := t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: interval, Interval: interval, Count: 6}); err != nil {
		return
	}
}
