package server

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/wire"
)

// heldConn keeps what is written until it is let go in one piece.
type heldConn struct {
	net.Conn
	mu   sync.Mutex
	hold bool
	buf  bytes.Buffer
}

func (c *heldConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hold {
		return c.buf.Write(p)
	}
	return c.Conn.Write(p)
}

func (c *heldConn) release(t *testing.T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold = false
	// A closed TLS side allows no further writes.
	err := c.Conn.SetWriteDeadline(time.Time{})
	if err == nil {
		_, err = c.Conn.Write(c.buf.Bytes())
	}
	if err != nil {
		t.Error(err)
	}
}

// recordPair is a client and a server link, shaken hands.
func recordPair(t *testing.T) (*tls.Conn, *heldConn, tcpLink) {
	return recordPairOver(t, "tcp", "127.0.0.1:0")
}

// arrivingPair is a recordPair where what was written has arrived.
func arrivingPair(t *testing.T) (*tls.Conn, *heldConn, tcpLink) {
	return recordPairOver(t, "unix", filepath.Join(t.TempDir(), "socket"))
}

func recordPairOver(t *testing.T, network, address string) (*tls.Conn, *heldConn, tcpLink) {
	paths, _, err := auth.EnsureCertificates(t.TempDir(), auth.CertificateOptions{})
	require.NoError(t, err)
	cert, err := auth.LoadCertificate(paths.Cert, paths.Key)
	require.NoError(t, err)
	trust, err := auth.ClientTLS(paths.CA, "localhost")
	require.NoError(t, err)
	listener, err := net.Listen(network, address)
	require.NoError(t, err)
	near, err := net.Dial(network, listener.Addr().String())
	require.NoError(t, err)
	far, err := listener.Accept()
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	t.Cleanup(func() {
		require.NoError(t, near.Close())
		require.NoError(t, far.Close())
	})
	held := &heldConn{Conn: near}
	client := tls.Client(held, trust)
	whole := newRecords(far)
	link := tcpLink{tls.Server(whole, auth.ServerTLS(cert, false)), whole}
	shaken := make(chan error, 1)
	go func() { shaken <- link.Handshake() }()
	require.NoError(t, client.Handshake())
	require.NoError(t, <-shaken)
	return client, held, link
}

// Fifty frames that arrived together are one read, though each is a TLS record of
// its own; the session then drives its shard once for all of them.
func TestGuardBurstOfRecordsIsOneRead(t *testing.T) {
	client, held, link := recordPair(t)
	var want []byte
	held.mu.Lock()
	held.hold = true
	held.mu.Unlock()
	for i := range 50 {
		piece := bytes.Repeat([]byte{byte(i)}, 20)
		want = append(want, piece...)
		_, err := client.Write(piece)
		require.NoError(t, err)
	}
	held.release(t)
	got := make([]byte, 64<<10)
	n, err := link.Read(got)
	require.NoError(t, err)
	require.Equal(t, want, got[:n])
}

// Whatever the sizes of writes, of what arrives at once and of reads: the bytes are
// the same, and waiting is never for more than the next record.
func TestRecordsOfAnySize(t *testing.T) {
	client, _, link := recordPair(t)
	const total = 600 << 10
	want := make([]byte, total)
	for i := range want {
		want[i] = byte(i * 7)
	}
	go func() {
		for at, size := 0, 1; at < total; size = size*3%40_000 + 1 {
			end := min(at+size, total)
			if _, err := client.Write(want[at:end]); err != nil {
				return
			}
			at = end
		}
	}()
	var got []byte
	for size := 1; len(got) < total; size = size*5%70_000 + 1 {
		buf := make([]byte, size)
		n, err := link.Read(buf)
		require.NoError(t, err)
		require.Positive(t, n)
		got = append(got, buf[:n]...)
	}
	require.True(t, bytes.Equal(want, got))
}

// A single record is given out at once, though half of another has arrived.
func TestHalfARecordIsNotWaitedFor(t *testing.T) {
	client, held, link := recordPair(t)
	held.mu.Lock()
	held.hold = true
	held.mu.Unlock()
	for _, text := range []string{"whole", "the second half comes later"} {
		_, err := client.Write([]byte(text))
		require.NoError(t, err)
	}
	all := held.buf.Bytes()
	sent := make(chan error, 1)
	first := make(chan struct{})
	go func() {
		_, err := held.Conn.Write(all[:len(all)-10])
		<-first
		_, rest := held.Conn.Write(all[len(all)-10:])
		sent <- errors.Join(err, rest)
	}()
	got := make([]byte, 4096)
	n, err := link.Read(got)
	require.NoError(t, err)
	require.Equal(t, "whole", string(got[:n]))
	close(first)
	n, err = link.Read(got)
	require.NoError(t, err)
	require.Equal(t, "the second half comes later", string(got[:n]))
	require.NoError(t, <-sent)
}

func TestEndOfConnectionAfterRecords(t *testing.T) {
	client, held, link := recordPair(t)
	held.mu.Lock()
	held.hold = true
	held.mu.Unlock()
	_, err := client.Write([]byte("last words"))
	require.NoError(t, err)
	require.NoError(t, client.CloseWrite())
	held.release(t)
	got := make([]byte, 4096)
	n, err := link.Read(got)
	require.NoError(t, err)
	require.Equal(t, "last words", string(got[:n]))
	_, err = link.Read(got)
	require.ErrorIs(t, err, io.EOF)
}

