package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/testkit/leak"
	"github.com/felixlog/felix/wire"
)

func TestMain(m *testing.M) { leak.Main(m) }

// patience bounds every wait of a test: far more than anything takes.
const patience = time.Minute

// world is a server over a real broker on a directory of its own, and what clients of
// it need.
type world struct {
	t      testing.TB
	keys   *auth.Keys
	broker *broker.Broker
	root   string // of its shards
	server *Server
	addr   string // of both sockets
	client *tls.Config
	// sendBuffer, when it is not 0, is how much the system keeps of what was sent to a
	// TCP client that does not read.
	sendBuffer atomic.Int32
	token      string
	stop       func()
	done       chan error

	mu      sync.Mutex
	refused map[Refusal]int
	paused  map[Pause]int
	changed chan struct{}
}

type worldOption func(*Options)

func withLimits(l Limits) worldOption { return func(o *Options) { o.Limits = l } }

func newWorld(t testing.TB, options ...worldOption) *world {
	t.Helper()
	return newWorldOf(t, broker.Options{}, options...)
}

// newWorldOf is newWorld of a broker with options, but for its catalog and root.
func newWorldOf(t testing.TB, of broker.Options, options ...worldOption) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{t: t, refused: map[Refusal]int{}, paused: map[Pause]int{}, changed: make(chan struct{}, 1)}
	var err error
	w.keys, err = auth.OpenKeys(filepath.Join(dir, "keys"))
	require.NoError(t, err)
	for _, tenant := range []string{"t1", "t2"} {
		_, err = w.keys.Ensure(tenant)
		require.NoError(t, err)
	}
	paths, _, err := auth.EnsureCertificates(filepath.Join(dir, "tls"), auth.CertificateOptions{})
	require.NoError(t, err)
	cert, err := auth.LoadCertificate(paths.Cert, paths.Key)
	require.NoError(t, err)
	w.client, err = auth.ClientTLS(paths.CA, "localhost")
	require.NoError(t, err)

	ctx := context.Background()
	catalog := meta.NewCatalog(meta.NewMemory(meta.MemoryOptions{}))
	for _, tenant := range []string{"t1", "t2"} {
		_, err = catalog.CreateTenant(ctx, meta.Tenant{ID: tenant})
		require.NoError(t, err)
		_, err = catalog.CreateNamespace(ctx, meta.Namespace{Tenant: tenant, Name: "ns"})
		require.NoError(t, err)
	}
	w.root = filepath.Join(dir, "streams")
	of.Catalog, of.Root = catalog, w.root
	w.broker, err = broker.Open(ctx, of)
	require.NoError(t, err)
	w.stream("orders", meta.Stream{Shards: 1, Durable: true})
	w.stream("wide", meta.Stream{Shards: 4, Durable: true})
	w.stream("memory", meta.Stream{Shards: 1})
	w.token = w.mint("t1", auth.AllPermissions("t1")...)

	o := Options{
		Broker: w.broker, Durable: true, TLS: auth.ServerTLS(cert, false),
		Verifier: auth.NewVerifier(auth.VerifierOptions{Keys: w.keys}),
		Log:      slog.New(slog.NewTextHandler(testWriter{t}, nil)),
	}
	for _, option := range options {
		option(&o)
	}
	o.Events.OnRefused = func(r Refusal) { w.count(func() { w.refused[r]++ }) }
	o.Events.OnPaused = func(p Pause) { w.count(func() { w.paused[p]++ }) }
	w.server, err = New(o)
	require.NoError(t, err)

	listener, packets := listenBoth(t)
	w.addr = listener.Addr().String()
	serving, cancel := context.WithCancel(ctx)
	w.done = make(chan error, 1)
	go func() { w.done <- w.server.Serve(serving, packets, sizedListener{listener, &w.sendBuffer}) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-w.done:
			require.NoError(t, err)
		case <-time.After(patience):
			t.Error("the server does not stop")
		}
		closing, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, w.broker.Close(closing))
	})
	t.Cleanup(w.stop)
	return w
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	if os.Getenv("FELIX_TEST_LOG") != "" {
		w.t.Log(string(p))
	}
	return len(p), nil
}

// sizedListener sets the send buffers of what it accepts.
type sizedListener struct {
	net.Listener
	sendBuffer *atomic.Int32
}

func (l sizedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if n := l.sendBuffer.Load(); err == nil && n > 0 {
		err = conn.(*net.TCPConn).SetWriteBuffer(int(n))
	}
	return conn, err
}

// listenBoth finds a port that is free for UDP and TCP.
func listenBoth(t testing.TB) (net.Listener, net.PacketConn) {
	t.Helper()
	for range 50 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		packets, err := net.ListenPacket("udp", listener.Addr().String())
		if err == nil {
			return listener, packets
		}
		require.NoError(t, listener.Close())
	}
	t.Fatal("no port is free for both")
	return nil, nil
}

