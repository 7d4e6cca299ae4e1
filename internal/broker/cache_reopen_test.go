package broker

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// TestACacheThatFailedInServiceIsOpenedAnew has its log take a record that no cache can
// read: the shard is named as damaged, and serves again, by an operator's reopening, once
// the record is gone. The same for its counters, which the values serve without.
func TestACacheThatFailedInServiceIsOpenedAnew(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	_, err := b.CreateCache(deadline(t), meta.Cache{Tenant: "t1", Namespace: "ns", Name: "c", Durable: true})
	require.NoError(t, err)
	c, err := b.Cache("t1", "ns", "c")
	require.NoError(t, err)
	values, err := c.Shard(0)
	require.NoError(t, err)
	put := new(partition.CacheWrite)
	require.NoError(t, put.Put([]byte("k"), []byte("v"), 0, false, 0, 0, values.Now()))
	require.NoError(t, values.Write(deadline(t), put))
	sums, err := c.Counters(deadline(t), 0)
	require.NoError(t, err)
	require.NoError(t, sums.Add(deadline(t), &partition.CounterAdd{Key: []byte("n"), Delta: 1}))

	for _, log := range []*storage.Log{sums.Log(), values.Log()} {
		require.NoError(t, log.Append(deadline(t), &storage.Batch{Payloads: [][]byte{[]byte("?")}}))
		faults := b.Damaged()
		require.Len(t, faults, 1)
		require.Equal(t, partition.Damaged, faults[0].State)
		require.ErrorContains(t, faults[0].Err, "record 1")
		require.ErrorContains(t, b.reopen(deadline(t), &c.resource, 0), "record 1", "it is there still")
		require.Equal(t, storage.StateClosed, log.Health().State)
		require.Len(t, b.Damaged(), 1)
		cut(t, log.Dir())
		require.NoError(t, b.reopen(deadline(t), &c.resource, 0))
		require.Empty(t, b.Damaged())
		require.Zero(t, b.Progress().Failed)
	}
	values, err = c.Shard(0)
	require.NoError(t, err)
	v, ok, err := values.Get(deadline(t), []byte("k"))
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "v", string(v.Value))
	sums, err = c.Counters(deadline(t), 0)
	require.NoError(t, err)
	sum, _, err := sums.Get([]byte("n"))
	require.NoError(t, err)
	require.EqualValues(t, 1, sum)
	require.DirExists(t, filepath.Join(b.cachesRoot(), segment.ShardDirName("t1", "ns", "c", 0)))
}

// cut takes the second record off a log.
func cut(t *testing.T, dir string) {
	l, err := storage.Open(deadline(t), dir, storage.Options{})
	require.NoError(t, err)
	require.NoError(t, l.TruncateTo(deadline(t), 1))
	require.NoError(t, l.Close(deadline(t)))
}
