package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/auth"
)

// A broker that cannot start says why, with the exit status of its kind, and leaves
// what it found as it was.
func TestServeRefusals(t *testing.T) {
	s := newShell(t)
	running := s.serve()
	write := func(name, text string) string {
		name = filepath.Join(s.dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	newer := filepath.Dir(write("newer/node.json", `{"format":99,"disk_id":"1","boot_id":"b"}`))
	foreign := filepath.Dir(write("foreign/thesis.tex", "x"))
	file := write("file", "x")
	settings := write("felix.yaml", "storage:\n  fsync_mod: none\n")
	half := filepath.Join(s.dir, "half")
	_, _, err := auth.EnsureCertificates(filepath.Join(half, "tls"), auth.CertificateOptions{})
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(half, "tls", "ca.key")))
	write("half/node.json", "") // of a broker's own directory
	free := []string{"--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--storage-min-free", "0"}
	fresh := []string{"--data", filepath.Join(s.dir, "fresh")}
	for _, c := range []struct {
		name string
		args []string
		exit int
		want []string
	}{
		{"directory of another process", []string{"--data", "felix-data"}, exitOther, []string{"in use by another process", "--data"}},
		{"directory of a newer version", []string{"--data", newer}, exitOther, []string{"written by a newer version", "format 99"}},
		{"directory with foreign files", []string{"--data", foreign}, exitOther, []string{"holds files that are not Felix's", "thesis.tex"}},
		{"directory that is a file", []string{"--data", file}, exitOther, []string{"is not a directory"}},
		{"half an authority", []string{"--data", half}, exitOther, []string{"half/tls/ca.key is not there", "remove", "ca.crt too"}},
		{"clients' address taken", append(fresh, "--listen", running.Clients), exitOther, []string{"another process listens there", running.Clients}},
		{"HTTP address taken", append(fresh, "--http-listen", strings.TrimPrefix(running.HTTP, "http://")), exitOther, []string{"another process listens there"}},
		{"open to other machines", append(fresh, "--listen", "0.0.0.0:0"), exitUsage, []string{"other machines", "tls.cert"}},
		{"unknown setting in the file", append(fresh, "--config", settings), exitUsage, []string{"felix.yaml:2", "storage.fsync_mod", "storage.fsync_mode"}},
		{"unknown flag", append(fresh, "--storage-fsync-mod", "none"), exitUsage, []string{"storage-fsync-mod"}},
		{"settings that exclude each other", append(fresh, "--storage", "none", "--storage-fsync-mode", "on_commit"), exitUsage, []string{"exclude each other"}},
		{"a value that is none", append(fresh, "--storage-segment-bytes", "1"), exitUsage, []string{"below the least allowed"}},
		{"settings file missing", append(fresh, "--config", "nowhere.yaml"), exitUsage, []string{"nowhere.yaml"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			own := *s
			own.t = t
			_, errs := own.felix(append(append([]string{"serve"}, free...), c.args...)...)
			require.Equal(t, c.exit, own.exit, errs)
			for _, w := range c.want {
				require.Contains(t, errs, w)
			}
			_, errs = own.felix(append(append([]string{"serve", "--json"}, free...), c.args...)...)
			report := decode[map[string]any](t, lastLine(errs))
			require.Equal(t, float64(c.exit), report["exit"])
		})
	}
	for name, want := range map[string]string{"newer/node.json": "99", "foreign/thesis.tex": "x", "file": "x"} {
		raw, err := os.ReadFile(filepath.Join(s.dir, name))
		require.NoError(t, err)
		require.Contains(t, string(raw), want)
	}
	require.NoFileExists(t, filepath.Join(foreign, "LOCK"))
	s.ok("stream", "create", "orders", "--durable")

	t.Run("misspelt variable", func(t *testing.T) {
		own := newShell(t)
		own.env = append(own.env, "FELIX_DURABLE_FSYNC=none")
		b := own.serve()
		require.NoError(t, b.Stop())
		require.Contains(t, b.Tail(), "FELIX_DURABLE_FSYNC")
		_, errs := own.felix("config")
		require.Zero(t, own.exit)
		require.Contains(t, errs, "FELIX_DURABLE_FSYNC looks like a setting and is none")
	})
	t.Run("without storage", func(t *testing.T) {
		own := newShell(t)
		own.serve("--storage", "none")
		_, errs := own.felix("stream", "create", "orders", "--durable")
		require.Equal(t, exitRefused, own.exit)
		require.Contains(t, errs, "storage none")
		own.ok("stream", "create", "live")
		own.ok("pub", "live", "x")
	})
}

// A directory that the user may not write is refused with what is missing, whoever
// runs the test: as root the broker is run as somebody else.
func TestServeWithoutPermission(t *testing.T) {
	dir, err := os.MkdirTemp("", "felix-permission-")
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, os.Chmod(filepath.Join(dir, "data"), 0o700))
		require.NoError(t, os.RemoveAll(dir))
	})
	data := filepath.Join(dir, "data")
	require.NoError(t, os.Mkdir(data, 0o555))
	require.NoError(t, os.Chmod(dir, 0o755))
	self, err := os.Open(executable(t))
	require.NoError(t, err)
	defer self.Close()
	// By descriptor: the folder of a test program is its owner's alone.
	cmd := exec.Command("/proc/self/fd/3", "serve", "--data", data, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--storage-min-free", "0")
	cmd.ExtraFiles = []*os.File{self}
	cmd.Dir = dir
	cmd.Env = []string{asFelix + "=1", "HOME=" + dir}
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, exitOther, cmd.ProcessState.ExitCode(), string(out))
	require.Contains(t, string(out), "permission denied")
	require.Contains(t, string(out), "needs read, write and search permission")
	entries, err := os.ReadDir(data)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func executable(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	return self
}
