package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/api"
	"github.com/felixlog/felix/internal/projection"
)

func (p *process) createCache(c api.Cache) {
	p.t.Helper()
	p.settings.createCache(p.t, p.http, c)
}

// restart ends the broker, by a kill or in its own way, and starts it again.
func (p *process) restart(kill bool) {
	p.t.Helper()
	if kill {
		p.kill()
	} else {
		p.stop()
	}
	p.start()
}

func cacheGet(t testing.TB, k *client.Cache, key string) (string, bool) {
	t.Helper()
	v, ok, err := k.Get(soon(t), key)
	require.NoError(t, err)
	return string(v.Data), ok
}

func TestACacheSurvivesARestart(t *testing.T) {
	p := newProcess(t, "")
	p.createCache(api.Cache{Cache: "c", Shards: 2})
	c := p.dial()
	k := c.Cache("c")
	for i := range 50 {
		require.NoError(t, k.Put(soon(t), fmt.Sprint("key", i), numbered(i)))
	}
	cond, err := k.PutIfAbsent(soon(t), "key1", []byte("no"))
	require.NoError(t, err)
	require.False(t, cond.Applied)
	cond, err = k.PutIfVersion(soon(t), "key1", []byte("yes"), cond.Version)
	require.NoError(t, err)
	require.True(t, cond.Applied)
	for _, kill := range []bool{true, false} {
		p.restart(kill)
		for i := range 50 {
			want := string(numbered(i))
			if i == 1 {
				want = "yes"
			}
			got, ok := cacheGet(t, k, fmt.Sprint("key", i))
			require.True(t, ok)
			require.Equal(t, want, got)
		}
		v, _, err := k.Get(soon(t), "key1")
		require.NoError(t, err)
		require.Equal(t, cond.Version, v.Version, "a version keeps its meaning")
	}
	keys, more, err := k.Keys(soon(t), "key1", "", 5)
	require.NoError(t, err)
	require.True(t, more)
	require.Equal(t, []string{"key1", "key10", "key11", "key12", "key13"}, keys)
}

func TestADeletedKeyStaysDeletedAcrossARestart(t *testing.T) {
	p := newProcess(t, "")
	p.createCache(api.Cache{Cache: "c", Shards: 1})
	k := p.dial().Cache("c")
	require.NoError(t, k.Put(soon(t), "a", []byte("1")))
	was, existed, err := k.Delete(soon(t), "a")
	require.NoError(t, err)
	require.True(t, existed)
	require.Equal(t, "1", string(was))
	_, existed, err = k.Delete(soon(t), "a")
	require.NoError(t, err)
	require.False(t, existed)
	for _, kill := range []bool{true, false} {
		p.restart(kill)
		_, ok := cacheGet(t, k, "a")
		require.False(t, ok)
	}
}

// TestTheIndexCatchesUpWithRecordsAppendedBehindIt starts a broker whose index snapshot is
// older than its log, and one that has none: both read the rest from the log.
func TestTheIndexCatchesUpWithRecordsAppendedBehindIt(t *testing.T) {
	p := newProcess(t, "")
	p.createCache(api.Cache{Cache: "c", Shards: 1})
	k := p.dial().Cache("c")
	require.NoError(t, k.Put(soon(t), "a", []byte("1")))
	p.restart(false) // leaves a snapshot
	snapshots, err := filepath.Glob(filepath.Join(p.Dir, "data", "streams", "caches", "*", projection.SnapshotName))
	require.NoError(t, err)
	require.Len(t, snapshots, 1)
	require.NoError(t, k.Put(soon(t), "a", []byte("2")))
	require.NoError(t, k.Put(soon(t), "b", []byte("3")))
	p.restart(true)
	got, _ := cacheGet(t, k, "a")
	require.Equal(t, "2", got)
	p.kill()
	require.NoError(t, os.Remove(snapshots[0]))
	p.start()
	got, _ = cacheGet(t, k, "b")
	require.Equal(t, "3", got)
}

