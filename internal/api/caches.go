package api

import (
	"net/http"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/wire"
)

// Cache is a cache as the API spells it, in requests and in answers.
type Cache struct {
	TenantID          string `json:"tenant_id,omitempty"`
	Namespace         string `json:"namespace,omitempty"`
	Cache             string `json:"cache"`
	DisplayName       string `json:"display_name"`
	Shards            uint32 `json:"shards"`
	ReplicationFactor uint32 `json:"replication_factor"`
	Consistency       string `json:"consistency"`
	// Ours: the broker's default, or no bound, when empty or zero.
	Fsync    string `json:"fsync,omitempty"`
	MaxBytes int64  `json:"max_bytes,omitempty"`
	MaxKeys  int64  `json:"max_keys,omitempty"`
	OnFull   string `json:"on_full,omitempty"`
}

// cacheBody is a create or a patch: every field may be missing.
type cacheBody struct {
	TenantID          string        `json:"tenant_id"`
	Namespace         string        `json:"namespace"`
	Cache             string        `json:"cache"`
	DisplayName       maybe[string] `json:"display_name"`
	Shards            maybe[uint32] `json:"shards"`
	ReplicationFactor maybe[uint32] `json:"replication_factor"`
	Consistency       maybe[string] `json:"consistency"`
	Fsync             maybe[string] `json:"fsync"`
	MaxBytes          maybe[int64]  `json:"max_bytes"`
	MaxKeys           maybe[int64]  `json:"max_keys"`
	OnFull            maybe[string] `json:"on_full"`
}

var onFulls = []spelling{{"evict", string(meta.OnFullEvict)}, {"refuse", string(meta.OnFullRefuse)}, {"", ""}}

// fill puts what b gives into c.
func (b *cacheBody) fill(c *meta.Cache) error {
	for _, err := range []error{
		choose(&c.Consistency, "consistency", b.Consistency, consistencies),
		choose(&c.Fsync, "fsync", b.Fsync, fsyncs),
		choose(&c.OnFull, "on_full", b.OnFull, onFulls),
	} {
		if err != nil {
			return err
		}
	}
	take(&c.DisplayName, b.DisplayName)
	take(&c.Shards, b.Shards)
	take(&c.ReplicationFactor, b.ReplicationFactor)
	take(&c.MaxBytes, b.MaxBytes)
	take(&c.MaxKeys, b.MaxKeys)
	switch {
	case b.Shards.value != nil && c.Shards == 0:
		return invalid("shards 0: a cache has at least 1")
	case b.ReplicationFactor.value != nil && c.ReplicationFactor == 0:
		return invalid("replication_factor 0: a shard has at least 1 replica")
	case c.MaxBytes < 0 || c.MaxKeys < 0:
		return invalid("max_bytes %d, max_keys %d: a bound is not negative; 0 is none", c.MaxBytes, c.MaxKeys)
	}
	return nil
}

func viewCache(c *meta.Cache) Cache {
	return Cache{
		TenantID: c.Tenant, Namespace: c.Namespace, Cache: c.Name, DisplayName: c.DisplayName,
		Shards: c.Shards, ReplicationFactor: c.ReplicationFactor, Consistency: show(consistencies, c.Consistency),
		Fsync: show(fsyncs, c.Fsync), MaxBytes: c.MaxBytes, MaxKeys: c.MaxKeys, OnFull: show(onFulls, c.OnFull),
	}
}

func (q *request) manageCache(name string) error {
	return q.need(auth.CacheManage, auth.CacheObject(q.path("t"), q.path("ns"), name))
}

func listCaches(q *request) (answer, error) {
	t, ns := q.path("t"), q.path("ns")
	return list(q, func(cursor string, limit int) ([]meta.Cache, string, error) {
		if _, err := q.Catalog.GetNamespace(q.http.Context(), t, ns); err != nil {
			return nil, "", err
		}
		return q.Catalog.ListCaches(q.http.Context(), t, ns, cursor, limit)
	}, func(c *meta.Cache) bool {
		return q.caller.Allows(auth.CacheManage, auth.CacheObject(t, ns, c.Name))
	}, viewCache)
}

func createCache(q *request) (answer, error) { return q.createOne(new(cacheBody)) }

// define is the cache that b asks for, if the caller may make it.
func (b *cacheBody) define(q *request) (meta.Definition, error) {
	if err := q.sameScope(b.TenantID, b.Namespace); err != nil {
		return meta.Definition{}, err
	}
	if err := wire.ValidName(b.Cache); err != nil {
		return meta.Definition{}, invalid("cache: %v", err)
	}
	if err := q.manageCache(b.Cache); err != nil {
		return meta.Definition{}, err
	}
	c := meta.Cache{Tenant: q.path("t"), Namespace: q.path("ns"), Name: b.Cache, Durable: true}
	if err := b.fill(&c); err != nil {
		return meta.Definition{}, err
	}
	return meta.Definition{Cache: &c}, nil
}

func getCache(q *request) (answer, error) {
	if err := q.manageCache(q.path("name")); err != nil {
		return answer{}, err
	}
	c, err := q.Catalog.GetCache(q.http.Context(), q.streamName())
	if err != nil {
		return answer{}, err
	}
	return answer{http.StatusOK, viewCache(c)}, nil
}

func patchCache(q *request) (answer, error) {
	if err := q.manageCache(q.path("name")); err != nil {
		return answer{}, err
	}
	var b cacheBody
	if err := q.body(&b); err != nil {
		return answer{}, err
	}
	if err := q.sameScope(b.TenantID, b.Namespace); err != nil {
		return answer{}, err
	}
	if b.Cache != "" && b.Cache != q.path("name") {
		return answer{}, invalid("cache %q is not the cache of the path: names cannot change", b.Cache)
	}
	c, err := q.Catalog.UpdateCache(q.http.Context(), q.streamName(), b.fill)
	if err != nil {
		return answer{}, err
	}
	return answer{http.StatusOK, viewCache(c)}, nil
}

func deleteCache(q *request) (answer, error) {
	if err := q.manageCache(q.path("name")); err != nil {
		return answer{}, err
	}
	n := q.streamName()
	if err := q.Streams.DeleteCache(q.http.Context(), n.Tenant, n.Namespace, n.Name); err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusNoContent}, nil
}
