package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/testkit/leak"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/wire"
)

func TestMain(m *testing.M) { leak.Main(m) }

// fixture is a server over a catalog with tenants default and other, each with a
// namespace default.
type fixture struct {
	t       *testing.T
	server  *Server
	catalog *meta.Catalog
	keys    *auth.Keys
	streams catalogStreams
	ready   Readiness
}

const admin = "tenant.manage:cluster:*"

func newFixture(t *testing.T) *fixture {
	keys, err := auth.OpenKeys(t.TempDir())
	require.NoError(t, err)
	f := &fixture{t: t, catalog: meta.NewCatalog(meta.NewMemory(meta.MemoryOptions{})), keys: keys}
	for _, tenant := range []string{"default", "other"} {
		_, err := keys.Ensure(tenant)
		require.NoError(t, err)
		_, err = f.catalog.CreateTenant(t.Context(), meta.Tenant{ID: tenant})
		require.NoError(t, err)
		_, err = f.catalog.CreateNamespace(t.Context(), meta.Namespace{Tenant: tenant, Name: "default"})
		require.NoError(t, err)
	}
	f.server = New(Options{
		Ready:        func() Readiness { return f.ready },
		Metrics:      http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "metrics") }),
		MaxBodyBytes: 4096,
		Log:          slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	f.streams.Catalog = f.catalog
	f.server.Open(Backend{Catalog: f.catalog, Keys: keys, Streams: &f.streams, RecordBytes: 1024, MostRecordBytes: 8192})
	return f
}

// catalogStreams is a broker that serves at once whatever is in the catalog.
type catalogStreams struct {
	*meta.Catalog
	err     error
	waiting error // for what is made
	damaged bool  // the second shard of each
}

func (c *catalogStreams) CreateAll(ctx context.Context, defs []meta.Definition) ([]bool, error) {
	if c.err != nil {
		return nil, c.err
	}
	created, err := c.Catalog.CreateAll(ctx, defs)
	if err == nil && c.waiting != nil {
		err = &meta.ItemError{Index: len(defs) - 1, Err: c.waiting}
	}
	return created, err
}

func (c *catalogStreams) DeleteStream(ctx context.Context, tenant, namespace, name string) error {
	return c.Catalog.DeleteStream(ctx, meta.Name{Tenant: tenant, Namespace: namespace, Name: name})
}

func (c *catalogStreams) DeleteCache(ctx context.Context, tenant, namespace, name string) error {
	return c.Catalog.DeleteCache(ctx, meta.Name{Tenant: tenant, Namespace: namespace, Name: name})
}

func (c *catalogStreams) ReopenStream(_ context.Context, _, _, name string, report func(int, string, error)) error {
	return c.reopen("stream "+name, report)
}

func (c *catalogStreams) ReopenCache(_ context.Context, _, _, name string, report func(int, string, error)) error {
	return c.reopen("cache "+name, report)
}

func (c *catalogStreams) reopen(what string, report func(int, string, error)) error {
	report(0, "active", nil)
	if c.damaged {
		report(1, "damaged", errors.New(what+": still damaged"))
	}
	return c.err
}

func (c *catalogStreams) RetainStream(_ context.Context, _, _, _ string, report func(int, storage.RetentionResult, error)) error {
	report(0, storage.RetentionResult{Segments: 2, Bytes: 4096, Head: 17}, nil)
	return c.err
}

func (f *fixture) token(tenant, audience string, perms ...string) string {
	f.t.Helper()
	token, err := f.keys.Mint(auth.MintRequest{Tenant: tenant, Subject: "p:test", Permissions: perms, Audience: audience})
	require.NoError(f.t, err)
	return token
}

// all is a token of the default tenant that may do everything.
func (f *fixture) all() string {
	return f.token("default", auth.AudienceAPI, append(auth.AllPermissions("default"), admin)...)
}

func (f *fixture) do(method, path, token, body string) (int, map[string]any) {
	f.t.Helper()
	r := httptest.NewRequest(method, "http://broker"+path, strings.NewReader(body))
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	f.server.ServeHTTP(w, r)
	out := map[string]any{}
	if w.Body.Len() > 0 && strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") {
		require.NoError(f.t, json.Unmarshal(w.Body.Bytes(), &out), w.Body.String())
	}
	return w.Code, out
}

const streams = "/v1/tenants/default/namespaces/default/streams"