// TestCompactionDoesNotRewindTheOffsetSpace overwrites one key until its log has been
// compacted, with a watch on it: versions only rise, and the disk gives room back.
func TestCompactionDoesNotRewindTheOffsetSpace(t *testing.T) {
	p := newProcess(t, "")
	p.createCache(api.Cache{Cache: "c", Shards: 1})
	c := p.dial()
	k := c.Cache("c")
	require.NoError(t, k.Put(soon(t), "kept", []byte("for ever")))
	kept, _, err := k.Get(soon(t), "kept")
	require.NoError(t, err)
	value := make([]byte, 256<<10)
	last := kept.Version
	size := func() (n int64) {
		logs, err := filepath.Glob(filepath.Join(p.Dir, "data", "streams", "caches", "*", "*.log"))
		require.NoError(t, err)
		for _, l := range logs {
			if info, err := os.Stat(l); err == nil {
				n += info.Size()
			}
		}
		return n
	}
	written := int64(0)
	for written < 200<<20 {
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				if err := k.Put(soon(t), fmt.Sprint("hot", i), value); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		written += 16 * int64(len(value))
		v, ok, err := k.Get(soon(t), "hot0")
		require.NoError(t, err)
		require.True(t, ok)
		require.Greater(t, v.Version, last)
		last = v.Version
	}
	for ctx := soon(t); size() >= written/2; {
		// Compaction has a pace of its own and goes on behind the writes.
		_, _, err := k.Get(ctx, "kept")
		require.NoError(t, err, "superseded records are not given back: %d of %d bytes", size(), written)
	}
	p.restart(true)
	v, ok, err := k.Get(soon(t), "kept")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, kept.Version, v.Version, "a copy keeps the version")
	require.NoError(t, k.Put(soon(t), "hot0", []byte("x")))
	v, _, err = k.Get(soon(t), "hot0")
	require.NoError(t, err)
	require.Greater(t, v.Version, last)
}

