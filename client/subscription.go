package client

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/felixlog/felix/wire"
)

type subscribeConfig struct {
	start         wire.Start
	at            time.Time
	offsets       map[int]uint64
	shard         int
	all           bool
	flags         wire.Flags
	resumeTimeout time.Duration
}

// SubscribeOption says what a [Subscription] reads.
type SubscribeOption func(*subscribeConfig)

// FromLatest begins with the records published from now on. The default.
func FromLatest() SubscribeOption {
	return func(c *subscribeConfig) { c.start = wire.Start{Kind: wire.StartLatest} }
}

// FromEarliest begins with the oldest retained record.
func FromEarliest() SubscribeOption {
	return func(c *subscribeConfig) { c.start = wire.Start{Kind: wire.StartEarliest} }
}

// FromOffset begins with an offset: the first not yet seen.
func FromOffset(offset uint64) SubscribeOption {
	return func(c *subscribeConfig) { c.start = wire.Start{Kind: wire.StartOffset, Offset: offset} }
}

// FromOffsets begins each shard with an offset of its own; the shards that are
// not named begin as the other options say.
func FromOffsets(offsets map[int]uint64) SubscribeOption {
	return func(c *subscribeConfig) { c.offsets = offsets }
}

// FromTime begins with the first record stored at or after a time, or with the
// next one when there is none that recent.
func FromTime(at time.Time) SubscribeOption { return func(c *subscribeConfig) { c.at = at } }

// Shard reads one shard. The default is shard 0.
func Shard(shard int) SubscribeOption { return func(c *subscribeConfig) { c.shard = shard } }

// AllShards reads every shard. Records of one shard come in order.
func AllShards() SubscribeOption { return func(c *subscribeConfig) { c.all = true } }

// WithPublisher asks for the publisher of each record.
func WithPublisher() SubscribeOption {
	return func(c *subscribeConfig) { c.flags |= wire.FlagEventBatchPublisher }
}

// WithTimestamps asks for the time each record was stored.
func WithTimestamps() SubscribeOption {
	return func(c *subscribeConfig) { c.flags |= wire.FlagEventBatchTimestamps }
}

// WithResumeTimeout ends the subscription when it could not be resumed for so
// long. Default 0: it is tried until Close.
func WithResumeTimeout(d time.Duration) SubscribeOption {
	return func(c *subscribeConfig) { c.resumeTimeout = d }
}

// Subscription is a stream of records. When its connection ends, it is resumed
// after the last record, without a gap and without a duplicate, as long as the
// stream has offsets. Next and All are for one goroutine at a time; Close may be
// called from any.
type Subscription struct {
	client *core
	stream streamKey
	config subscribeConfig

	// items holds what was read and not yet taken, each the first of those frames that
	// came together. When it is full, the connection is not read any further, and the
	// broker waits.
	items  chan *delivery
	done   chan struct{}
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	once   sync.Once

	// cur is what Next is at; at the index of the next record in it.
	cur *delivery
	at  int
	err error
	// records are those of the last NextBatch.
	records []Record
}

// queuedFrames bounds items. A frame, and what is handed on together, is usually up to
// 64 KiB.
const queuedFrames = 16

// delivery is one event frame of a shard, or the error that ends the
// subscription.
type delivery struct {
	shard int
	batch wire.EventBatch
	// from is the first event that is new; lost counts offsets missing before it.
	from int
	lost uint64
	err  error
	// next came together with it, right behind it.
	next *delivery
	// frame is retained while framed. given says that Next gave out some of its records:
	// their payloads are the caller's, and the memory of the frame is never given back.
	frame         wire.Frame
	framed, given bool
}

var deliveries = sync.Pool{New: func() any { return new(delivery) }}

// putBack gives d back, and the memory of its frame if nobody was given a part of it.
func (d *delivery) putBack() {
	clear(d.batch.Payloads)
	d.batch.Publisher = nil
	if d.framed && !d.given {
		d.frame.Release()
	}
	d.frame, d.framed, d.given, d.next = wire.Frame{}, false, false, nil
	deliveries.Put(d)
}

// Subscribe reads a stream. It returns when the broker has accepted, so that
// with FromLatest every record published afterwards is delivered. ctx bounds
// that alone.
//
// A stream in memory delivers what its subscriber takes in time: of one that is too
// slow the queue, as the stream is made (overflow drop_new or drop_old), leaves out
// batches, and the protocol has no word to tell it of them. What must not be missed
// belongs in a durable stream, whose slow subscriber reads on from the disk.
//
// Errors: ErrNotFound, ErrForbidden, *CursorError, ErrUnavailable.
func (c *Client) Subscribe(ctx context.Context, stream string, opts ...SubscribeOption) (*Subscription, error) {
	s := &Subscription{client: c.core, stream: streamKey{c.namespace, stream}, items: make(chan *delivery, queuedFrames), done: make(chan struct{})}
	for _, o := range opts {
		o(&s.config)
	}
	for _, name := range []string{c.namespace, stream} {
		if err := wire.ValidName(name); err != nil {
			return nil, fmt.Errorf("subscribe: %w", err)
		}
	}
	shards := []int{s.config.shard}
	if s.config.all {
		w, err := c.learnWidth(ctx, s.stream)
		if err != nil {
			return nil, wrap("subscribe "+stream, err)
		}
		shards = shards[:0]
		for i := range w.shards {
			shards = append(shards, i)
		}
	}
	s.ctx, s.cancel = context.WithCancel(c.ctx)
	if err := c.adopt(s); err != nil {
		s.cancel()
		return nil, err
	}
	feeds := make([]*feed, len(shards))
	for i, shard := range shards {
		f, err := s.newFeed(ctx, c, shard)
		if err == nil {
			err = f.begin(ctx)
		}
		if err != nil {
			for _, f := range feeds[:i] {
				f.session.close()
			}
			s.cancel()
			c.disown(s)
			return nil, err
		}
		feeds[i] = f
	}
	for _, f := range feeds {
		s.wg.Go(f.run)
	}
	return s, nil
}

