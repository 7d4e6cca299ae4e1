package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/config"
)

type subFlags struct {
	from, format string
	count, shard int
	sharded, raw bool
	idle         time.Duration
}

func (e *environment) subCommand() *cobra.Command {
	f := &subFlags{}
	c := &cobra.Command{
		Use:   "sub STREAM",
		Short: "Print records as they come",
		Long: "Print the records of a stream, of every shard unless --shard is given, and go on waiting for more. Records of one\n" +
			"shard come in order. A lost connection is resumed after the last record.",
		Example: "  felix sub orders --from earliest --count 10\n  felix sub orders --shard 2 --from 1500 --format offsets\n  felix sub orders --from 15m --json",
		Args:    cobra.ExactArgs(1),
	}
	c.RunE = ran(func(c *cobra.Command, args []string) error {
		f.sharded = c.Flags().Changed("shard")
		return e.subscribe(c.Context(), f, args[0])
	})
	fs := c.Flags()
	fs.StringVar(&f.from, "from", "latest", "latest, earliest, an offset (with --shard unless there is one), a time (RFC 3339) or an age as in 15m")
	fs.IntVar(&f.count, "count", 0, "end after so many records; 0: never")
	fs.IntVar(&f.shard, "shard", 0, "this shard only")
	fs.StringVar(&f.format, "format", "raw", "raw: the payload and a newline; offsets: shard, offset and payload; json")
	fs.BoolVar(&f.raw, "raw", false, rawUsage)
	fs.DurationVar(&f.idle, "idle", 0, "end after so long without a record; 0: never")
	complete(c, "from", "latest", "earliest")
	complete(c, "format", "raw", "offsets", "json")
	return c
}

func (e *environment) subscribe(ctx context.Context, f *subFlags, stream string) error {
	if err := checkName("stream", stream); err != nil {
		return err
	}
	if e.opts.json {
		f.format = "json"
	}
	if _, err := oneOf("--format", f.format, "raw", "offsets", "json"); err != nil {
		return err
	}
	switch {
	case f.count < 0:
		return usagef("--count %d: 0 is no end", f.count)
	case f.shard < 0:
		return usagef("--shard %d: shards are counted from 0", f.shard)
	case f.idle < 0:
		return usagef("--idle %s is below zero", f.idle)
	}
	start, offset, err := startOf(f.from)
	if err != nil {
		return err
	}
	c, _, err := e.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	opts := []client.SubscribeOption{start, client.WithTimestamps(), client.WithPublisher()}
	// Asked once, so that a misspelt name is answered at once: a subscription would be
	// tried for a while, since a stream may just have been created.
	shards, err := c.StreamShards(ctx, stream)
	switch {
	case err != nil:
		return err
	case f.sharded:
		opts = append(opts, client.Shard(f.shard))
	case offset && shards > 1:
		return usagef("--from %s: offsets are counted in each of the %d shards; give --shard", f.from, shards)
	default:
		opts = append(opts, client.AllShards())
	}
	s, err := c.Subscribe(ctx, stream, opts...)
	if err != nil {
		return err
	}
	defer s.Close()
	printed, err := e.printRecords(ctx, f, stream, s)
	if errors.Is(err, client.ErrConnectionLost) {
		return e.cutOff(ctx, c, stream, printed, err)
	}
	return err
}

// cutOff says what a subscription has ended with that the client could not resume: one of
// an in-memory stream, whose records have no offsets. The protocol has no word for why it
// was ended, so whether the broker still answers has to tell.
func (e *environment) cutOff(ctx context.Context, c *client.Client, stream string, printed int, lost error) error {
	ctx, cancel := context.WithTimeout(ctx, e.opts.timeout)
	defer cancel()
	if _, err := c.StreamShards(ctx, stream); err != nil {
		return fmt.Errorf("the subscription of stream %s ended after %d records, and the broker does not answer: subscribe again once it does; "+
			"what is published meanwhile is not kept, for the stream is in memory: %w", stream, printed, lost)
	}
	return &exitError{exitRefused, fmt.Errorf("the broker ended the subscription of stream %s after %d records (overloaded): it took them too slowly and held back publishes, "+
		"or the broker was started anew. The stream is in memory, so there is no offset to go on from: subscribe again for what comes; "+
		"made with --overflow drop_old a stream drops records for a slow subscriber instead, made with --durable it keeps them: %w", stream, printed, lost)}
}

