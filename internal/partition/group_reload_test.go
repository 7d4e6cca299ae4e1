package partition

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// takeBack does what the log does when a write of it has failed.
func (s *groupShard) takeBack() { (*groupsLog)(s.groups).Revert(s.groups.log.Next()) }

// reloaded returns when the groups' state is to be trusted again.
func (s *groupShard) reloaded() {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		s.groups.mu.Lock()
		defer s.groups.mu.Unlock()
		return !s.groups.mu.broken || s.groups.Health() != nil
	}, testDeadline, time.Millisecond)
	require.NoError(s.t, s.groups.Health())
}

// answer waits for one.
func answerOf(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-deadline(t).Done():
		t.Fatal("the request was never answered")
		return nil
	}
}

func (s *groupShard) submitAck(at storage.Offset) <-chan error {
	s.t.Helper()
	done := make(chan error, 1)
	require.NoError(s.t, s.groups.Submit("g", true, ackOp(at), func(err error) { done <- err }))
	return done
}

func TestAReloadAnswersTheOpenDecision(t *testing.T) {
	s := openGroups(t, vfs.OS(), t.TempDir(), GroupsOptions{})
	defer s.close()
	publish(t, s.p, "x")
	require.Len(t, s.poll("g", 10, 0), 1)
	done := s.submitAck(0)
	s.takeBack()
	require.ErrorIs(t, answerOf(t, done), ErrGroupsReloading)
	s.reloaded()
	require.Empty(t, s.poll("g", 10, 0), "the claim stands")
	require.NoError(t, s.ack("g", 0))
	require.EqualValues(t, 1, s.stats("g").Acked)
}

// TestAReloadWakesPolls: what was taken back may be something for polls that wait.
func TestAReloadWakesPolls(t *testing.T) {
	s := openGroups(t, vfs.OS(), t.TempDir(), GroupsOptions{Defaults: queue.Config{Visibility: time.Hour}})
	defer s.close()
	publish(t, s.p, "x")
	require.Len(t, s.poll("g", 10, 0), 1)
	got := make(chan int, 1)
	go func() {
		r, err := pollOf(deadline(t), s.groups, PollCall{Group: "g", Max: 1, Wait: time.Hour})
		if err != nil {
			t.Error(err)
		}
		got <- len(r)
	}()
	waitingPolls(t, s, 1)
	require.NoError(t, s.groups.do(deadline(t), "g", false, false, nackOp(0))) // ready, and nobody is woken
	s.takeBack()
	select {
	case n := <-got:
		require.Equal(t, 1, n)
	case <-deadline(t).Done():
		t.Fatal("the poll sleeps on")
	}
}

// TestAReloadMeetsATrim has a compaction end while the state is read.
func TestAReloadMeetsATrim(t *testing.T) {
	faulty := disk.NewFaulty(vfs.OS())
	s := openGroups(t, faulty, t.TempDir(), GroupsOptions{})
	defer s.close()
	g := s.groups
	for i := 0; len(g.log.Segments()) < 4; i++ {
		require.NoError(t, g.Do(deadline(t), fmt.Sprintf("g%d", i%50), true, func(_ segment.Micros, group *queue.Group, _, _ storage.Offset) error {
			return group.Configure(queue.Config{MaxAttempts: 1 + i%9})
		}))
	}
	gate := disk.NewGate()
	faulty.Add(disk.Rule{Op: disk.OpRead, Path: s.p.o.Groups.Dir + "/*.log", Action: disk.Hold(gate)})
	s.takeBack()
	require.NoError(t, gate.Await(deadline(t), 1))
	_, err := g.log.TrimHead(deadline(t), g.log.Segments()[1].Next)
	require.NoError(t, err)
	gate.Open()
	s.reloaded()
	require.Len(t, g.Names(), 50)
}

