package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

// The negotiation: what is answered to what, and that nothing else is ever sent.
func TestNegotiation(t *testing.T) {
	const (
		flags    = wire.Flags(0x7FFF)
		features = wire.FeatureStreamShards | wire.FeatureShardOwners | wire.FeatureIdempotentProducer | wire.FeatureSequenceReused |
			wire.FeatureErrorCodes | wire.FeatureUnsupported | wire.FeaturePublishPipeline | wire.FeatureStreamPublishWindow |
			wire.FeatureSubscriptionLagged | wire.FeatureSubscribeQueue | wire.FeatureStreamRead | wire.FeatureRecordTimestamps |
			wire.FeaturePublishConditional |
			wire.FeatureConsumerGroup | wire.FeatureGroupDeadLetters | wire.FeatureGroupAdmin | wire.FeatureGroupClaimControl |
			wire.FeatureGroupConsumer | wire.FeatureGroupPublisher |
			wire.FeatureCacheDelete | wire.FeatureCacheWatch | wire.FeatureCacheWatchRetained | wire.FeatureCounters |
			wire.FeatureCacheShards | wire.FeatureCacheConditional
	)
	extensions := []string{
		"cache.list", "counter.add_once", "group.ack", "group.configure", "group.dead_letters", "group.describe", "group.list",
	}
	w := newWorld(t)
	transports(t, func(t *testing.T, transport string) {
		h := w.dial(transport)
		for _, tc := range []struct {
			name string
			auth wire.Auth
			want wire.Message
		}{
			{"no flags", wire.Auth{}, &wire.OK{}},
			{"no flags, features are not looked at", wire.Auth{Features: everything}, &wire.OK{}},
			{"flags alone", wire.Auth{HasClientFlags: true, ClientFlags: 0x1FFF}, &wire.AuthOK{ServerFlags: flags, Features: features}},
			{"no flag set", wire.Auth{HasClientFlags: true}, &wire.AuthOK{ServerFlags: flags, Features: features}},
			{"pipelining", wire.Auth{HasClientFlags: true, Features: wire.FeaturePublishPipeline},
				&wire.AuthOK{ServerFlags: flags, Features: features, PublishWindow: 256, HasPublishWindow: true}},
			{"the second word", wire.Auth{HasClientFlags: true, Features: wire.FeatureExtended | wire.FeatureInspect},
				&wire.AuthOK{ServerFlags: flags, Features: features | wire.FeatureExtended | wire.FeatureExplicitShard}},
			{"extensions asked", wire.Auth{HasClientFlags: true, Extensions: true}, &wire.AuthOK{ServerFlags: flags, Features: features, Extensions: extensions}},
			{"all bits", wire.Auth{HasClientFlags: true, ClientFlags: 0xFFFF, Features: 0xFFFF_FFFF_FFFF_FFFF &^ wire.FeaturePublishPipeline},
				&wire.AuthOK{ServerFlags: flags, Features: features | wire.FeatureExtended | wire.FeatureExplicitShard}},
		} {
			t.Run(tc.name, func(t *testing.T) {
				p := h.open()
				tc.auth.Tenant, tc.auth.Token = "t1", w.token
				p.send(&tc.auth)
				require.Equal(t, tc.want, p.recv())
				p.finish()
				require.ErrorIs(t, p.gone(), io.EOF)
			})
		}
	})
}

func TestStorageNoneAdvertisesLess(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Durable = false })
	p := w.dial(transportTCP).login()
	require.Equal(t, wire.Flags(0x1FFF), p.granted.ServerFlags)
	for _, f := range []wire.Features{wire.FeatureStreamRead, wire.FeatureRecordTimestamps, wire.FeaturePublishConditional, wire.FeatureSubscriptionLagged} {
		require.False(t, p.granted.Features.Has(f), "%v", f)
	}
	p.send(&wire.StreamRead{Tenant: "t1", Namespace: "ns", Stream: "memory", RequestID: 3})
	require.Equal(t, &wire.Unsupported{RequestType: "stream_read", RequestID: 3, HasRequestID: true}, p.recv())
}

