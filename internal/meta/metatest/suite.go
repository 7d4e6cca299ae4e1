package metatest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/felixlog/felix/internal/meta"
)

// waitTime bounds how long a test waits for an event it caused.
const waitTime = 10 * time.Second

// Run runs the suite. open opens an empty store and registers its end with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) meta.Store) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, s meta.Store)
	}{
		{"an absent key is not found", absent},
		{"a written key is read back with its version", writtenKey},
		{"versions rise with every transaction", versionsRise},
		{"a compare that fails writes nothing", compareFails},
		{"a compare of zero wants the key absent", compareAbsent},
		{"a transaction is all or nothing over several keys", allOrNothing},
		{"racing compare-and-sets: one wins each version", race},
		{"listing is ordered, by prefix, in pages", listing},
		{"a deleted key is gone and may come back", deleted},
		{"values are the caller's own", valuesCopied},
		{"limits are refused by name", limits},
		{"a watch sees everything after its version, once, in order", watchOrder},
		{"a watch hands out a transaction whole", watchWhole},
		{"a watch sees its prefix only", watchPrefix},
		{"a list and a watch from its version miss nothing", listThenWatch},
		{"closing a watcher ends the waiting", watchClose},
		{"a watch ahead of the store is refused", watchAhead},
		{"revoking a lease deletes its keys and tells watchers", leaseRevoked},
		{"a key written without its lease outlives it", leaseLeft},
		{"a lease that is gone cannot be kept alive or used", leaseGone},
		{"a context that is over is reported", contextOver},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), waitTime)
	t.Cleanup(cancel)
	return ctx
}

func put(t *testing.T, s meta.Store, key, value string) meta.Version {
	t.Helper()
	v, err := s.Txn(bounded(t), nil, []meta.Op{meta.Put(key, []byte(value))})
	if err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
	return v
}

func want(t *testing.T, s meta.Store, key, value string, version meta.Version) {
	t.Helper()
	e, err := s.Get(bounded(t), key)
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	if string(e.Value) != value || e.Version != version || e.Key != key {
		t.Fatalf("get %s: %q at %d, want %q at %d", key, e.Value, e.Version, value, version)
	}
}

func wantAbsent(t *testing.T, s meta.Store, key string) {
	t.Helper()
	if e, err := s.Get(bounded(t), key); !errors.Is(err, meta.ErrNotFound) {
		t.Fatalf("get %s: %+v, %v; want ErrNotFound", key, e, err)
	}
}

func absent(t *testing.T, s meta.Store) { wantAbsent(t, s, "a") }

func writtenKey(t *testing.T, s meta.Store) {
	v := put(t, s, "a", "1")
	want(t, s, "a", "1", v)
	v2 := put(t, s, "b", "")
	want(t, s, "b", "", v2)
	want(t, s, "a", "1", v)
}

func versionsRise(t *testing.T, s meta.Store) {
	last := meta.Version(0)
	for i := range 10 {
		v := put(t, s, fmt.Sprintf("k%d", i%3), "x")
		if v <= last {
			t.Fatalf("version %d after %d", v, last)
		}
		last = v
	}
}

func compareFails(t *testing.T, s meta.Store) {
	v := put(t, s, "a", "1")
	_, err := s.Txn(bounded(t), []meta.Compare{{Key: "a", Version: v + 1}}, []meta.Op{meta.Put("a", []byte("2")), meta.Put("b", []byte("2"))})
	var c *meta.ConflictError
	if !errors.Is(err, meta.ErrConflict) || !errors.As(err, &c) {
		t.Fatalf("got %v, want a *ConflictError", err)
	}
	if c.Key != "a" || c.Want != v+1 || c.Have != v {
		t.Fatalf("got %+v, want key a, want %d, have %d", c, v+1, v)
	}
	want(t, s, "a", "1", v)
	wantAbsent(t, s, "b")
}

func compareAbsent(t *testing.T, s meta.Store) {
	create := func() error {
		_, err := s.Txn(bounded(t), []meta.Compare{{Key: "a"}}, []meta.Op{meta.Put("a", []byte("1"))})
		return err
	}
	if err := create(); err != nil {
		t.Fatal(err)
	}
	if err := create(); !errors.Is(err, meta.ErrConflict) {
		t.Fatalf("second create: %v, want ErrConflict", err)
	}
	// A compare without writes is a check.
	if _, err := s.Txn(bounded(t), []meta.Compare{{Key: "b"}}, nil); err != nil {
		t.Fatalf("check of an absent key: %v", err)
	}
	if _, err := s.Txn(bounded(t), []meta.Compare{{Key: "a"}}, nil); !errors.Is(err, meta.ErrConflict) {
		t.Fatalf("check of a present key: %v, want ErrConflict", err)
	}
}

