package broker

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/wire"
)

// testDeadline bounds every wait of a test: far more than anything takes on a busy machine.
const testDeadline = 2 * time.Minute

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testDeadline)
	t.Cleanup(cancel)
	return ctx
}

// world is a catalog that outlives brokers, and a root for their shards.
type world struct {
	t       testing.TB
	store   *meta.Memory
	catalog *meta.Catalog
	root    string
}

func newWorld(t testing.TB) *world {
	store := meta.NewMemory(meta.MemoryOptions{})
	w := &world{t: t, store: store, catalog: meta.NewCatalog(store), root: filepath.Join(t.TempDir(), "streams")}
	for _, tenant := range []string{"t1", "t2"} {
		_, err := w.catalog.CreateTenant(deadline(t), meta.Tenant{ID: tenant})
		require.NoError(t, err)
		_, err = w.catalog.CreateNamespace(deadline(t), meta.Namespace{Tenant: tenant, Name: "ns"})
		require.NoError(t, err)
	}
	return w
}

// open starts a broker that is closed with the test, if not before.
func (w *world) open(change ...func(*Options)) *Broker {
	w.t.Helper()
	o := Options{Catalog: w.catalog, Root: w.root}
	for _, c := range change {
		c(&o)
	}
	b, err := Open(deadline(w.t), o)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, b.Close(context.Background())) })
	require.NoError(w.t, b.WaitReady(deadline(w.t)))
	return b
}

func memoryStream(name string) meta.Stream {
	return meta.Stream{Tenant: "t1", Namespace: "ns", Name: name}
}

func durableStream(name string) meta.Stream {
	s := memoryStream(name)
	s.Durable = true
	return s
}

func create(t testing.TB, b *Broker, s meta.Stream) *Stream {
	t.Helper()
	_, err := b.CreateStream(deadline(t), s)
	require.NoError(t, err)
	st, err := b.Stream(s.Tenant, s.Namespace, s.Name)
	require.NoError(t, err)
	return st
}

func shardOf(t testing.TB, s *Stream, i int) *partition.Partition {
	t.Helper()
	p, err := s.Shard(i)
	require.NoError(t, err)
	return p
}

// put publishes one batch and waits for the answer.
func put(p *partition.Partition, values ...string) (storage.Offset, error) {
	b := partition.Publish{}
	for _, v := range values {
		b.Payloads = append(b.Payloads, []byte(v))
	}
	done := make(chan struct{})
	b.Done = func(*partition.Publish) { close(done) }
	if err := p.Publish(&b); err != nil {
		return 0, err
	}
	p.Drive(true)
	select {
	case <-done:
		return b.First, b.Err
	case <-time.After(testDeadline):
		return 0, fmt.Errorf("no answer")
	}
}

// readAll reads the n events from a start on.
func readAll(t testing.TB, p *partition.Partition, start partition.Start, n int) []string {
	t.Helper()
	sub, err := p.Subscribe(deadline(t), partition.SubscribeOptions{Start: start, Shape: stream.ShapeOffsets})
	require.NoError(t, err)
	defer sub.Close()
	var d partition.Delivery
	defer d.Release()
	var got []string
	for len(got) < n {
		require.NoError(t, sub.Next(deadline(t), &d))
		for _, f := range d.Frames {
			for len(f) > 0 {
				h, err := wire.ParseHeader(f, 128<<20)
				require.NoError(t, err)
				var e wire.EventBatch
				require.NoError(t, e.Decode(h.Flags, f[wire.HeaderBytes:wire.HeaderBytes+int(h.Length)]))
				for _, v := range e.Payloads {
					got = append(got, string(v))
				}
				f = f[wire.HeaderBytes+int(h.Length):]
			}
		}
	}
	return got
}

func codeOf(err error) wire.Code {
	if err == nil {
		return 0
	}
	return Failure(err).Code
}

// together runs f n times at once.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}
