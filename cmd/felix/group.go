package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/client"
)

func (e *environment) groupCommand() *cobra.Command {
	letters := group("dead-letters", "List, redrive and discard what a group gave up on, or give up on a record",
		e.lettersList(), e.letterCommand("redrive", "Hand a dead letter out again, its attempts forgotten", redriving),
		e.letterCommand("discard", "Forget a dead letter", discarding),
		e.letterCommand("add", "Make a record a dead letter", each(func(ctx context.Context, g *client.Group, at claimArg) error {
			return g.GiveUp(ctx, at.message())
		})))
	return group("group", "Consumer groups: poll, settle, seek, describe",
		e.groupCreate(), e.groupPoll(), e.groupAck(), e.groupNack(), e.groupExtend(), e.groupDescribe(), e.groupSeek(), e.groupSet(), e.groupList(), e.groupRemove(), letters)
}

// claimArg is a claim as SHARD:OFFSET:ATTEMPTS, as poll prints it; the attempts may be left out where
// no delivery is meant.
type claimArg struct {
	shard    int
	offset   uint64
	attempts int
}

func (c claimArg) message() client.Message {
	return client.Message{Shard: c.shard, Offset: c.offset, Attempts: c.attempts}
}

func parseClaim(s string) (claimArg, error) {
	parts := strings.Split(s, ":")
	var c claimArg
	var err error
	if len(parts) == 2 || len(parts) == 3 {
		if c.shard, err = strconv.Atoi(parts[0]); err == nil {
			c.offset, err = strconv.ParseUint(parts[1], 10, 64)
		}
		if err == nil && len(parts) == 3 {
			c.attempts, err = strconv.Atoi(parts[2])
		}
		if err == nil && c.shard >= 0 && c.attempts >= 0 {
			return c, nil
		}
	}
	return c, usagef("claim %q is not SHARD:OFFSET:ATTEMPTS", s)
}

func parseClaims(args []string) ([]claimArg, error) {
	claims := make([]claimArg, len(args))
	for i, arg := range args {
		var err error
		if claims[i], err = parseClaim(arg); err != nil {
			return nil, err
		}
	}
	return claims, nil
}

// groupRun is a command on a group of a stream.
func (e *environment) groupRun(use, short string, args cobra.PositionalArgs, run func(ctx context.Context, c *client.Client, g *client.Group, args []string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: args,
		RunE: ran(func(c *cobra.Command, args []string) error {
			if err := checkName("stream", args[0]); err != nil {
				return err
			}
			return e.connected(c, func(ctx context.Context, cl *client.Client) error {
				return run(ctx, cl, cl.Group(args[0], args[1]), args[2:])
			})
		}),
	}
}

// shardsOf are the shards a command is about: the one given, else all of the stream.
func shardsOf(ctx context.Context, c *client.Client, cmd *cobra.Command, stream string) ([]int, error) {
	if cmd.Flags().Changed("shard") {
		n, err := cmd.Flags().GetInt("shard")
		if err == nil && n < 0 {
			err = usagef("--shard %d: shards are counted from 0", n)
		}
		return []int{n}, err
	}
	n, err := c.StreamShards(ctx, stream)
	if err != nil {
		return nil, err
	}
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all, nil
}

func shardFlag(c *cobra.Command) { c.Flags().Int("shard", 0, "this shard only") }

// perShard is a command on each shard of a stream's group.
func (e *environment) perShard(use, short string, run func(ctx context.Context, g *client.Group, shard, of int) error) *cobra.Command {
	var c *cobra.Command
	c = e.groupRun(use, short, cobra.ExactArgs(2), func(ctx context.Context, cl *client.Client, g *client.Group, _ []string) error {
		shards, err := shardsOf(ctx, cl, c, c.Flags().Arg(0))
		if err != nil {
			return err
		}
		for _, shard := range shards {
			if err := run(ctx, g, shard, len(shards)); err != nil {
				return err
			}
		}
		return nil
	})
	shardFlag(c)
	return c
}

// positionLine is where a group stands.
type positionLine struct {
	Shard    int    `json:"shard"`
	Position uint64 `json:"position"`
	Moved    bool   `json:"moved"`
}

func (e *environment) seekCommand(use, short string, ifNew bool) *cobra.Command {
	var from string
	var c *cobra.Command
	c = e.perShard(use, short, func(ctx context.Context, g *client.Group, shard, of int) error {
		if !ifNew && !c.Flags().Changed("from") {
			return usagef("--from says where to: earliest hands everything out again")
		}
		start, offset, err := startOf(from)
		if err != nil {
			return err
		}
		if offset && of > 1 {
			return usagef("--from %s: offsets are counted in each of the %d shards; give --shard", from, of)
		}
		at, moved, err := g.Seek(ctx, shard, ifNew, start)
		if err != nil {
			return err
		}
		what := "at"
		if moved {
			what = "moved to"
		}
		return e.show(positionLine{shard, at, moved}, "shard %d %s %d", shard, what, at)
	})
	c.Flags().StringVar(&from, "from", "earliest", "earliest, latest, an offset, a time (RFC 3339) or an age as in 15m")
	complete(c, "from", "latest", "earliest")
	return c
}

