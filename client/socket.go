package client

import (
	"crypto/tls"
	"net"

	"github.com/felixlog/felix/wire"
)

// socket is the connection below TLS: read in large pieces, and with held.HoldAlways
// written in large ones.
type socket struct {
	net.Conn
	came wire.TLSArrivals
	held wire.TLSHold
}

const (
	// arrivalsMost bounds the buffer of what has arrived.
	arrivalsMost = 128 << 10
	// gatherStep is how much is written between two flushes.
	gatherStep = 256 << 10
)

func newSocket(conn net.Conn) *socket {
	return &socket{
		Conn: conn,
		came: wire.TLSArrivals{Socket: conn, Most: arrivalsMost},
		held: wire.TLSHold{Socket: conn},
	}
}

// Read implements net.Conn.
func (s *socket) Read(p []byte) (int, error) { return s.came.Read(p) }

// Write implements net.Conn.
func (s *socket) Write(p []byte) (int, error) { return s.held.Write(p) }

// together reads a TLS connection over a socket.
type together struct {
	*tls.Conn
	socket *socket
}

// Read gives all that has arrived, as far as p has room.
func (t together) Read(p []byte) (int, error) { return t.socket.came.ReadTogether(t.Conn, p) }
