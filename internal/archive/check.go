package archive

import (
	"math"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/storage/segment"
)

// check compares the manifest with itself and with the entries.
func (v *verifier) check() error {
	shards, err := v.definitions()
	if err != nil {
		return err
	}
	if err := v.logs(shards); err != nil {
		return err
	}
	return v.listed()
}

// definitions checks what exists, and gives how many shards each log's owner has, by the
// kind of its first log.
func (v *verifier) definitions() (map[LogName]uint32, error) {
	known := map[string]bool{}
	once := func(object string) error {
		if known[object] {
			return damaged("names %s twice", object)
		}
		known[object] = true
		return nil
	}
	parent := func(object, below string) error {
		if !known[object] {
			return damaged("has %s without its %s", below, object)
		}
		return nil
	}
	shards := map[LogName]uint32{}
	for i := range v.Tenants {
		t := &v.Tenants[i]
		if err := firstError(invalid(t.Validate()), once("tenant "+t.ID)); err != nil {
			return nil, err
		}
	}
	for i := range v.Namespaces {
		n := &v.Namespaces[i]
		name := "namespace " + n.Tenant + "/" + n.Name
		if err := firstError(invalid(n.Validate()), parent("tenant "+n.Tenant, name), once(name)); err != nil {
			return nil, err
		}
	}
	add := func(kind Kind, n meta.Name, count uint32, logs bool, problem error) error {
		name := string(kind) + " " + n.String()
		if err := firstError(invalid(problem), parent("namespace "+n.Tenant+"/"+n.Namespace, name), once(name)); err != nil {
			return err
		}
		if logs {
			shards[LogName{Kind: kind, Tenant: n.Tenant, Namespace: n.Namespace, Name: n.Name}] = count
		}
		return nil
	}
	for i := range v.Streams {
		s := &v.Streams[i]
		if err := add(KindStream, s.FullName(), s.Shards, s.Durable, s.Validate()); err != nil {
			return nil, err
		}
	}
	for i := range v.Caches {
		c := &v.Caches[i]
		if err := add(KindCache, c.FullName(), c.Shards, true, c.Validate()); err != nil {
			return nil, err
		}
	}
	return shards, nil
}

func invalid(err error) error {
	if err == nil {
		return nil
	}
	return damaged("has an invalid definition: %v", err)
}

// logs checks that each log belongs to something, and that each shard has its log.
func (v *verifier) logs(shards map[LogName]uint32) error {
	main := map[Kind]Kind{KindStream: KindStream, KindGroups: KindStream, KindCache: KindCache, KindCounters: KindCache}
	seen := map[LogName]bool{}
	first := uint64(0) // logs of records or values
	for i := range v.Logs {
		l := &v.Logs[i]
		owner := l.LogName
		owner.Kind, owner.Shard = main[l.Kind], 0
		count, ok := shards[owner]
		switch {
		case !ok || l.Shard >= count:
			return damaged("has the log %s, which nothing it defines has", l.LogName)
		case seen[l.LogName]:
			return damaged("names the log %s twice", l.LogName)
		}
		seen[l.LogName] = true
		if l.Kind == owner.Kind {
			first++
		}
		if err := l.check(); err != nil {
			return err
		}
	}
	want := uint64(0)
	for _, n := range shards {
		want += uint64(n)
	}
	if first != want {
		return damaged("has the logs of %d shards, and defines %d", first, want)
	}
	return nil
}

// check compares the segments of a log with one another.
func (l *Log) check() error {
	if len(l.Segments) == 0 {
		return damaged("names the log %s without a segment", l.LogName)
	}
	next := l.First
	for i, s := range l.Segments {
		switch {
		case s.Bytes < segment.HeaderSize || s.Next < s.Base || i > 0 && s.ID <= l.Segments[i-1].ID || s.ID > math.MaxInt64:
			return damaged("has an impossible segment %d of the log %s", s.ID, l.LogName)
		case s.Base != next:
			return damaged("has a gap in the log %s: segment %d begins at %d, not at %d", l.LogName, s.ID, s.Base, next)
		}
		next = s.Next
	}
	if next != l.Next {
		return damaged("has the log %s end at %d, not at its cut %d", l.LogName, next, l.Next)
	}
	return nil
}

// listed checks that the manifest and the entries are of the same things.
func (v *verifier) listed() error {
	named := map[string]bool{}
	total := int64(0)
	one := func(name string, size int64, sum Checksum) error {
		e, ok := v.entries[name]
		switch {
		case named[name]:
			return damaged("names %s twice", name)
		case !ok:
			return damaged("names %s, which is not there", name)
		case e.size != size:
			return at(damaged("has %d bytes, and the manifest says %d", e.size, size), name, e.at)
		case e.sum != sum:
			return at(damaged("has checksum %08x, and the manifest says %08x", uint32(e.sum), uint32(sum)), name, e.at)
		}
		named[name] = true
		total += size
		return nil
	}
	for i := range v.Logs {
		l := &v.Logs[i]
		for _, s := range l.Segments {
			if err := one(l.entry(s.ID), s.Bytes, s.Checksum); err != nil {
				return err
			}
		}
	}
	for _, s := range v.Secrets {
		if err := one(secretsDir+"/"+s.Path, s.Bytes, s.Checksum); err != nil {
			return err
		}
	}
	for name, e := range v.entries {
		if !named[name] {
			return at(damaged("is not in the manifest"), name, e.at)
		}
	}
	if total != v.head.Bytes {
		return damaged("names %d bytes, and %s says %d", total, headName, v.head.Bytes)
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
