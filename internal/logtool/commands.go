package logtool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/storage/vfs"
)

// ErrDamaged reports that a directory holds damage; the findings are on the output.
var ErrDamaged = errors.New("the log is damaged")

// Commands are the offline commands, to be added under one that names them.
func Commands() []*cobra.Command {
	return []*cobra.Command{writeCommand(), verifyCommand(), dumpCommand(), sealCommand(), benchCommand()}
}

// printJSON writes v as one line.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// command is what the commands share: the directory and how to print.
type command struct {
	dir      string
	json     bool
	readOnly bool
}

func (c *command) flags(cmd *cobra.Command, dir string) {
	cmd.Flags().StringVar(&c.dir, "dir", "", dir)
	cmd.Flags().BoolVar(&c.json, "json", false, "print JSON")
	if err := cmd.MarkFlagRequired("dir"); err != nil {
		cmd.PrintErrln(err)
	}
}

func (c *command) readOnlyFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.readOnly, "read-only", false, "look at a directory that a running broker has locked, while it changes")
}

// locked runs f while nobody else has the directory, or a root that it lies in. write:
// f may change what is in it, and calls note once it has opened the log there.
func (c *command) locked(write bool, f func(note func() error) error) (err error) {
	if c.readOnly {
		return f(nil)
	}
	if write {
		if err := checkPlace(vfs.OS(), c.dir); err != nil {
			return err
		}
	}
	lock, err := lockRoot(vfs.OS(), c.dir, write)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	return f(lock.note)
}

// bytesText prints a number of bytes for people.
func bytesText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}
