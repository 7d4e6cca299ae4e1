package main

import (
	"bytes"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// live is `felix sub live` whose output nobody takes until it is drained.
func (s *shell) live(b *serving) (cmd *exec.Cmd, out io.Reader, errs *bytes.Buffer) {
	s.t.Helper()
	cmd = exec.Command(executable(s.t), "sub", "live", "--from", "earliest")
	cmd.Dir, cmd.Env = s.dir, s.env
	errs = &bytes.Buffer{}
	cmd.Stderr = errs
	out, err := cmd.StdoutPipe()
	require.NoError(s.t, err)
	require.NoError(s.t, cmd.Start())
	s.t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended when the test succeeds
	require.Eventually(s.t, func() bool { return b.says().value("felix_subscribers") == 1 }, time.Minute, time.Millisecond)
	return cmd, out, errs
}

// A subscription that was ended for its slowness says so, and what to do.
func TestASlowSubscriberIsToldWhy(t *testing.T) {
	s := newShell(t)
	b := s.serve()
	s.ok("stream", "create", "live", "--overflow", "block")
	cmd, out, errs := s.live(b)
	c := s.dial()
	large := bytes.Repeat([]byte("x"), 1<<20)
	for b.says().value("felix_dropped_total", "policy", "block") == 0 {
		_, err := c.Publish(t.Context(), "live", large)
		require.NoError(t, err)
	}
	text, err := io.ReadAll(out)
	require.NoError(t, err)
	require.Error(t, cmd.Wait())
	require.Equal(t, exitRefused, cmd.ProcessState.ExitCode(), errs.String())
	require.Positive(t, strings.Count(string(text), "\n"))
	for _, want := range []string{"the broker ended the subscription of stream live after ", " records (overloaded)", "too slowly", "no offset to go on from", "--durable"} {
		require.Contains(t, errs.String(), want)
	}
}

// One that ended with its broker does not blame the subscriber.
func TestASubscriberOfAKilledBrokerIsToldSo(t *testing.T) {
	s := newShell(t)
	b := s.serve()
	s.ok("stream", "create", "live")
	cmd, out, errs := s.live(b)
	require.NoError(t, b.Kill())
	_, err := io.ReadAll(out)
	require.NoError(t, err)
	require.Error(t, cmd.Wait())
	require.Equal(t, exitUnreachable, cmd.ProcessState.ExitCode(), errs.String())
	require.Contains(t, errs.String(), "the broker does not answer")
	require.NotContains(t, errs.String(), "slowly")
}
