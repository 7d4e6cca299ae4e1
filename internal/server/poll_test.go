package server

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/wire"
)

// groups are the consumer groups of the first shard of a stream.
func (w *world) groups(stream string) *partition.Groups {
	w.t.Helper()
	st, err := w.broker.Stream("t1", "ns", stream)
	require.NoError(w.t, err)
	shard, err := st.Shard(0)
	require.NoError(w.t, err)
	g, err := shard.Groups(context.Background())
	require.NoError(w.t, err)
	return g
}

// A client that goes while its poll waits is handed nothing: whether it closes its
// stream or connection, resets it, or stops reading.
func TestAPollEndsWithItsClient(t *testing.T) {
	w := newWorld(t)
	transports(t, func(t *testing.T, transport string) {
		stream := "jobs-" + transport
		w.stream(stream, w.durable(1))
		g := w.groups(stream)
		ref := wire.GroupRef{Tenant: "t1", Namespace: "ns", Stream: stream, Group: "g"}
		ways := map[string]func(*peer){"abandon": func(p *peer) { p.abandon() }}
		if transport == transportTCP {
			ways["close"] = func(p *peer) { p.finish() }
		} else {
			ways["connection"] = func(p *peer) { closeQUIC(p.host.quic, 0, "") }
		}
		for way, leave := range ways {
			p := w.dial(transport).login()
			// Something more has arrived behind the poll, which is not read meanwhile.
			p.send(&wire.GroupPoll{GroupRef: ref, MaxRecords: 10, WaitMillis: 30_000, RequestID: 1}, &wire.ProducerInit{RequestID: 2})
			w.repeat(way+": the poll waits", func() bool { return g.Waiting("g") == 1 })
			leave(p)
			w.repeat(way+": the poll ends", func() bool { return g.Waiting("g") == 0 })
		}
		other := w.dial(transport).login()
		other.publish(acked(1, batch(stream, "x")))
		require.False(t, other.ack().Failed)
		other.send(&wire.GroupPoll{GroupRef: ref, MaxRecords: 10})
		records := other.recv().(*wire.GroupRecords).Records
		require.Len(t, records, 1)
		require.EqualValues(t, 1, records[0].Attempts)
	})
}

// A client over QUIC that has asked finishes its side and is answered all the same.
func TestAPollOutlivesTheEndOfAsking(t *testing.T) {
	w := newWorld(t)
	w.stream("jobs", w.durable(1))
	g := w.groups("jobs")
	p := w.dial(transportQUIC).login()
	ref := wire.GroupRef{Tenant: "t1", Namespace: "ns", Stream: "jobs", Group: "g"}
	p.send(&wire.GroupPoll{GroupRef: ref, MaxRecords: 10, WaitMillis: 30_000, RequestID: 1})
	p.finish()
	w.repeat("the poll waits", func() bool { return g.Waiting("g") == 1 })
	other := w.dial(transportQUIC).login()
	other.publish(acked(1, batch("jobs", "x")))
	require.False(t, other.ack().Failed)
	require.Len(t, p.recv().(*wire.GroupRecords).Records, 1)
}

// Claims whose answer cannot be written are given back, and the delivery is not counted.
func TestClaimsThatWereNotSentAreGivenBack(t *testing.T) {
	w := newWorld(t)
	w.stream("jobs", w.durable(1))
	g := w.groups("jobs")
	p := w.dial(transportTCP).login()
	p.publish(acked(1, batch("jobs", "a", "b")))
	require.False(t, p.ack().Failed)

	var s session
	s.server, s.conn = w.server, w.server.newConnection(context.Background(), "test", nil)
	s.out.init(failingWriter{}, 1<<20, s.conn.run, func(error) {}, func() {})
	claim := func() *handout {
		h := &handout{s: &s, g: g, group: "g"}
		require.NoError(t, g.Poll(context.Background(), partition.PollCall{Group: "g", Max: 10}, &h.polled))
		require.Len(t, h.polled.Records, 2, "claims stay")
		require.EqualValues(t, 1, h.polled.Records[0].Attempts)
		return h
	}
	for _, late := range []bool{false, true} {
		h := claim()
		if !late {
			s.out.hold()
		}
		s.answerOr(&h.answer, h)
		s.out.flush()
		s.conn.running.Wait()
	}
	claim()
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("the client is gone") }

// An ack and a poll that arrive together are decided together and answered in one write,
// whether the poll says that it would wait or not; one that finds nothing does not keep
// the ack's answer.
func TestGuardAcksAndPollsShareAWrite(t *testing.T) {
	w := newWorld(t)
	w.stream("jobs", w.durable(1))
	g := w.groups("jobs")
	p := w.dial(transportTCP).login()
	const records = 20
	p.publish(acked(1, batch("jobs", numbered(records)...)))
	require.False(t, p.ack().Failed)
	ref := wire.GroupRef{Tenant: "t1", Namespace: "ns", Stream: "jobs", Group: "g"}
	p.send(&wire.GroupPoll{GroupRef: ref, MaxRecords: 1})
	at := p.recv().(*wire.GroupRecords).Records[0].Offset
	buf := make([]byte, 1<<16) // a read brings what one write wrote, at most
	for i := range records - 1 {
		p.send(&wire.GroupAck{GroupRef: ref, Offset: at, RequestID: 2}, &wire.GroupPoll{GroupRef: ref, MaxRecords: 1, WaitMillis: uint64(i % 2 * 30_000), RequestID: 3})
		n, err := p.rw.Read(buf)
		require.NoError(t, err)
		r := wire.NewReader(bytes.NewReader(buf[:n]), 1<<20)
		var got []wire.Message
		for f, err := r.Next(); err == nil; f, err = r.Next() {
			m, err := wire.DecodeMessage(f.Payload)
			require.NoError(t, err)
			got = append(got, m)
		}
		require.Len(t, got, 2)
		require.Equal(t, &wire.CacheOK{RequestID: 2}, got[0])
		at = got[1].(*wire.GroupRecords).Records[0].Offset
		require.EqualValues(t, i+1, at)
	}
	p.send(&wire.GroupAck{GroupRef: ref, Offset: at, RequestID: 2}, &wire.GroupPoll{GroupRef: ref, MaxRecords: 1, WaitMillis: 30_000, RequestID: 3})
	require.Equal(t, &wire.CacheOK{RequestID: 2}, p.recv())
	w.repeat("the poll waits", func() bool { return g.Waiting("g") == 1 })
}