func (w *world) count(f func()) {
	w.mu.Lock()
	f()
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *world) refusals(r Refusal) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refused[r]
}

func (w *world) pauses(p Pause) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.paused[p]
}

// eventually waits until cond, asked with the counters locked, holds: it must not make
// the server count anything.
func (w *world) eventually(what string, cond func() bool) {
	w.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		w.mu.Lock()
		ok := cond()
		w.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-w.changed:
		case <-tick.C:
		case <-deadline:
			w.t.Fatalf("%s: does not happen; refused %v, paused %v", what, w.refused, w.paused)
		}
	}
}

// repeat calls try until it says true.
func (w *world) repeat(what string, try func() bool) {
	w.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !try() {
		select {
		case <-tick.C:
		case <-deadline:
			w.t.Fatalf("%s: does not happen", what)
		}
	}
}

func (w *world) stream(name string, s meta.Stream) {
	w.t.Helper()
	s.Tenant, s.Namespace, s.Name = "t1", "ns", name
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := w.broker.CreateStream(ctx, s)
	require.NoError(w.t, err)
}

func (w *world) cache(name string, shards uint32) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := w.broker.CreateCache(ctx, meta.Cache{Tenant: "t1", Namespace: "ns", Name: name, Shards: shards, Durable: true})
	require.NoError(w.t, err)
}

func (w *world) durable(shards uint32) meta.Stream { return meta.Stream{Shards: shards, Durable: true} }

func (w *world) mint(tenant string, permissions ...string) string {
	w.t.Helper()
	token, err := w.keys.Mint(auth.MintRequest{Tenant: tenant, Subject: "alice", Permissions: permissions, TTL: time.Hour})
	require.NoError(w.t, err)
	return token
}

// transports runs a test on each.
func transports(t *testing.T, f func(t *testing.T, transport string)) {
	for _, transport := range []string{transportTCP, transportQUIC} {
		t.Run(transport, func(t *testing.T) { f(t, transport) })
	}
}

// host is a client's connection: on TCP it dials anew for each stream.
type host struct {
	w    *world
	quic *quic.Conn
	// small: receive buffers are small (TCP).
	small bool
}

func (w *world) dial(transport string) *host {
	w.t.Helper()
	h := &host{w: w}
	if transport == transportQUIC {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		// A close that was lost on the way is sent again when something comes.
		conn, err := quic.DialAddr(ctx, w.addr, w.client, &quic.Config{MaxIdleTimeout: patience, KeepAlivePeriod: time.Second})
		require.NoError(w.t, err)
		h.quic = conn
		w.t.Cleanup(func() { closeQUIC(conn, 0, "") })
	}
	return h
}

// open opens a stream that says nothing yet.
func (h *host) open() *peer {
	h.w.t.Helper()
	p := &peer{t: h.w.t, host: h}
	if h.quic != nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		s, err := h.quic.OpenStreamSync(ctx)
		require.NoError(p.t, err)
		p.rw, p.fin = s, s.Close
		p.abandon = func() { bidiLink{s}.stop() }
	} else {
		dial := func() (*tls.Conn, error) { return tls.Dial("tcp", h.w.addr, h.w.client) }
		if h.small {
			dial = func() (*tls.Conn, error) { return dialSmall(h.w) }
		}
		conn, err := dial()
		require.NoError(p.t, err)
		p.t.Cleanup(func() { closeQuietly(conn) })
		p.rw, p.fin = conn, conn.CloseWrite
		p.abandon = func() { closeQuietly(conn.NetConn()) }
	}
	p.reader = wire.NewReader(p.rw, 64<<20)
	return p
}

// everything is what the newest client offers, and the publisher and timestamps too.
const everything = wire.Features(0x7FFF_FFFF) &^ wire.FeatureAckOnCommit

// login opens a stream and authenticates it with everything offered.
func (h *host) login() *peer {
	h.w.t.Helper()
	p := h.open()
	p.send(&wire.Auth{Tenant: "t1", Token: h.w.token, ClientFlags: wire.FlagsKnown, HasClientFlags: true, Features: everything})
	ok, isOK := p.recv().(*wire.AuthOK)
	require.True(p.t, isOK)
	p.granted = ok
	return p
}

type deadliner interface {
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// peer is one stream of a client.
type peer struct {
	t       testing.TB
	host    *host
	rw      io.ReadWriter
	reader  *wire.Reader
	fin     func() error
	abandon func()
	granted *wire.AuthOK
}

func (p *peer) send(messages ...wire.Message) {
	p.t.Helper()
	var b []byte
	for _, m := range messages {
		b = wire.AppendMessage(b, m)
	}
	p.sendRaw(b)
}

func (p *peer) sendRaw(b []byte) {
	p.t.Helper()
	_, err := p.rw.Write(b)
	require.NoError(p.t, err)
}

func (p *peer) next() (wire.Frame, error) {
	if d, ok := p.rw.(deadliner); ok {
		if err := d.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return wire.Frame{}, err
		}
	}
	return p.reader.Next()
}

