package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/internal/hangup"
)

// root builds the command tree.
func (e *environment) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "felix",
		Short:         "Streams, caches and queues on one replicated log",
		Long:          "felix serve runs a broker; every other command talks to one.\nThe first start writes a context file, so that the commands need no flags.",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	serve := e.serveCommand()
	root.PersistentPreRun = func(c *cobra.Command, _ []string) {
		if c != serve {
			hangup.Release()
		}
	}
	e.opts.register(root.PersistentFlags())
	root.AddCommand(
		serve, e.configCommand(), e.contextCommand(), e.versionCommand(),
		e.pubCommand(), e.subCommand(), e.demoCommand(), e.logCommand(), e.benchCommand(), e.floorCommand(), e.topCommand(), e.streamCommand(), e.cacheCommand(), e.counterCommand(), e.groupCommand(), e.tenantCommand(), e.namespaceCommand(), e.tokenCommand(), e.backupCommand(), e.restoreCommand(), e.importCommand(),
	)
	return root
}

// ran adapts a command's body: what it returns is no parsing error.
func ran(f func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		if err := f(c, args); err != nil {
			return &ranError{err}
		}
		return nil
	}
}

// group is a command that only holds others. Without one of them it is an error.
func group(use, short string, sub ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q for %q", args[0], c.CommandPath())
			}
			return fmt.Errorf("%s needs a command; see %s --help", c.CommandPath(), c.CommandPath())
		},
	}
	c.AddCommand(sub...)
	return c
}

// printJSON writes v as one line.
func printJSON(w io.Writer, v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	raw := []byte(`{"error":"cannot be written as JSON"}` + "\n")
	if err := enc.Encode(v); err == nil {
		raw = appendJSONEscaped(make([]byte, 0, b.Len()), b.Bytes())
	}
	_, _ = w.Write(raw) // as for any line that is printed: nobody is there to be told
}

// items is how lists are printed with --json.
type items[T any] struct {
	Items []T `json:"items"`
}

// table writes rows under a head, columns aligned.
func table(w io.Writer, head []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, cell)
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}
