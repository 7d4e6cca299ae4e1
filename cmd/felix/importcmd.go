package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/internal/logtool"
	"github.com/felixlog/felix/storage/segment"
)

type importFlags struct {
	stream, cache string
	shard         int
	from          uint64
	asIs          bool
}

func (e *environment) importCommand() *cobra.Command {
	f := &importFlags{}
	c := &cobra.Command{
		Use:   "import DIR (--stream NAME | --cache NAME)",
		Short: "Publish the records of a shard's directory to a running broker",
		Long: "Read the directory of one shard, of this broker or of the reference's (segment versions 2 to 6), and publish its records\n" +
			"to a stream, or put its entries into a cache. The directory is verified whole before anything is published, one that is\n" +
			"damaged is refused, and nothing in it is changed. Its broker must not be running.\n\n" +
			"Into a stream: in order, to one shard, each once (an idempotent producer). Records get new offsets and times.\n" +
			"Generation starts are no records; of an atomic commit the event is published; stored publishers are not kept.\n" +
			"Into a cache: the last entry of each key wins, deletes are applied, values keep the deadline they had and get new\n" +
			"versions. A directory of something else, as of counters or of consumer groups, is recognised by what all of its\n" +
			"records are, and refused with what to do instead; --as-is imports it as what was said.\n\n" +
			"An import that stops says which offset it got to; --from goes on there.",
		Example: "  felix import /var/lib/old/default_default_orders_0-0123456789abcdef --stream orders\n  felix import old/caches/prices_0 --cache prices",
		Args:    cobra.ExactArgs(1),
	}
	c.RunE = ran(func(c *cobra.Command, args []string) error { return e.importDir(c.Context(), f, args[0]) })
	fs := c.Flags()
	fs.StringVar(&f.stream, "stream", "", "stream to publish to")
	fs.StringVar(&f.cache, "cache", "", "cache to put into")
	fs.IntVar(&f.shard, "shard", 0, "shard of the stream")
	fs.Uint64Var(&f.from, "from", 0, "first offset of the directory to import")
	fs.BoolVar(&f.asIs, "as-is", false, "import a directory whose records look like something else's")
	return c
}

// importLine is the outcome of an import with --json.
type importLine struct {
	Dir      string         `json:"dir"`
	Into     string         `json:"into"`
	Imported uint64         `json:"imported"` // records or entries acknowledged
	Skipped  uint64         `json:"skipped"`  // records that hold nothing to import
	Next     segment.Offset `json:"next"`     // offset of the directory to go on from
	End      segment.Offset `json:"end"`      // one past its last record
}

func (e *environment) importDir(ctx context.Context, f *importFlags, dir string) (err error) {
	switch {
	case (f.stream == "") == (f.cache == ""):
		return usagef("say where to: either --stream or --cache")
	case f.shard < 0:
		return usagef("--shard %d: shards are counted from 0", f.shard)
	case f.cache != "" && f.shard != 0:
		return usagef("--shard is for streams: a cache puts each key where it belongs")
	}
	kind, name := "stream", f.stream
	if f.cache != "" {
		kind, name = "cache", f.cache
	}
	if err := checkName(kind, name); err != nil {
		return err
	}
	if err := namedFile(dir); err != nil {
		return err
	}
	var found surveyor
	src, err := logtool.OpenSource(ctx, dir, found.see)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	if !f.asIs || f.cache != "" && found.noEntry != nil {
		if err := found.refuse(dir, f.cache != ""); err != nil {
			return err
		}
	}
	for i := range src.Findings {
		fmt.Fprintln(e.err, &src.Findings[i])
	}
	from := max(segment.Offset(f.from), src.Head)
	if from > src.Next {
		return usagef("--from %d: the directory ends at offset %d", f.from, src.Next)
	}
	c, _, err := e.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	bar := e.progress("imported, records", int64(src.Next-from))
	defer bar.end()
	line := importLine{Dir: dir, Into: kind + " " + name, Next: from, End: src.Next}
	if f.cache != "" {
		err = importCache(ctx, c, src, f.cache, &line, bar)
	} else {
		line.Into += fmt.Sprintf(" shard %d", f.shard)
		err = e.importStream(ctx, c, src, f, &line, bar)
	}
	if err != nil {
		return fmt.Errorf("%s: what is before offset %d is in %s (%d records); what follows may be in part: go on with --from %d: %w",
			dir, line.Next, line.Into, line.Imported, line.Next, err)
	}
	if e.opts.json {
		printJSON(e.out, line)
		return nil
	}
	_, err = fmt.Fprintf(e.out, "imported into %s: %d records, offsets %d to %d of %s (exclusive); %d hold nothing to import\n",
		line.Into, line.Imported, from, line.End, dir, line.Skipped)
	return err
}

