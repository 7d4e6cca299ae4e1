package partition

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

func idempotent(t testing.TB, p *Partition, id, seq uint64, values ...string) *sent {
	t.Helper()
	s := send(p, &Publish{Payloads: payloads(values...), Idempotent: true, ProducerID: id, Sequence: seq})
	p.Drive(true)
	return s.wait(t)
}

// A producer is remembered over a restart, from the snapshot, from the log's records,
// and from a snapshot with records after it.
func TestProducersSurviveARestart(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, dir string){
		"snapshot": func(*testing.T, string) {},
		"missing": func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, segment.ProducersName)))
		},
		"empty": func(t *testing.T, dir string) {
			require.NoError(t, os.Truncate(filepath.Join(dir, segment.ProducersName), 0))
		},
		"flipped": func(t *testing.T, dir string) {
			name := filepath.Join(dir, segment.ProducersName)
			b, err := os.ReadFile(name)
			require.NoError(t, err)
			b[len(b)-1] ^= 1
			require.NoError(t, os.WriteFile(name, b, 0o600))
		},
		"older": func(t *testing.T, dir string) {
			// One taken when the log was shorter: the rest is read from the log.
			p, err := Open(deadline(t), dir, Options{})
			require.NoError(t, err)
			old, err := os.ReadFile(filepath.Join(dir, segment.ProducersName))
			require.NoError(t, err)
			require.NoError(t, idempotent(t, p, 7, 3, "d").Err)
			publish(t, p, "plain")
			require.NoError(t, p.Close(context.Background()))
			require.NoError(t, os.WriteFile(filepath.Join(dir, segment.ProducersName), old, 0o600))
		},
		"past the tail": func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, segment.ProducersName),
				segment.AppendProducers(nil, &segment.ProducerSnapshot{AsOf: 1000}), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p := durable(t, dir)
			publish(t, p, "plain")
			for seq, v := range []string{"a", "b", "c"} {
				require.NoError(t, idempotent(t, p, 7, uint64(seq), v, v).Err)
			}
			require.NoError(t, p.Close(context.Background()))
			damage(t, dir)
			p = durable(t, dir)
			again := idempotent(t, p, 7, 1, "b", "b")
			require.NoError(t, again.Err)
			require.True(t, again.Duplicate)
			require.Equal(t, storage.Offset(3), again.First)
			require.ErrorIs(t, idempotent(t, p, 7, 1, "b", "x").Err, stream.ErrSequenceReused)
			require.ErrorIs(t, idempotent(t, p, 8, 1, "x").Err, stream.ErrUnknownProducer)
			var gap *stream.SequenceGapError
			require.ErrorAs(t, idempotent(t, p, 7, 99, "x").Err, &gap)
			require.NoError(t, idempotent(t, p, 7, gap.Expected, "next").Err)
		})
	}
}

// A log without batches of producers is not read for them.
func TestAPlainLogIsNotReadForProducers(t *testing.T) {
	dir := t.TempDir()
	p := durable(t, dir)
	publish(t, p, "plain")
	require.NoError(t, p.Close(context.Background()))
	_, err := os.Stat(filepath.Join(dir, segment.ProducersName))
	require.ErrorIs(t, err, os.ErrNotExist, "no producer, no file")
	read := false
	durable(t, dir, func(o *Options) {
		o.Events.OnProducersRebuilt = func(string, storage.Offset, storage.Offset) { read = true }
	})
	require.False(t, read)
}

// A snapshot is written as the log grows, so that a crash costs reading a part of it.
func TestSnapshotsAreWrittenAsTheLogGrows(t *testing.T) {
	dir := t.TempDir()
	p := durable(t, dir, func(o *Options) { o.SnapshotEvery = 1 << 10 })
	for seq := range uint64(100) {
		require.NoError(t, idempotent(t, p, 7, seq, fmt.Sprintf("record %d", seq)).Err)
	}
	p.background.stop()
	b, err := os.ReadFile(filepath.Join(dir, segment.ProducersName))
	require.NoError(t, err)
	s, err := segment.DecodeProducers(b)
	require.NoError(t, err)
	require.Positive(t, s.AsOf)
	require.Len(t, s.Producers, 1)
	require.Equal(t, uint64(s.AsOf)-1, s.Producers[0].LastSequence, "as of exactly what it says")
}

// A crash between the records of a batch leaves its first ones: they were never
// answered. They are cut, and sending the batch again writes it once.
func TestATornBatchIsCutAndSentAgain(t *testing.T) {
	dir := t.TempDir()
	p := durable(t, dir)
	require.NoError(t, idempotent(t, p, 7, 0, "a").Err)
	require.NoError(t, idempotent(t, p, 7, 1, "b0", "b1", "b2").Err)
	require.NoError(t, p.Close(context.Background()))

	// Cut the last record, as recovery does with a torn tail.
	log, err := storage.Open(deadline(t), dir, storage.Options{})
	require.NoError(t, err)
	require.NoError(t, log.TruncateTo(deadline(t), 3))
	require.NoError(t, log.Close(context.Background()))
	require.NoError(t, os.Remove(filepath.Join(dir, segment.ProducersName)))

	var from, tail storage.Offset
	p = durable(t, dir, func(o *Options) {
		o.Events.OnTornBatch = func(_ string, f, t storage.Offset) { from, tail = f, t }
	})
	require.Equal(t, []storage.Offset{1, 3}, []storage.Offset{from, tail})
	again := idempotent(t, p, 7, 1, "b0", "b1", "b2")
	require.NoError(t, again.Err)
	require.False(t, again.Duplicate)
	r := reader{sub: subscribe(t, p, StartEarliest())}
	require.NoError(t, r.take(deadline(t), 4))
	require.Equal(t, []string{"a", "b0", "b1", "b2"}, r.payloads())
}

func TestIdempotentBatchesKeepTheirPublisher(t *testing.T) {
	dir := t.TempDir()
	keep := func(o *Options) { o.StorePublisher = true }
	p := durable(t, dir, keep)
	s := send(p, &Publish{Payloads: payloads("a"), Idempotent: true, ProducerID: 1, Publisher: []byte("alice")})
	p.Drive(true)
	require.NoError(t, s.wait(t).Err)
	var page ReadPage
	require.NoError(t, p.Read(deadline(t), ReadRequest{}, &page))
	require.Equal(t, "alice", string(page.Records[0].Publisher))

	// The digest is over what was published, without the publisher.
	require.NoError(t, p.Close(context.Background()))
	require.NoError(t, os.Remove(filepath.Join(dir, segment.ProducersName)))
	p = durable(t, dir, keep)
	again := idempotent(t, p, 1, 0, "a")
	require.NoError(t, again.Err)
	require.True(t, again.Duplicate)
}
