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
// failed, a settle that came too late. f may be called by several goroutines at once, and
// polls may wait for it.
func OnConsumeError(f func(error)) ConsumeOption { return func(c *consumeConfig) { c.onError = f } }

// Consume polls every shard that the stream has when it is called and runs h on each
// record. What h said of records leaves with the shard's next poll where one is due. It
// goes on until ctx ends; then no more is claimed, the handlers that run are waited for and
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
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
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
			w := &shardWorker{consumer: k, shard: shard, base: context.WithoutCancel(ctx), due: make(chan struct{}, 1)}
			if err := w.work(polling); err != nil {
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
	// claims are those that ended before they were extended, with their timers.
	claims sync.Pool
}

// pollWait is how long a poll of an empty shard waits for records.
const pollWait = 10 * time.Second

// shardWorker polls one shard and settles its records.
//
// What the handlers say of records leaves with the next poll, in one write: a record that
// is worked on by itself costs one round trip. While a poll is under way, or none is about
// to be sent, it leaves by itself. Either way it counts as done only when it is answered.
type shardWorker struct {
	*consumer
	shard int
	own   *slot           // the connection of the polls
	base  context.Context // of requests about records; it does not end

	held places // those of the present poll

	// asks is the request of the polls, and claims are those of the last one: the next uses
	// their memory again.
	asks   *pollRequest
	claims []*claim

	// due says that settles wait, to a worker that waits for a place.
	due chan struct{}

	mu sync.Mutex
	// gathering: a poll is to come, and settles wait for it.
	gathering bool
	settles   []*request
	spare     []*request // the memory of the settles before
	// gatherings counts them: a signal is for the settles that it was given for.
	gatherings int
}

// work polls the shard until ctx ends.
//
// Shards share the places of the handlers, so that none may keep places from the others
// while it has nothing for them. A poll that waits for records holds no place and claims
// one record. Only when that came is the shard asked, without waiting, for as many as
// there are free places, which are held until the answer.
func (w *shardWorker) work(ctx context.Context) error {
	w.own = w.g.c.borrow()
	defer w.g.c.giveBack(w.own)
	defer func() { w.leave(w.gathered()) }()
	b := w.g.c.config.retry.begin()
	p := pollConfig{visibility: w.cfg.visibility, consumer: w.cfg.consumer, reclaim: w.cfg.consumer != ""}
	for more := false; ; {
		held := w.take(ctx, maxTaken)
		if held == nil {
			return nil
		}
		most := held.asked
		p.wait = 0
		if !more {
			held.release() // it was there: a record that comes will find one
			most, p.wait = 1, pollWait
		}
		records, err := w.poll(ctx, most, &p, more)
		more = len(records) > 0
		w.start(ctx, records, held)
		if err == nil {
			b = w.g.c.config.retry.begin()
			continue
		}
		w.leave(w.gathered())
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrForbidden), errors.Is(err, ErrUnauthenticated), errors.Is(err, ErrInvalidRequest), errors.Is(err, ErrClosed):
			return err
		}
		w.tell(err)
		d, again := b.again(err, true)
		if !again {
			b = w.g.c.config.retry.begin()
			d = time.Second
		}
		if pause(ctx, d) != nil {
			return nil
		}
	}
}

// poll settles what has gathered and asks for records. With once, while places are held
// for them, what fails is not tried again here.
func (w *shardWorker) poll(ctx context.Context, most int, p *pollConfig, once bool) ([]Message, error) {
	c := w.g.c
	if w.asks == nil {
		w.asks = w.g.pollRequest(w.shard, most, p, w.own)
	} else {
		w.asks.again(most, p)
	}
	r := &w.asks.request
	rs := append(w.gathered(), r)
	a, err := c.together(ctx, w.own, rs, w.told)
	w.left(rs)
	if !once {
		a, err = c.finish(ctx, r, a, err)
	}
	if err != nil {
		return nil, err
	}
	return polled(r, w.shard, a)
}

// left says that settles are on their way: their list serves those that gather next.
func (w *shardWorker) left(rs []*request) {
	clear(rs)
	w.mu.Lock()
	w.spare = rs[:0]
	w.mu.Unlock()
}

// told hears what the first try of a settle came to, and goes on with it where it must not
// hold up the polls.
func (w *shardWorker) told(r *request, a *answer, err error) {
	if err == nil {
		w.tell(settledBy(r, a, nil))
		return
	}
	w.handlers.Go(func() {
		a, err := w.g.c.finish(w.base, r, a, err)
		w.tell(settledBy(r, a, err))
	})
}

// gather has settles wait for the next poll.
func (w *shardWorker) gather() {
	w.mu.Lock()
	w.gathering = true
	w.mu.Unlock()
}

// gathered are the settles that wait, of which there are no more from now on.
func (w *shardWorker) gathered() []*request {
	w.mu.Lock()
	defer w.mu.Unlock()
	rs := w.settles
	w.gathering, w.settles, w.spare = false, w.spare, nil
	w.gatherings++
	select {
	case <-w.due:
	default:
	}
	return rs
}

// leave sends settles without a poll.
func (w *shardWorker) leave(rs []*request) {
	for _, r := range rs {
		w.handlers.Go(func() { w.tell(w.g.settle(w.base, r)) })
	}
}

