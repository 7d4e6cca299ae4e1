package client

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

// sealed keeps what a TLS client writes, which is what arrives at a peer.
type sealed struct {
	net.Conn
	kept bytes.Buffer
	keep bool
}

func (s *sealed) Write(p []byte) (int, error) {
	if s.keep {
		return s.kept.Write(p)
	}
	return s.Conn.Write(p)
}

// pieces is a socket that gives what has arrived in pieces, as step says.
type pieces struct {
	net.Conn
	rest  []byte
	step  func() int
	reads int
	// interrupt: a deadline ends every other read. interrupted: it was the last one.
	interrupt, interrupted bool
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.rest == nil {
		return p.Conn.Read(b)
	}
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	if p.interrupted = p.interrupt && !p.interrupted; p.interrupted {
		return 0, os.ErrDeadlineExceeded
	}
	p.reads++
	n := copy(b, p.rest[:min(len(p.rest), p.step())])
	p.rest = p.rest[n:]
	return n, nil
}

// tlsPair is two ends of a TLS connection, shaken hands: one that keeps what it seals,
// and one that reads together over pieces.
func tlsPair(t *testing.T) (*tls.Conn, *sealed, *pieces, together) {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { ignore(near.Close()); ignore(far.Close()) })
	out, in := &sealed{Conn: near}, &pieces{Conn: far}
	below := newSocket(in)
	server := tls.Server(out, &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}, SessionTicketsDisabled: true})
	reader := tls.Client(below, &tls.Config{InsecureSkipVerify: true})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := server.Handshake(); err != nil {
			t.Error(err)
		}
	})
	require.NoError(t, reader.Handshake())
	wg.Wait()
	out.keep = true
	return server, out, in, together{reader, below}
}

// Whatever the sizes of TLS records, of what arrives at once and of reads: the bytes are
// the same.
func TestArrivalsOfAnySize(t *testing.T) {
	writer, out, in, reader := tlsPair(t)
	r := rand.New(rand.NewPCG(1, 2))
	want := make([]byte, 700<<10)
	for i := range want {
		want[i] = byte(r.Uint32())
	}
	for at := 0; at < len(want); {
		end := min(len(want), at+1+r.IntN(1<<r.IntN(17)))
		_, err := writer.Write(want[at:end])
		require.NoError(t, err)
		at = end
	}
	in.rest = out.kept.Bytes()
	in.step = func() int { return 1 + r.IntN(1<<r.IntN(18)) }
	var got []byte
	for {
		p := make([]byte, 1+r.IntN(1<<r.IntN(17)))
		n, err := reader.Read(p)
		got = append(got, p[:n]...)
		if err != nil {
			require.ErrorIs(t, err, io.EOF)
			break
		}
	}
	require.True(t, bytes.Equal(want, got))
}

// A read that a deadline ends, wherever it is in a TLS record, loses nothing.
func TestInterruptedArrivalsGoOn(t *testing.T) {
	writer, out, in, reader := tlsPair(t)
	want := bytes.Repeat([]byte("0123456789abcdef"), 64)
	for at := 0; at < len(want); at += 128 {
		_, err := writer.Write(want[at : at+128])
		require.NoError(t, err)
	}
	in.rest, in.interrupt = out.kept.Bytes(), true
	in.step = func() int { return 1 }
	var got []byte
	for interruptions := 0; ; {
		p := make([]byte, 100)
		n, err := reader.Read(p)
		got = append(got, p[:n]...)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			interruptions++
		case err != nil:
			require.ErrorIs(t, err, io.EOF)
			require.True(t, bytes.Equal(want, got))
			require.Greater(t, interruptions, len(want))
			return
		}
	}
}

// TLS records that arrived together are one read of the socket and one of the connection.
func TestGuardArrivalsAreOneRead(t *testing.T) {
	writer, out, in, reader := tlsPair(t)
	want := bytes.Repeat([]byte("0123456789abcdef"), 3<<10)
	for at := 0; at < len(want); at += 512 {
		_, err := writer.Write(want[at : at+512])
		require.NoError(t, err)
	}
	in.rest = out.kept.Bytes()
	in.step = func() int { return len(in.rest) }
	got := make([]byte, 4<<10-64)
	n, err := reader.Read(got) // the first fills the small buffer, and makes it a large one
	require.NoError(t, err)
	in.reads = 0
	rest := make([]byte, len(want))
	m, err := reader.Read(rest)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, append(got[:n:n], rest[:m]...)), "%d and %d of %d bytes", n, m, len(want))
	require.Equal(t, 1, in.reads)
}

// wholeReader has everything at once.
type wholeReader struct{ b []byte }

func (r *wholeReader) Read(p []byte) (int, error) {
	if len(r.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.b)
	r.b = r.b[n:]
	return n, nil
}

// eventFrames are frames of 64 records each, which follow one another from offset 0 on.
func eventFrames(frames, size int) []byte {
	var out []byte
	for i := range frames {
		e := wire.EventBatch{EventBatchHeader: wire.EventBatchHeader{
			Shape: wire.FlagBinaryEventBatchShared | wire.FlagEventBatchOffsets, BaseOffset: uint64(64 * i),
		}}
		for j := range 64 {
			payload := make([]byte, size)
			copy(payload, numbered(64*i+j))
			e.Payloads = append(e.Payloads, payload)
		}
		out = wire.AppendEventBatch(out, &e)
	}
	return out
}

// Frames that came together are handed on together: one wake-up for all of them.
func TestGuardFramesAreHandedOnTogether(t *testing.T) {
	const n, size = 1000, 128
	all := eventFrames(n, size)
	s := &Subscription{items: make(chan *delivery, n)}
	f := &feed{s: s, session: &session{reader: wire.NewReader(&wholeReader{all}, 1<<20)}}
	require.ErrorIs(t, f.frames(t.Context()), ErrConnectionLost)
	require.NoError(t, f.flush(t.Context()))
	require.LessOrEqual(t, len(s.items), len(all)/(48<<10)+10)
	for at := 0; at < 64*n; {
		records, err := s.NextBatch(t.Context())
		require.NoError(t, err)
		for _, r := range records {
			require.EqualValues(t, at, r.Offset)
			require.Equal(t, string(numbered(at)), string(bytes.TrimRight(r.Payload, "\x00")))
			at++
		}
	}
}

// allocatedBytes is what this process has ever allocated.
func allocatedBytes() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// What is read in batches uses the memory of earlier ones again.
func TestGuardBatchesAllocateNothing(t *testing.T) {
	const n, size = 2000, 128
	all := eventFrames(n, size)
	s := &Subscription{items: make(chan *delivery, 1)}
	var lost atomic.Int64
	measure := func() float64 {
		f := &feed{s: s, session: &session{reader: wire.NewReader(&wholeReader{all}, 1<<20)}}
		var wg sync.WaitGroup
		wg.Go(func() {
			ignore(f.frames(t.Context()))
			ignore(f.flush(t.Context()))
		})
		began := allocatedBytes()
		for have := 0; have < 64*n; {
			records, err := s.NextBatch(t.Context())
			if err != nil {
				lost.Add(1)
				break
			}
			have += len(records)
		}
		took := allocatedBytes() - began
		wg.Wait()
		return float64(took) / (64 * n)
	}
	least := measure()
	for range 4 {
		least = min(least, measure())
	}
	require.Zero(t, lost.Load())
	require.Less(t, least, float64(pooledBytes), "bytes allocated for a record of %d", size)
}
