package server

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/wire"
)

func TestTopologyRequests(t *testing.T) {
	w := newWorld(t)
	w.stream("jump", meta.Stream{Shards: 3, Routing: meta.RoutingJumpHash})
	w.cache("kept", 2)
	transports(t, func(t *testing.T, transport string) {
		p := w.dial(transport).login()
		for _, tc := range []struct{ ask, want wire.Message }{
			{&wire.StreamShards{Tenant: "t1", Namespace: "ns", Stream: "wide", RequestID: 5}, &wire.StreamShardsView{Shards: 4, RequestID: 5, HasRouting: true}},
			{&wire.StreamShards{Tenant: "t1", Namespace: "ns", Stream: "jump", RequestID: 6},
				&wire.StreamShardsView{Shards: 3, RequestID: 6, HasRouting: true, Routing: wire.RoutingJump}},
			{&wire.StreamShards{Tenant: "t1", Namespace: "ns", Stream: "absent", RequestID: 7}, &wire.StreamShardsView{RequestID: 7}},
			{&wire.StreamShards{Tenant: "t1", Namespace: "absent", Stream: "../x", RequestID: 7}, &wire.StreamShardsView{RequestID: 7}},
			{&wire.ShardOwners{Tenant: "t1", Namespace: "ns", Name: "jump", RequestID: 8},
				&wire.ShardOwnersView{Owners: []wire.ShardOwner{{Shard: 0}, {Shard: 1}, {Shard: 2}}, RequestID: 8}},
			{&wire.ShardOwners{Tenant: "t1", Namespace: "ns", Name: "absent", RequestID: 9}, &wire.ShardOwnersView{RequestID: 9}},
			{&wire.ShardOwners{Tenant: "t1", Namespace: "ns", Name: "jump", Cache: true, RequestID: 9}, &wire.ShardOwnersView{RequestID: 9}},
			{&wire.ShardOwners{Tenant: "t1", Namespace: "ns", Name: "kept", Cache: true, RequestID: 10},
				&wire.ShardOwnersView{Owners: []wire.ShardOwner{{Shard: 0}, {Shard: 1}}, RequestID: 10}},
			{&wire.ShardOwners{Tenant: "t1", Namespace: "ns", Name: "kept", RequestID: 11}, &wire.ShardOwnersView{RequestID: 11}},
		} {
			p.send(tc.ask)
			got := p.recv()
			if v, ok := got.(*wire.ShardOwnersView); ok && len(v.Owners) == 0 {
				v.Owners = nil
			}
			require.Equal(t, tc.want, got)
		}
		p.send(&wire.ProducerInit{RequestID: 1}, &wire.ProducerInit{RequestID: 2})
		a, b := p.recv().(*wire.ProducerInitOK), p.recv().(*wire.ProducerInitOK)
		require.Equal(t, []uint64{1, 2}, []uint64{a.RequestID, b.RequestID})
		require.NotEqual(t, a.ProducerID, b.ProducerID)
	})
}

// Requests nobody serves are answered, and the stream goes on, for a client that can
// read the answer; for another the stream ends with the reason.
func TestUnsupported(t *testing.T) {
	w := newWorld(t)
	transports(t, func(t *testing.T, transport string) {
		h := w.dial(transport)
		p := h.login()
		unknown := func(text string) []byte {
			return append(wire.AppendHeader(nil, 0, uint32(len(text))), text...)
		}
		for _, tc := range []struct {
			frame []byte
			want  *wire.Unsupported
		}{
			{unknown(`{"type":"time_travel","request_id":7}`), &wire.Unsupported{RequestType: "time_travel", RequestID: 7, HasRequestID: true}},
			{unknown(`{"type":"time_travel","request_id":-7}`), &wire.Unsupported{RequestType: "time_travel"}},
			{unknown(`{"type":"time_travel"}`), &wire.Unsupported{RequestType: "time_travel"}},
			{wire.AppendMessage(nil, &wire.Topology{}), &wire.Unsupported{RequestType: "topology"}},
			{wire.AppendMessage(nil, &wire.StateGet{Tenant: "t1", Namespace: "ns", Stream: "s", EntityKey: []byte("e"), Key: "k", RequestID: 8}),
				&wire.Unsupported{RequestType: "state_get", RequestID: 8, HasRequestID: true}},
			{wire.AppendMessage(nil, &wire.Extension{Name: "x.y", RequestID: 3, HasRequestID: true}),
				&wire.Unsupported{RequestType: "extension", Extension: "x.y", RequestID: 3, HasRequestID: true}},
		} {
			p.sendRaw(tc.frame)
			require.Equal(t, tc.want, p.recv())
		}
		p.publish(acked(1, batch("memory", "still here")))
		require.Equal(t, uint64(1), p.ack().RequestID)

		old := h.open()
		old.send(&wire.Auth{Tenant: "t1", Token: w.token})
		old.recv()
		old.sendRaw(unknown(`{"type":"time_travel","request_id":7}`))
		require.IsType(t, &wire.Error{}, old.recv())
		require.ErrorIs(t, old.gone(), io.EOF)
	})
}

