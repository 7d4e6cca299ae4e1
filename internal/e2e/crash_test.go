package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
)

const (
	crashPublishers  = 64
	crashSubscribers = 16
	crashShards      = 4
)

// crashRound is how long a broker lives between two kills, at most:
// FELIX_CRASH_SECONDS for a long run.
func crashRound(t testing.TB) time.Duration {
	t.Helper()
	text := os.Getenv("FELIX_CRASH_SECONDS")
	if text == "" {
		return 400 * time.Millisecond
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "FELIX_CRASH_SECONDS")
	return time.Duration(n) * time.Second
}

// sent is what a publisher wrote: who, and its how-manieth.
type sent struct{ publisher, number uint32 }

// recordSize varies, so that records end anywhere in a block.
func recordSize(number uint32) int { return int(number % 200) }

func (r sent) payload() []byte {
	size := recordSize(r.number)
	p := make([]byte, 8+size)
	binary.BigEndian.PutUint32(p, r.publisher)
	binary.BigEndian.PutUint32(p[4:], r.number)
	for i := range size {
		p[8+i] = byte(r.number + uint32(i))
	}
	return p
}

func parseRecord(p []byte) (sent, error) {
	if len(p) < 8 {
		return sent{}, fmt.Errorf("record of %d bytes", len(p))
	}
	r := sent{binary.BigEndian.Uint32(p), binary.BigEndian.Uint32(p[4:])}
	if want := recordSize(r.number); len(p)-8 != want {
		return sent{}, fmt.Errorf("record %v: %d bytes, %d were sent", r, len(p)-8, want)
	}
	for i, b := range p[8:] {
		if b != byte(r.number+uint32(i)) {
			return sent{}, fmt.Errorf("record %v: byte %d is not what was sent", r, i)
		}
	}
	return r, nil
}

type ackedAt struct {
	shard  int
	offset uint64
	record sent
}

// shardLog is a shard as somebody reads it: dense from offset 0.
type shardLog struct {
	records []sent
	last    map[uint32]int64 // per publisher, its newest number
}

// take checks that a record is the next: no gap, no repetition, and each
// publisher's records once and in the order it sent them.
func (l *shardLog) take(offset uint64, payload []byte) error {
	if offset != uint64(len(l.records)) {
		return fmt.Errorf("offset %d comes where %d is next", offset, len(l.records))
	}
	r, err := parseRecord(payload)
	if err != nil {
		return fmt.Errorf("offset %d: %w", offset, err)
	}
	if last, ok := l.last[r.publisher]; ok && int64(r.number) <= last {
		return fmt.Errorf("offset %d: publisher %d's record %d comes after its %d", offset, r.publisher, r.number, last)
	}
	if l.last == nil {
		l.last = map[uint32]int64{}
	}
	l.last[r.publisher] = int64(r.number)
	l.records = append(l.records, r)
	return nil
}

// crash is one broker under load that is killed again and again.
type crash struct {
	t      *testing.T
	broker *process
	client *client.Client
	ctx    context.Context
	fail   context.CancelCauseFunc

	mu    sync.Mutex
	acked []ackedAt
	count atomic.Int64

	log  [crashShards]shardLog // as read back
	subs [crashSubscribers]follower
}

// follower is a subscriber that resumes by itself.
type follower struct {
	mu   sync.Mutex
	seen [crashShards]shardLog
}

// Every record that was acknowledged is there after kill -9, at its offset, dense,
// in order, equal to what was sent and once; every subscriber sees each offset once,
// across all the restarts. FELIX_CRASH_ROUNDS sets how often the broker is killed.
func TestKillUnderLoad(t *testing.T) {
	for _, mode := range []string{"none", "periodic", "on_commit"} {
		t.Run(mode, func(t *testing.T) {
			c := &crash{t: t, broker: newProcess(t, mode)}
			c.broker.createStream("orders", crashShards)
			c.run(rounds(t, 2))
		})
	}
}

