package client

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felixlog/felix/wire"
)

// Delivery is how often a record may be in the log.
type Delivery uint8

// The deliveries.
const (
	// Idempotent: once, whatever has to be sent again. The default.
	Idempotent Delivery = iota
	// AtLeastOnce: sent again when the outcome is unknown, so that it may be
	// there twice. One batch of a shard is in flight at a time, so that they stay
	// in order.
	AtLeastOnce
	// AtMostOnce: never sent again. The caller hears when the outcome is
	// unknown.
	AtMostOnce
)

type producerConfig struct {
	delivery        Delivery
	linger          time.Duration
	batchBytes      int
	batchRecords    int
	maxBuffered     int64
	failWhenFull    bool
	deliveryTimeout time.Duration
}

// ProducerOption changes a [Producer].
type ProducerOption func(*producerConfig)

// WithDelivery chooses how often a record may be in the log.
func WithDelivery(d Delivery) ProducerOption { return func(c *producerConfig) { c.delivery = d } }

// WithLinger waits before a batch that is not full is sent, so that fewer and
// larger ones are. Default 0: a batch goes as soon as the connection is free,
// and gathers only while it is not.
func WithLinger(d time.Duration) ProducerOption { return func(c *producerConfig) { c.linger = d } }

// WithBatchBytes bounds a batch, in bytes. A larger record has a batch of its
// own. Default 128 KiB.
func WithBatchBytes(n int) ProducerOption { return func(c *producerConfig) { c.batchBytes = n } }

// WithBatchRecords bounds a batch, in records. Default 1024.
func WithBatchRecords(n int) ProducerOption { return func(c *producerConfig) { c.batchRecords = n } }

// WithMaxBuffered bounds the records held until they are answered, in bytes of
// payload and 16 for each. A single larger record passes alone. Default 8 MiB.
func WithMaxBuffered(n int64) ProducerOption { return func(c *producerConfig) { c.maxBuffered = n } }

// WithFailWhenFull makes Send return ErrBufferFull instead of waiting for room.
func WithFailWhenFull() ProducerOption { return func(c *producerConfig) { c.failWhenFull = true } }

// WithDeliveryTimeout bounds how long a record is tried. Default 1 minute.
func WithDeliveryTimeout(d time.Duration) ProducerOption {
	return func(c *producerConfig) { c.deliveryTimeout = d }
}

func (c *producerConfig) validate() error {
	switch {
	case c.delivery > AtMostOnce:
		return fmt.Errorf("producer: unknown delivery %d", c.delivery)
	case c.linger < 0 || c.deliveryTimeout <= 0:
		return fmt.Errorf("producer: linger must not be below zero, the delivery timeout must be above")
	case c.batchBytes < 1 || c.batchRecords < 1 || c.maxBuffered < 1:
		return fmt.Errorf("producer: batch bytes, batch records and max buffered must be above zero")
	}
	return nil
}

// PublishOption says where a record goes. It is a value and costs nothing.
type PublishOption struct {
	key      []byte
	hasKey   bool
	shard    int
	hasShard bool
	delivery Delivery
	delivers bool
}

// WithKey sends the record to the shard of its key; records with one key stay in
// order. An empty key is a key. The key itself is not stored.
func WithKey(key []byte) PublishOption { return PublishOption{key: key, hasKey: true} }

// ToShard sends the record to a shard. Without it and without a key the shard
// is 0.
func ToShard(shard int) PublishOption { return PublishOption{shard: shard, hasShard: true} }

// Deliver chooses, for [Client.Publish], how often the record may be in the log.
// A [Producer] has a delivery of its own.
func Deliver(d Delivery) PublishOption { return PublishOption{delivery: d, delivers: true} }

func merge(opts []PublishOption) (m PublishOption) {
	for _, o := range opts {
		switch {
		case o.hasKey:
			m.key, m.hasKey = o.key, true
		case o.hasShard:
			m.shard, m.hasShard = o.shard, true
		case o.delivers:
			m.delivery = o.delivery
		}
	}
	return m
}

// Producer publishes to one stream. Records gather into batches while earlier
// ones are under way, up to 64 of them for each shard, or one with [AtLeastOnce].
// It is safe for use by several goroutines. Records without a key or a shard go to shard
// 0, however many shards the stream has. Records of one shard are in the log in
// the order of their Sends, but for those that ended with an error; for the
// repetitions of a batch, with AtLeastOnce; and, with [AtMostOnce], for records that
// shared a batch with one that the stream refused for its size, which come later.
//
// When the stream is found to have other shards than it had, which takes a record that
// is refused or somebody who asks the same client, what is not answered ends with
// ErrShardsChanged, and later records are placed anew.
type Producer struct {
	client *core
	key    producerKey
	config producerConfig

	// ctx ends with Close.
	ctx    context.Context
	cancel context.CancelFunc
	// wg counts the goroutines of the lanes.
	wg sync.WaitGroup

	place atomic.Pointer[placement] // replaced under mu

	buffered atomic.Int64
	waiters  atomic.Int32

	mu     sync.Mutex
	freed  chan struct{}
	closed bool
}

