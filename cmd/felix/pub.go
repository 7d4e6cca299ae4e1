package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/client"
)

// maxMessage bounds one message read from a file or standard input, in bytes.
const maxMessage = 64 << 20

type pubFlags struct {
	key, file, ack           string
	shard, count             int
	whole, idempotent, keyed bool
	sharded                  bool
}

func (e *environment) pubCommand() *cobra.Command {
	f := &pubFlags{}
	c := &cobra.Command{
		Use:   "pub STREAM [MESSAGE]",
		Short: "Publish records",
		Long: "Publish one message, or each line of standard input or of a file. Each publish waits for its answer and prints the\n" +
			"record's offset. A publish that failed ends the command; the message says whether it may have been applied.\n" +
			"Without --key and --shard records go to shard 0, however many shards the stream has; of a stream with several a warning says so.\n" +
			"FELIX_PUBLISH_INFLIGHT_BYTES bounds what is under way with --ack none (8 MiB), FELIX_MAX_FRAME_BYTES a frame (16 MiB).",
		Example: "  felix pub orders hello\n  felix pub orders --key customer-7 hello\n  cat events.jsonl | felix pub orders\n  felix pub images --file cat.jpg --whole",
		Args:    cobra.RangeArgs(1, 2),
	}
	c.RunE = ran(func(c *cobra.Command, args []string) error {
		f.keyed, f.sharded = c.Flags().Changed("key"), c.Flags().Changed("shard")
		return e.publish(c.Context(), f, args)
	})
	fs := c.Flags()
	fs.StringVar(&f.key, "key", "", "records with one key share a shard and keep their order; without one they go to shard 0")
	fs.IntVar(&f.shard, "shard", 0, "shard to publish to, instead of a key")
	fs.StringVar(&f.file, "file", "", "read messages from this file")
	fs.BoolVar(&f.whole, "whole", false, "the file or standard input is one message, not one a line")
	fs.IntVar(&f.count, "count", 1, "publish the message so many times")
	fs.StringVar(&f.ack, "ack", "per_message", "per_message: wait for each answer; none: wait for all at the end")
	fs.BoolVar(&f.idempotent, "idempotent", false, "send again under the same sequence until answered: in the log once")
	complete(c, "ack", "per_message", "none")
	return c
}

func (e *environment) publish(ctx context.Context, f *pubFlags, args []string) error {
	if err := checkName("stream", args[0]); err != nil {
		return err
	}
	if _, err := oneOf("--ack", f.ack, "per_message", "none"); err != nil {
		return err
	}
	switch {
	case len(args) == 2 && (f.file != "" || f.whole):
		return usagef("a message and --file or --whole exclude each other")
	case f.keyed && f.sharded:
		return usagef("--key and --shard exclude each other")
	case f.count < 1:
		return usagef("--count %d: at least 1", f.count)
	case f.shard < 0:
		return usagef("--shard %d: shards are counted from 0", f.shard)
	}
	inflight, err := e.bytesFrom("FELIX_PUBLISH_INFLIGHT_BYTES", 1, math.MaxInt64)
	if err != nil {
		return err
	}
	next, done, err := e.messages(f, args)
	if err != nil {
		return err
	}
	defer done()
	c, _, err := e.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	delivery := client.AtMostOnce
	if f.idempotent {
		delivery = client.Idempotent
	}
	under := []client.ProducerOption{client.WithDelivery(delivery)}
	if inflight > 0 {
		under = append(under, client.WithMaxBuffered(inflight))
	}
	p, err := c.Producer(args[0], under...)
	if err != nil {
		return err
	}
	var opts []client.PublishOption
	if f.keyed {
		opts = append(opts, client.WithKey([]byte(f.key)))
	}
	if f.sharded {
		opts = append(opts, client.ToShard(f.shard))
	}
	out := bufio.NewWriter(e.out)
	// What was acknowledged is printed also when a later one fails.
	defer out.Flush()
	bar := e.progress("published", -1)
	defer bar.end()
	warn := func() {}
	if !f.keyed && !f.sharded {
		warn = sync.OnceFunc(func() { e.warnOfOneShard(ctx, c, args[0]) })
	}
	acked := func() {
		warn()
		bar.add(1)
	}
	if f.ack == "none" {
		return e.publishAll(ctx, p, next, opts, acked)
	}
	var became outcomes
	for {
		payload, err := next()
		if errors.Is(err, io.EOF) {
			return e.within(ctx, p.Close)
		}
		if err != nil {
			return err
		}
		var ack client.Ack
		err = e.within(ctx, func(ctx context.Context) (err error) {
			ack, err = p.Publish(ctx, payload, opts...)
			return err
		})
		if became.add(err); err != nil {
			return became.explain(err)
		}
		if err := e.printAck(out, args[0], ack); err != nil {
			return err
		}
		acked()
	}
}

