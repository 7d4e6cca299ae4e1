package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/client"
)

func (e *environment) demoCommand() *cobra.Command {
	return group("demo", "Programs that show what Felix claims", e.demoRestart())
}

type restartFlags struct {
	records, publishers, rounds int
	shards                      uint32
	fsync                       string
	dir                         string
}

func (e *environment) demoRestart() *cobra.Command {
	f := &restartFlags{}
	c := &cobra.Command{
		Use:   "restart",
		Short: "Publish, kill -9 the broker, start it again, and check every claim",
		Long: "Start a broker of its own, publish to it and subscribe, kill it with kill -9 in the middle, start it again, and go on.\n" +
			"Then check: every acknowledged record is at its offset with its payload; offsets are dense; no record is there twice,\n" +
			"although publishes were sent again; the subscription saw each offset once. The command fails if one does not hold.",
		Args: cobra.NoArgs,
		RunE: ran(func(c *cobra.Command, _ []string) error { return e.restart(c.Context(), f) }),
	}
	fs := c.Flags()
	fs.IntVar(&f.records, "records", 20000, "records to publish")
	fs.IntVar(&f.publishers, "publishers", 8, "publishers at once")
	fs.IntVar(&f.rounds, "rounds", 1, "times the broker is killed")
	fs.Uint32Var(&f.shards, "shards", 4, "shards of the stream")
	fs.StringVar(&f.fsync, "fsync", "periodic", "none, periodic or on_commit")
	fs.StringVar(&f.dir, "dir", "", "keep the data in this new directory")
	complete(c, "fsync", "none", "periodic", "on_commit")
	return c
}

// claim is one line of the demo's report.
type claim struct {
	Claim string `json:"claim"`
	Holds bool   `json:"holds"`
	Found string `json:"found"`
}

// demoStream is the stream of the demo.
const demoStream = "demo"

// restartRun is one run of the demo.
type restartRun struct {
	*environment
	f      *restartFlags
	dir    string
	broker *spawned
	client *client.Client

	mu    sync.Mutex
	acked map[place]int // number of the record at each acknowledged place
	sent  atomic.Int64
}

type place struct {
	shard  int
	offset uint64
}

func (e *environment) restart(ctx context.Context, f *restartFlags) (err error) {
	switch {
	case f.records < 1 || f.publishers < 1 || f.rounds < 1 || f.shards < 1:
		return usagef("--records, --publishers, --rounds and --shards are at least 1")
	case f.fsync == "":
		return usagef("--fsync is none, periodic or on_commit")
	}
	if _, err := oneOf("--fsync", f.fsync, "none", "periodic", "on_commit"); err != nil {
		return err
	}
	r := &restartRun{environment: e, f: f, dir: f.dir, acked: map[place]int{}}
	if r.dir == "" {
		if r.dir, err = os.MkdirTemp("", "felix-demo-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(r.dir)) }()
	}
	if r.broker, err = startChild(ctx, r.dir, nil, "--storage-min-free", "0", "--storage-fsync-mode", f.fsync); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.broker.Kill()) }()
	own := r.broker.use(e)
	if err := own.createStream(ctx, demoStream, f.shards, f.fsync); err != nil {
		return err
	}
	if r.client, _, err = own.dial(ctx); err != nil {
		return err
	}
	defer r.client.Close()
	claims, err := r.do(ctx)
	if err != nil {
		return err
	}
	return r.print(claims)
}

// do publishes, subscribes, kills and restarts, and then checks.
func (r *restartRun) do(ctx context.Context) ([]claim, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sub, err := r.client.Subscribe(ctx, demoStream, client.AllShards(), client.FromEarliest())
	if err != nil {
		return nil, err
	}
	defer sub.Close()
	seen := &watcher{next: map[int]uint64{}}
	var watching, publishing sync.WaitGroup
	watching.Go(func() { seen.run(ctx, sub) })
	bar := r.progress("acknowledged", int64(r.f.records))
	defer bar.end()
	for range r.f.publishers {
		publishing.Go(func() {
			if err := r.publisher(ctx, bar); err != nil {
				cancel(err)
			}
		})
	}
	var downtimes []time.Duration
	for round := range r.f.rounds {
		if err := r.reach(ctx, r.f.records*(round+1)/(r.f.rounds+1)); err != nil {
			return nil, err
		}
		if err := r.broker.Kill(); err != nil {
			return nil, err
		}
		began := time.Now()
		again, err := startChild(ctx, r.dir, r.broker, "--storage-min-free", "0", "--storage-fsync-mode", r.f.fsync)
		if err != nil {
			return nil, err
		}
		r.broker = again
		downtimes = append(downtimes, time.Since(began))
	}
	publishing.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	claims, tails, err := r.check(ctx)
	if err != nil {
		return nil, err
	}
	subClaim := seen.await(ctx, tails)
	cancel(nil)
	watching.Wait()
	longest := time.Duration(0)
	for _, d := range downtimes {
		longest = max(longest, d)
	}
	return append(claims, subClaim, claim{
		fmt.Sprintf("the broker serves again after kill -9 (%d times)", len(downtimes)), true, fmt.Sprintf("within %d ms", longest.Milliseconds()),
	}), nil
}

