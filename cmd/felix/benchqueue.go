package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felixlog/felix/client"
)

// queueWorkers is how many consumers share the group of the queue cases, each with a
// connection of its own.
const queueWorkers = 4

// claims drains a stream through a group: each worker claims up to most records, acks
// every one and waits for the answers before it claims again. The times are those of
// such a round.
func claims(most int) func(*bench, context.Context) (benchFigures, int, error) {
	return func(b *bench, ctx context.Context) (benchFigures, int, error) {
		total := b.f.messages
		if most == 1 {
			total /= 10
		}
		if _, err := b.fill(ctx, total); err != nil {
			return benchFigures{}, 0, err
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		groups := make([]*client.Group, queueWorkers)
		for w := range groups {
			c, _, err := b.dial(ctx)
			if err != nil {
				return benchFigures{}, 0, err
			}
			defer c.Close()
			groups[w] = c.Group(b.stream, "workers")
			// The first request connects, and makes the group.
			if _, err := groups[w].Describe(ctx, 0); err != nil {
				return benchFigures{}, 0, err
			}
		}
		b.begin(ctx)
		var working sync.WaitGroup
		var settled atomic.Int64
		times := make([][]time.Duration, queueWorkers)
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
		if n := settled.Load(); n != int64(total) {
			return benchFigures{}, 0, fmt.Errorf("%d records were published and %d settled", total, n)
		}
		var all []time.Duration
		for _, t := range times {
			all = append(all, t...)
		}
		return figures(total, took, all), total, nil
	}
}

// fill publishes exactly total records to the stream.
func (b *bench) fill(ctx context.Context, total int) (int, error) {
	n, _, err := b.send(ctx, 4*benchWindow, max(total-int(b.f.shards), 0), 0)
	return n, err
}
