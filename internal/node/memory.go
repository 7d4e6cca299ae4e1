package node

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/felixlog/felix/internal/config"
)

// Where the kernel says how much memory this process's group may use.
var cgroupFiles = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// limitMemory sets the runtime's soft limit and returns it, 0 for none set here.
// Auto leaves GOMEMLIMIT alone where it is given.
func limitMemory(setting int64, getenv func(string) string, files []string) int64 {
	limit := setting
	if limit == config.Auto {
		if getenv("GOMEMLIMIT") != "" {
			return 0
		}
		limit = containerLimit(files) / 10 * 9
	}
	if limit <= 0 {
		return 0
	}
	debug.SetMemoryLimit(limit)
	return limit
}

// containerLimit is the group's limit in bytes, 0 where there is none.
func containerLimit(files []string) int64 {
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		// The older interface writes a page-rounded 2^63 for no limit.
		if err == nil && n > 0 && n < math.MaxInt64/2 {
			return n
		}
	}
	return 0
}
