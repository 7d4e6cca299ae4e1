package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A damaged snapshot of a cache is a warning that says what was done, and nothing is lost.
func TestADamagedSnapshotIsAWarning(t *testing.T) {
	first := start(t, nil)
	status, raw := first.call("POST", "/v1/tenants/default/namespaces/default/caches", `{"cache":"prices"}`)
	require.Equal(t, 201, status, string(raw))
	require.NoError(t, first.dial().Cache("prices").Put(t.Context(), "k", []byte("v")))
	first.stop()
	found, err := filepath.Glob(filepath.Join(first.options.Config.Data, "streams", "caches", "*", "snapshot"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	content, err := os.ReadFile(found[0])
	require.NoError(t, err)
	content[len(content)-1] ^= 1
	require.NoError(t, os.WriteFile(found[0], content, 0o600))

	second := start(t, func(o *Options) { o.Config.Data = first.options.Config.Data })
	second.awaitReady()
	value, ok, err := second.dial().Cache("prices").Get(t.Context(), "k")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "v", string(value.Data))
	told := 0
	for line := range strings.Lines(second.log.String()) {
		var l struct{ Level, Msg, Shard string }
		require.NoError(t, json.Unmarshal([]byte(line), &l))
		require.NotEqual(t, "ERROR", l.Level, line)
		if l.Level == "WARN" && strings.Contains(l.Msg, "the index was read from the log") {
			require.Equal(t, "cache default/default/prices/0", l.Shard)
			told++
		}
	}
	require.Equal(t, 1, told, second.log.String())
}
