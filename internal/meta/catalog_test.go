package meta_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/felixlog/felix/internal/meta"
)

func newCatalog(t *testing.T) (*meta.Catalog, *meta.Memory) {
	t.Helper()
	m := meta.NewMemory(meta.MemoryOptions{})
	var next atomic.Uint64
	c := meta.NewCatalogWith(m, meta.CatalogOptions{Random: func() uint64 { return next.Add(1) - 1 }})
	t.Cleanup(m.Close)
	return c, m
}

func create(t *testing.T, c *meta.Catalog, streams ...string) {
	t.Helper()
	ctx := context.Background()
	if _, err := c.CreateTenant(ctx, meta.Tenant{ID: "t"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateNamespace(ctx, meta.Namespace{Tenant: "t", Name: "ns"}); err != nil {
		t.Fatal(err)
	}
	for _, s := range streams {
		if _, err := c.CreateStream(ctx, meta.Stream{Tenant: "t", Namespace: "ns", Name: s, Durable: true}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCatalogCreateIsIdempotentForTheSame(t *testing.T) {
	ctx := context.Background()
	c, _ := newCatalog(t)
	create(t, c, "s")
	s, err := c.GetStream(ctx, meta.Name{Tenant: "t", Namespace: "ns", Name: "s"})
	if err != nil || s.Incarnation == 0 || s.Shards != 1 || s.Routing != meta.RoutingModulo {
		t.Fatalf("%+v, %v", s, err)
	}
	created, err := c.CreateStream(ctx, meta.Stream{Tenant: "t", Namespace: "ns", Name: "s", Durable: true})
	if created || err != nil {
		t.Fatalf("the same again: %t, %v", created, err)
	}
	var exists *meta.ExistsError
	if _, err = c.CreateStream(ctx, meta.Stream{Tenant: "t", Namespace: "ns", Name: "s", Durable: true, Shards: 2}); !errors.As(err, &exists) || exists.Field != "shards" {
		t.Fatalf("another one: %v", err)
	}
	again, err := c.GetStream(ctx, s.FullName())
	if err != nil || again.Incarnation != s.Incarnation {
		t.Fatalf("%+v, %v", again, err)
	}
	if err := c.DeleteStream(ctx, s.FullName()); err != nil {
		t.Fatal(err)
	}
	create(t, c, "s")
	if again, err = c.GetStream(ctx, s.FullName()); err != nil || again.Incarnation == s.Incarnation {
		t.Fatalf("made anew: %+v, %v", again, err)
	}
}

func TestCatalogRefusesBadNamesAndSettings(t *testing.T) {
	ctx := context.Background()
	c, m := newCatalog(t)
	create(t, c)
	before := m.Version()
	long := make([]byte, 10<<10)
	for i := range long {
		long[i] = 'a'
	}
	var invalid *meta.InvalidError
	for _, name := range []string{"", ".", "..", "a/../b", "a\x00b", string(long), "\xff\xfe", "-a", "a b", "ä"} {
		if _, err := c.CreateStream(ctx, meta.Stream{Tenant: "t", Namespace: "ns", Name: name}); !errors.As(err, &invalid) || invalid.Field != "name" {
			t.Errorf("name %.20q: %v", name, err)
		}
	}
	for field, s := range map[string]meta.Stream{
		"shards":             {Shards: meta.MaxShards + 1},
		"replication_factor": {ReplicationFactor: 8},
		"kind":               {Kind: "topic"},
		"fsync":              {Fsync: "sometimes"},
		"durable":            {Kind: meta.KindQueue},
		"max_record_bytes":   {MaxRecordBytes: 65 << 20},
		"retention.max_age":  {Retention: meta.Retention{MaxAge: -1}},
		"overflow":           {Overflow: "drop"},
		"routing":            {Routing: "random"},
		"consistency":        {Consistency: "some"},
	} {
		s.Tenant, s.Namespace, s.Name = "t", "ns", "s"
		if _, err := c.CreateStream(ctx, s); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if m.Version() != before {
		t.Error("a refused definition was written")
	}
}

func TestCatalogChildrenNeedTheirParents(t *testing.T) {
	ctx := context.Background()
	c, _ := newCatalog(t)
	if _, err := c.CreateNamespace(ctx, meta.Namespace{Tenant: "t", Name: "ns"}); !errors.Is(err, meta.ErrNotFound) {
		t.Fatalf("namespace without tenant: %v", err)
	}
	create(t, c, "a", "b")
	if err := c.DeleteTenant(ctx, "t"); err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{"def/"} {
		p, err := c.Store().List(ctx, prefix, "", 0)
		if err != nil || len(p.Entries) != 0 {
			t.Fatalf("left behind: %v, %v", p.Entries, err)
		}
	}
	if err := c.DeleteTenant(ctx, "t"); !errors.Is(err, meta.ErrNotFound) {
		t.Fatalf("deleted twice: %v", err)
	}
}

// A stream created while its namespace is deleted is either refused or deleted with it.
func TestCatalogCreateRacesDelete(t *testing.T) {
	ctx := context.Background()
	for range 50 {
		c, _ := newCatalog(t)
		create(t, c, "a")
		var wg sync.WaitGroup
		errs := make(chan error, 2)
		wg.Go(func() {
			_, err := c.CreateStream(ctx, meta.Stream{Tenant: "t", Namespace: "ns", Name: "b"})
			if err != nil && !errors.Is(err, meta.ErrNotFound) {
				errs <- err
			}
		})
		wg.Go(func() {
			if err := c.DeleteNamespace(ctx, "t", "ns"); err != nil {
				errs <- err
			}
		})
		wg.Wait()
		close(errs)
		for err := range errs {
			t.Fatal(err)
		}
		p, err := c.Store().List(ctx, "def/stream/", "", 0)
		if err != nil || len(p.Entries) != 0 {
			t.Fatalf("an orphan: %v, %v", p.Entries, err)
		}
	}
}

func TestCatalogOneOfManyCreates(t *testing.T) {
	ctx := context.Background()
	c, _ := newCatalog(t)
	create(t, c)
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for range 50 {
		wg.Go(func() {
			created, err := c.CreateStream(ctx, meta.Stream{Tenant: "t", Namespace: "ns", Name: "s"})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			if created {
				made++
			}
		})
	}
	wg.Wait()
	if made != 1 {
		t.Fatalf("%d of 50 made it", made)
	}
}

func TestCatalogUnknownOutcomeIsResolved(t *testing.T) {
	ctx := context.Background()
	c, m := newCatalog(t)
	create(t, c)
	n := 0
	m.SetFault(func(call meta.Call) meta.Fault {
		if call.Method != "txn" {
			return meta.Fault{}
		}
		n++
		return meta.Fault{LoseAnswer: n == 1}
	})
	created, err := c.CreateStream(ctx, meta.Stream{Tenant: "t", Namespace: "ns", Name: "s"})
	if !created || err != nil {
		t.Fatalf("%t, %v", created, err)
	}
	n = 0
	if err := c.DeleteStream(ctx, meta.Name{Tenant: "t", Namespace: "ns", Name: "s"}); err != nil {
		t.Fatal(err)
	}
}

func TestCatalogUpdate(t *testing.T) {
	ctx := context.Background()
	c, _ := newCatalog(t)
	create(t, c, "s")
	name := meta.Name{Tenant: "t", Namespace: "ns", Name: "s"}
	s, err := c.UpdateStream(ctx, name, func(s *meta.Stream) error { s.Retention.MaxBytes = 7; return nil })
	if err != nil || s.Retention.MaxBytes != 7 {
		t.Fatalf("%+v, %v", s, err)
	}
	var fixed *meta.FixedError
	if _, err := c.UpdateStream(ctx, name, func(s *meta.Stream) error { s.Shards = 9; return nil }); !errors.As(err, &fixed) || fixed.Field != "shards" {
		t.Fatalf("shards: %v", err)
	}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if _, err := c.UpdateStream(ctx, name, func(s *meta.Stream) error { s.Retention.MaxBytes++; return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if s, err = c.GetStream(ctx, name); err != nil || s.Retention.MaxBytes != 17 {
		t.Fatalf("%+v, %v", s, err)
	}
}

func TestCatalogListsInPages(t *testing.T) {
	ctx := context.Background()
	c, _ := newCatalog(t)
	create(t, c)
	for i := range 25 {
		create(t, c, fmt.Sprintf("s%02d", i))
	}
	var got []string
	cursor := ""
	for {
		items, next, err := c.ListStreams(ctx, "t", "ns", cursor, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range items {
			got = append(got, s.Name)
		}
		if next == "" {
			break
		}
		cursor = next
	}
	if len(got) != 25 || got[0] != "s00" || got[24] != "s24" {
		t.Fatalf("%v", got)
	}
	if _, _, err := c.ListStreams(ctx, "t", "ns", "", meta.MaxListLimit+1); err == nil {
		t.Fatal("a limit over the maximum was taken")
	}
}

func TestCatalogWatch(t *testing.T) {
	ctx := context.Background()
	c, m := newCatalog(t)
	create(t, c, "a")
	w, err := c.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	next := func() *meta.Update {
		t.Helper()
		u, err := w.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	u := next()
	if !u.Reset || len(u.Changes) != 3 || u.Changes[0].Tenant == nil || u.Changes[1].Namespace == nil || u.Changes[2].Stream == nil || u.Changes[2].Stream.Name != "a" {
		t.Fatalf("first: %+v", u)
	}
	create(t, c, "b")
	if u = next(); u.Reset || len(u.Changes) != 1 || u.Changes[0].Stream.Name != "b" || u.Changes[0].Deleted {
		t.Fatalf("created: %+v", u)
	}
	b := m.Backup()
	if err := c.DeleteStream(ctx, meta.Name{Tenant: "t", Namespace: "ns", Name: "a"}); err != nil {
		t.Fatal(err)
	}
	if u = next(); u.Reset || !u.Changes[0].Deleted || u.Changes[0].Stream.Name != "a" || u.Changes[0].Stream.Namespace != "ns" {
		t.Fatalf("deleted: %+v", u)
	}
	m.Restore(b)
	if u = next(); !u.Reset || len(u.Changes) != 4 {
		t.Fatalf("after a restore: %+v", u)
	}
	// A key of a kind to come is passed over.
	if _, err := m.Txn(ctx, nil, []meta.Op{meta.Put("def/policy/x", []byte("{}"))}); err != nil {
		t.Fatal(err)
	}
	a := &meta.Assignment{Shard: meta.ShardKey{Kind: meta.ShardOfStream, Name: meta.Name{Tenant: "t", Namespace: "ns", Name: "a"}, Shard: 3}, Incarnation: 1, Members: []meta.Member{{Node: "n1", Disk: 1}}}
	if err := a.Validate(); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Txn(ctx, nil, []meta.Op{meta.Put(meta.AssignmentKey(a.Shard), meta.EncodeAssignment(a))}); err != nil {
		t.Fatal(err)
	}
	if u = next(); len(u.Changes) != 1 || u.Changes[0].Assignment == nil || u.Changes[0].Assignment.Shard != a.Shard {
		t.Fatalf("assignment: %+v", u)
	}
	if _, err := m.Txn(ctx, nil, []meta.Op{meta.Delete(meta.AssignmentKey(a.Shard))}); err != nil {
		t.Fatal(err)
	}
	if u = next(); !u.Changes[0].Deleted || u.Changes[0].Assignment.Shard != a.Shard {
		t.Fatalf("assignment deleted: %+v", u.Changes[0].Assignment)
	}
}
