package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/internal/testkit/heap"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/wire"
)

func memoryOnly(o *Options) { o.Root = "" }

func TestStreamsAreFoundByName(t *testing.T) {
	w := newWorld(t)
	b := w.open(memoryOnly)
	_, err := b.Stream("t1", "ns", "orders")
	require.Equal(t, wire.CodeNotFound, codeOf(err))
	s := create(t, b, memoryStream("orders"))
	again, err := b.StreamBytes([]byte("t1"), []byte("ns"), []byte("orders"))
	require.NoError(t, err)
	require.Same(t, s, again)
	_, err = b.StreamBytes([]byte("t2"), []byte("ns"), []byte("orders"))
	require.Equal(t, wire.CodeNotFound, codeOf(err))

	created, err := b.CreateStream(deadline(t), memoryStream("orders"))
	require.NoError(t, err)
	require.False(t, created)
	other := memoryStream("orders")
	other.Shards = 2
	_, err = b.CreateStream(deadline(t), other)
	var exists *meta.ExistsError
	require.ErrorAs(t, err, &exists)
}

func TestGuardFindingAStreamAllocatesNothing(t *testing.T) {
	w := newWorld(t)
	b := w.open(memoryOnly)
	create(t, b, memoryStream("orders"))
	tenant, ns, name := []byte("t1"), []byte("ns"), []byte("orders")
	require.Zero(t, heap.Allocs(100, func() {
		if _, err := b.StreamBytes(tenant, ns, name); err != nil {
			t.Error(err)
		}
	}))
}

func TestKeysFindTheirShard(t *testing.T) {
	w := newWorld(t)
	b := w.open(memoryOnly)
	for _, routing := range []meta.Routing{meta.RoutingModulo, meta.RoutingJumpHash} {
		def := memoryStream("wide-" + string(routing)[:4])
		def.Shards, def.Routing = 8, routing
		s := create(t, b, def)
		require.Equal(t, 8, s.Shards())
		require.Zero(t, s.Route(nil, false))
		r, ok := wire.ParseRouting(string(routing))
		require.True(t, ok)
		for i := range 100 {
			key := fmt.Appendf(nil, "key-%d", i)
			require.Equal(t, wire.Shard(r, key, 8), s.Route(key, true))
		}
		for _, i := range []int{-1, 8} {
			_, err := s.Shard(i)
			require.Equal(t, wire.CodeInvalidRequest, codeOf(err))
		}
	}
}

func TestStorageNoneRefusesDurableStreams(t *testing.T) {
	w := newWorld(t)
	b := w.open(memoryOnly)
	_, err := b.CreateStream(deadline(t), durableStream("orders"))
	require.Equal(t, wire.CodeInvalidRequest, codeOf(err))
	_, err = w.catalog.GetStream(deadline(t), meta.Name{Tenant: "t1", Namespace: "ns", Name: "orders"})
	require.ErrorIs(t, err, meta.ErrNotFound, "nothing was written to the catalog")
	replicated := memoryStream("replicated")
	replicated.ReplicationFactor = 3
	_, err = b.CreateStream(deadline(t), replicated)
	require.Equal(t, wire.CodeInvalidRequest, codeOf(err))
}

func TestNamesThatAreNone(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	long := make([]byte, 10<<10)
	for i := range long {
		long[i] = 'a'
	}
	for _, name := range []string{"", ".", "..", "a/../b", "a\x00b", string(long), "\xff\xfe", "../../escape", "-x"} {
		_, err := b.CreateStream(deadline(t), durableStream(name))
		require.Equal(t, wire.CodeInvalidRequest, codeOf(err), "%q", name)
	}
	s := durableStream("orders")
	s.Retention.MaxBytes = -1
	_, err := b.CreateStream(deadline(t), s)
	require.Equal(t, wire.CodeInvalidRequest, codeOf(err))
}