// readNow gives every record that has arrived whole, and never waits for one.
func TestReadNow(t *testing.T) {
	client, held, link := arrivingPair(t)
	got := make([]byte, 256<<10)
	require.Zero(t, link.readNow(got))

	held.hold = true
	want := bytes.Repeat([]byte("0123456789abcdef"), 6<<10)
	_, err := client.Write(want)
	require.NoError(t, err)
	_, err = client.Write([]byte("the second half comes later"))
	require.NoError(t, err)
	all := held.buf.Bytes()
	_, err = held.Conn.Write(all[:len(all)-10])
	require.NoError(t, err)
	n := 0
	for m := link.readNow(got); m > 0; m = link.readNow(got[n:]) {
		n += m
	}
	require.True(t, bytes.Equal(want, got[:n]))

	_, err = held.Conn.Write(all[len(all)-10:])
	require.NoError(t, err)
	n = link.readNow(got)
	require.Equal(t, "the second half comes later", string(got[:n]))

	held.hold = false
	require.NoError(t, client.CloseWrite())
	require.Zero(t, link.readNow(got))
	_, err = link.Read(got)
	require.ErrorIs(t, err, io.EOF)
}

// readingSession is a session with what reading from link takes, and no more.
func readingSession(t *testing.T, link tcpLink) *session {
	s := &session{link: link}
	s.ahead.init(link, func(func()) {})
	s.reader = wire.NewReader(&s.ahead, 1<<20)
	t.Cleanup(s.reader.Close)
	return s
}

// Frames that are larger than one read are one burst when they have arrived.
func TestGuardBurstOfLargeFrames(t *testing.T) {
	client, held, link := arrivingPair(t)
	require.NoError(t, held.Conn.(*net.UnixConn).SetWriteBuffer(1<<20))
	frame := wire.AppendPublishBatch(nil, &wire.PublishBatchFrame{Tenant: "t", Namespace: "n", Stream: "s", Payloads: [][]byte{make([]byte, 80<<10)}})
	_, err := client.Write(append(frame, frame...))
	require.NoError(t, err)

	s := readingSession(t, link)
	f, err := s.reader.Next()
	require.NoError(t, err)
	require.False(t, s.hasMore(burstBytes), "a burst has an end")
	require.True(t, s.hasMore(len(f.Payload)))
	_, err = s.reader.Next()
	require.NoError(t, err)
	require.False(t, s.hasMore(len(f.Payload)))
}

// A frame that ends where a read of the socket did is one burst with the next, of which
// that read took the beginning.
func TestGuardBurstGoesOnBehindAWholeFrame(t *testing.T) {
	client, held, link := arrivingPair(t)
	require.NoError(t, held.Conn.(*net.UnixConn).SetWriteBuffer(1<<20))
	frame := wire.AppendPublishBatch(nil, &wire.PublishBatchFrame{Tenant: "t", Namespace: "n", Stream: "s", Payloads: [][]byte{make([]byte, 80<<10)}})
	held.hold = true
	_, err := client.Write(frame)
	require.NoError(t, err)
	first := held.buf.Len()
	_, err = client.Write(frame)
	require.NoError(t, err)
	all := held.buf.Bytes()
	_, err = held.Conn.Write(all[:first+1])
	require.NoError(t, err)

	s := readingSession(t, link)
	f, err := s.reader.Next()
	require.NoError(t, err)
	require.False(t, s.hasMore(len(f.Payload)))
	_, err = held.Conn.Write(all[first+1:])
	require.NoError(t, err)
	require.True(t, s.hasMore(len(f.Payload)))
}

// countedConn counts the writes to a socket, and may fail them.
type countedConn struct {
	net.Conn
	writes atomic.Int64
	fail   atomic.Bool
}

var errCounted = errors.New("this socket fails")

func (c *countedConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	if c.fail.Load() {
		return 0, errCounted
	}
	return c.Conn.Write(p)
}

// A page of events is one write to the socket, not one for each TLS record of it.
func TestGuardPageIsOneWrite(t *testing.T) {
	client, _, link := recordPair(t)
	counted := &countedConn{Conn: link.records.Conn}
	link.records.held.Socket = counted
	// TLS begins with smaller records: -1 is for what it takes until they are whole.
	for _, c := range []struct{ size, writes int }{{4 * holdBytes, -1}, {1, 1}, {recordBytes, 1}, {recordBytes + 1, 1}, {holdBytes, 1}, {holdBytes + 1, 2}, {5*holdBytes - 1, 5}} {
		want := make([]byte, c.size)
		for i := range want {
			want[i] = byte(i * 7)
		}
		counted.writes.Store(0)
		sent := make(chan error, 1)
		go func() {
			n, err := link.Write(want)
			if err == nil && n != len(want) {
				err = io.ErrShortWrite
			}
			sent <- err
		}()
		got := make([]byte, c.size)
		_, err := io.ReadFull(client, got)
		require.NoError(t, err)
		require.NoError(t, <-sent)
		require.True(t, bytes.Equal(want, got), "%d bytes", c.size)
		if c.writes >= 0 {
			require.EqualValues(t, c.writes, counted.writes.Load(), "%d bytes", c.size)
		}
	}
	counted.fail.Store(true)
	_, err := link.Write(make([]byte, holdBytes))
	require.ErrorIs(t, err, errCounted)
}