// What is refused before a stream is authenticated, and how.
func TestRefusedBeforeAuth(t *testing.T) {
	w := newWorld(t)
	auth := func(change func(*wire.Auth)) []byte {
		a := &wire.Auth{Tenant: "t1", Token: w.token, HasClientFlags: true, ClientFlags: 0x1FFF, Features: wire.FeatureErrorCodes}
		change(a)
		return wire.AppendMessage(nil, a)
	}
	transports(t, func(t *testing.T, transport string) {
		for _, tc := range []struct {
			name  string
			frame []byte
			code  wire.Code // 0: an error without one
			why   Refusal
		}{
			{"no auth", wire.AppendMessage(nil, &wire.StreamShards{Tenant: "t1", Namespace: "ns", Stream: "orders"}), 0, RefusedRequest},
			{"a publish", wire.AppendPublishBatch(nil, orders("x")), 0, RefusedRequest},
			{"an unknown message", append(wire.AppendHeader(nil, 0, 15), `{"type":"hello"`[:15]...), 0, RefusedRequest},
			{"not JSON", append(wire.AppendHeader(nil, 0, 5), "hello"...), 0, RefusedRequest},
			{"wrong token", auth(func(a *wire.Auth) { a.Token = "x" }), wire.CodeUnauthenticated, RefusedToken},
			{"no token", auth(func(a *wire.Auth) { a.Token = "" }), wire.CodeUnauthenticated, RefusedToken},
			{"token of another tenant", auth(func(a *wire.Auth) { a.Tenant = "t2" }), wire.CodeUnauthenticated, RefusedToken},
			{"unknown tenant", auth(func(a *wire.Auth) { a.Tenant = "t9" }), wire.CodeUnauthenticated, RefusedToken},
			{"tenant that is no name", auth(func(a *wire.Auth) { a.Tenant = "../x" }), wire.CodeUnauthenticated, RefusedToken},
			{"wrong token, no codes offered", auth(func(a *wire.Auth) { a.Token, a.Features = "x", 0 }), 0, RefusedToken},
			{"unknown flag", wire.AppendHeader(nil, 0x8000, 1), 0, RefusedRequest},
			{"wrong magic", []byte("GET / HTTP/1.1\r\n"), 0, RefusedFrame},
			{"wrong version", []byte{'F', 'L', 'X', '1', 0, 2, 0, 0, 0, 0, 0, 1, '{'}, 0, RefusedFrame},
			{"length 0", wire.AppendHeader(nil, 0, 0), 0, RefusedFrame},
			{"length 64 KiB + 1", wire.AppendHeader(nil, 0, 64<<10+1), 0, RefusedPreAuthFrame},
			{"length 2^31-1", wire.AppendHeader(nil, 0, 1<<31-1), 0, RefusedPreAuthFrame},
			{"length 2^32-1", wire.AppendHeader(nil, 0, 1<<32-1), 0, RefusedPreAuthFrame},
		} {
			t.Run(tc.name, func(t *testing.T) {
				before := w.refusals(tc.why)
				p := w.dial(transport).open()
				if tc.name == "unknown flag" {
					tc.frame = append(tc.frame, 'x')
				}
				p.sendRaw(tc.frame)
				e, ok := p.recv().(*wire.Error)
				require.True(t, ok)
				require.Equal(t, tc.code, e.Failure.Code, "%v", e.Failure.Error())
				require.NotEmpty(t, e.Failure.Message)
				require.ErrorIs(t, p.gone(), io.EOF)
				w.eventually("counted", func() bool { return w.refused[tc.why] == before+1 })
			})
		}
	})
}

// A huge length costs nothing, whoever says it, and others are not bothered.
func TestHugeLengthsCostNoMemory(t *testing.T) {
	w := newWorld(t)
	other := w.dial(transportTCP).login()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range 50 {
		for _, n := range []uint32{0, 64<<10 + 1, 1<<31 - 1, 1<<32 - 1} {
			p := w.dial(transportTCP).open()
			p.sendRaw(wire.AppendHeader(nil, 0, n))
			require.IsType(t, &wire.Error{}, p.recv())
			p.abandon()
		}
	}
	// The largest frames that are allowed, announced by many, of which nothing comes.
	var silent []*peer
	for range 50 {
		p := w.dial(transportTCP).open()
		p.sendRaw(wire.AppendHeader(nil, 0, 64<<10))
		p = w.dial(transportTCP).login()
		p.sendRaw(wire.AppendHeader(nil, 0, 16<<20))
		silent = append(silent, p)
	}
	other.publish(acked(1, batch("memory", "x")))
	require.False(t, other.ack().Failed)
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(silent)
	require.Less(t, int64(after.HeapInuse)-int64(before.HeapInuse), int64(32<<20))
}

func TestSecondChanceAfterARefusedToken(t *testing.T) {
	w := newWorld(t)
	h := w.dial(transportQUIC)
	p := h.open()
	p.send(&wire.Auth{Tenant: "t1", Token: "x"})
	require.IsType(t, &wire.Error{}, p.recv())
	require.ErrorIs(t, p.gone(), io.EOF)
	h.login() // on the same connection
}

