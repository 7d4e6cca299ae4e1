package partition

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// WatchOptions say what a watcher wants to see.
type WatchOptions struct {
	// Key or, with Prefix, what the keys begin with; an empty prefix is all keys.
	Key    []byte
	Prefix bool
	// From, with HasFrom, is the first offset not yet seen. If compaction has removed
	// records at or above it the watch begins with the present values instead
	// (Resnapshot).
	From    storage.Offset
	HasFrom bool
	// Retained begins with the present values.
	Retained bool
}

// WatchLaggedError ends a watch that compaction overtook.
type WatchLaggedError struct{ ResumeFrom storage.Offset }

func (e *WatchLaggedError) Error() string {
	return "partition: watch was overtaken by compaction; resume from " + e.ResumeFrom.String()
}

// holdFor is how long a watcher may take over its present values while compaction
// waits for it.
const holdFor = 5 * time.Minute

// Watch follows the changes of keys. Next belongs to one goroutine.
type Watch struct {
	c    *Cache
	o    WatchOptions
	id   uint64
	live storage.Offset

	// present are the records of the present values still to be handed out, ascending
	// by version.
	present  []presentValue
	retained int
	snapshot bool // present was not asked for: From was compacted away
	position storage.Offset
	release  func()
	late     *time.Timer
	lagged   atomic.Bool
	page     storage.Page
	wakeup   chan struct{}
	closed   atomic.Bool
}

// presentValue is where a value stands, and since when.
type presentValue struct{ at, version storage.Offset }

// WatchEvent is one change. Its bytes hold until the next call of Next.
type WatchEvent struct {
	Key     []byte
	Value   []byte // of a put
	Deleted bool
	Offset  storage.Offset // the version of a put; the place of a delete
	Expires cache.Millis
}

// Watch registers a watcher. Errors: *InFutureError when From is past the tail,
// cache.ErrKey, ErrClosed, ErrDeleted.
func (c *Cache) Watch(o WatchOptions) (*Watch, error) {
	if err := c.serving(); err != nil {
		return nil, err
	}
	if !o.Prefix {
		if err := cache.CheckKey(o.Key); err != nil {
			return nil, err
		}
	}
	w := &Watch{c: c, o: o, wakeup: make(chan struct{}, 1)}
	// First registered, then the position: what comes from here on wakes it.
	if err := c.watches.add(w); err != nil {
		return nil, err
	}
	release := c.log.Hold(c.log.Head())
	tail := c.Tail()
	w.live, w.position = tail, tail
	if o.HasFrom {
		if o.From > tail {
			release()
			c.watches.remove(w)
			return nil, &InFutureError{Requested: o.From, Available: tail}
		}
		w.position = o.From
		w.snapshot = o.From < c.log.Head()
	}
	if o.Retained || w.snapshot {
		w.position = tail
		w.gather(tail)
	}
	if len(w.present) > 0 {
		w.release = sync.OnceFunc(release)
		w.late = time.AfterFunc(holdFor, func() { w.lagged.Store(true); w.release() })
	} else {
		release()
	}
	if c.o.NextID != nil {
		w.id = c.o.NextID()
	}
	return w, nil
}

// gather lists the records of the values that are live below tail.
func (w *Watch) gather(tail storage.Offset) {
	now := w.c.now()
	add := func(ref projection.Ref) {
		// By version: a copy that compaction made meanwhile stands past the tail, and
		// will not come as a change.
		if ref.Version < tail && (ref.Expires == 0 || ref.Expires > now) {
			w.present = append(w.present, presentValue{ref.Offset, ref.Version})
		}
	}
	if !w.o.Prefix {
		if ref, ok := w.c.state.Proj.Get(w.o.Key); ok {
			add(ref)
		}
	} else {
		// What changes during the walk has a version past tail, and comes as a change.
		w.c.state.Proj.Walk(func(key []byte, ref projection.Ref) bool {
			if bytes.HasPrefix(key, w.o.Key) {
				add(ref)
			}
			return true
		})
	}
	slices.SortFunc(w.present, func(a, b presentValue) int { return cmp.Compare(a.version, b.version) })
	w.retained = len(w.present)
}

// ID is unique in the broker.
func (w *Watch) ID() uint64 { return w.id }

// ResumeOffset is where live delivery begins.
func (w *Watch) ResumeOffset() storage.Offset { return w.live }

// Retained is how many present values come first.
func (w *Watch) Retained() int { return w.retained }

// Position is the first offset that Next has not passed over yet. It belongs to who calls
// Next.
func (w *Watch) Position() storage.Offset { return w.position }

// Resnapshot says that the present values come first because From is gone.
func (w *Watch) Resnapshot() bool { return w.snapshot }

// watchPage bounds what one read of a watch takes.
const watchPage = 128 << 10

// Next waits for changes and calls f for each of those at hand, in order. Errors:
// *WatchLaggedError, ErrUnsubscribed, ErrClosed, ErrDeleted, a damaged record's, ctx's,
// and what f returns.
func (w *Watch) Next(ctx context.Context, f func(*WatchEvent) error) error {
	for {
		if w.closed.Load() {
			return ErrUnsubscribed
		}
		if w.lagged.Load() {
			return &WatchLaggedError{ResumeFrom: 0}
		}
		if len(w.present) > 0 {
			return w.nextPresent(ctx, f)
		}
		n, err := w.nextChanges(ctx, f)
		if n > 0 || err != nil {
			return err
		}
		if err := w.wait(ctx); err != nil {
			return err
		}
	}
}