// Case 112, first half: 50 clients create one stream at once and publish to it.
func TestFiftyClientsCreateOneStream(t *testing.T) {
	w := newWorld(t)
	b := w.open(memoryOnly)
	var made, stored atomic.Int32
	together(50, func(i int) {
		created, err := b.CreateStream(deadline(t), memoryStream("orders"))
		if err != nil {
			t.Error(err)
			return
		}
		if created {
			made.Add(1)
		}
		s, err := b.Stream("t1", "ns", "orders")
		if err != nil {
			t.Error(err)
			return
		}
		p, err := s.Shard(0)
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := put(p, fmt.Sprint(i)); err != nil {
			t.Error(err)
			return
		}
		stored.Add(1)
	})
	require.Equal(t, int32(1), made.Load())
	require.Equal(t, int32(50), stored.Load())
	s, err := b.Stream("t1", "ns", "orders")
	require.NoError(t, err)
	require.Len(t, readAll(t, shardOf(t, s, 0), partition.StartEarliest(), 50), 50)
}

func TestADeletedStreamSaysSo(t *testing.T) {
	w := newWorld(t)
	b := w.open(memoryOnly)
	s := create(t, b, memoryStream("orders"))
	p := shardOf(t, s, 0)
	sub, err := p.Subscribe(deadline(t), partition.SubscribeOptions{})
	require.NoError(t, err)
	require.NoError(t, b.DeleteStream(deadline(t), "t1", "ns", "orders"))
	_, err = b.Stream("t1", "ns", "orders")
	require.Equal(t, wire.CodeNotFound, codeOf(err))
	require.ErrorIs(t, sub.Next(deadline(t), new(partition.Delivery)), partition.ErrDeleted)
	sub.Close()
	require.True(t, s.Deleted())
	_, err = put(p, "late")
	require.Equal(t, wire.CodeNotFound, codeOf(err))
	require.NoError(t, b.await(deadline(t), func() (bool, error) { _, err := s.Shard(0); return codeOf(err) == wire.CodeNotFound, nil }))
	require.ErrorIs(t, b.DeleteStream(deadline(t), "t1", "ns", "orders"), meta.ErrNotFound)

	fresh := create(t, b, memoryStream("orders"))
	require.NotSame(t, s, fresh)
	first, err := put(shardOf(t, fresh, 0), "new")
	require.NoError(t, err)
	require.Zero(t, first)
}

func TestDeletingATenantDeletesItsStreams(t *testing.T) {
	w := newWorld(t)
	b := w.open(memoryOnly)
	create(t, b, memoryStream("a"))
	create(t, b, memoryStream("b"))
	require.NoError(t, w.catalog.DeleteTenant(deadline(t), "t1"))
	require.NoError(t, b.await(deadline(t), func() (bool, error) { return b.Stats().Streams == 0 && b.Progress().Total == 0, nil }))
}

func TestABrokerThatShutsDownSaysSo(t *testing.T) {
	w := newWorld(t)
	b := w.open(memoryOnly)
	s := create(t, b, memoryStream("orders"))
	p := shardOf(t, s, 0)
	_, err := put(p, "queued")
	require.NoError(t, err)
	sub, err := p.Subscribe(deadline(t), partition.SubscribeOptions{Start: partition.StartEarliest()})
	require.NoError(t, err)
	require.NoError(t, b.Close(context.Background()))
	var d partition.Delivery
	require.NoError(t, sub.Next(deadline(t), &d), "what was queued is delivered")
	require.ErrorIs(t, sub.Next(deadline(t), &d), partition.ErrClosed)
	sub.Close()
	_, err = s.Shard(0)
	require.Equal(t, wire.CodeDraining, codeOf(err))
	_, err = put(p, "late")
	require.Equal(t, wire.CodeShardUnavailable, codeOf(err))
	_, err = b.Stream("t1", "ns", "other")
	require.Equal(t, wire.CodeDraining, codeOf(err))
	_, err = b.CreateStream(deadline(t), memoryStream("more"))
	require.ErrorIs(t, err, ErrDraining)
	require.False(t, b.Ready())
}

func TestTheCatalogIsFollowedAcrossAnOutage(t *testing.T) {
	w := newWorld(t)
	b := w.open(memoryOnly)
	s := create(t, b, memoryStream("a"))
	w.store.SetOutage(true)
	_, err := put(shardOf(t, s, 0), "served all the same")
	require.NoError(t, err)
	_, err = b.CreateStream(deadline(t), memoryStream("b"))
	require.Equal(t, wire.CodeShardUnavailable, codeOf(err))
	w.store.SetOutage(false)
	create(t, b, memoryStream("b"))
}

