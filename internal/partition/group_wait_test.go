package partition

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// TestGuardWaitingPollsRest: polls that wait look when there is something to look for,
// not whenever another has looked. Each look asks for the time once.
func TestGuardWaitingPollsRest(t *testing.T) {
	var looks atomic.Int64
	s := openGroups(t, vfs.OS(), t.TempDir(), GroupsOptions{Now: func() time.Time {
		looks.Add(1)
		return time.Unix(0, 0)
	}})
	defer s.close()
	const polls = 3
	got := make(chan int, polls)
	for range polls {
		go func() { got <- len(s.poll("g", 1, testDeadline)) }()
	}
	waitingPolls(t, s, polls)
	publish(t, s.p, "a", "b", "c")
	for range polls {
		require.Equal(t, 1, <-got)
	}
	// One look on entering, one for each time the stream grew, and what the wake-ups of
	// three records among three polls can add up to.
	require.LessOrEqual(t, looks.Load(), int64(polls+polls*polls))
}

// TestAnswersBehindWhatIsDecided: what changes nothing is answered at once if everything
// decided is durable, and else behind it.
func TestAnswersBehindWhatIsDecided(t *testing.T) {
	s := openGroups(t, vfs.OS(), t.TempDir(), GroupsOptions{})
	defer s.close()
	publish(t, s.p, "a", "b")
	require.Len(t, s.poll("g", 2, 0), 2)
	var answered []string
	look := func(segment.Micros, *queue.Group, storage.Offset, storage.Offset) error { return nil }
	submit := func(name string, op GroupOp) {
		require.NoError(t, s.groups.Submit("g", true, op, func(err error) {
			require.NoError(t, err)
			answered = append(answered, name)
		}))
	}
	submit("nothing is pending", look)
	require.Equal(t, []string{"nothing is pending"}, answered)
	answered = nil
	submit("ack", ackOp(0))
	submit("the same again", ackOp(0))
	submit("look", look)
	require.Empty(t, answered, "the ack is not durable")
	s.groups.Drive(true)
	require.Equal(t, []string{"ack", "the same again", "look"}, answered)
}

// TestADelayShortensAWait: a poll that waits for a claim to lapse hears that the record
// comes back sooner.
func TestADelayShortensAWait(t *testing.T) {
	s := openGroups(t, vfs.OS(), t.TempDir(), GroupsOptions{Defaults: queue.Config{Visibility: time.Hour}})
	defer s.close()
	publish(t, s.p, "a")
	require.Len(t, s.poll("g", 1, 0), 1)
	got := make(chan []GroupRecord, 1)
	go func() {
		r, err := pollOf(deadline(t), s.groups, PollCall{Group: "g", Max: 1, Wait: time.Hour})
		if err != nil {
			t.Error(err)
		}
		got <- r
	}()
	waitingPolls(t, s, 1)
	require.NoError(t, s.groups.Do(deadline(t), "g", true, func(now segment.Micros, g *queue.Group, _, tail storage.Offset) error {
		return g.Nack(now, queue.NackRequest{Offset: 0, Delay: 20 * time.Millisecond, HasDelay: true, Tail: tail})
	}))
	require.Len(t, <-got, 1)
}

// waitingPolls returns when so many polls of g have looked and wait.
func waitingPolls(t *testing.T, s *groupShard, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		s.groups.mu.Lock()
		defer s.groups.mu.Unlock()
		return len(s.groups.mu.waits["g"]) == n
	}, testDeadline, time.Millisecond)
}

// TestRecordsGivenBackWakePolls: claims that are undone because their records could not
// be read are there for those that wait.
func TestRecordsGivenBackWakePolls(t *testing.T) {
	s := openGroups(t, vfs.OS(), t.TempDir(), GroupsOptions{Defaults: queue.Config{Visibility: time.Hour}})
	defer s.close()
	publish(t, s.p, "a")
	require.Len(t, s.poll("g", 1, 0), 1)
	got := make(chan []GroupRecord, 1)
	go func() {
		r, err := pollOf(deadline(t), s.groups, PollCall{Group: "g", Max: 1, Wait: time.Hour})
		if err != nil {
			t.Error(err)
		}
		got <- r
	}()
	waitingPolls(t, s, 1)
	s.groups.giveBack("g", []queue.Handout{{Offset: 0, Attempts: 1}})
	select {
	case r := <-got:
		require.Len(t, r, 1)
	case <-deadline(t).Done():
		t.Fatal("the poll sleeps on")
	}
}