// TestAPoisonedLogOfGroupsIsReadAgain: what was decided and is not in the log does not
// count once it serves again, and can be decided anew.
func TestAPoisonedLogOfGroupsIsReadAgain(t *testing.T) {
	faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
	s := openGroups(t, faulty, "/shard", GroupsOptions{Defaults: queue.Config{Visibility: time.Hour}})
	defer s.close()
	publish(t, s.p, "x")
	require.Len(t, s.poll("g", 10, 0), 1)
	faulty.Add(disk.Rule{Op: disk.OpWrite, Path: "/shard/groups/*.log", Action: disk.NoSpace(0)})
	faulty.Add(disk.Rule{Op: disk.OpTruncate, Path: "/shard/groups/*.log", Action: disk.NoSpace(0)})
	done := s.submitAck(0)
	s.groups.Drive(true)
	require.ErrorIs(t, answerOf(t, done), storage.ErrUnknownOutcome)
	require.Equal(t, Poisoned, s.p.State(), "the shard says what is wrong with its groups")
	require.ErrorContains(t, s.p.Health(), "consumer groups")
	faulty.Clear()
	require.NoError(t, s.p.Reopen(deadline(t)))
	require.Equal(t, Active, s.p.State())
	s.reloaded()
	require.NoError(t, s.ack("g", 0), "the claim stands")
	require.EqualValues(t, 1, s.stats("g").Acked)
}

// TestCloseAnswersWhatWasDecided: a request is answered, though nobody drives it before
// the shard closes.
func TestCloseAnswersWhatWasDecided(t *testing.T) {
	dir := t.TempDir()
	s := openGroups(t, vfs.OS(), dir, GroupsOptions{})
	publish(t, s.p, "x")
	require.Len(t, s.poll("g", 10, 0), 1)
	done := s.submitAck(0)
	require.NoError(t, s.p.Close(deadline(t)))
	require.NoError(t, answerOf(t, done))
	require.ErrorIs(t, s.groups.Submit("g", true, ackOp(0), nil), ErrClosed)
	s = openGroups(t, vfs.OS(), dir, GroupsOptions{})
	defer s.close()
	require.Empty(t, s.poll("g", 10, 0), "the ack was answered and stands")
}

// TestADecisionTheLogDoesNotTakeIsAnswered: its log is closed before it is driven.
func TestADecisionTheLogDoesNotTakeIsAnswered(t *testing.T) {
	s := openGroups(t, vfs.OS(), t.TempDir(), GroupsOptions{})
	publish(t, s.p, "x")
	require.Len(t, s.poll("g", 10, 0), 1)
	done := s.submitAck(0)
	s.groups.background.stop() // as a shard that ends
	require.NoError(t, s.groups.log.Close(deadline(t)))
	s.groups.Drive(true)
	require.ErrorIs(t, answerOf(t, done), ErrClosed)
	require.ErrorIs(t, s.p.Close(deadline(t)), storage.ErrClosed, "the groups' log is closed already")
}

// TestGroupsThatFailedAreOpenedAnew has the state refuse what the log says.
func TestGroupsThatFailedAreOpenedAnew(t *testing.T) {
	s := openGroups(t, vfs.OS(), t.TempDir(), GroupsOptions{})
	defer s.close()
	publish(t, s.p, "x")
	require.Len(t, s.poll("g", 10, 0), 1)
	s.groups.fail(fmt.Errorf("cannot be read"))
	require.Equal(t, Damaged, s.p.State())
	require.ErrorContains(t, s.p.Health(), "cannot be read")
	_, err := pollOf(deadline(t), s.groups, PollCall{Group: "g", Max: 1, Wait: time.Hour})
	require.ErrorContains(t, err, "cannot be read")
	require.NoError(t, s.p.Reopen(deadline(t)))
	require.Equal(t, storage.StateClosed, s.groups.log.Health().State)
	require.Equal(t, Active, s.p.State())
	require.NoError(t, s.p.Health())
	s.groups, err = s.p.Groups(deadline(t))
	require.NoError(t, err)
	require.Len(t, s.poll("g", 10, 0), 1)
}