func TestACounterIsNotCountedTwice(t *testing.T) {
	p := newProcess(t, "")
	p.createCache(api.Cache{Cache: "c", Shards: 1})
	n := p.dial().Cache("c").Counters()
	_, ok, err := n.Get(soon(t), "never")
	require.NoError(t, err)
	require.False(t, ok)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if _, err := n.Add(soon(t), "n", 1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	p.restart(true) // in the middle: what was not answered is sent again
	wg.Wait()
	sum, _, err := n.Get(soon(t), "n")
	require.NoError(t, err)
	require.Equal(t, int64(800), sum)
	_, err = n.Add(soon(t), "n", 1<<63-1)
	require.ErrorIs(t, err, client.ErrInvalidRequest)
}

// queueFixture is a stream of n records and a group on it.
func queueFixture(t *testing.T, n int) (*process, *client.Client, *client.Group) {
	p := newProcess(t, "")
	p.createStream("jobs", 1)
	c := p.dial()
	for i := range n {
		_, err := c.Publish(soon(t), "jobs", numbered(i))
		require.NoError(t, err)
	}
	return p, c, c.Group("jobs", "workers")
}

func poll(t testing.TB, g *client.Group, n int, opts ...client.PollOption) []client.Message {
	t.Helper()
	m, err := g.Poll(soon(t), 0, n, opts...)
	require.NoError(t, err)
	return m
}

func offsetsOf(ms []client.Message) []uint64 {
	out := []uint64{}
	for _, m := range ms {
		out = append(out, m.Offset)
	}
	return out
}

func TestAPositionSurvivesARestart(t *testing.T) {
	p, _, g := queueFixture(t, 100)
	for _, m := range poll(t, g, 100) {
		if m.Offset%2 == 1 {
			require.NoError(t, g.Ack(soon(t), m))
		}
	}
	p.restart(true)
	want := []uint64{}
	for o := uint64(0); o < 100; o += 2 {
		want = append(want, o)
	}
	got := poll(t, g, 100)
	require.Equal(t, want, offsetsOf(got))
	for _, m := range got {
		require.Equal(t, numbered(int(m.Offset)), m.Payload)
		require.NoError(t, g.Ack(soon(t), m))
	}
	p.restart(false)
	require.Empty(t, poll(t, g, 100))
	info, err := g.Describe(soon(t), 0)
	require.NoError(t, err)
	require.Equal(t, uint64(100), info.Position)
	require.Equal(t, uint64(100), info.Acked)
}

// TestAcksOfManyRecords: acks that go together are as good as single ones, and one that
// is refused does not keep the others from being settled.
func TestAcksOfManyRecords(t *testing.T) {
	p, _, g := queueFixture(t, 100)
	ms := poll(t, g, 60)
	require.NoError(t, g.GiveUp(soon(t), ms[7]))
	once := p.dial(client.WithRetry(client.RetryPolicy{Attempts: 1, Base: time.Millisecond, Max: time.Millisecond})).Group("jobs", "workers")
	require.ErrorIs(t, once.AckAll(soon(t), ms), client.ErrStaleClaim)
	require.ErrorIs(t, once.AckAll(soon(t), []client.Message{{Offset: 60}, {Offset: 100}}), client.ErrStaleClaim, "none of them was handed out")
	require.NoError(t, g.AckAll(soon(t), nil))
	p.restart(true)
	info, err := g.Describe(soon(t), 0)
	require.NoError(t, err)
	require.Equal(t, uint64(59), info.Acked)
	require.Equal(t, uint64(1), info.Dead)
	rest := poll(t, g, 100)
	require.Len(t, rest, 40)
	require.Equal(t, uint64(60), rest[0].Offset)
	require.NoError(t, g.AckAll(soon(t), rest))
	require.NoError(t, g.AckAll(soon(t), rest), "again does no harm")
	require.Empty(t, poll(t, g, 100))
}

func TestAnOffsetInFlightIsNotHandedOutAgain(t *testing.T) {
	_, c, g := queueFixture(t, 4)
	other := c.Group("jobs", "workers")
	require.Equal(t, []uint64{0, 1}, offsetsOf(poll(t, g, 2)))
	require.Equal(t, []uint64{2, 3}, offsetsOf(poll(t, other, 10)))
	require.Empty(t, poll(t, g, 10))
	require.Len(t, poll(t, c.Group("jobs", "others"), 10), 4, "another group has a position of its own")
}

func TestALapsedClaimIsHandedOutAgain(t *testing.T) {
	_, _, g := queueFixture(t, 1)
	first := poll(t, g, 1, client.WithVisibility(50*time.Millisecond))
	require.Equal(t, 1, first[0].Attempts)
	again := poll(t, g, 1, client.WithWait(time.Minute))
	require.Len(t, again, 1)
	require.Equal(t, 2, again[0].Attempts)
	require.ErrorIs(t, g.Nack(soon(t), first[0]), client.ErrStaleClaim)
	_, err := g.Extend(soon(t), first[0], time.Second)
	require.ErrorIs(t, err, client.ErrStaleClaim)
	_, err = g.Extend(soon(t), again[0], time.Minute)
	require.NoError(t, err)
}

func TestTheCursorDoesNotAdvanceOverAGap(t *testing.T) {
	_, _, g := queueFixture(t, 3)
	ms := poll(t, g, 3)
	position := func() uint64 {
		info, err := g.Describe(soon(t), 0)
		require.NoError(t, err)
		return info.Position
	}
	require.NoError(t, g.Ack(soon(t), ms[1]))
	require.NoError(t, g.Ack(soon(t), ms[2]))
	require.Equal(t, uint64(0), position())
	require.NoError(t, g.Ack(soon(t), ms[0]))
	require.Equal(t, uint64(3), position())
}

// TestARecordIsGivenUpOnAfterTheAttemptBound kills the broker during each delivery of a
// record: it becomes a dead letter, and does not stop the group.
func TestARecordIsGivenUpOnAfterTheAttemptBound(t *testing.T) {
	p, _, g := queueFixture(t, 2)
	for n := 1; n <= 5; n++ {
		ms := poll(t, g, 1)
		require.Len(t, ms, 1)
		require.Equal(t, uint64(0), ms[0].Offset)
		require.Equal(t, n, ms[0].Attempts)
		p.restart(true)
	}
	ms := poll(t, g, 1)
	require.Equal(t, []uint64{1}, offsetsOf(ms))
	letters, more, err := g.DeadLetters(soon(t), 0, 0)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, letters, 1)
	require.Equal(t, numbered(0), letters[0].Payload)
	require.Equal(t, 5, letters[0].Attempts)
	require.Equal(t, "attempts_exhausted", letters[0].Reason)
	require.NoError(t, g.Redrive(soon(t), 0, 0))
	ms = poll(t, g, 10)
	require.Equal(t, []uint64{0}, offsetsOf(ms))
	require.Equal(t, 1, ms[0].Attempts)
}

