package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

const (
	resources = "/v1/tenants/default/namespaces/default/resources"
	caches    = "/v1/tenants/default/namespaces/default/caches"
)

// requireThere checks which streams and caches the default namespace has.
func (f *fixture) requireThere(streams, caches []string) {
	f.t.Helper()
	s, _, err := f.catalog.ListStreams(f.t.Context(), "default", "default", "", 0)
	require.NoError(f.t, err)
	c, _, err := f.catalog.ListCaches(f.t.Context(), "default", "default", "", 0)
	require.NoError(f.t, err)
	var haveStreams, haveCaches []string
	for i := range s {
		haveStreams = append(haveStreams, s[i].Name)
	}
	for i := range c {
		haveCaches = append(haveCaches, c[i].Name)
	}
	require.Equal(f.t, streams, haveStreams)
	require.Equal(f.t, caches, haveCaches)
}

// outcomes are what an answer says of each item, in its order.
func outcomes(answer map[string]any) (all []string) {
	for _, field := range []string{"streams", "caches"} {
		for _, item := range answer[field].([]any) {
			item := item.(map[string]any)
			name, ok := item["stream"]
			if !ok {
				name = item["cache"]
			}
			all = append(all, fmt.Sprint(name, " ", item["outcome"]))
		}
	}
	return all
}

func TestResourcesAreCreatedTogether(t *testing.T) {
	f := newFixture(t)
	token := f.all()
	body := `{"streams":[{"stream":"orders","kind":"Stream","shards":4,"durable":true},{"stream":"jobs","kind":"Queue","durable":true}],"caches":[{"cache":"orders","display_name":"Orders"}]}`
	status, got := f.do("POST", resources, token, body)
	require.Equal(t, 201, status, got)
	require.Equal(t, []string{"orders created", "jobs created", "orders created"}, outcomes(got))
	f.requireThere([]string{"jobs", "orders"}, []string{"orders"})
	// An item of the answer is what the single endpoints say, and what became of it.
	for path, item := range map[string]any{streams + "/orders": got["streams"].([]any)[0], caches + "/orders": got["caches"].([]any)[0]} {
		item := item.(map[string]any)
		delete(item, "outcome")
		status, single := f.do("GET", path, token, "")
		require.Equal(t, 200, status)
		require.Equal(t, single, item)
	}

	status, got = f.do("POST", resources, token, body)
	require.Equal(t, 200, status, "nothing was made")
	require.Equal(t, []string{"orders unchanged", "jobs unchanged", "orders unchanged"}, outcomes(got))
	status, got = f.do("POST", resources, token, `{"streams":[{"stream":"orders","shards":4,"durable":true},{"stream":"late"}]}`)
	require.Equal(t, 201, status, got)
	require.Equal(t, []string{"orders unchanged", "late created"}, outcomes(got))
	require.Equal(t, []any{}, got["caches"])
	status, got = f.do("POST", resources, token, `{"caches":[{"cache":"late"}]}`)
	require.Equal(t, 201, status, got)
	f.requireThere([]string{"jobs", "late", "orders"}, []string{"late", "orders"})
}

