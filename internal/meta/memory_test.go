package meta_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/meta/metatest"
)

func TestMemoryConformance(t *testing.T) {
	metatest.Run(t, func(t *testing.T) meta.Store {
		m := meta.NewMemory(meta.MemoryOptions{})
		t.Cleanup(m.Close)
		return m
	})
}

func mustPut(t *testing.T, m *meta.Memory, key, value string) meta.Version {
	t.Helper()
	v, err := m.Txn(context.Background(), nil, []meta.Op{meta.Put(key, []byte(value))})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestMemoryOutageLeavesNothingBehind(t *testing.T) {
	ctx := context.Background()
	m := meta.NewMemory(meta.MemoryOptions{})
	v := mustPut(t, m, "a", "1")
	m.SetOutage(true)
	if _, err := m.Get(ctx, "a"); !errors.Is(err, meta.ErrUnavailable) {
		t.Fatalf("Get: %v", err)
	}
	if _, err := m.Txn(ctx, nil, []meta.Op{meta.Put("a", []byte("2"))}); !errors.Is(err, meta.ErrUnavailable) {
		t.Fatalf("Txn: %v", err)
	}
	m.SetOutage(false)
	if e, err := m.Get(ctx, "a"); err != nil || e.Version != v {
		t.Fatalf("%+v, %v", e, err)
	}
}

func TestMemoryLostAnswerIsAppliedAndUnknown(t *testing.T) {
	ctx := context.Background()
	m := meta.NewMemory(meta.MemoryOptions{})
	m.SetFault(func(c meta.Call) meta.Fault { return meta.Fault{LoseAnswer: c.Method == "txn"} })
	if _, err := m.Txn(ctx, nil, []meta.Op{meta.Put("a", []byte("1"))}); !errors.Is(err, meta.ErrUnknownOutcome) {
		t.Fatalf("Txn: %v, want ErrUnknownOutcome", err)
	}
	if e, err := m.Get(ctx, "a"); err != nil || string(e.Value) != "1" {
		t.Fatalf("%+v, %v", e, err)
	}
}

func TestMemoryDelayAndHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meta.NewMemory(meta.MemoryOptions{})
		gate := make(chan struct{})
		m.SetFault(func(c meta.Call) meta.Fault {
			if c.Method == "get" {
				return meta.Fault{Delay: 3 * time.Second, Hold: gate}
			}
			return meta.Fault{}
		})
		mustPut(t, m, "a", "1")
		start := time.Now()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := m.Get(short, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Get in 1 s: %v", err)
		}
		time.AfterFunc(10*time.Second, func() { close(gate) })
		if _, err := m.Get(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d != 11*time.Second {
			t.Errorf("took %v, want 11s: the gate, not the delay, was last", d)
		}
	})
}

func TestMemoryLeaseRunsOutOnItsClock(t *testing.T) {
	ctx := context.Background()
	now := time.Unix(1000, 0)
	m := meta.NewMemory(meta.MemoryOptions{Now: func() time.Time { return now }})
	id, err := m.Grant(ctx, 3*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	v, err := m.Txn(ctx, nil, []meta.Op{meta.PutLeased("n", []byte("x"), id)})
	if err != nil {
		t.Fatal(err)
	}
	w, err := m.Watch(ctx, "", v)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	now = now.Add(2 * time.Second)
	if _, err := m.KeepAlive(ctx, id); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * time.Second)
	m.Tick()
	if _, err := m.Get(ctx, "n"); err != nil {
		t.Fatalf("2 s after it was kept alive: %v", err)
	}
	now = now.Add(time.Second)
	m.Tick()
	events, err := w.Next(ctx)
	if err != nil || len(events) != 1 || !events[0].Deleted || events[0].Key != "n" {
		t.Fatalf("%+v, %v", events, err)
	}
	if _, err := m.KeepAlive(ctx, id); !errors.Is(err, meta.ErrLeaseExpired) {
		t.Fatalf("KeepAlive: %v", err)
	}
}

func TestMemoryRestoreTakesVersionsBack(t *testing.T) {
	ctx := context.Background()
	m := meta.NewMemory(meta.MemoryOptions{})
	v := mustPut(t, m, "a", "1")
	b := m.Backup()
	id, err := m.Grant(ctx, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Txn(ctx, nil, []meta.Op{meta.Put("a", []byte("2")), meta.PutLeased("n", nil, id)}); err != nil {
		t.Fatal(err)
	}
	w, err := m.Watch(ctx, "", m.Version())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	m.Restore(b)
	if e, err := m.Get(ctx, "a"); err != nil || e.Version != v || string(e.Value) != "1" {
		t.Fatalf("%+v, %v; want version %d", e, err, v)
	}
	if _, err := w.Next(ctx); !errors.Is(err, meta.ErrCompacted) {
		t.Fatalf("watcher over a restore: %v, want ErrCompacted", err)
	}
	if _, err := m.KeepAlive(ctx, id); !errors.Is(err, meta.ErrLeaseExpired) {
		t.Fatalf("lease over a restore: %v", err)
	}
	if again := mustPut(t, m, "b", "x"); again != v+1 {
		t.Fatalf("version %d after the restore, want %d", again, v+1)
	}
}

func TestMemoryCompactionIsTold(t *testing.T) {
	ctx := context.Background()
	m := meta.NewMemory(meta.MemoryOptions{History: 5})
	for range 10 {
		mustPut(t, m, "a", "x")
	}
	if _, err := m.Watch(ctx, "", 4); !errors.Is(err, meta.ErrCompacted) {
		t.Fatalf("watch of forgotten changes: %v", err)
	}
	w, err := m.Watch(ctx, "", 5)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	m.Compact(7)
	if _, err := w.Next(ctx); !errors.Is(err, meta.ErrCompacted) {
		t.Fatalf("a watcher behind a compaction: %v", err)
	}
}

func TestLocalConformance(t *testing.T) {
	metatest.Run(t, func(t *testing.T) meta.Store {
		s, err := meta.OpenLocal(context.Background(), t.TempDir(), meta.LocalOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return s
	})
}
