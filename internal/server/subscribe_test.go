package server

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

func subscribeTo(stream string, start wire.Start) *wire.Subscribe {
	return &wire.Subscribe{Tenant: "t1", Namespace: "ns", Stream: stream, Start: start}
}

var (
	latest   = wire.Start{}
	earliest = wire.Start{Kind: wire.StartEarliest}
)

func at(o uint64) wire.Start { return wire.Start{Kind: wire.StartOffset, Offset: o} }

// fill publishes n records and waits for the last answer.
func (p *peer) fill(stream string, n int) {
	p.t.Helper()
	texts := numbered(n)
	for first := 0; first < n; first += 100 {
		p.publish(acked(1, batch(stream, texts[first:min(n, first+100)]...)))
		a := p.ack()
		require.False(p.t, a.Failed, a.Failure.Message)
	}
}

func TestSubscribeStarts(t *testing.T) {
	w := newWorld(t)
	w.dial(transportTCP).login().fill("orders", 10)
	transports(t, func(t *testing.T, transport string) {
		h := w.dial(transport)
		for _, tc := range []struct {
			start wire.Start
			first uint64
		}{{earliest, 0}, {at(0), 0}, {at(4), 4}, {at(9), 9}} {
			s, events := h.subscribe(subscribeTo("orders", tc.start))
			require.Equal(t, &wire.Subscribed{SubscriptionID: s.SubscriptionID, StartOffset: tc.first, HasStartOffset: true, LiveOffset: 10, HasLiveOffset: true}, s)
			require.Equal(t, numbered(10)[tc.first:], events.collect(tc.first, 10-int(tc.first)))
			events.abandon()
		}
		for _, start := range []wire.Start{latest, {Kind: wire.StartLatest}, at(10)} {
			s, events := h.subscribe(subscribeTo("orders", start))
			require.Equal(t, uint64(10), s.StartOffset)
			require.Equal(t, uint64(10), s.LiveOffset)
			events.abandon()
		}
		for _, o := range []uint64{11, 1 << 63, 1<<64 - 1} {
			p := h.login()
			p.send(subscribeTo("orders", at(o)))
			require.Equal(t, &wire.SubscribeCursorError{InFuture: true, Requested: o, Available: 10}, p.recv())
			p.send(&wire.StreamRead{Tenant: "t1", Namespace: "ns", Stream: "orders", From: o, RequestID: 1})
			require.Equal(t, &wire.SubscribeCursorError{InFuture: true, Requested: o, Available: 10}, p.recv())
		}
	})
}

func TestSubscribeShapes(t *testing.T) {
	w := newWorld(t)
	before := uint64(time.Now().UnixMicro())
	w.dial(transportTCP).login().fill("orders", 3)
	transports(t, func(t *testing.T, transport string) {
		h := w.dial(transport)
		for _, tc := range []struct {
			flags wire.Flags
			has   bool
			want  wire.Flags
		}{
			{0, false, 0x0004},
			{wire.FlagsOriginal, true, 0x0004},
			{wire.FlagEventBatchOffsets, true, 0x0024},
			{wire.FlagsKnown &^ (wire.FlagEventBatchPublisher | wire.FlagEventBatchTimestamps), true, 0x0024},
			{wire.FlagsKnown, true, 0x4024},
		} {
			p := h.open()
			p.send(&wire.Auth{Tenant: "t1", Token: w.token, HasClientFlags: tc.has, ClientFlags: tc.flags})
			p.recv()
			s, events := p.subscribe(subscribeTo("orders", earliest))
			require.Equal(t, tc.flags.Has(wire.FlagEventBatchOffsets), s.HasStartOffset)
			require.Equal(t, s.HasStartOffset, s.HasLiveOffset)
			e, texts := events.events()
			require.Equal(t, tc.want, e.Shape)
			require.Equal(t, numbered(3), texts)
			for _, at := range e.Timestamps {
				require.GreaterOrEqual(t, at, before)
				require.LessOrEqual(t, at, uint64(time.Now().UnixMicro()))
			}
			events.abandon()
		}
	})
}

