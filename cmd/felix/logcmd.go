package main

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/internal/logtool"
)

// logCommand holds the offline commands on a shard's directory.
func (e *environment) logCommand() *cobra.Command {
	c := group("log", "Work on a shard's directory without a broker", logtool.Commands()...)
	for _, sub := range c.Commands() {
		run := sub.RunE
		if run == nil {
			continue
		}
		reads := slices.Contains([]string{"verify", "dump", "seal"}, sub.Name()) // the others make their directory
		sub.RunE = ran(func(c *cobra.Command, args []string) error {
			if dir := c.Flags().Lookup("dir"); reads && dir != nil && dir.Value.String() != "" {
				if err := namedFile(dir.Value.String()); err != nil {
					return err
				}
			}
			return run(c, args)
		})
	}
	return c
}