// recv reads one JSON message.
func (p *peer) recv() wire.Message {
	p.t.Helper()
	f, err := p.next()
	require.NoError(p.t, err)
	require.Equal(p.t, wire.LayoutMessage, f.Flags.Layout(), "%v", f.Flags)
	m, err := wire.DecodeMessage(f.Payload)
	require.NoError(p.t, err)
	return m
}

// ack reads one binary answer.
func (p *peer) ack() wire.PublishAck {
	p.t.Helper()
	f, err := p.next()
	require.NoError(p.t, err)
	var a wire.PublishAck
	require.NoError(p.t, a.Decode(f.Flags, f.Payload), "%s", f.Payload)
	return a
}

// events reads one frame of events; its payloads are copies.
func (p *peer) events() (wire.EventBatch, []string) {
	p.t.Helper()
	f, err := p.next()
	require.NoError(p.t, err)
	var e wire.EventBatch
	require.NoError(p.t, e.Decode(f.Flags, f.Payload), "%s", f.Payload)
	var texts []string
	for _, b := range e.Payloads {
		texts = append(texts, string(b))
	}
	return e, texts
}

// collect reads events until n have come, checking that offsets follow one another
// from first on.
func (p *peer) collect(first uint64, n int) []string {
	p.t.Helper()
	var all []string
	for len(all) < n {
		e, texts := p.events()
		require.True(p.t, e.HasOffsets)
		require.Equal(p.t, first+uint64(len(all)), e.BaseOffset)
		all = append(all, texts...)
	}
	require.Len(p.t, all, n)
	return all
}

// gone expects the end of the stream, and tells how it ended.
func (p *peer) gone() error {
	p.t.Helper()
	f, err := p.next()
	require.Error(p.t, err, "flags %v: %s", f.Flags, f.Payload)
	require.False(p.t, os.IsTimeout(err), "the stream stays open")
	return err
}

func (p *peer) finish() { require.NoError(p.t, p.fin()) }

// subscribe subscribes on a stream of its own and returns where the events come, after
// the hello.
func (h *host) subscribe(m *wire.Subscribe) (*wire.Subscribed, *peer) {
	h.w.t.Helper()
	p := h.login()
	return p.subscribe(m)
}

func (p *peer) subscribe(m *wire.Subscribe) (*wire.Subscribed, *peer) {
	p.t.Helper()
	p.send(m)
	if p.host.quic != nil {
		p.finish()
	}
	answer := p.recv()
	subscribed, ok := answer.(*wire.Subscribed)
	require.True(p.t, ok, "%#v", answer)
	events := p.eventStream()
	hello, ok := events.recv().(*wire.EventStreamHello)
	require.True(p.t, ok)
	require.Equal(p.t, subscribed.SubscriptionID, hello.SubscriptionID)
	return subscribed, events
}

// eventStream is where the events of a subscription made on p come.
func (p *peer) eventStream() *peer {
	p.t.Helper()
	if p.host.quic == nil {
		return p
	}
	require.ErrorIs(p.t, p.gone(), io.EOF)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := p.host.quic.AcceptUniStream(ctx)
	require.NoError(p.t, err)
	return &peer{t: p.t, host: p.host, rw: readOnly{s}, reader: wire.NewReader(s, 64<<20),
		abandon: func() { s.CancelRead(0) }}
}

type readOnly struct{ *quic.ReceiveStream }

func (readOnly) Write([]byte) (int, error)        { return 0, errors.ErrUnsupported }
func (readOnly) SetWriteDeadline(time.Time) error { return nil }

func orders(payloads ...string) *wire.PublishBatchFrame { return batch("orders", payloads...) }

func batch(stream string, payloads ...string) *wire.PublishBatchFrame {
	f := &wire.PublishBatchFrame{Tenant: "t1", Namespace: "ns", Stream: stream}
	for _, p := range payloads {
		f.Payloads = append(f.Payloads, []byte(p))
	}
	return f
}

func acked(id uint64, f *wire.PublishBatchFrame) *wire.PublishBatchFrame {
	f.Acked, f.RequestID, f.AckMode = true, id, wire.AckPerBatch
	return f
}

func (p *peer) publish(f *wire.PublishBatchFrame) {
	p.t.Helper()
	p.sendRaw(wire.AppendPublishBatch(nil, f))
}

func numbered(n int) []string {
	texts := make([]string, n)
	for i := range texts {
		texts[i] = fmt.Sprintf("record %06d", i)
	}
	return texts
}
