package server

import (
	"context"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

// pipeLink is a session's link in memory, for clients that come by the hundred thousand.
type pipeLink struct{ net.Conn }

func (l pipeLink) finish() { closeQuietly(l.Conn) }
func (l pipeLink) stop()   { closeQuietly(l.Conn) }

func (pipeLink) gone() context.Context { return nil }
func (pipeLink) listens(error) bool    { return false }

// attach serves a session in memory and returns the client's end. The session's
// connection ends when the client's end is closed.
func (w *world) attach() net.Conn {
	client, server := net.Pipe()
	c := w.server.newConnection(context.Background(), transportTCP, server.LocalAddr())
	c.closeLink = func(uint64, string) { closeQuietly(server) }
	if !w.server.add(c) {
		w.t.Fatal("the server stops")
	}
	go func() {
		c.run(func() {
			c.serve(pipeLink{server}, false)
			c.close(closeShutdown, "", errOutboxClosed)
		})
		c.wait()
		w.server.remove(c)
	}()
	return client
}

// conversation is a valid script of every kind of request.
func (w *world) conversation() [][]byte {
	message := func(m wire.Message) []byte { return wire.AppendMessage(nil, m) }
	idempotent := acked(4, batch("memory", "e"))
	idempotent.Idempotent, idempotent.ProducerID = true, 77
	keyed := acked(5, batch("wide", "f", "g"))
	keyed.HasKey, keyed.Key = true, []byte("key")
	return [][]byte{
		message(&wire.Auth{Tenant: "t1", Token: w.token, HasClientFlags: true, ClientFlags: wire.FlagsKnown, Features: everything}),
		wire.AppendPublishBatch(nil, batch("memory", "a", "b")),
		wire.AppendPublishBatch(nil, acked(1, batch("memory", "c", ""))),
		wire.AppendPublishBatch(nil, idempotent),
		wire.AppendPublishBatch(nil, keyed),
		message(&wire.Publish{Tenant: "t1", Namespace: "ns", Stream: "memory", Payload: []byte("d"), RequestID: 2, HasRequestID: true, Ack: wire.AckPerMessage}),
		message(&wire.PublishBatch{Tenant: "t1", Namespace: "ns", Stream: "orders", Payloads: [][]byte{[]byte("d")}, RequestID: 3, HasRequestID: true, Ack: wire.AckPerBatch}),
		message(&wire.PublishIf{Tenant: "t1", Namespace: "ns", Stream: "orders", Payloads: [][]byte{[]byte("d")}, ExpectedOffset: 1, RequestID: 6}),
		message(&wire.ProducerInit{RequestID: 7}),
		message(&wire.StreamShards{Tenant: "t1", Namespace: "ns", Stream: "wide", RequestID: 8}),
		message(&wire.ShardOwners{Tenant: "t1", Namespace: "ns", Name: "wide", RequestID: 9}),
		message(&wire.StreamRead{Tenant: "t1", Namespace: "ns", Stream: "orders", RequestID: 10}),
		message(&wire.OffsetForTime{Tenant: "t1", Namespace: "ns", Stream: "orders", AtMicros: 1, RequestID: 11}),
		message(&wire.CacheGet{Tenant: "t1", Namespace: "ns", Cache: "c", Key: "k", RequestID: 12, HasRequestID: true}),
		message(&wire.Extension{Name: "x", RequestID: 13, HasRequestID: true, Body: []byte(`{"a":[1,2,3]}`)}),
		message(&wire.Subscribe{Tenant: "t1", Namespace: "ns", Stream: "orders", Start: wire.Start{Kind: wire.StartEarliest}}),
	}
}

// drainAll reads whatever comes until the end.
func drainAll(conn net.Conn) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		discard(conn)
	}()
	return done
}

// idle waits until no session is left.
func (w *world) idle() {
	w.t.Helper()
	w.eventually("every session has ended", func() bool { return w.server.Connections() == 0 })
}

// A conversation cut at every byte leaves nothing behind.
func TestConversationCutAtEveryByte(t *testing.T) {
	w := newWorld(t)
	var script []byte
	for _, frame := range w.conversation() {
		script = append(script, frame...)
	}
	step := 1
	if testing.Short() {
		step = 17
	}
	for n := 0; n <= len(script); n += step {
		conn := w.attach()
		done := drainAll(conn)
		_, err := conn.Write(script[:n])
		require.NoError(t, err)
		closeQuietly(conn)
		<-done
	}
	w.idle()

	// The same over real sockets, at fewer places: half closed, and cut off.
	transports(t, func(t *testing.T, transport string) {
		h := w.dial(transport)
		for n := 1; n < len(script); n += 97 {
			for _, cut := range []bool{false, true} {
				p := h.open()
				p.sendRaw(script[:n])
				if cut {
					p.abandon()
				} else {
					p.finish()
				}
			}
		}
		p := w.dial(transport).login()
		p.publish(acked(1, batch("memory", "still here")))
		require.False(t, p.ack().Failed)
	})
}

