package server

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/wire"
)

// blocked makes a stream whose publishes are not answered until release is called: a
// subscriber that blocks has a full queue.
func (w *world) blocked(name string) (release func()) {
	w.t.Helper()
	w.stream(name, meta.Stream{Shards: 1, Overflow: meta.OverflowBlock})
	st, err := w.broker.Stream("t1", "ns", name)
	require.NoError(w.t, err)
	shard, err := st.Shard(0)
	require.NoError(w.t, err)
	sub, err := shard.Subscribe(context.Background(), partition.SubscribeOptions{QueueCapacity: 1})
	require.NoError(w.t, err)
	p := w.dial(transportTCP).login()
	p.publish(acked(1, batch(name, "fills the queue")))
	require.False(w.t, p.ack().Failed)
	p.abandon()
	return sub.Close
}

// A stream with as many publishes unanswered as granted is not read until one is
// answered: flow control, not an error. Streams beside it go on.
func TestPublishWindow(t *testing.T) {
	w := newWorld(t, withLimits(Limits{PublishWindow: 4}))
	transports(t, func(t *testing.T, transport string) {
		for _, features := range []wire.Features{everything, everything &^ wire.FeaturePublishPipeline} {
			before := w.pauses(PausedWindow)
			name := "window-" + transport + "-" + decimal(int(features>>15&1))
			release := w.blocked(name)
			h := w.dial(transport)
			p := h.open()
			p.send(&wire.Auth{Tenant: "t1", Token: w.token, ClientFlags: wire.FlagsKnown, HasClientFlags: true, Features: features})
			require.IsType(t, &wire.AuthOK{}, p.recv())
			const n = 20
			var sent []uint64
			for id := range uint64(n) {
				p.publish(acked(id, batch(name, "x")))
				sent = append(sent, id)
			}
			w.eventually("paused", func() bool { return w.paused[PausedWindow] == before+1 })
			w.takenIn(name, 4)

			other := h.login()
			other.publish(acked(9, batch("memory", "y")))
			require.Equal(t, uint64(9), other.ack().RequestID)
			release()
			var answered []uint64
			for range n {
				answered = append(answered, p.ack().RequestID)
			}
			if features&wire.FeaturePublishPipeline == 0 {
				// In the order in which they are done: the last that was read need not wait
				// for the goroutine that answers those held before it.
				slices.Sort(answered)
			}
			require.Equal(t, sent, answered)
		}
	})
}

// inFlight is how many publishes the stream has taken in and not answered.
func (w *world) inFlight(name string) int {
	st, err := w.broker.Stream("t1", "ns", name)
	require.NoError(w.t, err)
	answered := uint64(0)
	for i := range st.Counters().Publishes {
		answered += st.Counters().Publishes[i].Load()
	}
	return int(st.Counters().Blocked.Load()+1) - int(answered)
}

// takenIn waits until n publishes are in flight on the stream and fails if there are more.
// A connection counts its pause when it has read one publish too many, which may be before
// the last of those within the bound has reached the stream.
func (w *world) takenIn(name string, n int) {
	w.t.Helper()
	w.eventually("taken in", func() bool { return w.inFlight(name) >= n })
	require.Equal(w.t, n, w.inFlight(name), name)
}

// Publishes that are never answered have a window as well.
func TestUnackedWindow(t *testing.T) {
	w := newWorld(t, withLimits(Limits{UnackedWindow: 8}))
	release := w.blocked("window")
	p := w.dial(transportTCP).login()
	for range 30 {
		p.publish(batch("window", "x"))
	}
	w.eventually("paused", func() bool { return w.paused[PausedWindow] == 1 })
	w.takenIn("window", 8)
	release()
	p.publish(acked(7, batch("window", "last")))
	require.Equal(t, uint64(7), p.ack().RequestID)
}

// A connection's bytes in flight are bounded over all its streams, and one publish that
// is larger than the bound goes alone.
func TestInFlightBytes(t *testing.T) {
	w := newWorld(t, withLimits(Limits{InFlightBytes: 1000}))
	release := w.blocked("window")
	h := w.dial(transportQUIC)
	a, b := h.login(), h.login()
	payload := strings.Repeat("x", 400)
	for id := range uint64(3) {
		a.publish(acked(id, batch("window", payload)))
	}
	w.eventually("paused", func() bool { return w.paused[PausedInFlight] == 1 })
	w.takenIn("window", 2)
	b.publish(acked(9, batch("memory", payload)))
	w.eventually("paused", func() bool { return w.paused[PausedInFlight] == 2 })
	// Another connection is not concerned.
	other := w.dial(transportTCP).login()
	other.publish(acked(9, batch("memory", payload)))
	require.Equal(t, uint64(9), other.ack().RequestID)

	release()
	for id := range uint64(3) {
		require.Equal(t, id, a.ack().RequestID)
	}
	require.Equal(t, uint64(9), b.ack().RequestID)
	a.publish(acked(10, batch("memory", strings.Repeat("x", 5000))))
	require.False(t, a.ack().Failed)
}

