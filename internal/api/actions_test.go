package api

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/wire"
)

func TestActions(t *testing.T) {
	f := newFixture(t)
	token := f.all()
	f.streams.damaged = true
	for path, want := range map[string][]any{
		streams + "/orders/reopen": {
			map[string]any{"shard": 0.0, "state": "active", "head": 0.0},
			map[string]any{"shard": 1.0, "state": "damaged", "head": 0.0, "error": "stream orders: still damaged"},
		},
		caches + "/orders/reopen": {
			map[string]any{"shard": 0.0, "state": "active", "head": 0.0},
			map[string]any{"shard": 1.0, "state": "damaged", "head": 0.0, "error": "cache orders: still damaged"},
		},
		streams + "/orders/retain": {map[string]any{"shard": 0.0, "head": 17.0, "segments": 2.0, "bytes": 4096.0}},
	} {
		status, got := f.do("POST", path, token, "")
		require.Equal(t, 200, status, path)
		require.Equal(t, want, got["shards"], path)
		status, _ = f.do("GET", path, token, "")
		require.Equal(t, 405, status, path)
		status, _ = f.do("POST", path, f.token("default", auth.AudienceAPI, "stream.publish:stream:default/default/orders"), "")
		require.Equal(t, 403, status, path)
	}
	f.streams.err = wire.NewFailure(wire.CodeNotFound, "stream orders does not exist")
	status, _ := f.do("POST", streams+"/orders/reopen", token, "")
	require.Equal(t, 404, status)
}

func TestPatchOfAnotherScopeIsRefused(t *testing.T) {
	f := newFixture(t)
	token := f.all()
	status, _ := f.do("POST", streams, token, `{"stream":"orders"}`)
	require.Equal(t, 201, status)
	for _, body := range []string{`{"tenant_id":"other"}`, `{"namespace":"other"}`} {
		status, got := f.do("PATCH", streams+"/orders", token, body)
		require.Equal(t, 400, status, "%s: %v", body, got)
	}
}

// A deleted tenant's tokens are nobody's, also once another tenant has its name.
func TestDeletedTenantsTokensAreRefused(t *testing.T) {
	f := newFixture(t)
	root := f.token("default", auth.AudienceAPI, admin)
	create := func() {
		status, body := f.do("POST", "/v1/tenants", root, `{"tenant_id":"acme","display_name":"Acme"}`)
		require.Equal(t, 201, status, body)
	}
	create()
	old := f.token("acme", auth.AudienceAPI, "tenant.manage:tenant:acme")
	status, _ := f.do("DELETE", "/v1/tenants/acme", root, "")
	require.Equal(t, 204, status)
	require.NotContains(t, f.keys.Tenants(), "acme")
	create()
	status, _ = f.do("POST", "/v1/tenants/acme/namespaces", old, `{"namespace":"intruder","display_name":"x"}`)
	require.Equal(t, 401, status)
	status, _ = f.do("DELETE", "/v1/tenants/nobody", root, "")
	require.Equal(t, 404, status)
}
