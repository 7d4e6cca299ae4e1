package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Arguments that say nothing a broker could do are refused before it is asked, and
// none of them is taken for another one.
func TestArgumentsRefused(t *testing.T) {
	s := newShell(t)
	s.serve()
	s.ok("stream", "create", "jobs", "--durable", "--kind", "queue")
	s.ok("cache", "create", "sessions")
	s.ok("namespace", "create", "other")
	s.ok("stream", "create", "kept", "--durable", "-n", "other")
	s.ok("pub", "jobs", "x")
	s.ok("group", "poll", "jobs", "workers")
	for _, c := range []struct {
		args []string
		exit int
		want string
	}{
		// The client builds paths of these two.
		{[]string{"stream", "ls", "-n", "a/../other"}, exitUsage, "namespace"},
		{[]string{"stream", "ls", "-n", ".."}, exitUsage, "namespace"},
		{[]string{"stream", "rm", "kept", "--yes", "-n", "a/../other"}, exitUsage, "namespace"},
		{[]string{"pub", "jobs", "x", "-n", "a/../b"}, exitUsage, "namespace"},
		{[]string{"stream", "ls", "--tenant", "../default"}, exitUsage, "tenant"},
		{[]string{"cache", "get", "..", "k"}, exitUsage, `cache: name ".."`},
		{[]string{"cache", "put", "a/../b", "k", "v"}, exitUsage, "unusable character"},
		{[]string{"cache", "del", "", "k"}, exitUsage, "empty"},
		{[]string{"cache", "keys", strings.Repeat("a", 10<<10)}, exitUsage, "too long"},
		{[]string{"cache", "watch", "a\x1b"}, exitUsage, "unusable character"},
		{[]string{"counter", "add", "..", "k", "1"}, exitUsage, `".."`},
		{[]string{"counter", "get", "..", "k"}, exitUsage, `".."`},
		// What a cache was not made with.
		{[]string{"cache", "create", "sessions", "--shards", "9"}, exitRefused, "another shards"},
		{[]string{"cache", "create", "sessions", "--max-keys", "10"}, exitRefused, "another max_keys"},
		// Numbers that do not fit the wire are not cut down to ones that do.
		{[]string{"group", "ack", "jobs", "workers", "4294967296:0:1"}, exitRefused, "does not exist"},
		{[]string{"group", "nack", "jobs", "workers", "0:0:4294967297"}, exitRefused, "no longer stands"},
		{[]string{"sub", "jobs", "--shard", "4294967296", "--from", "earliest", "--count", "1"}, exitRefused, "does not exist"},
		{[]string{"group", "extend", "jobs", "workers", "0:0:1", "--for-ms", "9223372036854775807"}, exitOK, ""},
		{[]string{"group", "set", "jobs", "workers", "--backoff-factor", "NaN"}, exitUsage, "NaN"},
		{[]string{"group", "set", "jobs", "workers", "--backoff-factor", "Inf"}, exitUsage, "Inf"},
		{[]string{"stream", "ls", "--timeout", "0"}, exitUsage, "--timeout"},
		{[]string{"token", "mint", "--ttl", "0"}, exitUsage, "--ttl"},
	} {
		out, errs := s.felix(c.args...)
		require.Equal(t, c.exit, s.exit, "felix %q: %s%s", c.args, out, errs)
		require.Contains(t, errs, c.want, "felix %q", c.args)
	}
	require.Contains(t, s.ok("cache", "create", "sessions"), "exists")
	require.Contains(t, s.ok("stream", "ls", "-n", "other"), "kept")
}

// A group that is moved to a time begins with the first record from then on.
func TestGroupSeeksByTime(t *testing.T) {
	s := newShell(t)
	s.serve()
	s.ok("stream", "create", "jobs", "--durable", "--kind", "queue")
	s.ok("pub", "jobs", "x")
	for _, from := range []string{"1h", "1969-01-01T00:00:00Z"} {
		require.Equal(t, "shard 0 moved to 0\n", s.ok("group", "seek", "jobs", "workers", "--from", from))
	}
	require.Equal(t, "0:0:1 x\n", s.ok("group", "poll", "jobs", "workers"))
	require.Equal(t, "shard 0 moved to 1\n", s.ok("group", "seek", "jobs", "workers", "--from", "2199-01-01T00:00:00Z"))
	require.Equal(t, "shard 0 moved to 0\n", s.ok("group", "create", "jobs", "fresh", "--from", "1h"))
}
