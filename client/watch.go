package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/felixlog/felix/wire"
)

// Change is one change of a watched key.
type Change struct {
	Shard   int
	Key     string
	Value   []byte
	Deleted bool
	// Offset is the version of a value, or the place of a delete. Offsets of one shard
	// ascend, but that the values of a resnapshot may have been seen before.
	Offset  uint64
	Expires time.Time // zero: never
}

// WatchOption says what a watch begins with.
type WatchOption func(*watchConfig)

type watchConfig struct {
	retained bool
	from     map[int]uint64
}

// WithRetained begins with the values that are there.
func WithRetained() WatchOption { return func(c *watchConfig) { c.retained = true } }

// WatchFrom begins each shard with the changes from an offset on: the first not yet
// seen. Where compaction has removed changes, the present values come instead.
func WatchFrom(offsets map[int]uint64) WatchOption {
	return func(c *watchConfig) { c.from = offsets }
}

// Watch follows the changes of a cache. When its connection ends, or when it falls
// behind, it goes on where it was, the values it begins with included; a change may then
// come as the value it led to. Next is for one goroutine at a time; Close may be called
// from any.
type Watch struct {
	k      *Cache
	key    string
	prefix bool
	cfg    watchConfig

	items  chan watchItem
	done   chan struct{}
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	once   sync.Once
	err    error
}

// queuedChanges bounds what was read and not yet taken; beyond it the connection is not
// read any further.
const queuedChanges = 64

type watchItem struct {
	change Change
	err    error
}

// Watch follows one key. It returns when the broker has accepted. Errors: ErrNotFound,
// ErrForbidden, *CursorError, ErrUnavailable.
func (k *Cache) Watch(ctx context.Context, key string, opts ...WatchOption) (*Watch, error) {
	return k.watch(ctx, key, false, opts)
}

// WatchPrefix follows the keys that begin with prefix, in every shard; an empty one is
// all keys.
func (k *Cache) WatchPrefix(ctx context.Context, prefix string, opts ...WatchOption) (*Watch, error) {
	return k.watch(ctx, prefix, true, opts)
}

func (k *Cache) watch(ctx context.Context, key string, prefix bool, opts []WatchOption) (*Watch, error) {
	w := &Watch{k: k, key: key, prefix: prefix, items: make(chan watchItem, queuedChanges), done: make(chan struct{})}
	for _, o := range opts {
		o(&w.cfg)
	}
	shards, err := k.Shards(ctx)
	if err != nil {
		return nil, err
	}
	first, count := 0, shards
	if !prefix {
		first, count = wire.Shard(wire.RoutingModulo, []byte(key), shards), 1
	}
	w.ctx, w.cancel = context.WithCancel(k.c.ctx)
	if err := k.c.adopt(w); err != nil {
		w.cancel()
		return nil, err
	}
	var feeds []*watchFeed
	for shard := first; shard < first+count; shard++ {
		f := &watchFeed{w: w, shard: shard, retained: w.cfg.retained, back: resumption{core: k.c.core, op: "watch " + k.name}}
		f.next, f.hasNext = w.cfg.from[shard]
		if err = f.begin(ctx); err != nil {
			break
		}
		feeds = append(feeds, f)
	}
	if err != nil {
		for _, f := range feeds {
			f.session.close()
		}
		w.cancel()
		k.c.disown(w)
		return nil, err
	}
	for _, f := range feeds {
		w.wg.Go(f.run)
	}
	return w, nil
}

// Next returns the next change, waiting for it until ctx ends. Errors: the context's,
// ErrClosed after Close, and what ended the watch: ErrNotFound, ErrForbidden, ErrTooLarge.
func (w *Watch) Next(ctx context.Context) (Change, error) {
	if w.err != nil {
		return Change{}, w.err
	}
	select {
	case i := <-w.items:
		w.err = i.err
		return i.change, i.err
	case <-ctx.Done():
		return Change{}, &Error{Op: "watch " + w.k.name, Retry: wire.RetryNow, Err: context.Cause(ctx)}
	case <-w.done:
		return Change{}, &Error{Op: "watch " + w.k.name, Retry: wire.RetryFatal, Err: ErrClosed}
	}
}

// Close ends the watch and answers a Next that waits.
func (w *Watch) Close() error {
	w.stop()
	w.k.c.disown(w)
	return nil
}

func (w *Watch) stop() {
	w.once.Do(func() { close(w.done) })
	w.cancel()
	w.wg.Wait()
}

