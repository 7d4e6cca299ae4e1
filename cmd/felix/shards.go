package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/internal/api"
	"github.com/felixlog/felix/internal/config"
)

// shardAction is a command that asks the broker to do something to every shard of a stream
// or cache, and prints what became of each.
func (e *environment) shardAction(what, action, short, long string, path pathFunc, header []string, row func(s *api.Shard) []string) *cobra.Command {
	return &cobra.Command{
		Use: action + " NAME", Short: short, Long: long, Args: cobra.ExactArgs(1),
		RunE: ran(func(c *cobra.Command, args []string) error {
			if err := checkName(what, args[0]); err != nil {
				return err
			}
			return e.manage(c, func(ctx context.Context, m *manager) error {
				var out api.Shards
				if err := m.call(ctx, http.MethodPost, nil, &out, path(m, args[0], action)...); err != nil {
					return err
				}
				failed := 0
				var rows [][]string
				for i := range out.Shards {
					s := &out.Shards[i]
					rows = append(rows, append(append([]string{strconv.Itoa(s.Shard)}, row(s)...), s.Error))
					if s.Error != "" {
						failed++
					}
				}
				if e.opts.json {
					printJSON(e.out, out)
				} else if err := table(e.out, append(append([]string{"shard"}, header...), "error"), rows); err != nil {
					return err
				}
				if failed > 0 {
					return fmt.Errorf("%s: %d of %d shards failed", action, failed, len(out.Shards))
				}
				return nil
			})
		}),
	}
}

func (e *environment) reopenCommand(what string, path pathFunc) *cobra.Command {
	return e.shardAction(what, "reopen", "Try the shards of a "+what+" that are out of service again",
		"Try the shards of a "+what+" that are out of service again, once the reason is gone: room on a full disk, a segment restored from a copy. Shards that serve are left alone.",
		path, []string{"state"}, func(s *api.Shard) []string { return []string{s.State} })
}

func (e *environment) retainCommand(path pathFunc) *cobra.Command {
	return e.shardAction("stream", "retain", "Apply a stream's retention now",
		"Apply a stream's retention now instead of at the next interval, and say what was removed.",
		path, []string{"oldest", "segments removed", "bytes"}, func(s *api.Shard) []string {
			return []string{strconv.FormatUint(s.Head, 10), strconv.Itoa(s.Segments), config.FormatBytes(s.Bytes)}
		})
}