func TestStreamLifeCycle(t *testing.T) {
	f := newFixture(t)
	token := f.all()
	status, made := f.do("POST", streams, token, `{"stream":"orders","kind":"Stream","shards":4,"replication_factor":1,"retention":{"max_age_seconds":null,"max_size_bytes":1048576},"consistency":"Leader","delivery":"AtLeastOnce","durable":true}`)
	require.Equal(t, 201, status, made)
	want := map[string]any{
		"tenant_id": "default", "namespace": "default", "stream": "orders", "kind": "Stream", "shards": 4.0, "replication_factor": 1.0,
		"retention": map[string]any{"max_age_seconds": nil, "max_size_bytes": 1048576.0}, "consistency": "Leader", "delivery": "AtLeastOnce",
		"durable": true, "routing": "modulo",
	}
	for k, v := range want {
		require.Equal(t, v, made[k], k)
	}
	status, got := f.do("GET", streams+"/orders", token, "")
	require.Equal(t, 200, status)
	require.Equal(t, made, got)
	stored, err := f.catalog.GetStream(t.Context(), meta.Name{Tenant: "default", Namespace: "default", Name: "orders"})
	require.NoError(t, err)
	require.Equal(t, uint32(4), stored.Shards)
	require.Equal(t, int64(1<<20), stored.Retention.MaxBytes)

	status, got = f.do("POST", streams, token, `{"stream":"orders","kind":"Stream","shards":4,"retention":{"max_size_bytes":1048576},"durable":true}`)
	require.Equal(t, 409, status)
	require.Equal(t, "already_exists", got["code"])
	status, got = f.do("POST", streams, token, `{"stream":"orders","kind":"Stream","shards":5,"durable":true}`)
	require.Equal(t, 409, status)
	require.Contains(t, got["message"], "shards")

	status, got = f.do("PATCH", streams+"/orders", token, `{"retention":{"max_age_seconds":60}}`)
	require.Equal(t, 200, status, got)
	require.Equal(t, map[string]any{"max_age_seconds": 60.0, "max_size_bytes": 1048576.0}, got["retention"], "a bound that is not given keeps its value")
	status, got = f.do("PATCH", streams+"/orders", token, `{"retention":{"max_size_bytes":null}}`)
	require.Equal(t, 200, status)
	require.Equal(t, map[string]any{"max_age_seconds": 60.0, "max_size_bytes": nil}, got["retention"], "null is the broker's own bound")
	for _, fixed := range []string{`{"shards":8}`, `{"kind":"Queue"}`, `{"durable":false}`, `{"replication_factor":3}`, `{"routing":"jump_hash"}`, `{"region":"eu"}`} {
		status, got = f.do("PATCH", streams+"/orders", token, fixed)
		require.Equal(t, 409, status, fixed, got)
	}

	status, _ = f.do("DELETE", streams+"/orders", token, "")
	require.Equal(t, 204, status)
	for _, method := range []string{"GET", "DELETE", "PATCH"} {
		status, got = f.do(method, streams+"/orders", token, "{}")
		require.Equal(t, 404, status)
		require.Equal(t, "not_found", got["code"])
	}
}

func TestStreamDefaults(t *testing.T) {
	f := newFixture(t)
	status, got := f.do("POST", streams, f.all(), `{"stream":"a"}`)
	require.Equal(t, 201, status, got)
	require.Equal(t, false, got["durable"], "absent means in memory")
	require.Equal(t, "Stream", got["kind"])
	require.Equal(t, 1.0, got["shards"])
	require.Equal(t, "drop_new", got["overflow"])
	status, got = f.do("POST", streams, f.all(), `{"stream":"q","kind":"Queue","durable":true}`)
	require.Equal(t, 201, status, got)
	require.Equal(t, "Queue", got["kind"])
	require.NotContains(t, got, "overflow", "a durable stream has none")
}

