package server

import (
	"context"
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

// uniLink is a client's publish-only stream: nothing is ever answered.
type uniLink struct{ *quic.ReceiveStream }

func (uniLink) Write(p []byte) (int, error) { return len(p), nil }
func (l uniLink) finish()                   { l.CancelRead(streamErrorCode) }
func (l uniLink) stop()                     { l.CancelRead(streamErrorCode) }

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
