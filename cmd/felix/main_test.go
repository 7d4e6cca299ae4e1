package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/hangup"
	"github.com/felixlog/felix/internal/testkit/leak"
)

// asFelix makes this test program the felix command: commands that run a broker of
// their own run themselves.
const asFelix = "TEST_AS_FELIX"

// patience bounds every wait of a test: far more than anything takes.
const patience = 5 * time.Minute

// hungUpFirst hangs this program up before its main function begins.
const hungUpFirst = "TEST_HUNG_UP_FIRST"

var _ = func() error {
	if os.Getenv(hungUpFirst) == "" {
		return nil
	}
	return syscall.Kill(os.Getpid(), syscall.SIGHUP)
}()

func TestMain(m *testing.M) {
	if os.Getenv(asFelix) != "" {
		os.Exit(mainCode())
	}
	// Under nohup hang-ups are ignored, and children inherit that; not so if they are taken.
	hangup.Take()
	leak.Main(m)
}

// shell is a user's place: a folder, a home, and felix as a command.
type shell struct {
	t    *testing.T
	dir  string
	env  []string
	exit int
}

func newShell(t *testing.T) *shell {
	dir := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	// A script, since the program has to be told what it is.
	script := "#!/bin/sh\n" + asFelix + "=1 exec '" + self + "' \"$@\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "felix"), []byte(script), 0o755))
	s := &shell{t: t, dir: dir}
	for _, kv := range os.Environ() {
		// Without a collector the measuring of memory would wait for a collection for ever.
		if !strings.HasPrefix(kv, "FELIX_") && !strings.HasPrefix(kv, "XDG_") && !strings.HasPrefix(kv, "HOME=") && !strings.HasPrefix(kv, "GOGC=") {
			s.env = append(s.env, kv)
		}
	}
	s.env = append(s.env, "HOME="+filepath.Join(dir, "home"), asFelix+"=1")
	return s
}

// felix runs a command line to its end and returns its outputs; the exit code is in exit.
func (s *shell) felix(args ...string) (stdout, stderr string) {
	return s.feed("", args...)
}

func (s *shell) feed(input string, args ...string) (stdout, stderr string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	self, err := os.Executable()
	require.NoError(s.t, err)
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Dir, cmd.Env = s.dir, s.env
	cmd.Stdin = strings.NewReader(input)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	s.exit = cmd.ProcessState.ExitCode()
	return out.String(), errs.String()
}

// ok runs a command line that has to succeed.
func (s *shell) ok(args ...string) string {
	s.t.Helper()
	out, errs := s.felix(args...)
	require.Zero(s.t, s.exit, "felix %s: %s%s", strings.Join(args, " "), out, errs)
	return out
}

// serving is a broker of the shell's user.
type serving struct {
	*spawned
	t *testing.T
}

// serve runs `felix serve` on free ports, its data in the shell's folder, with flags
// that may replace those given here, and returns when all shards that it has are opened.
func (s *shell) serve(flags ...string) *serving {
	s.t.Helper()
	self, err := os.Executable()
	require.NoError(s.t, err)
	args := append([]string{"serve", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--log-format", "json", "--storage-min-free", "0"}, flags...)
	start := func() (*spawned, error) {
		cmd := exec.Command(self, args...)
		cmd.Dir = s.dir
		return spawn(context.Background(), cmd, s.dir, s.env)
	}
	c, err := start()
	// A port that a broker had before may be another program's for a moment.
	for until := time.Now().Add(patience); err != nil && strings.Contains(err.Error(), "another process listens there") && time.Now().Before(until); {
		c, err = start()
	}
	require.NoError(s.t, err)
	b := &serving{c, s.t}
	s.t.Cleanup(func() {
		if err := b.Kill(); err != nil {
			s.t.Error(err)
		}
	})
	b.awaitReady()
	return b
}

// awaitReady waits until the broker has opened its shards: a command asks for one that is
// still being opened a few times only, for a second and a half or so, which opening it may
// outlast on a busy machine.
func (b *serving) awaitReady() {
	b.t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	asking := &http.Client{Transport: transport, Timeout: patience}
	require.Eventually(b.t, func() bool {
		resp, err := asking.Get(b.HTTP + "/ready")
		return err == nil && resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	}, patience, 5*time.Millisecond, "the broker does not open its shards")
}