// A change is judged by what the stream comes to, and one of something else by nothing.
func TestStreamChangesThatExcludeEachOther(t *testing.T) {
	f := newFixture(t)
	status, got := f.do("POST", streams, f.all(), `{"stream":"m"}`)
	require.Equal(t, 201, status, got)
	status, got = f.do("POST", streams, f.all(), `{"stream":"d","durable":true,"fsync":"on_commit","retention":{"max_age_seconds":60}}`)
	require.Equal(t, 201, status, got)
	for path, body := range map[string]string{
		"/m": `{"retention":{"max_age_seconds":60}}`,
		"/d": `{"overflow":"block"}`,
	} {
		status, got := f.do("PATCH", streams+path, f.all(), body)
		require.Equal(t, 400, status, "%s %v", body, got)
		require.Equal(t, "invalid_request", got["code"])
	}
	for path, body := range map[string]string{
		"/m": `{"delivery":"AtMostOnce"}`,
		"/d": `{"retention":{"max_age_seconds":null}}`,
	} {
		status, got := f.do("PATCH", streams+path, f.all(), body)
		require.Equal(t, 200, status, "%s %v", body, got)
	}
}

// No change is made by what is no object.
func TestNullChangesNothing(t *testing.T) {
	f := newFixture(t)
	token := f.all()
	status, got := f.do("POST", streams, token, `{"stream":"a"}`)
	require.Equal(t, 201, status, got)
	for _, body := range []string{`null`, " null\n", `[]`} {
		status, got = f.do("PATCH", streams+"/a", token, body)
		require.Equal(t, 400, status, "%q %v", body, got)
		require.Contains(t, got["message"], "a JSON object is needed, not", body)
	}
}

// Each body is refused by the name of what is wrong with it, and nothing is made.
func TestStreamBodiesRefused(t *testing.T) {
	f := newFixture(t)
	token := f.all()
	long := strings.Repeat("a", 129)
	for body, want := range map[string]string{
		``:                                 "body ends early",
		`{`:                                "body ends early",
		`[]`:                               "a JSON object is needed, not an array",
		" null\n":                          "a JSON object is needed, not null",
		`{"stream":"a"} {}`:                "more than one",
		`nonsense`:                         "not JSON",
		`{"stream":"a","shard":1}`:         `unknown field "shard"`,
		`{"stream":"a","stream":"b"}`:      `field "stream" is given twice`,
		`{"stream":"a","Stream":"b"}`:      `unknown field "Stream": fields are lower-case`,
		`{"STREAM":"a"}`:                   `unknown field "STREAM": fields are lower-case`,
		`{"\u0073tream":"a","stream":"a"}`: `field "stream" is given twice`,
		`{"ſtream":"a"}`:                   `unknown field "ſtream"`,
		`{"stream":"a","durable":true,"retention":{"max_age_seconds":1,"max_age_seconds":2}}`: `field "retention.max_age_seconds" is given twice`,
		`{"stream":"a","durable":true,"retention":{"Max_Age_Seconds":1}}`:                     `unknown field "retention.Max_Age_Seconds"`,
		`{"stream":"a","shards":0}`:                                         "shards 0",
		`{"stream":"a","shards":-1}`:                                        "shards",
		`{"stream":"a","shards":4294967296}`:                                "shards",
		`{"stream":"a","shards":1000000}`:                                   "shards",
		`{"stream":"a","shards":"4"}`:                                       "field shards cannot be a string",
		`{"stream":"a","shards":1.5}`:                                       "field shards cannot be the number 1.5",
		`{"stream":"a","shards":[4]}`:                                       "field shards cannot be an array",
		`{"stream":4}`:                                                      "field stream cannot be a number",
		`{"stream":"a","durable":true,"retention":{"max_age_seconds":"9"}}`: "field retention.max_age_seconds cannot be a string",
		`"a"`:                                                                                "a JSON object is needed, not a string",
		`{"stream":"a","replication_factor":0}`:                                              "replication_factor 0",
		`{"stream":"a","kind":"Topic"}`:                                                      `kind "Topic" is not one of Stream, Queue`,
		`{"stream":"a","consistency":"All"}`:                                                 "consistency",
		`{"stream":"a","fsync":"always"}`:                                                    "fsync",
		`{"stream":"a","overflow":"x"}`:                                                      "overflow",
		`{"stream":"a","region":""}`:                                                         "region is empty",
		`{"stream":"a","fsync":"on_commit"}`:                                                 "needs durable",
		`{"stream":"a","retention":{"max_age_seconds":60}}`:                                  "retention needs durable",
		`{"stream":"a","durable":false,"retention":{"max_size_bytes":9}}`:                    "retention needs durable",
		`{"stream":"a","durable":true,"overflow":"drop_old"}`:                                "exclude each other",
		`{"stream":"a","durable":true,"retention":{"max_age_seconds":0}}`:                    "max_age_seconds 0 would keep nothing",
		`{"stream":"a","durable":true,"retention":{"max_size_bytes":0}}`:                     "max_size_bytes 0 would keep nothing",
		`{"stream":"a","durable":true,"retention":{"max_age_seconds":18446744073709551615}}`: "over the most",
		`{"stream":"a","max_record_bytes":67108865}`:                                         "max_record_bytes",
		`{"stream":"a","tenant_id":"other"}`:                                                 "not the tenant of the path",
		`{"stream":""}`:                                                                      "name is empty",
		`{"stream":"."}`:                                                                     `name "."`,
		`{"stream":".."}`:                                                                    `name ".."`,
		`{"stream":"a/../b"}`:                                                                "unusable character",
		`{"stream":"a\u0000b"}`:                                                              "unusable character",
		`{"stream":"` + long + `"}`:                                                          "too long",
		"{\"stream\":\"a\xff\"}":                                                             "unusable character",
	} {
		status, got := f.do("POST", streams, token, body)
		require.Equal(t, 400, status, "%s: %v", body, got)
		require.Equal(t, "invalid_request", got["code"], body)
		require.Contains(t, got["message"], want, body)
	}
	status, got := f.do("POST", streams, token, `{"stream":"a","region":"`+strings.Repeat("x", 5000)+`"}`)
	require.Equal(t, 413, status)
	require.Equal(t, "limit_exceeded", got["code"])
	_, got = f.do("GET", streams, token, "")
	require.Equal(t, []any{}, got["items"])
}