func (c *crash) run(n int) {
	t := c.t
	c.ctx, c.fail = context.WithCancelCause(context.Background())
	defer c.fail(nil)
	c.client = c.broker.dial()
	var running, publishing sync.WaitGroup
	for i := range c.subs {
		s, err := c.client.Subscribe(soon(t), "orders", client.AllShards(), client.FromEarliest())
		require.NoError(t, err)
		running.Go(func() { c.follow(&c.subs[i], s) })
	}
	stop := make(chan struct{})
	for i := range crashPublishers {
		publishing.Go(func() { c.publish(uint32(i), stop) })
	}
	length := crashRound(t)
	for round := range n {
		// Killed at any moment, but never before there is something to lose.
		c.await(c.count.Load() + crashPublishers)
		c.pause(time.Duration(rand.Int64N(int64(length))))
		c.broker.kill()
		c.mu.Lock()
		acked := c.acked
		c.acked = nil
		c.mu.Unlock()
		c.broker.start()
		c.check(acked)
		if testing.Verbose() {
			t.Logf("round %d: %d acknowledged in it, %d in all", round+1, len(acked), c.count.Load())
		}
	}
	c.await(c.count.Load() + crashPublishers)
	close(stop)
	publishing.Wait()
	c.failed()
	c.check(c.acked)
	c.compareFollowers()
	c.fail(nil)
	running.Wait()
}

// failed reports an error of the goroutines; the first one counts.
func (c *crash) failed() {
	c.t.Helper()
	if err := context.Cause(c.ctx); err != nil {
		c.t.Fatal(err)
	}
}

func (c *crash) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.ctx.Done():
	}
	c.failed()
}

// await waits until n records have been acknowledged.
func (c *crash) await(n int64) {
	c.t.Helper()
	end := time.Now().Add(patience)
	for c.count.Load() < n {
		c.pause(time.Millisecond)
		if time.Now().After(end) {
			c.t.Fatalf("%d records acknowledged after so long, not %d\n%s", c.count.Load(), n, c.broker.stderr)
		}
	}
}

// publish sends one record after the other, each awaited; it rides over restarts.
func (c *crash) publish(id uint32, stop <-chan struct{}) {
	for n := uint32(0); ; n++ {
		select {
		case <-stop:
			return
		case <-c.ctx.Done():
			return
		default:
		}
		r := sent{id, n}
		key := strconv.AppendUint(nil, uint64(id*7+n%3), 10)
		ack, err := c.client.Publish(c.ctx, "orders", r.payload(), client.WithKey(key))
		if err != nil {
			c.fail(fmt.Errorf("publish of %v: %w", r, err))
			return
		}
		c.mu.Lock()
		c.acked = append(c.acked, ackedAt{ack.Shard, ack.Offset, r})
		c.mu.Unlock()
		c.count.Add(1)
	}
}

func (c *crash) follow(f *follower, s *client.Subscription) {
	defer s.Close()
	for {
		r, err := s.Next(c.ctx)
		if err != nil {
			if c.ctx.Err() == nil {
				c.fail(fmt.Errorf("subscription ended: %w", err))
			}
			return
		}
		f.mu.Lock()
		err = f.seen[r.Shard].take(r.Offset, r.Payload)
		f.mu.Unlock()
		if err != nil {
			c.fail(fmt.Errorf("subscriber, shard %d: %w", r.Shard, err))
			return
		}
	}
}

// check reads on to each shard's end and looks for what was acknowledged.
func (c *crash) check(acked []ackedAt) {
	t := c.t
	t.Helper()
	for shard := range c.log {
		l := &c.log[shard]
		for {
			page, err := c.client.Read(soon(t), "orders", shard, uint64(len(l.records)))
			if errors.Is(err, client.ErrShardUnavailable) || errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrConnectionLost) {
				c.pause(time.Millisecond)
				continue
			}
			require.NoError(t, err)
			if len(page.Records) == 0 {
				break
			}
			for _, r := range page.Records {
				require.NoError(t, l.take(r.Offset, r.Payload), "shard %d", shard)
			}
		}
	}
	for _, a := range acked {
		l := &c.log[a.shard]
		if a.offset >= uint64(len(l.records)) {
			t.Fatalf("shard %d ends at %d: offset %d was acknowledged for %v", a.shard, len(l.records), a.offset, a.record)
		}
		require.Equal(t, a.record, l.records[a.offset], "shard %d, offset %d", a.shard, a.offset)
	}
}

// compareFollowers waits until each subscriber has read to the end, and compares.
func (c *crash) compareFollowers() {
	t := c.t
	t.Helper()
	end := time.Now().Add(patience)
	for i := range c.subs {
		f := &c.subs[i]
		for shard := range c.log {
			want := c.log[shard].records
			for {
				f.mu.Lock()
				have := f.seen[shard].records
				f.mu.Unlock()
				if len(have) >= len(want) {
					require.Equal(t, want, have[:len(want)], "subscriber %d, shard %d", i, shard)
					break
				}
				if time.Now().After(end) {
					t.Fatalf("subscriber %d has %d records of shard %d, which has %d", i, len(have), shard, len(want))
				}
				c.pause(time.Millisecond)
			}
		}
	}
}