func (e *environment) groupCreate() *cobra.Command {
	return e.seekCommand("create STREAM GROUP", "Make a group where it shall begin; one that was used stays where it is", true)
}

func (e *environment) groupSeek() *cobra.Command {
	return e.seekCommand("seek STREAM GROUP", "Move a group; its claims are void", false)
}

// handoutLine is a record as handed out.
type handoutLine struct {
	Claim     string `json:"claim"`
	Shard     int    `json:"shard"`
	Offset    uint64 `json:"offset"`
	Attempts  int    `json:"attempts"`
	Payload   []byte `json:"payload"` // base64
	Publisher string `json:"publisher,omitempty"`
}

func (e *environment) groupPoll() *cobra.Command {
	var (
		most                int
		wait, visible       int64
		consumer            string
		reclaim, doAck, raw bool
	)
	var c *cobra.Command
	c = e.groupRun("poll STREAM GROUP", "Claim records and print them with their claims", cobra.ExactArgs(2),
		func(ctx context.Context, cl *client.Client, g *client.Group, _ []string) error {
			if most < 1 || most > 1000 {
				return usagef("--max %d: 1 to 1000", most)
			}
			if wait < 0 || visible < 0 {
				return usagef("--wait-ms and --visibility-ms are not below zero")
			}
			shards, err := shardsOf(ctx, cl, c, c.Flags().Arg(0))
			if err != nil {
				return err
			}
			opts := []client.PollOption{client.WithVisibility(millis(visible))}
			if consumer != "" {
				opts = append(opts, client.AsConsumer(consumer, reclaim))
			}
			shown := e.payloads(raw)
			left := most
			for i, shard := range shards {
				with := opts
				if i == len(shards)-1 && left == most {
					// Only the last shard is waited for, when the others had nothing.
					with = append(with, client.WithWait(millis(wait)))
				}
				records, err := g.Poll(ctx, shard, left, with...)
				if err != nil {
					return err
				}
				for _, m := range records {
					e.printMessage(m, shown)
					if doAck {
						if err := g.Ack(ctx, m); err != nil {
							return err
						}
					}
				}
				if left -= len(records); left == 0 {
					break
				}
			}
			return nil
		})
	f := c.Flags()
	f.IntVar(&most, "max", 1, "most records, 1 to 1000")
	f.Int64Var(&wait, "wait-ms", 0, "wait so long for records")
	f.Int64Var(&visible, "visibility-ms", 0, "how long the claims stand; the group's own when not given")
	f.StringVar(&consumer, "consumer", "", "name of the consumer")
	f.BoolVar(&reclaim, "reclaim", false, "take back the consumer's claims of other connections first")
	f.BoolVar(&raw, "raw", false, rawUsage)
	f.BoolVar(&doAck, "ack", false, "ack each record once it is printed")
	shardFlag(c)
	return c
}

func (e *environment) printMessage(m client.Message, shown func([]byte) []byte) {
	at := fmt.Sprintf("%d:%d:%d", m.Shard, m.Offset, m.Attempts)
	if e.opts.json {
		printJSON(e.out, handoutLine{at, m.Shard, m.Offset, m.Attempts, m.Payload, m.Publisher})
		return
	}
	fmt.Fprintf(e.out, "%s %s\n", at, shown(m.Payload))
}

// settling does something to each of the claims of a command, in their order.
type settling func(ctx context.Context, g *client.Group, claims []claimArg) (func(claimArg) error, error)

// each is a settling that has nothing to do before the first claim.
func each(run func(ctx context.Context, g *client.Group, at claimArg) error) settling {
	return func(ctx context.Context, g *client.Group, _ []claimArg) (func(claimArg) error, error) {
		return func(at claimArg) error { return run(ctx, g, at) }, nil
	}
}

