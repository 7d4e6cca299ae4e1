package config

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "felix.yaml")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func entry(t *testing.T, c *Config, path string) Entry {
	t.Helper()
	for _, e := range c.Entries {
		if e.Path == path {
			return e
		}
	}
	t.Fatalf("no setting %s", path)
	return Entry{}
}

func TestDefaults(t *testing.T) {
	c, err := Load(Sources{})
	require.NoError(t, err)
	require.Equal(t, c.Options, Defaults())
	require.Equal(t, "127.0.0.1:5000", c.Options.Listen)
	require.Equal(t, "127.0.0.1:8080", c.Options.HTTP.Listen)
	require.Equal(t, "felix-data", c.Options.Data)
	for _, e := range c.Entries {
		require.Equal(t, "default", e.Source, e.Path)
	}
}

// The names and defaults the documents promise, each by its variable: the
// default given there must be ours, word for word in its own unit.
func TestPromisedSettings(t *testing.T) {
	f, err := os.Open("testdata/seed-settings.txt")
	require.NoError(t, err)
	defer f.Close()
	var o, want Options
	table, wanted := Settings(&o), Settings(&want)
	for i := range table {
		require.NoError(t, table[i].set(table[i].Default))
	}
	lines := 0
	for sc := bufio.NewScanner(f); sc.Scan(); lines++ {
		env, def, _ := strings.Cut(sc.Text(), "\t")
		found := false
		for i := range table {
			if table[i].Env != env {
				continue
			}
			found = true
			if def == "unset" {
				def = ""
			}
			require.NoError(t, wanted[i].set(def), env)
			require.Equal(t, wanted[i].Value(), table[i].Value(), env)
		}
		require.True(t, found, "no setting reads %s", env)
	}
	require.Equal(t, 19, lines)
}

func TestTableIsConsistent(t *testing.T) {
	var o Options
	paths, flags, envs := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, s := range Settings(&o) {
		require.NoError(t, s.set(s.Default), s.Path)
		require.NoError(t, s.set(s.Value()), "%s: its own value is not read back", s.Path)
		require.NotEmpty(t, s.Help, s.Path)
		require.False(t, paths[s.Path] || flags[s.Flag] || envs[s.Env], "%s is in the table twice", s.Path)
		paths[s.Path], flags[s.Flag], envs[s.Env] = true, true, true
	}
}

func TestFlagsBeatEnvironmentBeatsFileBeatsDefault(t *testing.T) {
	file := write(t, "storage:\n  fsync_mode: none\n  segment_bytes: 64MiB\n  max_record_bytes: 1MiB\nstreams.ring_bytes: 2MiB\n")
	c, err := Load(Sources{
		File:    file,
		Environ: []string{"FELIX_DURABLE_SEGMENT_BYTES=1048576", "FELIX_STORAGE_MAX_RECORD_BYTES=2MiB", "PATH=/bin"},
		Flags:   map[string]string{"storage-max-record-bytes": "3MiB"},
	})
	require.NoError(t, err)
	for _, want := range []Entry{
		{"storage.fsync_mode", "none", "file " + file + ":2"},
		{"storage.segment_bytes", "1MiB", "environment FELIX_DURABLE_SEGMENT_BYTES"},
		{"storage.max_record_bytes", "3MiB", "flag --storage-max-record-bytes"},
		{"streams.ring_bytes", "2MiB", "file " + file + ":5"},
		{"listen", "127.0.0.1:5000", "default"},
	} {
		require.Equal(t, want, entry(t, c, want.Path))
	}
	require.Equal(t, int64(3<<20), c.Options.Storage.MaxRecordBytes)
}

