package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What can be printed stays as it is, and what is quoted is told from it.
func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "user:1": "user:1", "Grüße 世界": "Grüße 世界", `a "b" c`: `a "b" c`,
		"a\nb": `"a\nb"`, "\x1b[2J": `"\x1b[2J"`, "k\xff": `"k\xff"`, `"k"`: `"\"k\""`, "a\u202eb": `"a\u202eb"`, "a\tb": `"a\tb"`,
	} {
		require.Equal(t, want, plain(text))
	}
	for text, want := range map[string]string{
		"": "", "one\n\ttwo ü \ufffd": "one\n\ttwo ü \ufffd", "a\x1b[2Jb\r": `a\x1b[2Jb\r`, "a\xffb": `a\xffb`, "a\u202eb": `a\u202eb`, "a\u009bb": `a\u009bb`,
	} {
		require.Equal(t, want, harmless(text))
	}
	for text, want := range map[string]string{
		`{"a":"ü世\ufffd"}`: `{"a":"ü世\ufffd"}`, "{\"a\u009bb\":\"\x7f\u202e\U000e0001\"}": `{"a\u009bb":"\u007f\u202e\udb40\udc01"}`,
	} {
		escaped := appendJSONEscaped(nil, []byte(text))
		require.Equal(t, want, string(escaped))
		require.JSONEq(t, text, string(escaped))
	}
	require.Equal(t, "ab", firstBytes("abü", 3))
	require.Equal(t, "abü", firstBytes("abü", 4))
	require.Equal(t, "\x80\x80\x80\x80\x80", firstBytes("\x80\x80\x80\x80\x80\x80", 5), "no text: cut where it is")
}

// What others have named moves no cursor and makes no line of its own, a dead letter takes
// one line whatever its payload, and what was put comes back byte for byte.
func TestOutputOfWhatOthersNamed(t *testing.T) {
	s := newShell(t)
	s.serve()
	s.ok("cache", "create", "prices")
	for _, key := range []string{"a", "b\nc", "d\x1b[2J"} {
		s.ok("cache", "put", "prices", key, "v")
	}
	require.Equal(t, "a\n\"b\\nc\"\n\"d\\x1b[2J\"\n", s.ok("cache", "keys", "prices"))
	require.Equal(t, "b\nc", decode[map[string]string](t, s.ok("cache", "keys", "prices", "--prefix", "b", "--json"))["key"])
	require.Equal(t, "+ \"b\\nc\" v\n", s.ok("cache", "watch", "prices", "--prefix", "b", "--retained", "--count", "1"))
	_, errs := s.felix("cache", "get", "no\x1b[2Jne", "k")
	require.Equal(t, exitUsage, s.exit)
	require.NotContains(t, errs, "\x1b")
	_, errs = s.felix("cache", "get", "prices", strings.Repeat("k", 5000)+"\x1b[2J")
	require.Equal(t, exitRefused, s.exit)
	require.Contains(t, errs, "at most 4096")
	require.Contains(t, errs, "kkk... (5004 bytes)")
	require.Less(t, len(errs), 400)

	file := filepath.Join(s.dir, "value")
	for _, value := range []string{"", "line\n", "\x00\xff\r\n"} {
		require.NoError(t, os.WriteFile(file, []byte(value), 0o600))
		s.ok("cache", "put", "prices", "file", "--file", file)
		require.Equal(t, value, s.ok("cache", "get", "prices", "file", "--raw"))
		require.Equal(t, value+"\n", s.ok("cache", "get", "prices", "file"))
	}
	s.felix("cache", "get", "prices", "none", "--raw")
	require.Equal(t, exitMissing, s.exit)
	s.felix("cache", "get", "prices", "file", "--raw", "--json")
	require.Equal(t, exitUsage, s.exit)

	s.ok("stream", "create", "jobs", "--durable")
	large := bytes.Repeat([]byte("line\n"), 200_000)
	for _, payload := range [][]byte{[]byte("short"), []byte("a\x1b[2J\nb"), large} {
		require.NoError(t, os.WriteFile(file, payload, 0o600))
		s.ok("pub", "jobs", "--file", file, "--whole")
	}
	s.ok("group", "poll", "jobs", "g", "--max", "3")
	s.ok("group", "dead-letters", "add", "jobs", "g", "0:0", "0:1", "0:2")
	lines := strings.Split(strings.TrimSuffix(s.ok("group", "dead-letters", "ls", "jobs", "g"), "\n"), "\n")
	require.Len(t, lines, 3)
	require.Regexp(t, `^0:0 .*Z: short$`, lines[0])
	require.Regexp(t, `^0:1 .*Z: "a\\x1b\[2J\\nb"$`, lines[1])
	require.Regexp(t, `^0:2 .*Z \(the first 256 of 1000000 bytes\): "line`, lines[2])
	require.Less(t, len(lines[2]), 500)
	whole := s.ok("group", "dead-letters", "ls", "jobs", "g", "--whole")
	require.Equal(t, 3, strings.Count(whole, "\n"))
	require.Greater(t, len(whole), len(large))
	listed := strings.Split(s.ok("group", "dead-letters", "ls", "jobs", "g", "--json"), "\n")
	require.Equal(t, large, decode[letterLine](t, listed[2]).Payload)

	// What is there is discarded, and what is not is said.
	out, errs := s.felix("group", "dead-letters", "discard", "jobs", "g", "0:7", "0:1", "0:1", "0:0")
	require.Equal(t, exitMissing, s.exit)
	require.Equal(t, "0:1 discard\n0:0 discard\n", out)
	require.Contains(t, errs, "has no such dead letter: 0:7, 0:1;")
	_, errs = s.felix("group", "dead-letters", "redrive", "jobs", "g", "0:1")
	require.Equal(t, exitMissing, s.exit)
	require.Contains(t, errs, "has no such dead letter: 0:1;")
	require.Equal(t, "0:2 redrive\n", s.ok("group", "dead-letters", "redrive", "jobs", "g", "0:2"))
}
