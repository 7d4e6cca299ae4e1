package server

import (
	"crypto/tls"
	"encoding/binary"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// TLS gives out one record at a time, and a client that writes each frame by itself
// sends each in a record of its own. To the session a burst of frames would then look
// like single frames, each written and flushed alone. So the socket is read in large
// pieces here, and what has arrived whole is decrypted in one go.

// Sizes of the buffer: it begins small, for connections that are mostly idle, and
// grows when it was filled.
const (
	recordsLeast = 4 << 10
	recordsMost  = 64 << 10
)

// recordHeader is a TLS record's: type, version, length.
const recordHeader = 5

// records sits between the socket and TLS. It never gives out bytes of two records in
// one Read, so that TLS holds nothing back that ready does not know of. It belongs to
// the goroutine that reads.
type records struct {
	net.Conn
	buf  []byte
	r, w int
	// left is what is owed of the record being given out.
	left int
	// whole: give out records that are there entirely, and do not wait.
	whole bool
	// asks: with whole, see what else has arrived at the socket.
	asks bool
	now  arrived

	// out is what hold keeps back.
	out struct {
		sync.Mutex
		held bool
		buf  []byte
	}
}

// TLS writes each of its records of 16 KiB by itself. What is larger than one is kept back
// until it is encrypted, holdBytes of it at a time, so that it is one write to the socket.
const (
	recordBytes = 16 << 10
	holdBytes   = 64 << 10
	holdRoom    = holdBytes + 1<<10 // with what encryption adds
)

// holdBuffers are for those who write: a connection has one only meanwhile.
var holdBuffers = sync.Pool{New: func() any { return new([holdRoom]byte) }}

// hold makes what is written wait for flush. TLS may write from the reader too, an answer
// to a key update: that waits likewise, so that the bytes stay in order.
func (c *records) hold(room *[holdRoom]byte) {
	c.out.Lock()
	c.out.held, c.out.buf = true, room[:0]
	c.out.Unlock()
}

// flush ends a hold and writes what was kept back.
func (c *records) flush() error {
	var failed error
	for {
		c.out.Lock()
		buf := c.out.buf
		c.out.buf = nil
		if len(buf) == 0 || failed != nil {
			c.out.held = false
			c.out.Unlock()
			return failed
		}
		c.out.Unlock()
		_, failed = c.Conn.Write(buf)
	}
}

// Write implements net.Conn.
func (c *records) Write(p []byte) (int, error) {
	c.out.Lock()
	held := c.out.held
	if held {
		c.out.buf = append(c.out.buf, p...)
	}
	c.out.Unlock()
	if held {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// errNoRecord is temporary, which keeps TLS from taking the connection for broken.
type errNoRecord struct{}

func (errNoRecord) Error() string   { return "no whole record has arrived" }
func (errNoRecord) Timeout() bool   { return true }
func (errNoRecord) Temporary() bool { return true }

// Read implements net.Conn.
func (c *records) Read(p []byte) (int, error) {
	if c.whole && c.left == 0 && !c.ready() {
		if c.asks {
			c.fillNow()
		}
		if !c.ready() {
			return 0, errNoRecord{}
		}
	}
	need := 1
	if c.left == 0 {
		need = recordHeader
	}
	for c.w-c.r < need {
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	if c.left == 0 {
		c.left = c.next()
	}
	n := copy(p, c.buf[c.r:min(c.w, c.r+c.left)])
	c.r += n
	c.left -= n
	return n, nil
}

// next is the size of the record that begins at r, its header included.
func (c *records) next() int {
	return recordHeader + int(binary.BigEndian.Uint16(c.buf[c.r+3:]))
}

// ready says that a whole record has arrived and none is being given out.
func (c *records) ready() bool {
	n := c.w - c.r
	return c.left == 0 && n >= recordHeader && n >= c.next()
}

// fill reads from the socket once.
func (c *records) fill() error {
	c.makeRoom()
	n, err := c.Conn.Read(c.buf[c.w:])
	c.filled(n)
	if n > 0 {
		return nil
	}
	return err
}

// fillNow is fill without waiting. What ends the connection is found again by fill.
func (c *records) fillNow() {
	c.makeRoom()
	c.filled(c.now.read(c.Conn, c.buf[c.w:]))
}

func (c *records) makeRoom() {
	switch {
	case c.r == c.w:
		c.r, c.w = 0, 0
	case c.w == len(c.buf):
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	}
	if c.buf == nil {
		c.buf = make([]byte, recordsLeast)
	}
}

func (c *records) filled(n int) {
	c.w += n
	if c.w == len(c.buf) && len(c.buf) < recordsMost {
		c.buf = append(make([]byte, 0, recordsMost), c.buf...)[:recordsMost]
	}
}

// arrived reads from a socket what has arrived. It keeps what it needs for that, so that
// a read allocates nothing.
type arrived struct {
	raw  syscall.RawConn
	once func(fd uintptr) bool
	into []byte
	n    int
	// failed is why nothing was read, which includes that nothing is there.
	failed error
}

// read returns 0 when nothing is there, when the connection has ended, and when it is
// none that can be asked.
func (a *arrived) read(conn net.Conn, into []byte) int {
	if a.raw == nil {
		s, ok := conn.(syscall.Conn)
		if !ok {
			return 0
		}
		raw, err := s.SyscallConn()
		if err != nil {
			return 0
		}
		a.raw = raw
		a.once = func(fd uintptr) bool {
			a.n, a.failed = unix.Read(int(fd), a.into)
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
func (l tcpLink) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	for err == nil && n < len(p) && l.records.ready() {
		l.records.whole = true
		m, later := l.Conn.Read(p[n:])
		l.records.whole = false
		n += m
		if later != nil {
			// What is there comes first. Any other error is found again by the next Read.
			break
		}
	}
	return n, err
}

// Write sends p in few writes to the socket. It is for one goroutine at a time.
func (l tcpLink) Write(p []byte) (int, error) {
	if len(p) <= recordBytes {
		return l.Conn.Write(p)
	}
	room := holdBuffers.Get().(*[holdRoom]byte)
	defer holdBuffers.Put(room)
	for done := 0; ; {
		l.records.hold(room)
		n, err := l.Conn.Write(p[done:min(len(p), done+holdBytes)])
		if flushed := l.records.flush(); err == nil {
			err = flushed
		}
		if done += n; err != nil || done == len(p) {
			return done, err
		}
	}
}

// readNow gives what has arrived, without waiting; 0 when that is nothing.
func (l tcpLink) readNow(p []byte) int {
	l.records.whole, l.records.asks = true, true
	n := 0
	for n < len(p) {
		m, err := l.Conn.Read(p[n:])
		n += m
		if err != nil {
			// As in Read: what is lasting is found again.
			break
		}
	}
	l.records.whole, l.records.asks = false, false
	return n
}

// socket is the connection below TLS.
func (l tcpLink) socket() net.Conn { return l.records.Conn }
