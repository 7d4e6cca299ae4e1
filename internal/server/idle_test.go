package server

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

// mutable is a socket that sends nothing any more once it is mute, like that of a machine
// that was switched off.
type mutable struct {
	net.PacketConn
	mute atomic.Bool
}

func (m *mutable) WriteTo(p []byte, to net.Addr) (int, error) {
	if m.mute.Load() {
		return len(p), nil
	}
	return m.PacketConn.WriteTo(p, to)
}

// A client of which nothing more is heard is given up after limits.idle_timeout, although
// it has a subscription and is spoken to; and that is what frees its place.
func TestASilentConnectionIsGivenUp(t *testing.T) {
	const idle = time.Second
	w := newWorld(t, func(o *Options) { o.Limits.IdleTimeout, o.Limits.KeepAlive = idle, idle/10 })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	// subscribed is false when the machine was so busy that the connection was idle already.
	subscribed := func(conn *quic.Conn) bool {
		s, err := conn.OpenStreamSync(ctx)
		if err != nil {
			return false
		}
		messages := wire.AppendMessage(nil, &wire.Auth{Tenant: "t1", Token: w.token})
		messages = wire.AppendMessage(messages, &wire.Subscribe{Tenant: "t1", Namespace: "ns", Stream: "orders"})
		if _, err := s.Write(messages); err != nil {
			return false
		}
		// The hello comes behind the answer.
		events, err := conn.AcceptUniStream(ctx)
		if err != nil {
			return false
		}
		_, err = events.Read(make([]byte, 1))
		return err == nil
	}
	for {
		packets, err := net.ListenPacket("udp", "127.0.0.1:0")
		require.NoError(t, err)
		socket := &mutable{PacketConn: packets}
		transport := &quic.Transport{Conn: socket}
		t.Cleanup(func() {
			require.NoError(t, transport.Close())
			closeQuietly(packets)
		})
		to, err := net.ResolveUDPAddr("udp", w.addr)
		require.NoError(t, err)
		conn, err := transport.Dial(ctx, to, w.client, &quic.Config{MaxIdleTimeout: patience})
		if err == nil && subscribed(conn) {
			socket.mute.Store(true)
			break
		}
		require.NoError(t, ctx.Err())
	}
	// Far above idle, and below what QUIC takes by itself.
	given, end := context.WithTimeout(ctx, 20*idle)
	defer end()
	w.eventually("given up, or time to", func() bool { return w.server.Connections() == 0 || given.Err() != nil })
	require.Zero(t, w.server.Connections(), "a connection that is silent stays")
}
