package server

import (
	"crypto/tls"
	"net"
	"sync"
	"syscall"

	"github.com/felixlog/felix/wire"
)

// records is the connection below TLS: read in large pieces, or without waiting, and written
// in large pieces where tcpLink holds them.
type records struct {
	net.Conn
	came wire.TLSArrivals
	now  arrived
	held wire.TLSHold
}

const (
	// arrivalsMost bounds the buffer of what has arrived.
	arrivalsMost = 64 << 10
	// recordBytes is the size of a TLS record. What is larger is kept back until it is
	// encrypted, holdBytes of it at a time.
	recordBytes = 16 << 10
	holdBytes   = 64 << 10
	holdRoom    = holdBytes + 1<<10 // with what encryption adds
)

// holdBuffers are for those who write: a connection has one only meanwhile.
var holdBuffers = sync.Pool{New: func() any { return new([holdRoom]byte) }}

func newRecords(socket net.Conn) *records {
	c := &records{
		Conn: socket,
		came: wire.TLSArrivals{Socket: socket, Most: arrivalsMost},
		now:  arrived{conn: socket},
		held: wire.TLSHold{Socket: socket},
	}
	c.came.Now = &c.now
	return c
}

// Read implements net.Conn.
func (c *records) Read(p []byte) (int, error) { return c.came.Read(p) }

// Write implements net.Conn.
func (c *records) Write(p []byte) (int, error) { return c.held.Write(p) }

// arrived reads from a socket what has arrived. It keeps what it needs for that, so that
// a read allocates nothing.
type arrived struct {
	conn net.Conn
	raw  syscall.RawConn
	once func(fd uintptr) bool
	into []byte
	n    int
	// failed is why nothing was read, which includes that nothing is there.
	failed error
}

// ReadNow returns 0 when nothing is there, when the connection has ended, and when it is
// none that can be asked.
func (a *arrived) ReadNow(into []byte) int {
	if a.raw == nil {
		s, ok := a.conn.(syscall.Conn)
		if !ok {
			return 0
		}
		raw, err := s.SyscallConn()
		if err != nil {
			return 0
		}
		a.raw = raw
		a.once = func(fd uintptr) bool {
			a.n, a.failed = readSocket(fd, a.into)
			return true
		}
	}
	a.into, a.n, a.failed = into, 0, nil
	err := a.raw.Read(a.once)
	a.into = nil
	if err != nil || a.failed != nil {
		return 0
	}
	return a.n
}

// tcpLink is a client's TLS connection.
type tcpLink struct {
	*tls.Conn
	records *records
}

// Read gives all that has arrived, as far as p has room.
func (l tcpLink) Read(p []byte) (int, error) { return l.records.came.ReadTogether(l.Conn, p) }

// Write sends p in few writes to the socket. It is for one goroutine at a time.
func (l tcpLink) Write(p []byte) (int, error) {
	if len(p) <= recordBytes {
		return l.Conn.Write(p)
	}
	room := holdBuffers.Get().(*[holdRoom]byte)
	defer holdBuffers.Put(room)
	for done := 0; ; {
		l.records.held.Hold(room[:])
		n, err := l.Conn.Write(p[done:min(len(p), done+holdBytes)])
		if flushed := l.records.held.Flush(); err == nil {
			err = flushed
		}
		if done += n; err != nil || done == len(p) {
			return done, err
		}
	}
}

// readNow gives what has arrived, without waiting; 0 when that is nothing.
func (l tcpLink) readNow(p []byte) int { return l.records.came.ReadNow(l.Conn, p) }

// more says that readNow is likely to give something, which is known without asking.
func (l tcpLink) more() bool { return l.records.came.More() }

// socket is the connection below TLS.
func (l tcpLink) socket() net.Conn { return l.records.Conn }
