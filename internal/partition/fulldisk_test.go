package partition

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// TestAFullDiskRefusesWritesAlone fills a disk up to its reserve through one of two
// streams. Both and the cache refuse new records with one error; reading, acks, dead
// letters, deletes, compaction and retention go on, and so do writes once there is room.
func TestAFullDiskRefusesWritesAlone(t *testing.T) {
	strict := disk.NewStrict(1, disk.Options{Capacity: 2 << 20})
	low, room := make(chan struct{}, 1), make(chan struct{}, 1)
	d, err := storage.NewDisk(storage.DiskOptions{FS: strict, Dir: "/", MinFree: 1 << 20, Events: storage.DiskEvents{
		OnLowSpace: func(int64, int64) { low <- struct{}{} },
		OnRoom:     func(int64, int64) { room <- struct{}{} },
	}})
	require.NoError(t, err)
	so := storage.Options{FS: strict, Disk: d, Fsync: storage.OnCommit, SegmentBytes: 32 << 10}
	open := func(dir string) *groupShard {
		require.NoError(t, strict.MkdirAll(dir))
		p, err := Open(deadline(t), dir, Options{Storage: so, Groups: &GroupHome{Dir: dir + "/groups", GroupsOptions: GroupsOptions{Storage: so}}})
		require.NoError(t, err)
		g, err := p.Groups(deadline(t))
		require.NoError(t, err)
		return &groupShard{t: t, p: p, groups: g}
	}
	filling, other := open("/filling"), open("/other")
	require.NoError(t, strict.MkdirAll("/cache"))
	c := openCache(t, "/cache", CacheOptions{Storage: so, CompactAbove: 1 << 40})
	for range 20 {
		put(t, c, "old", string(make([]byte, 4<<10)))
	}
	put(t, c, "k", "v")
	publish(t, other.p, numbered("job ", 10)...)
	require.Len(t, other.poll("g", 4, 0), 4)

	refused := func(p *Partition) error {
		s := send(p, &Publish{Payloads: [][]byte{make([]byte, 8<<10)}})
		p.Drive(true)
		return s.wait(t).Err
	}
	for err == nil {
		err = refused(filling.p)
	}
	require.ErrorIs(t, err, storage.ErrDiskFull)
	<-low
	require.ErrorIs(t, refused(other.p), storage.ErrDiskFull)
	w := new(CacheWrite)
	require.NoError(t, w.Put([]byte("k"), []byte("new"), 0, false, cache.Always, 0, c.Now()))
	require.ErrorIs(t, c.Write(deadline(t), w), storage.ErrDiskFull)

	// Reading and everything that ends something goes on.
	var page ReadPage
	for _, s := range []*groupShard{filling, other} {
		require.NoError(t, s.p.Read(deadline(t), ReadRequest{From: 0}, &page))
		require.NotEmpty(t, page.Records)
	}
	v, ok := get(t, c, "k")
	require.True(t, ok)
	require.Equal(t, "v", v)
	require.NoError(t, other.ack("g", 0))
	require.NoError(t, other.groups.Do(deadline(t), "g", true, func(now segment.Micros, g *queue.Group, _, tail storage.Offset) error {
		return g.GiveUp(now, 1, tail)
	}))
	require.NoError(t, other.groups.Do(deadline(t), "g", true, func(now segment.Micros, g *queue.Group, _, tail storage.Offset) error {
		return g.Nack(now, queue.NackRequest{Offset: 2, HasDelay: true, Tail: tail})
	}))
	require.Len(t, other.poll("g", 10, 0), 7, "deliveries, the nacked one among them")
	require.NoError(t, other.ack("g", 2))
	_, had := remove(t, c, "k")
	require.True(t, had)
	before := c.Log().Head()
	compactAll(t, c)
	require.Greater(t, c.Log().Head(), before, "compaction gives room back")
	st := other.stats("g")
	require.Equal(t, uint64(2), st.Acked)
	require.Equal(t, uint64(1), st.Dead)

	// Retention makes room, and publishing goes on by itself.
	segs := filling.p.Log().Segments()
	require.Greater(t, len(segs), 4)
	freed, err := filling.p.Log().TrimHead(deadline(t), segs[len(segs)-1].Base)
	require.NoError(t, err)
	require.Positive(t, freed.Bytes)
	select {
	case <-room:
	case <-deadline(t).Done():
		t.Fatal("room was not noticed")
	}
	tail := filling.p.Positions().Readable
	require.Equal(t, tail, publish(t, filling.p, "again"), "no offset is missing, none is given twice")
	put(t, c, "k", "new")
	require.NoError(t, closeAll(t, filling, other))
	closeCache(t, c)
	require.NoError(t, d.Close())
}

