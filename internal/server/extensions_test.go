package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/meta"
	groups "github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/wire"
)

// tags are the fields of a JSON body.
func tags(v any) []string {
	var names []string
	for _, f := range reflect.VisibleFields(reflect.TypeOf(v)) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}

func keys(t *testing.T, body []byte) []string {
	t.Helper()
	var fields map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(body, &fields), "%s", body)
	return slices.Sorted(maps.Keys(fields))
}

// The table of docs/protocol.md is what is served: each extension with its fields, those of
// its answer, its bounds, and the one permission that it needs.
func TestExtensionsAsDocumented(t *testing.T) {
	raw, err := os.ReadFile("../../docs/protocol.md")
	require.NoError(t, err)
	named := regexp.MustCompile("`([a-z_.]+)`")
	words := func(cell string) (names []string) {
		for _, m := range named.FindAllStringSubmatch(cell, -1) {
			names = append(names, m[1])
		}
		return names
	}
	type row struct{ body, answer, bounds, permission string }
	table := map[string]row{}
	for line := range strings.Lines(string(raw)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) == 5 && regexp.MustCompile("^ `[a-z]+\\.[a-z_]+` $").MatchString(cells[0]) {
			table[words(cells[0])[0]] = row{cells[1], cells[2], cells[3], cells[4]}
		}
	}

	w := newWorld(t)
	require.ElementsMatch(t, w.server.extensionNames, slices.Collect(maps.Keys(table)))
	w.stream("jobs", w.durable(1))
	w.cache("prices", 1)
	owner := w.dial(transportTCP).login()
	owner.publish(acked(1, batch("jobs", "a", "b", "c")))
	require.False(t, owner.ack().Failed)
	// A dead letter, so that one is listed.
	ref := wire.GroupRef{Tenant: "t1", Namespace: "ns", Stream: "jobs", Group: "g"}
	owner.send(&wire.GroupPoll{GroupRef: ref, MaxRecords: 2, RequestID: 2})
	at := owner.recv().(*wire.GroupRecords).Records[0].Offset
	owner.send(&wire.GroupDeadLetter{GroupRef: ref, Offset: at, RequestID: 3})
	require.Equal(t, &wire.CacheOK{RequestID: 3}, owner.recv())

	group, config := tags(wire.GroupBody{}), tags(wire.GroupConfig{})
	values := map[string]any{
		"offsets": []uint64{1}, "config": map[string]any{"exclusive": true}, "from": 0, "limit": 5,
		"shard": 0, "prefix": "", "after": "", "key": "k", "delta": 1, "producer_id": 7, "sequence": 0,
	}
	bodies := map[string][]string{
		"group.ack": tags(wire.GroupAckBody{}), "group.configure": group, "group.describe": group, "group.list": group, "group.dead_letters": group,
		"cache.list": tags(wire.CacheListBody{}), "counter.add_once": tags(wire.CounterAddOnceBody{}),
	}
	objects := map[string]string{
		"group": auth.GroupObject("t1", "ns", "jobs", "g").String(), "stream": auth.StreamObject("t1", "ns", "jobs").String(),
		"keys": auth.CacheObject("t1", "ns", "prices").String(), "key": auth.CacheKeyObject("t1", "ns", "prices", "k").String(),
	}
	ask := func(token, name string, body map[string]any) wire.Message {
		p := w.dial(transportTCP).open()
		p.send(&wire.Auth{Tenant: "t1", Token: token, HasClientFlags: true, ClientFlags: wire.FlagsKnown, Features: everything, Extensions: true})
		require.Contains(t, p.recv().(*wire.AuthOK).Extensions, name)
		encoded, err := json.Marshal(body)
		require.NoError(t, err)
		p.send(&wire.Extension{Name: name, RequestID: 9, HasRequestID: true, Body: encoded})
		return p.recv()
	}
	code := func(m wire.Message) wire.Code {
		t.Helper()
		e, ok := m.(*wire.Error)
		require.True(t, ok, "%+v", m)
		return e.Failure.Code
	}
	// A permission on the stream that stands for the one on its groups.
	instead := map[string]string{"group.consume": "stream.subscribe", "group.manage": "stream.manage"}
	for group, stream := range instead {
		require.Contains(t, string(raw), fmt.Sprintf("`%s` on the stream stands for `%s`", stream, group))
	}
	said := map[string]bool{}
	for name, r := range table {
		place := []string{"tenant_id", "namespace", "stream", "shard", "group"}
		body := map[string]any{"tenant_id": "t1", "namespace": "ns", "stream": "jobs", "shard": 0, "group": "g"}
		if !strings.HasPrefix(name, "group.") {
			place = []string{"tenant_id", "namespace", "cache"}
			body = map[string]any{"tenant_id": "t1", "namespace": "ns", "cache": "prices"}
		}
		for _, field := range words(r.body) {
			require.Contains(t, values, field, name)
			require.Contains(t, bodies[name], field, "%s takes no such field", name)
			body[field] = values[field]
			said[name+" "+field] = true
		}
		if !strings.HasPrefix(name, "group.") || name == "group.ack" {
			for _, field := range bodies[name] {
				require.True(t, slices.Contains(place, field) || said[name+" "+field] || slices.Contains(group, field), "%s: %s is not documented", name, field)
			}
		}

		// It needs the permission that is named, and no other.
		permission := regexp.MustCompile("^ `([a-z.]+)` on the (\\w+)").FindStringSubmatch(r.permission)
		require.NotNil(t, permission, r.permission)
		needs := permission[1] + ":" + objects[permission[2]]
		answer, ok := ask(w.mint("t1", needs), name, body).(*wire.ExtensionOK)
		require.True(t, ok, "%s with %s", name, needs)
		require.Equal(t, name, answer.Name)
		if stands, ok := instead[permission[1]]; ok {
			_, ok = ask(w.mint("t1", stands+":"+objects["stream"]), name, body).(*wire.ExtensionOK)
			require.True(t, ok, "%s with %s", name, stands)
		}
		var others []string
		for action, object := range map[string]string{
			"group.consume": "group", "group.manage": "group", "stream.subscribe": "stream", "stream.manage": "stream", "stream.publish": "stream", "cache.read": "keys", "cache.write": "keys",
		} {
			if action != permission[1] && instead[permission[1]] != action {
				others = append(others, action+":"+objects[object])
			}
		}
		if permission[1] == "cache.read" {
			others = slices.DeleteFunc(others, func(p string) bool { return strings.HasPrefix(p, "cache.") })
		}
		require.Equal(t, wire.CodeForbidden, code(ask(w.mint("t1", others...), name, body)), "%s with %v", name, others)

		want := words(r.answer)
		switch name {
		case "group.configure":
			require.Equal(t, []string{"exclusive"}, keys(t, answer.Body), "what was set")
			want = nil
		case "group.dead_letters":
			var page struct{ Letters []json.RawMessage }
			require.NoError(t, json.Unmarshal(answer.Body, &page))
			require.Len(t, page.Letters, 1)
			require.ElementsMatch(t, tags(wire.GroupLetter{}), keys(t, page.Letters[0]))
			require.ElementsMatch(t, slices.Concat(tags(wire.GroupLetter{}), []string{"letters", "more"}), want)
			want = []string{"letters", "more"}
		}
		if name != "group.configure" {
			require.ElementsMatch(t, want, keys(t, answer.Body), "answer of %s", name)
		}
		// What is not there, and what is no body.
		gone := maps.Clone(body)
		gone["stream"], gone["cache"] = "gone", "gone"
		require.Equal(t, wire.CodeNotFound, code(ask(w.token, name, gone)), name)
		require.Equal(t, wire.CodeInvalidRequest, code(ask(w.token, name, map[string]any{"tenant_id": 1})), name)
	}
	for _, field := range []string{"config", "from", "limit"} {
		require.True(t, slices.ContainsFunc(slices.Collect(maps.Keys(said)), func(s string) bool { return strings.HasPrefix(s, "group.") && strings.HasSuffix(s, " "+field) }), field)
	}

	// The bounds, and the fields of a configuration.
	require.Contains(t, table["group.ack"].bounds, fmt.Sprintf("1 to %d offsets", groups.MaxPollRecords))
	require.Contains(t, table["group.dead_letters"].bounds, fmt.Sprintf("at most %d letters", maxLetters))
	require.Contains(t, table["cache.list"].bounds, fmt.Sprintf("at most %d keys", maxKeysListed))
	place := map[string]any{"tenant_id": "t1", "namespace": "ns", "stream": "jobs", "group": "g"}
	with := func(field string, v any) map[string]any {
		body := maps.Clone(place)
		body[field] = v
		return body
	}
	require.Equal(t, wire.CodeInvalidRequest, code(ask(w.token, "group.ack", place)))
	require.Equal(t, wire.CodeInvalidRequest, code(ask(w.token, "group.ack", with("offsets", make([]uint64, groups.MaxPollRecords+1)))))
	require.Equal(t, wire.CodeInvalidRequest, code(ask(w.token, "group.ack", with("offsets", []uint64{99}))))
	require.Equal(t, wire.CodeInvalidRequest, code(ask(w.token, "group.configure", place)))
	_, after, _ := strings.Cut(string(raw), "\n`config` is ")
	sentence, _, found := strings.Cut(after, "; what is")
	require.True(t, found)
	require.ElementsMatch(t, config, words(sentence))
	require.Contains(t, sentence, fmt.Sprintf("`max_attempts` (1 to %d)", groups.MaxMaxAttempts))
	require.Contains(t, sentence, fmt.Sprintf("`max_in_flight` (1 to %d)", groups.MostInFlight))
	for field, v := range map[string]any{
		"visibility_ms": groups.MaxVisibility.Milliseconds() + 1, "max_attempts": groups.MaxMaxAttempts + 1, "backoff_ms": groups.MaxDelay.Milliseconds() + 1,
		"backoff_max_ms": groups.MaxDelay.Milliseconds() + 1, "backoff_factor": 10.5, "max_in_flight": groups.MostInFlight + 1,
	} {
		require.Equal(t, wire.CodeInvalidRequest, code(ask(w.token, "group.configure", with("config", map[string]any{field: v}))), field)
	}
	w.stream("memory-only", meta.Stream{Shards: 1})
	require.Equal(t, wire.CodeInvalidRequest, code(ask(w.token, "group.list", with("stream", "memory-only"))))
	// g is exclusive since.
	p := w.dial(transportTCP).login()
	p.send(&wire.GroupPoll{GroupRef: ref, MaxRecords: 1, RequestID: 4})
	require.Equal(t, wire.CodeInvalidRequest, p.recv().(*wire.Error).Failure.Code, "a poll without a name")
}
