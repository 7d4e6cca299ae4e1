package main

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pseudoTerminal is both ends of a terminal of 80 by 24.
func pseudoTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	require.NoError(t, err)
	master = os.NewFile(uintptr(fd), "ptmx")
	t.Cleanup(func() { require.NoError(t, master.Close()) })
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, slave.Close()) })
	require.NoError(t, unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))
	return master, slave
}

// The screen is taken, shown, and given back, however it ends.
func TestTopGivesTheTerminalBack(t *testing.T) {
	s := newShell(t)
	s.serve()
	s.ok("stream", "create", "orders", "--durable")
	self, err := os.Executable()
	require.NoError(t, err)
	for name, end := range map[string]func(master *os.File, p *os.Process) error{
		"q":       func(master *os.File, _ *os.Process) error { _, err := master.WriteString("q"); return err },
		"ctrl-C":  func(master *os.File, _ *os.Process) error { _, err := master.WriteString("\x03"); return err },
		"SIGTERM": func(_ *os.File, p *os.Process) error { return p.Signal(syscall.SIGTERM) },
		"SIGINT":  func(_ *os.File, p *os.Process) error { return p.Signal(os.Interrupt) },
	} {
		t.Run(name, func(t *testing.T) {
			master, slave := pseudoTerminal(t)
			was, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, self, "top", "--interval", "200ms")
			cmd.Dir, cmd.Env = s.dir, append(s.env, "TERM=xterm-256color")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
			require.NoError(t, cmd.Start())
			var screen strings.Builder
			buf := make([]byte, 4096)
			until := func(text string) {
				t.Helper()
				for !strings.Contains(screen.String(), text) {
					require.NoError(t, master.SetReadDeadline(time.Now().Add(patience)))
					n, err := master.Read(buf)
					require.NoError(t, err, "waiting for %q: %q", text, screen.String())
					screen.Write(buf[:n])
				}
			}
			until("\x1b[?1049h")
			until("orders")
			require.NoError(t, end(master, cmd.Process))
			until("\x1b[?1049l")
			until("\x1b[?25h")
			require.NoError(t, cmd.Wait())
			now, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
			require.NoError(t, err)
			require.Equal(t, was, now, "raw mode stays")
		})
	}
}
