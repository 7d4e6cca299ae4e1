package server

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/internal/counter"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/wire"
)

// cacheHandlers serve caches and counters, on brokers with storage.
func cacheHandlers() Handlers {
	return Handlers{
		Features: wire.FeatureCacheDelete | wire.FeatureCacheWatch | wire.FeatureCacheWatchRetained | wire.FeatureCounters |
			wire.FeatureCacheShards | wire.FeatureCacheConditional,
		Requests: map[string]Handler{
			"cache_put":       cachePut,
			"cache_get":       cacheGet,
			"cache_delete":    cacheDelete,
			"cache_put_if":    cachePutIf,
			"cache_delete_if": cacheDeleteIf,
			"cache_watch":     cacheWatch,
			"cache_shards":    cacheShards,
			"counter_add":     counterAdd,
			"counter_get":     counterGet,
		},
		Extensions: map[string]Handler{
			wire.ExtCacheList:      cacheList,
			wire.ExtCounterAddOnce: counterAddOnce,
		},
	}
}

// cacheOf finds the shard of a key, and answers when the principal may not or there is
// none.
func (r *Request) cacheOf(tenant, namespace, name, key string, action auth.Action) *partition.Cache {
	if !r.Allow(action, auth.CacheKeyObject(tenant, namespace, name, key)) {
		return nil
	}
	ca := r.cacheNamed(tenant, namespace, name)
	if ca == nil {
		return nil
	}
	c, err := ca.Shard(ca.Route(key))
	if err != nil {
		r.Fail(err)
		return nil
	}
	return c
}

func (r *Request) cacheNamed(tenant, namespace, name string) *broker.Cache {
	ca, err := r.s.server.broker.Cache(tenant, namespace, name)
	if err != nil {
		r.Fail(err)
		return nil
	}
	return ca
}

// keyOf is a key as bytes, good until the handler of the next request runs.
func (r *Request) keyOf(key string) []byte {
	r.s.key = append(r.s.key[:0], key...)
	return r.s.key
}

// write is a cache write with what its answer needs, and is made of.
type write struct {
	partition.CacheWrite
	reply *Reply
	// answer makes the answer of a write that did not fail; nil says that it has been
	// left to the reply.
	answer func(w *write) wire.Message
	// id is the request's, if it has one.
	id    uint64
	hasID bool

	ok        wire.CacheOK
	condition wire.CacheConditionResult
}

var writes = sync.Pool{New: func() any { return new(write) }}

// submit hands a prepared write to its shard; answer makes the answer of one that did
// not fail.
func (r *Request) submit(c *partition.Cache, w *write, answer func(*write) wire.Message) {
	w.reply, w.answer = r.Defer(), answer
	w.Done = writeDone
	w.User = w
	if err := c.Submit(&w.CacheWrite); err != nil {
		w.reply.Fail(err)
		return
	}
	r.Drive(c)
}

func writeDone(cw *partition.CacheWrite) {
	w := cw.User.(*write)
	if cw.Err != nil {
		w.reply.Fail(cw.Err)
	} else if m := w.answer(w); m != nil {
		w.reply.Answer(m)
	} else {
		return // answered later, and the write is still in use
	}
	w.reply, w.answer = nil, nil
	writes.Put(w)
}

func cachePut(_ context.Context, r *Request) {
	m := r.Message.(*wire.CachePut)
	c := r.cacheOf(m.Tenant, m.Namespace, m.Cache, m.Key, auth.CacheWrite)
	if c == nil {
		return
	}
	w := writes.Get().(*write)
	if err := w.Put(r.keyOf(m.Key), m.Value, m.TTLMillis, m.HasTTL, cache.Always, 0, c.Now()); err != nil {
		r.Fail(err)
		return
	}
	w.id, w.hasID = m.RequestID, m.HasRequestID
	r.submit(c, w, putAnswer)
}

func putAnswer(w *write) wire.Message {
	if !w.hasID {
		return &wire.OK{}
	}
	w.ok.RequestID = w.id
	return &w.ok
}

func cachePutIf(_ context.Context, r *Request) {
	m := r.Message.(*wire.CachePutIf)
	c := r.cacheOf(m.Tenant, m.Namespace, m.Cache, m.Key, auth.CacheWrite)
	if c == nil {
		return
	}
	cond := cache.AtVersion
	if m.Condition.Absent {
		cond = cache.Absent
	}
	w := writes.Get().(*write)
	if err := w.Put(r.keyOf(m.Key), m.Value, m.TTLMillis, m.HasTTL, cond, storage.Offset(m.Condition.Version), c.Now()); err != nil {
		r.Fail(err)
		return
	}
	w.id = m.RequestID
	r.submit(c, w, conditionAnswer)
}

