package broker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/vfs"
	"github.com/felixlog/felix/wire"
)

// several are n durable streams s0, s1, ... and the cache c.
func several(n int) (defs []meta.Definition) {
	for i := range n {
		s := durableStream(fmt.Sprintf("s%d", i))
		defs = append(defs, meta.Definition{Stream: &s})
	}
	return append(defs, meta.Definition{Cache: &meta.Cache{Tenant: "t1", Namespace: "ns", Name: "c", Durable: true}})
}

// requireServed checks that every shard of what is defined is open, or that nothing is there.
func requireServed(t *testing.T, b *Broker, defs []meta.Definition, served bool) {
	t.Helper()
	for _, d := range defs {
		r := b.served(d)
		if !served {
			require.Nil(t, r, d.String())
			continue
		}
		require.NotNil(t, r, d.String())
		for i := range r.shards {
			require.Equal(t, partition.Active, r.ShardState(i), d.String())
		}
	}
}

func TestSeveralAreCreatedAndTakenBackAtOnce(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	s1 := durableStream("s1")
	create(t, b, s1)
	defs := several(3)
	created, err := b.CreateAll(deadline(t), defs)
	require.NoError(t, err)
	require.Equal(t, []bool{true, false, true, true}, created)
	requireServed(t, b, defs, true)
	mine := slices.Delete(slices.Clone(defs), 1, 2)
	require.NoError(t, b.RemoveAll(deadline(t), mine))
	requireServed(t, b, mine, false)
	requireServed(t, b, defs[1:2], true)
}

// Each is waited for; a caller that leaves ends the waiting alone.
func TestSeveralAreAwaited(t *testing.T) {
	w := newWorld(t)
	faulty := disk.NewFaulty(vfs.OS())
	b := w.open(func(o *Options) { o.FS = faulty })
	ctx, cancel := context.WithCancel(deadline(t))
	// After the transaction the catalog is read again by who waits for s2: nobody waits for
	// the two before it any more.
	var written atomic.Bool
	waits, returned := make(chan struct{}), make(chan struct{})
	waiting := sync.OnceFunc(func() { close(waits) })
	w.store.SetFault(func(c meta.Call) meta.Fault {
		if c.Method == "txn" {
			written.Store(true)
		} else if written.Load() && c.Method == "get" && strings.HasSuffix(c.Key, "/s2") {
			waiting()
		}
		return meta.Fault{}
	})
	release := make(chan struct{})
	faulty.Add(disk.Rule{Op: disk.OpMkdir, Path: w.dir("s2", 0), Action: disk.Call(func() {
		select {
		case <-waits:
		case <-returned:
		}
		cancel()
		<-release
	})})
	defs := several(3)
	_, err := b.CreateAll(ctx, defs)
	close(returned)
	close(release)
	require.ErrorIs(t, err, context.Canceled)
	var item *meta.ItemError
	require.ErrorAs(t, err, &item)
	require.Equal(t, 2, item.Index)
	require.NoError(t, b.AwaitStream(deadline(t), "t1", "ns", "s2"))
	require.NoError(t, b.AwaitCache(deadline(t), "t1", "ns", "c"))
	requireServed(t, b, defs, true)
}

// What this broker could not serve keeps all from being made, and is named.
func TestOneThatCannotBeServedKeepsAllFromBeingMade(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	for i, change := range map[int]func(d meta.Definition){
		1: func(d meta.Definition) { d.Stream.ReplicationFactor = 3 },
		3: func(d meta.Definition) { d.Cache.ReplicationFactor = 3 },
	} {
		defs := several(3)
		change(defs[i])
		_, err := b.CreateAll(deadline(t), defs)
		var item *meta.ItemError
		require.ErrorAs(t, err, &item)
		require.Equal(t, i, item.Index)
		require.Equal(t, wire.CodeInvalidRequest, codeOf(err))
		requireServed(t, b, defs, false)
	}
	b.draining.Store(true)
	_, err := b.CreateAll(deadline(t), several(3))
	require.ErrorIs(t, err, ErrDraining)
}

// A broker that was killed between the transaction and the directories makes them all when
// it starts again.
func TestSeveralAreMadeAfterAKill(t *testing.T) {
	w := newWorld(t)
	defs := several(3)
	_, err := w.catalog.CreateAll(deadline(t), defs)
	require.NoError(t, err)
	requireServed(t, w.open(), defs, true)
}

// One that is removed while it is waited for was made, as the others were.
func TestOneThatIsRemovedWhileItIsAwaitedWasMade(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	defs := several(3)
	var written, gone atomic.Bool
	w.store.SetFault(func(c meta.Call) meta.Fault {
		if c.Method == "txn" {
			written.Store(true)
		} else if written.Load() && c.Method == "get" && strings.HasSuffix(c.Key, "/s1") && gone.CompareAndSwap(false, true) {
			if err := w.catalog.DeleteStream(context.Background(), defs[1].FullName()); err != nil {
				t.Error(err)
			}
		}
		return meta.Fault{}
	})
	created, err := b.CreateAll(deadline(t), defs)
	require.NoError(t, err)
	require.True(t, gone.Load())
	require.NotContains(t, created, false)
	requireServed(t, b, []meta.Definition{defs[0], defs[2], defs[3]}, true)
}

// What is out of the catalog is taken back, though nobody waits until it is not served.
func TestWhatIsTakenBackNeedNotBeAwaited(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	defs := several(2)
	_, err := b.CreateAll(deadline(t), defs)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(deadline(t))
	cancel()
	require.NoError(t, b.RemoveAll(ctx, defs))
	_, err = w.catalog.GetStream(deadline(t), defs[0].FullName())
	require.ErrorIs(t, err, meta.ErrNotFound)
}
