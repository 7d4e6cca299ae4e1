package client

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

// watchScript answers each watch in its turn with the messages that follow it, and ends
// the connection; the last one stays. What was asked goes to the channel.
func watchScript(t testing.TB, turns ...[]wire.Message) (*script, chan *wire.CacheWatch) {
	asked := make(chan *wire.CacheWatch, len(turns)+1)
	next := make(chan []wire.Message, len(turns))
	for _, turn := range turns {
		next <- turn
	}
	close(next)
	return newScript(t, func(p *peer) {
		for m := p.next(); m != nil; m = p.next() {
			switch m := m.(type) {
			case *wire.CacheShards:
				p.send(&wire.CacheShardsView{Shards: 1, RequestID: m.RequestID})
			case *wire.CacheWatch:
				asked <- m
				turn, ok := <-next
				if !ok {
					p.send(&wire.CacheWatchStarted{ResumeOffset: 1 << 20}, &wire.EventStreamHello{})
					continue
				}
				p.send(turn...)
				return
			}
		}
	}), asked
}

func value(key string, offset uint64) *wire.CacheEvent {
	return &wire.CacheEvent{Key: key, Value: []byte(key), HasValue: true, Offset: offset}
}

func requireChanges(t testing.TB, w *Watch, offsets ...uint64) {
	t.Helper()
	for _, o := range offsets {
		c, err := w.Next(soon(t))
		require.NoError(t, err)
		require.Equal(t, o, c.Offset)
	}
}

// A connection that ends among the values that a watch begins with costs none of them:
// the next goes on behind the last that came, and with the live changes only when all did.
func TestWatchCutInItsSnapshot(t *testing.T) {
	started := func(resnapshot bool, values ...wire.Message) []wire.Message {
		m := &wire.CacheWatchStarted{SubscriptionID: 1, ResumeOffset: 100, Resnapshot: resnapshot, RetainedCount: 3, HasRetainedCount: !resnapshot}
		return append([]wire.Message{m, &wire.EventStreamHello{SubscriptionID: 1}}, values...)
	}
	a, b, c, live := value("a", 10), value("b", 20), value("c", 30), value("d", 100)
	for _, tc := range []struct {
		name string
		from map[int]uint64
		turn []wire.Message
		seen []uint64
		next uint64
		anew bool
	}{
		{name: "before the first", turn: started(false), anew: true},
		{name: "after the first", turn: started(false, a), seen: []uint64{10}, next: 11},
		{name: "before the last", turn: started(false, a, b), seen: []uint64{10, 20}, next: 21},
		{name: "after the last", turn: started(false, a, b, c), seen: []uint64{10, 20, 30}, next: 100},
		{name: "after a live one", turn: started(false, a, b, c, live), seen: []uint64{10, 20, 30, 100}, next: 101},
		{name: "again, before the first", from: map[int]uint64{0: 5}, turn: started(true), next: 5},
		{name: "again, after one", from: map[int]uint64{0: 5}, turn: started(true, a), seen: []uint64{10}, next: 11},
		{name: "again, after one older", from: map[int]uint64{0: 15}, turn: started(true, a), seen: []uint64{10}, next: 15},
		{name: "again, after a live one", from: map[int]uint64{0: 5}, turn: started(true, a, live), seen: []uint64{10, 100}, next: 101},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, asked := watchScript(t, tc.turn)
			option := WithRetained()
			if tc.from != nil {
				option = WatchFrom(tc.from)
			}
			w, err := s.dial().Cache("k").WatchPrefix(soon(t), "", option)
			require.NoError(t, err)
			defer func() { require.NoError(t, w.Close()) }()
			wait(t, asked, "the watch")
			requireChanges(t, w, tc.seen...)
			again := wait(t, asked, "the watch after its connection ended")
			require.Equal(t, tc.anew, again.Retained)
			require.Equal(t, !tc.anew, again.HasFromOffset)
			require.Equal(t, tc.next, again.FromOffset)
		})
	}
}

// A watch comes back as a subscription does: with a pause that is told of.
func TestWatchPausesBeforeItComesBack(t *testing.T) {
	const turns = 5
	started := []wire.Message{&wire.CacheWatchStarted{ResumeOffset: 1}, &wire.EventStreamHello{}}
	var all [][]wire.Message
	for range turns {
		all = append(all, started)
	}
	s, asked := watchScript(t, all...)
	retries := make(chan string, 100)
	w, err := s.dial(WithEvents(Events{OnRetry: func(op string, _ error, _ time.Duration) { retries <- op }})).Cache("k").WatchPrefix(soon(t), "")
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	wait(t, asked, "the watch")
	for range turns {
		require.Equal(t, "watch k", wait(t, retries, "a pause"))
		wait(t, asked, "the watch")
	}
}

// A value above the frame limit would come again and again: it ends the watch.
func TestWatchOfAFrameAboveTheLimit(t *testing.T) {
	large := value("a", 1)
	large.Value = make([]byte, 1<<20)
	s, _ := watchScript(t, []wire.Message{&wire.CacheWatchStarted{ResumeOffset: 1}, &wire.EventStreamHello{}, large})
	w, err := s.dial(WithMaxFrame(512<<10)).Cache("k").WatchPrefix(soon(t), "")
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	_, err = w.Next(soon(t))
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorContains(t, err, "max=524288")
	_, err = w.Next(context.Background())
	require.ErrorIs(t, err, ErrTooLarge)
}