// startOf reads --from; offset says that it is one.
func startOf(from string) (start client.SubscribeOption, offset bool, err error) {
	switch from {
	case "latest":
		return client.FromLatest(), false, nil
	case "earliest":
		return client.FromEarliest(), false, nil
	}
	if n, err := strconv.ParseUint(from, 10, 64); err == nil {
		return client.FromOffset(n), true, nil
	}
	if at, err := time.Parse(time.RFC3339, from); err == nil {
		return client.FromTime(at), false, nil
	}
	if age, err := config.ParseDuration(from); err == nil {
		return client.FromTime(time.Now().Add(-age)), false, nil
	}
	return nil, false, usagef("--from %q is not latest, earliest, an offset, a time as in 2026-01-31T12:00:00Z, or an age as in 15m", from)
}

// errIdle ends a wait for which --idle has passed.
var errIdle = errors.New("no record for as long as --idle says")

// printRecords prints records until the subscription ends, or the command.
func (e *environment) printRecords(ctx context.Context, f *subFlags, stream string, s *client.Subscription) (n int, err error) {
	out := bufio.NewWriterSize(e.out, 64<<10)
	defer out.Flush()
	shown := e.payloads(f.raw)
	for ; f.count == 0 || n < f.count; n++ {
		// What was printed is seen before waiting for more; a burst is one write.
		r, err := next(ctx, s, out, f.idle)
		switch {
		case err == nil:
		case errors.Is(err, errIdle) && f.count == 0:
			return n, nil
		case errors.Is(err, context.Canceled) && ctx.Err() != nil && f.count == 0:
			// Interrupted, which is how an endless command ends.
			return n, nil
		default:
			return n, err
		}
		if r.Lost > 0 {
			fmt.Fprintf(e.err, "shard %d: %d records were not delivered, this subscriber was too slow\n", r.Shard, r.Lost)
		}
		if err := printRecord(out, f.format, stream, &r, shown); err != nil {
			return n, err
		}
	}
	return n, nil
}

// next waits for a record, at most idle when that is set. Only when it has to wait
// is the output flushed.
func next(ctx context.Context, s *client.Subscription, out *bufio.Writer, idle time.Duration) (client.Record, error) {
	done, cancel := context.WithCancel(ctx)
	cancel()
	// An ended context takes what is there already and waits for nothing.
	if r, err := s.Next(done); err == nil || ctx.Err() != nil {
		return r, err
	} else if !errors.Is(err, context.Canceled) {
		return r, err
	}
	if err := out.Flush(); err != nil {
		return client.Record{}, err
	}
	if idle > 0 {
		var end context.CancelFunc
		ctx, end = context.WithTimeoutCause(ctx, idle, errIdle)
		defer end()
	}
	return s.Next(ctx)
}

// recordLine is a record with --json. A payload that is not UTF-8 is in Base64.
type recordLine struct {
	Stream        string     `json:"stream"`
	Shard         int        `json:"shard"`
	Offset        *uint64    `json:"offset"`
	Payload       *string    `json:"payload,omitempty"`
	PayloadBase64 string     `json:"payload_base64,omitempty"`
	Timestamp     *time.Time `json:"timestamp,omitempty"`
	Publisher     string     `json:"publisher,omitempty"`
	Lost          uint64     `json:"lost,omitempty"`
}

func printRecord(out *bufio.Writer, format, stream string, r *client.Record, shown func([]byte) []byte) error {
	switch format {
	case "json":
		line := recordLine{Stream: stream, Shard: r.Shard, Publisher: r.Publisher, Lost: r.Lost}
		if r.HasOffset {
			line.Offset = &r.Offset
		}
		if !r.Timestamp.IsZero() {
			at := r.Timestamp.UTC()
			line.Timestamp = &at
		}
		if utf8.Valid(r.Payload) {
			text := string(r.Payload)
			line.Payload = &text
		} else {
			line.PayloadBase64 = base64.StdEncoding.EncodeToString(r.Payload)
		}
		printJSON(out, line)
		return nil
	case "offsets":
		at := "-"
		if r.HasOffset {
			at = strconv.FormatUint(r.Offset, 10)
		}
		if _, err := fmt.Fprintf(out, "%d\t%s\t", r.Shard, at); err != nil {
			return err
		}
	}
	if _, err := out.Write(shown(r.Payload)); err != nil {
		return err
	}
	return out.WriteByte('\n')
}
