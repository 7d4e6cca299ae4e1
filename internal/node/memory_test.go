package node

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/config"
)

func TestMemoryLimit(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	file := filepath.Join(t.TempDir(), "memory.max")
	none := func(string) string { return "" }
	for _, c := range []struct {
		text    string
		setting int64
		getenv  func(string) string
		want    int64
	}{
		{"1073741824\n", config.Auto, none, 1073741824 / 10 * 9},
		{"max\n", config.Auto, none, 0},
		{"9223372036854771712\n", config.Auto, none, 0},
		{"garbage", config.Auto, none, 0},
		{"1073741824\n", config.Auto, func(string) string { return "1GiB" }, 0},
		{"1073741824\n", 123 << 20, none, 123 << 20},
	} {
		require.NoError(t, os.WriteFile(file, []byte(c.text), 0o600))
		debug.SetMemoryLimit(before)
		require.Equal(t, c.want, limitMemory(c.setting, c.getenv, []string{filepath.Join(t.TempDir(), "missing"), file}), c.text)
		if c.want > 0 {
			require.Equal(t, c.want, debug.SetMemoryLimit(-1))
		} else {
			require.Equal(t, before, debug.SetMemoryLimit(-1))
		}
	}
}