func allOrNothing(t *testing.T, s meta.Store) {
	a, b := put(t, s, "a", "1"), put(t, s, "b", "1")
	v, err := s.Txn(bounded(t), []meta.Compare{{Key: "a", Version: a}, {Key: "b", Version: b}, {Key: "c"}},
		[]meta.Op{meta.Put("a", []byte("2")), meta.Delete("b"), meta.Put("c", []byte("2"))})
	if err != nil {
		t.Fatal(err)
	}
	want(t, s, "a", "2", v)
	wantAbsent(t, s, "b")
	want(t, s, "c", "2", v)
	if _, err := s.Txn(bounded(t), []meta.Compare{{Key: "a", Version: v}, {Key: "b", Version: b}}, []meta.Op{meta.Put("a", []byte("3"))}); !errors.Is(err, meta.ErrConflict) {
		t.Fatalf("one compare of two failing: %v, want ErrConflict", err)
	}
	want(t, s, "a", "2", v)
}

func race(t *testing.T, s meta.Store) {
	ctx := bounded(t)
	put(t, s, "n", "")
	const writers, each = 4, 10
	errs := make(chan error, writers)
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for done := 0; done < each; {
				e, err := s.Get(ctx, "n")
				if err != nil {
					errs <- err
					return
				}
				_, err = s.Txn(ctx, []meta.Compare{{Key: "n", Version: e.Version}}, []meta.Op{meta.Put("n", append(e.Value, '+'))})
				switch {
				case err == nil:
					done++
				case !errors.Is(err, meta.ErrConflict):
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Fatal(err)
	}
	if e, err := s.Get(ctx, "n"); err != nil || len(e.Value) != writers*each {
		t.Fatalf("%d increments, %v; want %d", len(e.Value), err, writers*each)
	}
}

func keys(p meta.Page) string {
	var names []string
	for _, e := range p.Entries {
		names = append(names, e.Key)
	}
	return strings.Join(names, " ")
}

func listing(t *testing.T, s meta.Store) {
	for _, k := range []string{"b/2", "a/1", "b/10", "b", "c", "b/1"} {
		put(t, s, k, k)
	}
	last := put(t, s, "b/3", "x")
	list := func(prefix, after string, limit int) meta.Page {
		t.Helper()
		p, err := s.List(bounded(t), prefix, after, limit)
		if err != nil {
			t.Fatal(err)
		}
		if p.Version != last {
			t.Fatalf("listed at version %d, want %d", p.Version, last)
		}
		return p
	}
	check := func(p meta.Page, names string, more bool) {
		t.Helper()
		if keys(p) != names || p.More != more {
			t.Fatalf("got %q more %t, want %q more %t", keys(p), p.More, names, more)
		}
	}
	check(list("b/", "", 0), "b/1 b/10 b/2 b/3", false)
	check(list("b/", "", 2), "b/1 b/10", true)
	check(list("b/", "b/10", 2), "b/2 b/3", false)
	check(list("b/", "b/3", 2), "", false)
	check(list("", "", 0), "a/1 b b/1 b/10 b/2 b/3 c", false)
	check(list("x", "", 0), "", false)
}

func deleted(t *testing.T, s meta.Store) {
	v := put(t, s, "a", "1")
	if _, err := s.Txn(bounded(t), []meta.Compare{{Key: "a", Version: v}}, []meta.Op{meta.Delete("a")}); err != nil {
		t.Fatal(err)
	}
	wantAbsent(t, s, "a")
	if _, err := s.Txn(bounded(t), nil, []meta.Op{meta.Delete("a")}); err != nil {
		t.Fatalf("delete of an absent key: %v", err)
	}
	again, err := s.Txn(bounded(t), []meta.Compare{{Key: "a"}}, []meta.Op{meta.Put("a", []byte("2"))})
	if err != nil || again <= v {
		t.Fatalf("version %d, %v; want above %d", again, err, v)
	}
	want(t, s, "a", "2", again)
}

func valuesCopied(t *testing.T, s meta.Store) {
	value := []byte("one")
	v, err := s.Txn(bounded(t), nil, []meta.Op{meta.Put("a", value)})
	if err != nil {
		t.Fatal(err)
	}
	value[0] = 'X'
	e, err := s.Get(bounded(t), "a")
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Value) > 0 {
		e.Value[0] = 'Y'
	}
	want(t, s, "a", "one", v)
}

