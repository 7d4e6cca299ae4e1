package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/internal/logtool"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	root := &cobra.Command{Use: "felix-log-tool", Short: "Work on a shard's directory without a broker", SilenceUsage: true, SilenceErrors: true}
	ran := false // an error before that is the command line's
	root.PersistentPreRun = func(*cobra.Command, []string) { ran = true }
	root.AddCommand(logtool.Commands()...)
	root.SetArgs(args)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "felix-log-tool:", err)
		var usage *logtool.UsageError
		if !ran || errors.As(err, &usage) {
			return 2
		}
		return 1
	}
	return 0
}
