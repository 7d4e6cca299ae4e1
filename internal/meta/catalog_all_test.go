package meta_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/felixlog/felix/internal/meta"
)

// several are n streams s0, s1, ... and the cache c, of namespace t/ns.
func several(n int) []meta.Definition {
	var defs []meta.Definition
	for i := range n {
		defs = append(defs, meta.Definition{Stream: &meta.Stream{Tenant: "t", Namespace: "ns", Name: fmt.Sprintf("s%d", i), Durable: true}})
	}
	return append(defs, meta.Definition{Cache: &meta.Cache{Tenant: "t", Namespace: "ns", Name: "c", Durable: true}})
}

func wantNames(t *testing.T, c *meta.Catalog, want ...string) {
	t.Helper()
	streams, _, err := c.ListStreams(context.Background(), "t", "ns", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	caches, _, err := c.ListCaches(context.Background(), "t", "ns", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, s := range streams {
		have = append(have, s.Name)
	}
	for _, ca := range caches {
		have = append(have, ca.Name)
	}
	if !slices.Equal(have, want) {
		t.Fatalf("there are %q, not %q", have, want)
	}
}

// As many as are allowed come in one change, so that a kill finds all of them or none.
func TestCatalogCreatesAllInOneTransaction(t *testing.T) {
	ctx := context.Background()
	c, _ := newCatalog(t)
	create(t, c)
	w, err := c.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.Next(ctx); err != nil {
		t.Fatal(err)
	}
	defs := several(meta.MaxCreateAll - 1)
	created, err := c.CreateAll(ctx, defs)
	if err != nil || len(created) != meta.MaxCreateAll || slices.Contains(created, false) {
		t.Fatalf("%v, %v", created, err)
	}
	u, err := w.Next(ctx)
	if err != nil || len(u.Changes) != meta.MaxCreateAll {
		t.Fatalf("%d changes at once, %v", len(u.Changes), err)
	}
	if have, err := c.GetStream(ctx, defs[7].FullName()); err != nil || *have != *defs[7].Stream || have.Incarnation == 0 || have.Shards != 1 {
		t.Fatalf("%+v, %v; given %+v", have, err, defs[7].Stream)
	}
	if err := c.RemoveAll(ctx, defs); err != nil {
		t.Fatal(err)
	}
	if u, err = w.Next(ctx); err != nil || len(u.Changes) != meta.MaxCreateAll || !u.Changes[0].Deleted {
		t.Fatalf("%d changes at once, %v", len(u.Changes), err)
	}
	if _, err := c.CreateAll(ctx, several(meta.MaxCreateAll)); !errors.Is(err, meta.ErrTooLarge) {
		t.Fatal(err)
	}
	wantNames(t, c)
}

// What stands in the way of one is named by its index, and keeps the others from being made.
func TestCatalogCreatesAllOrNone(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]struct {
		change func(defs []meta.Definition)
		index  int
		is     func(error) bool
	}{
		"settings": {func(d []meta.Definition) { d[2].Stream.Shards = meta.MaxShards + 1 }, 2, isA[*meta.InvalidError]},
		"name":     {func(d []meta.Definition) { d[3].Cache.Name = ".." }, 3, isA[*meta.InvalidError]},
		"twice":    {func(d []meta.Definition) { d[2].Stream.Name = "s0" }, 2, isA[*meta.InvalidError]},
		"another":  {func(d []meta.Definition) { d[1].Stream.Name, d[1].Stream.Shards = "s", 2 }, 1, isA[*meta.ExistsError]},
	} {
		t.Run(name, func(t *testing.T) {
			catalog, _ := newCatalog(t)
			create(t, catalog, "s")
			defs := several(3)
			c.change(defs)
			_, err := catalog.CreateAll(ctx, defs)
			var item *meta.ItemError
			if !errors.As(err, &item) || item.Index != c.index || !c.is(err) {
				t.Fatal(err)
			}
			wantNames(t, catalog, "s")
		})
	}
	catalog, _ := newCatalog(t)
	create(t, catalog)
	defs := several(1)
	defs[0].Stream.Namespace = "none"
	if _, err := catalog.CreateAll(ctx, defs); !errors.Is(err, meta.ErrNotFound) {
		t.Fatal(err)
	}
	wantNames(t, catalog)
}

func isA[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

// What is there with the same settings stays what it is and is not taken back.
func TestCatalogCreateAllLeavesTheSameAlone(t *testing.T) {
	ctx := context.Background()
	c, _ := newCatalog(t)
	create(t, c, "s1")
	before, err := c.GetStream(ctx, meta.Name{Tenant: "t", Namespace: "ns", Name: "s1"})
	if err != nil {
		t.Fatal(err)
	}
	defs := several(3)
	created, err := c.CreateAll(ctx, defs)
	if err != nil || !slices.Equal(created, []bool{true, false, true, true}) || defs[1].Stream.Incarnation != before.Incarnation {
		t.Fatalf("%v, %v", created, err)
	}
	wantNames(t, c, "s0", "s1", "s2", "c")
	again := several(3)
	if created, err = c.CreateAll(ctx, again); err != nil || slices.Contains(created, true) {
		t.Fatalf("%v, %v", created, err)
	}
	// One that another made anew is not ours to take back.
	if err := c.DeleteStream(ctx, defs[0].FullName()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateStream(ctx, meta.Stream{Tenant: "t", Namespace: "ns", Name: "s0"}); err != nil {
		t.Fatal(err)
	}
	if err := c.RemoveAll(ctx, []meta.Definition{defs[0], defs[2], defs[3]}); err != nil {
		t.Fatal(err)
	}
	wantNames(t, c, "s0", "s1")
}

// An item that comes, goes or changes between the look and the transaction has all looked
// at again.
func TestCatalogCreateAllMeetsOthers(t *testing.T) {
	ctx := context.Background()
	other := func(shards uint32) meta.Stream {
		return meta.Stream{Tenant: "t", Namespace: "ns", Name: "s1", Durable: true, Shards: shards}
	}
	for name, c := range map[string]struct {
		before bool // s1 is there
		meet   func(c *meta.Catalog) error
		want   []bool
		left   []string
	}{
		"another came":      {false, func(c *meta.Catalog) error { _, err := c.CreateStream(ctx, other(2)); return err }, nil, []string{"s1"}},
		"the same came":     {false, func(c *meta.Catalog) error { _, err := c.CreateStream(ctx, other(1)); return err }, []bool{true, false, true}, []string{"s0", "s1", "c"}},
		"the same went":     {true, func(c *meta.Catalog) error { s := other(1); return c.DeleteStream(ctx, s.FullName()) }, []bool{true, true, true}, []string{"s0", "s1", "c"}},
		"the namespace too": {true, func(c *meta.Catalog) error { return c.DeleteNamespace(ctx, "t", "ns") }, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			catalog, m := newCatalog(t)
			create(t, catalog)
			if c.before {
				if _, err := catalog.CreateStream(ctx, other(1)); err != nil {
					t.Fatal(err)
				}
			}
			met := false
			m.SetFault(func(call meta.Call) meta.Fault {
				if call.Method == "txn" && !met {
					met = true
					if err := c.meet(catalog); err != nil {
						t.Error(err)
					}
				}
				return meta.Fault{}
			})
			defs := several(2)
			created, err := catalog.CreateAll(ctx, defs)
			if !slices.Equal(created, c.want) || (err == nil) != (c.want != nil) {
				t.Fatalf("%v, %v", created, err)
			}
			wantNames(t, catalog, c.left...)
			for i := range created {
				if created[i] && defs[i].Stream != nil {
					if have, err := catalog.GetStream(ctx, defs[i].FullName()); err != nil || have.Incarnation != defs[i].Stream.Incarnation {
						t.Fatalf("%s: %+v, %v", defs[i], have, err)
					}
				}
			}
		})
	}
}

func TestCatalogCreateAllResolvesAnUnknownOutcome(t *testing.T) {
	ctx := context.Background()
	c, m := newCatalog(t)
	create(t, c, "s1")
	txns := 0
	m.SetFault(func(call meta.Call) meta.Fault {
		if call.Method != "txn" {
			return meta.Fault{}
		}
		txns++
		return meta.Fault{LoseAnswer: txns%2 == 1}
	})
	defs := several(2)
	created, err := c.CreateAll(ctx, defs)
	if err != nil || !slices.Equal(created, []bool{true, false, true}) {
		t.Fatalf("%v, %v", created, err)
	}
	txns = 0
	if err := c.RemoveAll(ctx, []meta.Definition{defs[0], defs[2]}); err != nil {
		t.Fatal(err)
	}
	wantNames(t, c, "s1")
}

// Who does not say what happens to a subscriber that is behind agrees with what is stored,
// of whatever default that was made; who says it does not.
func TestCatalogCreateTakesTheOverflowThatIsThere(t *testing.T) {
	ctx := context.Background()
	c, m := newCatalog(t)
	create(t, c)
	live := func(o meta.Overflow) []meta.Definition {
		defs := several(1)
		defs[0].Stream.Durable, defs[0].Stream.Overflow = false, o
		return defs
	}
	stored := *live(meta.OverflowBlock)[0].Stream
	if created, err := c.CreateStream(ctx, stored); err != nil || !created {
		t.Fatal(created, err)
	}
	if created, err := c.CreateStream(ctx, *live("")[0].Stream); err != nil || created {
		t.Fatal(created, err)
	}
	defs := live("")
	created, err := c.CreateAll(ctx, defs)
	if err != nil || !slices.Equal(created, []bool{false, true}) || defs[0].Stream.Overflow != meta.OverflowBlock {
		t.Fatalf("%v, %v; %+v", created, err, defs[0].Stream)
	}
	if _, err := c.CreateAll(ctx, live(meta.OverflowBlock)); err != nil {
		t.Fatal(err)
	}
	_, err = c.CreateAll(ctx, live(meta.OverflowDropNew))
	if e, ok := errors.AsType[*meta.ExistsError](err); !ok || e.Field != "overflow" {
		t.Fatal(err)
	}
	// One that goes between the look and the transaction leaves nothing of itself.
	if err := c.DeleteCache(ctx, defs[1].FullName()); err != nil {
		t.Fatal(err)
	}
	went := false
	m.SetFault(func(call meta.Call) meta.Fault {
		if call.Method == "txn" && !went {
			went = true
			if err := c.DeleteStream(ctx, stored.FullName()); err != nil {
				t.Error(err)
			}
		}
		return meta.Fault{}
	})
	defs = live("")
	if created, err = c.CreateAll(ctx, defs); err != nil || !slices.Equal(created, []bool{true, true}) {
		t.Fatalf("%v, %v", created, err)
	}
	if have, err := c.GetStream(ctx, stored.FullName()); err != nil || have.Overflow != meta.OverflowDropNew || *have != *defs[0].Stream {
		t.Fatalf("%+v, %v; given %+v", have, err, defs[0].Stream)
	}
}

// What was written is not said to be undone because it cannot be read then.
func TestCatalogCreateAllKeepsAnUnknownOutcome(t *testing.T) {
	ctx := context.Background()
	c, m := newCatalog(t)
	create(t, c)
	lost := false
	m.SetFault(func(call meta.Call) meta.Fault {
		if lost {
			return meta.Fault{Refuse: true}
		}
		lost = call.Method == "txn"
		return meta.Fault{LoseAnswer: lost}
	})
	if _, err := c.CreateAll(ctx, several(1)); !errors.Is(err, meta.ErrUnknownOutcome) || !errors.Is(err, meta.ErrUnavailable) {
		t.Fatal(err)
	}
	m.SetFault(nil)
	wantNames(t, c, "s0", "c")
}