func cacheDeleteIf(_ context.Context, r *Request) {
	m := r.Message.(*wire.CacheDeleteIf)
	c := r.cacheOf(m.Tenant, m.Namespace, m.Cache, m.Key, auth.CacheWrite)
	if c == nil {
		return
	}
	w := writes.Get().(*write)
	if err := w.Delete(r.keyOf(m.Key), cache.AtVersion, storage.Offset(m.Version), c.Now()); err != nil {
		r.Fail(err)
		return
	}
	w.id = m.RequestID
	r.submit(c, w, conditionAnswer)
}

func conditionAnswer(w *write) wire.Message {
	w.Release()
	w.condition = wire.CacheConditionResult{Applied: w.Applied, Version: uint64(w.Version), HasVersion: w.HasVersion, RequestID: w.id}
	return &w.condition
}

func cacheDelete(ctx context.Context, r *Request) {
	m := r.Message.(*wire.CacheDelete)
	c := r.cacheOf(m.Tenant, m.Namespace, m.Cache, m.Key, auth.CacheWrite)
	if c == nil {
		return
	}
	w := writes.Get().(*write)
	if err := w.Delete(r.keyOf(m.Key), cache.Always, 0, c.Now()); err != nil {
		r.Fail(err)
		return
	}
	answer := &wire.CacheValue{
		Tenant: m.Tenant, Namespace: m.Namespace, Cache: m.Cache, Key: strings.Clone(m.Key),
		RequestID: m.RequestID, HasRequestID: m.HasRequestID,
	}
	log := r.s.server.log
	r.submit(c, w, func(w *write) wire.Message {
		if !w.Applied {
			return answer
		}
		// What was removed is read off the log's back: a reading of the disk has no
		// place in the way of the next answers.
		w.reply.Later(func() (wire.Message, error) {
			value, ok, err := c.Removed(ctx, &w.CacheWrite)
			if err != nil {
				// The delete stands: no answer may say that it does not.
				log.Error("value that a delete took away cannot be read", "cache", answer.Tenant+"/"+answer.Namespace+"/"+answer.Cache, "error", err)
				return nil, wire.NewFailure(wire.CodeStorage, "the key was deleted, and its value cannot be read").WithRetry(wire.RetryOutcomeUnknown)
			}
			answer.Value, answer.HasValue = value, ok
			return answer, nil
		})
		return nil
	})
}

func cacheGet(ctx context.Context, r *Request) {
	m := r.Message.(*wire.CacheGet)
	c := r.cacheOf(m.Tenant, m.Namespace, m.Cache, m.Key, auth.CacheRead)
	if c == nil {
		return
	}
	r.Behind(false)
	// The answer is encoded before the handler returns: what it is made of serves the next
	// get too.
	got := &r.s.got
	v, ok, err := c.AppendGet(ctx, got.room[:0], r.keyOf(m.Key))
	if err != nil {
		r.Fail(err)
		return
	}
	got.answer = wire.CacheValue{
		Tenant: m.Tenant, Namespace: m.Namespace, Cache: m.Cache, Key: m.Key, Value: v.Value, HasValue: ok,
		RequestID: m.RequestID, HasRequestID: m.HasRequestID,
		Version: uint64(v.Version), HasVersion: ok && r.Offers(wire.FeatureCacheConditional),
	}
	r.Answer(&got.answer)
	got.answer = wire.CacheValue{}
	switch {
	case cap(v.Value) > gotKept:
		got.room = nil
	case ok:
		got.room = v.Value
	}
}

// got is what a session's gets are answered with.
type got struct {
	room   []byte
	answer wire.CacheValue
}

// gotKept is the largest room for a value that a session keeps.
const gotKept = 4 << 10

// cacheShards answers 0 shards for a cache that is not known: not an error.
func cacheShards(_ context.Context, r *Request) {
	m := r.Message.(*wire.CacheShards)
	if !r.AllowTenant(m.Tenant) {
		return
	}
	view := &wire.CacheShardsView{RequestID: m.RequestID}
	ca, err := r.s.server.broker.Cache(m.Tenant, m.Namespace, m.Cache)
	switch {
	case err == nil:
		view.Shards = uint32(ca.Shards())
	case !isNotFound(err):
		r.Fail(err)
		return
	}
	r.Answer(view)
}

