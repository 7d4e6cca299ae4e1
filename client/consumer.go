package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/felixlog/felix/wire"
)

// Handler works on a record. nil acks it. An error gives it back, to be handed out again
// after the group's backoff; one that is ErrGiveUp makes it a dead letter. The context has
// the values of Consume's and does not end with it: it ends when the consumer's claim on
// the record does, be it refused an extension or not extended in time. The record may be
// another consumer's then.
type Handler func(ctx context.Context, m Message) error

// ErrGiveUp, returned by a Handler, makes its record a dead letter.
var ErrGiveUp = errors.New("give up on the record")

// ConsumeOption changes a Consume.
type ConsumeOption func(*consumeConfig)

type consumeConfig struct {
	concurrency int
	visibility  time.Duration
	consumer    string
	onError     func(error)
}

// WithConcurrency bounds the handlers that run at once, over all shards. Default 16. One
// record more may be claimed for each shard, and waits for a handler to end.
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

// Consume polls every shard that the stream has when it is called and runs h on each
// record, until ctx ends; then no more is claimed, the handlers that run are waited for and
// their records settled, and nil is returned. Any number of consumers may work on a group.
// A record whose handler panics is given back, and the panic goes on.
//
// Errors: ErrNotFound, ErrForbidden, ErrUnauthenticated; others are got over.
func (g *Group) Consume(ctx context.Context, h Handler, opts ...ConsumeOption) error {
	cfg := consumeConfig{concurrency: 16, visibility: 30 * time.Second}
	for _, o := range opts {
		o(&cfg)
	}
	if cfg.concurrency < 1 || cfg.visibility < time.Second {
		return &Error{Op: g.op("consume"), Retry: wire.RetryFatal, Err: errors.New("concurrency below 1, or a claim time below 1 s")}
	}
	w, err := g.c.learnWidth(ctx, streamKey{g.c.namespace, g.stream})
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

// pollWait is how long a poll of an empty shard waits for records.
const pollWait = 10 * time.Second

// shard polls one shard until ctx ends.
//
// Shards share the places of the handlers, so that none may keep places from the others
// while it has nothing for them. A poll that waits for records holds no place and claims
// one record. Only when that came is the shard asked, without waiting, for as many as
// there are free places, which are held until the answer.
func (k *consumer) shard(ctx context.Context, shard int) error {
	own := k.g.c.borrow()
	defer k.g.c.giveBack(own)
	b := k.g.c.config.retry.begin()
	p := pollConfig{visibility: k.cfg.visibility, consumer: k.cfg.consumer, reclaim: k.cfg.consumer != ""}
	for more := false; ; {
		held := k.take(ctx, maxTaken)
		if held == nil {
			return nil
		}
		most := held.asked
		p.wait = 0
		if !more {
			held.release() // it was there: a record that comes will find one
			most, p.wait = 1, pollWait
		}
		records, err := k.poll(ctx, shard, most, &p, own, more)
		more = len(records) > 0
		k.start(ctx, records, held)
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
}

// poll asks for records. With once, while places are held for them, what fails is not
// tried again here.
func (k *consumer) poll(ctx context.Context, shard, most int, p *pollConfig, own *slot, once bool) ([]Message, error) {
	r := k.g.pollRequest(shard, most, p, own)
	ask := k.g.c.do
	if once {
		ask = k.g.c.try
	}
	a, err := ask(ctx, r)
	if err != nil {
		return nil, err
	}
	return polled(r.op, shard, a)
}

// start runs the handlers of records that were claimed, each when it has a place. The
// claims are kept meanwhile; when ctx ends first, they are given back.
func (k *consumer) start(ctx context.Context, records []Message, held *places) {
	defer held.release()
	claims := make([]*claim, len(records))
	for i, m := range records {
		claims[i] = k.claim(context.WithoutCancel(ctx), m)
	}
	for _, c := range claims {
		has := held.one(ctx)
		k.handlers.Go(func() {
			if !has {
				c.end()
				k.tell(k.g.NackAfter(c.base, c.m, 0))
				return
			}
			defer func() { <-k.room }()
			k.handle(c)
		})
	}
}

// places are places for handlers that a poll holds.
type places struct {
	room  chan struct{}
	asked int // how many there were

	mu sync.Mutex
	n  int // how many are left
	// late gives them up when the answer is long in coming.
	late *time.Timer
}

// maxTaken bounds the places that one poll holds, and with them the records it asks for.
const maxTaken = 100

// maxHeld is how long places are held for an answer. A broker that does not answer shall
// not keep the other shards, which others may lead, from being worked on.
const maxHeld = time.Second

// take waits for one place and takes what else is free, up to most; nil when ctx ends.
func (k *consumer) take(ctx context.Context, most int) *places {
	select {
	case k.room <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	h := &places{room: k.room, n: 1}
	for free := true; free && h.n < most; {
		select {
		case k.room <- struct{}{}:
			h.n++
		default:
			free = false
		}
	}
	h.asked = h.n
	h.mu.Lock()
	defer h.mu.Unlock()
	h.late = time.AfterFunc(maxHeld, h.release)
	return h
}

// one hands over one of the places, or one that becomes free before ctx ends.
func (h *places) one(ctx context.Context) bool {
	h.mu.Lock()
	if h.n > 0 {
		h.n--
		h.mu.Unlock()
		return true
	}
	h.mu.Unlock()
	select {
	case h.room <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// release gives up what was not handed over.
func (h *places) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.late.Stop()
	for ; h.n > 0; h.n-- {
		<-h.room
	}
}

func (k *consumer) tell(err error) {
	if k.cfg.onError != nil && err != nil {
		k.cfg.onError(err)
	}
}

// claim is a record that was handed out to this consumer, kept until end is called.
type claim struct {
	m Message
	// base is for requests about the record; ctx ends with the claim.
	base, ctx context.Context
	cancel    context.CancelCauseFunc
	// lapse ends ctx when the claim lapses, by what the broker last confirmed.
	lapse *time.Timer
	done  chan struct{} // closed when it is extended no more
}

// claim keeps the claim on a record that was just received. It was made a little earlier,
// by the way of the answer.
func (k *consumer) claim(base context.Context, m Message) *claim {
	c := &claim{m: m, base: base, done: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancelCause(base)
	c.lapse = time.AfterFunc(k.cfg.visibility, func() { c.cancel(ErrStaleClaim) })
	go func() {
		defer close(c.done)
		k.extend(c)
	}()
	return c
}

// extend extends a claim until its context ends.
func (k *consumer) extend(c *claim) {
	for pause(c.ctx, k.cfg.visibility/3) == nil {
		asked := time.Now()
		d, err := k.g.Extend(c.ctx, c.m, k.cfg.visibility)
		switch {
		case err == nil:
			// Not Reset alone: one that has fired has ended the claim for good.
			if c.lapse.Stop() {
				c.lapse.Reset(time.Until(asked.Add(d)))
			}
		case errors.Is(err, ErrStaleClaim):
			c.cancel(ErrStaleClaim)
		case c.ctx.Err() == nil:
			k.tell(err)
		}
	}
}

// end stops extending the claim, whatever becomes of it.
func (c *claim) end() {
	c.lapse.Stop()
	c.cancel(nil)
	<-c.done
}

// handle runs the handler on a record and settles it.
func (k *consumer) handle(c *claim) {
	settled := false
	defer func() {
		if !settled { // the handler panicked
			c.end()
			k.tell(k.g.Nack(c.base, c.m))
		}
	}()
	err := k.h(c.ctx, c.m)
	settled = true
	c.end()
	switch {
	case err == nil:
		k.tell(k.g.Ack(c.base, c.m))
	case errors.Is(err, ErrGiveUp):
		k.tell(k.g.GiveUp(c.base, c.m))
	default:
		k.tell(k.g.Nack(c.base, c.m))
	}
}
