package broker

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/storage"
)

// A record that no answer of this broker could carry is refused when it is published,
// though its stream was made under larger limits.
func TestRecordsThatCannotBeReadAreRefused(t *testing.T) {
	w := newWorld(t)
	b := w.open(func(o *Options) { o.Limits.MostRecordBytes = 1000 })
	_, err := b.CreateStream(deadline(t), meta.Stream{Tenant: "t1", Namespace: "ns", Name: "jobs", Shards: 1, Durable: true, MaxRecordBytes: 2000})
	require.NoError(t, err)
	st, err := b.Stream("t1", "ns", "jobs")
	require.NoError(t, err)
	shard, err := st.Shard(0)
	require.NoError(t, err)
	for size, want := range map[int]error{1000: nil, 1001: &storage.RecordTooLargeError{Size: 1001, Max: 1000}} {
		done := make(chan error, 1)
		p := &partition.Publish{Payloads: [][]byte{make([]byte, size)}, Done: func(p *partition.Publish) { done <- p.Err }}
		if err := shard.Publish(p); err != nil {
			require.Equal(t, want, err)
			continue
		}
		shard.Drive(true)
		require.Equal(t, want, <-done)
	}
}