// What ends an authenticated stream: an error that says why, then the end.
func TestRefusedRequests(t *testing.T) {
	w := newWorld(t)
	raw := func(flags wire.Flags, text string) []byte {
		return append(wire.AppendHeader(nil, flags, uint32(len(text))), text...)
	}
	transports(t, func(t *testing.T, transport string) {
		h := w.dial(transport)
		for name, tc := range map[string]struct {
			frame []byte
			code  wire.Code
		}{
			"second auth":           {wire.AppendMessage(nil, &wire.Auth{Tenant: "t1", Token: w.token}), wire.CodeInvalidRequest},
			"an answer":             {wire.AppendMessage(nil, &wire.OK{}), wire.CodeInvalidRequest},
			"an event":              {wire.AppendMessage(nil, &wire.EventStreamHello{SubscriptionID: 1}), wire.CodeInvalidRequest},
			"no object":             {raw(0, `[1]`), wire.CodeInvalidRequest},
			"no type":               {raw(0, `{"a":1}`), wire.CodeInvalidRequest},
			"broken JSON":           {raw(0, `{"type":"publish"`), wire.CodeInvalidRequest},
			"not UTF-8":             {raw(0, "{\"type\":\"\xff\"}"), wire.CodeInvalidRequest},
			"undefined flag":        {raw(0x8000, "x"), wire.CodeInvalidRequest},
			"an ack":                {raw(wire.FlagBinaryPublishAck, "x"), wire.CodeInvalidRequest},
			"events":                {raw(wire.FlagBinaryEventBatchShared, "x"), wire.CodeInvalidRequest},
			"idempotent, not acked": {raw(wire.FlagBinaryPublishBatch|wire.FlagBinaryPublishIdempotent, "x"), wire.CodeInvalidRequest},
			"malformed, unacked":    {raw(wire.FlagBinaryPublishBatch, "x"), wire.CodeInvalidRequest},
			"wrong magic":           {[]byte("GET / HTTP/1.1"), wire.CodeInvalidRequest},
			"empty frame":           {wire.AppendHeader(nil, 0, 0), wire.CodeInvalidRequest},
			"frame over 16 MiB":     {wire.AppendHeader(nil, 1, 16<<20+1), wire.CodeLimitExceeded},
		} {
			t.Run(name, func(t *testing.T) {
				p := h.login()
				p.sendRaw(tc.frame)
				e, ok := p.recv().(*wire.Error)
				require.True(t, ok)
				require.Equal(t, tc.code, e.Failure.Code, e.Failure.Error())
				require.ErrorIs(t, p.gone(), io.EOF)
			})
		}
	})
}

// A malformed publish that can be named is answered as a publish, and the stream stays.
func TestMalformedPublishIsAnsweredAsOne(t *testing.T) {
	w := newWorld(t)
	transports(t, func(t *testing.T, transport string) {
		p := w.dial(transport).login()
		good := wire.AppendPublishBatch(nil, acked(77, batch("memory", "abc")))
		bad := append([]byte(nil), good[:len(good)-1]...)
		bad = wire.FinishFrame(bad, 0)
		p.sendRaw(bad)
		a := p.ack()
		require.True(t, a.Failed)
		require.Equal(t, uint64(77), a.RequestID)
		require.Equal(t, wire.CodeInvalidRequest, a.Failure.Code)
		require.Equal(t, wire.RetryFatal, a.Failure.Retry)

		text := `{"type":"publish_batch","tenant_id":"t1","namespace":"ns","stream":"memory","payloads":["!"],"request_id":78,"ack":"per_batch"}`
		p.sendRaw(append(wire.AppendHeader(nil, 0, uint32(len(text))), text...))
		e, ok := p.recv().(*wire.PublishError)
		require.True(t, ok)
		require.Equal(t, uint64(78), e.RequestID)
		require.Equal(t, wire.CodeInvalidRequest, e.Failure.Code)

		// An ack without a request id.
		p.send(&wire.Publish{Tenant: "t1", Namespace: "ns", Stream: "memory", Ack: wire.AckPerMessage})
		require.Equal(t, wire.CodeInvalidRequest, p.recv().(*wire.Error).Failure.Code)

		p.sendRaw(good)
		require.Equal(t, wire.PublishAck{RequestID: 77}, p.ack())
	})
}

