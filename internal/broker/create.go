package broker

import (
	"context"
	"errors"

	"github.com/felixlog/felix/internal/meta"
)

// CreateAll writes streams and caches to the catalog, all of them or none, and waits until
// they are served here. created says which were not there already; the definitions get
// what [meta.Catalog.CreateAll] gives them. An error about one of them is a
// *meta.ItemError. ctx ends the waiting, not the creation: with created not nil an error
// says that all are made, and why they were not waited for. One that is removed while it
// is waited for was made all the same.
func (b *Broker) CreateAll(ctx context.Context, defs []meta.Definition) (created []bool, err error) {
	if b.draining.Load() {
		return nil, ErrDraining
	}
	for i, d := range defs {
		if err := b.check(d); err != nil {
			return nil, &meta.ItemError{Index: i, Err: err}
		}
	}
	created, err = b.o.Catalog.CreateAll(ctx, defs)
	if err != nil {
		return nil, err
	}
	for i, d := range defs {
		if err := b.awaitServed(ctx, d); err != nil && !errors.Is(err, meta.ErrNotFound) {
			return created, &meta.ItemError{Index: i, Err: err}
		}
	}
	return created, nil
}

func (b *Broker) check(d meta.Definition) error {
	if d.Stream != nil {
		return b.CheckStream(*d.Stream)
	}
	return b.CheckCache(*d.Cache)
}

// RemoveAll takes back what CreateAll made, all of it at once, and waits until it is not
// served here any more. ctx or a stop of the broker ends the waiting, not the removal, and
// is no error: none of it is in the catalog.
func (b *Broker) RemoveAll(ctx context.Context, defs []meta.Definition) error {
	removed := false
	err := b.withdraw(ctx, defs, func() error {
		err := b.o.Catalog.RemoveAll(context.WithoutCancel(ctx), defs)
		removed = err == nil
		return err
	})
	if removed {
		return nil
	}
	return err
}

// CreateStream is CreateAll of one stream.
func (b *Broker) CreateStream(ctx context.Context, s meta.Stream) (created bool, err error) {
	return meta.One(b.CreateAll(ctx, []meta.Definition{{Stream: &s}}))
}

// CreateCache is CreateAll of one cache.
func (b *Broker) CreateCache(ctx context.Context, c meta.Cache) (created bool, err error) {
	return meta.One(b.CreateAll(ctx, []meta.Definition{{Cache: &c}}))
}

// DeleteStream removes a stream from the catalog and waits until it is not served here
// any more. Its directories are removed later.
func (b *Broker) DeleteStream(ctx context.Context, tenant, namespace, name string) error {
	d := namedStream(tenant, namespace, name)
	return b.withdraw(ctx, []meta.Definition{d}, func() error { return b.o.Catalog.DeleteStream(ctx, d.FullName()) })
}

// DeleteCache is DeleteStream for a cache.
func (b *Broker) DeleteCache(ctx context.Context, tenant, namespace, name string) error {
	d := namedCache(tenant, namespace, name)
	return b.withdraw(ctx, []meta.Definition{d}, func() error { return b.o.Catalog.DeleteCache(ctx, d.FullName()) })
}

func namedStream(tenant, namespace, name string) meta.Definition {
	return meta.Definition{Stream: &meta.Stream{Tenant: tenant, Namespace: namespace, Name: name}}
}

func namedCache(tenant, namespace, name string) meta.Definition {
	return meta.Definition{Cache: &meta.Cache{Tenant: tenant, Namespace: namespace, Name: name}}
}

// withdraw waits until what was served of defs before write is not any more.
func (b *Broker) withdraw(ctx context.Context, defs []meta.Definition, write func() error) error {
	old := make([]*resource, len(defs))
	for i, d := range defs {
		old[i] = b.served(d)
	}
	if err := write(); err != nil {
		return err
	}
	return b.await(ctx, func() (bool, error) {
		for i, d := range defs {
			if old[i] != nil && b.served(d) == old[i] {
				return false, nil
			}
		}
		return true, nil
	})
}

// served is what serves the name of a definition, nil if nothing does.
func (b *Broker) served(d meta.Definition) *resource {
	n := d.FullName()
	k := key{n.Tenant, n.Namespace, n.Name}
	if d.Stream != nil {
		if s := b.table.Load().get(k); s != nil {
			return &s.resource
		}
		return nil
	}
	if c := b.caches.Load().get(k); c != nil {
		return &c.resource
	}
	return nil
}

// AwaitStream waits until a stream that is in the catalog is served here: found, and
// none of its shards being opened. A damaged shard ends the waiting too.
func (b *Broker) AwaitStream(ctx context.Context, tenant, namespace, name string) error {
	return b.awaitServed(ctx, namedStream(tenant, namespace, name))
}

// AwaitCache is AwaitStream for a cache.
func (b *Broker) AwaitCache(ctx context.Context, tenant, namespace, name string) error {
	return b.awaitServed(ctx, namedCache(tenant, namespace, name))
}

func (b *Broker) awaitServed(ctx context.Context, d meta.Definition) error {
	want, err := b.wanted(ctx, d)
	if err != nil {
		return err
	}
	return b.await(ctx, func() (bool, error) {
		r := b.served(d)
		if r == nil || r.def.incarnation() != want {
			want, err = b.wanted(ctx, d)
			return false, err
		}
		return !r.opening(), nil
	})
}

// wanted is the incarnation that the catalog has of a name.
func (b *Broker) wanted(ctx context.Context, d meta.Definition) (uint64, error) {
	if d.Stream != nil {
		s, err := b.o.Catalog.GetStream(ctx, d.FullName())
		if err != nil {
			return 0, err
		}
		return s.Incarnation, nil
	}
	c, err := b.o.Catalog.GetCache(ctx, d.FullName())
	if err != nil {
		return 0, err
	}
	return c.Incarnation, nil
}
