package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// child is a broker run as a child process, for commands that need one of their own.
type child struct {
	cmd     *exec.Cmd
	dir     string // of its data and context file
	clients string
	http    string
	log     *logTail
	exited  chan struct{}
	err     error // set before exited is closed
}

// logTail keeps the last lines a child wrote, for when it fails.
type logTail struct {
	lines chan string // of size 64; the oldest goes when it is full
}

func (t *logTail) add(line string) {
	for {
		select {
		case t.lines <- line:
			return
		default:
		}
		select {
		case <-t.lines:
		default:
		}
	}
}

func (t *logTail) String() string {
	var b strings.Builder
	for {
		select {
		case line := <-t.lines:
			b.WriteString("\n  " + line)
		default:
			return b.String()
		}
	}
}

// startTimeout bounds how long a child may take until it serves.
const startTimeout = 2 * time.Minute

// startChild runs `felix serve` in dir on free ports, or on those of an earlier child.
func startChild(ctx context.Context, dir string, before *child, flags ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	clients, http := "127.0.0.1:0", "127.0.0.1:0"
	if before != nil {
		clients, http = before.clients, strings.TrimPrefix(before.http, "http://")
	}
	args := append([]string{
		"serve", "--data", filepath.Join(dir, "data"), "--listen", clients, "--http-listen", http,
		"--context-file", filepath.Join(dir, "context.yaml"), "--log-format", "json",
	}, flags...)
	return runChild(ctx, exec.Command(self, args...), dir)
}

// startFloor runs the bare broker over a file of so many bytes.
func startFloor(ctx context.Context, dir string, size int64, flush bool) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return runChild(ctx, exec.Command(self, "bench-floor", "--dir", dir, fmt.Sprintf("--size=%d", size), fmt.Sprintf("--sync=%v", flush)), dir)
}

// runChild starts a process and waits until it says that it serves.
func runChild(ctx context.Context, cmd *exec.Cmd, dir string) (*child, error) {
	return runChildEnv(ctx, cmd, dir, withoutSettings(os.Environ()))
}

func runChildEnv(ctx context.Context, cmd *exec.Cmd, dir string, environ []string) (*child, error) {
	c := &child{cmd: cmd, dir: dir, log: &logTail{lines: make(chan string, 64)}, exited: make(chan struct{})}
	c.cmd.Env = environ
	out, err := c.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start broker: %w", err)
	}
	serving := make(chan struct{})
	go c.watch(out, serving)
	t := time.NewTimer(startTimeout)
	defer t.Stop()
	select {
	case <-serving:
		return c, nil
	case <-c.exited:
		return nil, fmt.Errorf("broker did not start: %w%s", c.err, c.log)
	case <-t.C:
		err = fmt.Errorf("broker does not serve after %s%s", startTimeout, c.log)
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(err, c.kill())
}

// withoutSettings leaves out what would change a broker of our own.
func withoutSettings(environ []string) []string {
	var kept []string
	for _, kv := range environ {
		if !strings.HasPrefix(kv, "FELIX_") {
			kept = append(kept, kv)
		}
	}
	return kept
}

// watch reads the child's log until it ends, and then waits for the child.
func (c *child) watch(out io.Reader, serving chan<- struct{}) {
	sc := bufio.NewScanner(out)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		c.log.add(sc.Text())
		var line struct{ Msg, Clients, HTTP string }
		if serving != nil && bytes.Contains(sc.Bytes(), []byte(`"serving"`)) && json.Unmarshal(sc.Bytes(), &line) == nil && line.Msg == "serving" {
			c.clients, c.http = line.Clients, line.HTTP
			close(serving)
			serving = nil
		}
	}
	c.err = errors.Join(sc.Err(), c.cmd.Wait())
	if c.err == nil {
		c.err = errors.New("it ended by itself")
	}
	close(c.exited)
}

// kill ends the child at once, as kill -9 does.
func (c *child) kill() error {
	err := c.cmd.Process.Kill()
	<-c.exited
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// stop ends the child gracefully.
func (c *child) stop() error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return errors.Join(err, c.kill())
	}
	<-c.exited
	if code := c.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("broker ended with exit status %d%s", code, c.log)
	}
	return nil
}

// use points an environment's commands at the child.
func (c *child) use(e *environment) *environment {
	own := *e
	own.opts = e.opts
	own.opts.contextFile = filepath.Join(c.dir, "context.yaml")
	own.opts.context, own.opts.brokers = "", nil
	own.environ = withoutSettings(e.environ)
	return &own
}
