package partition

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// groupShard is a stream shard with its groups, over a file system of the test's.
type groupShard struct {
	t      testing.TB
	p      *Partition
	groups *Groups
}

func openGroups(t testing.TB, fs vfs.FS, dir string, o GroupsOptions) *groupShard {
	t.Helper()
	require.NoError(t, fs.MkdirAll(dir+"/stream"))
	o.Storage = storage.Options{FS: fs, SegmentBytes: 64 << 10}
	p, err := Open(deadline(t), dir+"/stream", Options{
		Name: "t/n/s/0", Storage: storage.Options{FS: fs, SegmentBytes: 16 << 10},
		Groups: &GroupHome{Dir: dir + "/groups", GroupsOptions: o},
	})
	require.NoError(t, err)
	g, err := p.Groups(deadline(t))
	require.NoError(t, err)
	return &groupShard{t: t, p: p, groups: g}
}

func (s *groupShard) close() {
	s.t.Helper()
	require.NoError(s.t, s.p.Close(deadline(s.t)))
}

func pollOf(ctx context.Context, g *Groups, c PollCall) ([]GroupRecord, error) {
	var p Polled
	err := g.Poll(ctx, c, &p)
	return p.Records, err
}

func (s *groupShard) poll(group string, n int, wait time.Duration) []GroupRecord {
	s.t.Helper()
	r, err := pollOf(deadline(s.t), s.groups, PollCall{Group: group, Max: n, Wait: wait})
	require.NoError(s.t, err)
	return r
}

func ackOp(at storage.Offset) GroupOp {
	return func(now segment.Micros, g *queue.Group, _, tail storage.Offset) error { return g.Ack(now, at, tail) }
}

func nackOp(at storage.Offset) GroupOp {
	return func(now segment.Micros, g *queue.Group, _, tail storage.Offset) error {
		return g.Nack(now, queue.NackRequest{Offset: at, HasDelay: true, Tail: tail})
	}
}

func (s *groupShard) ack(group string, at storage.Offset) error {
	return s.groups.Do(deadline(s.t), group, true, ackOp(at))
}

func (s *groupShard) stats(group string) (st queue.Stats) {
	s.t.Helper()
	require.NoError(s.t, s.groups.Do(deadline(s.t), group, true, func(now segment.Micros, g *queue.Group, head, tail storage.Offset) error {
		st = g.Stats(now, head, tail)
		return st.Check()
	}))
	return st
}

func TestUnackedRecordsComeBackAfterAKill(t *testing.T) {
	fs := disk.NewStrict(1, disk.Options{})
	s := openGroups(t, fs, "/shard", GroupsOptions{})
	for i := range 100 {
		publish(t, s.p, fmt.Sprint(i))
	}
	require.Len(t, s.poll("g", 100, 0), 100)
	for o := storage.Offset(1); o < 100; o += 2 {
		require.NoError(t, s.ack("g", o))
	}
	after := fs.Kill()
	require.Error(t, s.p.Close(deadline(t)))

	s = openGroups(t, after, "/shard", GroupsOptions{})
	defer s.close()
	got := s.poll("g", 1000, 0)
	require.Len(t, got, 50)
	for i, r := range got {
		require.Equal(t, storage.Offset(2*i), r.Offset)
		require.Equal(t, fmt.Sprint(2*i), string(r.Payload))
		require.Equal(t, uint32(2), r.Attempts)
	}
}

// TestAcksOfOneBurstAreOneRecord guards the cost of acks that arrive together.
func TestAcksOfOneBurstAreOneRecord(t *testing.T) {
	s := openGroups(t, vfs.OS(), t.TempDir(), GroupsOptions{})
	defer s.close()
	values := make([]string, 500)
	publish(t, s.p, values...)
	require.Len(t, s.poll("g", 500, 0), 500)
	before := s.groups.Log().Next()
	var wg sync.WaitGroup
	for o := range storage.Offset(500) {
		wg.Add(1)
		require.NoError(t, s.groups.Submit("g", true, ackOp(o), func(err error) {
			require.NoError(t, err)
			wg.Done()
		}))
	}
	s.groups.Drive(true)
	wg.Wait()
	require.Equal(t, before+1, s.groups.Log().Next())
	require.Equal(t, uint64(500), s.stats("g").Acked)
}

func TestALongPollIsWoken(t *testing.T) {
	for name, c := range map[string]struct {
		visibility time.Duration
		wake       func(*groupShard)
	}{
		"by a publish": {time.Hour, func(s *groupShard) { publish(s.t, s.p, "x") }},
		"by a nack": {time.Hour, func(s *groupShard) {
			require.NoError(s.t, s.groups.Do(deadline(s.t), "g", true, func(now segment.Micros, g *queue.Group, _, tail storage.Offset) error {
				return g.Nack(now, queue.NackRequest{Offset: 0, HasDelay: true, Tail: tail})
			}))
		}},
		"by a lapse": {50 * time.Millisecond, func(*groupShard) {}},
	} {
		t.Run(name, func(t *testing.T) {
			s := openGroups(t, vfs.OS(), t.TempDir(), GroupsOptions{Defaults: queue.Config{Visibility: c.visibility}})
			defer s.close()
			publish(t, s.p, "first")
			require.Len(t, s.poll("g", 1, 0), 1)
			got := make(chan []GroupRecord, 1)
			go func() {
				r, err := pollOf(deadline(t), s.groups, PollCall{Group: "g", Max: 1, Wait: time.Minute})
				if err != nil {
					t.Error(err)
				}
				got <- r
			}()
			c.wake(s)
			select {
			case r := <-got:
				require.Len(t, r, 1)
			case <-deadline(t).Done():
				t.Fatal("the poll was not woken")
			}
		})
	}
}

