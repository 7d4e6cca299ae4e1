package broker

import "maps"

// key is the full name of a stream or a cache.
type key struct{ tenant, namespace, name string }

// table is an immutable snapshot of the streams, or the caches, served. A change copies the small
// part; the large one is copied when the small one has grown to a share of it, so that
// making n streams one by one costs far less than n copies of all.
type table[T any] struct {
	large, small map[key]*T // nil in small: gone from large
}

const smallTable = 64

func (t *table[T]) get(k key) *T {
	if len(t.small) > 0 {
		if s, ok := t.small[k]; ok {
			return s
		}
	}
	return t.large[k]
}

// bytes is get without making strings.
func (t *table[T]) bytes(tenant, namespace, name []byte) *T {
	if len(t.small) > 0 {
		if s, ok := t.small[key{string(tenant), string(namespace), string(name)}]; ok {
			return s
		}
	}
	return t.large[key{string(tenant), string(namespace), string(name)}]
}

// with is the table after changes; a nil is a deletion.
func (t *table[T]) with(changes map[key]*T) *table[T] {
	if len(t.small)+len(changes) <= smallTable+len(t.large)/16 {
		small := make(map[key]*T, len(t.small)+len(changes))
		maps.Copy(small, t.small)
		maps.Copy(small, changes)
		return &table[T]{large: t.large, small: small}
	}
	large := make(map[key]*T, len(t.large)+len(t.small)+len(changes))
	maps.Copy(large, t.large)
	for _, m := range []map[key]*T{t.small, changes} {
		for k, s := range m {
			if s == nil {
				delete(large, k)
			} else {
				large[k] = s
			}
		}
	}
	return &table[T]{large: large}
}

// each calls f for each.
func (t *table[T]) each(f func(key, *T)) {
	for k, s := range t.small {
		if s != nil {
			f(k, s)
		}
	}
	for k, s := range t.large {
		if _, newer := t.small[k]; !newer {
			f(k, s)
		}
	}
}
