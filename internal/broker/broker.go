package broker

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/wire"
)

// Broker is all shards of a node. All methods may be called from several goroutines.
type Broker struct {
	o        Options
	table    atomic.Pointer[table[Stream]]
	caches   atomic.Pointer[table[Cache]]
	draining atomic.Bool
	node     *partition.Budget
	rings    *stream.RingBudget
	values   *partition.Values
	ids      atomic.Uint64
	opening  *pool
	deleting *pool
	removing *pool
	retries  retries
	watch    *meta.Watch
	cancel   context.CancelFunc
	life     context.Context // ends when the broker closes
	followed sync.WaitGroup

	progress progress

	mu struct {
		sync.Mutex
		tenants map[string]*partition.Budget
		last    map[lastKey]chan struct{} // gone of the one that had the name last
		change  chan struct{}             // closed at the next change, while somebody waits
	}

	closeOnce sync.Once
	closeErr  error
}

// Open begins to serve what the catalog says. It returns when the catalog has been
// read; shards open in the background ([Broker.WaitReady], [Broker.Progress]). ctx
// bounds Open alone.
func Open(ctx context.Context, o Options) (*Broker, error) {
	if err := o.normalise(); err != nil {
		return nil, err
	}
	b := &Broker{
		o:        o,
		node:     partition.NewBudget(o.Limits.NodeInFlight, partition.ScopeNode, nil),
		rings:    stream.NewRingBudget(o.Limits.RingsBytes),
		values:   partition.NewValues(o.Limits.CacheValuesBytes),
		opening:  &pool{limit: o.Limits.Recovering},
		deleting: &pool{limit: o.Limits.Recovering},
		removing: &pool{limit: 1},
	}
	b.table.Store(&table[Stream]{})
	b.caches.Store(&table[Cache]{})
	b.mu.tenants = make(map[string]*partition.Budget)
	b.mu.last = make(map[lastKey]chan struct{})
	b.life, b.cancel = context.WithCancel(context.Background())
	if o.Root != "" {
		if err := o.FS.MkdirAll(o.Root); err != nil {
			b.cancel()
			return nil, fmt.Errorf("make root of shards: %w", err)
		}
	}
	watch, err := o.Catalog.Watch(ctx)
	if err != nil {
		b.cancel()
		return nil, fmt.Errorf("watch catalog: %w", err)
	}
	b.watch = watch
	first, err := watch.Next(ctx)
	if err != nil {
		b.cancel()
		watch.Close()
		return nil, fmt.Errorf("read catalog: %w", err)
	}
	b.apply(first)
	if o.Root != "" {
		b.reportOrphans()
		b.resumeRemoval()
	}
	b.followed.Go(b.follow)
	return b, nil
}

// Stream finds a stream. The error is a *wire.Failure: not_found, draining.
func (b *Broker) Stream(tenant, namespace, name string) (*Stream, error) {
	k := key{tenant, namespace, name}
	if s := b.table.Load().get(k); s != nil {
		return s, nil
	}
	return nil, b.missing(kindStream, k)
}

// StreamBytes is Stream for names that are not strings yet; it makes none.
func (b *Broker) StreamBytes(tenant, namespace, name []byte) (*Stream, error) {
	if s := b.table.Load().bytes(tenant, namespace, name); s != nil {
		return s, nil
	}
	return nil, b.missing(kindStream, key{string(tenant), string(namespace), string(name)})
}

func (b *Broker) missing(kind string, k key) error {
	if b.draining.Load() {
		return Failure(ErrDraining)
	}
	return notFound(kind, k)
}

// Streams calls f for every stream, in no order.
func (b *Broker) Streams(f func(*Stream)) {
	b.table.Load().each(func(_ key, s *Stream) { f(s) })
}

// Caches calls f for every cache, in no order.
func (b *Broker) Caches(f func(*Cache)) {
	b.caches.Load().each(func(_ key, c *Cache) { f(c) })
}

// resources calls f for every stream and every cache.
func (b *Broker) resources(f func(*resource)) {
	b.Streams(func(s *Stream) { f(&s.resource) })
	b.Caches(func(c *Cache) { f(&c.resource) })
}

