package partition

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// Answers of a group stay within 4 MiB of payload, and hold one record in any case: what
// does not leave is owed as before.
func TestPagesOfAGroupAreBoundedInBytes(t *testing.T) {
	s := openGroups(t, vfs.OS(), t.TempDir(), GroupsOptions{})
	defer s.close()
	large := strings.Repeat("x", 3<<20)
	for _, size := range []int{3 << 20, 1 << 20, 3 << 20, 5 << 20} {
		publish(t, s.p, (large + large)[:size])
	}
	var page []int
	for range 3 {
		records := s.poll("g", 10, 0)
		page = append(page, len(records))
		for _, r := range records {
			require.EqualValues(t, 1, r.Attempts)
			require.NoError(t, s.groups.Do(deadline(t), "g", true, func(now segment.Micros, g *queue.Group, _, tail storage.Offset) error {
				return g.GiveUp(now, r.Offset, tail)
			}))
		}
	}
	require.Equal(t, []int{2, 1, 1}, page)

	page = nil
	from, more := storage.Offset(0), true
	for more {
		var letters []Letter
		var err error
		letters, more, err = s.groups.Letters(deadline(t), "g", from, 100)
		require.NoError(t, err)
		page = append(page, len(letters))
		from = letters[len(letters)-1].Offset + 1
	}
	require.Equal(t, []int{2, 1, 1}, page)
}