// TestAConsumerWorksThroughARestart lets a consumer run over two shards while the broker
// is killed: every record is worked on, and those that fail are dead letters.
func TestAConsumerWorksThroughARestart(t *testing.T) {
	p := newProcess(t, "")
	p.createStream("jobs", 2)
	c := p.dial()
	const n = 400
	for i := range n {
		_, err := c.Publish(soon(t), "jobs", numbered(i), client.WithKey(fmt.Append(nil, i)))
		require.NoError(t, err)
	}
	g := c.Group("jobs", "workers")
	for shard := range 2 {
		require.NoError(t, g.Configure(soon(t), shard, client.GroupConfig{MaxAttempts: 3}))
	}
	var mu sync.Mutex
	done := map[string]bool{}
	poisoned := map[string]int{}
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	half := make(chan struct{})
	reached := sync.OnceFunc(func() { close(half) })
	consumed := make(chan error, 1)
	go func() {
		consumed <- g.Consume(ctx, func(_ context.Context, m client.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if bytes.HasSuffix(m.Payload, []byte("7")) {
				poisoned[string(m.Payload)]++
				return errors.New("cannot be worked on")
			}
			done[string(m.Payload)] = true
			if len(done) == n/2 {
				reached()
			}
			return nil
		}, client.WithConcurrency(8), client.WithClaimTime(2*time.Second))
	}()
	select {
	case <-half:
	case err := <-consumed:
		t.Fatal("the consumer ended: ", err)
	}
	p.restart(true)
	for dead, ctx := 0, soon(t); dead < n/10; {
		dead = 0
		for shard := range 2 {
			info, err := g.Describe(ctx, shard)
			if err == nil {
				dead += int(info.Dead)
			}
			require.NoError(t, ctx.Err(), "%d of %d records are dead letters", dead, n/10)
		}
		mu.Lock()
		if len(done) < n*9/10 {
			dead = 0
		}
		mu.Unlock()
	}
	cancel()
	require.NoError(t, <-consumed)
	require.Len(t, done, n*9/10)
	require.Len(t, poisoned, n/10)
}

