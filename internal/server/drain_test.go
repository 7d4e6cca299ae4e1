package server

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

// A drain ends subscriptions after what is there for them, answers an auth with
// draining, refuses new connections, and then every connection is told.
func TestDrain(t *testing.T) {
	w := newWorld(t)
	var ends []*peer
	hosts := map[string]*host{}
	transports(t, func(t *testing.T, transport string) {
		h := w.dial(transport)
		hosts[transport] = h
		name := "drained-" + transport
		w.stream(name, w.durable(1))
		h.login().fill(name, 5)
		s, moved := h.subscribe(subscribeTo(name, earliest))
		require.Len(t, moved.collect(0, 5), 5)
		old := h.open()
		old.send(&wire.Auth{Tenant: "t1", Token: w.token, HasClientFlags: true, ClientFlags: wire.FlagEventBatchOffsets})
		old.recv()
		_, plain := old.subscribe(subscribeTo(name, at(5)))
		_, memory := h.subscribe(subscribeTo("memory", latest))
		ends = append(ends, moved, plain, memory)
		_ = s
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	late := hosts[transportQUIC].open()
	require.NoError(t, w.server.Drain(ctx))

	for i, p := range ends {
		switch i % 3 {
		case 0:
			m, ok := p.recv().(*wire.ShardMoved)
			require.True(t, ok)
			require.True(t, m.HasResumeFrom)
			require.Equal(t, uint64(5), m.ResumeFrom)
		case 2:
			m, ok := p.recv().(*wire.ShardMoved)
			require.True(t, ok)
			require.False(t, m.HasResumeFrom)
		}
		require.ErrorIs(t, p.gone(), io.EOF)
	}
	late.send(&wire.Auth{Tenant: "t1", Token: w.token, HasClientFlags: true, Features: wire.FeatureErrorCodes})
	f := late.recv().(*wire.Error).Failure
	require.Equal(t, wire.CodeDraining, f.Code)
	require.Equal(t, wire.RetryNow, f.Retry)

	_, err := quic.DialAddr(ctx, w.addr, w.client, nil)
	refused, ok := errors.AsType[*quic.TransportError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, quic.ConnectionRefused, refused.ErrorCode)

	w.stop()
	conn := hosts[transportQUIC].quic
	select {
	case <-conn.Context().Done():
	case <-time.After(patience):
		t.Fatal("the connection stays")
	}
	app, ok := errors.AsType[*quic.ApplicationError](context.Cause(conn.Context()))
	require.True(t, ok, "%v", context.Cause(conn.Context()))
	require.EqualValues(t, closeShutdown, app.ErrorCode)
}

// A drain ends watches as it does subscriptions, after what is there for them.
func TestDrainEndsWatches(t *testing.T) {
	w := newWorld(t)
	w.cache("kept", 1)
	var ends []*peer
	transports(t, func(t *testing.T, transport string) {
		h := w.dial(transport)
		p := h.login()
		p.send(&wire.CachePut{Tenant: "t1", Namespace: "ns", Cache: "kept", Key: transport, Value: []byte("v"), RequestID: 1, HasRequestID: true})
		require.IsType(t, &wire.CacheOK{}, p.recv())
		for _, features := range []wire.Features{everything, everything &^ wire.FeatureShardMoved} {
			p := h.open()
			p.send(&wire.Auth{Tenant: "t1", Token: w.token, ClientFlags: wire.FlagsKnown, HasClientFlags: true, Features: features})
			require.IsType(t, &wire.AuthOK{}, p.recv())
			p.send(&wire.CacheWatch{Tenant: "t1", Namespace: "ns", Cache: "kept", Key: transport, HasKey: true, Retained: true})
			if h.quic != nil {
				p.finish()
			}
			started := p.recv().(*wire.CacheWatchStarted)
			require.EqualValues(t, 1, started.RetainedCount)
			events := p.eventStream()
			require.IsType(t, &wire.EventStreamHello{}, events.recv())
			require.Equal(t, "v", string(events.recv().(*wire.CacheEvent).Value))
			ends = append(ends, events)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, w.server.Drain(ctx))
	for i, p := range ends {
		if i%2 == 0 {
			m := p.recv().(*wire.ShardMoved)
			require.True(t, m.HasResumeFrom)
			require.Positive(t, m.ResumeFrom)
		}
		require.ErrorIs(t, p.gone(), io.EOF)
	}
}

// A drain waits for publishes in flight and no longer than it is given.
func TestDrainWaitsForPublishes(t *testing.T) {
	w := newWorld(t)
	release := w.blocked("window")
	p := w.dial(transportQUIC).login()
	p.publish(acked(1, batch("window", "x")))
	w.eventually("in flight", func() bool { return w.inFlight("window") == 1 })

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, w.server.Drain(ctx), context.DeadlineExceeded)
	release()
	ctx, cancel = context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, w.server.Drain(ctx))
	require.False(t, p.ack().Failed)
}

func TestServeTwice(t *testing.T) {
	w := newWorld(t)
	w.dial(transportTCP).login()
	require.Error(t, w.server.Serve(context.Background(), nil, nil))
}

// Every limit that makes no sense is refused by name.
func TestLimitsAreChecked(t *testing.T) {
	good := Limits{}.withDefaults()
	require.NoError(t, good.validate())
	for name, change := range map[string]func(*Limits){
		"connections":    func(l *Limits) { l.Connections = -1 },
		"frame bytes":    func(l *Limits) { l.FrameBytes = 10 },
		"publish window": func(l *Limits) { l.PublishWindow = -1 },
		"keep-alive":     func(l *Limits) { l.KeepAlive = l.IdleTimeout },
	} {
		l := good
		change(&l)
		require.ErrorContains(t, l.validate(), name)
	}
}