func TestPathsRefused(t *testing.T) {
	f := newFixture(t)
	token := f.all()
	for _, path := range []string{
		streams + "/..", streams + "/.", streams + "/%2e%2e", streams + "/a%2Fb", streams + "/a%00b", streams + "/a//b",
		streams + "/" + strings.Repeat("a", 10<<10), "/v1/tenants/default/namespaces/%ff/streams",
	} {
		status, got := f.do("GET", path, token, "")
		require.Equal(t, 400, status, "%s: %v", path, got)
	}
	for _, method := range []string{"PUT", "DELETE"} {
		status, got := f.do(method, streams, token, "{}")
		require.Equal(t, 405, status)
		require.Equal(t, "method_not_allowed", got["code"])
		require.Contains(t, got["message"], "GET, POST")
	}
	status, got := f.do("GET", "/v2/x", token, "")
	require.Equal(t, 404, status)
	require.Equal(t, "not_found", got["code"])
}

// What the broker cannot serve is refused with its own words.
func TestBrokerRefusals(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{wire.NewFailure(wire.CodeInvalidRequest, "needs storage"), 400, "invalid_request"},
		{broker.ErrDraining, 503, "draining"},
		{context.DeadlineExceeded, 503, "not_ready"},
		{errors.New("a secret"), 500, "internal"},
	} {
		f.streams.err = c.err
		status, got := f.do("POST", streams, f.all(), `{"stream":"a"}`)
		require.Equal(t, c.status, status, got)
		require.Equal(t, c.code, got["code"])
		require.NotContains(t, got["message"], "secret")
	}
}

func TestRecordSizes(t *testing.T) {
	f := newFixture(t)
	status, got := f.do("POST", streams, f.all(), `{"stream":"a"}`)
	require.Equal(t, 201, status, got)
	require.Equal(t, 1024.0, got["max_record_bytes"], "the broker's own bound")
	status, got = f.do("POST", streams, f.all(), `{"stream":"b","max_record_bytes":8193}`)
	require.Equal(t, 400, status)
	require.Contains(t, got["message"], "limits.frame_bytes")
	status, got = f.do("PATCH", streams+"/a", f.all(), `{"max_record_bytes":8192}`)
	require.Equal(t, 200, status, got)
	status, _ = f.do("PATCH", streams+"/a", f.all(), `{"max_record_bytes":8193}`)
	require.Equal(t, 400, status)
}

