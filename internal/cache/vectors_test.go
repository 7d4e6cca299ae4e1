package cache

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEntryVectors holds the cache entries among the format's vectors.
func TestEntryVectors(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "storage", "segment", "testdata", "storage.json"))
	require.NoError(t, err)
	var all []struct {
		Name, Hex, Op, Key, Value string
		Expires                   uint64  `json:"expires_at_millis"`
		Origin                    *uint64 `json:"origin_offset"`
	}
	require.NoError(t, json.Unmarshal(raw, &all))
	seen := 0
	for _, v := range all {
		if !strings.HasPrefix(v.Name, "cache_") {
			continue
		}
		seen++
		want := Entry{Delete: v.Op == "delete", Expires: Millis(v.Expires), Key: []byte(v.Key), Value: []byte(v.Value)}
		if v.Origin != nil {
			want.Copied, want.Origin = true, Offset(*v.Origin)
		}
		b, err := hex.DecodeString(v.Hex)
		require.NoError(t, err)
		got, err := DecodeEntry(b)
		require.NoError(t, err, v.Name)
		require.Equal(t, want, got, v.Name)
		require.Equal(t, b, AppendEntry(nil, want), v.Name)
	}
	require.Equal(t, 3, seen)
}
