package client

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/felixlog/felix/wire"
)

// Cache is a cache of the client's namespace. It is a name: making one asks nobody.
type Cache struct {
	c    *Client
	name string
}

// Cache returns the cache of a name.
func (c *Client) Cache(name string) *Cache { return &Cache{c: c, name: name} }

// Value is a value as read.
type Value struct {
	Data []byte
	// Version is the offset of the put that made the value. It is what PutIfVersion and
	// DeleteIfVersion compare; 0 is a version like any other.
	Version uint64
}

// PutOption changes a put.
type PutOption func(*putConfig)

type putConfig struct {
	ttl    time.Duration
	hasTTL bool
}

// WithTTL lets the value expire, in whole milliseconds from its arrival at the broker.
// Zero and less are refused by the broker.
func WithTTL(d time.Duration) PutOption {
	return func(c *putConfig) { c.ttl, c.hasTTL = d, true }
}

func configured(opts []PutOption) putConfig {
	if len(opts) == 0 {
		return putConfig{} // what options may keep would be allocated
	}
	var p putConfig
	for _, o := range opts {
		o(&p)
	}
	return p
}

func (p *putConfig) millis() uint64 { return uint64(max(p.ttl, 0) / time.Millisecond) }

func (k *Cache) op(what, key string) string {
	if len(key) > mostNamed {
		key = key[:mostNamed] + "... (" + strconv.Itoa(len(key)) + " bytes)"
	}
	return what + " " + k.name + "/" + key
}

// mostNamed is how much of a key an error repeats.
const mostNamed = 128

// lookup is a get under way: the request and its message.
type lookup struct {
	request
	get wire.CacheGet
}

// store is a put under way.
type store struct {
	request
	put wire.CachePut
}

var (
	lookups = sync.Pool{New: func() any { return new(lookup) }}
	stores  = sync.Pool{New: func() any { return new(store) }}
)

func (k *Cache) do(ctx context.Context, op, key string, needs wire.Features, repeatable bool, id uint64, m wire.Message) (*answer, error) {
	return k.c.do(ctx, &request{op: op, id: id, message: m, needs: needs, repeatable: repeatable, on: k.c.keySlot(k.name, key)})
}

// Put stores a value under a key of 1 to 4,096 bytes. It is repeated when its outcome is
// unknown: a put twice is a put. Errors: ErrOverloaded when the cache is full,
// ErrLimitExceeded for a value that is too large.
func (k *Cache) Put(ctx context.Context, key string, value []byte, opts ...PutOption) error {
	p := configured(opts)
	id := k.c.requestID()
	s := stores.Get().(*store)
	s.put = wire.CachePut{
		Tenant: k.c.config.tenant, Namespace: k.c.namespace, Cache: k.name, Key: key, Value: value,
		RequestID: id, HasRequestID: true, TTLMillis: p.millis(), HasTTL: p.hasTTL,
	}
	s.request = request{op: "put", cache: k, key: key, id: id, message: &s.put, repeatable: true, on: k.c.keySlot(k.name, key)}
	a, err := k.c.do(ctx, &s.request)
	if err == nil {
		if _, ok := a.message.(*wire.CacheOK); !ok {
			err = unexpected(s.name(), a)
		}
	}
	*s = store{}
	stores.Put(s)
	return err
}

// Get reads the value of a key; ok is false when there is none.
func (k *Cache) Get(ctx context.Context, key string) (v Value, ok bool, err error) {
	id := k.c.requestID()
	l := lookups.Get().(*lookup)
	l.get = wire.CacheGet{
		Tenant: k.c.config.tenant, Namespace: k.c.namespace, Cache: k.name, Key: key, RequestID: id, HasRequestID: true,
	}
	l.request = request{op: "get", cache: k, key: key, id: id, message: &l.get, repeatable: true, on: k.c.keySlot(k.name, key)}
	a, err := k.c.do(ctx, &l.request)
	if err == nil {
		if _, is := a.message.(*wire.CacheValue); is {
			v, ok = a.value, a.hasValue
		} else {
			err = unexpected(l.name(), a)
		}
	}
	*l = lookup{}
	lookups.Put(l)
	return v, ok, err
}