func TestCallersAreChecked(t *testing.T) {
	f := newFixture(t)
	_, err := f.catalog.CreateStream(t.Context(), meta.Stream{Tenant: "default", Namespace: "default", Name: "mine"})
	require.NoError(t, err)
	_, err = f.catalog.CreateStream(t.Context(), meta.Stream{Tenant: "default", Namespace: "default", Name: "theirs"})
	require.NoError(t, err)
	one := f.token("default", auth.AudienceAPI, "stream.manage:stream:default/default/mine")
	for _, c := range []struct {
		name, method, path, token, body string
		want                            int
	}{
		{"no token", "GET", streams, "", "", 401},
		{"garbage", "GET", streams, "x.y.z", "", 401},
		{"token for brokers", "GET", streams, f.token("default", auth.AudienceBroker, auth.AllPermissions("default")...), "", 401},
		{"token of another tenant", "GET", streams, f.token("other", auth.AudienceAPI, auth.AllPermissions("other")...), "", 401},
		{"unknown tenant before existence", "GET", "/v1/tenants/nobody/namespaces", f.all(), "", 401},
		{"one stream", "GET", streams + "/mine", one, "", 200},
		{"another stream", "GET", streams + "/theirs", one, "", 403},
		{"another stream to be made", "POST", streams, one, `{"stream":"new"}`, 403},
		{"namespace", "POST", "/v1/tenants/default/namespaces", one, `{"namespace":"x"}`, 403},
		{"tenants without cluster permission", "GET", "/v1/tenants", f.token("default", auth.AudienceAPI, auth.AllPermissions("default")...), "", 403},
		{"tenant removed without it", "DELETE", "/v1/tenants/default", one, "", 403},
	} {
		status, got := f.do(c.method, c.path, c.token, c.body)
		require.Equal(t, c.want, status, "%s: %v", c.name, got)
		if c.want >= 400 {
			require.NotEmpty(t, got["code"], c.name)
			require.NotEmpty(t, got["message"], c.name)
		}
	}
	_, got := f.do("GET", streams, one, "")
	require.Len(t, got["items"], 1, "a listing holds what the caller may manage")
}

func TestTenantsAndNamespaces(t *testing.T) {
	f := newFixture(t)
	status, got := f.do("POST", "/v1/tenants", f.all(), `{"tenant_id":"acme","display_name":"Acme Corp"}`)
	require.Equal(t, 201, status, got)
	require.Equal(t, map[string]any{"tenant_id": "acme", "display_name": "Acme Corp"}, got)
	status, _ = f.do("POST", "/v1/tenants", f.all(), `{"tenant_id":"acme","display_name":"Acme Corp"}`)
	require.Equal(t, 409, status)
	// A new tenant has keys at once, so tokens for it can be made.
	theirs := f.token("acme", auth.AudienceAPI, auth.AllPermissions("acme")...)
	status, got = f.do("POST", "/v1/tenants/acme/namespaces", theirs, `{"namespace":"payments","display_name":"payments"}`)
	require.Equal(t, 201, status, got)
	require.Equal(t, map[string]any{"tenant_id": "acme", "namespace": "payments", "display_name": "payments"}, got)
	status, _ = f.do("POST", "/v1/tenants/acme/namespaces", theirs, `{"namespace":"payments","display_name":"payments"}`)
	require.Equal(t, 409, status)
	status, _ = f.do("GET", "/v1/tenants/acme/namespaces/payments", theirs, "")
	require.Equal(t, 200, status)
	status, got = f.do("GET", "/v1/tenants/acme/namespaces/none", theirs, "")
	require.Equal(t, 404, status, got)
	status, got = f.do("GET", "/v1/tenants/acme/namespaces/none/streams", theirs, "")
	require.Equal(t, 404, status, got)
	status, _ = f.do("DELETE", "/v1/tenants/acme/namespaces/payments", theirs, "")
	require.Equal(t, 204, status)
	status, _ = f.do("DELETE", "/v1/tenants/acme", f.all(), "")
	require.Equal(t, 204, status)
	status, _ = f.do("GET", "/v1/tenants/acme", f.all(), "")
	require.Equal(t, 404, status)
}

