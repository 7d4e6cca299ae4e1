package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestContextsRoundTrip(t *testing.T) {
	name := filepath.Join(t.TempDir(), "deep", "context.yaml")
	empty, err := ReadContexts(name)
	require.NoError(t, err)
	require.Empty(t, empty.Contexts)
	want := &Contexts{Current: "a", Contexts: map[string]Context{"a": {Brokers: []string{"127.0.0.1:5000"}, Tenant: "default", SigningKey: "/k.pem"}}}
	require.NoError(t, want.Write(name))
	require.NoError(t, want.Write(name), "an existing file is replaced")
	got, err := ReadContexts(name)
	require.NoError(t, err)
	require.Equal(t, want, got)
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	left, err := os.ReadDir(filepath.Dir(name))
	require.NoError(t, err)
	require.Len(t, left, 1, "a temporary was left behind")
}

func TestContextsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"contexts: {a: {broker: x}}":      "field broker not found",
		"current: b\ncontexts: {a: {}}\n": `the current context "b" is not in it`,
	} {
		name := write(t, text)
		_, err := ReadContexts(name)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, name)
	}
}

func TestContextPath(t *testing.T) {
	name, err := ContextPath(func(string) string { return "/x/y.yaml" })
	require.NoError(t, err)
	require.Equal(t, "/x/y.yaml", name)
	t.Setenv("XDG_CONFIG_HOME", "/conf")
	name, err = ContextPath(func(string) string { return "" })
	require.NoError(t, err)
	require.Equal(t, "/conf/felix/context.yaml", name)
}