// settleCommand is a command on claims.
func (e *environment) settleCommand(use, short, done string, begin settling) *cobra.Command {
	var c *cobra.Command
	c = e.groupRun(use, short, cobra.MinimumNArgs(3), func(ctx context.Context, _ *client.Client, g *client.Group, args []string) error {
		claims, err := parseClaims(args)
		if err != nil {
			return err
		}
		stream, name := c.Flags().Arg(0), c.Flags().Arg(1)
		run, err := begin(ctx, g, claims)
		if err != nil {
			return e.groupThere(ctx, g, claims[0], stream, name, err)
		}
		var none []string
		for i, at := range claims {
			switch err := run(at); {
			case errors.Is(err, errNoLetter):
				none = append(none, args[i])
				continue
			case err != nil:
				return e.groupThere(ctx, g, at, stream, name, err)
			}
			if err := e.show(map[string]string{done: args[i]}, "%s %s", args[i], done); err != nil {
				return err
			}
		}
		if len(none) == 0 {
			return nil
		}
		err = &exitError{exitMissing, fmt.Errorf("group %s of stream %s has no such dead letter: %s; `felix group dead-letters ls %s %s` lists them",
			name, stream, strings.Join(none, ", "), stream, name)}
		at, _ := parseClaim(none[0])
		return e.groupThere(ctx, g, at, stream, name, err)
	})
	return c
}

// groupThere is err, or that the group itself is not on the shard: of a claim or a dead
// letter of such a group the broker says no more than that it does not stand.
func (e *environment) groupThere(ctx context.Context, g *client.Group, at claimArg, stream, name string, err error) error {
	var missing *exitError
	if !errors.Is(err, client.ErrStaleClaim) && !errors.Is(err, client.ErrInvalidRequest) && !(errors.As(err, &missing) && missing.code == exitMissing) {
		return err
	}
	if i, failed := g.Describe(ctx, at.shard); failed != nil || i.Exists {
		return err
	}
	return &exitError{exitMissing, fmt.Errorf("stream %s has no group %s on shard %d; `felix group ls %s` lists them", stream, name, at.shard, stream)}
}

func (e *environment) groupAck() *cobra.Command {
	return e.settleCommand("ack STREAM GROUP CLAIM...", "Say that records are done", "acked", each(func(ctx context.Context, g *client.Group, at claimArg) error {
		return g.Ack(ctx, at.message())
	}))
}

func (e *environment) groupNack() *cobra.Command {
	var delay int64
	var c *cobra.Command
	c = e.settleCommand("nack STREAM GROUP CLAIM...", "Give records back", "nacked", each(func(ctx context.Context, g *client.Group, at claimArg) error {
		if !c.Flags().Changed("delay-ms") {
			return g.Nack(ctx, at.message())
		}
		if delay < 0 {
			return usagef("--delay-ms %d is below zero", delay)
		}
		return g.NackAfter(ctx, at.message(), millis(delay))
	}))
	c.Flags().Int64Var(&delay, "delay-ms", 0, "hand them out again after so long; the group's backoff when not given")
	return c
}

func (e *environment) groupExtend() *cobra.Command {
	var by int64
	c := e.settleCommand("extend STREAM GROUP CLAIM...", "Let claims stand longer", "extended", each(func(ctx context.Context, g *client.Group, at claimArg) error {
		if by <= 0 {
			return usagef("--for-ms %d: at least 1", by)
		}
		_, err := g.Extend(ctx, at.message(), millis(by))
		return err
	}))
	c.Flags().Int64Var(&by, "for-ms", 30_000, "how long from now")
	return c
}

// ofGroup is a command on a group that has to be on one of the shards.
func (e *environment) ofGroup(use, short string, run func(ctx context.Context, g *client.Group, shards []int) (exists bool, err error)) *cobra.Command {
	var c *cobra.Command
	c = e.groupRun(use, short, cobra.ExactArgs(2), func(ctx context.Context, cl *client.Client, g *client.Group, _ []string) error {
		stream, name := c.Flags().Arg(0), c.Flags().Arg(1)
		shards, err := shardsOf(ctx, cl, c, stream)
		if err != nil {
			return err
		}
		exists, err := run(ctx, g, shards)
		if err == nil && !exists {
			return &exitError{exitMissing, fmt.Errorf("stream %s has no group %s; `felix group ls %s` lists them", stream, name, stream)}
		}
		return err
	})
	shardFlag(c)
	return c
}

// infoLine is a group's books on a shard.
type infoLine struct {
	Shard     int    `json:"shard"`
	Exists    bool   `json:"exists"`
	Position  uint64 `json:"position"`
	Tail      uint64 `json:"tail"`
	Ready     uint64 `json:"ready"`
	Delayed   uint64 `json:"delayed"`
	Claimed   uint64 `json:"claimed"`
	Acked     uint64 `json:"acked"`
	Dead      uint64 `json:"dead"`
	Discarded uint64 `json:"discarded"`
	Lost      uint64 `json:"lost"`
	Lag       uint64 `json:"lag"`
}