func TestTenantsDoNotUseUpEachOthersRoom(t *testing.T) {
	w := newWorld(t)
	b := w.open(memoryOnly, func(o *Options) { o.Limits.TenantInFlight, o.Limits.NodeInFlight = 1000, 1500 })
	blocked := memoryStream("blocked")
	blocked.Overflow = meta.OverflowBlock
	p := shardOf(t, create(t, b, blocked), 0)
	sub, err := p.Subscribe(deadline(t), partition.SubscribeOptions{QueueCapacity: 1})
	require.NoError(t, err)
	defer sub.Close()
	_, err = put(p, "full")
	require.NoError(t, err)
	hold := func(p *partition.Partition, n int) error {
		return p.Publish(&partition.Publish{Payloads: [][]byte{make([]byte, n)}, Done: func(*partition.Publish) {}})
	}
	require.NoError(t, hold(p, 800))
	err = hold(p, 800)
	f := Failure(err)
	require.Equal(t, wire.CodeOverloaded, f.Code)
	require.Equal(t, wire.ReasonTenantQuota, f.Reason)
	require.Equal(t, wire.RetryAfter, f.Retry)
	require.Positive(t, f.RetryAfter)

	def := memoryStream("other")
	def.Tenant = "t2"
	_, err = put(shardOf(t, create(t, b, def), 0), "has room")
	require.NoError(t, err)
	require.Positive(t, b.Stats().InFlight)
}