// publisher publishes until the records are used up. Idempotent publishing rides
// over the restarts by itself.
func (r *restartRun) publisher(ctx context.Context, bar *progress) error {
	for {
		n := int(r.sent.Add(1)) - 1
		if n >= r.f.records {
			return nil
		}
		payload := []byte("record " + strconv.Itoa(n))
		ack, err := r.client.Publish(ctx, demoStream, payload, client.WithKey(strconv.AppendInt(nil, int64(n%97), 10)))
		if err != nil {
			return fmt.Errorf("publish of record %d: %w", n, err)
		}
		r.mu.Lock()
		r.acked[place{ack.Shard, ack.Offset}] = n
		r.mu.Unlock()
		bar.add(1)
	}
}

// reach waits until n records have been acknowledged.
func (r *restartRun) reach(ctx context.Context, n int) error {
	t := time.NewTicker(time.Millisecond)
	defer t.Stop()
	for {
		r.mu.Lock()
		done := len(r.acked)
		r.mu.Unlock()
		if done >= n {
			return nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// check reads every shard from its start.
func (r *restartRun) check(ctx context.Context) (claims []claim, tails map[int]uint64, err error) {
	tails = map[int]uint64{}
	copies := map[string]int{}
	wrong, holes, total := 0, 0, 0
	found := map[place]bool{}
	for shard := range int(r.f.shards) {
		for from := uint64(0); ; {
			page, err := r.client.Read(ctx, demoStream, shard, from)
			if err != nil {
				return nil, nil, err
			}
			if len(page.Records) == 0 {
				tails[shard] = page.Next
				break
			}
			for _, rec := range page.Records {
				if rec.Offset != from {
					holes++
				}
				from = rec.Offset + 1
				total++
				copies[string(rec.Payload)]++
				at := place{shard, rec.Offset}
				if n, ok := r.acked[at]; ok {
					found[at] = true
					if string(rec.Payload) != "record "+strconv.Itoa(n) {
						wrong++
					}
				}
			}
		}
	}
	twice := 0
	for _, n := range copies {
		if n > 1 {
			twice++
		}
	}
	missing := len(r.acked) - len(found)
	return []claim{
		{"every acknowledged record is there, at its offset", missing == 0 && len(r.acked) == r.f.records, fmt.Sprintf("%d acknowledged, %d missing", len(r.acked), missing)},
		{"every record holds what was sent", wrong == 0, fmt.Sprintf("%d differ", wrong)},
		{"offsets are dense in each shard", holes == 0, fmt.Sprintf("%d records in %d shards, %d holes", total, r.f.shards, holes)},
		{"no record is there twice, although publishes were sent again", twice == 0, fmt.Sprintf("%d twice", twice)},
	}, tails, nil
}

// watcher follows the stream through the restarts.
type watcher struct {
	mu       sync.Mutex
	next     map[int]uint64 // per shard
	records  int
	repeated int
	skipped  int
	err      error
}

func (w *watcher) run(ctx context.Context, sub *client.Subscription) {
	for {
		rec, err := sub.Next(ctx)
		w.mu.Lock()
		if err != nil {
			if ctx.Err() == nil {
				w.err = err
			}
			w.mu.Unlock()
			return
		}
		switch want := w.next[rec.Shard]; {
		case rec.Offset < want:
			w.repeated++
		case rec.Offset > want:
			w.skipped++
		}
		w.next[rec.Shard] = max(w.next[rec.Shard], rec.Offset+1)
		w.records++
		w.mu.Unlock()
	}
}

// await waits, for at most half a minute, until the watcher has seen every tail.
func (w *watcher) await(ctx context.Context, tails map[int]uint64) claim {
	t := time.NewTicker(time.Millisecond)
	defer t.Stop()
	end := time.After(30 * time.Second)
	for {
		w.mu.Lock()
		behind := 0
		for shard, tail := range tails {
			if w.next[shard] < tail {
				behind++
			}
		}
		c := claim{
			"the subscription saw each offset once, across the restarts",
			behind == 0 && w.repeated == 0 && w.skipped == 0 && w.err == nil,
			fmt.Sprintf("%d records, %d repeated, %d gaps", w.records, w.repeated, w.skipped),
		}
		if behind > 0 {
			c.Found += fmt.Sprintf(", %d shards not read to the end", behind)
		}
		if w.err != nil {
			c.Found += ", ended: " + w.err.Error()
		}
		failed := w.err != nil
		w.mu.Unlock()
		if behind == 0 || failed {
			return c
		}
		select {
		case <-t.C:
		case <-end:
			return c
		case <-ctx.Done():
			return c
		}
	}
}

func (r *restartRun) print(claims []claim) error {
	broken := 0
	for _, c := range claims {
		if !c.Holds {
			broken++
		}
		if r.opts.json {
			printJSON(r.out, c)
			continue
		}
		mark := "holds "
		if !c.Holds {
			mark = "BROKEN"
		}
		fmt.Fprintf(r.out, "%s  %s: %s\n", mark, c.Claim, c.Found)
	}
	if broken > 0 {
		return &exitError{exitOther, fmt.Errorf("%d of %d claims do not hold", broken, len(claims))}
	}
	return nil
}
