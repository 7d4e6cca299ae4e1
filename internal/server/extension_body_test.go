package server

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

// What may take many times its size is not decoded for who may not ask, and no body is that
// is larger than any that is needed.
func TestExtensionBodiesAreBounded(t *testing.T) {
	w := newWorld(t)
	w.stream("jobs", w.durable(1))
	w.cache("prices", 1)
	ask := func(token, name string, body []byte) *wire.Failure {
		p := w.dial(transportTCP).open()
		p.send(&wire.Auth{Tenant: "t1", Token: token, HasClientFlags: true, ClientFlags: wire.FlagsKnown, Features: everything, Extensions: true})
		p.recv()
		p.send(&wire.Extension{Name: name, RequestID: 2, HasRequestID: true, Body: body})
		m, ok := p.recv().(*wire.Error)
		require.True(t, ok)
		return &m.Failure
	}
	stranger := w.mint("t1", "stream.publish:stream:t1/ns/other")
	acks := func(offsets string) []byte {
		return fmt.Appendf(nil, `{"tenant_id":"t1","namespace":"ns","stream":"jobs","shard":0,"group":"g","offsets":%s}`, offsets)
	}
	require.Equal(t, wire.CodeForbidden, ask(stranger, "group.ack", acks(`"none"`)).Code, "the offsets are not looked at")
	require.Equal(t, wire.CodeInvalidRequest, ask(w.token, "group.ack", acks(`"none"`)).Code)
	many := append([]byte("["), bytes.Repeat([]byte("0,"), 300_000)...)
	require.Equal(t, wire.CodeForbidden, ask(stranger, "group.ack", acks(string(many)+"0]")).Code)
	require.Contains(t, ask(w.token, "group.ack", acks(string(many)+"0]")).Message, "300001 offsets")

	large := append([]byte(`{"x":"`), bytes.Repeat([]byte("x"), maxExtension)...)
	large = append(large, `"}`...)
	for _, name := range slices.Sorted(maps.Keys(w.server.extensions)) {
		for _, token := range []string{stranger, w.token} {
			f := ask(token, name, large)
			require.Equal(t, wire.CodeInvalidRequest, f.Code, name)
			require.Contains(t, f.Message, fmt.Sprintf("body of extension %s: %d bytes, at most 1048576", name, len(large)))
		}
	}
}