// A connection that ends while its streams wait for room leaves nothing behind.
func TestEndWhileWaiting(t *testing.T) {
	w := newWorld(t, withLimits(Limits{InFlightBytes: 1000, PublishWindow: 4}))
	release := w.blocked("window")
	for _, transport := range []string{transportTCP, transportQUIC} {
		h := w.dial(transport)
		for range 3 {
			p := h.login()
			for id := range uint64(20) {
				p.publish(acked(id, batch("window", strings.Repeat("x", 300))))
			}
			defer p.abandon()
		}
		if h.quic != nil {
			closeQUIC(h.quic, 0, "")
		}
	}
	w.eventually("paused", func() bool { return w.paused[PausedInFlight] > 0 })
	release()
}

// deaf dials a client whose receive buffers are small, so that it is soon noticed when
// it does not read.
func (w *world) deaf(transport string) *host {
	w.t.Helper()
	if transport == transportTCP {
		return &host{w: w, small: true}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := quic.DialAddr(ctx, w.addr, w.client, &quic.Config{
		InitialStreamReceiveWindow: 16 << 10, MaxStreamReceiveWindow: 16 << 10, MaxIdleTimeout: patience, KeepAlivePeriod: time.Second})
	require.NoError(w.t, err)
	w.t.Cleanup(func() { closeQUIC(conn, 0, "") })
	return &host{w: w, quic: conn}
}

func dialSmall(w *world) (*tls.Conn, error) {
	socket, err := net.Dial("tcp", w.addr)
	if err != nil {
		return nil, err
	}
	if err := socket.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		return nil, err
	}
	return tls.Client(socket, w.client), nil
}

// Case 114: a client that pipelines publishes, all of them stored and acknowledged, and
// never reads its answers is not read any more. Nobody else is held up, on its own shard
// neither; memory stays; and when it does read it gets every answer. FELIX_TEST_LONG for
// the full 100,000 publishes.
func TestClientThatDoesNotReadAnswers(t *testing.T) {
	most := uint64(30_000)
	if os.Getenv("FELIX_TEST_LONG") != "" {
		most = 100_000
	}
	w := newWorld(t, withLimits(Limits{UnreadBytes: 16 << 10}))
	w.sendBuffer.Store(16 << 10)
	transports(t, func(t *testing.T, transport string) {
		name := "shared-" + transport
		w.stream(name, w.durable(1))
		before := w.pauses(PausedUnread)
		p := w.deaf(transport).login()
		var sent atomic.Uint64
		done := make(chan struct{})
		// More than the systems of both hold of what the server does not read.
		payload := strings.Repeat("u", 1000)
		go func() {
			defer close(done)
			for frame := []byte(nil); sent.Load() < most; sent.Add(1) {
				frame = wire.AppendPublishBatch(frame[:0], acked(sent.Load(), batch(name, payload)))
				if _, err := p.rw.Write(frame); err != nil {
					return
				}
			}
		}()
		other := w.dial(transport).login()
		var others []uint64
		answered := func() {
			for id := range uint64(500) {
				other.publish(acked(id, batch(name, "read")))
				answer := other.ack()
				require.False(t, answer.Failed, "%v", answer.Failure)
				require.Equal(t, id, answer.RequestID)
				others = append(others, answer.Offset)
			}
		}
		// Over TCP the systems may stop it first: one whose receive buffer is full of small
		// answers drops those that acknowledge what it sends, too, and then sends no more.
		for still := 0; w.pauses(PausedUnread) == before && (transport == transportQUIC || still < 10); {
			last := sent.Load()
			require.Less(t, last, most, "it is read on and on")
			answered()
			if still++; last != sent.Load() {
				still = 0
			}
		}
		// It is not read any more once nothing was taken while the other was answered so often.
		for last := ^uint64(0); last != sent.Load(); {
			last = sent.Load()
			answered()
		}
		require.NoError(t, p.rw.(deadliner).SetWriteDeadline(time.Now()))
		<-done
		n := sent.Load()
		require.Less(t, n, most, "it is read on and on")
		var held runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&held)
		require.Less(t, held.HeapInuse, uint64(64<<20))
		// Between them the two have every offset of the shard, each in its order.
		owner := map[uint64]bool{}
		for _, o := range others {
			owner[o] = true
		}
		require.Len(t, owner, len(others))
		require.IsIncreasing(t, others)
		next := uint64(0)
		for id := range n {
			answer := p.ack()
			require.False(t, answer.Failed, "%v", answer.Failure)
			require.Equal(t, id, answer.RequestID)
			for owner[next] {
				next++
			}
			require.Equal(t, next, answer.Offset)
			next++
		}
	})
}

