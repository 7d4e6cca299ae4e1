package partition

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// writeCopy puts the segments of a copy into dir.
func writeCopy(t *testing.T, c *storage.Copy, dir string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o700))
	for i, s := range c.Segments {
		f, err := os.Create(filepath.Join(dir, segment.SegmentName(s.ID)))
		require.NoError(t, err)
		require.NoError(t, c.WriteSegment(t.Context(), i, f))
		require.NoError(t, f.Close())
	}
}

// openUnflushed is openGroups without a flush for each ack.
func openUnflushed(t *testing.T, dir string, o GroupsOptions) *groupShard {
	t.Helper()
	o.Storage = storage.Options{Fsync: storage.None, SegmentBytes: 64 << 10}
	p, err := Open(deadline(t), dir+"/stream", Options{
		Name: "t/n/s/0", Storage: storage.Options{Fsync: storage.None, SegmentBytes: 16 << 10},
		Groups: &GroupHome{Dir: dir + "/groups", GroupsOptions: o},
	})
	require.NoError(t, err)
	g, err := p.Groups(deadline(t))
	require.NoError(t, err)
	return &groupShard{t: t, p: p, groups: g}
}

// Copies are cut while records are published, claimed and acked. In each of them no group
// is past the records, and what was not acked is handed out.
func TestACopyOfTheGroupsIsNotAheadOfItsRecords(t *testing.T) {
	s := openUnflushed(t, t.TempDir(), GroupsOptions{})
	defer s.close()
	const each = 200
	for round := range 8 {
		var busy sync.WaitGroup
		defer busy.Wait()
		busy.Go(func() {
			for i := round * each; i < (round+1)*each; i++ {
				publish(t, s.p, strconv.Itoa(i))
			}
		})
		busy.Go(func() {
			for s.stats("g").Acked < uint64((round+1)*each) {
				for _, r := range s.poll("g", 50, time.Second) {
					if err := s.ack("g", r.Offset); err != nil {
						t.Error(err)
					}
				}
			}
		})
		require.Eventually(t, func() bool { return s.p.Positions().Readable > storage.Offset(round*each+5) }, testDeadline, time.Millisecond)
		c, err := s.p.Copy(t.Context())
		require.NoError(t, err)
		tail := c.Records.End
		dir := t.TempDir()
		writeCopy(t, c.Records, dir+"/stream")
		writeCopy(t, c.Groups, dir+"/groups")
		c.Release()

		r := openUnflushed(t, dir, GroupsOptions{OnClamped: func(string, int) { t.Error("a group is past the records of its copy") }})
		require.Equal(t, tail, r.p.Positions().Readable)
		st := r.stats("g")
		got := r.poll("g", 1000, 0)
		require.Len(t, got, min(int(tail)-int(st.Acked), 1000))
		for _, rec := range got {
			require.Equal(t, strconv.Itoa(int(rec.Offset)), string(rec.Payload))
		}
		r.close()
		busy.Wait()
	}
}

func TestCopiesOfWhatCannotBeCopied(t *testing.T) {
	m := NewMemory(Options{Name: "t/n/s/0"})
	_, err := m.Copy(t.Context())
	require.ErrorIs(t, err, ErrMemoryStream)
	require.NoError(t, m.Close(t.Context()))

	s := openGroups(t, vfs.OS(), t.TempDir(), GroupsOptions{})
	require.NoError(t, s.p.Delete(deadline(t)))
	_, err = s.p.Copy(t.Context())
	require.ErrorIs(t, err, ErrDeleted)
}