// What is wrong with one item is said as the single endpoints say it, of which item it is,
// and nothing is made.
func TestResourcesAreRefusedTogether(t *testing.T) {
	f := newFixture(t)
	token := f.all()
	status, _ := f.do("POST", streams, token, `{"stream":"s","durable":true}`)
	require.Equal(t, 201, status)
	status, _ = f.do("POST", caches, token, `{"cache":"c","max_keys":5}`)
	require.Equal(t, 201, status)
	for _, c := range []struct {
		body   string
		status int
		code   string
		want   string
	}{
		{`{"streams":[{"stream":"a"},{"stream":"b","shards":0}],"caches":[{"cache":"a"}]}`, 400, "invalid_request", "streams[1]: shards 0"},
		{`{"streams":[{"stream":"a"},{"stream":"b","shard":1}]}`, 400, "invalid_request", `streams[1]: unknown field "shard"`},
		{`{"streams":[{"stream":"a"},null]}`, 400, "invalid_request", "streams[1]: a JSON object is needed, not null"},
		{`{"streams":[{"stream":"a"},7]}`, 400, "invalid_request", "streams[1]: "},
		{`{"streams":[{"stream":"a"},{"stream":"q","kind":"Queue"}]}`, 400, "invalid_request", "streams[1]: stream default/default/q: durable must be true"},
		{`{"streams":[{"stream":"a"},{"stream":"b","max_record_bytes":8193}]}`, 400, "invalid_request", "streams[1]: max_record_bytes 8193"},
		{`{"streams":[{"stream":"a","tenant_id":"other"}]}`, 400, "invalid_request", "streams[0]: tenant_id"},
		{`{"streams":[{"stream":"a"}],"caches":[{"cache":"a"},{"cache":"b","namespace":"other"}]}`, 400, "invalid_request", "caches[1]: namespace"},
		{`{"streams":[{"stream":"a"}],"caches":[{"cache":"b","on_full":"drop"}]}`, 400, "invalid_request", "caches[0]: on_full"},
		{`{"streams":[{"stream":"a"},{"stream":"b"},{"stream":"a"}]}`, 400, "invalid_request", "streams[2]: stream default/default/a: name is given twice"},
		{`{"streams":[{"stream":"a"}],"caches":[{"cache":"b"},{"cache":"b"}]}`, 400, "invalid_request", "caches[1]: cache default/default/b: name is given twice"},
		{`{"streams":[{"stream":"a"},{"stream":"s","durable":true,"shards":2}]}`, 409, "already_exists", "streams[1]: stream default/default/s exists with another shards"},
		{`{"streams":[{"stream":"a"}],"caches":[{"cache":"b"},{"cache":"c"}]}`, 409, "already_exists", "caches[1]: cache default/default/c exists with another max_keys"},
		{`{}`, 400, "invalid_request", "0 items"},
		{``, 400, "invalid_request", "body ends early"},
		{`{"streams":[{"stream":"a"},{"stream":]}`, 400, "invalid_request", "not JSON"},
		{`{"streams":[{"stream":"a"}],"queues":[]}`, 400, "invalid_request", `unknown field "queues"`},
		{`{"streams":{"stream":"a"}}`, 400, "invalid_request", "field streams cannot be an object"},
		{`{"streams":[{"stream":"a"},{"stream":"b","region":"` + strings.Repeat("x", 5000) + `"}]}`, 413, "limit_exceeded", "body is over 4096 bytes"},
	} {
		status, got := f.do("POST", resources, token, c.body)
		require.Equal(t, c.status, status, "%s: %v", c.body, got)
		require.Equal(t, c.code, got["code"], c.body)
		require.Contains(t, got["message"], c.want, c.body)
		f.requireThere([]string{"s"}, []string{"c"})
	}
	status, got := f.do("POST", strings.Replace(resources, "/default/resources", "/none/resources", 1), token, `{"streams":[{"stream":"a"}]}`)
	require.Equal(t, 404, status, got)
}

func TestResourcesAreAtMost256(t *testing.T) {
	f := newFixture(t)
	f.server.o.MaxBodyBytes = 1 << 20
	body := func(n int) string {
		var items []string
		for i := range n - 1 {
			items = append(items, fmt.Sprintf(`{"stream":"s%d"}`, i))
		}
		return `{"streams":[` + strings.Join(items, ",") + `],"caches":[{"cache":"c"}]}`
	}
	status, got := f.do("POST", resources, f.all(), body(257))
	require.Equal(t, 400, status, got)
	require.Contains(t, got["message"], "257 items")
	f.requireThere(nil, nil)
	status, got = f.do("POST", resources, f.all(), body(256))
	require.Equal(t, 201, status, got)
	require.Len(t, got["streams"], 255)
	require.Len(t, got["caches"], 1)
}

