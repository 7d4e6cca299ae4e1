package server

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/vfs"
	"github.com/felixlog/felix/wire"
)

// How each form of publish is answered, to each kind of client (docs/protocol).
func TestAnswersOfPublishes(t *testing.T) {
	w := newWorld(t)
	payload := [][]byte{[]byte("x")}
	scope := func() (string, string, string) { return "t1", "ns", "orders" }
	tenant, ns, stream := scope()
	transports(t, func(t *testing.T, transport string) {
		next := uint64(0)
		if transport == transportQUIC {
			st, err := w.broker.Stream(tenant, ns, stream)
			require.NoError(t, err)
			p, err := st.Shard(0)
			require.NoError(t, err)
			next = uint64(p.Positions().Next)
		}
		h := w.dial(transport)
		for _, offsets := range []bool{true, false} {
			p := h.open()
			flags := wire.FlagsKnown
			if !offsets {
				flags &^= wire.FlagBinaryPublishAckOffset
			}
			p.send(&wire.Auth{Tenant: "t1", Token: w.token, HasClientFlags: true, ClientFlags: flags, Features: everything})
			p.recv()
			// Unacked ones are never answered, whether they succeed or fail.
			p.publish(orders("a"))
			p.publish(batch("absent", "a"))
			p.send(&wire.Publish{Tenant: tenant, Namespace: ns, Stream: stream, Payload: payload[0]},
				&wire.PublishBatch{Tenant: tenant, Namespace: ns, Stream: "absent", Payloads: payload, RequestID: 3, HasRequestID: true})
			next += 2

			p.publish(acked(1, orders("a", "b")))
			require.Equal(t, wire.PublishAck{RequestID: 1, HasOffset: offsets, Offset: next * b2u(offsets)}, p.ack())
			next += 2
			ok := func(id uint64) *wire.PublishOK {
				return &wire.PublishOK{RequestID: id, HasOffset: offsets, Offset: next * b2u(offsets)}
			}
			p.send(&wire.Publish{Tenant: tenant, Namespace: ns, Stream: stream, Payload: payload[0], RequestID: 2, HasRequestID: true, Ack: wire.AckPerMessage})
			require.Equal(t, ok(2), p.recv())
			next++
			p.send(&wire.PublishBatch{Tenant: tenant, Namespace: ns, Stream: stream, Payloads: payload, RequestID: 3, HasRequestID: true, Ack: wire.AckPerBatch})
			require.Equal(t, ok(3), p.recv())
			next++
			p.send(&wire.PublishIf{Tenant: tenant, Namespace: ns, Stream: stream, Payloads: payload, ExpectedOffset: next, RequestID: 4})
			require.Equal(t, ok(4), p.recv())
			next++
			p.send(&wire.PublishIf{Tenant: tenant, Namespace: ns, Stream: stream, Payloads: payload, ExpectedOffset: next + 1, RequestID: 5})
			refused := p.recv().(*wire.PublishRefused)
			require.Equal(t, wire.RefusedOffsetMismatch, refused.Reason)
			require.Equal(t, next, refused.Tail)
			p.send(&wire.ProducerInit{RequestID: 6})
			producer := p.recv().(*wire.ProducerInitOK).ProducerID
			p.send(&wire.PublishIdempotent{Tenant: tenant, Namespace: ns, Stream: stream, Payloads: payload, RequestID: 7, ProducerID: producer})
			require.Equal(t, ok(7), p.recv())
			next++
			// Binary idempotent ones are answered in JSON.
			f := acked(8, orders("z"))
			f.Idempotent, f.ProducerID, f.Sequence = true, producer, 1
			p.publish(f)
			require.Equal(t, ok(8), p.recv())
			p.publish(f) // again: the same answer, nothing written
			require.Equal(t, ok(8), p.recv())
			next++
			f.Sequence = 5
			p.publish(f)
			gap := p.recv().(*wire.PublishRefused)
			require.Equal(t, wire.RefusedSequenceGap, gap.Reason)
			require.Equal(t, uint64(2), gap.Expected)
			f = acked(9, orders("other"))
			f.Idempotent, f.ProducerID, f.Sequence = true, producer, 1
			p.publish(f)
			require.Equal(t, wire.RefusedSequenceReused, p.recv().(*wire.PublishRefused).Reason)
			f.ProducerID++
			p.publish(f)
			require.Equal(t, wire.RefusedUnknownProducer, p.recv().(*wire.PublishRefused).Reason)

			// Failures.
			p.publish(acked(10, batch("absent", "x")))
			a := p.ack()
			require.True(t, a.Failed && a.HasCode)
			require.Equal(t, wire.CodeNotFound, a.Failure.Code)
			require.Equal(t, wire.RetryAfter, a.Failure.Retry)
			p.send(&wire.Publish{Tenant: tenant, Namespace: ns, Stream: "absent", RequestID: 11, HasRequestID: true, Ack: wire.AckPerMessage})
			e := p.recv().(*wire.PublishError)
			require.Equal(t, uint64(11), e.RequestID)
			require.Equal(t, wire.CodeNotFound, e.Failure.Code)
		}
	})
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// A client that offered nothing gets texts and nothing more.
func TestAnswersWithoutNegotiation(t *testing.T) {
	w := newWorld(t)
	transports(t, func(t *testing.T, transport string) {
		p := w.dial(transport).open()
		p.send(&wire.Auth{Tenant: "t1", Token: w.token})
		require.Equal(t, &wire.OK{}, p.recv())
		p.publish(acked(1, orders("x")))
		require.Equal(t, wire.PublishAck{RequestID: 1}, p.ack())
		p.publish(acked(2, batch("absent", "x")))
		a := p.ack()
		require.True(t, a.Failed)
		require.False(t, a.HasCode || a.HasDetail)
		require.NotEmpty(t, a.Failure.Message)
		p.send(&wire.Publish{Tenant: "t1", Namespace: "ns", Stream: "absent", RequestID: 3, HasRequestID: true, Ack: wire.AckPerBatch})
		e := p.recv().(*wire.PublishError)
		require.Equal(t, &wire.PublishError{RequestID: 3, Failure: wire.Failure{Message: e.Failure.Message}}, e)
		// A reused sequence reads as ok to who cannot read the refusal.
		p.send(&wire.PublishIdempotent{Tenant: "t1", Namespace: "ns", Stream: "orders", Payloads: [][]byte{[]byte("a")}, RequestID: 4, ProducerID: 77},
			&wire.PublishIdempotent{Tenant: "t1", Namespace: "ns", Stream: "orders", Payloads: [][]byte{[]byte("b")}, RequestID: 5, ProducerID: 77})
		require.Equal(t, &wire.PublishOK{RequestID: 4}, p.recv())
		require.Equal(t, &wire.PublishOK{RequestID: 5}, p.recv())
		p.finish()
		require.ErrorIs(t, p.gone(), io.EOF)
	})
}

func TestKeysAndShards(t *testing.T) {
	w := newWorld(t)
	p := w.dial(transportTCP).login()
	counts := map[uint32]uint64{}
	for i := range 40 {
		key := fmt.Sprint("key", i)
		f := acked(uint64(i), batch("wide", key))
		f.HasKey, f.Key = true, []byte(key)
		shard := uint32(wire.Shard(wire.RoutingModulo, f.Key, 4))
		p.publish(f)
		require.Equal(t, counts[shard], p.ack().Offset)
		counts[shard]++
	}
	for _, tc := range []struct {
		key      string
		hasKey   bool
		shard    uint32
		hasShard bool
		code     wire.Code
	}{
		{"", false, 3, true, 0},
		{"", false, 4, true, wire.CodeInvalidRequest},
		{"", false, 1<<32 - 1, true, wire.CodeInvalidRequest},
		{"k", true, 0, true, wire.CodeInvalidRequest},
		{"", true, 0, false, 0},
	} {
		p.send(&wire.Publish{Tenant: "t1", Namespace: "ns", Stream: "wide", Key: []byte(tc.key), HasKey: tc.hasKey,
			Shard: tc.shard, HasShard: tc.hasShard, RequestID: 1, HasRequestID: true, Ack: wire.AckPerMessage})
		switch m := p.recv().(type) {
		case *wire.PublishOK:
			require.Zero(t, tc.code)
			shard := tc.shard
			if tc.hasKey {
				shard = uint32(wire.Shard(wire.RoutingModulo, []byte(tc.key), 4))
			}
			require.Equal(t, counts[shard], m.Offset)
			counts[shard]++
		case *wire.PublishError:
			require.Equal(t, tc.code, m.Failure.Code)
		}
	}
}

// A record over the limit is refused by name, and the next one is not hurt; the largest
// allowed is taken. (A frame over the frame limit ends the stream.)
func TestRecordLimit(t *testing.T) {
	w := newWorld(t)
	transports(t, func(t *testing.T, transport string) {
		p := w.dial(transport).login()
		const most = 8 << 20
		p.publish(acked(1, orders(strings.Repeat("x", most+1))))
		a := p.ack()
		require.True(t, a.Failed)
		require.Equal(t, wire.CodeLimitExceeded, a.Failure.Code)
		require.Equal(t, wire.RetryFatal, a.Failure.Retry)
		require.Contains(t, a.Failure.Message, fmt.Sprint(most))
		p.publish(acked(2, orders(strings.Repeat("y", 128))))
		require.False(t, p.ack().Failed)
		p.publish(acked(3, orders(strings.Repeat("z", most))))
		require.False(t, p.ack().Failed)
		p.publish(acked(4, orders()))
		a = p.ack()
		require.Equal(t, uint64(4), a.RequestID)
		require.False(t, a.HasOffset)
		p.publish(acked(5, orders("")))
		require.False(t, p.ack().Failed)
	})
}

// Publishes of one stream are answered in its order, whichever shards they went to.
func TestPipelinedOrderOverShards(t *testing.T) {
	w := newWorld(t)
	transports(t, func(t *testing.T, transport string) {
		p := w.dial(transport).login()
		const n = 2000
		go func() {
			for id := range uint64(n) {
				f := acked(id, batch("wide", "x"))
				f.HasKey, f.Key = true, []byte(fmt.Sprint(id))
				if _, err := p.rw.Write(wire.AppendPublishBatch(nil, f)); err != nil {
					return
				}
			}
		}()
		for id := range uint64(n) {
			a := p.ack()
			require.Equal(t, id, a.RequestID)
			require.False(t, a.Failed, a.Failure.Message)
		}
	})
}

// A unidirectional stream takes publishes, answers nothing, and ends at anything else.
func TestUniPublish(t *testing.T) {
	w := newWorld(t)
	h := w.dial(transportQUIC)
	_, events := h.subscribe(subscribeTo("memory", latest))
	open := func(token string) interface {
		io.WriteCloser
	} {
		s, err := h.quic.OpenUniStream()
		require.NoError(t, err)
		_, err = s.Write(wire.AppendMessage(nil, &wire.Auth{Tenant: "t1", Token: token, HasClientFlags: true, Features: everything}))
		require.NoError(t, err)
		return s
	}
	write := func(s io.Writer, b []byte) {
		_, err := s.Write(b)
		require.NoError(t, err)
	}
	s := open(w.token)
	write(s, wire.AppendPublishBatch(nil, acked(1, batch("memory", "binary"))))
	write(s, wire.AppendMessage(nil, &wire.Publish{Tenant: "t1", Namespace: "ns", Stream: "memory", Payload: []byte("json"), Ack: wire.AckPerMessage}))
	write(s, wire.AppendPublishBatch(nil, batch("absent", "refused in silence")))
	write(s, wire.AppendPublishBatch(nil, batch("memory", "last")))
	require.NoError(t, s.Close())
	var got []string
	for len(got) < 3 {
		_, texts := events.events()
		got = append(got, texts...)
	}
	require.Equal(t, []string{"binary", "json", "last"}, got)

	for name, frame := range map[string][]byte{
		"another request": wire.AppendMessage(nil, &wire.ProducerInit{}),
		"unknown":         append(wire.AppendHeader(nil, 0, 12), `{"type":"x"}`...),
		"malformed":       append(wire.AppendHeader(nil, 1, 1), 0),
	} {
		s := open(w.token)
		write(s, frame)
		w.stopped(name, s)
	}
	w.stopped("bad token", open("x"))
}

// stopped waits until the server stops reading s.
func (w *world) stopped(name string, s io.Writer) {
	w.t.Helper()
	w.repeat(name, func() bool {
		_, err := s.Write(wire.AppendPublishBatch(nil, batch("absent", "x")))
		return err != nil
	})
}

// With pipelining or not, one stream's JSON and binary publishes and other requests mix.
func TestMixedRequestsOnOneStream(t *testing.T) {
	w := newWorld(t)
	p := w.dial(transportTCP).login()
	var script []byte
	for id := range uint64(50) {
		script = wire.AppendPublishBatch(script, acked(3*id, orders("x")))
		script = wire.AppendMessage(script, &wire.StreamShards{Tenant: "t1", Namespace: "ns", Stream: "orders", RequestID: 3*id + 1})
		script = wire.AppendMessage(script, &wire.Publish{Tenant: "t1", Namespace: "ns", Stream: "orders", RequestID: 3*id + 2, HasRequestID: true, Ack: wire.AckPerMessage})
	}
	p.sendRaw(script)
	p.finish()
	var publishes, requests []uint64
	for {
		f, err := p.next()
		if err != nil {
			require.ErrorIs(t, err, io.EOF)
			break
		}
		if f.Flags != 0 {
			var a wire.PublishAck
			require.NoError(t, a.Decode(f.Flags, f.Payload))
			publishes = append(publishes, a.RequestID)
			continue
		}
		m, err := wire.DecodeMessage(f.Payload)
		require.NoError(t, err)
		switch m := m.(type) {
		case *wire.PublishOK:
			publishes = append(publishes, m.RequestID)
		case *wire.StreamShardsView:
			requests = append(requests, m.RequestID)
		}
	}
	require.Len(t, requests, 50)
	require.Len(t, publishes, 100)
	for i := range uint64(50) {
		require.Equal(t, 3*i+1, requests[i])
		require.Equal(t, []uint64{3 * i, 3*i + 2}, publishes[2*i:2*i+2])
	}
}

// Behind a large burst the reader goes on while its log flushes, unless it has nothing else
// in flight: what comes next is queued by then, or written where no flush is waited for.
func TestALargeBurstIsNotFlushedByItsReader(t *testing.T) {
	faulty := disk.NewFaulty(vfs.OS())
	w := newWorldOf(t, broker.Options{FS: faulty})
	w.stream("flushed", meta.Stream{Shards: 1, Durable: true, Fsync: meta.FsyncOnCommit})
	p := w.dial(transportTCP).login()
	for id, stream := range []string{"orders", "flushed"} {
		p.publish(acked(uint64(id), batch(stream, "opens it")))
		require.False(t, p.ack().Failed)
	}
	release := w.blocked("blocked")
	p.publish(acked(2, batch("blocked", "stays in flight")))
	flushes, writes := disk.NewGate(), disk.NewGate()
	defer flushes.Open()
	writes.Open()
	faulty.Add(disk.Rule{Op: disk.OpFlush, Path: "*.log", Action: disk.Hold(flushes)})
	p.publish(acked(3, batch("flushed", strings.Repeat("x", 2*inlineMost))))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, flushes.Await(ctx, 1))
	faulty.Add(disk.Rule{Op: disk.OpWrite, Path: "*.log", Action: disk.Hold(writes)})
	p.publish(acked(4, batch("orders", "y")))
	require.NoError(t, writes.Await(ctx, 1))
	flushes.Open()
	release()
	for id := range uint64(3) {
		ack := p.ack()
		require.Equal(t, 2+id, ack.RequestID)
		require.False(t, ack.Failed)
	}
}
