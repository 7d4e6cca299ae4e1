package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/auth"
)

// hungUp waits until the broker has answered a hang-up, which the timer's looks do not say.
func (b *serving) hungUp() {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		return strings.Contains(b.Tail(), `"msg":"certificates and keys were looked at, as was asked for"`)
	}, patience, time.Millisecond)
}

// A hang-up has certificates and keys read again, and ends nothing.
func TestHangUpReadsCertificatesAgain(t *testing.T) {
	s := newShell(t)
	broker := s.serve()
	served := func() *x509.Certificate {
		c, err := tls.Dial("tcp", broker.Clients, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"felix/1"}})
		require.NoError(t, err)
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0]
	}
	first := served()
	// A certificate that is gone is made anew.
	require.NoError(t, os.Remove(filepath.Join(s.dir, "felix-data", "tls", "server.crt")))
	require.NoError(t, broker.Signal(syscall.SIGHUP))
	broker.hungUp()
	require.False(t, served().Equal(first))
	s.ok("stream", "create", "orders", "--durable")
	s.ok("pub", "orders", "still here")
}

// A broker is hung up before its main function begins, and serves; a command is ended by it.
func TestHangUpAtTheFirstMoment(t *testing.T) {
	s := newShell(t)
	s.env = append(s.env, hungUpFirst+"=1")
	s.serve().hungUp()
	s.felix("version")
	require.Equal(t, -1, s.exit, "ended by a signal")
}

// A hang-up during the start ends nothing either, and is answered once the broker serves.
func TestHangUpDuringTheStart(t *testing.T) {
	s := newShell(t)
	// A pipe as the file of settings holds the start up for as long as nobody writes to it.
	settings, pid := filepath.Join(s.dir, "settings.yaml"), filepath.Join(s.dir, "pid")
	require.NoError(t, syscall.Mkfifo(settings, 0o600))
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command("/bin/sh", "-c", `echo $$ >"$0" && exec "$@"`, pid, self, "serve", "--config", settings,
		"--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--log-format", "json")
	cmd.Dir = s.dir
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	hungUp := make(chan error, 1)
	go func() {
		err := hangUpReader(ctx, settings, pid)
		if err != nil {
			cancel() // it would wait for its settings
		}
		hungUp <- err
	}()
	c, err := spawn(ctx, cmd, s.dir, s.env)
	cancel()
	require.NoError(t, err)
	broker := &serving{c, t}
	t.Cleanup(func() { require.NoError(t, broker.Kill()) })
	require.NoError(t, <-hungUp)
	broker.hungUp()
}

// hangUpReader waits until the process that the file pid names has opened the pipe, sends
// it a hang-up, and only then lets it read on.
func hangUpReader(ctx context.Context, pipe, pid string) error {
	var w *os.File
	for w == nil {
		var err error
		w, err = os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		switch {
		case err == nil:
		case errors.Is(err, syscall.ENXIO) && ctx.Err() == nil: // no reader yet
			runtime.Gosched()
		default:
			return errors.Join(err, ctx.Err())
		}
	}
	raw, err := os.ReadFile(pid)
	if err != nil {
		return errors.Join(err, w.Close())
	}
	reader, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return errors.Join(err, w.Close())
	}
	if err := syscall.Kill(reader, syscall.SIGHUP); err != nil {
		return errors.Join(err, w.Close())
	}
	_, err = w.WriteString("storage:\n  min_free: 0\n")
	return errors.Join(err, w.Close())
}

// Two brokers of one user: commands go where they went, and to the second by its context.
func TestTwoBrokersOfOneUser(t *testing.T) {
	s := newShell(t)
	first := s.serve()
	s.ok("stream", "create", "orders", "--durable")
	second := s.serve("--data", "other")
	require.Contains(t, second.Tail(), "start with --context NAME")
	require.Equal(t, "0\n", s.ok("pub", "orders", "to the first"))
	require.NoError(t, second.Stop())
	second = s.serve("--data", "other", "--context", "other")
	s.ok("stream", "create", "jobs", "--durable", "--context", "other")
	s.felix("pub", "jobs", "x")
	require.Equal(t, exitMissing, s.exit, "the first has no such stream")
	s.ok("context", "use", "other")
	require.Equal(t, "0\n", s.ok("pub", "jobs", "to the second"))
	shown := decode[items[map[string]any]](t, s.ok("context", "ls", "--json"))
	require.Len(t, shown.Items, 2)
	require.Contains(t, s.ok("context", "ls"), first.Clients)
}

// With certificates of one's own on loopback commands need no flags either, whichever name
// they carry.
func TestCommandsWithCertificatesOfOnesOwn(t *testing.T) {
	for _, hosts := range [][]string{{"localhost"}, {"127.0.0.1"}, {"127.0.0.1", "broker-1.example"}} {
		s := newShell(t)
		paths, _, err := auth.EnsureCertificates(filepath.Join(s.dir, "own"), auth.CertificateOptions{Hosts: hosts})
		require.NoError(t, err)
		s.serve("--tls-cert", paths.Cert, "--tls-key", paths.Key, "--http-tls-cert", paths.Cert, "--http-tls-key", paths.Key)
		s.ok("stream", "create", "orders", "--durable")
		require.Equal(t, "0\n", s.ok("pub", "orders", "hello"), "%v", hosts)
	}
}

// A stop that comes while a broker starts was asked for: it ends with 0, and the next start
// finds nothing amiss. What cannot start is told from it.
func TestAStopDuringTheStartEndsWithZero(t *testing.T) {
	dir := t.TempDir()
	run := func(ctx context.Context, data string) (int, string) {
		var out, errs bytes.Buffer
		e := &environment{in: strings.NewReader(""), out: &out, err: &errs, environ: []string{"HOME=" + dir}}
		code := e.run(ctx, []string{"serve", "--data", data, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--log-format", "json"})
		return code, errs.String()
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for range 2 {
		code, log := run(stopped, filepath.Join(dir, "data"))
		require.Equal(t, 0, code, log)
		require.Contains(t, log, "stopped before the start was over")
		require.NotContains(t, log, "serving")
	}
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	code, log := run(stopped, file)
	require.Equal(t, 1, code, log)
}