// Each item needs the permission that its own endpoint asks for, before what exists is told.
func TestResourcesNeedThePermissionOfEach(t *testing.T) {
	f := newFixture(t)
	body := `{"streams":[{"stream":"a"},{"stream":"b"}],"caches":[{"cache":"c"}]}`
	_, err := f.catalog.CreateStream(t.Context(), meta.Stream{Tenant: "default", Namespace: "default", Name: "a", Shards: 2})
	require.NoError(t, err)
	const a, b, c = "stream.manage:stream:default/default/a", "stream.manage:stream:default/default/b", "cache.manage:cache:default/default/c"
	for _, x := range []struct {
		perms []string
		want  string
	}{
		{[]string{a, c}, "streams[1]: needs stream.manage on stream:default/default/b"},
		{[]string{a, b}, "caches[0]: needs cache.manage on cache:default/default/c"},
		{[]string{b, c}, "streams[0]: needs stream.manage on stream:default/default/a"},
	} {
		status, got := f.do("POST", resources, f.token("default", auth.AudienceAPI, x.perms...), body)
		require.Equal(t, 403, status, got)
		require.Equal(t, "forbidden", got["code"])
		require.Equal(t, x.want, got["message"])
		f.requireThere([]string{"a"}, nil)
	}
	require.NoError(t, f.catalog.DeleteStream(t.Context(), meta.Name{Tenant: "default", Namespace: "default", Name: "a"}))
	status, got := f.do("POST", resources, f.token("default", auth.AudienceAPI, a, b, c), body)
	require.Equal(t, 201, status, got)
	for token, want := range map[string]int{"": 401, f.token("other", auth.AudienceAPI, auth.AllPermissions("other")...): 401} {
		status, _ := f.do("POST", resources, token, body)
		require.Equal(t, want, status)
	}
}

// A disk that fails under one of the items leaves nothing of any: no definition, no
// directory. With the disk mended all are made.
func TestResourcesLeaveNothingOnADiskThatFails(t *testing.T) {
	b := filepath.Join("streams", segment.ShardDirName("default", "default", "b", 1))
	c := filepath.Join("streams", "caches", segment.ShardDirName("default", "default", "c", 0))
	for _, x := range []struct {
		name   string
		rule   disk.Rule
		status int
		code   string
		item   string
	}{
		{"no room for a directory", disk.Rule{Op: disk.OpMkdir, Path: b, Action: disk.NoSpace(0)}, 507, "disk_full", "streams[1]: "},
		{"no room in a directory", disk.Rule{Op: disk.OpWrite, Path: filepath.Join(b, "*"), Action: disk.NoSpace(3)}, 507, "disk_full", "streams[1]: "},
		{"no room for a cache", disk.Rule{Op: disk.OpMkdir, Path: c, Action: disk.NoSpace(0)}, 507, "disk_full", "caches[0]: "},
		{"a device that fails", disk.Rule{Op: disk.OpMkdir, Path: b, Action: disk.Fail(errors.New("device error"))}, 500, "internal", "streams[1]: "},
	} {
		t.Run(x.name, func(t *testing.T) {
			f := newFixture(t)
			data := t.TempDir()
			root := filepath.Join(data, "streams")
			faulty := disk.NewFaulty(vfs.OS())
			removed := make(chan string, 8)
			o := broker.Options{Catalog: f.catalog, Root: root, FS: faulty}
			o.Limits.RetryOpen = time.Hour
			o.Events.OnRemoved = func(dir string) { removed <- dir }
			broker, err := broker.Open(t.Context(), o)
			require.NoError(t, err)
			defer func() { require.NoError(t, broker.Close(context.Background())) }()
			f.server.Open(Backend{Catalog: f.catalog, Keys: f.keys, Streams: broker})
			status, got := f.do("POST", streams, f.all(), `{"stream":"before","durable":true}`)
			require.Equal(t, 201, status, got)

			x.rule.Path, x.rule.Count = filepath.Join(data, x.rule.Path), disk.Forever
			faulty.Add(x.rule)
			body := `{"streams":[{"stream":"a","durable":true},{"stream":"b","durable":true,"shards":2},{"stream":"before","durable":true}],"caches":[{"cache":"c"}]}`
			status, got = f.do("POST", resources, f.all(), body)
			require.Equal(t, x.status, status, got)
			require.Equal(t, x.code, got["code"])
			require.Contains(t, got["message"], x.item)
			f.requireThere([]string{"before"}, nil)
			_, err = broker.Stream("default", "default", "a")
			require.Error(t, err, "it is not served")

			// Four directories, but for the one that could not be made.
			dirs := 4
			if x.rule.Op == disk.OpMkdir {
				dirs--
			}
			for range dirs {
				select {
				case <-removed:
				case <-time.After(time.Minute):
					t.Fatal("a directory is not removed")
				}
			}
			require.NoError(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
				if err == nil && !e.IsDir() || strings.Contains(e.Name(), "-") {
					require.Contains(t, path, segment.ShardDirName("default", "default", "before", 0))
				}
				return err
			}))

			faulty.Clear()
			status, got = f.do("POST", resources, f.all(), body)
			require.Equal(t, 201, status, got)
			require.Equal(t, []string{"a created", "b created", "before unchanged", "c created"}, outcomes(got))
			f.requireThere([]string{"a", "b", "before"}, []string{"c"})
			for _, path := range []string{streams + "/a", streams + "/b", streams + "/before", caches + "/c"} {
				status, _ := f.do("DELETE", path, f.all(), "")
				require.Equal(t, 204, status)
			}
		})
	}
}

