package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

func main() { os.Exit(mainCode()) }

// mainCode runs the command line of this process.
func mainCode() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	e := &environment{in: os.Stdin, out: os.Stdout, err: os.Stderr, environ: os.Environ()}
	return e.run(ctx, os.Args[1:])
}

// environment is what a command line is run in.
type environment struct {
	in      io.Reader
	out     io.Writer
	err     io.Writer
	environ []string
	opts    clientFlags
}

// getenv looks a variable up.
func (e *environment) getenv(name string) string {
	for i := len(e.environ) - 1; i >= 0; i-- {
		if v, ok := cutPrefix(e.environ[i], name+"="); ok {
			return v
		}
	}
	return ""
}

func cutPrefix(s, prefix string) (string, bool) {
	if len(s) >= len(prefix) && s[:len(prefix)] == prefix {
		return s[len(prefix):], true
	}
	return "", false
}

// run executes one command line and returns its exit code.
func (e *environment) run(ctx context.Context, args []string) int {
	root := e.root()
	root.SetArgs(args)
	root.SetIn(e.in)
	root.SetOut(e.out)
	root.SetErr(e.err)
	ran, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	// Some commands have a --json of their own, and a command line that cannot be
	// parsed may have one behind what is wrong with it.
	if f := ran.Flags().Lookup("json"); f != nil && f.Value.String() == "true" || slices.Contains(args, "--json") {
		e.opts.json = true
	}
	code := exitCode(err)
	e.report(err, code)
	return code
}

// report prints an error the way --json asks for.
func (e *environment) report(err error, code int) {
	if e.opts.json {
		printJSON(e.err, map[string]any{"error": err.Error(), "exit": code})
		return
	}
	fmt.Fprintln(e.err, "felix:", harmless(err.Error()))
}