func TestSubscribeQueueCapacity(t *testing.T) {
	w := newWorld(t)
	h := w.dial(transportQUIC)
	for ask, want := range map[uint32]uint32{0: 1, 1: 1, 100: 100, 4096: 4096, 5000: 4096, 1<<32 - 1: 4096} {
		m := subscribeTo("memory", latest)
		m.QueueCapacity, m.HasQueueCapacity = ask, true
		s, events := h.subscribe(m)
		require.True(t, s.HasQueueCapacity)
		require.Equal(t, want, s.QueueCapacity, "asked %d", ask)
		events.abandon()
	}
}

func TestSubscribeRefused(t *testing.T) {
	w := newWorld(t)
	transports(t, func(t *testing.T, transport string) {
		p := w.dial(transport).login()
		m := subscribeTo("wide", latest)
		m.Shard = 4
		p.send(m, subscribeTo("absent", latest))
		require.Equal(t, wire.CodeInvalidRequest, p.recv().(*wire.Error).Failure.Code)
		f := p.recv().(*wire.Error).Failure
		require.Equal(t, wire.CodeNotFound, f.Code)
		require.Equal(t, wire.RetryAfter, f.Retry)
		// And the stream is still good.
		_, events := p.subscribe(subscribeTo("wide", latest))
		events.abandon()
	})
}

// The client's FIN after subscribing is no unsubscribe; not reading any more is.
func TestUnsubscribe(t *testing.T) {
	w := newWorld(t)
	subscribed := func() int {
		n := 0
		w.server.mu.Lock()
		defer w.server.mu.Unlock()
		for c := range w.server.mu.connections {
			c.mu.Lock()
			n += c.mu.subscriptions
			c.mu.Unlock()
		}
		return n
	}
	transports(t, func(t *testing.T, transport string) {
		h := w.dial(transport)
		_, events := h.subscribe(subscribeTo("orders", latest))
		w.dial(transportTCP).login().fill("orders", 1)
		events.events()
		require.Equal(t, 1, subscribed())
		events.abandon()
		w.eventually("freed", func() bool { return subscribed() == 0 })

		// So does the end of the connection.
		_, events = h.subscribe(subscribeTo("orders", latest))
		if h.quic != nil {
			closeQUIC(h.quic, 0, "")
		} else {
			events.finish()
		}
		w.eventually("freed", func() bool { return subscribed() == 0 })
	})
}

// On TCP the connection carries nothing but events once it is subscribed.
func TestRequestsBehindASubscription(t *testing.T) {
	w := newWorld(t)
	p := w.dial(transportTCP).login()
	// What was asked before is answered before.
	p.publish(acked(1, orders("first")))
	p.send(subscribeTo("orders", earliest))
	require.Equal(t, uint64(1), p.ack().RequestID)
	require.IsType(t, &wire.Subscribed{}, p.recv())
	require.IsType(t, &wire.EventStreamHello{}, p.recv())
	_, texts := p.events()
	require.Equal(t, []string{"first"}, texts)
	p.publish(acked(2, orders("second")))
	w.eventually("refused", func() bool { return w.refused[RefusedRequest] == 1 })
	for {
		if _, err := p.next(); err != nil {
			break
		}
	}
}

func TestSubscriptionsAreCapped(t *testing.T) {
	w := newWorld(t, withLimits(Limits{Subscriptions: 2}))
	h := w.dial(transportQUIC)
	_, first := h.subscribe(subscribeTo("memory", latest))
	h.subscribe(subscribeTo("memory", latest))
	p := h.login()
	p.send(subscribeTo("memory", latest))
	f := p.recv().(*wire.Error).Failure
	require.Equal(t, wire.CodeLimitExceeded, f.Code)
	require.Equal(t, wire.RetryFatal, f.Retry)
	require.Equal(t, 1, w.refusals(RefusedSubscriptions))
	first.abandon()
	w.repeat("a place is free", func() bool {
		p.send(subscribeTo("memory", latest))
		_, ok := p.recv().(*wire.Subscribed)
		return ok
	})
}

