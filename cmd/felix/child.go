package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/felixlog/felix/internal/child"
)

// spawned is a broker run as a child process, for commands that need one of their own.
type spawned struct {
	*child.Process
	dir string // of its data and context file
}

// startChild runs `felix serve` in dir on free ports, or on those of an earlier child.
func startChild(ctx context.Context, dir string, before *spawned, flags ...string) (*spawned, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	clients, http := "127.0.0.1:0", "127.0.0.1:0"
	if before != nil {
		clients, http = before.Clients, strings.TrimPrefix(before.HTTP, "http://")
	}
	args := append([]string{
		"serve", "--data", filepath.Join(dir, "data"), "--listen", clients, "--http-listen", http,
		"--context-file", filepath.Join(dir, "context.yaml"), "--log-format", "json",
	}, flags...)
	return spawn(ctx, exec.Command(self, args...), dir, withoutSettings(os.Environ()))
}

// startFloor runs the bare broker over a file of so many bytes.
func startFloor(ctx context.Context, dir string, size int64, flush bool) (*spawned, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return spawn(ctx, exec.Command(self, "bench-floor", "--dir", dir, fmt.Sprintf("--size=%d", size), fmt.Sprintf("--sync=%v", flush)), dir, withoutSettings(os.Environ()))
}

// spawn starts a process with an environment of its own and waits until it serves.
func spawn(ctx context.Context, cmd *exec.Cmd, dir string, environ []string) (*spawned, error) {
	cmd.Env = environ
	p, err := child.Start(ctx, cmd, nil)
	if err != nil {
		return nil, err
	}
	return &spawned{p, dir}, nil
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

// use points an environment's commands at the child.
func (c *spawned) use(e *environment) *environment {
	own := *e
	own.opts = e.opts
	own.opts.contextFile = filepath.Join(c.dir, "context.yaml")
	own.opts.context, own.opts.brokers = "", nil
	own.environ = withoutSettings(e.environ)
	return &own
}