// What a publish carries stays as it came while the shard is not done with it, whatever
// is read meanwhile.
func TestPayloadsAreKept(t *testing.T) {
	w := newWorld(t)
	transports(t, func(t *testing.T, transport string) {
		name := "kept-" + transport
		release := w.blocked(name)
		_, events := w.dial(transport).subscribe(subscribeTo(name, latest))
		p := w.dial(transport).login()
		texts := numbered(200)
		for id, text := range texts {
			p.publish(acked(uint64(id), batch(name, text)))
		}
		w.eventually("held", func() bool { return w.inFlight(name) == len(texts) })
		// Frames of another stream take the place of the first ones, if they can.
		for id := range uint64(50) {
			p.publish(acked(1000+id, batch("memory", strings.Repeat("overwritten ", 20))))
		}
		release()
		for range len(texts) + 50 {
			require.False(t, p.ack().Failed)
		}
		var got []string
		for len(got) < len(texts) {
			_, more := events.events()
			got = append(got, more...)
		}
		require.Equal(t, texts, got)
	})
}

// Case 113: a subscriber that does not read costs no more than its buffers, whatever is
// published, and is counted: by how far it is behind where the stream is durable, by what
// was left out where it is not. The others get everything, one by one as it is published.
// When it reads again it gets the rest. FELIX_TEST_LONG for the full 2 GiB of each.
func TestSubscriberThatDoesNotRead(t *testing.T) {
	const size = 64 << 10
	total := 40 << 20 / size
	if os.Getenv("FELIX_TEST_LONG") != "" {
		total = 2 << 30 / size
	}
	const onItsWay = 12 << 20 // of three clients, both sides of them in this process
	w := newWorld(t)
	transports(t, func(t *testing.T, transport string) {
		name := "deaf-" + transport
		w.stream(name, w.durable(1))
		w.stream(name+"-memory", meta.Stream{Shards: 1, Overflow: meta.OverflowDropNew})
		for stream, kept := range map[string]int64{
			name:             partition.DefaultRingBytes,
			name + "-memory": partition.DefaultQueueBytes + partition.DefaultReplayBytes,
		} {
			st, err := w.broker.Stream("t1", "ns", stream)
			require.NoError(t, err)
			shard, err := st.Shard(0)
			require.NoError(t, err)
			// Only towards the one that does not read: with a buffer smaller than a record each
			// of those that the other reads would wait for an acknowledgement that TCP delays.
			w.sendBuffer.Store(16 << 10)
			_, deaf := w.deaf(transport).subscribe(subscribeTo(stream, latest))
			w.sendBuffer.Store(0)
			_, keen := w.dial(transport).subscribe(subscribeTo(stream, latest))
			p := w.dial(transport).login()
			payload := strings.Repeat("p", size)
			before := inUse()
			for id := range uint64(total) {
				p.publish(acked(id, batch(stream, payload)))
				require.False(t, p.ack().Failed)
				_, got := keen.events()
				require.Len(t, got, 1)
			}
			require.Less(t, inUse()-before, kept+onItsWay)
			lag, dropped := shard.Stats().Lag, st.Counters().DroppedNew.Load()
			t.Logf("%s: %d MiB more in use, %d records behind, %d left out of %d", stream, (inUse()-before)>>20, lag, dropped, total)
			if stream == name {
				require.Greater(t, lag, uint64(total/2), "it is not counted as behind")
			} else {
				require.Greater(t, dropped, uint64(total/2), "what it lost is not counted")
			}
			for n := uint64(0); n < uint64(total)-dropped; {
				e, got := deaf.events()
				require.Equal(t, stream == name, e.HasOffsets)
				if e.HasOffsets {
					require.Equal(t, n, e.BaseOffset)
				}
				n += uint64(len(got))
			}
			deaf.abandon()
			keen.abandon()
		}
	})
}

// inUse is the heap in use once the collector ran.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

// The same where the answers are written by others than the reader.
func TestClientThatDoesNotReadLateAnswers(t *testing.T) {
	body := []byte(`"` + strings.Repeat("b", 4<<10) + `"`)
	w := newWorld(t, withLimits(Limits{UnreadBytes: 16 << 10}), func(o *Options) {
		o.Handlers = append(o.Handlers, Handlers{Extensions: map[string]Handler{"test.late": func(_ context.Context, r *Request) {
			reply, id := r.Defer(), r.Message.(*wire.Extension).RequestID
			go reply.Answer(&wire.ExtensionOK{Name: "test.late", RequestID: id, HasRequestID: true, Body: body})
		}}})
	})
	p := w.deaf(transportTCP).login()
	sent := make(chan uint64)
	go func() {
		n := uint64(0)
		for ; n < 50_000; n++ {
			m := &wire.Extension{Name: "test.late", RequestID: n, HasRequestID: true, Body: body}
			if _, err := p.rw.Write(wire.AppendMessage(nil, m)); err != nil {
				break
			}
		}
		sent <- n
	}()
	// Which of the two it is depends on which answer is there first.
	require.Eventually(t, func() bool { return w.pauses(PausedUnread)+w.pauses(PausedTurn) > 0 }, patience, time.Millisecond)
	require.NoError(t, p.rw.(deadliner).SetWriteDeadline(time.Now()))
	n := <-sent
	require.Less(t, n, uint64(50_000), "it is read on and on")
	for id := range n {
		require.Equal(t, id, p.recv().(*wire.ExtensionOK).RequestID)
	}
}