func (e *environment) groupDescribe() *cobra.Command {
	return e.ofGroup("describe STREAM GROUP", "Print where a group stands on each shard",
		func(ctx context.Context, g *client.Group, shards []int) (exists bool, err error) {
			var rows [][]string
			var lines []infoLine
			for _, shard := range shards {
				i, err := g.Describe(ctx, shard)
				if err != nil {
					return false, err
				}
				exists = exists || i.Exists
				lines = append(lines, infoLine{shard, i.Exists, i.Position, i.Tail, i.Ready, i.Delayed, i.Claimed, i.Acked, i.Dead, i.Discarded, i.Lost, i.Lag})
				row := []string{strconv.Itoa(shard)}
				for _, n := range []uint64{i.Position, i.Tail, i.Ready, i.Delayed, i.Claimed, i.Acked, i.Dead, i.Discarded, i.Lost, i.Lag} {
					row = append(row, strconv.FormatUint(n, 10))
				}
				rows = append(rows, row)
			}
			if !exists {
				return false, nil
			}
			if e.opts.json {
				printJSON(e.out, items[infoLine]{lines})
				return true, nil
			}
			return true, table(e.out, []string{"SHARD", "POSITION", "TAIL", "READY", "DELAYED", "CLAIMED", "ACKED", "DEAD", "DISCARDED", "LOST", "LAG"}, rows)
		})
}

func (e *environment) groupSet() *cobra.Command {
	var g client.GroupConfig
	c := e.perShard("set STREAM GROUP", "Set how a group hands out; what is not given is the default", func(ctx context.Context, gr *client.Group, shard, _ int) error {
		if math.IsNaN(g.BackoffFactor) || math.IsInf(g.BackoffFactor, 0) {
			return usagef("--backoff-factor %v is not a number to grow by", g.BackoffFactor)
		}
		if err := gr.Configure(ctx, shard, g); err != nil {
			return err
		}
		return e.show(map[string]any{"shard": shard, "configured": true}, "shard %d configured", shard)
	})
	f := c.Flags()
	f.DurationVar(&g.Visibility, "visibility", 0, "how long a claim stands; default 30s")
	f.IntVar(&g.MaxAttempts, "max-attempts", 0, "deliveries before a record is a dead letter; default 5")
	f.DurationVar(&g.Backoff, "backoff", 0, "delay after the first nack that names none; default none")
	f.DurationVar(&g.BackoffMax, "backoff-max", 0, "most of that delay")
	f.Float64Var(&g.BackoffFactor, "backoff-factor", 0, "its growth with each attempt; default 2")
	f.IntVar(&g.MaxInFlight, "max-in-flight", 0, "claimed and delayed records; default 10000")
	f.BoolVar(&g.Exclusive, "exclusive", false, "one named consumer at a time")
	return c
}

func (e *environment) groupList() *cobra.Command {
	var c *cobra.Command
	c = &cobra.Command{
		Use: "ls STREAM", Short: "List the groups of a stream", Args: cobra.ExactArgs(1),
		RunE: ran(func(_ *cobra.Command, args []string) error {
			if err := checkName("stream", args[0]); err != nil {
				return err
			}
			return e.connected(c, func(ctx context.Context, cl *client.Client) error {
				shards, err := shardsOf(ctx, cl, c, args[0])
				if err != nil {
					return err
				}
				seen := map[string]bool{}
				var all []string
				for _, shard := range shards {
					names, err := cl.Groups(ctx, args[0], shard)
					if err != nil {
						return err
					}
					for _, n := range names {
						if !seen[n] {
							seen[n] = true
							all = append(all, n)
						}
					}
				}
				if e.opts.json {
					printJSON(e.out, items[string]{append([]string{}, all...)})
					return nil
				}
				for _, n := range all {
					fmt.Fprintln(e.out, plain(n))
				}
				return nil
			})
		}),
	}
	shardFlag(c)
	return c
}

func (e *environment) groupRemove() *cobra.Command {
	var yes bool
	var c *cobra.Command
	c = e.ofGroup("rm STREAM GROUP", "Forget a group: it begins anew", func(ctx context.Context, g *client.Group, shards []int) (exists bool, err error) {
		if err := e.confirm(yes, "forget group %s of stream %s", c.Flags().Arg(1), c.Flags().Arg(0)); err != nil {
			return false, err
		}
		for _, shard := range shards {
			existed, err := g.Delete(ctx, shard)
			if err != nil {
				return false, err
			}
			exists = exists || existed
			what := "had no such group"
			if existed {
				what = "forgot the group"
			}
			if err := e.show(map[string]any{"shard": shard, "existed": existed}, "shard %d %s", shard, what); err != nil {
				return false, err
			}
		}
		return exists, nil
	})
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}
