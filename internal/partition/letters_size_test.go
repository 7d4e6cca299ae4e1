package partition

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// TestLettersOfAnySizeAreCopied: what a stream takes its groups can copy, the largest
// record too; else its segment would stay for ever.
func TestLettersOfAnySizeAreCopied(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, vfs.OS().MkdirAll(dir+"/stream"))
	p, err := Open(deadline(t), dir+"/stream", Options{Name: "s", MaxRecordBytes: maxBody, Groups: &GroupHome{Dir: dir + "/groups"}})
	require.NoError(t, err)
	s := &groupShard{t: t, p: p}
	defer s.close()
	s.groups, err = p.Groups(deadline(t))
	require.NoError(t, err)
	require.ErrorContains(t, send(p, &Publish{Payloads: payloads(strings.Repeat("x", maxBody-letterRoom+1))}).Err, "bytes")
	largest := strings.Repeat("x", maxBody-letterRoom)
	publish(t, p, "small", largest, strings.Repeat("y", storage.DefaultMaxRecordBytes))
	name := strings.Repeat("g", queue.MaxGroupName)
	for range 3 {
		require.Len(t, s.poll(name, 1, 0), 1)
	}
	require.NoError(t, s.groups.Do(deadline(t), name, true, func(now segment.Micros, g *queue.Group, _, tail storage.Offset) error {
		for o := range tail {
			if err := g.GiveUp(now, o, tail); err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(t, s.groups.CopyLetters(deadline(t), 3))
	letters, _, err := s.groups.Letters(deadline(t), name, 1, 1)
	require.NoError(t, err)
	require.Len(t, letters, 1)
	require.True(t, letters[0].Copied)
	require.True(t, string(letters[0].Payload) == largest, "the copy is another")
}

// TestDecisionsAreBounded: what many groups decide at once is several records of one
// batch, each group's own kept together.
func TestDecisionsAreBounded(t *testing.T) {
	d := &decision{}
	part := func(i, bytes int) []projection.Entry {
		return []projection.Entry{{Key: []byte(fmt.Sprint("a", i)), Value: make([]byte, bytes)}, {Key: []byte(fmt.Sprint("b", i))}}
	}
	sizes := []int{10, maxDecisionBytes / 2, maxDecisionBytes / 2, 3 * maxDecisionBytes, 10, 10}
	for i, n := range sizes {
		d.add(part(i, n))
	}
	d.seal(nil)
	var held []int
	d.each(func(r []projection.Entry) {
		require.Zero(t, len(r)%2, "a part is torn apart")
		held = append(held, len(r)/2)
		require.True(t, len(r) == 2 || projection.EntrySetSize(r) <= maxDecisionBytes)
	})
	require.Equal(t, []int{2, 1, 1, 2}, held)
}
