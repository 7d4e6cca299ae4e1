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

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/wire"
)

// mostGrowth is what a broker may keep more of after bad input was sent to it: the newest
// records of the bystander, 4 MiB at most, and eight connections of at most 512 KiB.
const mostGrowth = 8 << 20

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
	stop  context.CancelFunc
	done  sync.WaitGroup
	acked chan struct{} // one of its publishes was acknowledged, if somebody waits for that
	ended chan struct{}
	err   error
	n     int
}

func (p *process) bystander(stream string) *bystander {
	p.createStream(stream, 1)
	c := p.dial()
	ctx, stop := context.WithCancel(context.Background())
	b := &bystander{stop: stop, acked: make(chan struct{}), ended: make(chan struct{})}
	first := make(chan struct{})
	b.done.Go(func() {
		defer close(b.ended)
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
			select {
			case b.acked <- struct{}{}:
			default:
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

// goesOn waits until it was acknowledged so much more.
func (b *bystander) goesOn(t *testing.T) {
	t.Helper()
	for range 20 {
		select {
		case <-b.acked:
		case <-b.ended:
			require.NoError(t, b.err, "the bystander was disturbed after %d publishes", b.n)
		case <-time.After(patience):
			t.Fatal("the bystander does not publish any more")
		}
	}
}

// undisturbed sends bad input again and again, while the bystander goes on and the broker
// keeps nothing of it.
func (p *process) undisturbed(t *testing.T, b *bystander, times int, send func()) {
	t.Helper()
	before := p.keeps()
	for range times {
		send()
		b.goesOn(t)
	}
	require.Less(t, p.keeps()-before, int64(mostGrowth))
}

func (b *bystander) end(t *testing.T) {
	t.Helper()
	b.stop()
	b.done.Wait()
	require.NoError(t, b.err, "a bystander was disturbed after %d publishes", b.n)
}

// hostile is a client that writes what it likes.
type hostile struct {
	t      *testing.T
	conn   io.Writer
	finish func() error // says that no more is sent
	read   *wire.Reader
}

// hostileQUIC is one on a stream of a QUIC connection.
func (p *process) hostileQUIC(t *testing.T) *hostile {
	t.Helper()
	trust, err := auth.ClientTLS(p.context(t).CAFile, "localhost")
	require.NoError(t, err)
	conn, err := quic.DialAddr(soon(t), p.clients, trust, &quic.Config{MaxIdleTimeout: patience, KeepAlivePeriod: time.Second})
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := conn.CloseWithError(0, ""); err != nil {
			t.Log(err)
		}
	})
	s, err := conn.OpenStreamSync(soon(t))
	require.NoError(t, err)
	require.NoError(t, s.SetDeadline(time.Now().Add(patience)))
	return &hostile{t, s, s.Close, wire.NewReader(s, wire.DefaultMaxFrame)}
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
	return &hostile{t, conn, conn.CloseWrite, wire.NewReader(conn, wire.DefaultMaxFrame)}
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

// publish asks for an answer to one record.
func (h *hostile) publish(stream string, size int) {
	h.send(wire.AppendPublishBatch(nil, &wire.PublishBatchFrame{RequestID: 9, Acked: true, AckMode: wire.AckPerMessage, Tenant: "default", Namespace: "default", Stream: stream, Payloads: [][]byte{make([]byte, size)}}))
}

// taken wants the next message to say that a publish was stored.
func (h *hostile) taken() {
	h.t.Helper()
	m := h.next()
	e, ok := m.(*wire.PublishError)
	require.True(h.t, ok, "%#v", m)
	require.Zero(h.t, e.Failure, "the connection goes on")
}

// futureCursor stands for the answer to an offset that is not there yet, which has no code.
const futureCursor = ^wire.Code(0)

// Each kind of bad input gets its answer, disturbs nobody, and costs no memory.
func TestBadInput(t *testing.T) {
	p := newProcess(t, "periodic")
	b := p.bystander("quiet")
	t.Cleanup(func() { b.end(t) })
	p.createStream("large", 1)
	noise := make([]byte, 256<<10)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	limit := int64(8 << 20)
	for _, c := range []struct {
		name string
		send func(t *testing.T, h *hostile)
		code wire.Code // of the answer, or futureCursor; 0 with phrase "": none, the connection ends
		want string
		ends bool // the connection is over
	}{
		{"noise instead of a frame", func(_ *testing.T, h *hostile) { h.send(noise) }, 0, "magic", true},
		{"HTTP instead of a frame", func(_ *testing.T, h *hostile) { h.send([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")) }, 0, "magic", true},
		{"length 2^32-1 before login", func(_ *testing.T, h *hostile) { h.send(wire.AppendHeader(nil, 0, 1<<32-1)) }, 0, "65536", true},
		{"length 64 KiB + 1 before login", func(_ *testing.T, h *hostile) { h.send(append(wire.AppendHeader(nil, 0, 64<<10+1), noise...)) }, 0, "65536", true},
		{"a frame cut short", func(t *testing.T, h *hostile) {
			h.send(append(wire.AppendHeader(nil, 0, 1000), `{"type":`...))
			require.NoError(t, h.finish())
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
			h.publish("..", 1)
		}, wire.CodeNotFound, "..", false},
		{"a stream that nobody made", func(_ *testing.T, h *hostile) {
			h.authenticated(p)
			h.publish("nobody", 1)
		}, wire.CodeNotFound, "nobody", false},
		{"another tenant's stream", func(_ *testing.T, h *hostile) {
			h.authenticated(p)
			h.send(wire.AppendPublishBatch(nil, &wire.PublishBatchFrame{RequestID: 9, Acked: true, AckMode: wire.AckPerMessage, Tenant: "other", Namespace: "default", Stream: "quiet", Payloads: [][]byte{[]byte("x")}}))
		}, wire.CodeForbidden, "other", false},
		{"offset 2^64-1", func(_ *testing.T, h *hostile) {
			h.authenticated(p)
			h.message(&wire.StreamRead{Tenant: "default", Namespace: "default", Stream: "quiet", From: 1<<64 - 1, RequestID: 3})
		}, futureCursor, "", false},
		{"shard 2^32-1", func(_ *testing.T, h *hostile) {
			h.authenticated(p)
			h.message(&wire.StreamRead{Tenant: "default", Namespace: "default", Stream: "quiet", Shard: 1<<32 - 1, RequestID: 3})
		}, wire.CodeInvalidRequest, "shard", false},
	} {
		for transport, dial := range map[string]func(*testing.T) *hostile{"TLS": p.hostile, "QUIC": p.hostileQUIC} {
			t.Run(c.name+" over "+transport, func(t *testing.T) {
				p.undisturbed(t, b, 8, func() {
					h := dial(t)
					c.send(t, h)
					m := h.next()
					f := failureOf(m)
					switch {
					case c.code == futureCursor:
						cursor, ok := m.(*wire.SubscribeCursorError)
						require.True(t, ok, "answered %#v", m)
						require.True(t, cursor.InFuture, "%#v", cursor)
						require.Equal(t, uint64(1<<64-1), cursor.Requested)
					case f != nil:
						require.Equal(t, c.code, f.Code, "%v", f)
						require.Contains(t, strings.ToLower(f.Error()), c.want)
					default:
						require.Nil(t, m)
						require.Zero(t, c.code, "no answer")
						require.Empty(t, c.want, "no answer")
						require.True(t, c.ends, "no answer")
					}
					if !c.ends {
						h.publish("large", 10)
						h.taken()
					} else if m != nil {
						require.Nil(t, h.next(), "the connection goes on")
					}
				})
			})
		}
	}

	t.Run("noise on the TCP port", func(t *testing.T) {
		p.undisturbed(t, b, 8, func() {
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
		})
	})
	t.Run("noise on the UDP port", func(t *testing.T) {
		conn, err := net.Dial("udp", p.clients)
		require.NoError(t, err)
		defer conn.Close()
		i := 0
		p.undisturbed(t, b, 50, func() {
			for range 100 {
				size := 1 + i%1400
				_, err := conn.Write(noise[i : i+size])
				require.NoError(t, err)
				i++
			}
		})
	})
	t.Run("first packets on the UDP port", func(t *testing.T) {
		conn, err := net.Dial("udp", p.clients)
		require.NoError(t, err)
		defer conn.Close()
		// RFC 9000, 17.2.2: version 1, an id of its own, no token, 1,200 bytes that are none
		// of a handshake.
		packet := append([]byte{0xc3, 0, 0, 0, 1, 8}, noise[:1214]...)
		i := 0
		p.undisturbed(t, b, 50, func() {
			for range 100 {
				i++
				binary.BigEndian.PutUint64(packet[6:], uint64(i))
				copy(packet[14:], []byte{0, 0, 0x40 | 1200>>8, 0xb0})
				_, err := conn.Write(packet)
				require.NoError(t, err)
			}
		})
		// Clients still come in.
		p.hostileQUIC(t).authenticated(p)
	})
	t.Run("noise on the HTTP port", func(t *testing.T) {
		p.undisturbed(t, b, 8, func() {
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
		})
	})
	// One byte over the limit is refused by name with the limit, the exact limit is
	// taken, and the connection goes on.
	t.Run("record over the limit", func(t *testing.T) {
		for _, dial := range []func(*testing.T) *hostile{p.hostile, p.hostileQUIC} {
			h := dial(t)
			h.authenticated(p)
			// What one record of the most bytes takes is normal use.
			h.publish("large", int(limit))
			h.taken()
			p.undisturbed(t, b, 16, func() {
				h.publish("large", int(limit)+1)
				f := failureOf(h.next())
				require.NotNil(t, f)
				require.Equal(t, wire.CodeLimitExceeded, f.Code)
				require.Contains(t, f.Message, strconv.FormatInt(limit, 10))
				h.publish("large", 128)
				h.taken()
			})
			h.publish("large", int(limit))
			h.taken()
		}
	})
}
