package server

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
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

// The fields of a body are given once and spelled as they are; those that nobody knows are
// passed over, as those of messages are. A page has no size below 0, and 0 in a group's
// settings is the default.
func TestExtensionBodiesAreStrict(t *testing.T) {
	w := newWorld(t)
	w.stream("jobs", w.durable(1))
	w.cache("prices", 1)
	p := w.dial(transportTCP).open()
	p.send(&wire.Auth{Tenant: "t1", Token: w.token, HasClientFlags: true, ClientFlags: wire.FlagsKnown, Features: everything, Extensions: true})
	p.recv()
	ask := func(name, more string) *wire.Failure {
		place := `"tenant_id":"t1","namespace":"ns","stream":"jobs","shard":0,"group":"g"`
		if !strings.HasPrefix(name, "group.") {
			place = `"tenant_id":"t1","namespace":"ns","cache":"prices"`
		}
		p.send(&wire.Extension{Name: name, RequestID: 2, HasRequestID: true, Body: []byte("{" + place + more + "}")})
		if m, ok := p.recv().(*wire.Error); ok {
			return &m.Failure
		}
		return nil
	}
	good := map[string]string{
		"group.ack": "", "group.configure": `,"config":{"visibility_ms":0,"max_in_flight":0,"max_attempts":0}`, "group.describe": "", "group.list": "", "group.dead_letters": `,"limit":0`,
		"cache.list": `,"limit":0`, "counter.add_once": `,"key":"k","delta":1,"producer_id":7,"sequence":0`,
	}
	require.ElementsMatch(t, w.server.extensionNames, slices.Collect(maps.Keys(good)))
	for name, body := range good {
		refused := func(more, want string) {
			t.Helper()
			f := ask(name, body+more)
			require.NotNil(t, f, "%s %s is taken", name, more)
			require.Equal(t, wire.CodeInvalidRequest, f.Code)
			require.Equal(t, "body of extension "+name+": "+want, f.Message)
		}
		refused(`,"namespace":"ns"`, `field "namespace" is given twice`)
		refused(`,"Namespace":"other"`, `unknown field "Namespace": fields are lower-case`)
		refused(`,"new":{"of":1,"of":1}`, `field "new.of" is given twice`)
		if name != "group.ack" {
			require.Nil(t, ask(name, body+`,"bogus":[1]`), name)
		}
	}
	require.Contains(t, ask("group.ack", `,"OFFSETS":[3]`).Message, `unknown field "OFFSETS"`)
	for name, most := range map[string]int{"group.dead_letters": maxLetters, "cache.list": maxKeysListed} {
		f := ask(name, `,"limit":-1`)
		require.NotNil(t, f, name)
		require.Equal(t, wire.CodeInvalidRequest, f.Code)
		require.Contains(t, f.Message, fmt.Sprintf("limit -1, want 1 to %d", most))
		require.Nil(t, ask(name, fmt.Sprintf(`,"limit":%d`, most+1)))
	}
}