// Delete removes a key and returns what was there. It is not repeated when its outcome
// is unknown, for the answer would be another.
func (k *Cache) Delete(ctx context.Context, key string) (removed []byte, existed bool, err error) {
	op, id := k.op("delete", key), k.c.requestID()
	a, err := k.do(ctx, op, key, wire.FeatureCacheDelete, false, id, &wire.CacheDelete{
		Tenant: k.c.config.tenant, Namespace: k.c.namespace, Cache: k.name, Key: key, RequestID: id, HasRequestID: true,
	})
	if err != nil {
		return nil, false, err
	}
	if _, is := a.message.(*wire.CacheValue); !is {
		return nil, false, unexpected(op, a)
	}
	return a.value.Data, a.hasValue, nil
}

// Condition is the answer to a conditional write.
type Condition struct {
	Applied bool
	// Version is that of the value after an applied put, else of the value that stands,
	// if Exists.
	Version uint64
	Exists  bool
}

// PutIfAbsent stores a value if the key has none.
func (k *Cache) PutIfAbsent(ctx context.Context, key string, value []byte, opts ...PutOption) (Condition, error) {
	return k.putIf(ctx, key, value, wire.CacheCondition{Absent: true}, opts)
}

// PutIfVersion stores a value if the one that stands has this version.
func (k *Cache) PutIfVersion(ctx context.Context, key string, value []byte, version uint64, opts ...PutOption) (Condition, error) {
	return k.putIf(ctx, key, value, wire.CacheCondition{Version: version}, opts)
}

func (k *Cache) putIf(ctx context.Context, key string, value []byte, cond wire.CacheCondition, opts []PutOption) (Condition, error) {
	p := configured(opts)
	op, id := k.op("put", key), k.c.requestID()
	a, err := k.do(ctx, op, key, wire.FeatureCacheConditional, false, id, &wire.CachePutIf{
		Tenant: k.c.config.tenant, Namespace: k.c.namespace, Cache: k.name, Key: key, Value: value,
		TTLMillis: p.millis(), HasTTL: p.hasTTL, Condition: cond, RequestID: id,
	})
	return condition(op, a, err)
}

// DeleteIfVersion removes a key if its value has this version.
func (k *Cache) DeleteIfVersion(ctx context.Context, key string, version uint64) (Condition, error) {
	op, id := k.op("delete", key), k.c.requestID()
	a, err := k.do(ctx, op, key, wire.FeatureCacheConditional, false, id, &wire.CacheDeleteIf{
		Tenant: k.c.config.tenant, Namespace: k.c.namespace, Cache: k.name, Key: key, Version: version, RequestID: id,
	})
	return condition(op, a, err)
}

func condition(op string, a *answer, err error) (Condition, error) {
	if err != nil {
		return Condition{}, err
	}
	m, ok := a.message.(*wire.CacheConditionResult)
	if !ok {
		return Condition{}, unexpected(op, a)
	}
	return Condition{Applied: m.Applied, Version: m.Version, Exists: m.HasVersion}, nil
}

// Shards returns the count of shards of the cache. ErrNotFound when the broker knows no
// such cache.
func (k *Cache) Shards(ctx context.Context) (int, error) {
	op, id := "shards of "+k.name, k.c.requestID()
	a, err := k.c.do(ctx, &request{op: op, id: id, needs: wire.FeatureCacheShards, repeatable: true,
		message: &wire.CacheShards{Tenant: k.c.config.tenant, Namespace: k.c.namespace, Cache: k.name, RequestID: id}})
	if err != nil {
		return 0, err
	}
	m, ok := a.message.(*wire.CacheShardsView)
	switch {
	case !ok:
		return 0, unexpected(op, a)
	case m.Shards == 0:
		return 0, &Error{Op: op, Code: wire.CodeNotFound, Retry: wire.RetryAfter, Message: "the broker knows no such cache"}
	}
	return int(m.Shards), nil
}

// Keys lists the keys that begin with prefix and follow after, in order, at most limit
// of them, 1 or more; more says that there are others. Up to limit keys of each shard are
// held meanwhile.
func (k *Cache) Keys(ctx context.Context, prefix, after string, limit int) (keys []string, more bool, err error) {
	op := "keys of " + k.name
	if limit < 1 {
		return nil, false, &Error{Op: op, Code: wire.CodeInvalidRequest, Retry: wire.RetryFatal, Message: "a limit below 1"}
	}
	shards, err := k.Shards(ctx)
	if err != nil {
		return nil, false, err
	}
	for shard := range shards {
		of, others, err := k.keysOf(ctx, op, shard, prefix, after, limit)
		if err != nil {
			return nil, false, err
		}
		keys, more = append(keys, of...), more || others
	}
	slices.Sort(keys)
	if len(keys) > limit {
		keys, more = keys[:limit], true
	}
	return keys, more, nil
}