// nextPresent hands out some of the present values. One that was overwritten meanwhile
// is handed out all the same: its record is held, and the change follows. It does not
// wait, and so does not end with ctx: a watch that has handed out half of them could not
// be resumed anywhere.
func (w *Watch) nextPresent(ctx context.Context, f func(*WatchEvent) error) error {
	ctx = context.WithoutCancel(ctx)
	for n := 0; n < 64 && len(w.present) > 0; n++ {
		at := w.present[0].at
		err := w.c.log.Read(ctx, &w.page, storage.ReadRange{From: at, End: at + 1, MaxRecords: 1, MaxBytes: 1})
		if err != nil {
			return w.c.closedAs(w.overtaken(err, 0))
		}
		w.present = w.present[1:]
		for i := range w.page.Records {
			if _, err := w.event(&w.page.Records[i], true, f); err != nil {
				return err
			}
		}
	}
	if len(w.present) == 0 {
		w.present = nil
		w.let()
	}
	return nil
}

// let gives up the hold on the present values' records.
func (w *Watch) let() {
	if w.late != nil {
		w.late.Stop()
		w.release()
	}
}

// nextChanges hands out what has happened from the position on, one page at the most.
func (w *Watch) nextChanges(ctx context.Context, f func(*WatchEvent) error) (n int, err error) {
	for tail := w.c.Tail(); w.position < tail && n == 0; {
		err := w.c.log.Read(ctx, &w.page, storage.ReadRange{From: w.position, End: tail, MaxBytes: watchPage})
		if err != nil {
			return n, w.c.closedAs(w.overtaken(err, w.position))
		}
		for i := range w.page.Records {
			sent, err := w.event(&w.page.Records[i], false, f)
			if err != nil {
				return n, err
			}
			if sent {
				n++
			}
		}
		w.position = w.page.Next
	}
	return n, nil
}

func (w *Watch) overtaken(err error, resume storage.Offset) error {
	if _, trimmed := errors.AsType[*storage.TrimmedError](err); trimmed {
		return &WatchLaggedError{ResumeFrom: resume}
	}
	return err
}

// event hands a record out if the watch is about its key. A compaction copy changes
// nothing and is passed over, unless it is the present value.
func (w *Watch) event(rec *segment.Record, present bool, f func(*WatchEvent) error) (bool, error) {
	if rec.Kind == segment.KindGenerationStart {
		return false, nil
	}
	e, err := cache.DecodeEntry(rec.Payload)
	if err != nil {
		return false, &projection.UnreadableError{Offset: rec.Offset, Err: err}
	}
	match := bytes.Equal(e.Key, w.o.Key)
	if w.o.Prefix {
		match = bytes.HasPrefix(e.Key, w.o.Key)
	}
	if !match || e.Copied && !present {
		return false, nil
	}
	ev := WatchEvent{Key: e.Key, Value: e.Value, Deleted: e.Delete, Offset: rec.Offset, Expires: e.Expires}
	if e.Copied {
		ev.Offset = e.Origin
	}
	w.c.counters.WatchEvents.Add(1)
	return true, f(&ev)
}

func (w *Watch) wait(ctx context.Context) error {
	if err := w.c.watches.end(); err != nil {
		return err
	}
	if w.position < w.c.Tail() {
		return nil
	}
	select {
	case <-w.wakeup:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends the watch: Next returns ErrUnsubscribed. It may be called again, from any
// goroutine.
func (w *Watch) Close() {
	if w.closed.Swap(true) {
		return
	}
	w.c.watches.remove(w)
	w.let()
	w.signal()
}

func (w *Watch) signal() {
	select {
	case w.wakeup <- struct{}{}:
	default: // it will look anyway
	}
}

// watchers are the watches of a shard. Each is woken by every change: its key cannot be
// told without reading the record, which is in the page cache.
type watchers struct {
	mu    sync.Mutex
	all   map[*Watch]struct{}
	count atomic.Int32
	why   atomic.Pointer[error]
}

func (l *watchers) end() error {
	if err := l.why.Load(); err != nil {
		return *err
	}
	return nil
}

func (l *watchers) add(w *Watch) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.end(); err != nil {
		return err
	}
	if l.all == nil {
		l.all = map[*Watch]struct{}{}
	}
	l.all[w] = struct{}{}
	l.count.Store(int32(len(l.all)))
	return nil
}

func (l *watchers) remove(w *Watch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, w)
	l.count.Store(int32(len(l.all)))
}

func (l *watchers) wake() {
	if l.count.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.all {
		w.signal()
	}
}

func (l *watchers) stop(why error) {
	l.mu.Lock()
	l.why.CompareAndSwap(nil, &why)
	l.mu.Unlock()
	l.wake()
}

// Watchers is how many watches there are.
func (c *Cache) Watchers() int { return int(c.watches.count.Load()) }

// Keys lists keys that begin with prefix and follow after, ascending, at most limit;
// more says that there are others. The shard takes writes meanwhile: the list holds each
// key that is there all the while.
func (c *Cache) Keys(prefix, after []byte, limit int) (keys []string, more bool, err error) {
	if err := c.serving(); err != nil {
		return nil, false, err
	}
	now := c.now()
	// The limit smallest keys met so far, and some more: they are cut back when they are
	// twice as many. last is the greatest that can still be among them.
	var last []byte
	cut := func() {
		slices.Sort(keys)
		if keys = slices.Compact(keys); len(keys) > limit {
			keys, more = keys[:limit], true
			last = []byte(keys[limit-1])
		}
	}
	c.state.Proj.Walk(func(key []byte, ref projection.Ref) bool {
		switch {
		case !bytes.HasPrefix(key, prefix), bytes.Compare(key, after) <= 0, ref.Expires != 0 && ref.Expires <= now:
		case last != nil && bytes.Compare(key, last) > 0:
			more = true
		default:
			if keys = append(keys, string(key)); len(keys) >= 2*limit+64 {
				cut()
			}
		}
		return true
	})
	cut()
	return keys, more, nil
}
