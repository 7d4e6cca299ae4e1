package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/api"
	"github.com/felixlog/felix/wire"
)

// raw sends a message of the client's own making.
func (h *hostile) raw(text string) {
	h.send(append(wire.AppendHeader(nil, 0, uint32(len(text))), text...))
}

// asked is a request of the default namespace with these fields.
func asked(kind string, fields map[string]any) string {
	m := map[string]any{"type": kind, "tenant_id": "default", "namespace": "default", "request_id": 7}
	for k, v := range fields {
		m[k] = v
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return string(b)
}

type fields = map[string]any

// Each kind of bad input to caches, counters and groups gets its answer, the connection
// goes on where it is said to, and what was there before is there after.
func TestBadInputOfReadings(t *testing.T) {
	p := newProcess(t, "periodic")
	p.createCache(api.Cache{Cache: "c", Shards: 1})
	p.createStream("jobs", 1)
	p.settings.createStream(t, p.http, api.Stream{Stream: "memory", Shards: 1})
	c := p.dial()
	k := c.Cache("c")
	require.NoError(t, k.Put(soon(t), "k", []byte("kept")))
	_, err := k.Counters().Add(soon(t), "n", 5)
	require.NoError(t, err)
	for i := range 10 {
		_, err := c.Publish(soon(t), "jobs", numbered(i))
		require.NoError(t, err)
	}
	g := c.Group("jobs", "workers")
	require.Len(t, poll(t, g, 3, client.WithVisibility(time.Hour)), 3)
	state := func() (found []any) {
		v, ok, err := k.Get(soon(t), "k")
		require.NoError(t, err)
		sum, _, err := k.Counters().Get(soon(t), "n")
		require.NoError(t, err)
		keys, _, err := k.Keys(soon(t), "", "", 100)
		require.NoError(t, err)
		info, err := g.Describe(soon(t), 0)
		require.NoError(t, err)
		groups, err := c.Groups(soon(t), "jobs", 0)
		require.NoError(t, err)
		return append(found, v, ok, sum, keys, info, groups)
	}
	before := state()

	with := func(base fields, more fields) fields {
		all := fields{}
		for _, m := range []fields{base, more} {
			for k, v := range m {
				all[k] = v
			}
		}
		return all
	}
	on := func(f fields) fields { return with(fields{"cache": "c", "key": "k"}, f) }
	of := func(f fields) fields { return with(fields{"stream": "jobs", "shard": 0, "group": "workers"}, f) }
	value := fields{"value": "bmV3"}
	put := func(f fields) string { return asked("cache_put", with(on(value), f)) }
	long := strings.Repeat("k", 10<<10)
	type row struct {
		name, text string
		code       wire.Code // 0: an answer that is no error
		want       string
		ends       bool
	}
	rows := []row{
		{"poll for 0 records", asked("group_poll", of(fields{"max_records": 0})), wire.CodeInvalidRequest, "max_records 0", false},
		{"ttl 0", put(fields{"ttl_ms": 0}), wire.CodeInvalidRequest, "leave it out", false},
		{"ttl 2^63-1", put(fields{"ttl_ms": uint64(1<<63 - 1)}), wire.CodeInvalidRequest, "end of time", false},
		{"ttl 2^63", put(fields{"ttl_ms": uint64(1 << 63)}), wire.CodeInvalidRequest, "end of time", false},
		{"ttl 2^64-1", put(fields{"ttl_ms": uint64(1<<64 - 1)}), wire.CodeInvalidRequest, "end of time", false},
		{"ttl 2^64", strings.Replace(put(fields{"ttl_ms": 77}), "77", "18446744073709551616", 1), wire.CodeInvalidRequest, "ttl_ms", true},
		{"ttl -1", put(fields{"ttl_ms": -1}), wire.CodeInvalidRequest, "ttl_ms", true},
		{"a condition and ttl 0", asked("cache_put_if", with(on(value), fields{"ttl_ms": 0, "condition": "absent"})), wire.CodeInvalidRequest, "leave it out", false},
		{"key that is not UTF-8", strings.Replace(put(fields{"key": "kAk"}), "kAk", "k\xffk", 1), wire.CodeInvalidRequest, "", true},
		{"value one byte over the limit", put(fields{"value": make([]byte, 8<<20+1)}), wire.CodeLimitExceeded, "8388608", false},
		{"a sum that does not fit", asked("counter_add", on(fields{"key": "n", "delta": int64(1<<63 - 1)})), wire.CodeInvalidRequest, "out of range", false},
		{"a delta of 2^63", asked("counter_add", on(fields{"key": "n", "delta": uint64(1 << 63)})), wire.CodeInvalidRequest, "delta", true},
		{"ack past the tail", asked("group_ack", of(fields{"offset": 10})), wire.CodeInvalidRequest, "ends at 10", false},
		{"ack of 2^64-1", asked("group_ack", of(fields{"offset": uint64(1<<64 - 1)})), wire.CodeInvalidRequest, "never handed out", false},
		{"ack of what is not handed out", asked("group_ack", of(fields{"offset": 5})), wire.CodeStaleClaim, "not handed out", false},
		{"nack past the tail", asked("group_nack", of(fields{"offset": 10})), wire.CodeInvalidRequest, "never handed out", false},
		{"nack of what is not handed out", asked("group_nack", of(fields{"offset": 5})), wire.CodeStaleClaim, "not handed out", false},
		{"nack of another delivery", asked("group_nack", of(fields{"offset": 0, "attempts": 4})), wire.CodeStaleClaim, "no longer stands", false},
		{"nack with a delay of 2^64-1", asked("group_nack", of(fields{"offset": 0, "delay_ms": uint64(1<<64 - 1)})), wire.CodeInvalidRequest, "delay", false},
		{"extend by 0", asked("group_extend", of(fields{"offset": 0, "attempts": 1, "extend_ms": 0})), wire.CodeInvalidRequest, "more than 0", false},
		{"give up what is not handed out", asked("group_dead_letter", of(fields{"offset": 5})), wire.CodeStaleClaim, "not handed out", false},
		{"redrive what is not dead", asked("group_redrive", of(fields{"offset": 1})), wire.CodeInvalidRequest, "no such dead letter", false},
		{"discard what is not dead", asked("group_discard", of(fields{"offset": 1})), 0, "", false},
		{"seek past the tail", asked("group_seek", of(fields{"start": fields{"kind": "offset", "offset": 11}})), wire.CodeInvalidRequest, "", false},
		{"consumer of 129 bytes", asked("group_poll", of(fields{"max_records": 1, "consumer": long[:129]})), wire.CodeInvalidRequest, "129 bytes", false},
		{"consumer of 0 bytes", asked("group_poll", of(fields{"max_records": 1, "consumer": ""})), wire.CodeInvalidRequest, "0 bytes", false},
		{"group of 129 bytes", asked("group_poll", of(fields{"max_records": 1, "group": long[:129]})), wire.CodeInvalidRequest, "129 bytes", false},
		{"group without a name", asked("group_poll", of(fields{"max_records": 1, "group": ""})), wire.CodeInvalidRequest, "0 bytes", false},
		{"group with NUL", asked("group_ack", of(fields{"offset": 0, "group": "a\x00b"})), wire.CodeInvalidRequest, "NUL", false},
		{"group with a line break", asked("group_poll", of(fields{"max_records": 1, "group": "a\nb"})), wire.CodeInvalidRequest, "control characters", false},
		{"group with an escape sequence", asked("group_seek", of(fields{"group": "\x1b[2J", "start": fields{"kind": "offset", "offset": 0}})), wire.CodeInvalidRequest, "control characters", false},
		{"consumer with NUL", asked("group_poll", of(fields{"max_records": 1, "consumer": "a\x00b"})), wire.CodeInvalidRequest, "control character", false},
		{"group of an in-memory stream", asked("group_poll", of(fields{"max_records": 1, "stream": "memory"})), wire.CodeInvalidRequest, "durable stream", false},
		{"group of a stream that nobody made", asked("group_poll", of(fields{"max_records": 1, "stream": "nobody"})), wire.CodeNotFound, "nobody", false},
		{"group of a shard that is not", asked("group_poll", of(fields{"max_records": 1, "shard": uint32(1<<32 - 1)})), wire.CodeInvalidRequest, "shard", false},
		{"unknown group: ack past the tail", asked("group_ack", of(fields{"offset": 10, "group": "ghost 1"})), wire.CodeInvalidRequest, "never handed out", false},
		{"unknown group: ack", asked("group_ack", of(fields{"offset": 0, "group": "ghost 2"})), wire.CodeStaleClaim, "not handed out", false},
		{"unknown group: nack", asked("group_nack", of(fields{"offset": 0, "group": "ghost 3"})), wire.CodeStaleClaim, "not handed out", false},
		{"unknown group: extend", asked("group_extend", of(fields{"offset": 0, "attempts": 1, "extend_ms": 9, "group": "ghost 4"})), wire.CodeStaleClaim, "not handed out", false},
		{"unknown group: redrive", asked("group_redrive", of(fields{"offset": 0, "group": "ghost 5"})), wire.CodeInvalidRequest, "no such dead letter", false},
		{"unknown group: discard", asked("group_discard", of(fields{"offset": 0, "group": "ghost 6"})), 0, "", false},
		{"unknown group: dead letters", asked("group_dead_letters", of(fields{"group": "ghost 7"})), 0, "", false},
		{"unknown group: describe", asked("group_describe", of(fields{"group": "ghost 8"})), 0, "", false},
		{"unknown group: delete", asked("group_delete", of(fields{"group": "ghost 9"})), 0, "", false},
	}
	for _, r := range []struct {
		kind string
		more fields
	}{
		{"cache_put", value}, {"cache_get", nil}, {"cache_delete", nil}, {"cache_watch", nil}, {"cache_delete_if", fields{"version": 0}},
		{"cache_put_if", with(value, fields{"condition": "absent"})}, {"counter_add", fields{"delta": 1}}, {"counter_get", nil},
	} {
		rows = append(rows,
			row{r.kind + ": empty key", asked(r.kind, with(on(r.more), fields{"key": ""})), wire.CodeInvalidRequest, "empty", false},
			row{r.kind + ": key of 10 KiB", asked(r.kind, with(on(r.more), fields{"key": long})), wire.CodeInvalidRequest, "at most 4096", false},
			row{r.kind + ": unknown cache", asked(r.kind, with(on(r.more), fields{"cache": "nobody"})), wire.CodeNotFound, "nobody", false})
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			h := p.hostile(t)
			h.authenticated(p)
			h.raw(r.text)
			m := h.next()
			if f := failureOf(m); f != nil {
				require.Equal(t, r.code, f.Code, "%v", f)
				require.Contains(t, f.Error(), r.want)
			} else {
				require.NotNil(t, m)
				require.Zero(t, r.code, "answered %#v", m)
			}
			if r.ends {
				require.Nil(t, h.next(), "the connection goes on")
				return
			}
			h.raw(asked("cache_get", on(nil)))
			v, ok := h.next().(*wire.CacheValue)
			require.True(t, ok, "the connection is over")
			require.Equal(t, "kept", string(v.Value))
		})
	}
	require.Equal(t, before, state(), "what was refused has changed nothing")

	// The largest key and the largest value are taken.
	key, largest := strings.Repeat("k", 4096), make([]byte, 8<<20)
	require.NoError(t, k.Put(soon(t), key, largest))
	v, ok, err := k.Get(soon(t), key)
	require.NoError(t, err)
	require.True(t, ok)
	require.Len(t, v.Data, len(largest))

	for _, bad := range []client.GroupConfig{{MaxAttempts: -1}, {MaxAttempts: 1<<63 - 1}, {MaxAttempts: 1001}, {MaxInFlight: -1}, {Visibility: 13 * time.Hour}, {BackoffFactor: 0.5}} {
		require.ErrorIs(t, g.Configure(soon(t), 0, bad), client.ErrInvalidRequest, "%+v", bad)
	}
	require.NoError(t, g.Configure(soon(t), 0, client.GroupConfig{}), "zeros are the defaults")
	require.NoError(t, g.Configure(soon(t), 0, client.GroupConfig{MaxAttempts: 1}))
	m := poll(t, g, 1, client.WithVisibility(0)) // the group's
	require.Equal(t, 1, m[0].Attempts)
	require.NoError(t, g.Nack(soon(t), m[0]))
	info, err := g.Describe(soon(t), 0)
	require.NoError(t, err)
	require.Equal(t, uint64(1), info.Dead, "one delivery, then given up on")
}