// keysOf lists the keys of one shard, limit of them if there are as many. The broker bounds
// a page by itself.
func (k *Cache) keysOf(ctx context.Context, op string, shard int, prefix, after string, limit int) (keys []string, more bool, err error) {
	for more = true; more && len(keys) < limit; {
		var page wire.CacheKeys
		err := k.c.extend(ctx, op, wire.ExtCacheList, true, &wire.CacheListBody{
			Tenant: k.c.config.tenant, Namespace: k.c.namespace, Cache: k.name, Shard: shard,
			Prefix: prefix, After: after, Limit: limit - len(keys),
		}, &page)
		if err != nil {
			return nil, false, err
		}
		if keys, more = append(keys, page.Keys...), page.More; more {
			if len(page.Keys) == 0 {
				return nil, false, &Error{Op: op, Retry: wire.RetryFatal, Message: "an empty page, and more of them"}
			}
			after = page.Keys[len(page.Keys)-1]
		}
	}
	return keys, more, nil
}

// extend asks for an extension of ours.
func (c *Client) extend(ctx context.Context, op, name string, repeatable bool, body, result any) error {
	return c.extendOn(ctx, c.keySlot(name, ""), op, name, repeatable, body, result)
}

func (c *Client) extendOn(ctx context.Context, on *slot, op, name string, repeatable bool, body, result any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	id := c.requestID()
	a, err := c.do(ctx, &request{op: op, id: id, repeatable: repeatable, on: on,
		message: &wire.Extension{Name: name, RequestID: id, HasRequestID: true, Body: raw}})
	if err != nil {
		return err
	}
	m, ok := a.message.(*wire.ExtensionOK)
	if !ok {
		return unexpected(op, a)
	}
	if err := json.Unmarshal(m.Body, result); err != nil {
		return &Error{Op: op, Retry: wire.RetryOutcomeUnknown, Err: err}
	}
	return nil
}

// Counter is the counters of a cache: signed sums by key, apart from the cache's values.
type Counter struct {
	k *Cache
}

// Counters returns the counters of the cache.
func (k *Cache) Counters() *Counter { return &Counter{k: k} }

// Add adds to a counter and returns the sum. An addition whose answer was lost is sent
// again and not counted twice, across a restart of the broker too. Errors:
// ErrInvalidRequest when the sum would not fit 64 bits; then nothing is changed.
func (n *Counter) Add(ctx context.Context, key string, delta int64) (int64, error) {
	c := n.k.c
	producer, sequence, err := c.additions.begin(ctx, c)
	if err != nil {
		return 0, err
	}
	defer c.additions.end(sequence)
	var sum wire.CounterSum
	op := n.k.op("add", key)
	err = c.extend(ctx, op, wire.ExtCounterAddOnce, true, &wire.CounterAddOnceBody{
		Tenant: c.config.tenant, Namespace: c.namespace, Cache: n.k.name, Key: key, Delta: delta,
		Producer: producer, Sequence: sequence,
	}, &sum)
	if errors.Is(err, ErrUnsupported) {
		return n.addPlain(ctx, op, key, delta)
	}
	return sum.Value, err
}

// addPlain is for a broker that knows no additions with a number.
func (n *Counter) addPlain(ctx context.Context, op, key string, delta int64) (int64, error) {
	id := n.k.c.requestID()
	a, err := n.k.do(ctx, op, key, wire.FeatureCounters, false, id, &wire.CounterAdd{
		Tenant: n.k.c.config.tenant, Namespace: n.k.c.namespace, Cache: n.k.name, Key: key, Delta: delta, RequestID: id,
	})
	sum, _, err := counterValue(op, a, err)
	return sum, err
}

// Get reads a counter; ok is false when it was never added to, which is not 0.
func (n *Counter) Get(ctx context.Context, key string) (sum int64, ok bool, err error) {
	op, id := n.k.op("counter", key), n.k.c.requestID()
	a, err := n.k.do(ctx, op, key, wire.FeatureCounters, true, id, &wire.CounterGet{
		Tenant: n.k.c.config.tenant, Namespace: n.k.c.namespace, Cache: n.k.name, Key: key, RequestID: id,
	})
	return counterValue(op, a, err)
}

func counterValue(op string, a *answer, err error) (int64, bool, error) {
	if err != nil {
		return 0, false, err
	}
	m, ok := a.message.(*wire.CounterValue)
	if !ok {
		return 0, false, unexpected(op, a)
	}
	return m.Value, m.HasValue, nil
}
