package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCaches(t *testing.T) {
	f := newFixture(t)
	const path = "/v1/tenants/default/namespaces/default/caches"
	code, got := f.do("POST", path, f.all(), `{"cache":"sessions","display_name":"Sessions","shards":4,"max_keys":100,"on_full":"refuse"}`)
	require.Equal(t, http.StatusCreated, code)
	want := map[string]any{
		"tenant_id": "default", "namespace": "default", "cache": "sessions", "display_name": "Sessions", "shards": 4.0,
		"replication_factor": 1.0, "consistency": "Leader", "max_keys": 100.0, "on_full": "refuse",
	}
	require.Equal(t, want, got)
	code, _ = f.do("POST", path, f.all(), `{"cache":"sessions","display_name":"Sessions","shards":4,"max_keys":100,"on_full":"refuse"}`)
	require.Equal(t, http.StatusConflict, code)
	code, got = f.do("PATCH", path+"/sessions", f.all(), `{"max_bytes":4096,"on_full":"evict"}`)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, 4096.0, got["max_bytes"])
	code, got = f.do("GET", path+"/sessions", f.all(), "")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "evict", got["on_full"])
	code, got = f.do("GET", path, f.all(), "")
	require.Equal(t, http.StatusOK, code)
	require.Len(t, got["items"], 1)
	for body, why := range map[string]string{
		`{"cache":".."}`:                 "a name that is none",
		`{"cache":"c","shards":0}`:       "no shards",
		`{"cache":"c","max_keys":-1}`:    "a negative bound",
		`{"cache":"c","on_full":"drop"}`: "an unknown policy",
		`{"cache":"c","colour":"red"}`:   "an unknown field",
	} {
		code, _ = f.do("POST", path, f.all(), body)
		require.Equal(t, http.StatusBadRequest, code, why)
	}
	code, _ = f.do("DELETE", path+"/sessions", f.token("default", "felix-controlplane", "cache.read:cache:default/default/*"), "")
	require.Equal(t, http.StatusForbidden, code)
	code, _ = f.do("DELETE", path+"/sessions", f.all(), "")
	require.Equal(t, http.StatusNoContent, code)
	code, _ = f.do("GET", path+"/sessions", f.all(), "")
	require.Equal(t, http.StatusNotFound, code)
}