func limits(t *testing.T, s meta.Store) {
	txn := func(ops ...meta.Op) error {
		_, err := s.Txn(bounded(t), nil, ops)
		return err
	}
	many := make([]meta.Op, meta.MaxTxnItems+1)
	for i := range many {
		many[i] = meta.Put(fmt.Sprint("k", i), nil)
	}
	var invalid *meta.InvalidError
	for _, c := range []struct {
		what string
		err  error
		ok   func(error) bool
	}{
		{"long key", txn(meta.Put(strings.Repeat("k", meta.MaxKeyBytes+1), nil)), func(err error) bool { return errors.Is(err, meta.ErrTooLarge) }},
		{"long value", txn(meta.Put("k", make([]byte, meta.MaxValueBytes+1))), func(err error) bool { return errors.Is(err, meta.ErrTooLarge) }},
		{"many writes", txn(many...), func(err error) bool { return errors.Is(err, meta.ErrTooLarge) }},
		{"empty key", txn(meta.Put("", nil)), func(err error) bool { return errors.As(err, &invalid) }},
		{"key written twice", txn(meta.Put("k", nil), meta.Delete("k")), func(err error) bool { return errors.As(err, &invalid) }},
	} {
		if !c.ok(c.err) {
			t.Errorf("%s: %v", c.what, c.err)
		}
	}
	wantAbsent(t, s, "k")
	if err := txn(many[:meta.MaxTxnItems]...); err != nil {
		t.Errorf("as many writes as allowed: %v", err)
	}
	if err := txn(meta.Put("k", make([]byte, meta.MaxValueBytes))); err != nil {
		t.Errorf("a value as large as allowed: %v", err)
	}
}

