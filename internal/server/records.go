package server

import (
	"crypto/tls"
	"encoding/binary"
	"net"
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
}

// errNoRecord is temporary, which keeps TLS from taking the connection for broken.
type errNoRecord struct{}

func (errNoRecord) Error() string   { return "no whole record has arrived" }
func (errNoRecord) Timeout() bool   { return true }
func (errNoRecord) Temporary() bool { return true }

// Read implements net.Conn.
func (c *records) Read(p []byte) (int, error) {
	if c.whole && c.left == 0 && !c.ready() {
		return 0, errNoRecord{}
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
	n, err := c.Conn.Read(c.buf[c.w:])
	c.w += n
	if c.w == len(c.buf) && len(c.buf) < recordsMost {
		c.buf = append(make([]byte, 0, recordsMost), c.buf...)[:recordsMost]
	}
	if n > 0 {
		return nil
	}
	return err
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

// socket is the connection below TLS.
func (l tcpLink) socket() net.Conn { return l.records.Conn }
