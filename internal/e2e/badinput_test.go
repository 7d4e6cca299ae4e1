package e2e

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/wire"
)

// mostGrowth is how much a broker may grow while bad input is sent to it.
const mostGrowth = 16 << 20

// residentBytes is what the broker has in memory.
func (p *process) residentBytes() int64 { return p.statusBytes("VmRSS") }

// statusBytes is a size of the broker's process, as the kernel names it.
func (p *process) statusBytes(name string) int64 {
	p.t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	require.NoError(p.t, err)
	for line := range strings.Lines(string(raw)) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			require.NoError(p.t, err)
			return kib << 10
		}
	}
	p.t.Fatal("no ", name)
	return 0
}

// bystander publishes all the while, and its publishes stay dense.
type bystander struct {
	stop context.CancelFunc
	done sync.WaitGroup
	err  error
	n    int
}

func (p *process) bystander(stream string) *bystander {
	p.createStream(stream, 1)
	c := p.dial()
	ctx, stop := context.WithCancel(context.Background())
	b := &bystander{stop: stop}
	first := make(chan struct{})
	b.done.Go(func() {
		for ctx.Err() == nil {
			ack, err := c.Publish(context.Background(), stream, numbered(b.n), client.Deliver(client.AtMostOnce))
			if err == nil && ack.Offset != uint64(b.n) {
				err = fmt.Errorf("publish %d got offset %d", b.n, ack.Offset)
			}
			if err != nil {
				b.err = err
				return
			}
			if b.n++; b.n == 1000 {
				close(first)
			}
		}
	})
	select {
	case <-first:
	case <-time.After(patience):
		p.t.Fatal("the bystander does not publish")
	}
	return b
}

func (b *bystander) end(t *testing.T) {
	t.Helper()
	b.stop()
	b.done.Wait()
	require.NoError(t, b.err, "a bystander was disturbed after %d publishes", b.n)
}

// hostile is a client that writes what it likes.
type hostile struct {
	t    *testing.T
	conn net.Conn
	read *wire.Reader
}

func (p *process) hostile(t *testing.T) *hostile {
	t.Helper()
	trust, err := auth.ClientTLS(p.context(t).CAFile, "localhost")
	require.NoError(t, err)
	conn, err := tls.Dial("tcp", p.clients, trust)
	require.NoError(t, err)
	t.Cleanup(func() {
		// The broker may have ended it already.
		if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Log(err)
		}
	})
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return &hostile{t, conn, wire.NewReader(conn, wire.DefaultMaxFrame)}
}

// send ignores that the broker may have closed the connection by now.
func (h *hostile) send(raw []byte) {
	if _, err := h.conn.Write(raw); err != nil {
		h.t.Log(err)
	}
}

func (h *hostile) message(m wire.Message) { h.send(wire.AppendMessage(nil, m)) }

func (h *hostile) auth(token string) {
	h.message(&wire.Auth{Tenant: "default", Token: token, HasClientFlags: true, ClientFlags: wire.FlagsKnown, Features: wire.FeatureErrorCodes | wire.FeatureUnsupported})
}

func (h *hostile) authenticated(p *process) {
	h.t.Helper()
	h.auth(p.token(h.t, auth.AudienceBroker))
	require.IsType(h.t, &wire.AuthOK{}, h.next())
}

// next is the broker's next message, nil at the end of the connection.
func (h *hostile) next() wire.Message {
	h.t.Helper()
	f, err := h.read.Next()
	if err != nil {
		var n net.Error
		require.False(h.t, errors.As(err, &n) && n.Timeout(), "the broker neither answers nor ends the connection")
		return nil
	}
	if f.Flags.Layout() != wire.LayoutMessage {
		var ack wire.PublishAck
		require.NoError(h.t, ack.Decode(f.Flags, f.Payload))
		return &wire.PublishError{RequestID: ack.RequestID, Failure: ack.Failure}
	}
	m, err := wire.DecodeMessage(append([]byte(nil), f.Payload...))
	require.NoError(h.t, err)
	return m
}