// importStream publishes the records from line.Next on. line.Next moves behind what was
// acknowledged.
func (e *environment) importStream(ctx context.Context, c *client.Client, src *logtool.Source, f *importFlags, line *importLine, bar *progress) error {
	shards, err := c.StreamShards(ctx, f.stream)
	if err != nil {
		return err
	}
	if f.shard >= shards {
		return usagef("--shard %d: stream %s has %d", f.shard, f.stream, shards)
	}
	p, err := c.Producer(f.stream, client.WithDelivery(client.Idempotent))
	if err != nil {
		return err
	}
	const window = 4096
	type sent struct {
		at     segment.Offset
		future client.Future
	}
	var open []sent
	settle := func() error {
		if err := e.within(ctx, waitFor(open[0].future)); err != nil {
			return fmt.Errorf("record %d: %w", open[0].at, err)
		}
		line.Imported++
		line.Next = open[0].at + 1
		open = open[1:]
		bar.add(1)
		return nil
	}
	err = src.Read(ctx, line.Next, func(r *segment.Record) error {
		payload, visible := r.Visible()
		if !visible {
			line.Skipped++
			return nil
		}
		var future client.Future
		err := e.within(ctx, func(ctx context.Context) (err error) {
			future, err = p.Send(ctx, payload, client.ToShard(f.shard))
			return err
		})
		if err != nil {
			return fmt.Errorf("record %d: %w", r.Offset, err)
		}
		open = append(open, sent{r.Offset, future})
		if len(open) < window {
			return nil
		}
		return settle()
	})
	for err == nil && len(open) > 0 {
		err = settle()
	}
	if err != nil {
		return err
	}
	line.Next = line.End
	return e.within(ctx, p.Close)
}

// cacheWindow is how many entries are put side by side. Of one key only the last of them
// is, and the next window begins when all are answered: so entries of a key keep their
// order.
const (
	cacheWindow  = 1024
	cacheWorkers = 32
)

// importCache puts the entries from line.Next on.
func importCache(ctx context.Context, c *client.Client, src *logtool.Source, name string, line *importLine, bar *progress) error {
	k := c.Cache(name)
	if _, err := k.Shards(ctx); err != nil {
		return err
	}
	last := map[string]cache.Entry{}
	held, next := 0, line.Next
	flush := func() error {
		if err := putAll(ctx, k, last); err != nil {
			return err
		}
		line.Imported += uint64(held)
		line.Next = next
		bar.add(int64(held))
		clear(last)
		held = 0
		return nil
	}
	err := src.Read(ctx, line.Next, func(r *segment.Record) error {
		next = r.Offset + 1
		if r.Kind == segment.KindGenerationStart {
			line.Skipped++
			return nil
		}
		entry, err := cache.DecodeEntry(r.Payload)
		if err != nil {
			return err
		}
		entry.Value = append([]byte{}, entry.Value...)
		last[string(entry.Key)] = entry
		if held++; held < cacheWindow {
			return nil
		}
		return flush()
	})
	if err != nil {
		return err
	}
	return flush()
}

// putAll applies entries of different keys; the first failure counts.
func putAll(ctx context.Context, k *client.Cache, entries map[string]cache.Entry) error {
	work := make(chan string)
	var all sync.WaitGroup
	var once sync.Once
	var failed error
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range min(cacheWorkers, len(entries)) {
		all.Go(func() {
			for key := range work {
				if err := putEntry(ctx, k, key, entries[key]); err != nil {
					once.Do(func() { failed = fmt.Errorf("key %.64q: %w", key, err) })
					cancel()
				}
			}
		})
	}
	for key := range entries {
		if ctx.Err() != nil {
			break
		}
		work <- key
	}
	close(work)
	all.Wait()
	if failed == nil {
		return context.Cause(ctx)
	}
	return failed
}

// putEntry applies one entry. A value whose deadline has passed is a delete.
func putEntry(ctx context.Context, k *client.Cache, key string, entry cache.Entry) error {
	var opts []client.PutOption
	if entry.Expires != 0 {
		left := time.Until(time.UnixMilli(int64(entry.Expires)))
		entry.Delete = entry.Delete || left < time.Millisecond
		opts = append(opts, client.WithTTL(left))
	}
	if entry.Delete {
		_, _, err := k.Delete(ctx, key)
		return err
	}
	return k.Put(ctx, key, entry.Value, opts...)
}