// What a client is told: whether anything was done, and whether to try again.
func TestEveryErrorHasItsFailure(t *testing.T) {
	require.Nil(t, Failure(nil))
	own := wire.NewFailure(wire.CodeForbidden, "no")
	require.Same(t, own, Failure(fmt.Errorf("wrapped: %w", own)))
	poisoned := &storage.PoisonedError{Op: "flush", Cause: errors.New("i/o error")}
	for _, c := range []struct {
		err    error
		code   wire.Code
		reason string
		retry  wire.Retry
	}{
		{partition.ErrDeleted, wire.CodeNotFound, "", wire.RetryAfter},
		{partition.ErrClosed, wire.CodeShardUnavailable, wire.ReasonNotReady, wire.RetryNow},
		{storage.ErrClosed, wire.CodeShardUnavailable, wire.ReasonNotReady, wire.RetryNow},
		{ErrDraining, wire.CodeDraining, "", wire.RetryNow},
		{partition.ErrMemoryStream, wire.CodeInvalidRequest, "", wire.RetryFatal},
		{partition.ErrEmptyBatch, wire.CodeInvalidRequest, "", wire.RetryFatal},
		{segment.ErrPublisherTooLong, wire.CodeInvalidRequest, "", wire.RetryFatal},
		{partition.ErrLeadershipLost, wire.CodeLeadershipLost, "", wire.RetryOutcomeUnknown},
		{stream.ErrUnknownProducer, wire.CodeInvalidRequest, "", wire.RetryFatal},
		{&stream.SequenceGapError{Expected: 1}, wire.CodeInvalidRequest, "", wire.RetryFatal},
		{&storage.OffsetMismatchError{}, wire.CodeInvalidRequest, "", wire.RetryFatal},
		{fmt.Errorf("%w: %w", storage.ErrUnknownOutcome, poisoned), wire.CodeStorage, "", wire.RetryOutcomeUnknown},
		{poisoned, wire.CodeStorage, wire.ReasonPoisoned, wire.RetryAfter},
		{storage.ErrNotWritten, wire.CodeStorage, "", wire.RetryNow},
		{fmt.Errorf("%w: %w", storage.ErrNotWritten, storage.ErrDiskFull), wire.CodeOverloaded, wire.ReasonDiskFull, wire.RetryAfter},
		{&storage.DiskFullError{Dir: "d", Free: 1, Reserve: 2}, wire.CodeOverloaded, wire.ReasonDiskFull, wire.RetryAfter},
		{&fs.PathError{Op: "mkdir", Path: "d", Err: syscall.ENOSPC}, wire.CodeOverloaded, wire.ReasonDiskFull, wire.RetryAfter},
		{&fs.PathError{Op: "write", Path: "d", Err: syscall.EDQUOT}, wire.CodeOverloaded, wire.ReasonDiskFull, wire.RetryAfter},
		{fmt.Errorf("%w: %w", storage.ErrNotWritten, syscall.EMFILE), wire.CodeOverloaded, wire.ReasonTooManyFiles, wire.RetryAfter},
		{&fs.PathError{Op: "open", Path: "d", Err: syscall.ENFILE}, wire.CodeOverloaded, wire.ReasonTooManyFiles, wire.RetryAfter},
		{fmt.Errorf("%w: %w", storage.ErrUnknownOutcome, syscall.ENOSPC), wire.CodeStorage, "", wire.RetryOutcomeUnknown},
		{fmt.Errorf("%w: %w", storage.ErrUnknownOutcome, syscall.EMFILE), wire.CodeStorage, "", wire.RetryOutcomeUnknown},
		{&storage.PoisonedError{Op: "flush", Cause: syscall.ENOSPC}, wire.CodeStorage, wire.ReasonPoisoned, wire.RetryAfter},
		{storage.ErrQueueFull, wire.CodeOverloaded, wire.ReasonPublishQueueFull, wire.RetryAfter},
		{&partition.OverloadedError{Scope: partition.ScopeShard}, wire.CodeOverloaded, wire.ReasonPublishQueueFull, wire.RetryAfter},
		{&partition.OverloadedError{Scope: partition.ScopeNode}, wire.CodeOverloaded, wire.ReasonPublishQueueFull, wire.RetryAfter},
		{&partition.OverloadedError{Scope: partition.ScopeTenant}, wire.CodeOverloaded, wire.ReasonTenantQuota, wire.RetryAfter},
		{&storage.RecordTooLargeError{}, wire.CodeLimitExceeded, wire.ReasonRecordTooLarge, wire.RetryFatal},
		{&storage.BatchTooLargeError{}, wire.CodeLimitExceeded, "", wire.RetryFatal},
		{&partition.TooOldError{}, wire.CodeInvalidRequest, "", wire.RetryFatal},
		{&partition.InFutureError{}, wire.CodeInvalidRequest, "", wire.RetryFatal},
		{&storage.DamagedError{Cause: errors.New("x")}, wire.CodeShardUnavailable, wire.ReasonDamaged, wire.RetryFatal},
		{&meta.InvalidError{}, wire.CodeInvalidRequest, "", wire.RetryFatal},
		{&meta.NotFoundError{}, wire.CodeNotFound, "", wire.RetryAfter},
		{meta.ErrUnavailable, wire.CodeShardUnavailable, wire.ReasonNotReady, wire.RetryNow},
		{context.DeadlineExceeded, wire.CodeUnacknowledged, "", wire.RetryOutcomeUnknown},
		{errors.New("surprise"), wire.CodeInternal, "", wire.RetryOutcomeUnknown},
	} {
		f := Failure(fmt.Errorf("wrapped: %w", c.err))
		require.Equal(t, []any{c.code, c.reason, c.retry}, []any{f.Code, f.Reason, f.Retry}, "%v", c.err)
		require.Contains(t, f.Message, c.err.Error())
	}
}

func TestManyStreamsAreMadeOneByOne(t *testing.T) {
	tab := &table[Stream]{}
	all := map[key]*Stream{}
	for i := range 5000 {
		k := key{"t", "ns", fmt.Sprint(i)}
		s := new(Stream)
		all[k] = s
		tab = tab.with(map[key]*Stream{k: s})
		if i%3 == 0 {
			gone := key{"t", "ns", fmt.Sprint(i / 2)}
			delete(all, gone)
			tab = tab.with(map[key]*Stream{gone: nil})
		}
	}
	seen := 0
	tab.each(func(k key, s *Stream) {
		require.Same(t, all[k], s)
		seen++
	})
	require.Equal(t, len(all), seen)
	for i := range 5000 {
		k := key{"t", "ns", fmt.Sprint(i)}
		require.Equal(t, all[k], tab.get(k))
		require.Equal(t, all[k], tab.bytes([]byte("t"), []byte("ns"), []byte(k.name)))
	}
}