func TestTenantQuotas(t *testing.T) {
	f := newFixture(t)
	quota := func(bytes, records any) map[string]any {
		return map[string]any{"bytes_per_second": bytes, "records_per_second": records}
	}
	status, got := f.do("POST", "/v1/tenants", f.all(), `{"tenant_id":"acme","display_name":"Acme Corp","quota":{"bytes_per_second":1048576}}`)
	require.Equal(t, 201, status, got)
	require.Equal(t, quota(1048576.0, nil), got["quota"])
	for _, c := range []struct {
		body  string
		quota any
		is    meta.Quota
	}{
		{`{"quota":{"records_per_second":100}}`, quota(1048576.0, 100.0), meta.Quota{BytesPerSecond: 1048576, RecordsPerSecond: 100}},
		{`{"quota":{"bytes_per_second":0}}`, quota(0.0, 100.0), meta.Quota{BytesPerSecond: meta.NoQuota, RecordsPerSecond: 100}},
		{`{"display_name":"Acme"}`, quota(0.0, 100.0), meta.Quota{BytesPerSecond: meta.NoQuota, RecordsPerSecond: 100}},
		{`{"quota":{"bytes_per_second":null,"records_per_second":null}}`, nil, meta.Quota{}},
	} {
		status, got = f.do("PATCH", "/v1/tenants/acme", f.all(), c.body)
		require.Equal(t, 200, status, got)
		require.Equal(t, c.quota, got["quota"], c.body)
		stored, err := f.catalog.GetTenant(t.Context(), "acme")
		require.NoError(t, err)
		require.Equal(t, c.is, stored.Quota, c.body)
	}
	_, got = f.do("GET", "/v1/tenants/acme", f.all(), "")
	require.Equal(t, map[string]any{"tenant_id": "acme", "display_name": "Acme"}, got)
	for body, phrase := range map[string]string{
		`{"quota":{"bytes_per_second":-1}}`:                   "bytes_per_second",
		`{"quota":{"bytes_per_second":1099511627777}}`:        "quota.bytes_per_second",
		`{"quota":{"per_second":1}}`:                          "per_second",
		`{"quota":{"records_per_second":1.5}}`:                "records_per_second",
		`{"tenant_id":"other"}`:                               "tenant_id",
		`{"display_name":"` + strings.Repeat("x", 257) + `"}`: "display_name",
		`{"quota":{"bytes_per_second":"fast"}}`:               "bytes_per_second",
	} {
		status, got = f.do("PATCH", "/v1/tenants/acme", f.all(), body)
		require.Equal(t, 400, status, "%s: %v", body, got)
		require.Contains(t, got["message"], phrase)
	}
	// A tenant does not set its own.
	theirs := f.token("acme", auth.AudienceAPI, auth.AllPermissions("acme")...)
	status, _ = f.do("PATCH", "/v1/tenants/acme", theirs, `{"quota":{"bytes_per_second":0}}`)
	require.Equal(t, 403, status)
	status, _ = f.do("PATCH", "/v1/tenants/nobody", f.all(), `{}`)
	require.Equal(t, 404, status)
}

func TestPaging(t *testing.T) {
	f := newFixture(t)
	token := f.all()
	for i := range 7 {
		_, err := f.catalog.CreateStream(t.Context(), meta.Stream{Tenant: "default", Namespace: "default", Name: fmt.Sprintf("s%d", i)})
		require.NoError(t, err)
	}
	var names []string
	cursor, pages := "", 0
	for {
		status, got := f.do("GET", streams+"?limit=3&cursor="+cursor, token, "")
		require.Equal(t, 200, status, got)
		pages++
		for _, item := range got["items"].([]any) {
			names = append(names, item.(map[string]any)["stream"].(string))
		}
		next, more := got["next_cursor"]
		if !more {
			break
		}
		cursor = next.(string)
	}
	require.Equal(t, []string{"s0", "s1", "s2", "s3", "s4", "s5", "s6"}, names)
	require.Equal(t, 3, pages)
	for _, q := range []string{"limit=0", "limit=10001", "limit=x", "limit=", "cursor=!!", "cursor=Li4"} {
		status, _ := f.do("GET", streams+"?"+q, token, "")
		require.Equal(t, 400, status, q)
	}
}

func TestHealth(t *testing.T) {
	f := newFixture(t)
	f.server.Close()
	f.ready = Readiness{Status: "recovering", Reasons: []Reason{{"recovering", "2 of 9 shards opened"}}, Recovery: Recovery{Done: 2, Total: 9, Percent: 22, BytesRead: 5, Bytes: 7}}
	for _, path := range []string{"/live", "/v1/system/live", "/metrics"} {
		status, _ := f.do("GET", path, "", "")
		require.Equal(t, 200, status, path)
	}
	for _, path := range []string{"/ready", "/v1/system/ready"} {
		status, got := f.do("GET", path, "", "")
		require.Equal(t, 503, status)
		require.Equal(t, "recovering", got["status"])
		require.Equal(t, map[string]any{"done": 2.0, "total": 9.0, "percent": 22.0, "bytes_read": 5.0, "bytes": 7.0}, got["recovery"])
	}
	status, got := f.do("GET", streams, f.all(), "")
	require.Equal(t, 503, status)
	require.Equal(t, "not_ready", got["code"])
	f.ready = Readiness{Ready: true, Status: "ready"}
	status, _ = f.do("GET", "/ready", "", "")
	require.Equal(t, 200, status)
}

