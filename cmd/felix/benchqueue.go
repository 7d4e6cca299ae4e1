package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felixlog/felix/client"
)

// queueWorkers is how many consumers share the group of the queue cases, each with a
// connection of its own.
const queueWorkers = 4

// workers are the groups of the workers, over a stream of total records.
func (b *bench) workers(ctx context.Context, total int) (groups []*client.Group, done func(), err error) {
	if _, err := b.fill(ctx, total); err != nil {
		return nil, nil, err
	}
	var clients []*client.Client
	done = func() {
		for _, c := range clients {
			c.Close()
		}
	}
	for range queueWorkers {
		c, _, err := b.dial(ctx)
		if err != nil {
			done()
			return nil, nil, err
		}
		clients = append(clients, c)
		g := c.Group(b.stream, "workers")
		// The first request connects, and makes the group.
		if _, err := g.Describe(ctx, 0); err != nil {
			done()
			return nil, nil, err
		}
		groups = append(groups, g)
	}
	return groups, done, nil
}

// drain drains a stream of total records through the groups of its workers. work is one
// of them: it notes its times, and calls stop with what ends the run, nil when all are
// settled.
func (b *bench) drain(ctx context.Context, total int, work func(ctx context.Context, stop context.CancelCauseFunc, w int, g *client.Group, times *[]time.Duration)) (benchFigures, int, error) {
	groups, done, err := b.workers(ctx, total)
	if err != nil {
		return benchFigures{}, 0, err
	}
	defer done()
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	b.begin(ctx)
	var workers sync.WaitGroup
	times := make([][]time.Duration, len(groups))
	began := time.Now()
	for w, g := range groups {
		workers.Go(func() { work(working, stop, w, g, &times[w]) })
	}
	workers.Wait()
	took := time.Since(began)
	if err := context.Cause(working); err != nil && !errors.Is(err, context.Canceled) {
		return benchFigures{}, 0, err
	}
	settled := 0
	for shard := range int(b.f.shards) {
		info, err := groups[0].Describe(ctx, shard)
		if err != nil {
			return benchFigures{}, 0, err
		}
		settled += int(info.Acked)
	}
	if settled != total {
		return benchFigures{}, 0, fmt.Errorf("%d records were published and %d settled", total, settled)
	}
	return figures(total, took, slices.Concat(times...)), total, nil
}

// claims drains a stream through a group: each worker claims up to most records, acks
// every one and waits for the answers before it claims again. The times are those of
// such a round.
func claims(most int) func(*bench, context.Context) (benchFigures, int, error) {
	return func(b *bench, ctx context.Context) (benchFigures, int, error) {
		shards := int(b.f.shards)
		return b.drain(ctx, b.f.messages, func(ctx context.Context, stop context.CancelCauseFunc, w int, g *client.Group, times *[]time.Duration) {
			for shard, idle := w%shards, 0; idle < shards; {
				t := time.Now()
				ms, err := g.Poll(ctx, shard, most)
				if err == nil && len(ms) > 0 {
					err = g.AckAll(ctx, ms)
				}
				if err != nil {
					stop(err)
					return
				}
				if len(ms) == 0 {
					shard, idle = (shard+1)%shards, idle+1
					continue
				}
				idle = 0
				*times = append(*times, time.Since(t))
			}
		})
	}
}

// consumes drains a stream through a group with consumers that handle one record at a
// time. The times are those from one record to the next of its consumer: of a claim and
// an ack.
func consumes(b *bench, ctx context.Context) (benchFigures, int, error) {
	total := b.f.messages / 10
	var handled atomic.Int64
	return b.drain(ctx, total, func(ctx context.Context, stop context.CancelCauseFunc, _ int, g *client.Group, times *[]time.Duration) {
		last := time.Now()
		handle := func(context.Context, client.Message) error {
			now := time.Now()
			*times = append(*times, now.Sub(last))
			last = now
			if handled.Add(1) == int64(total) {
				stop(nil)
			}
			return nil
		}
		// What was handled is settled, and that answered, when it returns.
		if err := g.Consume(ctx, handle, client.WithConcurrency(1), client.OnConsumeError(stop)); err != nil {
			stop(err)
		}
	})
}

// fill publishes exactly total records to the stream.
func (b *bench) fill(ctx context.Context, total int) (int, error) {
	n, _, err := b.send(ctx, 4*benchWindow, max(total-int(b.f.shards), 0), 0)
	return n, err
}
