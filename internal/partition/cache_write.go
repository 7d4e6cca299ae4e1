package partition

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// CacheCounters are the totals of a cache on this node.
type CacheCounters struct {
	Gets, Hits, Puts, Deletes   atomic.Uint64
	Refused                     atomic.Uint64 // by a condition
	Full                        atomic.Uint64 // puts refused at the bound
	Expired, Evicted            atomic.Uint64
	Failed                      atomic.Uint64 // writes
	WatchEvents                 atomic.Uint64
	CounterAdds, CounterRepeats atomic.Uint64
}

// CacheWrite is one put or delete on its way. The caller calls Put or Delete, and
// leaves it untouched until Done has run or Submit has returned an error.
type CacheWrite struct {
	// Done runs once, on any goroutine, in the order of the log. It must not block.
	Done func(*CacheWrite)
	// User is the caller's.
	User any

	// Applied: the write is in the log. Err nil and Applied false: its condition did
	// not hold, or there was nothing to delete.
	Applied bool
	// Version of the value after an applied put; else of the live value that stands, if
	// HasVersion.
	Version    storage.Offset
	HasVersion bool
	Err        error

	op      cache.Op
	shard   *Cache
	batch   storage.Batch
	payload [1][]byte
	buf     []byte
	cost    int64
	release func() // of the hold on what a delete removes
}

// Put makes w a put of value under key that expires after ttl milliseconds; without
// hasTTL it does not. cond is what the key must be, version goes with cache.AtVersion.
func (w *CacheWrite) Put(key, value []byte, ttl uint64, hasTTL bool, cond cache.Condition, version storage.Offset, now cache.Millis) error {
	if err := cache.CheckKey(key); err != nil {
		return err
	}
	w.op = cache.Op{Kind: cache.Put, Condition: cond, Version: version, Now: now}
	if hasTTL {
		at, err := cache.Deadline(now, ttl)
		if err != nil {
			return err
		}
		w.op.Expires = at
	}
	w.buf = cache.AppendEntry(w.buf[:0], cache.Entry{Key: key, Value: value, Expires: w.op.Expires})
	w.setKey(len(key))
	return nil
}

// Delete makes w a delete of key.
func (w *CacheWrite) Delete(key []byte, cond cache.Condition, version storage.Offset, now cache.Millis) error {
	if err := cache.CheckKey(key); err != nil {
		return err
	}
	w.op = cache.Op{Kind: cache.Delete, Condition: cond, Version: version, Now: now}
	w.buf = cache.AppendEntry(w.buf[:0], cache.Entry{Delete: true, Key: key})
	w.setKey(len(key))
	return nil
}

// setKey lets the op name the key as it stands in the encoded entry.
func (w *CacheWrite) setKey(n int) {
	start := cache.EntrySize(0, 0)
	w.op.Key = w.buf[start : start+n : start+n]
}

// Now is the time that deadlines are compared with.
func (c *Cache) Now() cache.Millis { return c.now() }

// Submit takes a write in, without I/O; Drive writes it. An error means that nothing of
// it was or will be done, and that Done does not run.
func (c *Cache) Submit(w *CacheWrite) error {
	if len(w.buf)-cache.EntrySize(len(w.op.Key), 0) > c.o.MaxValueBytes {
		return &storage.RecordTooLargeError{Size: len(w.buf) - cache.EntrySize(len(w.op.Key), 0), Max: c.o.MaxValueBytes}
	}
	if w.op.Kind == cache.Put {
		if victims := c.state.Victims(w.op.Key, segment.RecordHeaderSize+len(w.buf)); victims != nil {
			c.submitAll(cache.Evict, victims)
		}
	}
	err := c.submit(w)
	if err != nil {
		c.counters.Failed.Add(1)
	}
	return err
}

func (c *Cache) submit(w *CacheWrite) error {
	if err := c.serving(); err != nil {
		return err
	}
	if w.op.Kind == cache.Expire || w.op.Kind == cache.Evict {
		w.buf = cache.AppendEntry(w.buf[:0], cache.Entry{Delete: true, Key: w.op.Key})
		w.op.Now = c.now()
	}
	w.shard, w.Applied, w.HasVersion, w.Version, w.Err = c, false, false, 0, nil
	w.op.Size = segment.RecordHeaderSize + len(w.buf)
	w.cost = int64(len(w.buf)) + recordCost
	// What the cache does by itself, and a delete, which makes room, is not the tenant's
	// to be charged with.
	var err error
	if w.op.Kind == cache.Put {
		err = c.o.Budget.Admit(w.cost, int64(len(w.buf)), 1)
	} else {
		err = c.o.Budget.Acquire(w.cost)
	}
	if err != nil {
		return err
	}
	if w.op.Kind == cache.Delete {
		// What it removes must be readable until Removed has read it.
		w.release = c.log.Hold(c.log.Head())
	}
	w.payload[0] = w.buf
	w.batch = storage.Batch{Payloads: w.payload[:], User: w, Done: cacheWriteDone, UseReserve: w.op.Kind != cache.Put}
	if err := c.log.Enqueue(&w.batch); err != nil {
		c.o.Budget.Release(w.cost)
		w.letGo()
		return c.closedAs(err)
	}
	return nil
}

// Release is for an applied delete whose value nobody wants: it stands for Removed.
func (w *CacheWrite) Release() { w.letGo() }

