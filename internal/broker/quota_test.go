package broker

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/wire"
)

func requireOverQuota(t *testing.T, err error) {
	t.Helper()
	f := Failure(err)
	require.NotNil(t, f)
	require.Equal(t, wire.CodeOverloaded, f.Code)
	require.Equal(t, wire.ReasonTenantQuota, f.Reason)
	require.Equal(t, wire.RetryAfter, f.Retry)
	require.Positive(t, f.RetryAfter)
}

// The quota is the tenant's: over its streams, caches and counters, before anything is
// written; it changes with the tenant's definition, and is no other tenant's.
func TestTenantQuotaCoversWhatATenantWrites(t *testing.T) {
	w := newWorld(t)
	ctx := deadline(t)
	set := func(q meta.Quota) {
		_, err := w.catalog.UpdateTenant(ctx, "t1", func(t *meta.Tenant) error { t.Quota = q; return nil })
		require.NoError(t, err)
	}
	// One record an hour, as good as: the first write uses it up for the test's time.
	b := w.open(func(o *Options) { o.Limits.TenantBytesPerSecond = 1 })
	s := shardOf(t, create(t, b, durableStream("s")), 0)
	_, err := b.CreateCache(ctx, meta.Cache{Tenant: "t1", Namespace: "ns", Name: "c", Durable: true})
	require.NoError(t, err)
	k, err := b.Cache("t1", "ns", "c")
	require.NoError(t, err)
	values, err := k.Shard(0)
	require.NoError(t, err)
	sums, err := k.Counters(ctx, 0)
	require.NoError(t, err)
	write := func(value string) error {
		var cw partition.CacheWrite
		require.NoError(t, cw.Put([]byte("k"), []byte(value), 0, false, cache.Always, 0, values.Now()))
		return values.Write(ctx, &cw)
	}
	add := func() error { return sums.Add(ctx, &partition.CounterAdd{Key: []byte("n"), Delta: 1}) }

	_, err = put(s, string(make([]byte, 1<<20)))
	require.NoError(t, err, "a second's worth is a byte, and one write may be larger")
	tail := s.Positions()
	_, err = put(s, "more")
	requireOverQuota(t, err)
	require.ErrorContains(t, err, "tenant t1 has written its 1 bytes a second")
	requireOverQuota(t, write("v"))
	requireOverQuota(t, add())
	require.Equal(t, tail, s.Positions(), "nothing was written")
	require.Zero(t, b.Stats().InFlight)
	require.Equal(t, uint64(1), s.Counters().Publishes[partition.ResultOverloaded].Load())

	// Another tenant, a memory stream at that, has its own.
	other := memoryStream("s")
	other.Tenant = "t2"
	o := shardOf(t, create(t, b, other), 0)
	_, err = put(o, string(make([]byte, 1<<20)))
	require.NoError(t, err)
	_, err = put(o, "more")
	requireOverQuota(t, err)

	// No bound at all.
	set(meta.Quota{BytesPerSecond: meta.NoQuota})
	eventually(t, func() bool { return write("v") == nil })
	require.NoError(t, add())
	for range 100 {
		_, err = put(s, "more")
		require.NoError(t, err)
	}

	// Records: a delete and what the cache does by itself are not charged.
	set(meta.Quota{BytesPerSecond: meta.NoQuota, RecordsPerSecond: 1})
	// The first of these leaves a debt of minutes.
	many := make([]string, 1000)
	eventually(t, func() bool { _, err := put(s, many...); return err != nil })
	_, err = put(s, "x")
	requireOverQuota(t, err)
	var del partition.CacheWrite
	require.NoError(t, del.Delete([]byte("k"), cache.Always, 0, values.Now()))
	require.NoError(t, values.Write(ctx, &del))
	require.True(t, del.Applied)
	del.Release()

	// A change of something else does not begin the second anew.
	before := b.tenant("t1").Quota()
	_, err = w.catalog.UpdateTenant(ctx, "t1", func(t *meta.Tenant) error { t.DisplayName = "T1"; return nil })
	require.NoError(t, err)
	create(t, b, memoryStream("later")) // follows the change
	require.Same(t, before, b.tenant("t1").Quota())

	// The broker's own again, and after a restart.
	set(meta.Quota{RecordsPerSecond: 7})
	eventually(t, func() bool { return b.tenant("t1").Quota().Same(1, 7) })
	require.NoError(t, b.Close(ctx))
	again := w.open(func(o *Options) { o.Limits.TenantBytesPerSecond = 1 })
	require.True(t, again.tenant("t1").Quota().Same(1, 7))
	require.True(t, again.tenant("t2").Quota().Same(1, 0))
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, testDeadline, time.Millisecond)
}
