package node

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/vfs"
)

// What cannot be made because the disk is full says so, where, and what to do; nothing of
// it is there, and with room it is made.
func TestNothingIsMadeOnAFullDisk(t *testing.T) {
	faulty := disk.NewFaulty(vfs.OS())
	r := start(t, func(o *Options) { o.FS = faulty })
	create := func(path, body string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), "POST", r.node.HTTPURL()+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+r.token("tenant.manage:cluster:*"))
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(raw)
	}
	for _, c := range []struct {
		path, body string
		shards     bool
	}{
		{"/v1/tenants/default/namespaces/default/streams", `{"stream":"orders","durable":true}`, true},
		{"/v1/tenants/default/namespaces/default/caches", `{"cache":"prices"}`, true},
		{"/v1/tenants/default/namespaces", `{"namespace":"payments"}`, false},
		{"/v1/tenants", `{"tenant_id":"acme","display_name":"acme"}`, false},
	} {
		// The metadata log cannot be written, or the directories of shards cannot be made.
		for what, rule := range map[string]disk.Rule{"write": {Op: disk.OpWrite, Path: "*.log"}, "mkdir": {Op: disk.OpMkdir}} {
			if what == "mkdir" && !c.shards {
				continue
			}
			rule.Count, rule.Action = disk.Forever, disk.NoSpace(3)
			faulty.Add(rule)
			status, raw := create(c.path, c.body)
			require.Equal(t, 507, status, raw)
			require.Contains(t, raw, `"code":"disk_full"`)
			require.Contains(t, raw, "not done: the broker's disk is full ("+what+" ")
			require.Contains(t, raw, r.options.Config.Data)
			require.Contains(t, raw, "make room")
			faulty.Clear()
		}
		status, raw := create(c.path, c.body)
		require.Equal(t, 201, status, raw)
	}
}