func failureOf(m wire.Message) *wire.Failure {
	switch m := m.(type) {
	case *wire.Error:
		return &m.Failure
	case *wire.PublishError:
		return &m.Failure
	}
	return nil
}

// Each kind of bad input gets its answer, disturbs nobody, and costs no memory.
func TestBadInput(t *testing.T) {
	p := newProcess(t, "periodic")
	b := p.bystander("quiet")
	t.Cleanup(func() { b.end(t) })
	noise := make([]byte, 256<<10)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	limit := int64(8 << 20)
	publish := func(h *hostile, stream string, size int) {
		h.send(wire.AppendPublishBatch(nil, &wire.PublishBatchFrame{RequestID: 9, Acked: true, AckMode: wire.AckPerMessage, Tenant: "default", Namespace: "default", Stream: stream, Payloads: [][]byte{make([]byte, size)}}))
	}
	for _, c := range []struct {
		name string
		send func(t *testing.T, h *hostile)
		code wire.Code // of the answer; 0 with phrase "": none, the connection ends
		want string
		ends bool // the connection is over
	}{
		{"noise instead of a frame", func(_ *testing.T, h *hostile) { h.send(noise) }, 0, "magic", true},
		{"HTTP instead of a frame", func(_ *testing.T, h *hostile) { h.send([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")) }, 0, "magic", true},
		{"length 2^32-1 before login", func(_ *testing.T, h *hostile) { h.send(wire.AppendHeader(nil, 0, 1<<32-1)) }, 0, "65536", true},
		{"length 64 KiB + 1 before login", func(_ *testing.T, h *hostile) { h.send(append(wire.AppendHeader(nil, 0, 64<<10+1), noise...)) }, 0, "65536", true},
		{"a frame cut short", func(t *testing.T, h *hostile) {
			h.send(append(wire.AppendHeader(nil, 0, 1000), `{"type":`...))
			require.NoError(t, h.conn.(*tls.Conn).CloseWrite())
		}, 0, "", true},
		{"not JSON", func(_ *testing.T, h *hostile) { h.send(append(wire.AppendHeader(nil, 0, 5), "hello"...)) }, 0, "", true},
		{"wrong token", func(_ *testing.T, h *hostile) { h.auth("x.y.z") }, wire.CodeUnauthenticated, "token", true},
		{"a token of 60 KiB", func(_ *testing.T, h *hostile) { h.auth(strings.Repeat("x", 60<<10)) }, wire.CodeUnauthenticated, "token", true},
		{"length 2^32-1 after login", func(_ *testing.T, h *hostile) {
			h.authenticated(p)
			h.send(wire.AppendHeader(nil, 0, 1<<32-1))
		}, wire.CodeLimitExceeded, "16777216", true},
		{"unknown frame flag", func(_ *testing.T, h *hostile) {
			h.authenticated(p)
			h.send(append(wire.AppendHeader(nil, 0x8000, 1), 'x'))
		}, wire.CodeInvalidRequest, "", true},
		{"counts that lie in a binary publish", func(_ *testing.T, h *hostile) {
			h.authenticated(p)
			raw := wire.AppendPublishBatch(nil, &wire.PublishBatchFrame{RequestID: 9, Acked: true, AckMode: wire.AckPerMessage, Tenant: "default", Namespace: "default", Stream: "quiet", Payloads: [][]byte{[]byte("abcd")}})
			// The count of payloads stands before the only payload and its length.
			binary.BigEndian.PutUint32(raw[len(raw)-12:], 1<<32-1)
			h.send(raw)
		}, wire.CodeInvalidRequest, "", false},
		{"second auth", func(_ *testing.T, h *hostile) {
			h.authenticated(p)
			h.auth("x")
		}, wire.CodeInvalidRequest, "", true},
		{"a stream called ..", func(_ *testing.T, h *hostile) {
			h.authenticated(p)
			publish(h, "..", 1)
		}, wire.CodeNotFound, "..", false},
		{"a stream that nobody made", func(_ *testing.T, h *hostile) {
			h.authenticated(p)
			publish(h, "nobody", 1)
		}, wire.CodeNotFound, "nobody", false},
		{"another tenant's stream", func(_ *testing.T, h *hostile) {
			h.authenticated(p)
			h.send(wire.AppendPublishBatch(nil, &wire.PublishBatchFrame{RequestID: 9, Acked: true, AckMode: wire.AckPerMessage, Tenant: "other", Namespace: "default", Stream: "quiet", Payloads: [][]byte{[]byte("x")}}))
		}, wire.CodeForbidden, "other", false},
		{"offset 2^64-1", func(_ *testing.T, h *hostile) {
			h.authenticated(p)
			h.message(&wire.StreamRead{Tenant: "default", Namespace: "default", Stream: "quiet", From: 1<<64 - 1, RequestID: 3})
		}, 0, "", false},
		{"shard 2^32-1", func(_ *testing.T, h *hostile) {
			h.authenticated(p)
			h.message(&wire.StreamRead{Tenant: "default", Namespace: "default", Stream: "quiet", Shard: 1<<32 - 1, RequestID: 3})
		}, wire.CodeInvalidRequest, "shard", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := p.residentBytes()
			for range 8 {
				h := p.hostile(t)
				c.send(t, h)
				m := h.next()
				if f := failureOf(m); f != nil {
					require.Equal(t, c.code, f.Code, "%v", f)
					require.Contains(t, strings.ToLower(f.Error()), c.want)
				} else {
					require.Zero(t, c.code, "answered %#v", m)
					require.Empty(t, c.want, "answered %#v", m)
				}
				if c.ends && m != nil {
					require.Nil(t, h.next(), "the connection goes on")
				}
			}
			require.Less(t, p.residentBytes()-before, int64(mostGrowth))
		})
	}

	t.Run("noise on the TCP port", func(t *testing.T) {
		before := p.residentBytes()
		for range 8 {
			conn, err := net.Dial("tcp", p.clients)
			require.NoError(t, err)
			require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
			// The broker hangs up in the middle of it.
			if _, err := conn.Write(noise); err != nil {
				t.Log(err)
			}
			if _, err := io.Copy(io.Discard, conn); err != nil {
				t.Log(err)
			}
			require.NoError(t, conn.Close())
		}
		require.Less(t, p.residentBytes()-before, int64(mostGrowth))
	})
	t.Run("noise on the UDP port", func(t *testing.T) {
		before := p.residentBytes()
		conn, err := net.Dial("udp", p.clients)
		require.NoError(t, err)
		defer conn.Close()
		for i := range 5000 {
			size := 1 + i%1400
			_, err := conn.Write(noise[i : i+size])
			require.NoError(t, err)
		}
		require.Less(t, p.residentBytes()-before, int64(mostGrowth))
	})
	t.Run("noise on the HTTP port", func(t *testing.T) {
		before := p.residentBytes()
		for range 8 {
			conn, err := net.Dial("tcp", p.HTTP)
			require.NoError(t, err)
			require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
			if _, err := conn.Write(append([]byte("x\r\n\r\n"), noise...)); err != nil {
				t.Log(err)
			}
			raw, err := io.ReadAll(conn)
			if err != nil {
				t.Log(err)
			}
			if len(raw) > 0 {
				require.Contains(t, string(raw), "400 Bad Request")
			}
			require.NoError(t, conn.Close())
		}
		require.Less(t, p.residentBytes()-before, int64(mostGrowth))
	})
	// One byte over the limit is refused by name with the limit, the exact limit is
	// taken, and the connection goes on.
	t.Run("record over the limit", func(t *testing.T) {
		p.createStream("large", 1)
		h := p.hostile(t)
		h.authenticated(p)
		publish(h, "large", int(limit)+1)
		f := failureOf(h.next())
		require.NotNil(t, f)
		require.Equal(t, wire.CodeLimitExceeded, f.Code)
		require.Contains(t, f.Message, strconv.FormatInt(limit, 10))
		for _, size := range []int{128, int(limit)} {
			publish(h, "large", size)
			m := h.next()
			e, ok := m.(*wire.PublishError)
			require.True(t, ok, "%#v", m)
			require.Zero(t, e.Failure.Code, "%v", e.Failure)
		}
	})
}