// A client that does not authenticate is ended for it. Its handshake has no longer than that
// either: where it takes more, as on a busy machine, the next client is given more.
func TestAuthTimeout(t *testing.T) {
	transports(t, func(t *testing.T, transport string) {
		timeout := 50 * time.Millisecond
		for !endsUnauthenticated(t, transport, timeout) {
			timeout *= 4
			require.Less(t, timeout, patience, "an unauthenticated connection stays")
		}
	})
}

// endsUnauthenticated connects a client that says nothing, expects it to be ended for that,
// and is false if its handshake did not come to its end before.
func endsUnauthenticated(t *testing.T, transport string, timeout time.Duration) bool {
	w := newWorld(t, withLimits(Limits{AuthTimeout: timeout}))
	defer w.stop()
	if transport == transportTCP {
		conn, err := tls.Dial("tcp", w.addr, w.client)
		if err != nil {
			return false
		}
		defer closeQuietly(conn)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
		_, err = conn.Read(make([]byte, 1))
		require.Error(t, err)
		require.False(t, os.IsTimeout(err), "an unauthenticated connection stays")
		if w.refusals(RefusedAuthTimeout) == 0 && w.refusals(RefusedHandshake) > 0 {
			return false // the client's side of it was over, the server's not
		}
	} else {
		// It hears nothing of a handshake that was over for it and not for the server, and
		// ends by itself.
		idle := 2*timeout + 2*time.Second
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		conn, err := quic.DialAddr(ctx, w.addr, w.client, &quic.Config{MaxIdleTimeout: idle, HandshakeIdleTimeout: idle, KeepAlivePeriod: idle / 4})
		if err == nil {
			defer closeQUIC(conn, 0, "")
			select {
			case <-conn.Context().Done():
			case <-time.After(patience):
				t.Fatal("an unauthenticated connection stays")
			}
			err = context.Cause(conn.Context())
		}
		app, ok := errors.AsType[*quic.ApplicationError](err)
		if !ok {
			return false
		}
		require.EqualValues(t, closeAuthTimeout, app.ErrorCode)
		require.Equal(t, "authentication timeout", app.ErrorMessage)
	}
	w.eventually("counted", func() bool { return w.refused[RefusedAuthTimeout] == 1 })
	return true
}

// A unidirectional stream with nothing but an auth keeps the connection.
func TestUniAuthCounts(t *testing.T) {
	w := newWorld(t)
	h := w.dial(transportQUIC)
	s, err := h.quic.OpenUniStream()
	require.NoError(t, err)
	_, err = s.Write(wire.AppendMessage(nil, &wire.Auth{Tenant: "t1", Token: w.token}))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	w.eventually("authenticated", func() bool {
		w.server.mu.Lock()
		defer w.server.mu.Unlock()
		for c := range w.server.mu.connections {
			select {
			case <-c.authenticated:
				return !c.authTimer.Stop() // it has been stopped already
			default:
			}
		}
		return false
	})
	h.login()
}

func TestStreamsBeforeAuthAreFew(t *testing.T) {
	w := newWorld(t)
	h := w.dial(transportQUIC)
	var idle []*peer
	for range 40 {
		p := h.open()
		p.sendRaw([]byte{'F'})
		idle = append(idle, p)
	}
	w.eventually("counted", func() bool { return w.refused[RefusedPreAuthStreams] == 1 })
	rest := wire.AppendMessage(nil, &wire.Auth{Tenant: "t1", Token: w.token})[1:]
	// One of those that are read logs in, and with it all are read.
	idle[0].sendRaw(rest)
	require.IsType(t, &wire.OK{}, idle[0].recv())
	for _, p := range idle[1:] {
		p.sendRaw(rest)
		require.IsType(t, &wire.OK{}, p.recv())
	}
}

func TestConnectionsAreCapped(t *testing.T) {
	w := newWorld(t, withLimits(Limits{Connections: 2}))
	first := w.dial(transportQUIC)
	first.login()
	second := w.dial(transportTCP).login()

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := quic.DialAddr(ctx, w.addr, w.client, nil)
	refused, ok := errors.AsType[*quic.TransportError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, quic.ConnectionRefused, refused.ErrorCode)
	w.eventually("counted", func() bool { return w.refused[RefusedConnections] >= 1 })

	// A place that is given up is free again.
	second.abandon()
	w.eventually("free again", func() bool { return w.server.connected.Load() == 1 })
	w.dial(transportTCP).login()
}

