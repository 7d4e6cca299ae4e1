package meta

import (
	"context"
	"errors"
	"fmt"
)

// UpdateStream changes a stream by compare-and-set: change is called with what is
// stored, possibly several times. Name, kind, shards, replication factor, region,
// routing, durable and incarnation cannot change (*FixedError).
func (c *Catalog) UpdateStream(ctx context.Context, n Name, change func(*Stream) error) (*Stream, error) {
	object := "stream " + n.String()
	return update(ctx, c, object, streamKey(n), change, func(old, new *Stream) error {
		if err := fixed(object,
			field{"name", old.FullName(), new.FullName()}, field{"kind", old.Kind, new.Kind},
			field{"shards", old.Shards, new.Shards}, field{"replication_factor", old.ReplicationFactor, new.ReplicationFactor},
			field{"region", old.Region, new.Region}, field{"routing", old.Routing, new.Routing},
			field{"durable", old.Durable, new.Durable}, field{"incarnation", old.Incarnation, new.Incarnation}); err != nil {
			return err
		}
		return new.Validate()
	})
}

// UpdateCache changes a cache: display name, consistency, fsync, bounds and on_full.
func (c *Catalog) UpdateCache(ctx context.Context, n Name, change func(*Cache) error) (*Cache, error) {
	object := "cache " + n.String()
	return update(ctx, c, object, cacheKey(n), change, func(old, new *Cache) error {
		if err := fixed(object,
			field{"name", old.FullName(), new.FullName()}, field{"shards", old.Shards, new.Shards},
			field{"replication_factor", old.ReplicationFactor, new.ReplicationFactor},
			field{"routing", old.Routing, new.Routing}, field{"durable", old.Durable, new.Durable},
			field{"incarnation", old.Incarnation, new.Incarnation}); err != nil {
			return err
		}
		return new.Validate()
	})
}

// UpdateTenant changes a tenant's display name and quota.
func (c *Catalog) UpdateTenant(ctx context.Context, id string, change func(*Tenant) error) (*Tenant, error) {
	object := "tenant " + id
	return update(ctx, c, object, tenantKey(id), change, func(old, new *Tenant) error {
		if err := fixed(object, field{"id", old.ID, new.ID}, field{"deleting", old.Deleting, new.Deleting}); err != nil {
			return err
		}
		return new.Validate()
	})
}

// UpdateNamespace changes a namespace's display name.
func (c *Catalog) UpdateNamespace(ctx context.Context, tenant, name string, change func(*Namespace) error) (*Namespace, error) {
	object := "namespace " + tenant + "/" + name
	return update(ctx, c, object, namespaceKey(tenant, name), change, func(old, new *Namespace) error {
		if err := fixed(object, field{"name", old.Tenant + "/" + old.Name, new.Tenant + "/" + new.Name}, field{"deleting", old.Deleting, new.Deleting}); err != nil {
			return err
		}
		return new.Validate()
	})
}

func update[T any](ctx context.Context, c *Catalog, object, key string, change func(*T) error, check func(old, new *T) error) (*T, error) {
	for range maxAttempts {
		have, version, err := read[T](ctx, c, object, key)
		if err != nil {
			return nil, err
		}
		next := *have
		if err := change(&next); err != nil {
			return nil, err
		}
		if err := check(have, &next); err != nil {
			return nil, err
		}
		_, err = c.store.Txn(ctx, []Compare{{key, version}}, []Op{Put(key, encode(&next))})
		switch {
		case err == nil:
			return &next, nil
		case errors.Is(err, ErrConflict):
		default:
			return nil, fmt.Errorf("update %s: %w", object, err)
		}
	}
	return nil, fmt.Errorf("update %s: %d attempts lost: %w", object, maxAttempts, ErrConflict)
}

// DeleteStream removes a stream. ErrNotFound when there is none.
func (c *Catalog) DeleteStream(ctx context.Context, n Name) error {
	return c.remove(ctx, "stream "+n.String(), streamKey(n))
}

// DeleteCache removes a cache.
func (c *Catalog) DeleteCache(ctx context.Context, n Name) error {
	return c.remove(ctx, "cache "+n.String(), cacheKey(n))
}

// DeleteNamespace removes a namespace and all that is in it: it is marked first, so
// that nothing new is made below, and one that was interrupted is finished by calling
// it again.
func (c *Catalog) DeleteNamespace(ctx context.Context, tenant, name string) error {
	object := "namespace " + tenant + "/" + name
	key := namespaceKey(tenant, name)
	if _, err := update(ctx, c, object, key, func(n *Namespace) error { n.Deleting = true; return nil }, keep[Namespace]); err != nil {
		return err
	}
	for _, prefix := range []string{namesBelow(streamPrefix, tenant, name), namesBelow(cachePrefix, tenant, name)} {
		if err := c.removeBelow(ctx, object, prefix); err != nil {
			return err
		}
	}
	return c.remove(ctx, object, key)
}