func TestMisspeltVariableIsReported(t *testing.T) {
	c, err := Load(Sources{Environ: []string{"FELIX_DURABLE_FSYNC=none", "FELIX_CONTEXT=x", "HOME=/"}})
	require.NoError(t, err)
	require.Equal(t, []string{"FELIX_DURABLE_FSYNC"}, c.UnknownEnv)
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name  string
		file  string
		env   string
		flags map[string]string
		want  []string
	}{
		{name: "unknown key", file: "storage:\n  fsync_mod: none\n", want: []string{"felix.yaml:2", `"storage.fsync_mod"`, `did you mean "storage.fsync_mode"?`}},
		{name: "unknown top key", file: "frobnicate: 1\n", want: []string{"felix.yaml:1", `"frobnicate"`}},
		{name: "given twice", file: "listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\n", want: []string{"felix.yaml:2", "listen is given twice", "line 1"}},
		{name: "given twice in two spellings", file: "storage.dir: /a\nstorage:\n  dir: /b\n", want: []string{"felix.yaml:3", "storage.dir is given twice", "line 1"}},
		{name: "a list", file: "listen: [a, b]\n", want: []string{"felix.yaml:1", "single value"}},
		{name: "no mapping", file: "- a\n", want: []string{"must be a mapping"}},
		{name: "broken file", file: "a: [\n", want: []string{"settings file"}},
		{name: "bad mode", env: "FELIX_DURABLE_FSYNC_MODE=always", want: []string{"storage.fsync_mode", "FELIX_DURABLE_FSYNC_MODE", "none, periodic, on_commit"}},
		{name: "bad number", env: "FELIX_DURABLE_SEGMENT_BYTES=lots", want: []string{"storage.segment_bytes", "no size"}},
		{name: "segment of one byte", env: "FELIX_DURABLE_SEGMENT_BYTES=1", want: []string{"storage.segment_bytes", "below the least allowed, 4KiB"}},
		{name: "negative", env: "FELIX_DURABLE_FSYNC_INTERVAL_MS=-5", want: []string{"storage.fsync_interval", "no duration"}},
		{name: "overflow", env: "FELIX_DURABLE_SEGMENT_BYTES=99999999TiB", want: []string{"larger than any file"}},
		{name: "spacing above segment", flags: map[string]string{"storage-segment-bytes": "4KiB", "storage-index-spacing-bytes": "8KiB"}, want: []string{"index_spacing_bytes 8KiB must be below"}},
		{name: "no storage but a directory", flags: map[string]string{"storage": "none", "storage-dir": "/x"}, want: []string{"exclude each other", "storage.dir"}},
		{name: "no storage but on_commit", flags: map[string]string{"storage": "none", "storage-fsync-mode": "on_commit"}, want: []string{"exclude each other", "on_commit"}},
		{name: "repair of flushed records", flags: map[string]string{"storage-repair-checksum-tail": "true", "storage-fsync-mode": "on_commit"}, want: []string{"exclude each other", "acknowledged"}},
		{name: "record over frame in base64", flags: map[string]string{"storage-max-record-bytes": "12MiB"}, want: []string{"does not fit limits.frame_bytes 16MiB"}},
		{name: "page over frame", flags: map[string]string{"limits-read-page-bytes": "5MiB", "limits-frame-bytes": "4MiB", "storage-max-record-bytes": "1MiB"}, want: []string{"limits.read_page_bytes 5MiB does not fit limits.frame_bytes 4MiB", "give at most 4MiB"}},
		{name: "poll over a client's frame", flags: map[string]string{"limits-poll-bytes": "32MiB", "limits-frame-bytes": "128MiB"}, want: []string{"limits.poll_bytes 32MiB does not fit limits.frame_bytes 128MiB, or the frame of 16MiB", "give at most 12240KiB"}},
		{name: "record over frame", flags: map[string]string{"storage-max-record-bytes": "16MiB"}, want: []string{"does not fit limits.frame_bytes 16MiB"}},
		{name: "half a certificate", flags: map[string]string{"tls-cert": "a.pem"}, want: []string{"tls.cert and tls.key belong together"}},
		{name: "open address", flags: map[string]string{"listen": "0.0.0.0:5000"}, want: []string{"listen 0.0.0.0:5000", "other machines", "tls.cert"}},
		{name: "open address without keys", flags: map[string]string{"listen": ":5000", "tls-cert": "a", "tls-key": "b"}, want: []string{"listen :5000", "auth.keys"}},
		{name: "open api", flags: map[string]string{"http-listen": "[::]:8080"}, want: []string{"http.listen [::]:8080", "http.tls_cert"}},
		{name: "no port", flags: map[string]string{"listen": "localhost"}, want: []string{"listen", "no host:port"}},
		{name: "port too large", flags: map[string]string{"listen": "127.0.0.1:99999"}, want: []string{"listen", "no port of 0 to 65535"}},
		{name: "shards in the data directory itself", flags: map[string]string{"data": "/d", "storage-dir": "/d/"}, want: []string{"storage.dir /d/", "its own"}},
		{name: "shards among the metadata", flags: map[string]string{"data": "/d", "storage-dir": "/d/x/../meta"}, want: []string{"storage.dir", "its own"}},
		{name: "shards around the data directory", flags: map[string]string{"data": "/d/e", "storage-dir": "/d"}, want: []string{"storage.dir /d", "its own"}},
		{name: "keep-alive too rare", flags: map[string]string{"limits-keepalive": "1m"}, want: []string{"limits.keepalive 1m0s must be below limits.idle_timeout 30s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			src := Sources{Flags: c.flags}
			if c.file != "" {
				src.File = write(t, c.file)
			}
			if c.env != "" {
				src.Environ = []string{c.env}
			}
			_, err := Load(src)
			require.Error(t, err)
			for _, w := range c.want {
				require.ErrorContains(t, err, w)
			}
		})
	}
	_, err := Load(Sources{File: filepath.Join(t.TempDir(), "missing.yaml")})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestAllMistakesAtOnce(t *testing.T) {
	_, err := Load(Sources{Environ: []string{"FELIX_DURABLE_FSYNC_MODE=x", "FELIX_LISTEN=127.0.0.1:1", "FELIX_DURABLE_PREALLOCATE=maybe"}})
	require.ErrorContains(t, err, "storage.fsync_mode")
	require.ErrorContains(t, err, "storage.preallocate")
}

func TestUnits(t *testing.T) {
	for in, want := range map[string]int64{"0": 0, "1": 1, "4KiB": 4096, "2 MiB": 2 << 20, "1GB": 1e9, "10B": 10} {
		n, err := ParseBytes(in)
		require.NoError(t, err, in)
		require.Equal(t, want, n, in)
	}
	for _, in := range []string{"", "x", "-1", "1.5MiB", "9223372036854775808"} {
		_, err := ParseBytes(in)
		require.Error(t, err, in)
	}
	for in, want := range map[string]string{"250": "250ms", "1s": "1s", "7d": "168h0m0s", "0": "0s"} {
		d, err := ParseDuration(in)
		require.NoError(t, err, in)
		require.Equal(t, want, d.String(), in)
	}
}

func TestLoopback(t *testing.T) {
	for addr, want := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "localhost:1": true, ":1": false, "0.0.0.0:1": false, "10.0.0.1:1": false, "example.com:1": false} {
		got, err := Loopback(addr)
		require.NoError(t, err)
		require.Equal(t, want, got, addr)
	}
}