func TestStreamsOfOneConnection(t *testing.T) {
	w := newWorld(t)
	h := w.dial(transportQUIC)
	for i := range 1000 {
		p := h.login()
		if i%100 == 0 {
			p.publish(acked(uint64(i), batch("memory", "x")))
			require.Equal(t, uint64(i), p.ack().RequestID)
		}
	}
}

// Two tenants on one connection are kept apart.
func TestTenantsOfOneConnection(t *testing.T) {
	w := newWorld(t)
	h := w.dial(transportQUIC)
	h.login()
	p := h.open()
	p.send(&wire.Auth{Tenant: "t2", Token: w.mint("t2", "tenant.manage:tenant:t2"), HasClientFlags: true, ClientFlags: 0x1FFF, Features: everything})
	require.IsType(t, &wire.AuthOK{}, p.recv())
	for id, m := range []wire.Message{
		&wire.StreamShards{Tenant: "t1", Namespace: "ns", Stream: "orders"},
		&wire.ShardOwners{Tenant: "t1", Namespace: "ns", Name: "orders"},
		&wire.Subscribe{Tenant: "t1", Namespace: "ns", Stream: "orders"},
		&wire.StreamRead{Tenant: "t1", Namespace: "ns", Stream: "orders"},
		&wire.OffsetForTime{Tenant: "t1", Namespace: "ns", Stream: "orders"},
	} {
		p.send(m)
		e, ok := p.recv().(*wire.Error)
		require.True(t, ok, "%d", id)
		require.Equal(t, wire.CodeForbidden, e.Failure.Code)
		require.Equal(t, wire.RetryFatal, e.Failure.Retry)
	}
	p.publish(acked(9, orders("x")))
	a := p.ack()
	require.True(t, a.Failed)
	require.Equal(t, wire.CodeForbidden, a.Failure.Code)
	require.Contains(t, a.Failure.Message, "stream.publish:stream:t1/ns/orders")
}

func TestPermissionsOfRequests(t *testing.T) {
	w := newWorld(t)
	h := w.dial(transportQUIC)
	login := func(perms ...string) *peer {
		p := h.open()
		p.send(&wire.Auth{Tenant: "t1", Token: w.mint("t1", perms...), HasClientFlags: true, ClientFlags: 0x7FFF, Features: everything})
		require.IsType(t, &wire.AuthOK{}, p.recv())
		return p
	}
	code := func(m wire.Message) wire.Code {
		switch m := m.(type) {
		case *wire.Error:
			return m.Failure.Code
		case *wire.PublishError:
			return m.Failure.Code
		}
		return 0
	}
	publisher := login("stream.publish:stream:t1/ns/memory")
	reader := login("stream.subscribe:stream:t1/ns/memory")
	publish := &wire.Publish{Tenant: "t1", Namespace: "ns", Stream: "memory", RequestID: 1, HasRequestID: true, Ack: wire.AckPerMessage}
	for _, tc := range []struct {
		p    *peer
		m    wire.Message
		want wire.Code
	}{
		{publisher, publish, 0},
		{reader, publish, wire.CodeForbidden},
		{publisher, &wire.Subscribe{Tenant: "t1", Namespace: "ns", Stream: "memory"}, wire.CodeForbidden},
		{publisher, &wire.StreamRead{Tenant: "t1", Namespace: "ns", Stream: "memory"}, wire.CodeForbidden},
		{publisher, &wire.OffsetForTime{Tenant: "t1", Namespace: "ns", Stream: "memory"}, wire.CodeForbidden},
		{reader, &wire.PublishIdempotent{Tenant: "t1", Namespace: "ns", Stream: "memory", Payloads: [][]byte{{1}}}, wire.CodeForbidden},
		{reader, &wire.PublishIf{Tenant: "t1", Namespace: "ns", Stream: "memory", Payloads: [][]byte{{1}}}, wire.CodeForbidden},
		{reader, &wire.StreamRead{Tenant: "t1", Namespace: "ns", Stream: "memory"}, wire.CodeInvalidRequest}, // in memory
		{reader, &wire.StreamShards{Tenant: "t1", Namespace: "ns", Stream: "memory"}, 0},
		{reader, &wire.ProducerInit{}, 0},
		{reader, &wire.Subscribe{Tenant: "t1", Namespace: "ns", Stream: "memory"}, 0},
	} {
		tc.p.send(tc.m)
		require.Equal(t, tc.want, code(tc.p.recv()), fmt.Sprintf("%T", tc.m))
	}
}