func isNotFound(err error) bool {
	return errors.Is(broker.Failure(err), &wire.Failure{Code: wire.CodeNotFound})
}

func cacheWatch(_ context.Context, r *Request) {
	m := r.Message.(*wire.CacheWatch)
	if m.HasKey == m.HasPrefix {
		r.Fail(wire.NewFailure(wire.CodeInvalidRequest, "a watch names either a key or a prefix"))
		return
	}
	if m.Retained && m.HasFromOffset {
		r.Fail(wire.NewFailure(wire.CodeInvalidRequest, "retained and from_offset exclude each other"))
		return
	}
	object := auth.CachePrefixObject(m.Tenant, m.Namespace, m.Cache, m.Prefix)
	if m.HasKey {
		object = auth.CacheKeyObject(m.Tenant, m.Namespace, m.Cache, m.Key)
	}
	if !r.Allow(auth.CacheRead, object) {
		return
	}
	ca := r.cacheNamed(m.Tenant, m.Namespace, m.Cache)
	if ca == nil {
		return
	}
	o := partition.WatchOptions{
		Key: []byte(m.Prefix), Prefix: m.HasPrefix, From: storage.Offset(m.FromOffset), HasFrom: m.HasFromOffset, Retained: m.Retained,
	}
	shard := int(m.Shard)
	switch {
	case m.HasKey:
		o.Key, shard = []byte(m.Key), ca.Route(m.Key)
	case !m.HasShard && ca.Shards() > 1:
		r.Fail(wire.NewFailure(wire.CodeInvalidRequest, "a watch of a prefix names its shard: the cache has several"))
		return
	}
	c, err := ca.Shard(shard)
	if err != nil {
		r.Fail(err)
		return
	}
	r.Behind(false)
	w, err := c.Watch(o)
	if err != nil {
		r.failRead(err)
		return
	}
	started := &wire.CacheWatchStarted{
		SubscriptionID: w.ID(), ResumeOffset: uint64(w.ResumeOffset()), Resnapshot: w.Resnapshot(),
		RetainedCount: uint64(w.Retained()), HasRetainedCount: m.Retained,
	}
	s := r.s
	if f := r.Events(w.ID(), started, func(ctx context.Context, e *EventStream) (wire.Message, error) {
		defer w.Close()
		return s.followCache(ctx, e, w)
	}); f != nil {
		w.Close()
		r.Fail(f)
	}
}

// watchBuffer is how much of a watch is gathered before it is written.
const watchBuffer = 64 << 10

// followCache writes a watch's changes until it ends. Once the server drains, what can be
// read without waiting is still written.
func (s *session) followCache(ctx context.Context, e *EventStream, w *partition.Watch) (wire.Message, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.server.draining, cancel)
	defer stop()
	var buf []byte
	for {
		buf = buf[:0]
		err := w.Next(ctx, func(ev *partition.WatchEvent) error {
			buf = wire.AppendMessage(buf, &wire.CacheEvent{
				Key: string(ev.Key), Value: ev.Value, HasValue: !ev.Deleted, Offset: uint64(ev.Offset), ExpiresAtMillis: uint64(ev.Expires),
			})
			if len(buf) < watchBuffer {
				return nil
			}
			full := buf
			buf = nil
			return e.Write(full)
		})
		if len(buf) > 0 {
			if err := e.Write(buf); err != nil {
				return nil, err
			}
		}
		if lag, ok := errors.AsType[*partition.WatchLaggedError](err); ok {
			return &wire.CacheWatchLagged{ResumeFrom: uint64(lag.ResumeFrom)}, nil
		}
		switch {
		case err == nil:
		case errors.Is(err, partition.ErrDeleted), errors.Is(err, partition.ErrUnsubscribed):
			return nil, nil
		case s.moved(err):
			if !s.features.Has(wire.FeatureShardMoved) {
				return nil, nil
			}
			return &wire.ShardMoved{SubscriptionID: w.ID(), ResumeFrom: uint64(w.Position()), HasResumeFrom: true}, nil
		default:
			return nil, ErrReset
		}
	}
}

// counterOf finds the counters of a key's shard, and answers when the principal may not
// or there are none.
func (r *Request) counterOf(ctx context.Context, tenant, namespace, name, key string, action auth.Action) *partition.Counter {
	if !r.Allow(action, auth.CacheKeyObject(tenant, namespace, name, key)) {
		return nil
	}
	ca := r.cacheNamed(tenant, namespace, name)
	if ca == nil {
		return nil
	}
	if err := cache.CheckKey(r.keyOf(key)); err != nil {
		r.Fail(err)
		return nil
	}
	c, err := ca.Counters(ctx, ca.Route(key))
	if err != nil {
		r.Fail(err)
		return nil
	}
	return c
}

