package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/storage/segment"
)

// logOf is a segment of plain records.
func logOf(payloads ...[]byte) []byte {
	raw := segment.AppendHeader(nil, segment.Header{Version: 2, CreatedAt: 2})
	for i, p := range payloads {
		raw = segment.AppendRecord(raw, &segment.RecordSpec{Offset: segment.Offset(i), Timestamp: 9, Payload: p})
	}
	return raw
}

// A directory that is not what it is imported as is refused with what it is, and nothing
// of it is published.
func TestImportRecognisesDirectories(t *testing.T) {
	s := newShell(t)
	b := s.serve()
	s.ok("stream", "create", "jobs", "--durable")
	s.ok("pub", "jobs", "x", "--count", "3")
	s.ok("group", "poll", "jobs", "workers", "--max", "2", "--ack")
	s.ok("cache", "create", "prices")
	s.ok("cache", "put", "prices", "k", "a value that is as long as a producer's tag and more")
	s.ok("cache", "put", "prices", "another", "v")
	s.ok("counter", "add", "prices", "hits", "3")
	require.NoError(t, b.Stop())
	require.NoError(t, os.Rename(filepath.Join(s.dir, "felix-data"), filepath.Join(s.dir, "old")))
	one := func(pattern string) string {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(s.dir, "old", pattern))
		require.NoError(t, err)
		require.Len(t, found, 1, pattern)
		return found[0]
	}
	entry := func(key string) []byte {
		return cache.AppendEntry(nil, cache.Entry{Key: []byte(key), Value: binary.BigEndian.AppendUint64(nil, 7)})
	}
	cursors := s.logDir("theirs/group-cursors/shard", logOf(entry("jobs/workers"), entry("jobs/others")))
	letters := s.logDir("theirs/dead_letters/shard", logOf(entry("jobs/workers/3")))
	counters := s.logDir("theirs/counters/shard", logOf([]byte("nobody knows how these are written")))
	chance := s.logDir("chance", logOf([]byte("a record"), entry("k")))

	s.serve("--data", "new")
	s.ok("stream", "create", "copy", "--durable")
	s.ok("cache", "create", "values")
	for _, c := range []struct {
		dir, into string
		want      []string
	}{
		{one("streams/*jobs*/groups"), "stream", []string{"this broker's consumer groups", "felix backup", "group create"}},
		{one("streams/*jobs*/groups"), "cache", []string{"this broker's consumer groups"}},
		{one("streams/caches/*prices*"), "stream", []string{"entries of a cache", "--cache"}},
		{one("streams/counters/*prices*"), "stream", []string{"holds counters", "counter add"}},
		{one("streams/counters/*prices*"), "cache", []string{"holds counters"}},
		{one("meta"), "stream", []string{"definitions of tenants"}},
		{one("streams/*jobs*"), "cache", []string{"no entry of a cache", "--stream"}},
		{cursors, "stream", []string{"group-cursors", "reference's consumer groups", "not published", "group create"}},
		{cursors, "cache", []string{"group-cursors", "--as-is"}},
		{letters, "cache", []string{"dead letters"}},
		{counters, "stream", []string{"holds counters", "not published"}},
		{counters, "cache", []string{"holds counters", "not published"}},
		{chance, "cache", []string{"record 0 is no entry of a cache"}},
	} {
		name := map[string]string{"stream": "copy", "cache": "values"}[c.into]
		_, errs := s.felix("import", c.dir, "--"+c.into, name)
		require.Equal(t, exitOther, s.exit, "%s as a %s: %s", c.dir, c.into, errs)
		for _, w := range c.want {
			require.Contains(t, errs, w, "%s as a %s", c.dir, c.into)
		}
	}
	require.Equal(t, "0\n", s.ok("pub", "copy", "the first"), "something was published")
	require.Empty(t, s.ok("cache", "keys", "values"), "something was put")

	for _, c := range []struct {
		dir     string
		records int
		args    []string
	}{
		{one("streams/*jobs*"), 3, []string{"--stream", "copy"}},
		{chance, 2, []string{"--stream", "copy"}},
		{one("streams/caches/*prices*"), 2, []string{"--cache", "values"}},
		{cursors, 2, []string{"--cache", "values", "--as-is"}},
		{cursors, 2, []string{"--stream", "copy", "--as-is"}},
	} {
		require.Contains(t, s.ok(append([]string{"import", c.dir}, c.args...)...), fmt.Sprintf(": %d records, ", c.records), c.dir)
	}
	s.felix("import", counters, "--cache", "values", "--as-is")
	require.Equal(t, exitOther, s.exit, "what is no entry cannot be put")
}
