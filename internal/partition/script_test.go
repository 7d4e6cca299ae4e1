package partition

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
)

// A script is what happens to a shard; how the shard is kept must not show in it.
type step struct {
	kind  stepKind
	n     int // records of a publish, events of a read
	size  int // bytes of each record
	sub   int // which subscription, by the order of subscribing
	at    int // percent of the log where a subscription begins
	retry bool
}

type stepKind int

const (
	stepPublish stepKind = iota
	stepSend             // idempotent
	stepSubscribe
	stepRead
	stepUnsubscribe
	stepReopen
)

func drawScript(t *rapid.T) []step {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			kind:  rapid.SampledFrom([]stepKind{stepPublish, stepPublish, stepPublish, stepSend, stepSend, stepSubscribe, stepRead, stepRead, stepUnsubscribe, stepReopen}).Draw(t, "kind"),
			n:     rapid.SampledFrom([]int{1, 1, 2, 5, 70}).Draw(t, "n"),
			size:  rapid.SampledFrom([]int{0, 1, 100, 1000}).Draw(t, "size"),
			sub:   rapid.IntRange(0, 5).Draw(t, "sub"),
			at:    rapid.IntRange(0, 100).Draw(t, "at"),
			retry: rapid.Bool().Draw(t, "retry"),
		}
	}), 1, 25).Draw(t, "script")
}

// keeping is one way to keep a shard.
type keeping struct {
	fsync    storage.FsyncMode
	segment  int64
	ring     int
	inline   bool
	snapshot int64
}

var keepings = []keeping{
	{storage.Periodic, storage.DefaultSegmentBytes, DefaultRingBytes, true, DefaultSnapshotEvery},
	{storage.OnCommit, storage.MinSegmentBytes, 1, false, 1},
	{storage.None, 8 << 10, 16 << 10, true, 1 << 10},
	{storage.Periodic, storage.MinSegmentBytes, DefaultRingBytes, false, DefaultSnapshotEvery},
}

// run plays a script and tells what publishers and subscribers saw.
func (k keeping) run(script []step) (story string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), testDeadline)
	defer cancel()
	fsys := disk.NewStrict(1, disk.Options{})
	if err := fsys.MkdirAll("/s"); err != nil {
		return "", err
	}
	var now atomic.Uint64 // the log reads it from goroutines of its own
	open := func() (*Partition, error) {
		return Open(ctx, "/s", Options{RingBytes: k.ring, SnapshotEvery: k.snapshot, StorePublisher: true, Storage: storage.Options{
			FS: fsys, Fsync: k.fsync, SegmentBytes: k.segment, Clock: func() storage.Micros { return storage.Micros(now.Load()) },
		}})
	}
	p, err := open()
	if err != nil {
		return "", err
	}
	defer func() {
		if e := p.Close(context.Background()); err == nil {
			err = e
		}
	}()
	var told strings.Builder
	var subs []*reader
	sequence, count := uint64(0), 0
	publish := func(b *Publish) error {
		s := send(p, b)
		p.Drive(k.inline)
		select {
		case <-s.answered:
		case <-ctx.Done():
			return fmt.Errorf("publish %d was not answered", count)
		}
		fmt.Fprintln(&told, "published", s.First, s.HasOffset, s.Duplicate, s.Err)
		return nil
	}
	drain := func(r *reader) error {
		if r.sub == nil {
			return nil
		}
		return r.take(ctx, int(p.Positions().Readable-r.sub.Position()))
	}
	for _, s := range script {
		now.Add(1)
		var batch [][]byte
		for range s.n {
			batch = append(batch, append(fmt.Appendf(nil, "%d:", count), make([]byte, s.size)...))
			count++
		}
		switch s.kind {
		case stepPublish:
			err = publish(&Publish{Payloads: batch, Publisher: []byte{'a' + byte(s.sub)}})
		case stepSend:
			b := Publish{Payloads: batch, Idempotent: true, ProducerID: 9, Sequence: sequence}
			if err = publish(&b); err == nil && s.retry {
				err = publish(&b)
			}
			sequence++
		case stepSubscribe:
			tail := p.Positions().Readable
			sub, e := p.Subscribe(ctx, SubscribeOptions{Start: StartAt(tail * storage.Offset(s.at) / 100), Shape: stream.ShapeOffsets | stream.ShapePublisher})
			if e != nil {
				return "", e
			}
			fmt.Fprintln(&told, "subscribed", sub.StartOffset(), sub.LiveOffset())
			subs = append(subs, &reader{sub: sub})
		case stepRead:
			if s.sub < len(subs) && subs[s.sub].sub != nil {
				err = subs[s.sub].take(ctx, min(s.n, int(p.Positions().Readable-subs[s.sub].sub.Position())))
			}
		case stepUnsubscribe:
			if s.sub < len(subs) && subs[s.sub].sub != nil {
				if err = drain(subs[s.sub]); err == nil {
					subs[s.sub].sub.Close()
					subs[s.sub].sub = nil
				}
			}
		case stepReopen:
			for _, r := range subs {
				if err := drain(r); err != nil {
					return "", err
				}
				if r.sub != nil {
					r.sub.Close()
					r.sub = nil
				}
			}
			if err = p.Close(ctx); err == nil {
				p, err = open()
			}
		}
		if err != nil {
			return "", err
		}
	}
	for _, r := range subs {
		if err := drain(r); err != nil {
			return "", err
		}
		if r.sub != nil {
			r.sub.Close()
		}
		r.d.Release()
		fmt.Fprintln(&told, "saw", len(r.events))
		for i, e := range r.events {
			if i > 0 && e.offset != r.events[i-1].offset+1 {
				return "", fmt.Errorf("offset %d after %d", e.offset, r.events[i-1].offset)
			}
			fmt.Fprintln(&told, e.offset, strings.TrimRight(e.payload, "\x00"), len(e.payload))
		}
	}
	return told.String(), nil
}

// One random script, however the shard is kept, tells one story.
func TestOneScriptOneStory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		script := drawScript(t)
		want, err := keepings[0].run(script)
		require.NoError(t, err)
		for _, k := range keepings[1:] {
			got, err := k.run(script)
			require.NoError(t, err, "%+v", k)
			require.Equal(t, want, got, "%+v", k)
		}
	})
}

// Records of many mebibytes pass, from the ring and from the disk, and leave no buffer
// of their size behind.
func TestLargeRecords(t *testing.T) {
	p := durable(t, t.TempDir(), func(o *Options) { o.Storage.Fsync = storage.None })
	live := reader{sub: subscribe(t, p, StartLatest())}
	big := strings.Repeat("x", 5<<20)
	publish(t, p, "small", big, "after")
	require.NoError(t, live.take(deadline(t), 3))
	require.Equal(t, []event{{0, "small"}, {1, big}, {2, "after"}}, live.events)
	live.sub.Close()
	replay := reader{sub: subscribe(t, p, StartEarliest())}
	require.NoError(t, replay.take(deadline(t), 3))
	require.Equal(t, live.events, replay.events)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, replay.next(ctx), context.Canceled)
	for range 100 {
		b := diskBufferPool.Get().(*diskBuffers)
		require.LessOrEqual(t, cap(b.frames), keepBytes)
	}
}