// addition is a counter addition with what its answer needs, and is made of.
type addition struct {
	partition.CounterAdd
	reply *Reply
	// answer makes the answer of one that was counted, now or before (repeated).
	answer func(a *addition, repeated bool) wire.Message
	id     uint64 // the request's

	value wire.CounterValue
}

var additions = sync.Pool{New: func() any { return new(addition) }}

// newAddition is one of delta to key.
func newAddition(key string, delta int64) *addition {
	a := additions.Get().(*addition)
	a.Key, a.Delta, a.Tag = append(a.Key[:0], key...), delta, nil
	a.User, a.Done = a, additionDone
	return a
}

// add submits an addition.
func (r *Request) add(c *partition.Counter, a *addition, answer func(a *addition, repeated bool) wire.Message) {
	a.reply, a.answer = r.Defer(), answer
	if err := c.Submit(&a.CounterAdd); err != nil {
		a.reply.Fail(err)
		return
	}
	r.Drive(c)
}

func additionDone(ca *partition.CounterAdd) {
	a := ca.User.(*addition)
	repeated := errors.Is(a.Err, counter.ErrRepeated)
	if a.Err != nil && !repeated {
		a.reply.Fail(a.Err)
	} else {
		a.reply.Answer(a.answer(a, repeated))
	}
	a.reply, a.answer = nil, nil
	additions.Put(a)
}

func counterAdd(ctx context.Context, r *Request) {
	m := r.Message.(*wire.CounterAdd)
	c := r.counterOf(ctx, m.Tenant, m.Namespace, m.Cache, m.Key, auth.CacheWrite)
	if c == nil {
		return
	}
	a := newAddition(m.Key, m.Delta)
	a.id = m.RequestID
	r.add(c, a, sumAnswer)
}

func sumAnswer(a *addition, _ bool) wire.Message {
	a.value = wire.CounterValue{Value: a.Sum, HasValue: true, RequestID: a.id}
	return &a.value
}

func counterGet(ctx context.Context, r *Request) {
	m := r.Message.(*wire.CounterGet)
	c := r.counterOf(ctx, m.Tenant, m.Namespace, m.Cache, m.Key, auth.CacheRead)
	if c == nil {
		return
	}
	r.Behind(false)
	sum, ok, err := c.Get(r.keyOf(m.Key))
	if err != nil {
		r.Fail(err)
		return
	}
	r.Answer(&wire.CounterValue{Value: sum, HasValue: ok, RequestID: m.RequestID})
}

func counterAddOnce(ctx context.Context, r *Request) {
	var q wire.CounterAddOnceBody
	m, ok := r.body(&q)
	if !ok {
		return
	}
	c := r.counterOf(ctx, q.Tenant, q.Namespace, q.Cache, q.Key, auth.CacheWrite)
	if c == nil {
		return
	}
	asked := *m
	a := newAddition(q.Key, q.Delta)
	a.Tag = &counter.Tag{Producer: q.Producer, Sequence: q.Sequence}
	r.add(c, a, func(a *addition, repeated bool) wire.Message {
		return extended(&asked, wire.CounterSum{Value: a.Sum, Repeated: repeated})
	})
}

// maxKeysListed bounds one page of keys.
const maxKeysListed = 1000

func cacheList(_ context.Context, r *Request) {
	var q wire.CacheListBody
	m, ok := r.body(&q)
	if !ok || !r.Allow(auth.CacheRead, auth.CachePrefixObject(q.Tenant, q.Namespace, q.Cache, q.Prefix)) {
		return
	}
	limit, ok := r.pageOf(m, q.Limit, maxKeysListed)
	if !ok {
		return
	}
	ca := r.cacheNamed(q.Tenant, q.Namespace, q.Cache)
	if ca == nil {
		return
	}
	c, err := ca.Shard(q.Shard)
	if err != nil {
		r.Fail(err)
		return
	}
	r.Behind(false)
	keys, more, err := c.Keys([]byte(q.Prefix), []byte(q.After), limit)
	if err != nil {
		r.Fail(err)
		return
	}
	if keys == nil {
		keys = []string{}
	}
	r.Answer(extended(m, wire.CacheKeys{Keys: keys, More: more}))
}