// Frames that are nearly right, by the thousand (FELIX_FUZZ_FRAMES says how many): the
// server answers or ends the stream, lives, and leaves no goroutine behind.
func TestFuzzedFrames(t *testing.T) {
	frames := 20_000
	if s := os.Getenv("FELIX_FUZZ_FRAMES"); s != "" {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		frames = n
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("FELIX_FUZZ_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		seed = n
	}
	t.Logf("FELIX_FUZZ_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	w := newWorld(t)
	good := w.conversation()

	for sent := 0; sent < frames; {
		conn := w.attach()
		done := drainAll(conn)
		if _, err := conn.Write(good[0]); err != nil {
			t.Fatal(err)
		}
		// One session takes hostile frames until it has had enough.
		for sent < frames {
			sent++
			if _, err := conn.Write(hostile(r, good)); err != nil {
				break
			}
		}
		closeQuietly(conn)
		<-done
	}
	w.idle()
	p := w.dial(transportTCP).login()
	p.publish(acked(1, batch("memory", "still here")))
	require.False(t, p.ack().Failed)
	require.Zero(t, w.refusals(RefusedInternal))
}

// hostile makes a frame out of good ones.
func hostile(r *rand.Rand, good [][]byte) []byte {
	frame := append([]byte(nil), good[r.IntN(len(good))]...)
	body := wire.HeaderBytes + r.IntN(len(frame)-wire.HeaderBytes)
	switch r.IntN(9) {
	case 0: // a flipped bit anywhere
		frame[r.IntN(len(frame))] ^= 1 << r.IntN(8)
	case 1: // flipped bits in the payload: the frame stays one
		for range 1 + r.IntN(4) {
			frame[wire.HeaderBytes+r.IntN(len(frame)-wire.HeaderBytes)] ^= 1 << r.IntN(8)
		}
	case 2: // cut, with a length that fits
		frame = wire.FinishFrame(frame[:body], 0)
	case 3: // an extreme number in the payload
		for i := range min(4, len(frame)-body) {
			frame[body+i] = 0xFF
		}
	case 4: // other flags
		frame[6], frame[7] = byte(r.Uint32()), byte(r.Uint32())
	case 5: // two frames spliced
		other := good[r.IntN(len(good))]
		frame = append(frame[:body], other[min(len(other), body):]...)
		frame = wire.FinishFrame(frame, 0)
	case 6: // noise with a good header
		for i := wire.HeaderBytes; i < len(frame); i++ {
			frame[i] = byte(r.Uint32())
		}
	case 7: // deep nesting
		text := `{"type":"extension","name":"x","body":` + strings.Repeat("[", 1+r.IntN(20_000))
		frame = append(wire.AppendHeader(nil, 0, uint32(len(text))), text...)
	case 8: // a length that lies
		frame[8+r.IntN(4)] = byte(r.Uint32())
	}
	return frame
}

// A stream of bytes that never becomes a frame holds a session no longer than it lasts.
func TestSlowBytes(t *testing.T) {
	w := newWorld(t)
	conn := w.attach()
	done := drainAll(conn)
	for _, b := range w.conversation()[0] {
		_, err := conn.Write([]byte{b})
		require.NoError(t, err)
	}
	closeQuietly(conn)
	<-done
	w.idle()
}

// Answers that wait behind one that is not there yet are bounded as those are that the
// client does not read: a few small requests cannot make the server hold their large
// answers. When the one comes, the others follow in their order.
func TestAnswersBehindAnotherAreBounded(t *testing.T) {
	release := make(chan struct{})
	const size = 64 << 10
	var made atomic.Int64
	w := newWorld(t, func(o *Options) {
		o.Handlers = []Handlers{{Extensions: map[string]Handler{
			"test.later": func(_ context.Context, r *Request) {
				reply := r.Defer()
				go func() {
					<-release
					reply.Answer(&wire.ExtensionOK{Name: "test.later"})
				}()
			},
			"test.large": func(_ context.Context, r *Request) {
				made.Add(1)
				m := r.Message.(*wire.Extension)
				r.Answer(&wire.ExtensionOK{Name: "test.large", RequestID: m.RequestID, HasRequestID: true,
					Body: []byte(`"` + strings.Repeat("x", size) + `"`)})
			},
		}}}
	})
	p := w.dial(transportTCP).login()
	const requests = 200
	b := wire.AppendMessage(nil, &wire.Extension{Name: "test.later"})
	for id := range uint64(requests) {
		b = wire.AppendMessage(b, &wire.Extension{Name: "test.large", RequestID: id, HasRequestID: true})
	}
	p.sendRaw(b)
	w.eventually("the stream is not read", func() bool { return w.paused[PausedTurn] == 1 })
	most := int64(w.server.limits.UnreadBytes)/size + 1
	require.LessOrEqual(t, made.Load(), most)
	close(release)
	require.Equal(t, "test.later", p.recv().(*wire.ExtensionOK).Name)
	for id := range uint64(requests) {
		require.Equal(t, id, p.recv().(*wire.ExtensionOK).RequestID)
	}
}

// The values that deletes took away are read as there is room for them, in whatever
// order their shards come about.
func TestRemovedValuesKeepTheirTurn(t *testing.T) {
	w := newWorld(t, withLimits(Limits{UnreadBytes: 64 << 10}))
	w.cache("kept", 4)
	p := w.dial(transportTCP).login()
	const keys = 200
	key := func(i int) string { return "key " + decimal(i) }
	value := []byte(strings.Repeat("v", 16<<10))
	for i := range keys {
		p.send(&wire.CachePut{Tenant: "t1", Namespace: "ns", Cache: "kept", Key: key(i), Value: value, RequestID: 1, HasRequestID: true})
		require.IsType(t, &wire.CacheOK{}, p.recv())
	}
	var b []byte
	for i := range keys {
		b = wire.AppendMessage(b, &wire.CacheDelete{Tenant: "t1", Namespace: "ns", Cache: "kept", Key: key(i), RequestID: uint64(i), HasRequestID: true})
	}
	p.sendRaw(b)
	for i := range keys {
		v := p.recv().(*wire.CacheValue)
		require.Equal(t, uint64(i), v.RequestID)
		require.Equal(t, value, v.Value)
	}
}