// Ten thousand groups read one stream; each has its position, also after a kill.
func TestTenThousandGroups(t *testing.T) {
	const groups = 10_000
	p := newProcess(t, "periodic")
	p.createStream("jobs", 1)
	c := p.dial()
	_, err := c.Publish(soon(t), "jobs", []byte("for all"))
	require.NoError(t, err)
	before := p.residentBytes()
	all := func(kind string, more fields, answered func(i int, m wire.Message)) {
		h := p.hostile(t)
		h.authenticated(p)
		for i := 0; i < groups; i += 500 {
			var b []byte
			for n := range 500 {
				f := fields{"stream": "jobs", "shard": 0, "group": fmt.Sprint("group ", i+n)}
				for k, v := range more {
					f[k] = v
				}
				text := asked(kind, f)
				b = append(append(b, wire.AppendHeader(nil, 0, uint32(len(text)))...), text...)
			}
			h.send(b)
			for n := range 500 {
				answered(i+n, h.next())
			}
		}
	}
	polled := func(want int) func(int, wire.Message) {
		return func(i int, m wire.Message) {
			r, ok := m.(*wire.GroupRecords)
			require.True(t, ok, "group %d: %#v", i, m)
			require.Len(t, r.Records, want, "group %d", i)
		}
	}
	all("group_poll", fields{"max_records": 1}, polled(1))
	all("group_ack", fields{"offset": 0}, func(i int, m wire.Message) { require.IsType(t, &wire.CacheOK{}, m, "group %d", i) })
	t.Logf("%d groups take %d KiB", groups, (p.residentBytes()-before)>>10)
	names, err := c.Groups(soon(t), "jobs", 0)
	require.NoError(t, err)
	require.Len(t, names, groups)
	p.restart(true)
	names, err = c.Groups(soon(t), "jobs", 0) // the client waits until the shard serves
	require.NoError(t, err)
	require.Len(t, names, groups)
	all("group_poll", fields{"max_records": 1}, polled(0))
}