// TestWhatAFullDiskRefusedOfAGroupIsSentAgain: neither a claim nor a delivery is lost by it.
// The deliveries are the last ones the group allows: a claim that were lost would be a dead
// letter.
func TestWhatAFullDiskRefusedOfAGroupIsSentAgain(t *testing.T) {
	faulty := disk.NewFaulty(vfs.OS())
	s := openGroups(t, faulty, t.TempDir(), GroupsOptions{Defaults: queue.Config{MaxAttempts: 1, Visibility: time.Hour}})
	defer s.close()
	publish(t, s.p, numbered("job ", 10)...)
	require.Len(t, s.poll("g", 1, 0), 1)
	require.Len(t, s.poll("g", 2, 0), 2, "and nothing had to be written for them")
	before := s.stats("g")
	ops := map[string]GroupOp{
		"ack":  ackOp(0),
		"nack": nackOp(1),
		"extend": func(now segment.Micros, g *queue.Group, _, tail storage.Offset) error {
			if _, err := g.Extend(now, 2, 1, 2*time.Hour, tail); err != nil {
				return err
			}
			return g.Ack(now, 0, tail) // an extension alone writes nothing
		},
		"seek": func(_ segment.Micros, g *queue.Group, head, tail storage.Offset) error {
			_, err := g.Seek(tail, head, tail, false)
			return err
		},
	}
	for name, op := range ops {
		faulty.Add(disk.Rule{Op: disk.OpWrite, Path: s.p.o.Groups.Dir + "/*.log", Action: disk.NoSpace(0)})
		require.ErrorIs(t, s.groups.Do(deadline(t), "g", true, op), storage.ErrDiskFull, name)
		s.reloaded()
		require.Equal(t, before, s.stats("g"), name)
	}
	faulty.Add(disk.Rule{Op: disk.OpWrite, Path: s.p.o.Groups.Dir + "/*.log", Action: disk.NoSpace(0)})
	_, err := s.groups.DeleteGroup(deadline(t), "g")
	require.ErrorIs(t, err, storage.ErrDiskFull)
	s.reloaded()
	require.Equal(t, before, s.stats("g"), "delete")

	require.NoError(t, s.ack("g", 0))
	require.NoError(t, s.groups.Do(deadline(t), "g", true, nackOp(1)))
	require.NoError(t, s.groups.Do(deadline(t), "g", true, func(now segment.Micros, g *queue.Group, _, tail storage.Offset) error {
		_, err := g.Extend(now, 2, 1, 2*time.Hour, tail)
		return err
	}))
	for i, r := range s.poll("g", 10, 0) {
		require.EqualValues(t, 3+i, r.Offset)
		require.EqualValues(t, 1, r.Attempts)
	}
	st := s.stats("g")
	require.EqualValues(t, 1, st.Acked)
	require.EqualValues(t, 1, st.Dead, "the nacked one")
	require.EqualValues(t, 8, st.Claimed)
}

func closeAll(t *testing.T, shards ...*groupShard) error {
	for _, s := range shards {
		if err := s.p.Close(deadline(t)); err != nil {
			return err
		}
	}
	return nil
}