func watch(t *testing.T, s meta.Store, prefix string, after meta.Version) meta.Watcher {
	t.Helper()
	w, err := s.Watch(bounded(t), prefix, after)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func next(t *testing.T, w meta.Watcher) string {
	t.Helper()
	events, err := w.Next(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range events {
		if e.Version != events[0].Version {
			t.Fatalf("versions %d and %d in one answer", events[0].Version, e.Version)
		}
		if e.Deleted {
			out = append(out, "-"+e.Key)
		} else {
			out = append(out, e.Key+"="+string(e.Value))
		}
	}
	return strings.Join(out, " ")
}

func wantNext(t *testing.T, w meta.Watcher, events string) {
	t.Helper()
	if got := next(t, w); got != events {
		t.Fatalf("watched %q, want %q", got, events)
	}
}

func watchOrder(t *testing.T, s meta.Store) {
	put(t, s, "a", "0")
	v := put(t, s, "a", "1")
	put(t, s, "a", "2")
	w := watch(t, s, "", v)
	wantNext(t, w, "a=2")
	put(t, s, "a", "3")
	put(t, s, "a", "3")
	wantNext(t, w, "a=3")
	wantNext(t, w, "a=3")
	all := watch(t, s, "", 0)
	for _, e := range []string{"a=0", "a=1", "a=2", "a=3", "a=3"} {
		wantNext(t, all, e)
	}
	got := make(chan string, 1)
	go func() {
		events, err := w.Next(bounded(t))
		if err != nil {
			got <- err.Error()
			return
		}
		got <- events[0].Key
	}()
	put(t, s, "late", "")
	if k := <-got; k != "late" {
		t.Fatalf("a waiting watcher got %q", k)
	}
}

func watchWhole(t *testing.T, s meta.Store) {
	put(t, s, "b", "1")
	w := watch(t, s, "", 0)
	wantNext(t, w, "b=1")
	if _, err := s.Txn(bounded(t), nil, []meta.Op{meta.Put("c", []byte("1")), meta.Delete("b"), meta.Delete("none"), meta.Put("a", []byte("1"))}); err != nil {
		t.Fatal(err)
	}
	wantNext(t, w, "c=1 -b a=1")
}

func watchPrefix(t *testing.T, s meta.Store) {
	w := watch(t, s, "b/", 0)
	put(t, s, "a", "1")
	put(t, s, "b", "1")
	put(t, s, "b/1", "1")
	put(t, s, "c", "1")
	if _, err := s.Txn(bounded(t), nil, []meta.Op{meta.Put("a", nil), meta.Put("b/2", []byte("2"))}); err != nil {
		t.Fatal(err)
	}
	wantNext(t, w, "b/1=1")
	wantNext(t, w, "b/2=2")
}

func listThenWatch(t *testing.T, s meta.Store) {
	ctx := bounded(t)
	const n = 30
	written := make(chan error, 1)
	go func() {
		for i := range n {
			if _, err := s.Txn(ctx, nil, []meta.Op{meta.Put(fmt.Sprintf("k%02d", i), []byte("v"))}); err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	p, err := s.List(ctx, "k", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Watch(ctx, "k", p.Version)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	for seen := len(p.Entries); seen < n; seen++ {
		if got, want := next(t, w), fmt.Sprintf("k%02d=v", seen); got != want {
			t.Fatalf("after a list of %d: %q, want %q", len(p.Entries), got, want)
		}
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
}

func watchClose(t *testing.T, s meta.Store) {
	w := watch(t, s, "", 0)
	got := make(chan error, 1)
	go func() {
		_, err := w.Next(bounded(t))
		got <- err
	}()
	w.Close()
	w.Close()
	if err := <-got; !errors.Is(err, meta.ErrClosed) {
		t.Fatalf("waiting Next: %v, want ErrClosed", err)
	}
	if _, err := w.Next(bounded(t)); !errors.Is(err, meta.ErrClosed) {
		t.Fatalf("later Next: %v, want ErrClosed", err)
	}
}

func watchAhead(t *testing.T, s meta.Store) {
	v := put(t, s, "a", "1")
	if w, err := s.Watch(bounded(t), "", v+100); !errors.Is(err, meta.ErrCompacted) {
		if err == nil {
			w.Close()
		}
		t.Fatalf("watch from a version to come: %v, want ErrCompacted", err)
	}
}

func grant(t *testing.T, s meta.Store) meta.LeaseID {
	t.Helper()
	id, err := s.Grant(bounded(t), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func leaseRevoked(t *testing.T, s meta.Store) {
	id := grant(t, s)
	v, err := s.Txn(bounded(t), nil, []meta.Op{meta.PutLeased("n/2", []byte("x"), id), meta.PutLeased("n/1", []byte("x"), id), meta.Put("n/3", []byte("x"))})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := s.Get(bounded(t), "n/1"); err != nil || e.Lease != id {
		t.Fatalf("%+v, %v; want lease %d", e, err, id)
	}
	if ttl, err := s.KeepAlive(bounded(t), id); err != nil || ttl != time.Hour {
		t.Fatalf("kept alive for %v, %v", ttl, err)
	}
	w := watch(t, s, "n/", v)
	if err := s.Revoke(bounded(t), id); err != nil {
		t.Fatal(err)
	}
	gone := map[string]bool{}
	for len(gone) < 2 {
		for _, k := range strings.Fields(next(t, w)) {
			gone[k] = true
		}
	}
	if !gone["-n/1"] || !gone["-n/2"] {
		t.Fatalf("watched %v", gone)
	}
	wantAbsent(t, s, "n/1")
	wantAbsent(t, s, "n/2")
	want(t, s, "n/3", "x", v)
	if err := s.Revoke(bounded(t), id); err != nil {
		t.Fatalf("second revoke: %v", err)
	}
}

func leaseLeft(t *testing.T, s meta.Store) {
	a, b := grant(t, s), grant(t, s)
	for _, op := range []meta.Op{meta.PutLeased("k", []byte("1"), a), meta.PutLeased("l", []byte("1"), a)} {
		if _, err := s.Txn(bounded(t), nil, []meta.Op{op}); err != nil {
			t.Fatal(err)
		}
	}
	k := put(t, s, "k", "2")
	l, err := s.Txn(bounded(t), nil, []meta.Op{meta.PutLeased("l", []byte("2"), b)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Revoke(bounded(t), a); err != nil {
		t.Fatal(err)
	}
	want(t, s, "k", "2", k)
	want(t, s, "l", "2", l)
}

func leaseGone(t *testing.T, s meta.Store) {
	id := grant(t, s)
	if err := s.Revoke(bounded(t), id); err != nil {
		t.Fatal(err)
	}
	if _, err := s.KeepAlive(bounded(t), id); !errors.Is(err, meta.ErrLeaseExpired) {
		t.Fatalf("keep alive: %v, want ErrLeaseExpired", err)
	}
	if _, err := s.Txn(bounded(t), nil, []meta.Op{meta.Put("a", nil), meta.PutLeased("b", nil, id)}); !errors.Is(err, meta.ErrLeaseExpired) {
		t.Fatalf("put: %v, want ErrLeaseExpired", err)
	}
	wantAbsent(t, s, "a")
	if _, err := s.Grant(bounded(t), 0); err == nil {
		t.Fatal("a lease of no time was granted")
	}
}

func contextOver(t *testing.T, s meta.Store) {
	put(t, s, "a", "1")
	ctx, cancel := context.WithCancel(context.Background())
	w := watch(t, s, "", 0)
	wantNext(t, w, "a=1")
	cancel()
	if _, err := w.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("Next: %v, want context.Canceled", err)
	}
	put(t, s, "a", "2")
	wantNext(t, w, "a=2") // the watcher goes on
	if _, err := s.Get(ctx, "a"); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatalf("Get: %v", err)
	}
	if _, err := s.Txn(ctx, nil, []meta.Op{meta.Put("a", []byte("3"))}); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatalf("Txn: %v", err)
	}
}
