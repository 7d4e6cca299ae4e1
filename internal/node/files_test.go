package node

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A limit of open files below what the settings come to is told at the start, with the
// numbers and the settings; one that they fit into is not.
func TestALowLimitOfOpenFilesIsTold(t *testing.T) {
	for limit, want := range map[uint64]int{100 + 50: 0, 100 + 50 - 1: 1} {
		r := start(t, func(o *Options) {
			o.openFiles = limit
			o.Config.Limits.Connections, o.Config.Storage.MaxOpenFiles = 100, 50
		})
		var told []string
		for line := range strings.Lines(r.log.String()) {
			if strings.Contains(line, "open_files_limit") {
				told = append(told, line)
			}
		}
		require.Len(t, told, want, "limit %d", limit)
		for _, line := range told {
			for _, part := range []string{`"level":"WARN"`, `"open_files_limit":149`, `"limits.connections":100`, `"storage.max_open_files":50`, "ulimit -n"} {
				require.Contains(t, line, part)
			}
		}
	}
}
