package broker

import "maps"

// key is a stream's full name.
type key struct{ tenant, namespace, name string }

// table is an immutable snapshot of the streams served. A change copies the small
// part; the large one is copied when the small one has grown to a share of it, so that
// making n streams one by one costs far less than n copies of all.
type table struct {
	large, small map[key]*Stream // nil in small: gone from large
}

const smallTable = 64

func (t *table) get(k key) *Stream {
	if len(t.small) > 0 {
		if s, ok := t.small[k]; ok {
			return s
		}
	}
	return t.large[k]
}

// bytes is get without making strings.
func (t *table) bytes(tenant, namespace, name []byte) *Stream {
	if len(t.small) > 0 {
		if s, ok := t.small[key{string(tenant), string(namespace), string(name)}]; ok {
			return s
		}
	}
	return t.large[key{string(tenant), string(namespace), string(name)}]
}

// with is the table after changes; a nil stream is a deletion.
func (t *table) with(changes map[key]*Stream) *table {
	if len(t.small)+len(changes) <= smallTable+len(t.large)/16 {
		small := make(map[key]*Stream, len(t.small)+len(changes))
		maps.Copy(small, t.small)
		maps.Copy(small, changes)
		return &table{large: t.large, small: small}
	}
	large := make(map[key]*Stream, len(t.large)+len(t.small)+len(changes))
	maps.Copy(large, t.large)
	for _, m := range []map[key]*Stream{t.small, changes} {
		for k, s := range m {
			if s == nil {
				delete(large, k)
			} else {
				large[k] = s
			}
		}
	}
	return &table{large: large}
}

// each calls f for every stream.
func (t *table) each(f func(key, *Stream)) {
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
