package server

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/quic-go/quic-go"
)

// link is the byte stream a client opened: a QUIC stream, or the whole of a TLS
// connection.
type link interface {
	io.Reader
	io.Writer
	// finish ends our side after everything written, as a normal end. It may wait a
	// moment for the client to take it in.
	finish()
	// stop ends both sides now.
	stop()
	// gone ends when the client no longer reads; nil where only a Read can tell.
	gone() context.Context
	// listens reports whether a client may still read after a Read that ended with err.
	listens(err error) bool
}

// arriving is a link that tells what of its bytes has arrived.
type arriving interface {
	// readNow gives what has arrived, without waiting; 0 when that is nothing.
	readNow(p []byte) int
	// more says that readNow is likely to give something, which is known without asking.
	more() bool
}

// eventLink is the stream events leave on.
type eventLink interface {
	io.Writer
	// gone ends when the client no longer reads, which is how it unsubscribes.
	gone() context.Context
	// finish ends the stream after everything written.
	finish()
	// reset ends the stream now, as lost.
	reset()
}

// streamErrorCode is the code of resets and STOP_SENDING: no meaning is defined.
const streamErrorCode = 0

type bidiLink struct{ *quic.Stream }

func (l bidiLink) finish() {
	// The peer may have more to say; nobody listens.
	l.CancelRead(streamErrorCode)
	closeQuietly(l.Stream)
}

func (l bidiLink) stop() {
	l.CancelRead(streamErrorCode)
	l.CancelWrite(streamErrorCode)
}

func (l bidiLink) gone() context.Context { return l.Context() }

// A client that has asked what it wanted to finishes its side, and reads on.
func (l bidiLink) listens(err error) bool { return errors.Is(err, io.EOF) }

// uniLink is a client's publish-only stream: nothing is ever answered.
type uniLink struct{ *quic.ReceiveStream }

func (uniLink) Write(p []byte) (int, error) { return len(p), nil }
func (l uniLink) finish()                   { l.CancelRead(streamErrorCode) }
func (l uniLink) stop()                     { l.CancelRead(streamErrorCode) }
func (uniLink) gone() context.Context       { return nil }
func (uniLink) listens(error) bool          { return false }

// How long, and for how many bytes, a finished TCP connection listens on.
const (
	lingerTime  = time.Second
	lingerBytes = 1 << 20
)

// finish says goodbye (close_notify), so that the client can tell an end from a cut,
// and then takes in what is still arriving: closing a socket with unread bytes resets
// it, and a reset can overtake the answer that explains the end.
func (l tcpLink) finish() {
	if l.goodbye() {
		discard(io.LimitReader(l.socket(), lingerBytes))
	}
	l.stop()
}

// goodbye ends our side, and gives the client a moment to end its own.
func (l tcpLink) goodbye() bool {
	socket, ok := l.socket().(*net.TCPConn)
	return l.CloseWrite() == nil && ok && socket.CloseWrite() == nil &&
		socket.SetReadDeadline(time.Now().Add(lingerTime)) == nil
}

// discard reads to the end or the first error, either of which is enough.
func discard(r io.Reader) {
	if _, err := io.Copy(io.Discard, r); err != nil {
		return
	}
}

func (tcpLink) gone() context.Context { return nil }

// A client that ends its side of the connection has left: a killed one looks the same.
func (tcpLink) listens(error) bool { return false }

func (l tcpLink) stop() { closeQuietly(l.socket()) }

type quicEvents struct{ *quic.SendStream }

func (e quicEvents) gone() context.Context { return e.Context() }
func (e quicEvents) finish()               { closeQuietly(e.SendStream) }
func (e quicEvents) reset()                { e.CancelWrite(streamErrorCode) }

// closeQuietly closes what is ending anyway: the peer may have closed it first, and
// there is nobody left to tell.
func closeQuietly(c io.Closer) {
	if err := c.Close(); err != nil {
		return
	}
}

func decimal(n int) string { return strconv.Itoa(n) }