// TestAWatchGoesOnAfterARestart follows an empty cache, and then a full one, over a kill.
func TestAWatchGoesOnAfterARestart(t *testing.T) {
	p := newProcess(t, "")
	p.createCache(api.Cache{Cache: "c", Shards: 3})
	c := p.dial()
	k := c.Cache("c")
	all, err := k.WatchPrefix(soon(t), "")
	require.NoError(t, err)
	one, err := k.Watch(soon(t), "key1")
	require.NoError(t, err)
	p.restart(true) // nothing was received yet
	next := func(w *client.Watch) client.Change {
		ch, err := w.Next(soon(t))
		require.NoError(t, err)
		return ch
	}
	require.NoError(t, k.Put(soon(t), "key1", []byte("a")))
	require.Equal(t, "a", string(next(all).Value))
	require.Equal(t, "a", string(next(one).Value))
	p.restart(true)
	_, _, err = k.Delete(soon(t), "key1")
	require.NoError(t, err)
	require.True(t, next(all).Deleted)
	require.True(t, next(one).Deleted)
	require.NoError(t, k.Put(soon(t), "other", []byte("b"), client.WithTTL(50*time.Millisecond)))
	require.Equal(t, "b", string(next(all).Value))
	require.True(t, next(all).Deleted, "an expiry is a delete")

	require.NoError(t, k.Put(soon(t), "key2", []byte("c")))
	retained, err := k.WatchPrefix(soon(t), "key", client.WithRetained())
	require.NoError(t, err)
	require.Equal(t, "key2", next(retained).Key)
}

// TestReadingsHaveMetrics does work on a cache and a group and finds each figure moved.
func TestReadingsHaveMetrics(t *testing.T) {
	p, c, g := queueFixture(t, 5)
	p.createCache(api.Cache{Cache: "c", Shards: 2, MaxKeys: 100})
	k := c.Cache("c")
	require.NoError(t, k.Put(soon(t), "a", []byte("1")))
	_, _ = cacheGet(t, k, "a")
	_, _ = cacheGet(t, k, "b")
	_, err := k.PutIfAbsent(soon(t), "a", []byte("2"))
	require.NoError(t, err)
	_, err = k.Counters().Add(soon(t), "n", 1)
	require.NoError(t, err)
	w, err := k.WatchPrefix(soon(t), "", client.WithRetained())
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	_, err = w.Next(soon(t))
	require.NoError(t, err)
	ms := poll(t, g, 3)
	require.NoError(t, g.Ack(soon(t), ms[0]))
	require.NoError(t, g.GiveUp(soon(t), ms[1]))

	r, err := http.NewRequestWithContext(soon(t), http.MethodGet, p.http+"/metrics", nil)
	require.NoError(t, err)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(r)
	require.NoError(t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, errors.Join(err, resp.Body.Close()))
	const cache = `cache="c",namespace="default"`
	const group = `group="workers",namespace="default"`
	for _, line := range []string{
		`felix_cache_keys{` + cache + `,tenant="default"} 1`,
		`felix_cache_watchers{` + cache + `,tenant="default"} 2`,
		`felix_cache_requests_total{` + cache + `,operation="get",tenant="default"} 2`,
		`felix_cache_requests_total{` + cache + `,operation="put",tenant="default"} 1`,
		`felix_cache_requests_total{` + cache + `,operation="counter_add",tenant="default"} 1`,
		`felix_cache_hits_total{` + cache + `,tenant="default"} 1`,
		`felix_cache_refused_total{` + cache + `,reason="condition",tenant="default"} 1`,
		`felix_cache_watch_events_total{` + cache + `,tenant="default"} 1`,
		`felix_cache_values 1`,
		`felix_cache_values_lookups_total{result="hit"} 1`,
		`felix_groups 1`,
		`felix_group_records{` + group + `,shard="0",state="ready",stream="jobs",tenant="default"} 2`,
		`felix_group_records{` + group + `,shard="0",state="claimed",stream="jobs",tenant="default"} 1`,
		`felix_group_records{` + group + `,shard="0",state="dead",stream="jobs",tenant="default"} 1`,
		`felix_group_settled_records{` + group + `,outcome="acked",shard="0",stream="jobs",tenant="default"} 1`,
		`felix_group_lag_records{` + group + `,shard="0",stream="jobs",tenant="default"} 3`,
	} {
		require.Contains(t, string(text), line+"\n")
	}
}