// Names that are no names, wherever they come: an answer, and nothing else.
func TestOddNames(t *testing.T) {
	w := newWorld(t)
	p := w.dial(transportTCP).login()
	for _, name := range []string{"", ".", "..", "a/../b", "a\x00b", strings.Repeat("a", 10<<10), "../../etc/passwd", "*"} {
		p.publish(acked(1, batch(name, "x")))
		a := p.ack()
		require.True(t, a.Failed, "%q", name)
		require.Contains(t, []wire.Code{wire.CodeNotFound, wire.CodeForbidden, wire.CodeInvalidRequest}, a.Failure.Code)
		p.send(&wire.Subscribe{Tenant: "t1", Namespace: "ns", Stream: name})
		require.IsType(t, &wire.Error{}, p.recv(), "%q", name)
	}
}

func TestHandlers(t *testing.T) {
	release := make(chan struct{})
	echo := func(_ context.Context, r *Request) {
		m := r.Message.(*wire.Extension)
		if !r.Allow(auth.StreamPublish, auth.StreamObject("t1", "ns", "memory")) {
			return
		}
		answer := &wire.ExtensionOK{Name: m.Name, RequestID: m.RequestID, HasRequestID: m.HasRequestID, Body: append([]byte(nil), m.Body...)}
		if m.RequestID != 1 {
			r.Answer(answer)
			return
		}
		reply := r.Defer()
		go func() {
			<-release
			reply.Answer(answer)
		}()
	}
	w := newWorld(t, func(o *Options) {
		o.Handlers = []Handlers{{
			Features: wire.FeatureAtomicCommit,
			Requests: map[string]Handler{"state_get": func(_ context.Context, r *Request) {
				panic("a defect")
			}},
			Extensions: map[string]Handler{"test.echo": echo},
		}}
	})
	p := w.dial(transportTCP).open()
	p.send(&wire.Auth{Tenant: "t1", Token: w.token, HasClientFlags: true, ClientFlags: 0x1FFF, Features: everything, Extensions: true})
	ok := p.recv().(*wire.AuthOK)
	require.Contains(t, ok.Extensions, "test.echo")
	require.True(t, ok.Features.Has(wire.FeatureAtomicCommit))

	// The first is answered later; the second keeps its turn behind it, a publish does not.
	for id := range uint64(2) {
		p.send(&wire.Extension{Name: "test.echo", RequestID: id + 1, HasRequestID: true, Body: []byte(`{"a":1}`)})
	}
	p.publish(acked(9, batch("memory", "x")))
	require.Equal(t, uint64(9), p.ack().RequestID)
	close(release)
	for id := range uint64(2) {
		require.Equal(t, &wire.ExtensionOK{Name: "test.echo", RequestID: id + 1, HasRequestID: true, Body: []byte(`{"a":1}`)}, p.recv())
	}

	// A defect in a handler costs its stream, no more.
	p.send(&wire.StateGet{Tenant: "t1", Namespace: "ns", Stream: "s", EntityKey: []byte("e"), Key: "k"})
	require.Equal(t, wire.CodeInternal, p.recv().(*wire.Error).Failure.Code)
	require.ErrorIs(t, p.gone(), io.EOF)
	require.Equal(t, 1, w.refusals(RefusedInternal))
	w.dial(transportTCP).login()
}