// A client that grants no event streams is told, and holds nothing.
func TestNoEventStreamGranted(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := quic.DialAddr(ctx, w.addr, w.client, &quic.Config{MaxIncomingUniStreams: -1})
	require.NoError(t, err)
	defer closeQUIC(conn, 0, "")
	p := (&host{w: w, quic: conn}).login()
	p.send(subscribeTo("memory", latest))
	require.Equal(t, wire.CodeLimitExceeded, p.recv().(*wire.Error).Failure.Code)
	p.publish(acked(1, batch("memory", "x")))
	require.False(t, p.ack().Failed)
}

func TestDeletedStreamEndsItsSubscriptions(t *testing.T) {
	w := newWorld(t)
	transports(t, func(t *testing.T, transport string) {
		name := "doomed-" + transport
		w.stream(name, w.durable(1))
		p := w.dial(transport).login()
		p.fill(name, 5)
		_, events := w.dial(transport).subscribe(subscribeTo(name, earliest))
		require.Len(t, events.collect(0, 5), 5)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, w.broker.DeleteStream(ctx, "t1", "ns", name))
		require.ErrorIs(t, events.gone(), io.EOF)
		p.publish(acked(1, batch(name, "x")))
		require.Equal(t, wire.CodeNotFound, p.ack().Failure.Code)
	})
}

// Each large record goes in a frame of its own, none is cut.
func TestLargeEvents(t *testing.T) {
	w := newWorld(t)
	transports(t, func(t *testing.T, transport string) {
		name := "large-" + transport
		w.stream(name, w.durable(1))
		p := w.dial(transport).login()
		sizes := []int{0, 1, 70 << 10, 300 << 10, 1 << 20, 5}
		for i, n := range sizes {
			p.publish(acked(uint64(i), batch(name, strings.Repeat(string(rune('a'+i)), n))))
			a := p.ack()
			require.False(t, a.Failed, a.Failure.Message)
		}
		_, events := w.dial(transport).subscribe(subscribeTo(name, earliest))
		for i, text := range events.collect(0, len(sizes)) {
			require.Equal(t, sizes[i], len(text))
			require.Equal(t, sizes[i], strings.Count(text, string(rune('a'+i))))
		}
	})
}

// Records published while many subscribers come and go reach each that stays, once and
// in order.
func TestSubscribersUnderLoad(t *testing.T) {
	w := newWorld(t)
	const n = 3000
	texts := numbered(n)
	transports(t, func(t *testing.T, transport string) {
		name := "busy-" + transport
		w.stream(name, w.durable(1))
		h := w.dial(transport)
		_, live := h.subscribe(subscribeTo(name, latest))
		done := make(chan struct{})
		p := w.dial(transport).login()
		go func() {
			defer close(done)
			for i := range n {
				if _, err := p.rw.Write(wire.AppendPublishBatch(nil, batch(name, texts[i]))); err != nil {
					return
				}
			}
		}()
		for range 5 {
			_, events := h.subscribe(subscribeTo(name, earliest))
			require.Equal(t, texts[:100], events.collectAtLeast(0, 100)[:100])
			events.abandon()
		}
		require.Equal(t, texts, live.collect(0, n))
		<-done
		_, events := h.subscribe(subscribeTo(name, earliest))
		require.Equal(t, texts, events.collect(0, n))
	})
}

func (p *peer) collectAtLeast(first uint64, n int) []string {
	p.t.Helper()
	var all []string
	for len(all) < n {
		e, texts := p.events()
		require.Equal(p.t, first+uint64(len(all)), e.BaseOffset)
		all = append(all, texts...)
	}
	return all
}
