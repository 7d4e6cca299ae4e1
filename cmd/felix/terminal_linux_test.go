package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// onTerminal runs a command whose standard output is a terminal, and returns what it wrote there.
func (s *shell) onTerminal(args ...string) string {
	s.t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(s.t, err)
	defer master.Close()
	require.NoError(s.t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(s.t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(s.t, err)
	written := make(chan string)
	go func() {
		var b bytes.Buffer
		_, _ = io.Copy(&b, master) // ends with an error when nobody has the terminal open any more
		written <- b.String()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	self, err := os.Executable()
	require.NoError(s.t, err)
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Dir, cmd.Env, cmd.Stdout = s.dir, s.env, slave
	var errs bytes.Buffer
	cmd.Stderr = &errs
	err = cmd.Run()
	require.NoError(s.t, slave.Close())
	out := strings.ReplaceAll(<-written, "\r\n", "\n")
	require.NoError(s.t, err, "%s: %s", out, errs.String())
	return out
}

// TestPayloadsOnATerminal: what others published moves no cursor there, unless it is asked
// for byte for byte.
func TestPayloadsOnATerminal(t *testing.T) {
	s := newShell(t)
	s.serve()
	const evil, quoted = "a\x1b[2Jb", `"a\x1b[2Jb"`
	file := filepath.Join(s.dir, "payload")
	require.NoError(t, os.WriteFile(file, []byte(evil), 0o600))
	s.ok("stream", "create", "jobs", "--durable")
	s.ok("pub", "jobs", "--file", file, "--whole")
	s.ok("pub", "jobs", "good")
	s.ok("cache", "create", "prices")
	s.ok("cache", "put", "prices", "k", "--file", file)
	for command, want := range map[string][2]string{ // on a terminal, and elsewhere
		"sub jobs --from earliest --count 2":                  {quoted + "\ngood\n", evil + "\ngood\n"},
		"sub jobs --from earliest --count 1 --format offsets": {"0\t0\t" + quoted + "\n", "0\t0\t" + evil + "\n"},
		"group poll jobs GROUP":                               {"0:0:1 " + quoted + "\n", "0:0:1 " + evil + "\n"},
		"cache get prices k":                                  {quoted + "\n", evil + "\n"},
		"cache watch prices --retained --count 1":             {"+ k " + quoted + "\n", "+ k " + evil + "\n"},
	} {
		args := func(group string, more ...string) []string {
			return append(strings.Fields(strings.ReplaceAll(command, "GROUP", group)), more...)
		}
		require.Equal(t, want[0], s.onTerminal(args("one")...), command)
		require.Equal(t, want[1], s.ok(args("two")...), command)
		raw := want[1]
		if strings.HasPrefix(command, "cache get") {
			raw = strings.TrimSuffix(raw, "\n")
		}
		require.Equal(t, raw, s.onTerminal(args("three", "--raw")...), command)
	}
	require.NotContains(t, s.onTerminal("sub", "jobs", "--from", "earliest", "--count", "1", "--json"), "\x1b")
	require.Equal(t, quoted+"\n", s.onTerminal("cache", "del", "prices", "k"))
}