// A handler that fails after it took its place in the order of answers is answered
// there, and its stream, its connection and the server end as ever.
func TestPanicBehindDefer(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Handlers = []Handlers{{Extensions: map[string]Handler{"test.defect": func(_ context.Context, r *Request) {
			r.Defer()
			panic("a defect")
		}}}}
	})
	transports(t, func(t *testing.T, transport string) {
		p := w.dial(transport).login()
		p.send(&wire.Extension{Name: "test.defect", RequestID: 1, HasRequestID: true})
		require.Equal(t, wire.CodeInternal, p.recv().(*wire.Error).Failure.Code)
		require.ErrorIs(t, p.gone(), io.EOF)
		p.abandon()
	})
	require.Equal(t, 2, w.refusals(RefusedInternal))
}

// A publish_if that is malformed is answered in its turn among requests, not among
// publishes.
func TestMalformedConditionalPublishKeepsItsTurn(t *testing.T) {
	release := make(chan struct{})
	w := newWorld(t, func(o *Options) {
		o.Handlers = []Handlers{{Extensions: map[string]Handler{"test.later": func(_ context.Context, r *Request) {
			reply := r.Defer()
			go func() {
				<-release
				reply.Answer(&wire.ExtensionOK{Name: "test.later"})
			}()
		}}}}
	})
	p := w.dial(transportTCP).login()
	text := `{"type":"publish_if","tenant_id":"t1","namespace":"ns","stream":"orders","payloads":["!"],"expected_offset":0,"request_id":78}`
	b := wire.AppendMessage(nil, &wire.Extension{Name: "test.later", RequestID: 1, HasRequestID: true})
	b = append(wire.AppendHeader(b, 0, uint32(len(text))), text...)
	p.sendRaw(wire.AppendPublishBatch(b, acked(9, batch("memory", "x"))))
	require.Equal(t, uint64(9), p.ack().RequestID)
	close(release)
	require.IsType(t, &wire.ExtensionOK{}, p.recv())
	e := p.recv().(*wire.PublishError)
	require.Equal(t, uint64(78), e.RequestID)
	require.Equal(t, wire.CodeInvalidRequest, e.Failure.Code)
}

// A read sees what was asked before it on its stream, though both came in one burst.
func TestReadsSeeEarlierWritesOfTheirStream(t *testing.T) {
	w := newWorld(t)
	w.cache("kept", 2)
	w.stream("jobs", w.durable(1))
	const rounds = 20
	transports(t, func(t *testing.T, transport string) {
		p := w.dial(transport).login()
		ref := wire.GroupRef{Tenant: "t1", Namespace: "ns", Stream: "jobs", Group: "g-" + transport}
		start := uint64(0)
		if transport == transportQUIC {
			start = rounds
		}
		for i := range rounds {
			value := []byte(transport + decimal(i))
			p.send(&wire.CachePut{Tenant: "t1", Namespace: "ns", Cache: "kept", Key: "a", Value: value, RequestID: 1, HasRequestID: true},
				&wire.CacheGet{Tenant: "t1", Namespace: "ns", Cache: "kept", Key: "a", RequestID: 2, HasRequestID: true})
			require.IsType(t, &wire.CacheOK{}, p.recv())
			require.Equal(t, value, p.recv().(*wire.CacheValue).Value)

			key := "sum " + transport
			p.send(&wire.CounterAdd{Tenant: "t1", Namespace: "ns", Cache: "kept", Key: key, Delta: 1, RequestID: 1},
				&wire.CounterGet{Tenant: "t1", Namespace: "ns", Cache: "kept", Key: key, RequestID: 2})
			require.IsType(t, &wire.CounterValue{}, p.recv())
			require.EqualValues(t, i+1, p.recv().(*wire.CounterValue).Value)

			at := start + uint64(i)
			b := wire.AppendPublishBatch(nil, acked(1, batch("jobs", string(value))))
			b = wire.AppendMessage(b, &wire.StreamRead{Tenant: "t1", Namespace: "ns", Stream: "jobs", From: at, RequestID: 2})
			p.sendRaw(b)
			require.False(t, p.ack().Failed)
			read := p.recv().(*wire.StreamRecords)
			require.Len(t, read.Records, 1)
			require.Equal(t, value, read.Records[0].Payload)

			p.send(&wire.GroupSeek{GroupRef: ref, Start: wire.Start{Kind: wire.StartOffset, Offset: at}}, &wire.GroupPoll{GroupRef: ref, MaxRecords: 10})
			require.IsType(t, &wire.GroupPosition{}, p.recv())
			polled := p.recv().(*wire.GroupRecords)
			require.Len(t, polled.Records, 1)
			p.send(&wire.GroupAck{GroupRef: ref, Offset: at}, &wire.GroupPoll{GroupRef: ref, MaxRecords: 10})
			require.IsType(t, &wire.CacheOK{}, p.recv())
			require.Empty(t, p.recv().(*wire.GroupRecords).Records)
		}
		p.send(&wire.GroupDelete{GroupRef: ref})
		require.IsType(t, &wire.GroupDeleted{}, p.recv())
	})
}