func TestJWKS(t *testing.T) {
	f := newFixture(t)
	status, got := f.do("GET", "/v1/tenants/default/.well-known/jwks.json", "", "")
	require.Equal(t, 200, status)
	keys := got["keys"].([]any)
	require.Len(t, keys, 1)
	key := keys[0].(map[string]any)
	require.Equal(t, "OKP", key["kty"])
	require.Equal(t, "Ed25519", key["crv"])
	require.NotContains(t, key, "d", "a private key must never be published")
}

// What the store cannot do is 503, and a defect of ours is 500 without its text.
func TestStoreFailures(t *testing.T) {
	f := newFixture(t)
	store := f.catalog.Store().(*meta.Memory)
	token := f.all()
	store.SetOutage(true)
	status, got := f.do("POST", streams, token, `{"stream":"a"}`)
	require.Equal(t, 503, status, got)
	store.SetOutage(false)
	status, _ = f.do("POST", streams, token, `{"stream":"a"}`)
	require.Equal(t, 201, status)
}

// A tenant whose key cannot be written is not left without one.
func TestATenantWithoutAKeyIsNotLeft(t *testing.T) {
	f := newFixture(t)
	own, err := f.keys.SigningKeyPath("default")
	require.NoError(t, err)
	inTheWay := filepath.Join(filepath.Dir(filepath.Dir(own)), "acme")
	require.NoError(t, os.WriteFile(inTheWay, nil, 0o600))
	token := f.token("default", auth.AudienceAPI, admin)
	status, body := f.do("POST", "/v1/tenants", token, `{"tenant_id":"acme"}`)
	require.Equal(t, 500, status, body)
	_, err = f.catalog.GetTenant(t.Context(), "acme")
	require.ErrorIs(t, err, meta.ErrNotFound)
	require.NoError(t, os.Remove(inTheWay))
	status, body = f.do("POST", "/v1/tenants", token, `{"tenant_id":"acme"}`)
	require.Equal(t, 201, status, body)
}

// A full disk under the keys is said as well as one under the metadata.
func TestDiskFullSaysWhere(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		e, known := answerOf(fmt.Errorf("signing key: %w", &fs.PathError{Op: "write", Path: "/data/keys/acme/x.pem", Err: errno}))
		require.True(t, known)
		require.Equal(t, 507, e.status)
		require.Contains(t, e.message, "write /data/keys/acme/x.pem: ")
		require.Contains(t, e.message, "make room on the file system of /data/keys/acme")
	}
}

// Display names are for people, in any script, and reach their terminals: control
// characters are refused wherever one is given, and nothing is made or changed.
func TestDisplayNamesWithoutControlCharacters(t *testing.T) {
	f := newFixture(t)
	token := f.all()
	caches := "/v1/tenants/default/namespaces/default/caches"
	for _, text := range []string{`a\u0000b`, `a\nb`, `\u001b[2J`, `a\u007f`, `a\u0085`, `a\u2028b`, "a\xff"} {
		for path, body := range map[string]string{
			"/v1/tenants":                    `{"tenant_id":"x","display_name":"` + text + `"}`,
			"/v1/tenants/default/namespaces": `{"namespace":"x","display_name":"` + text + `"}`,
			caches:                           `{"cache":"x","display_name":"` + text + `"}`,
		} {
			status, got := f.do("POST", path, token, body)
			require.Equal(t, 400, status, "%s: %v", body, got)
			require.Equal(t, "invalid_request", got["code"], body)
			require.Contains(t, got["message"], "display_name", body)
			require.Contains(t, got["message"], "unusable character", body)
		}
		status, _ := f.do("PATCH", "/v1/tenants/default", token, `{"display_name":"`+text+`"}`)
		require.Equal(t, 400, status)
	}
	_, got := f.do("GET", caches, token, "")
	require.Equal(t, []any{}, got["items"])
	status, got := f.do("POST", caches, token, `{"cache":"x","display_name":"Büro 東京 \ud83d\udc68\u200d\ud83d\udc69 ünïcödé"}`)
	require.Equal(t, 201, status, got)
}
