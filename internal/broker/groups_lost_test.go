package broker

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// settle has a group take one record and acknowledge it.
func settle(t *testing.T, p *partition.Partition) {
	g, err := p.Groups(deadline(t))
	require.NoError(t, err)
	var polled partition.Polled
	require.NoError(t, g.Poll(deadline(t), partition.PollCall{Group: "g", Max: 1, Wait: time.Second}, &polled))
	require.Len(t, polled.Records, 1)
	require.NoError(t, g.Do(deadline(t), "g", false, func(now segment.Micros, g *queue.Group, _, tail storage.Offset) error {
		return g.Ack(now, polled.Records[0].Offset, tail)
	}))
}

// next is the offset of the record that a group gets, which it gives back.
func next(t *testing.T, p *partition.Partition) storage.Offset {
	g, err := p.Groups(deadline(t))
	require.NoError(t, err)
	var polled partition.Polled
	require.NoError(t, g.Poll(deadline(t), partition.PollCall{Group: "g", Max: 1, Wait: time.Second}, &polled))
	require.Len(t, polled.Records, 1)
	require.NoError(t, g.GiveBack("g", polled.Records))
	return polled.Records[0].Offset
}

// What a shard's groups settled is not forgotten in silence: without their log it is out
// of service. A shard whose groups nobody asked for misses none, nor does a stream made
// anew.
func TestLostGroupsAreNotBegunAnew(t *testing.T) {
	for name, empty := range map[string]bool{"missing": false, "empty": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			b := w.open()
			p := shardOf(t, create(t, b, durableStream("s")), 0)
			_, err := put(p, "a", "b")
			require.NoError(t, err)
			settle(t, p)
			create(t, b, durableStream("unused"))
			require.NoError(t, b.Close(context.Background()))
			dir := filepath.Join(w.dir("s", 0), groupsDir)
			away := filepath.Join(t.TempDir(), "away")
			require.NoError(t, os.Rename(dir, away))
			if empty {
				require.NoError(t, os.Mkdir(dir, 0o700))
			}

			b = w.open()
			faults := b.Damaged()
			require.Len(t, faults, 1)
			var missing *MissingError
			require.ErrorAs(t, faults[0].Err, &missing)
			require.Equal(t, &MissingError{Dir: dir, Mark: missing.Mark, Empty: empty}, missing)
			require.ErrorContains(t, faults[0].Err, "consumer groups: directory ")
			s, err := b.Stream("t1", "ns", "s")
			require.NoError(t, err)
			require.ErrorAs(t, b.ReopenShard(deadline(t), s, 0), &missing)
			require.NoError(t, os.RemoveAll(dir))
			require.NoError(t, os.Rename(away, dir))
			require.NoError(t, b.ReopenShard(deadline(t), s, 0))
			require.EqualValues(t, 1, next(t, shardOf(t, s, 0)))

			require.NoError(t, b.DeleteStream(deadline(t), "t1", "ns", "s"))
			_, err = put(shardOf(t, create(t, b, durableStream("s")), 0), "anew")
			require.NoError(t, err)
			require.NoFileExists(t, missing.Mark)
			require.NoError(t, b.Close(context.Background()))
			b = w.open()
			require.Empty(t, b.Damaged())
		})
	}
}

// Who takes away the mark of a shard begins it anew, its groups too; who takes away that of
// its groups begins them.
func TestTheMarksSayWhatIsBegunAnew(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	s := create(t, b, durableStream("s"))
	again := func() {
		p := shardOf(t, s, 0)
		_, err := put(p, "a", "b")
		require.NoError(t, err)
		settle(t, p)
	}
	lose := func(dir string) *MissingError {
		require.NoError(t, b.Close(context.Background()))
		require.NoError(t, os.RemoveAll(dir))
		b = w.open()
		var err error
		s, err = b.Stream("t1", "ns", "s")
		require.NoError(t, err)
		var missing *MissingError
		require.ErrorAs(t, b.ReopenShard(deadline(t), s, 0), &missing)
		require.NoError(t, os.Remove(missing.Mark))
		require.NoError(t, b.ReopenShard(deadline(t), s, 0))
		return missing
	}
	again()
	require.Equal(t, w.dir("s", 0), lose(w.dir("s", 0)).Dir)
	require.Zero(t, shardOf(t, s, 0).Positions().Next)
	again()
	groups := filepath.Join(w.dir("s", 0), groupsDir)
	require.Equal(t, groups, lose(groups).Dir)
	require.Zero(t, next(t, shardOf(t, s, 0)))
}

// Whatever stops the making of a shard's groups, they are made when they are next asked
// for.
func TestGroupsHalfMadeAreMade(t *testing.T) {
	for ops := 1; ; ops++ {
		w := newWorld(t)
		faulty := disk.NewFaulty(vfs.OS())
		// Of the stream's own log nothing is flushed meanwhile: what fails is the making.
		b := w.open(func(o *Options) { o.FS, o.Defaults.Fsync = faulty, storage.None })
		p := shardOf(t, create(t, b, durableStream("s")), 0)
		_, err := put(p, "a", "b")
		require.NoError(t, err)
		faulty.Add(disk.Rule{Nth: ops, Count: disk.Forever, Action: disk.Fail(syscall.EIO)})
		_, made := p.Groups(deadline(t))
		faulty.Clear()
		require.NoError(t, b.Close(context.Background()))
		b = w.open()
		require.Empty(t, b.Damaged(), "operation %d and those after it failed", ops)
		s, err := b.Stream("t1", "ns", "s")
		require.NoError(t, err)
		settle(t, shardOf(t, s, 0))
		if made == nil {
			return
		}
	}
}