func (w *CacheWrite) letGo() {
	if w.release != nil {
		w.release()
		w.release = nil
	}
}

// cacheWriteDone is the Done of every batch a write puts into the log.
func cacheWriteDone(b *storage.Batch) {
	w := b.User.(*CacheWrite)
	c := w.shard
	c.o.Budget.Release(w.cost)
	n := c.counters
	switch err := b.Err; {
	case err == nil:
		w.Applied = true
		if w.op.Kind == cache.Put {
			w.Version, w.HasVersion = b.First, true
		}
		switch w.op.Kind {
		case cache.Put:
			n.Puts.Add(1)
		case cache.Delete:
			n.Deletes.Add(1)
		case cache.Expire:
			n.Expired.Add(1)
		case cache.Evict:
			n.Evicted.Add(1)
		}
	case errors.Is(err, cache.ErrCondition), errors.Is(err, cache.ErrNothing):
		if w.op.Live {
			w.Version, w.HasVersion = w.op.Old.Version, true
		}
		if errors.Is(err, cache.ErrCondition) {
			n.Refused.Add(1)
		}
	default:
		if errors.Is(err, cache.ErrFull) {
			n.Full.Add(1)
		} else {
			n.Failed.Add(1)
		}
		w.Err = c.closedAs(err)
	}
	if !w.Applied || !w.op.Live {
		w.letGo()
	}
	if w.Done != nil {
		w.Done(w)
	}
}

// Write is Submit, Drive and the wait for Done. ctx ends the waiting, not the write.
func (c *Cache) Write(ctx context.Context, w *CacheWrite) error {
	done := make(chan struct{})
	w.Done = func(*CacheWrite) { close(done) }
	if err := c.Submit(w); err != nil {
		return err
	}
	c.Drive(true)
	select {
	case <-done:
		return w.Err
	case <-ctx.Done():
		return errors.Join(storage.ErrUnknownOutcome, ctx.Err())
	}
}

// CacheValue is a value as read. Value is the reader's.
type CacheValue struct {
	Value   []byte
	Version storage.Offset
	Expires cache.Millis
}

// Get reads the live value of a key. A damaged record is an error, not a miss.
func (c *Cache) Get(ctx context.Context, key []byte) (v CacheValue, ok bool, err error) {
	return c.AppendGet(ctx, []byte{}, key)
}

// AppendGet is Get that puts the value into dst, from its beginning, if it has room.
func (c *Cache) AppendGet(ctx context.Context, dst, key []byte) (v CacheValue, ok bool, err error) {
	if err := cache.CheckKey(key); err != nil {
		return v, false, err
	}
	if err := c.serving(); err != nil {
		return v, false, err
	}
	c.counters.Gets.Add(1)
	for {
		ref, ok := c.state.Lookup(key, c.now())
		if !ok {
			return v, false, nil
		}
		at := valueKey{c.valuesLog.Load(), ref.Offset}
		if dst, ok = c.o.Values.get(at, dst[:0]); ok {
			c.counters.Hits.Add(1)
			return CacheValue{Value: dst, Version: ref.Version, Expires: ref.Expires}, true, nil
		}
		named := false
		ok, err := c.read(ctx, ref.Offset, func(e *cache.Entry) {
			if named = string(e.Key) == string(key); named {
				dst = append(dst, e.Value...)
				c.o.Values.put(at, e.Value)
			}
		})
		if err != nil {
			return v, false, c.closedAs(err)
		}
		if !ok || !named {
			// Compaction moved the record after the look-up: the index knows where.
			if again, found := c.state.Lookup(key, c.now()); found && again.Offset == ref.Offset {
				return v, false, &storage.DamagedError{Dir: c.dir, Advice: "remove the shard's snapshot file and start again", Cause: errMisplaced}
			}
			continue
		}
		c.counters.Hits.Add(1)
		return CacheValue{Value: dst, Version: ref.Version, Expires: ref.Expires}, true, nil
	}
}

var errMisplaced = errors.New("the index names a record of another key")

// read calls f with the entry at an offset, whose bytes are good during the call; false
// when it is gone.
func (c *Cache) read(ctx context.Context, at storage.Offset, f func(e *cache.Entry)) (bool, error) {
	page := c.pages.Get().(*storage.Page)
	defer c.pages.Put(page)
	err := c.log.Read(ctx, page, storage.ReadRange{From: at, End: at + 1, MaxRecords: 1, MaxBytes: 1})
	if err != nil {
		if _, trimmed := errors.AsType[*storage.TrimmedError](err); trimmed {
			return false, nil
		}
		return false, err
	}
	if len(page.Records) == 0 {
		return false, nil
	}
	e, err := cache.DecodeEntry(page.Records[0].Payload)
	if err != nil {
		return false, err
	}
	f(&e)
	return true, nil
}

// Removed reads the value that an applied delete took away; ok is false if there was
// none. It must be called once after each delete that Done reports as applied: until
// then compaction keeps the value's record.
func (c *Cache) Removed(ctx context.Context, w *CacheWrite) (value []byte, ok bool, err error) {
	defer w.letGo()
	if !w.Applied || !w.op.Live {
		return nil, false, nil
	}
	value = []byte{}
	ok, err = c.read(ctx, w.op.Old.Offset, func(e *cache.Entry) { value = append(value, e.Value...) })
	if !ok {
		value = nil
	}
	return value, ok, err
}
