package client

import (
	"crypto/tls"
	"encoding/binary"
	"net"
)

// TLS gives out one of its records, of at most 16 KiB, at a time, and reads the socket for
// each. arrivals sits between the two: it reads the socket in large pieces, and knows
// whether another whole record is there, so that what has arrived together is taken
// together. It belongs to who reads the connection.
type arrivals struct {
	net.Conn
	buf  []byte
	r, w int
	// left is what is owed of the record being given out. No bytes of two records are
	// given out in one Read, so that TLS holds nothing back that ready does not know of.
	left int
	// whole: give out records that are there entirely, and do not wait.
	whole bool
}

// The buffer begins small, for connections that are mostly idle, and grows once it was
// filled.
const (
	arrivalsLeast = 4 << 10
	arrivalsMost  = 128 << 10
)

// recordHead is the head of a TLS record: type, version, length.
const recordHead = 5

// errNoRecord is temporary, which keeps TLS from taking the connection for broken.
type errNoRecord struct{}

func (errNoRecord) Error() string   { return "no whole record has arrived" }
func (errNoRecord) Timeout() bool   { return true }
func (errNoRecord) Temporary() bool { return true }

// Read implements net.Conn.
func (a *arrivals) Read(p []byte) (int, error) {
	if a.whole && a.left == 0 && !a.ready() {
		return 0, errNoRecord{}
	}
	need := 1
	if a.left == 0 {
		need = recordHead
	}
	for a.w-a.r < need {
		if err := a.fill(); err != nil {
			return 0, err
		}
	}
	if a.left == 0 {
		a.left = a.next()
	}
	n := copy(p, a.buf[a.r:min(a.w, a.r+a.left)])
	a.r += n
	a.left -= n
	return n, nil
}

// next is the size of the record that begins at r, its head included.
func (a *arrivals) next() int {
	return recordHead + int(binary.BigEndian.Uint16(a.buf[a.r+3:]))
}

// ready says that a whole record has arrived and none is being given out.
func (a *arrivals) ready() bool {
	n := a.w - a.r
	return a.left == 0 && n >= recordHead && n >= a.next()
}

// fill reads from the socket once.
func (a *arrivals) fill() error {
	switch {
	case a.r == a.w:
		a.r, a.w = 0, 0
	case a.w == len(a.buf):
		a.w = copy(a.buf, a.buf[a.r:a.w])
		a.r = 0
	}
	if a.buf == nil {
		a.buf = make([]byte, arrivalsLeast)
	}
	n, err := a.Conn.Read(a.buf[a.w:])
	a.w += n
	if a.w == len(a.buf) && len(a.buf) < arrivalsMost {
		a.buf = append(make([]byte, 0, arrivalsMost), a.buf...)[:arrivalsMost]
	}
	if n > 0 {
		return nil
	}
	return err
}

// together reads a TLS connection over arrivals.
type together struct {
	*tls.Conn
	arrivals *arrivals
}

// Read gives all that has arrived, as far as p has room.
func (t together) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	for err == nil && n < len(p) && t.arrivals.ready() {
		t.arrivals.whole = true
		m, later := t.Conn.Read(p[n:])
		t.arrivals.whole = false
		n += m
		if later != nil {
			// What is there comes first. Any other error is found again by the next Read.
			break
		}
	}
	return n, err
}