// warnOfOneShard says that records without a key load one shard of several. That the number
// of shards cannot be asked for is no matter of a publish.
func (e *environment) warnOfOneShard(ctx context.Context, c *client.Client, stream string) {
	var shards int
	err := e.within(ctx, func(ctx context.Context) (err error) {
		shards, err = c.StreamShards(ctx, stream)
		return err
	})
	if err == nil && shards > 1 {
		fmt.Fprintf(e.err, "felix: records without a key go to shard 0, one of %d of stream %s: --key KEY spreads them and keeps the order of each key, --shard N chooses\n", shards, stream)
	}
}

// publishAll puts everything under way and then waits; the first failure counts.
func (e *environment) publishAll(ctx context.Context, p *client.Producer, next func() ([]byte, error), opts []client.PublishOption, acked func()) error {
	// The producer bounds what is under way by bytes; futures are looked at in order,
	// so that a failure ends the reading of input soon.
	const window = 1024
	var open []client.Future
	var became outcomes
	// fail waits for what is under way, so that it can be said what became of all of it.
	fail := func(err error) error {
		waiting, cancel := context.WithTimeout(ctx, e.opts.timeout) // once for all: they are under way together
		defer cancel()
		for _, future := range open {
			_, err := future.Wait(waiting)
			became.add(err)
		}
		return became.explain(err)
	}
	for {
		payload, err := next()
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		ended := err != nil
		if !ended {
			// It waits for room, and room comes by answers.
			err := e.within(ctx, func(ctx context.Context) error {
				future, err := p.Send(ctx, payload, opts...)
				if err == nil {
					open = append(open, future)
				}
				return err
			})
			if err != nil {
				became.add(err)
				return fail(err)
			}
		}
		for len(open) > 0 && (ended || len(open) > window) {
			err := e.within(ctx, waitFor(open[0]))
			open = open[1:]
			if became.add(err); err != nil {
				return fail(err)
			}
			acked()
		}
		if ended {
			return e.within(ctx, p.Close)
		}
	}
}

// outcomes counts what became of the records of an input.
type outcomes struct{ acknowledged, refused, unknown int }

func (o *outcomes) add(err error) {
	switch {
	case err == nil:
		o.acknowledged++
	case errors.Is(err, client.ErrOutcomeUnknown):
		o.unknown++
	default:
		o.refused++
	}
}

// explain says with the first failure what became of all that was sent: of an input of one
// record the failure says it.
func (o *outcomes) explain(err error) error {
	sent := o.acknowledged + o.refused + o.unknown
	if sent <= 1 {
		return err
	}
	return fmt.Errorf("%w; of the first %d records of the input %d were acknowledged, %d were not written and of %d it is not known; none after them was sent",
		err, sent, o.acknowledged, o.refused, o.unknown)
}

func waitFor(f client.Future) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := f.Wait(ctx)
		return err
	}
}

// ackLine is an acknowledged record with --json; Offset is null when the stream
// gives none.
type ackLine struct {
	Stream string  `json:"stream"`
	Shard  int     `json:"shard"`
	Offset *uint64 `json:"offset"`
}

func (e *environment) printAck(out *bufio.Writer, stream string, ack client.Ack) error {
	line := ackLine{Stream: stream, Shard: ack.Shard}
	text := "-"
	if ack.HasOffset {
		line.Offset = &ack.Offset
		text = fmt.Sprint(ack.Offset)
	}
	if e.opts.json {
		printJSON(out, line)
	} else {
		fmt.Fprintln(out, text)
	}
	// A reader at the other end of a pipe sees each answer when it comes.
	return out.Flush()
}

// messages gives the payloads to publish, io.EOF at their end.
func (e *environment) messages(f *pubFlags, args []string) (next func() ([]byte, error), done func(), err error) {
	done = func() {}
	if len(args) == 2 {
		return repeat([]byte(args[1]), f.count), done, nil
	}
	in := e.in
	if f.file != "" {
		file, err := os.Open(f.file)
		if err != nil {
			return nil, nil, &exitError{exitUsage, err}
		}
		// Opened for reading: nothing can be lost at close.
		in, done = file, func() { file.Close() }
	}
	if f.whole {
		raw, err := io.ReadAll(io.LimitReader(in, maxMessage+1))
		if err == nil && len(raw) > maxMessage {
			err = usagef("message is over %d bytes", maxMessage)
		}
		if err != nil {
			done()
			return nil, nil, err
		}
		return repeat(raw, f.count), done, nil
	}
	if f.count != 1 {
		done()
		return nil, nil, usagef("--count is for one message: give it as an argument, or --whole")
	}
	lines := bufio.NewReaderSize(in, 64<<10)
	return func() ([]byte, error) { return readLine(lines) }, done, nil
}

func repeat(payload []byte, n int) func() ([]byte, error) {
	return func() ([]byte, error) {
		if n == 0 {
			return nil, io.EOF
		}
		n--
		return payload, nil
	}
}

// readLine reads one line without its end; a last line needs none.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > maxMessage {
			return nil, usagef("a line is over %d bytes", maxMessage)
		}
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(line) > 0:
			return line, nil
		case err != nil:
			return nil, err
		}
		return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), nil
	}
}