// Next returns the next record, waiting for it until ctx ends. Errors: the
// context's, ErrClosed after Close, and what ended the subscription:
// *CursorError when it fell behind what is retained, ErrNotFound, ErrForbidden,
// ErrConnectionLost when a stream without offsets lost its connection.
func (s *Subscription) Next(ctx context.Context) (Record, error) {
	if s.cur == nil || s.at == len(s.cur.batch.Payloads) {
		if err := s.advance(ctx); err != nil {
			return Record{}, err
		}
	}
	d := s.cur
	i := s.at
	s.at++
	r := Record{Shard: d.shard, Payload: d.batch.Payloads[i]}
	d.batch.Payloads[i] = nil
	d.given = true
	if d.batch.HasOffsets {
		r.Offset, r.HasOffset = d.batch.BaseOffset+uint64(i), true
	}
	if d.batch.HasTimestamps {
		r.Timestamp = time.UnixMicro(int64(d.batch.Timestamps[i]))
	}
	if len(d.batch.Publisher) > 0 {
		r.Publisher = string(d.batch.Publisher)
	}
	if i == d.from {
		r.Lost = d.lost
	}
	return r, nil
}

// NextBatch returns records that came together, at least one, in the order in which Next
// gives them, and waits for them as Next does. It is for reading fast: the memory of the
// records is used again, so that the slice and the payloads are good until the next call of
// NextBatch or Next. Copy what is kept longer. Errors: those of Next.
func (s *Subscription) NextBatch(ctx context.Context) ([]Record, error) {
	if s.cur == nil || s.at == len(s.cur.batch.Payloads) {
		if err := s.advance(ctx); err != nil {
			return nil, err
		}
	}
	d := s.cur
	b := &d.batch
	payloads := b.Payloads[s.at:]
	if cap(s.records) < len(payloads) {
		s.records = make([]Record, len(payloads))
	}
	records := s.records[:len(payloads)]
	publisher := string(b.Publisher)
	for i, p := range payloads {
		r := &records[i]
		*r = Record{Shard: d.shard, Payload: p, Publisher: publisher, HasOffset: b.HasOffsets}
		if b.HasOffsets {
			r.Offset = b.BaseOffset + uint64(s.at+i)
		}
		if b.HasTimestamps {
			r.Timestamp = time.UnixMicro(int64(b.Timestamps[s.at+i]))
		}
	}
	if s.at == d.from {
		records[0].Lost = d.lost
	}
	s.at = len(b.Payloads)
	return records, nil
}

// advance goes to the next frame, waiting for it.
func (s *Subscription) advance(ctx context.Context) error {
	for s.cur == nil || s.at == len(s.cur.batch.Payloads) {
		if s.err != nil {
			return s.err
		}
		if d := s.cur; d != nil {
			s.cur = d.next
			d.putBack()
			if s.cur != nil {
				s.at = s.cur.from
				continue
			}
		}
		if err := s.receive(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *Subscription) receive(ctx context.Context) error {
	select {
	case d := <-s.items:
		return s.accept(d)
	default:
	}
	select {
	case d := <-s.items:
		return s.accept(d)
	case <-ctx.Done():
		return &Error{Op: "next of " + s.stream.stream, Retry: wire.RetryNow, Err: context.Cause(ctx)}
	case <-s.done:
		return &Error{Op: "next of " + s.stream.stream, Retry: wire.RetryFatal, Err: ErrClosed}
	}
}

func (s *Subscription) accept(d *delivery) error {
	if d.err != nil {
		s.err = d.err
		return d.err
	}
	s.cur, s.at = d, d.from
	return nil
}

// All returns the records as a sequence. It ends after the first error, which
// is its last pair; ErrClosed after Close ends it without.
func (s *Subscription) All(ctx context.Context) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for {
			r, err := s.Next(ctx)
			if err != nil {
				select {
				case <-s.done:
				default:
					yield(Record{}, err)
				}
				return
			}
			if !yield(r, nil) {
				return
			}
		}
	}
}

// Close ends the subscription and answers a Next that waits.
func (s *Subscription) Close() error {
	s.stop()
	s.client.disown(s)
	return nil
}

func (s *Subscription) stop() {
	s.once.Do(func() { close(s.done) })
	s.cancel()
	s.wg.Wait()
}
