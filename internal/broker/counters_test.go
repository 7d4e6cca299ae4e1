package broker

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/wire"
)

// TestDamagedCountersAreNamedFromTheStart: counters live in a log of their own; damage in
// it takes only them out of service, and is known before anybody asks for them.
func TestDamagedCountersAreNamedFromTheStart(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	_, err := b.CreateCache(deadline(t), meta.Cache{Tenant: "t1", Namespace: "ns", Name: "c", Durable: true})
	require.NoError(t, err)
	counters := func(b *Broker) (*partition.Counter, error) {
		c, err := b.Cache("t1", "ns", "c")
		require.NoError(t, err)
		return c.Counters(deadline(t), 0)
	}
	sums, err := counters(b)
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, sums.Add(deadline(t), &partition.CounterAdd{Key: []byte("n"), Delta: 1}))
	}
	require.NoError(t, b.Close(context.Background()))
	file := filepath.Join(b.countersRoot(), segment.ShardDirName("t1", "ns", "c", 0), segment.SegmentName(0))
	good, err := os.ReadFile(file)
	require.NoError(t, err)
	bad := append([]byte(nil), good...)
	bad[segment.HeaderSize+segment.RecordHeaderSize] ^= 1
	require.NoError(t, os.WriteFile(file, bad, 0o600))

	b = w.open()
	faults := b.Damaged()
	require.Len(t, faults, 1)
	require.Equal(t, partition.Damaged, faults[0].State)
	require.ErrorContains(t, faults[0].Err, "counters: ")
	_, err = counters(b)
	require.ErrorContains(t, err, "counters: ")
	c, err := b.Cache("t1", "ns", "c")
	require.NoError(t, err)
	_, err = c.Shard(0)
	require.NoError(t, err, "the values serve")

	require.NoError(t, os.WriteFile(file, good, 0o600))
	require.NoError(t, b.reopen(deadline(t), &c.resource, 0))
	require.Empty(t, b.Damaged())
	sums, err = counters(b)
	require.NoError(t, err)
	sum, ok, err := sums.Get([]byte("n"))
	require.NoError(t, err)
	require.True(t, ok)
	require.EqualValues(t, 3, sum)
}

// Counters and values whose directories are gone, or hold no log any more, are named from
// the start, and a request for them is told that it was not done. Counters that nobody
// used are not missed.
func TestLostDirectoriesOfACacheAreNamedFromTheStart(t *testing.T) {
	for _, part := range []string{countersDir, cachesDir} {
		for _, lost := range []string{"missing", "empty", "with all around it"} {
			empty := lost == "empty"
			t.Run(part+", "+lost, func(t *testing.T) {
				w := newWorld(t)
				b := w.open()
				for _, name := range []string{"c", "unused"} {
					_, err := b.CreateCache(deadline(t), meta.Cache{Tenant: "t1", Namespace: "ns", Name: name, Durable: true})
					require.NoError(t, err)
				}
				c, err := b.Cache("t1", "ns", "c")
				require.NoError(t, err)
				sums, err := c.Counters(deadline(t), 0)
				require.NoError(t, err)
				require.NoError(t, sums.Add(deadline(t), &partition.CounterAdd{Key: []byte("n"), Delta: 3}))
				if lost == "with all around it" {
					require.NoError(t, b.DeleteCache(deadline(t), "t1", "ns", "unused"))
				}
				require.NoError(t, b.Close(context.Background()))
				dir := filepath.Join(w.root, part, segment.ShardDirName("t1", "ns", "c", 0))
				away := filepath.Join(t.TempDir(), "away")
				require.NoError(t, os.Rename(dir, away))
				switch lost {
				case "empty":
					require.NoError(t, os.Mkdir(dir, 0o700))
				case "with all around it":
					require.NoError(t, os.RemoveAll(filepath.Dir(dir)))
				}

				b = w.open()
				faults := b.Damaged()
				require.Len(t, faults, 1)
				require.Equal(t, partition.Damaged, faults[0].State)
				var missing *MissingError
				require.ErrorAs(t, faults[0].Err, &missing)
				require.Equal(t, &MissingError{Dir: dir, Mark: missing.Mark, Empty: empty}, missing)
				c, err = b.Cache("t1", "ns", "c")
				require.NoError(t, err)
				_, err = c.Counters(deadline(t), 0)
				f := Failure(err)
				require.Equal(t, wire.CodeShardUnavailable, f.Code)
				require.NotEqual(t, wire.RetryOutcomeUnknown, f.Retry)
				require.NotContains(t, f.Error(), w.root)
				require.ErrorAs(t, b.reopen(deadline(t), &c.resource, 0), &missing)

				require.NoError(t, os.RemoveAll(dir))
				require.NoError(t, os.MkdirAll(filepath.Dir(dir), 0o700))
				require.NoError(t, os.Rename(away, dir))
				require.NoError(t, b.reopen(deadline(t), &c.resource, 0))
				require.Empty(t, b.Damaged())
				sums, err = c.Counters(deadline(t), 0)
				require.NoError(t, err)
				sum, _, err := sums.Get([]byte("n"))
				require.NoError(t, err)
				require.EqualValues(t, 3, sum)
			})
		}
	}
}
