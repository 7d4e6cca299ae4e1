package broker

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/wire"
)

// TestTheLargestValueIsTheBrokers: a cache takes values of up to the broker's largest
// record, and of what a client can be sent.
func TestTheLargestValueIsTheBrokers(t *testing.T) {
	for _, c := range []struct{ value, most, want int64 }{{100, 0, 100}, {100, 60, 60}, {0, 1 << 10, 1 << 10}} {
		t.Run(fmt.Sprint(c.value, c.most), func(t *testing.T) {
			b := newWorld(t).open(func(o *Options) {
				o.Defaults.MaxValueBytes = c.value
				o.Limits.MostRecordBytes = c.most
			})
			_, err := b.CreateCache(deadline(t), meta.Cache{Tenant: "t1", Namespace: "ns", Name: "c", Durable: true})
			require.NoError(t, err)
			k, err := b.Cache("t1", "ns", "c")
			require.NoError(t, err)
			values, err := k.Shard(0)
			require.NoError(t, err)
			put := func(bytes int64) error {
				w := new(partition.CacheWrite)
				require.NoError(t, w.Put([]byte("k"), make([]byte, bytes), 0, false, 0, 0, values.Now()))
				return values.Write(deadline(t), w)
			}
			require.NoError(t, put(c.want))
			require.Equal(t, wire.CodeLimitExceeded, codeOf(put(c.want+1)))
		})
	}
}
