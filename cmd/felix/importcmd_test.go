package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/storage/segment"
)

// formatVectors are the bytes of the format that were made apart from this program.
func formatVectors(t *testing.T) map[string][]byte {
	t.Helper()
	raw, err := os.ReadFile("../../storage/segment/testdata/storage.json")
	require.NoError(t, err)
	var all []struct {
		Name, Hex string
		Zeros     int `json:"zeros_after"`
	}
	require.NoError(t, json.Unmarshal(raw, &all))
	out := map[string][]byte{}
	for _, v := range all {
		b, err := hex.DecodeString(v.Hex)
		require.NoError(t, err)
		out[v.Name] = append(b, make([]byte, v.Zeros)...)
	}
	return out
}

// logDir puts segments into a directory of the shell's.
func (s *shell) logDir(name string, segments ...[]byte) string {
	s.t.Helper()
	dir := filepath.Join(s.dir, name)
	require.NoError(s.t, os.MkdirAll(dir, 0o700))
	for i, b := range segments {
		require.NoError(s.t, os.WriteFile(filepath.Join(dir, segment.SegmentName(segment.ID(i))), b, 0o600))
	}
	return name
}

// files are the bytes of a directory.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		out[e.Name()] = string(raw)
	}
	return out
}

func TestImportOfStreamDirectories(t *testing.T) {
	v := formatVectors(t)
	s := newShell(t)
	s.serve()
	s.ok("stream", "create", "orders", "--durable", "--shards", "2")
	// Every kind of record there is, in a segment of the newest version.
	kinds := segment.AppendHeader(nil, segment.Header{Version: 6, BaseOffset: 7, CreatedAt: 2})
	for _, name := range []string{"record_plain", "record_producer_first", "record_producer_next", "record_generation_start", "record_commit", "record_publisher"} {
		kinds = append(kinds, v[name]...)
	}
	six := "payload-00\npayload-01\npayload-02\npayload-03\npayload-04\npayload-05\n"
	for _, c := range []struct {
		name     string
		segments [][]byte
		args     []string
		want     string
		line     importLine
	}{
		{"six", [][]byte{v["segment_file_v2_six_records"]}, nil, six, importLine{Imported: 6, Next: 6, End: 6}},
		{"kinds", [][]byte{kinds}, nil, "hi\na\nb\nev\nhi\n", importLine{Imported: 5, Skipped: 1, Next: 13, End: 13}},
		{"torn", [][]byte{v["segment_file_cut_by_10"]}, nil, strings.TrimSuffix(six, "payload-05\n"), importLine{Imported: 5, Next: 5, End: 5}},
		{"padded", [][]byte{v["segment_file_zero_padded"]}, nil, six, importLine{Imported: 6, Next: 6, End: 6}},
		{"later", [][]byte{v["segment_file_v2_six_records"]}, []string{"--from", "4"}, "payload-04\npayload-05\n", importLine{Imported: 2, Next: 6, End: 6}},
		{"empty", [][]byte{v["segment_header_v4"]}, nil, "", importLine{Next: 1, End: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			own := *s
			own.t = t
			dir := own.logDir(c.name, c.segments...)
			before := files(t, filepath.Join(s.dir, dir))
			own.ok("stream", "create", c.name, "--durable", "--shards", "2")
			line := decode[importLine](t, own.ok(append([]string{"import", dir, "--stream", c.name, "--shard", "1", "--json"}, c.args...)...))
			c.line.Dir, c.line.Into = dir, "stream "+c.name+" shard 1"
			require.Equal(t, c.line, line)
			if c.want != "" {
				require.Equal(t, c.want, own.ok("sub", c.name, "--shard", "1", "--from", "earliest", "--count", fmt.Sprint(strings.Count(c.want, "\n"))))
			}
			require.True(t, maps.Equal(before, files(t, filepath.Join(s.dir, dir))), "the directory was changed")
		})
	}
}

func TestImportOfCacheDirectories(t *testing.T) {
	v := formatVectors(t)
	s := newShell(t)
	s.serve()
	s.ok("cache", "create", "prices", "--shards", "3")
	s.ok("cache", "put", "prices", "k", "old")
	later := cache.Millis(time.Now().Add(time.Hour).UnixMilli())
	raw := segment.AppendHeader(nil, segment.Header{Version: 2, BaseOffset: 0, CreatedAt: 2})
	next := segment.Offset(0)
	add := func(payload []byte) {
		raw = segment.AppendRecord(raw, &segment.RecordSpec{Offset: next, Timestamp: 9, Payload: payload})
		next++
	}
	put := func(key, value string, expires cache.Millis) {
		add(cache.AppendEntry(nil, cache.Entry{Key: []byte(key), Value: []byte(value), Expires: expires}))
	}
	for i := range 3000 { // more than a window
		put(fmt.Sprint("key", i%100), fmt.Sprint("value", i), 0)
	}
	put("kept", "for an hour", later)
	put("removed", "x", 0)
	add(cache.AppendEntry(nil, cache.Entry{Key: []byte("removed"), Delete: true}))
	add(v["cache_put"]) // of the key k, expired long ago
	dir := s.logDir("cache", raw)

	out := s.ok("import", dir, "--cache", "prices")
	require.Equal(t, "imported into cache prices: 3004 records, offsets 0 to 3004 of cache (exclusive); 0 hold nothing to import\n", out)
	for _, i := range []int{0, 57, 99} {
		require.Equal(t, fmt.Sprint("value", 2900+i), strings.TrimSuffix(s.ok("cache", "get", "prices", fmt.Sprint("key", i)), "\n"))
	}
	require.Equal(t, "for an hour", strings.TrimSuffix(s.ok("cache", "get", "prices", "kept"), "\n"))
	for _, key := range []string{"removed", "k"} {
		s.felix("cache", "get", "prices", key)
		require.Equal(t, exitMissing, s.exit, key)
	}
}

