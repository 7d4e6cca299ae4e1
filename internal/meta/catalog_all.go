package meta

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// MaxCreateAll bounds the definitions of one CreateAll: they are one transaction, with
// the namespace they are made in.
const MaxCreateAll = 256

// Definition is that of a stream or of a cache: one of the two is set.
type Definition struct {
	Stream *Stream
	Cache  *Cache
}

// FullName is the name of what is defined, with its parents.
func (d Definition) FullName() Name {
	if d.Stream != nil {
		return d.Stream.FullName()
	}
	return d.Cache.FullName()
}

// Durable says whether it has logs.
func (d Definition) Durable() bool { return d.Stream == nil || d.Stream.Durable }

func (d Definition) String() string {
	if d.Stream != nil {
		return "stream " + d.FullName().String()
	}
	return "cache " + d.FullName().String()
}

func (d Definition) key() string {
	if d.Stream != nil {
		return streamKey(d.FullName())
	}
	return cacheKey(d.FullName())
}

// clone is a copy that set can give back.
func (d Definition) clone() Definition {
	if d.Stream != nil {
		s := *d.Stream
		return Definition{Stream: &s}
	}
	c := *d.Cache
	return Definition{Cache: &c}
}

// set makes it what other, one of the same kind, is.
func (d Definition) set(other Definition) {
	if d.Stream != nil {
		*d.Stream = *other.Stream
		return
	}
	*d.Cache = *other.Cache
}

func (d Definition) incarnation() *uint64 {
	if d.Stream != nil {
		return &d.Stream.Incarnation
	}
	return &d.Cache.Incarnation
}

// complete applies the defaults and checks what comes of them.
func (d Definition) complete() error {
	if d.Stream != nil {
		*d.Stream = d.Stream.WithDefaults()
		return d.Stream.Validate()
	}
	*d.Cache = d.Cache.WithDefaults()
	return d.Cache.Validate()
}

func (d Definition) encode() []byte {
	if d.Stream != nil {
		return encode(d.Stream)
	}
	return encode(d.Cache)
}

// stored reads the stored form of one of the same kind.
func (d Definition) stored(value []byte) (have Definition, err error) {
	if d.Stream != nil {
		have.Stream, err = decode[Stream](d.String(), value)
	} else {
		have.Cache, err = decode[Cache](d.String(), value)
	}
	return have, err
}

func (d Definition) same(have Definition) error {
	if d.Stream != nil {
		return diff(d.String(), streamFields(have.Stream, d.Stream)...)
	}
	return diff(d.String(), cacheFields(have.Cache, d.Cache)...)
}

// One is the answer to a creation of one alone.
func One(created []bool, err error) (bool, error) {
	if e, ok := errors.AsType[*ItemError](err); ok {
		err = e.Err
	}
	return len(created) == 1 && created[0], err
}

// CreateAll makes streams and caches, all of them or none, in one transaction. created
// says which were made: one that was there with the same settings was not. The
// definitions get their defaults and the incarnation that is stored. An overflow that is
// not given is that of the stream that is there, whatever it is: its default has not
// always been the same. An error that is about one of them is an *ItemError.
func (c *Catalog) CreateAll(ctx context.Context, defs []Definition) (created []bool, err error) {
	if len(defs) > MaxCreateAll {
		return nil, fmt.Errorf("create %d streams and caches at once, at most %d: %w", len(defs), MaxCreateAll, ErrTooLarge)
	}
	var parents []parent
	items := make([]creation, len(defs))
	wanted := make([]Definition, len(defs))
	taken := make(map[string]bool, len(defs))
	for i, d := range defs {
		anyOverflow := d.Stream != nil && d.Stream.Overflow == ""
		if err := d.complete(); err != nil {
			return nil, &ItemError{Index: i, Err: err}
		}
		if taken[d.key()] {
			return nil, &ItemError{Index: i, Err: &InvalidError{Object: d.String(), Field: "name", Detail: "is given twice"}}
		}
		taken[d.key()] = true
		n := d.FullName()
		if p := namespaceParent(n.Tenant, n.Namespace); !slices.Contains(parents, p) {
			parents = append(parents, p)
		}
		*d.incarnation() = c.newIncarnation()
		wanted[i] = d.clone()
		items[i] = creation{d.key(), d.encode(), func(value []byte) error {
			have, err := d.stored(value)
			if err != nil {
				return err
			}
			*d.incarnation() = *have.incarnation()
			if anyOverflow {
				d.Stream.Overflow = have.Stream.Overflow
			}
			return d.same(have)
		}}
	}
	what := fmt.Sprintf("%d streams and caches", len(defs))
	if len(defs) == 1 {
		what = defs[0].String()
	}
	created, err = c.create(ctx, what, parents, items...)
	for i := range created {
		if created[i] {
			defs[i].set(wanted[i]) // nothing of one that an attempt that was lost had found
		}
	}
	return created, err
}

// RemoveAll takes back what CreateAll made, in one transaction. What was removed since,
// or made anew, is left alone.
func (c *Catalog) RemoveAll(ctx context.Context, defs []Definition) error {
	for range maxAttempts {
		var compares []Compare
		var ops []Op
		for _, d := range defs {
			e, err := c.store.Get(ctx, d.key())
			if errors.Is(err, ErrNotFound) {
				continue
			}
			if err != nil {
				return fmt.Errorf("take back %s: %w", d, err)
			}
			have, err := d.stored(e.Value)
			if err != nil {
				return err
			}
			if *have.incarnation() != *d.incarnation() {
				continue
			}
			compares = append(compares, Compare{Key: e.Key, Version: e.Version})
			ops = append(ops, Delete(e.Key))
		}
		if len(ops) == 0 {
			return nil
		}
		_, err := c.store.Txn(ctx, compares, ops)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrConflict), errors.Is(err, ErrUnknownOutcome) && ctx.Err() == nil:
		default:
			return fmt.Errorf("take back %d streams and caches: %w", len(ops), err)
		}
	}
	return fmt.Errorf("take back %d streams and caches: %d attempts lost: %w", len(defs), maxAttempts, ErrConflict)
}