// settle says what became of a record and gives its handler's place up, if it has one:
// behind the settle, or when that waits for the next poll, whose answer comes behind it.
func (w *shardWorker) settle(r *request, place bool) {
	w.mu.Lock()
	wait, gathering := w.gathering, w.gatherings
	if wait {
		w.settles = append(w.settles, r)
	}
	w.mu.Unlock()
	if !wait {
		w.tell(w.g.settle(w.base, r))
	}
	if place {
		<-w.room
	}
	if !wait {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gatherings != gathering {
		return // it has left
	}
	select {
	case w.due <- struct{}{}:
	default:
	}
}

// start runs the handlers of records that were claimed, each when it has a place. The
// claims are kept meanwhile; when ctx ends first, they are given back.
func (w *shardWorker) start(ctx context.Context, records []Message, held *places) {
	defer held.release()
	w.claims = w.claims[:0]
	for _, m := range records {
		w.claims = append(w.claims, w.claim(w.base, m))
	}
	defer clear(w.claims)
	w.gather()
	for _, c := range w.claims {
		has := held.one() || w.place(ctx)
		w.handlers.Go(func() {
			if !has {
				m := c.m
				c.end()
				w.settle(w.g.nack(m, 0, true), false)
				return
			}
			w.handle(c)
		})
	}
}

// place waits for a place for a handler, until ctx ends. Settles do not wait for it.
func (w *shardWorker) place(ctx context.Context) bool {
	for {
		select {
		case w.room <- struct{}{}:
			return true
		case <-ctx.Done():
			return false
		case <-w.due:
		}
		select {
		case w.room <- struct{}{}: // the place of who settled
			return true
		default:
		}
		w.leave(w.gathered())
		w.gather()
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
func (w *shardWorker) take(ctx context.Context, most int) *places {
	if ctx.Err() != nil || !w.place(ctx) {
		return nil
	}
	n := 1
	for free := true; free && n < most; {
		select {
		case w.room <- struct{}{}:
			n++
		default:
			free = false
		}
	}
	// One whose time was up just as it was released may give these up too soon. Then
	// what comes waits for places.
	h := &w.held
	h.mu.Lock()
	defer h.mu.Unlock()
	h.room, h.asked, h.n = w.room, n, n
	if h.late == nil {
		h.late = time.AfterFunc(maxHeld, h.release)
	} else {
		h.late.Reset(maxHeld)
	}
	return h
}

// one hands over one of the places, if one is left.
func (h *places) one() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n == 0 {
		return false
	}
	h.n--
	return true
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
	k *consumer
	m Message
	// ctx ends with the claim.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// until is when the claim lapses if it is not extended.
	until time.Time
	// extending begins to extend it; done is closed when that is over.
	extending *time.Timer
	done      chan struct{}
}

// claim keeps the claim on a record that was just received. It was made a little earlier,
// by the way of the answer.
func (k *consumer) claim(base context.Context, m Message) *claim {
	c, _ := k.claims.Get().(*claim)
	if c == nil {
		c = &claim{done: make(chan struct{})}
	}
	c.k, c.m, c.until = k, m, time.Now().Add(k.cfg.visibility)
	c.ctx, c.cancel = context.WithCancelCause(base)
	if c.extending == nil {
		c.extending = time.AfterFunc(k.cfg.visibility/3, c.extend)
	} else {
		c.extending.Reset(k.cfg.visibility / 3)
	}
	return c
}

// extend extends a claim until its context ends, which it does when the claim lapses, by
// what the broker last confirmed.
func (c *claim) extend() {
	defer close(c.done)
	k := c.k
	lapse := time.AfterFunc(time.Until(c.until), func() { c.cancel(ErrStaleClaim) })
	defer lapse.Stop()
	for c.ctx.Err() == nil {
		asked := time.Now()
		d, err := k.g.Extend(c.ctx, c.m, k.cfg.visibility)
		switch {
		case err == nil:
			// Not Reset alone: one that has fired has ended the claim for good.
			if lapse.Stop() {
				lapse.Reset(time.Until(asked.Add(d)))
			}
		case errors.Is(err, ErrStaleClaim):
			c.cancel(ErrStaleClaim)
		case c.ctx.Err() == nil:
			k.tell(err)
		}
		ignore(pause(c.ctx, k.cfg.visibility/3))
	}
}

// end stops extending the claim, whatever becomes of it; c is another's then.
func (c *claim) end() {
	c.cancel(nil)
	if !c.extending.Stop() {
		<-c.done
		return
	}
	c.m, c.ctx, c.cancel = Message{}, nil, nil
	c.k.claims.Put(c)
}

// handle runs the handler on a record and settles the record.
func (w *shardWorker) handle(c *claim) {
	ctx, m, err := c.ctx, c.m, errPanicked
	defer func() {
		c.end()
		r := w.outcome(m, err)
		if err == errPanicked {
			// There may be no next poll for it: the panic goes on behind this.
			w.tell(w.g.settle(w.base, r))
			<-w.room
			return
		}
		w.settle(r, true)
	}()
	err = w.h(ctx, m)
}

// errPanicked is for a handler that did not return.
var errPanicked = errors.New("the handler panicked")

// outcome settles a record by the error of its handler.
func (w *shardWorker) outcome(m Message, err error) *request {
	switch {
	case err == nil:
		return w.g.ack(m)
	case errors.Is(err, ErrGiveUp):
		return w.g.giveUp(m)
	}
	return w.g.nack(m, 0, false)
}