// DeleteTenant removes a tenant and all that is in it, in the way of DeleteNamespace.
func (c *Catalog) DeleteTenant(ctx context.Context, id string) error {
	object := "tenant " + id
	if _, err := update(ctx, c, object, tenantKey(id), func(t *Tenant) error { t.Deleting = true; return nil }, keep[Tenant]); err != nil {
		return err
	}
	for {
		items, _, err := c.ListNamespaces(ctx, id, "", 0)
		if err != nil {
			return err
		}
		for _, n := range items {
			if err := c.DeleteNamespace(ctx, id, n.Name); err != nil && !errors.Is(err, ErrNotFound) {
				return err
			}
		}
		if len(items) == 0 {
			return c.remove(ctx, object, tenantKey(id))
		}
	}
}

func keep[T any](_, _ *T) error { return nil }

// remove deletes key at the version it has. Losing the race to another remover is
// ErrNotFound, as if it had come first.
func (c *Catalog) remove(ctx context.Context, object, key string) error {
	unknown := false
	for range maxAttempts {
		e, err := c.store.Get(ctx, key)
		if errors.Is(err, ErrNotFound) {
			if unknown {
				return nil
			}
			return &NotFoundError{Object: object}
		}
		if err != nil {
			return fmt.Errorf("delete %s: %w", object, err)
		}
		_, err = c.store.Txn(ctx, []Compare{{key, e.Version}}, []Op{Delete(key)})
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrUnknownOutcome) && ctx.Err() == nil:
			unknown = true
		case errors.Is(err, ErrConflict):
		default:
			return fmt.Errorf("delete %s: %w", object, err)
		}
	}
	return fmt.Errorf("delete %s: %d attempts lost: %w", object, maxAttempts, ErrConflict)
}

func (c *Catalog) removeBelow(ctx context.Context, object, prefix string) error {
	for {
		p, err := c.store.List(ctx, prefix, "", MaxTxnItems)
		if err != nil {
			return fmt.Errorf("delete %s: %w", object, err)
		}
		if len(p.Entries) == 0 {
			return nil
		}
		ops := make([]Op, len(p.Entries))
		for i, e := range p.Entries {
			ops[i] = Delete(e.Key)
		}
		// No compares: the parent is marked, so nothing below comes back, and an unknown
		// outcome shows in the next listing.
		if _, err := c.store.Txn(ctx, nil, ops); err != nil && (!errors.Is(err, ErrUnknownOutcome) || ctx.Err() != nil) {
			return fmt.Errorf("delete %s: %w", object, err)
		}
	}
}

// field is one setting of two versions of an object.
type field struct {
	name      string
	old, wish any
}

func diff(object string, fields ...field) error {
	for _, f := range fields {
		if f.old != f.wish {
			return &ExistsError{Object: object, Field: f.name}
		}
	}
	return nil
}

func fixed(object string, fields ...field) error {
	for _, f := range fields {
		if f.old != f.wish {
			return &FixedError{Object: object, Field: f.name}
		}
	}
	return nil
}

func streamFields(a, b *Stream) []field {
	return []field{
		{"kind", a.Kind, b.Kind}, {"shards", a.Shards, b.Shards}, {"replication_factor", a.ReplicationFactor, b.ReplicationFactor},
		{"consistency", a.Consistency, b.Consistency}, {"delivery", a.Delivery, b.Delivery}, {"durable", a.Durable, b.Durable},
		{"fsync", a.Fsync, b.Fsync}, {"retention", a.Retention, b.Retention}, {"overflow", a.Overflow, b.Overflow},
		{"routing", a.Routing, b.Routing}, {"max_record_bytes", a.RecordLimit(), b.RecordLimit()},
		{"store_publisher", a.StorePublisher, b.StorePublisher}, {"region", a.Region, b.Region},
	}
}

func cacheFields(a, b *Cache) []field {
	return []field{
		{"display_name", a.DisplayName, b.DisplayName}, {"shards", a.Shards, b.Shards},
		{"replication_factor", a.ReplicationFactor, b.ReplicationFactor}, {"consistency", a.Consistency, b.Consistency},
		{"durable", a.Durable, b.Durable}, {"fsync", a.Fsync, b.Fsync}, {"max_bytes", a.MaxBytes, b.MaxBytes},
		{"max_keys", a.MaxKeys, b.MaxKeys}, {"on_full", a.OnFull, b.OnFull}, {"routing", a.Routing, b.Routing},
	}
}
