package main

import (
	"github.com/spf13/cobra"

	"github.com/felixlog/felix/internal/logtool"
)

// logCommand holds the offline commands on a shard's directory.
func (e *environment) logCommand() *cobra.Command {
	c := group("log", "Work on a shard's directory without a broker", logtool.Commands()...)
	for _, sub := range c.Commands() {
		if sub.RunE != nil {
			sub.RunE = ran(sub.RunE)
		}
	}
	return c
}