// A poll that waits keeps nothing back that was asked before it.
func TestAPollKeepsNothingBack(t *testing.T) {
	w := newWorld(t)
	w.stream("jobs", w.durable(2))
	p := w.dial(transportTCP).login()
	ref := wire.GroupRef{Tenant: "t1", Namespace: "ns", Stream: "jobs", Shard: 1, Group: "g"}
	b := wire.AppendPublishBatch(nil, acked(1, batch("orders", "x")))
	b = wire.AppendMessage(b, &wire.ProducerInit{RequestID: 7})
	b = wire.AppendMessage(b, &wire.GroupPoll{GroupRef: ref, MaxRecords: 1, WaitMillis: 30_000})
	p.sendRaw(b)
	require.IsType(t, &wire.ProducerInitOK{}, p.recv())
	require.False(t, p.ack().Failed)
	w.dial(transportTCP).login().sendRaw(wire.AppendMessage(nil, &wire.Publish{
		Tenant: "t1", Namespace: "ns", Stream: "jobs", Payload: []byte("now"), Shard: 1, HasShard: true}))
	require.Len(t, p.recv().(*wire.GroupRecords).Records, 1)
}

// A delete that stands is never answered as refused, though the value it took away cannot
// be read; and clients are not told where the broker keeps its files.
func TestADeleteOfADamagedValue(t *testing.T) {
	w := newWorldOf(t, broker.Options{Limits: broker.Limits{CacheValuesBytes: -1}}) // values are read from the disk
	w.cache("kept", 1)
	p := w.dial(transportTCP).login()
	key := func(m wire.Message) wire.Message {
		p.send(m)
		return p.recv()
	}
	value := []byte("a value that is damaged on the disk")
	require.IsType(t, &wire.CacheOK{}, key(&wire.CachePut{Tenant: "t1", Namespace: "ns", Cache: "kept", Key: "a", Value: value, RequestID: 1, HasRequestID: true}))
	damaged := 0
	require.NoError(t, filepath.WalkDir(w.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if at := bytes.Index(b, value); err == nil && at >= 0 {
			damaged++
			b[at] ^= 1
			err = os.WriteFile(path, b, 0o600)
		}
		return err
	}))
	require.Equal(t, 1, damaged)
	get := &wire.CacheGet{Tenant: "t1", Namespace: "ns", Cache: "kept", Key: "a", RequestID: 2, HasRequestID: true}
	refused := key(get).(*wire.Error).Failure
	require.NotContains(t, refused.Message, w.root)

	f := key(&wire.CacheDelete{Tenant: "t1", Namespace: "ns", Cache: "kept", Key: "a", RequestID: 3, HasRequestID: true}).(*wire.Error).Failure
	require.Equal(t, wire.CodeStorage, f.Code)
	require.Equal(t, wire.RetryOutcomeUnknown, f.Retry)
	require.NotContains(t, f.Message, w.root)
	require.False(t, key(get).(*wire.CacheValue).HasValue)
}

func TestHandlersAreGivenOnce(t *testing.T) {
	nop := func(context.Context, *Request) {}
	s := &Server{handlers: map[string]Handler{}, extensions: map[string]Handler{}}
	require.NoError(t, s.register(Handlers{Requests: map[string]Handler{"a": nop}, Extensions: map[string]Handler{"x": nop}}))
	require.Error(t, s.register(Handlers{Requests: map[string]Handler{"a": nop}}))
	require.Error(t, s.register(Handlers{Extensions: map[string]Handler{"x": nop}}))
	require.Error(t, s.register(Handlers{Requests: map[string]Handler{"b": nil}}))
}
