package wire

import (
	"encoding/binary"
	"io"
)

// TLSArrivals sits between TLS and what it reads. TLS gives out one of its records, of at
// most 16 KiB, at a time, and reads the socket for each, so that a burst of frames looks
// like single frames. TLSArrivals reads in large pieces, and knows whether another whole
// record is there: what has arrived together is decrypted together. Socket and Most are set
// before its first use. It belongs to the goroutine that reads the connection.
type TLSArrivals struct {
	Socket io.Reader
	// Most is the size in bytes that the buffer grows to, 4 KiB at least.
	Most int
	// Now, which may be nil, reads what is at Socket without waiting: 0 bytes when that is
	// nothing, and when Socket has failed or ended. Only ReadNow asks it.
	Now interface{ ReadNow(p []byte) int }

	// buf begins small, for connections that are mostly idle, and grows once it was filled.
	buf []byte
	// What was read and not given out yet is buf[r:w].
	r, w int
	// left is what is owed of the record being given out. No bytes of two records are
	// given out in one Read, so that TLS holds nothing back that ready does not know of.
	left int
	// whole: give out records that are there entirely, and do not wait.
	whole bool
	// asks: with whole, see what else has arrived at the socket.
	asks bool
	// filled: the last ReadTogether or ReadNow had no room for more.
	filled bool
}

// arrivalsLeast is what the buffer begins with, in bytes.
const arrivalsLeast = 4 << 10

// tlsHeader is the header of a TLS record: type, version, length (RFC 8446, 5.1).
const tlsHeader = 5

// noRecordError is temporary, which keeps TLS from taking the connection for broken.
type noRecordError struct{}

func (noRecordError) Error() string   { return "no whole record has arrived" }
func (noRecordError) Timeout() bool   { return true }
func (noRecordError) Temporary() bool { return true }

// Read is for TLS: it gives out bytes of one record.
func (a *TLSArrivals) Read(p []byte) (int, error) {
	if a.whole && a.left == 0 && !a.ready() {
		if a.asks && a.Now != nil {
			// What ends the connection is found again by fill.
			a.makeRoom()
			a.took(a.Now.ReadNow(a.buf[a.w:]))
		}
		if !a.ready() {
			return 0, noRecordError{}
		}
	}
	need := 1
	if a.left == 0 {
		need = tlsHeader
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

// ReadTogether reads from conn, the TLS connection over a, all that has arrived, as far as
// p has room. It waits for the first record only.
func (a *TLSArrivals) ReadTogether(conn io.Reader, p []byte) (int, error) {
	n, err := conn.Read(p)
	for err == nil && n < len(p) && a.ready() {
		a.whole = true
		m, later := conn.Read(p[n:])
		a.whole = false
		n += m
		if later != nil {
			// What is there comes first. Any other error is found again by the next read.
			break
		}
	}
	a.filled = n == len(p)
	return n, err
}

// ReadNow is ReadTogether without waiting, and asks Now too; 0 when nothing has arrived.
// An error is found again by the next ReadTogether.
func (a *TLSArrivals) ReadNow(conn io.Reader, p []byte) int {
	a.whole, a.asks = true, true
	n := 0
	for n < len(p) {
		m, err := conn.Read(p[n:])
		n += m
		if err != nil {
			break
		}
	}
	a.whole, a.asks = false, false
	a.filled = n == len(p)
	return n
}

// More says, without asking Socket, that what has been given out is not all that was sent
// with it: a part of the next record has arrived, or there was no room.
func (a *TLSArrivals) More() bool { return a.w > a.r || a.filled }

// next is the size of the record that begins at r, its header included.
func (a *TLSArrivals) next() int {
	return tlsHeader + int(binary.BigEndian.Uint16(a.buf[a.r+3:]))
}

// ready says that a whole record has arrived and none is being given out.
func (a *TLSArrivals) ready() bool {
	n := a.w - a.r
	return a.left == 0 && n >= tlsHeader && n >= a.next()
}

// fill reads from the socket once.
func (a *TLSArrivals) fill() error {
	a.makeRoom()
	n, err := a.Socket.Read(a.buf[a.w:])
	a.took(n)
	if n > 0 {
		return nil
	}
	return err
}

func (a *TLSArrivals) makeRoom() {
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
}

func (a *TLSArrivals) took(n int) {
	a.w += n
	if a.w == len(a.buf) && len(a.buf) < a.Most {
		a.buf = append(make([]byte, 0, a.Most), a.buf...)[:a.Most]
	}
}