// placement is how records come to lanes; it is not changed once it is shared.
type placement struct {
	// width is that of the stream, when it is known: the first record with a key or for
	// a shard above 0 asks for it.
	width width
	known bool
	asked time.Time
	lanes []*lane // by shard; nil where there was no record yet
}

// Producer returns a new producer of a stream. Nothing is sent for it before
// the first record.
func (c *Client) Producer(stream string, opts ...ProducerOption) (*Producer, error) {
	config := producerConfig{batchBytes: 128 << 10, batchRecords: 1024, maxBuffered: 8 << 20, deliveryTimeout: time.Minute}
	for _, o := range opts {
		o(&config)
	}
	if err := config.validate(); err != nil {
		return nil, err
	}
	for _, name := range []string{c.namespace, stream} {
		if err := wire.ValidName(name); err != nil {
			return nil, fmt.Errorf("producer: %w", err)
		}
	}
	p := &Producer{client: c.core, key: producerKey{streamKey{c.namespace, stream}, config.delivery}, config: config, freed: make(chan struct{})}
	p.place.Store(&placement{})
	p.ctx, p.cancel = context.WithCancel(c.ctx)
	if err := c.adopt(p); err != nil {
		p.cancel()
		return nil, err
	}
	return p, nil
}

// Send puts a record under way and returns at once, unless the producer is full.
// The payload is copied. With an error the record was not taken; ctx bounds the
// wait for room, and for the count of shards when there is a key.
//
// Errors: ErrBufferFull, ErrTooLarge, ErrClosed, the context's.
func (p *Producer) Send(ctx context.Context, payload []byte, opts ...PublishOption) (Future, error) {
	f, _, err := p.send(ctx, payload, merge(opts), false)
	return f, err
}

// send is Send; awaited and reads are those of lane.add.
func (p *Producer) send(ctx context.Context, payload []byte, o PublishOption, awaited bool) (f Future, reads *pipe, err error) {
	held := int64(0)
	for {
		l, err := p.laneFor(ctx, o)
		if err == nil && held == 0 {
			if most := int(p.client.config.maxFrame) - 1024 - len(l.key); len(payload) > most {
				return Future{}, nil, &Error{Op: l.op(), Retry: wire.RetryFatal, Err: fmt.Errorf("%w: %d bytes, max=%d", ErrTooLarge, len(payload), most)}
			}
			if err := p.reserve(ctx, heldBytes(payload)); err != nil {
				return Future{}, nil, err
			}
			held = heldBytes(payload)
		}
		if err == nil {
			if f, reads, ok := l.add(payload, awaited); ok {
				return f, reads, nil
			}
			// The lane was closed: with the producer, or because the stream has other
			// shards, and then it has another lane.
			err = p.open()
		}
		if err != nil {
			p.release(held)
			return Future{}, nil, err
		}
	}
}

// open is an error once the producer is closed.
func (p *Producer) open() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return &Error{Op: "publish " + p.key.stream, Retry: wire.RetryNow, Err: ErrClosed}
	}
	return nil
}

// Publish sends a record and waits for its answer.
func (p *Producer) Publish(ctx context.Context, payload []byte, opts ...PublishOption) (Ack, error) {
	f, reads, err := p.send(ctx, payload, merge(opts), true)
	if err != nil {
		return Ack{}, err
	}
	if reads != nil {
		reads.readFor(f.b)
	}
	return f.Wait(ctx)
}

// Flush waits until every record sent before is answered. It does not say how:
// their futures do.
func (p *Producer) Flush(ctx context.Context) error {
	for _, l := range p.all() {
		for _, b := range l.flush() {
			select {
			case <-b.done:
			case <-ctx.Done():
				return &Error{Op: "flush " + p.key.stream, Retry: wire.RetryNow, Err: context.Cause(ctx)}
			}
		}
	}
	return nil
}

// Close flushes and ends the producer. When ctx ends before everything is
// answered, the rest ends with ErrOutcomeUnknown or, where it was never sent,
// with ErrClosed, and the error of Flush is returned.
func (p *Producer) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.Flush(ctx)
	p.stop()
	p.client.disown(p)
	return err
}

// stop answers everything that is left.
func (p *Producer) stop() {
	p.mu.Lock()
	p.closed = true
	close(p.freed)
	p.freed = make(chan struct{})
	p.mu.Unlock()
	p.cancel()
	for _, l := range p.all() {
		for _, b := range l.stop(ErrClosed) {
			b.complete()
		}
	}
	p.wg.Wait()
}