// NewProducerID gives the id of a new idempotent producer: random, not zero.
func (b *Broker) NewProducerID() uint64 {
	for {
		var r [8]byte
		rand.Read(r[:]) // never fails: crypto/rand ends the process instead
		if id := binary.BigEndian.Uint64(r[:]); id != 0 {
			return id
		}
	}
}

// CheckStream says whether this broker could serve a stream, before it is written to
// the catalog. The error is a *wire.Failure.
func (b *Broker) CheckStream(s meta.Stream) error {
	if s.Durable && b.o.Root == "" {
		return wire.NewFailure(wire.CodeInvalidRequest, "a durable stream needs storage, and this broker runs with storage none")
	}
	if s.ReplicationFactor > 1 {
		return wire.NewFailure(wire.CodeInvalidRequest, fmt.Sprintf("replication_factor %d needs a cluster; this broker stands alone", s.ReplicationFactor))
	}
	return nil
}

// await asks done again after every change, until it says yes or fails.
func (b *Broker) await(ctx context.Context, done func() (bool, error)) error {
	for {
		b.mu.Lock()
		if b.mu.change == nil {
			b.mu.change = make(chan struct{})
		}
		change := b.mu.change
		b.mu.Unlock()
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-change:
		case <-ctx.Done():
			return ctx.Err()
		case <-b.life.Done():
			return ErrDraining
		}
	}
}

// changed wakes those who await.
func (b *Broker) changed() {
	b.mu.Lock()
	change := b.mu.change
	b.mu.change = nil
	b.mu.Unlock()
	if change != nil {
		close(change)
	}
}

// tenant is the budget of a tenant's writes.
func (b *Broker) tenant(name string) *partition.Budget {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.mu.tenants[name]
	if t == nil {
		t = partition.NewBudget(b.o.Limits.TenantInFlight, partition.ScopeTenant, b.node)
		t.SetQuota(b.quotaOf(name, meta.Quota{}))
		b.mu.tenants[name] = t
	}
	return t
}

// TenantsInFlight are the bytes of each tenant's publishes that are accepted and not
// answered, of tenants that have written since the start.
func (b *Broker) TenantsInFlight() map[string]int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	used := make(map[string]int64, len(b.mu.tenants))
	for name, t := range b.mu.tenants {
		used[name] = t.Used()
	}
	return used
}

// quotaOf is the quota of a tenant: its own bounds, and the broker's where it has none.
func (b *Broker) quotaOf(tenant string, own meta.Quota) *partition.Quota {
	bytes, records := b.rates(own)
	return partition.NewQuota(tenant, bytes, records)
}

func (b *Broker) rates(own meta.Quota) (bytes, records int64) {
	l := &b.o.Limits
	return own.Or(own.BytesPerSecond, l.TenantBytesPerSecond), own.Or(own.RecordsPerSecond, l.TenantRecordsPerSecond)
}

// configureTenant takes in the quota of a tenant. One that did not change goes on as it
// is: a change of a tenant's name is no reason to begin its second anew.
func (b *Broker) configureTenant(name string, own meta.Quota) {
	t := b.tenant(name)
	if !t.Quota().Same(b.rates(own)) {
		t.SetQuota(b.quotaOf(name, own))
	}
}

// Close takes nothing new, finishes what is in flight, flushes, and leaves every log
// with its clean mark. Subscriptions end after what was queued. ctx bounds the waiting
// for single shards; Close itself always comes to an end.
func (b *Broker) Close(ctx context.Context) error {
	b.closeOnce.Do(func() { b.closeErr = b.close(ctx) })
	return b.closeErr
}

func (b *Broker) close(ctx context.Context) error {
	b.draining.Store(true)
	b.cancel()
	b.watch.Close()
	b.followed.Wait()
	b.retries.stop()
	b.opening.close()
	b.deleting.close()
	b.removing.close()

	var mu sync.Mutex
	var errs []error
	closers := &pool{limit: b.o.Limits.Recovering}
	b.resources(func(r *resource) {
		for i := range r.shards {
			sh := &r.shards[i]
			closers.submit(func() {
				u := sh.status.Load().unit
				sh.set(&status{state: partition.Closed})
				if u == nil {
					return
				}
				if err := u.Close(ctx); err != nil {
					mu.Lock()
					errs = append(errs, fmt.Errorf("close shard %s: %w", sh.name, err))
					mu.Unlock()
				}
			})
		}
	})
	closers.close()
	return errors.Join(errs...)
}