func TestImportRefusals(t *testing.T) {
	v := formatVectors(t)
	s := newShell(t)
	s.serve()
	s.ok("stream", "create", "orders", "--durable")
	s.ok("cache", "create", "prices")
	six := v["segment_file_v2_six_records"]
	good := s.logDir("good", six)
	beyond := segment.AppendHeader(nil, segment.Header{Version: 2, BaseOffset: 9, CreatedAt: 2})
	old := append([]byte{}, v["segment_header_v2"]...)
	old[5] = 1
	require.NoError(t, os.MkdirAll(filepath.Join(s.dir, "empty"), 0o700))
	for _, c := range []struct {
		name string
		dir  string
		args []string
		exit int
		want []string
	}{
		{"neither", good, nil, exitUsage, []string{"either --stream or --cache"}},
		{"both", good, []string{"--stream", "orders", "--cache", "prices"}, exitUsage, []string{"either --stream or --cache"}},
		{"no such directory", "nowhere", []string{"--stream", "orders"}, exitUsage, []string{"nowhere"}},
		{"nothing in it", "empty", []string{"--stream", "orders"}, exitOther, []string{"holds no segments"}},
		{"one above", ".", []string{"--stream", "orders"}, exitOther, []string{"name one of the shards below it"}},
		{"in use", "felix-data/meta", []string{"--stream", "orders"}, exitOther, []string{"is in use", "locked by another process"}},
		{"no such stream", good, []string{"--stream", "none"}, exitMissing, []string{"none"}},
		{"no such cache", s.logDir("nothing", v["segment_header_v2"]), []string{"--cache", "none"}, exitMissing, []string{"none"}},
		{"no such shard", good, []string{"--stream", "orders", "--shard", "4"}, exitUsage, []string{"--shard 4", "has 1"}},
		{"past the end", good, []string{"--stream", "orders", "--from", "7"}, exitUsage, []string{"ends at offset 6"}},
		{"a stream's as a cache", good, []string{"--cache", "prices"}, exitOther, []string{"record 0 is no entry of a cache", "--stream"}},
		{"another version", s.logDir("old", old), []string{"--stream", "orders"}, exitOther, []string{"HeaderVersion", "position"}},
		{"damaged inside", s.logDir("inside", v["segment_file_interior_payload_flipped"]), []string{"--stream", "orders"}, exitOther, []string{"RecordChecksum", "position 108", "offset 2", "restore the shard"}},
		{"damaged length", s.logDir("length", v["segment_file_interior_length_flipped"]), []string{"--stream", "orders"}, exitOther, []string{"RecordHeaderChecksum", "position"}},
		{"damaged at its end", s.logDir("end", v["segment_file_last_payload_flipped"]), []string{"--stream", "orders"}, exitOther, []string{"RecordChecksum", "position 222", "offset 5"}},
		{"a gap", s.logDir("gap", six, beyond), []string{"--stream", "orders"}, exitOther, []string{"begins at offset 9, the one before ends at 6"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			own := *s
			own.t = t
			_, errs := own.felix(append([]string{"import", c.dir}, c.args...)...)
			require.Equal(t, c.exit, own.exit, errs)
			for _, w := range c.want {
				require.Contains(t, errs, w)
			}
		})
	}
	require.Equal(t, "0\n", s.ok("pub", "orders", "the first"), "something was published")
}

// An import that cannot go on says how far it got, and goes on from there.
func TestImportThatStopsSaysHowFarItGot(t *testing.T) {
	v := formatVectors(t)
	s := newShell(t)
	b := s.serve()
	s.ok("stream", "create", "orders", "--durable", "--max-record-bytes", "100")
	raw := append([]byte{}, v["segment_file_v2_six_records"]...)
	raw = segment.AppendRecord(raw, &segment.RecordSpec{Offset: 6, Timestamp: 2000, Payload: make([]byte, 101)})
	raw = segment.AppendRecord(raw, &segment.RecordSpec{Offset: 7, Timestamp: 2000, Payload: []byte("last")})
	dir := s.logDir("large", raw)
	_, errs := s.felix("import", dir, "--stream", "orders")
	require.Equal(t, exitRefused, s.exit, errs)
	require.Contains(t, errs, "what is before offset 6 is in stream orders shard 0 (6 records)")
	require.Contains(t, errs, "--from 6")
	s.ok("import", dir, "--stream", "orders", "--from", "7")
	out := s.ok("sub", "orders", "--from", "earliest", "--count", "6")
	require.True(t, strings.HasPrefix(out, "payload-00\npayload-01\n"), out)
	require.NoError(t, b.Stop())
}