// TestACacheThatFailedIsClosed: it refuses, says why, and gives back its log without a
// snapshot of what cannot be trusted.
func TestACacheThatFailedIsClosed(t *testing.T) {
	dir := t.TempDir()
	c, err := OpenCache(deadline(t), dir, CacheOptions{Name: "c"})
	require.NoError(t, err)
	put(t, c, "k", "v")
	watch, err := c.Watch(WatchOptions{Prefix: true})
	require.NoError(t, err)
	c.fail(fmt.Errorf("cannot be read"))
	require.Equal(t, Damaged, c.State())
	require.ErrorContains(t, c.Health(), "cannot be read")
	require.ErrorContains(t, watch.Next(deadline(t), func(*WatchEvent) error { return nil }), "cannot be read")
	_, _, err = c.Get(context.Background(), []byte("k"))
	require.ErrorContains(t, err, "cannot be read")
	require.ErrorIs(t, c.Reopen(deadline(t)), ErrOpenAnew)
	require.NoError(t, c.Close(deadline(t)))
	require.Equal(t, storage.StateClosed, c.Log().Health().State)
	require.NoFileExists(t, dir+"/"+projection.SnapshotName)
	c = openCache(t, dir, CacheOptions{})
	defer closeCache(t, c)
	v, _ := get(t, c, "k")
	require.Equal(t, "v", v)
}

// TestAReloadWithoutADescriptorIsTriedAgain: what the log holds could not be looked at, which
// says nothing against it. Requests are refused meanwhile, and the next one finds it read.
func TestAReloadWithoutADescriptorIsTriedAgain(t *testing.T) {
	faulty := disk.NewFaulty(vfs.OS())
	s := openGroups(t, faulty, t.TempDir(), GroupsOptions{})
	defer s.close()
	publish(t, s.p, "x", "y")
	require.Len(t, s.poll("g", 10, 0), 2)
	require.NoError(t, s.ack("g", 0))
	rule := faulty.Add(disk.Rule{Op: disk.OpRead, Path: s.p.o.Groups.Dir + "/*.log", Count: disk.Forever, Action: disk.Fail(syscall.EMFILE)})
	s.takeBack()
	for seen := range 3 {
		require.Eventually(t, func() bool { return rule.Hits() > seen && !s.reloading() }, testDeadline, time.Millisecond)
		require.ErrorIs(t, s.ack("g", 1), ErrGroupsReloading)
		require.NoError(t, s.groups.Health(), "the shard is not out of service")
	}
	faulty.Clear()
	require.Eventually(t, func() bool { return s.ack("g", 1) == nil }, testDeadline, time.Millisecond)
	st := s.stats("g")
	require.EqualValues(t, 2, st.Position)
}

func (s *groupShard) reloading() bool {
	s.groups.mu.Lock()
	defer s.groups.mu.Unlock()
	return s.groups.mu.reloading
}

// TestWhatDidNotLeaveIsGivenBackThoughTheStateIsReadAgain: a claim stands when the state has
// been read again, so one of a record that nobody got must not. The delivery is the last that
// the group allows: counted, it would make a dead letter.
func TestWhatDidNotLeaveIsGivenBackThoughTheStateIsReadAgain(t *testing.T) {
	s := openGroups(t, vfs.OS(), t.TempDir(), GroupsOptions{Defaults: queue.Config{MaxAttempts: 1, Visibility: time.Hour}})
	defer s.close()
	publish(t, s.p, numbered("job ", 3)...)
	records := s.poll("g", 3, 0)
	require.Len(t, records, 3)
	g := s.groups
	g.mu.Lock()
	g.mu.epoch++
	g.mu.broken, g.mu.reloading = true, true // and nobody reads it yet
	g.mu.Unlock()
	require.NoError(t, g.GiveBack("g", records[1:2]))
	g.giveBack("g", []queue.Handout{{Offset: 2, Attempts: 1}})
	g.reload()
	require.EqualValues(t, 1, s.stats("g").Claimed)
	again := s.poll("g", 3, 0)
	require.Len(t, again, 2)
	require.Equal(t, records[1:], again)
}
