package partition

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/wire"
)

// testDeadline bounds every wait of a test: far more than anything takes on a busy machine.
const testDeadline = 2 * time.Minute

// deadline ends a test that would wait for ever.
func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testDeadline)
	t.Cleanup(cancel)
	return ctx
}

func payloads(values ...string) [][]byte {
	p := make([][]byte, len(values))
	for i, v := range values {
		p[i] = []byte(v)
	}
	return p
}

// sent is a publish and the wait for its answer.
type sent struct {
	*Publish
	answered chan struct{}
}

// send publishes without driving; a refusal is an answer too.
func send(p *Partition, b *Publish) *sent {
	s := &sent{Publish: b, answered: make(chan struct{})}
	s.Done = func(*Publish) { close(s.answered) }
	if err := p.Publish(b); err != nil {
		s.Err = err
		close(s.answered)
	}
	return s
}

func (s *sent) wait(t testing.TB) *sent {
	t.Helper()
	select {
	case <-s.answered:
	case <-deadline(t).Done():
		t.Fatal("publish was never answered")
	}
	return s
}

func (s *sent) waiting() bool {
	select {
	case <-s.answered:
		return false
	default:
		return true
	}
}

// publish sends, drives and waits.
func publish(t testing.TB, p *Partition, values ...string) storage.Offset {
	t.Helper()
	s := send(p, &Publish{Payloads: payloads(values...)})
	p.Drive(true)
	s.wait(t)
	require.NoError(t, s.Err)
	return s.First
}

func subscribe(t testing.TB, p *Partition, start Start) *Subscription {
	t.Helper()
	return subscribeWith(t, p, SubscribeOptions{Start: start, Shape: stream.ShapeOffsets | stream.ShapeSkipped})
}

func subscribeWith(t testing.TB, p *Partition, o SubscribeOptions) *Subscription {
	t.Helper()
	s, err := p.Subscribe(deadline(t), o)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// event is one event as a client has it.
type event struct {
	offset  storage.Offset // 0 without offsets
	payload string
}

// reader takes events off a subscription, checking its frames.
type reader struct {
	sub     *Subscription
	d       Delivery
	skipped uint64 // offsets said to hold no event
	events  []event
}

// next waits for one delivery.
func (r *reader) next(ctx context.Context) error {
	if err := r.sub.Next(ctx, &r.d); err != nil {
		return err
	}
	n, bytes := 0, 0
	for _, f := range r.d.Frames {
		bytes += len(f)
		for len(f) > 0 {
			h, err := wire.ParseHeader(f, 128<<20)
			if err != nil {
				return err
			}
			var e wire.EventBatch
			if err := e.Decode(h.Flags, f[wire.HeaderBytes:wire.HeaderBytes+int(h.Length)]); err != nil {
				return err
			}
			f = f[wire.HeaderBytes+int(h.Length):]
			r.skipped += e.SkippedBefore
			for i, p := range e.Payloads {
				ev := event{payload: string(p)}
				if e.HasOffsets {
					ev.offset = storage.Offset(e.BaseOffset) + storage.Offset(i)
				}
				r.events = append(r.events, ev)
				n++
			}
		}
	}
	if n != r.d.Events || bytes != r.d.Bytes || n == 0 {
		return fmt.Errorf("delivery says %d events in %d bytes, frames hold %d in %d", r.d.Events, r.d.Bytes, n, bytes)
	}
	return nil
}

// take waits for n more events.
func (r *reader) take(ctx context.Context, n int) error {
	for want := len(r.events) + n; len(r.events) < want; {
		if err := r.next(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) payloads() []string {
	var p []string
	for _, e := range r.events {
		p = append(p, e.payload)
	}
	return p
}

func numbered(prefix string, n int) []string {
	v := make([]string, n)
	for i := range v {
		v[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return v
}

// collector gathers answers in the order they come.
type collector struct {
	mu   sync.Mutex
	done []*Publish
}

func (c *collector) add(b *Publish) {
	c.mu.Lock()
	c.done = append(c.done, b)
	c.mu.Unlock()
}

// compacted compacts c, after a compaction that is under way by itself.
func compacted(t testing.TB, c interface {
	Compact(context.Context) (projection.CompactResult, error)
}) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := c.Compact(deadline(t))
		if errors.Is(err, ErrCompacting) {
			return false
		}
		require.NoError(t, err)
		return true
	}, testDeadline, time.Millisecond)
}
