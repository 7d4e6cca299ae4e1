package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/stream"
)

// load is what is done to the broker.
type load struct {
	*broker
	*watch
}

// with runs f with a client of its own.
func (l *load) with(ctx context.Context, f func(*client.Client) error) error {
	c, err := l.dial(ctx, subject)
	if err != nil {
		return ended(ctx, err)
	}
	return ended(ctx, errOf(f(c), c.Close(), ctx))
}

// errOf joins the error of a part with that of closing its client, which counts only
// while there is time left.
func errOf(err, closing error, ctx context.Context) error {
	if err == nil && ctx.Err() == nil {
		return closing
	}
	return err
}

// publishers is how many publish at once, so that one that waits does not hold up the
// schedule of the others.
const publishers = 16

// mostLate is how far a publisher may be behind its schedule. Behind that it leaves out
// what it missed: a machine that was away for a minute would else be judged by the
// backlog for as long again.
const mostLate = 2 * time.Second

// publish publishes at the rate; each latency counts from when the record was due. What
// is left out counts with the time it was late by then, and as missed.
func (l *load) publish(ctx context.Context) error {
	return l.with(ctx, func(c *client.Client) error {
		group, ctx := errgroup.WithContext(ctx)
		for i := range publishers {
			group.Go(func() error {
				n, payload := 0, make([]byte, recordBytes)
				begin := l.begin.Add(time.Duration(i) * time.Second / publishRate)
				return every(ctx, begin, publishers*time.Second/publishRate, func(due time.Time) error {
					if late := time.Since(due); late > mostLate {
						l.latencies.add(due.Sub(l.begin), late)
						l.at(due, func(s *Second) { s.Missed++ })
						return nil
					}
					n++
					_, err := c.Publish(ctx, "events", payload, client.WithKey(fmt.Append(nil, i, n)))
					if err == nil {
						l.latencies.add(due.Sub(l.begin), time.Since(due))
					}
					return err
				})
			})
		}
		return group.Wait()
	})
}

// replayed is how many records a replay reads.
const replayed = 5000

// replay reads a shard from its start, once a second.
func (l *load) replay(ctx context.Context) error {
	return l.with(ctx, func(c *client.Client) error {
		shard := 0
		return every(ctx, l.begin, time.Second, func(due time.Time) error {
			shard = (shard + 1) % shards
			sub, err := c.Subscribe(ctx, "events", client.Shard(shard), client.FromEarliest())
			if err != nil {
				return err
			}
			defer sub.Close()
			for n := range replayed {
				_, err := sub.Next(ctx)
				if errors.Is(err, client.ErrCursorTooOld) {
					return nil // retention overtook the replay, which is what the answer is for
				}
				if err != nil {
					return err
				}
				if n%10 == 9 {
					l.at(time.Now(), func(s *Second) { s.Replayed += 10 })
				}
				if time.Since(due) > time.Second/2 {
					return nil // the end was met: what follows comes at the rate it is published
				}
			}
			return nil
		})
	})
}

// putAndGet puts values that expire and looks values up.
func (l *load) putAndGet(ctx context.Context) error {
	return l.with(ctx, func(c *client.Client) error {
		cache, value := c.Cache("sessions"), make([]byte, valueBytes)
		return every(ctx, l.begin, time.Second/cacheRate, func(time.Time) error {
			ttl := time.Duration(1+rand.IntN(30)) * time.Second
			if err := cache.Put(ctx, fmt.Sprint("user-", rand.IntN(cacheKeys)), value, client.WithTTL(ttl)); err != nil {
				return err
			}
			if _, _, err := cache.Get(ctx, fmt.Sprint("user-", rand.IntN(cacheKeys))); err != nil {
				return err
			}
			l.at(time.Now(), func(s *Second) { s.CacheOperations += 2 })
			return nil
		})
	})
}

// queue puts work into the queue.
func (l *load) queue(ctx context.Context) error {
	return l.with(ctx, func(c *client.Client) error {
		payload := make([]byte, recordBytes)
		return every(ctx, l.begin, time.Second/queueRate, func(time.Time) error {
			_, err := c.Publish(ctx, "jobs", payload)
			return err
		})
	})
}

// consume does the work of the queue.
func (l *load) consume(ctx context.Context) error {
	return l.with(ctx, func(c *client.Client) error {
		return c.Group("jobs", "workers").Consume(ctx, func(context.Context, client.Message) error {
			l.at(time.Now(), func(s *Second) { s.Settled++ })
			return nil
		})
	})
}

// tableFull is as many guests as fill what a broker remembers of clients that left: the
// tokens it has verified and, of each shard, the idempotent producers.
const tableFull = max(auth.DefaultCacheTokens, stream.MaxProducers) + 1

// guestsAtOnce is how many guests are there at the same time.
const guestsAtOnce = 8

// welcome lets guests come and go, each with a token of its own and a record in each
// shard. What a broker remembers of clients has bounds that comeAndGo needs more than an
// hour to reach: until then memory rises without anything being lost track of.
func (b *broker) welcome(ctx context.Context, guests int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(guestsAtOnce)
	for i := range guests {
		group.Go(func() (err error) {
			c, err := b.dial(ctx, fmt.Sprint("guest-", i))
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, c.Close()) }()
			for shard := range shards {
				if _, err := c.Publish(ctx, "events", []byte("a guest"), client.ToShard(shard)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// comeAndGo connects, does one of each, and leaves.
func (l *load) comeAndGo(ctx context.Context) error {
	return every(ctx, l.begin, time.Second/dialRate, func(time.Time) error {
		return l.with(ctx, func(c *client.Client) error {
			if _, err := c.Publish(ctx, "events", []byte("in passing")); err != nil {
				return err
			}
			if _, _, err := c.Cache("sessions").Get(ctx, "user-0"); err != nil {
				return err
			}
			l.at(time.Now(), func(s *Second) { s.Dials++ })
			return nil
		})
	})
}