// TestADecisionTheLogTookBackDidNotHappen makes one write of the groups' log fail: its ack
// is refused, what was answered before stands, and so do the claims.
func TestADecisionTheLogTookBackDidNotHappen(t *testing.T) {
	faulty := disk.NewFaulty(vfs.OS())
	s := openGroups(t, faulty, t.TempDir(), GroupsOptions{})
	defer s.close()
	publish(t, s.p, "a", "b", "c")
	require.Len(t, s.poll("g", 3, 0), 3)
	require.NoError(t, s.ack("g", 1))
	faulty.Add(disk.Rule{Op: disk.OpWrite, Path: s.p.o.Groups.Dir + "/*.log", Action: disk.Fail(errors.New("bad sector"))})
	require.ErrorIs(t, s.ack("g", 0), storage.ErrNotWritten)
	s.reloaded()
	st := s.stats("g")
	require.EqualValues(t, 1, st.Acked)
	require.EqualValues(t, 2, st.Claimed)
	require.NoError(t, s.ack("g", 0))
	require.NoError(t, s.ack("g", 2))
	require.EqualValues(t, 3, s.stats("g").Position)
}

func TestADeadLettersPayloadOutlivesItsSegment(t *testing.T) {
	dir := t.TempDir()
	s := openGroups(t, vfs.OS(), dir, GroupsOptions{Defaults: queue.Config{MaxAttempts: 1}})
	publish(t, s.p, "poison")
	require.Len(t, s.poll("g", 1, 0), 1)
	require.NoError(t, s.groups.Do(deadline(t), "g", true, func(now segment.Micros, g *queue.Group, _, tail storage.Offset) error {
		return g.Nack(now, queue.NackRequest{Offset: 0, HasDelay: true, Tail: tail})
	}))
	require.Equal(t, storage.Offset(0), s.groups.Uncopied(1))
	for s.p.Log().Head() == 0 {
		publish(t, s.p, string(make([]byte, 4<<10)))
		segs := s.p.Log().Segments()
		if len(segs) > 1 {
			require.NoError(t, s.groups.CopyLetters(deadline(t), segs[0].Next))
			require.Equal(t, segs[0].Next, s.groups.Uncopied(segs[0].Next))
			_, err := s.p.Log().TrimHead(deadline(t), segs[0].Next)
			require.NoError(t, err)
		}
	}
	s.close()
	s = openGroups(t, vfs.OS(), dir, GroupsOptions{})
	defer s.close()
	letters, more, err := s.groups.Letters(deadline(t), "g", 0, 10)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, letters, 1)
	require.Equal(t, "poison", string(letters[0].Payload))
	require.Equal(t, queue.ReasonAttempts, letters[0].Reason)
	require.NoError(t, s.groups.Do(deadline(t), "g", true, func(_ segment.Micros, g *queue.Group, _, _ storage.Offset) error {
		return g.Redrive(0)
	}))
	got := s.poll("g", 1, 0)
	require.Equal(t, "poison", string(got[0].Payload))
	require.Equal(t, uint32(1), got[0].Attempts)
	require.NoError(t, s.ack("g", 0))
	require.Positive(t, s.stats("g").Lost, "records that no group had settled are lost by name")
}

// TestAnExclusiveGroupIsTakenOver has a second consumer wait until the first one's time is
// up: meanwhile there is nothing for it. Time passes when everybody waits.
func TestAnExclusiveGroupIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openGroups(t, disk.NewStrict(1, disk.Options{}), "/shard", GroupsOptions{Defaults: queue.Config{Exclusive: true, Visibility: time.Second}})
		defer s.close()
		publish(t, s.p, "a")
		poll := func(member string, wait time.Duration) []GroupRecord {
			r, err := pollOf(deadline(t), s.groups, PollCall{Group: "g", Max: 1, Member: member, Wait: wait})
			require.NoError(t, err)
			return r
		}
		began := time.Now()
		require.Len(t, poll("one", 0), 1)
		require.Empty(t, poll("two", 0))
		require.Len(t, poll("two", time.Minute), 1, "its claim and its hold have lapsed")
		require.WithinRange(t, time.Now(), began.Add(time.Second), began.Add(2*time.Second))
		require.Empty(t, poll("one", 0))
	})
}

// TestManyConsumersEachRecordOnce lets consumers and publishers race: every record is
// acked exactly once, by whoever got it.
func TestManyConsumersEachRecordOnce(t *testing.T) {
	s := openGroups(t, vfs.OS(), t.TempDir(), GroupsOptions{})
	defer s.close()
	const n = 2000
	var mu sync.Mutex
	seen := map[storage.Offset]int{}
	ctx, cancel := context.WithCancel(deadline(t))
	defer cancel()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				records, err := pollOf(ctx, s.groups, PollCall{Group: "g", Max: 17, Wait: time.Minute})
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				for _, r := range records {
					if err := s.groups.Do(deadline(t), "g", true, ackOp(r.Offset)); err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if seen[r.Offset]++; len(seen) == n {
						cancel()
					}
					mu.Unlock()
				}
			}
		})
	}
	for range n / 10 {
		publish(t, s.p, make([]string, 10)...)
	}
	wg.Wait()
	require.Len(t, seen, n)
	for o, times := range seen {
		require.Equal(t, 1, times, "record %d", o)
	}
	require.Equal(t, uint64(n), s.stats("g").Acked)
	existed, err := s.groups.DeleteGroup(deadline(t), "g")
	require.NoError(t, err)
	require.True(t, existed)
	require.Len(t, s.poll("g", 5, 0), 5, "a deleted group begins anew")
}