// What could be made neither whole nor undone is said: it is not "not done".
func TestResourcesThatCannotBeTakenBackAreNamed(t *testing.T) {
	f := newFixture(t)
	token := f.all()
	f.streams.damaged = true
	txns := 0
	f.catalog.Store().(*meta.Memory).SetFault(func(c meta.Call) meta.Fault {
		if c.Method == "txn" {
			txns++
		}
		return meta.Fault{Refuse: c.Method == "txn" && txns == 2}
	})
	body := `{"streams":[{"stream":"a"},{"stream":"b","durable":true}]}`
	status, got := f.do("POST", resources, token, body)
	require.Equal(t, 504, status, got)
	require.Equal(t, "outcome_unknown", got["code"])
	require.Contains(t, got["message"], "streams[1]: shards could not be made (stream b: still damaged) and what was made could not be taken back")
	f.requireThere([]string{"a", "b"}, nil)
}

// What was made is not said to be undone when the waiting for it ends; of what was there
// already the plain error is true.
func TestResourcesThatAreNotAwaitedAreMade(t *testing.T) {
	for cause, want := range map[error]string{
		context.DeadlineExceeded: "the request was given up",
		broker.ErrDraining:       "shutting down",
		meta.ErrUnavailable:      "unavailable",
	} {
		f := newFixture(t)
		token := f.all()
		f.streams.waiting = cause
		body := `{"streams":[{"stream":"a"}],"caches":[{"cache":"b"}]}`
		status, got := f.do("POST", resources, token, body)
		require.Equal(t, 504, status, got)
		require.Equal(t, "outcome_unknown", got["code"])
		require.Contains(t, got["message"], "caches[0]: made, with all that was asked for")
		require.Contains(t, got["message"], want)
		f.requireThere([]string{"a"}, []string{"b"})
		status, got = f.do("POST", streams, token, `{"stream":"c"}`)
		require.Equal(t, 504, status, got)
		require.Equal(t, "outcome_unknown", got["code"])
		f.requireThere([]string{"a", "c"}, []string{"b"})

		status, got = f.do("POST", resources, token, body)
		require.Equal(t, 503, status, got)
		f.streams.waiting = nil
		status, got = f.do("POST", resources, token, body)
		require.Equal(t, 200, status, got)
	}
}
