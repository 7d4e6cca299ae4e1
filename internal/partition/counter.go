package partition

import (
	"context"
	"errors"

	"github.com/felixlog/felix/internal/counter"
	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// Counter is the counters of one cache shard: a log of their own, read as sums.
type Counter struct {
	keyed
	state    *counter.State
	budget   *Budget
	counters *CacheCounters
}

// CounterAdd is one addition on its way. The caller sets the first group, and leaves it
// untouched until Done has run or Submit has returned an error.
type CounterAdd struct {
	Key   []byte
	Delta int64
	Tag   *counter.Tag
	Done  func(*CounterAdd)
	User  any

	// Sum is the sum with the addition; with Err counter.ErrRepeated, or
	// counter.ErrOverflow, the sum that stands.
	Sum int64
	Err error

	add     counter.Add
	shard   *Counter
	batch   storage.Batch
	payload [1][]byte
	buf     []byte
	cost    int64
}

// OpenCounter opens the counters whose log is in dir, or makes an empty one. Of the
// options it needs Storage, Name, Budget, Counters, CompactPace, CompactAbove,
// OnError and OnCompacted.
func OpenCounter(ctx context.Context, dir string, o CacheOptions) (*Counter, error) {
	orDefault(&o.CompactPace, DefaultCompactPace)
	if o.Counters == nil {
		o.Counters = new(CacheCounters)
	}
	c := &Counter{budget: o.Budget, counters: o.Counters}
	c.name = o.Name
	c.into = (*counterLog)(c)
	if o.OnError != nil {
		c.onError = func(what string, err error) { o.OnError(o.Name, what, err) }
	}
	if o.OnCompacted != nil {
		c.onCompacted = func(e CompactEvent) { o.OnCompacted(o.Name, e) }
	}
	pace := projection.NewPace(o.CompactPace)
	err := c.open(ctx, dir, o.Storage, func(log *storage.Log) (projection.Reading, error) {
		c.state = counter.NewState(log.Head())
		return c.state, nil
	}, projection.CompactOptions{Pace: pace, MinBytes: o.CompactAbove})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// counterLog is the Counter as its log sees it.
type counterLog Counter

// Admit implements keyedState.
func (c *counterLog) Admit(b *storage.Batch, next storage.Offset) error {
	switch u := b.User.(type) {
	case *CounterAdd:
		return c.state.Admit(&u.add, next)
	case *projection.Copy:
		return c.state.AdmitCopy(b, u)
	}
	return nil
}

// Apply implements keyedState.
func (c *counterLog) Apply(rec *segment.Record) error { return c.state.Apply(rec) }

// Revert implements keyedState.
func (c *counterLog) Revert(next storage.Offset) { c.state.Revert(next) }

// Get returns the sum of a key; ok is false if it was never added to.
func (c *Counter) Get(key []byte) (sum int64, ok bool, err error) {
	if err := c.serving(); err != nil {
		return 0, false, err
	}
	sum, ok = c.state.Get(key)
	return sum, ok, nil
}

// Submit takes an addition in, without I/O; Drive writes it. An error means that nothing
// of it was or will be done, and that Done does not run.
func (c *Counter) Submit(a *CounterAdd) error {
	if err := c.serving(); err != nil {
		return err
	}
	a.add = counter.Add{Key: a.Key, Delta: a.Delta, Tag: a.Tag}
	a.shard, a.Sum, a.Err = c, 0, nil
	size := counter.AddSize(len(a.Key), a.Tag != nil)
	a.cost = int64(size) + recordCost
	if err := c.budget.Admit(a.cost, int64(size), 1); err != nil {
		return err
	}
	a.buf = counter.AppendAdd(a.buf[:0], a.Key, a.Delta, a.Tag)
	a.payload[0] = a.buf
	a.batch = storage.Batch{Payloads: a.payload[:], User: a, Done: counterAddDone}
	if err := c.log.Enqueue(&a.batch); err != nil {
		c.budget.Release(a.cost)
		return c.closedAs(err)
	}
	return nil
}

func counterAddDone(b *storage.Batch) {
	a := b.User.(*CounterAdd)
	c := a.shard
	c.budget.Release(a.cost)
	a.Sum = a.add.Sum
	if b.Err != nil {
		a.Err = c.closedAs(b.Err)
	}
	switch {
	case b.Err == nil:
		c.counters.CounterAdds.Add(1)
	case errors.Is(b.Err, counter.ErrRepeated):
		c.counters.CounterRepeats.Add(1)
	}
	a.Done(a)
}

// Add is Submit, Drive and the wait for Done. ctx ends the waiting, not the addition.
func (c *Counter) Add(ctx context.Context, a *CounterAdd) error {
	done := make(chan struct{})
	a.Done = func(*CounterAdd) { close(done) }
	if err := c.Submit(a); err != nil {
		return err
	}
	c.Drive(true)
	select {
	case <-done:
		return a.Err
	case <-ctx.Done():
		return errors.Join(storage.ErrUnknownOutcome, ctx.Err())
	}
}

// Len is the number of counters.
func (c *Counter) Len() int { return c.state.Len() }

// Close refuses what is new with ErrClosed, finishes what is in flight and closes the
// log.
func (c *Counter) Close(ctx context.Context) error { return c.stop(ctx, ErrClosed) }

// Delete is Close for a cache that was deleted.
func (c *Counter) Delete(ctx context.Context) error { return c.stop(ctx, ErrDeleted) }
