package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/felixlog/felix/wire"
)

// Handler works on a record. nil acks it. An error gives it back, to be handed out again
// after the group's backoff; one that is ErrGiveUp makes it a dead letter. The context
// ends with the consumer's claim on the record, or when the consumer is told to stop
// without delay.
type Handler func(ctx context.Context, m Message) error

// ErrGiveUp, returned by a Handler, makes its record a dead letter.
var ErrGiveUp = errors.New("give up on the record")

// ConsumeOption changes a Consume.
type ConsumeOption func(*consumeConfig)

type consumeConfig struct {
	concurrency int
	visibility  time.Duration
	consumer    string
	wait        time.Duration
	onError     func(error)
}

// WithConcurrency bounds the handlers that run at once, over all shards. Default 16.
func WithConcurrency(n int) ConsumeOption { return func(c *consumeConfig) { c.concurrency = n } }

// WithClaimTime is how long a claim stands without being extended; a handler that runs
// longer has it extended. Default 30 s.
func WithClaimTime(d time.Duration) ConsumeOption { return func(c *consumeConfig) { c.visibility = d } }

// WithConsumerName names the consumer, so that it takes back its claims after its
// connection was lost.
func WithConsumerName(name string) ConsumeOption { return func(c *consumeConfig) { c.consumer = name } }

// OnConsumeError is told of errors that the consumer gets over by itself: a poll that
// failed, a settle that came too late.
func OnConsumeError(f func(error)) ConsumeOption { return func(c *consumeConfig) { c.onError = f } }

// Consume polls every shard of the stream and runs h on each record, until ctx ends; then
// no more is claimed, the handlers that run are waited for and their records settled, and
// nil is returned. Any number of consumers may work on a group. A record whose handler
// panics is given back, and the panic goes on.
//
// Errors: ErrNotFound, ErrForbidden, ErrUnauthenticated; others are got over.
func (g *Group) Consume(ctx context.Context, h Handler, opts ...ConsumeOption) error {
	cfg := consumeConfig{concurrency: 16, visibility: 30 * time.Second, wait: 10 * time.Second}
	for _, o := range opts {
		o(&cfg)
	}
	if cfg.concurrency < 1 || cfg.visibility < time.Second {
		return &Error{Op: g.op("consume"), Retry: wire.RetryFatal, Err: errors.New("concurrency below 1, or a claim time below 1 s")}
	}
	w, err := g.c.widthOf(ctx, streamKey{g.c.namespace, g.stream})
	if err != nil {
		return wrap(g.op("consume"), err)
	}
	k := &consumer{g: g, h: h, cfg: cfg, room: make(chan struct{}, cfg.concurrency)}
	polling, stop := context.WithCancel(ctx)
	defer stop()
	var pollers sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for shard := range w.shards {
		pollers.Go(func() {
			if err := k.shard(polling, shard); err != nil {
				mu.Lock()
				if failed == nil {
					failed = err
				}
				mu.Unlock()
				stop() // one shard that may not be read ends them all
			}
		})
	}
	pollers.Wait()
	k.handlers.Wait()
	return failed
}

type consumer struct {
	g        *Group
	h        Handler
	cfg      consumeConfig
	room     chan struct{} // a place for each handler that may run
	handlers sync.WaitGroup
}

// shard polls one shard until ctx ends.
func (k *consumer) shard(ctx context.Context, shard int) error {
	own := k.g.c.borrow()
	defer k.g.c.giveBack(own)
	b := k.g.c.config.retry.begin()
	p := pollConfig{wait: k.cfg.wait, visibility: k.cfg.visibility, consumer: k.cfg.consumer, reclaim: k.cfg.consumer != ""}
	for ctx.Err() == nil {
		// One place for the first record, and for others as many as are free.
		n, ok := k.take(ctx)
		if !ok {
			return nil
		}
		records, err := k.g.poll(ctx, shard, n, &p, own)
		for range n - len(records) {
			<-k.room
		}
		for _, m := range records {
			k.handlers.Go(func() {
				defer func() { <-k.room }()
				k.handle(context.WithoutCancel(ctx), m)
			})
		}
		if err == nil {
			b = k.g.c.config.retry.begin()
			continue
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrForbidden), errors.Is(err, ErrUnauthenticated), errors.Is(err, ErrInvalidRequest), errors.Is(err, ErrClosed):
			return err
		}
		k.tell(err)
		d, again := b.again(err, true)
		if !again {
			b = k.g.c.config.retry.begin()
			d = time.Second
		}
		if pause(ctx, d) != nil {
			return nil
		}
	}
	return nil
}

// take waits for one place and takes what else is free, up to what a poll may ask for.
func (k *consumer) take(ctx context.Context) (n int, ok bool) {
	select {
	case k.room <- struct{}{}:
	case <-ctx.Done():
		return 0, false
	}
	for n = 1; n < 100; n++ {
		select {
		case k.room <- struct{}{}:
		default:
			return n, true
		}
	}
	return n, true
}

func (k *consumer) tell(err error) {
	if k.cfg.onError != nil && err != nil {
		k.cfg.onError(err)
	}
}

// handle runs the handler on a record, extends its claim meanwhile and settles it.
func (k *consumer) handle(ctx context.Context, m Message) {
	claimed, lost := context.WithCancel(ctx)
	defer lost()
	extended := make(chan struct{})
	go func() {
		defer close(extended)
		k.extend(claimed, lost, m)
	}()
	settled := false
	defer func() {
		lost()
		<-extended
		if !settled {
			k.tell(k.g.Nack(ctx, m)) // the handler panicked
		}
	}()
	err := k.h(claimed, m)
	settled = true
	lost()
	<-extended
	switch {
	case err == nil:
		k.tell(k.g.Ack(ctx, m))
	case errors.Is(err, ErrGiveUp):
		k.tell(k.g.GiveUp(ctx, m))
	default:
		k.tell(k.g.Nack(ctx, m))
	}
}

// extend keeps a claim until ctx ends, and calls lost when it is gone.
func (k *consumer) extend(ctx context.Context, lost context.CancelFunc, m Message) {
	for pause(ctx, k.cfg.visibility/3) == nil {
		_, err := k.g.Extend(ctx, m, k.cfg.visibility)
		if errors.Is(err, ErrStaleClaim) {
			lost()
			return
		}
		if ctx.Err() == nil {
			k.tell(err)
		}
	}
}
