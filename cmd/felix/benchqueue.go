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

// drained are the figures of a stream that was drained through the groups.
func drained(total int, settled int64, took time.Duration, times [][]time.Duration) (benchFigures, int, error) {
	if settled != int64(total) {
		return benchFigures{}, 0, fmt.Errorf("%d records were published and %d settled", total, settled)
	}
	return figures(total, took, slices.Concat(times...)), total, nil
}

// claims drains a stream through a group: each worker claims up to most records, acks
// every one and waits for the answers before it claims again. The times are those of
// such a round.
func claims(most int) func(*bench, context.Context) (benchFigures, int, error) {
	return func(b *bench, ctx context.Context) (benchFigures, int, error) {
		total := b.f.messages
		groups, done, err := b.workers(ctx, total)
		if err != nil {
			return benchFigures{}, 0, err
		}
		defer done()
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		b.begin(ctx)
		var working sync.WaitGroup
		var settled atomic.Int64
		times := make([][]time.Duration, len(groups))
		began := time.Now()
		for w, g := range groups {
			working.Go(func() {
				shards := int(b.f.shards)
				for shard, idle := w%shards, 0; idle < shards; {
					t := time.Now()
					ms, err := g.Poll(ctx, shard, most)
					if err == nil && len(ms) > 0 {
						err = g.AckAll(ctx, ms)
					}
					if err != nil {
						cancel(err)
						return
					}
					if len(ms) == 0 {
						shard, idle = (shard+1)%shards, idle+1
						continue
					}
					idle = 0
					settled.Add(int64(len(ms)))
					times[w] = append(times[w], time.Since(t))
				}
			})
		}
		working.Wait()
		took := time.Since(began)
		if err := context.Cause(ctx); err != nil {
			return benchFigures{}, 0, err
		}
		return drained(total, settled.Load(), took, times)
	}
}

// consumes drains a stream through a group with consumers that handle one record at a
// time. The times are those from one record to the next of its consumer: of a claim and
// an ack.
func consumes(b *bench, ctx context.Context) (benchFigures, int, error) {
	total := b.f.messages / 10
	groups, done, err := b.workers(ctx, total)
	if err != nil {
		return benchFigures{}, 0, err
	}
	defer done()
	consuming, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	b.begin(ctx)
	var working sync.WaitGroup
	var handled atomic.Int64
	times := make([][]time.Duration, len(groups))
	began := time.Now()
	for w, g := range groups {
		last := began
		handle := func(context.Context, client.Message) error {
			now := time.Now()
			times[w] = append(times[w], now.Sub(last))
			last = now
			if handled.Add(1) == int64(total) {
				stop(nil)
			}
			return nil
		}
		working.Go(func() {
			// What was handled is settled, and that answered, when it returns.
			if err := g.Consume(consuming, handle, client.WithConcurrency(1), client.OnConsumeError(stop)); err != nil {
				stop(err)
			}
		})
	}
	working.Wait()
	took := time.Since(began)
	if err := context.Cause(consuming); err != nil && !errors.Is(err, context.Canceled) {
		return benchFigures{}, 0, err
	}
	var settled int64
	for shard := range int(b.f.shards) {
		info, err := groups[0].Describe(ctx, shard)
		if err != nil {
			return benchFigures{}, 0, err
		}
		settled += int64(info.Acked)
	}
	return drained(total, settled, took, times)
}

// fill publishes exactly total records to the stream.
func (b *bench) fill(ctx context.Context, total int) (int, error) {
	n, _, err := b.send(ctx, 4*benchWindow, max(total-int(b.f.shards), 0), 0)
	return n, err
}
