package client

import (
	"net"
	"sync"
)

// gather sits between TLS and the socket. TLS writes each of its records of
// 16 KiB by itself; gather holds them back until flush, so that one large write
// of ours is few system calls.
//
// TLS may write from the reader too (an answer to a key update); that waits for
// the next flush, which only the connection's writer calls, so that the bytes
// stay in order.
type gather struct {
	net.Conn
	// hold is set before the connection is shared and never changed then.
	hold bool

	mu   sync.Mutex
	buf  []byte
	next []byte
}

// gatherStep is how much is written between two flushes.
const gatherStep = 256 << 10

// Write holds p back, or passes it on.
func (g *gather) Write(p []byte) (int, error) {
	if !g.hold {
		return g.Conn.Write(p)
	}
	g.mu.Lock()
	g.buf = append(g.buf, p...)
	g.mu.Unlock()
	return len(p), nil
}

func (g *gather) flush() error {
	g.mu.Lock()
	out := g.buf
	g.buf, g.next = g.next[:0], nil
	g.mu.Unlock()
	var err error
	if len(out) > 0 {
		_, err = g.Conn.Write(out)
	}
	g.mu.Lock()
	g.next = out[:0]
	g.mu.Unlock()
	return err
}