// watchFeed reads one shard of a watch on a connection of its own, and makes another when
// that ends.
//
// next follows the events, values of a snapshot included: those come in the order of their
// offsets, so that a snapshot cut short goes on with the changes behind its last value.
// Only what is complete moves next to where the live changes begin, at resume: a watch
// that begins live, and the last of left values.
type watchFeed struct {
	w        *Watch
	shard    int
	retained bool
	next     uint64 // first offset not yet seen
	hasNext  bool
	left     uint64 // values of the snapshot still to come, where the broker counted them
	resume   uint64
	session  *session
	back     resumption
}

// begin asks for the watch.
func (f *watchFeed) begin(ctx context.Context) error {
	w := f.w
	op := "watch " + w.k.name
	s, err := w.k.c.connect(ctx, 0)
	if err != nil {
		return wrap(op, err)
	}
	m := &wire.CacheWatch{
		Tenant: w.k.c.config.tenant, Namespace: w.k.c.namespace, Cache: w.k.name,
		Key: w.key, HasKey: !w.prefix, Prefix: w.key, HasPrefix: w.prefix, Shard: wireCount(f.shard), HasShard: w.prefix,
		FromOffset: f.next, HasFromOffset: f.hasNext, Retained: f.retained && !f.hasNext,
	}
	stop := context.AfterFunc(ctx, s.close)
	_, err = s.conn.Write(wire.AppendMessage(nil, m))
	var got wire.Message
	if err == nil {
		got, err = s.message()
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		s.close()
		return lost(op, err, false)
	}
	switch m := got.(type) {
	case *wire.CacheWatchStarted:
		f.session = s
		f.left, f.resume = m.RetainedCount, m.ResumeOffset
		if !f.hasNext && (!f.retained || m.HasRetainedCount && m.RetainedCount == 0) {
			f.next, f.hasNext = m.ResumeOffset, true
		}
		return nil
	case *wire.NotLeader:
		err = &Error{Op: op, Code: wire.CodeNotLeader, Retry: wire.RetryRedirect, Message: "led by " + m.NodeID}
	case *wire.Error:
		err = failed(op, &m.Failure)
	case *wire.SubscribeCursorError:
		err = cursorError(op, f.shard, m)
	case *wire.Unsupported:
		err = &Error{Op: op, Retry: wire.RetryFatal, Err: ErrUnsupported}
	default:
		err = &Error{Op: op, Retry: wire.RetryFatal, Message: "was answered with " + got.Type()}
	}
	s.close()
	return err
}

// run reads until the watch ends.
func (f *watchFeed) run() {
	w := f.w
	for {
		err := f.read()
		f.session.close()
		if e := w.k.c.config.events.OnDisconnect; e != nil {
			e(f.session.addr, err)
		}
		if err = f.back.run(w.ctx, err, f.begin); err == nil {
			continue
		}
		if w.ctx.Err() == nil {
			f.deliver(watchItem{err: err})
		}
		return
	}
}

// read hands out events until the connection ends, and returns why.
func (f *watchFeed) read() error {
	stop := context.AfterFunc(f.w.ctx, f.session.close)
	defer stop()
	for {
		m, err := f.session.message()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = ErrConnectionLost
			}
			return err
		}
		switch m := m.(type) {
		case *wire.EventStreamHello:
		case *wire.CacheEvent:
			c := Change{Shard: f.shard, Key: m.Key, Value: m.Value, Deleted: !m.HasValue, Offset: m.Offset}
			if m.ExpiresAtMillis != 0 {
				c.Expires = time.UnixMilli(int64(m.ExpiresAtMillis))
			}
			if !f.deliver(watchItem{change: c}) {
				return ErrClosed
			}
			f.seen(m.Offset)
		case *wire.CacheWatchLagged, *wire.ShardMoved:
			// The broker shows the present values to one that asks for what is gone.
			return errMoved
		case *wire.Error:
			return failed("watch "+f.w.k.name, &m.Failure)
		default:
			return fmt.Errorf("unexpected message %s", m.Type())
		}
	}
}

// seen moves next past an event that was handed out.
func (f *watchFeed) seen(offset uint64) {
	f.back.progress()
	f.next, f.hasNext = max(f.next, offset+1), true
	if f.left > 0 {
		if f.left--; f.left == 0 {
			f.next = max(f.next, f.resume)
		}
	}
}

func (f *watchFeed) deliver(i watchItem) bool {
	select {
	case f.w.items <- i:
		return true
	case <-f.w.ctx.Done():
		return false
	}
}