func (p *Producer) all() []*lane {
	var all []*lane
	for _, l := range p.place.Load().lanes {
		if l != nil {
			all = append(all, l)
		}
	}
	return all
}

// reserve takes n bytes of the producer's bound, or waits for them.
func (p *Producer) reserve(ctx context.Context, n int64) error {
	if p.tryReserve(n) {
		return nil
	}
	op := "publish " + p.key.stream
	if p.config.failWhenFull {
		return &Error{Op: op, Retry: wire.RetryAfter, Err: ErrBufferFull}
	}
	p.waiters.Add(1)
	defer p.waiters.Add(-1)
	for {
		p.mu.Lock()
		freed, closed := p.freed, p.closed
		p.mu.Unlock()
		if closed {
			return &Error{Op: op, Retry: wire.RetryNow, Err: ErrClosed}
		}
		if p.tryReserve(n) {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return givenUp(op, ctx, false)
		}
	}
}

func (p *Producer) tryReserve(n int64) bool {
	for {
		held := p.buffered.Load()
		if held > 0 && held+n > p.config.maxBuffered {
			return false
		}
		if p.buffered.CompareAndSwap(held, held+n) {
			return true
		}
	}
}

func (p *Producer) release(n int64) {
	p.buffered.Add(-n)
	if p.waiters.Load() == 0 {
		return
	}
	p.mu.Lock()
	close(p.freed)
	p.freed = make(chan struct{})
	p.mu.Unlock()
}

// validate refuses what no stream can serve.
func (o *PublishOption) validate(op string) error {
	switch {
	case o.hasKey && o.hasShard:
		return &Error{Op: op, Code: wire.CodeInvalidRequest, Retry: wire.RetryFatal, Message: "a key and a shard: use one"}
	case o.shard < 0:
		return noShard(op, o.shard)
	}
	return nil
}

func noShard(op string, shard int) error {
	return &Error{Op: op, Code: wire.CodeInvalidRequest, Retry: wire.RetryFatal, Message: "there is no shard " + strconv.Itoa(shard)}
}

// laneFor finds the lane of a record.
func (p *Producer) laneFor(ctx context.Context, o PublishOption) (*lane, error) {
	if o.hasKey && o.hasShard || o.shard < 0 {
		return nil, o.validate("publish " + p.key.stream)
	}
	for {
		at := p.place.Load()
		if !at.known && (o.hasKey || o.shard != 0) {
			w, err := p.client.learnWidth(ctx, p.key.streamKey)
			if err != nil {
				return nil, wrap("publish "+p.key.stream, err)
			}
			p.setWidth(w)
			continue
		}
		shard := o.shard
		if o.hasKey {
			shard = wire.Shard(at.width.routing, o.key, at.width.shards)
		}
		if shard < len(at.lanes) && at.lanes[shard] != nil {
			return at.lanes[shard], nil
		}
		if at.known && shard >= at.width.shards {
			return nil, noShard("publish "+p.key.stream, shard)
		}
		if err := p.makeLane(shard, at); err != nil {
			return nil, err
		}
	}
}

// widthFresh is how long a width is taken to hold without a doubt.
const widthFresh = time.Second

// makeLane adds the lane of a shard, unless the placement is another by now.
func (p *Producer) makeLane(shard int, at *placement) error {
	if err := p.open(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.place.Load() != at {
		return nil
	}
	l := &lane{p: p, shard: shard}
	if shard > 0 {
		l.key, l.hasKey = keyOf(&at.width, shard), true
		l.doubt = time.Since(at.asked) > widthFresh
	}
	changed := *at
	changed.lanes = make([]*lane, max(shard+1, len(at.lanes)))
	copy(changed.lanes, at.lanes)
	changed.lanes[shard] = l
	p.place.Store(&changed)
	return nil
}

// setWidth takes what the broker says of the stream. When it is not what records were
// placed by, the lanes end, and with them what is not answered; later records are placed
// anew.
func (p *Producer) setWidth(w width) {
	p.mu.Lock()
	at := p.place.Load()
	changed := &placement{width: w, known: true, asked: time.Now()}
	same := !at.known || at.width == w
	if same {
		changed.lanes = at.lanes
	}
	p.place.Store(changed)
	p.mu.Unlock()
	if same {
		return
	}
	for _, l := range at.lanes {
		if l == nil {
			continue
		}
		for _, b := range l.stop(fmt.Errorf("%w: %d, and now %d", ErrShardsChanged, at.width.shards, w.shards)) {
			b.complete()
		}
	}
}

// keyOf finds a key that falls on a shard. A batch is placed by one key, so that
// any key of the shard serves for all its records.
func keyOf(w *width, shard int) []byte {
	var key []byte
	for i := 0; ; i++ {
		key = strconv.AppendInt(key[:0], int64(i), 36)
		if wire.Shard(w.routing, key, w.shards) == shard {
			return key
		}
	}
}
