package main

import (
	"bytes"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage"
)

// unanswered is an address that takes connections and says nothing.
func unanswered(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// Every command that asks a broker ends when there is none and, after --timeout, when the
// broker says nothing, and its error names the address and what to do.
func TestEveryCommandObeysItsTimeout(t *testing.T) {
	s := newShell(t)
	b := s.serve()
	require.NoError(t, b.Stop())
	log, err := storage.Open(t.Context(), filepath.Join(s.dir, "shard"), storage.Options{})
	require.NoError(t, err)
	require.NoError(t, log.Close(t.Context()))
	const group = "jobs workers"
	table := map[string]string{
		"pub": "jobs x", "sub": "jobs", "top": "--once", "backup": "file.tar", "import": "shard --stream jobs",
		"stream create": "x", "stream ls": "", "stream info": "x", "stream rm": "x --yes", "stream reopen": "x", "stream retain": "x",
		"cache create": "x", "cache ls": "", "cache info": "x", "cache set": "x --max-keys 1", "cache rm": "x --yes", "cache reopen": "x",
		"cache get": "x k", "cache put": "x k v", "cache del": "x k", "cache keys": "x", "cache watch": "x",
		"counter add": "x k 1", "counter get": "x k",
		"group create": group, "group poll": group, "group ack": group + " 0:0:1", "group nack": group + " 0:0:1", "group extend": group + " 0:0:1",
		"group describe": group, "group seek": group + " --from 0", "group set": group, "group ls": "jobs", "group rm": group + " --yes",
		"group dead-letters ls": group, "group dead-letters add": group + " 0:0", "group dead-letters redrive": group + " 0:0", "group dead-letters discard": group + " 0:0",
		"tenant create": "x", "tenant ls": "", "tenant set": "default --display-name x", "tenant rm": "x --yes",
		"namespace create": "x", "namespace ls": "", "namespace rm": "x --yes",
		"bench": "",
	}
	for _, name := range []string{ // they ask no broker, or one that they have made
		"serve", "config", "context ls", "context show", "context use", "version", "demo restart", "token mint", "restore",
		"log write", "log bench", "log verify", "log dump", "log seal",
	} {
		table[name] = "-"
	}
	hung := unanswered(t)
	var all sync.WaitGroup
	room := make(chan struct{}, 4)
	for _, name := range leafCommands() {
		args, ok := table[name]
		require.True(t, ok, "%s: a command that is not in the table", name)
		if args == "-" {
			continue
		}
		for _, at := range []string{"127.0.0.1:1", hung} {
			all.Go(func() {
				room <- struct{}{}
				defer func() { <-room }()
				own := *s
				line := append(strings.Fields(name), strings.Fields(args)...)
				_, errs := own.felix(append(line, "--timeout", "50ms", "--brokers", at, "--controlplane-url", "http://"+at)...)
				for _, want := range []string{at, "does a broker run there?", "--context names another"} {
					if own.exit != exitUnreachable || !strings.Contains(errs, want) {
						t.Errorf("felix %q at %s: exit %d, without %q: %s", line, at, own.exit, want, errs)
					}
				}
			})
		}
	}
	all.Wait()
	left, err := filepath.Glob(filepath.Join(s.dir, "file.tar*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// calls are the reads of a standard input, one after the other.
type calls []func() string

func (c *calls) Read(p []byte) (int, error) {
	if len(*c) == 0 {
		return 0, io.EOF
	}
	next := (*c)[0]
	*c = (*c)[1:]
	return copy(p, next()), nil
}

// suspend stops the process, and returns when none of its threads runs any more.
func (b *serving) suspend() {
	b.t.Helper()
	require.NoError(b.t, b.Signal(syscall.SIGSTOP))
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(b.Pid(), &status, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		require.NoError(b.t, err)
		require.True(b.t, status.Stopped(), "%v", status)
		return
	}
}

// Each publish of many has its time: a broker that hangs in between ends the command, which
// says that it does not know what became of the record.
func TestAPublishObeysItsTimeout(t *testing.T) {
	for _, how := range [][]string{{}, {"--idempotent"}, {"--ack", "none"}} {
		s := newShell(t)
		b := s.serve()
		s.ok("stream", "create", "jobs", "--durable")
		var out, errs bytes.Buffer
		e := &environment{out: &out, err: &errs, environ: s.env}
		e.in = &calls{
			func() string { return "first\n" },
			func() string { // the first was answered, but with --ack none
				b.suspend()
				e.opts.timeout = time.Millisecond
				return "second\n"
			},
		}
		code := e.run(t.Context(), append([]string{"pub", "jobs", "--context-file", s.contextFile()}, how...))
		require.Equal(t, exitOther, code, errs.String())
		require.Contains(t, errs.String(), "outcome unknown")
		require.Contains(t, errs.String(), "context deadline exceeded", "its own time, not that of the connection, which was made with more")
		if len(how) == 0 || how[0] != "--ack" {
			require.Equal(t, "0\n", out.String())
		}
		require.NoError(t, b.Kill())
	}
}
