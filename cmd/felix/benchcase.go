package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/api"
)

func (e *environment) createStream(ctx context.Context, name string, shards uint32, fsync string) error {
	m, err := e.manager()
	if err != nil {
		return err
	}
	return m.call(ctx, http.MethodPost, api.Stream{
		Stream: name, Kind: "Stream", Shards: shards, ReplicationFactor: 1, Consistency: "Leader", Delivery: "AtLeastOnce", Durable: true, Fsync: fsync,
	}, nil, e.streamPath(m)...)
}

func (e *environment) removeStream(ctx context.Context, name string) error {
	m, err := e.manager()
	if err != nil {
		return err
	}
	return m.call(ctx, http.MethodDelete, nil, nil, e.streamPath(m, name)...)
}

// fetch reads a small page.
func (e *environment) fetch(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	return string(raw), err
}

// closed drives op from n goroutines until d has passed, and times each call.
func closed(n int, d time.Duration, op func(worker int) error) (benchFigures, int, error) {
	var wg sync.WaitGroup
	var stop atomic.Bool
	times := make([][]time.Duration, n)
	errs := make([]error, n)
	began := time.Now()
	timer := time.AfterFunc(d, func() { stop.Store(true) })
	defer timer.Stop()
	for w := range n {
		wg.Go(func() {
			for !stop.Load() {
				t := time.Now()
				if err := op(w); err != nil {
					errs[w] = err
					stop.Store(true)
					return
				}
				times[w] = append(times[w], time.Since(t))
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	var all []time.Duration
	for w := range n {
		if errs[w] != nil {
			return benchFigures{}, 0, errs[w]
		}
		all = append(all, times[w]...)
	}
	return figures(len(all), took, all), len(all), nil
}

// awaited publishes from n goroutines, each waiting for its answer.
func awaited(n int) func(*bench, context.Context) (benchFigures, int, error) {
	return func(b *bench, ctx context.Context) (benchFigures, int, error) {
		// The first publish connects.
		for shard := range int(b.f.shards) {
			if _, err := b.client.Publish(ctx, b.stream, b.payload, client.ToShard(shard)); err != nil {
				return benchFigures{}, 0, err
			}
		}
		return closed(n, b.f.seconds, func(w int) error {
			_, err := b.client.Publish(ctx, b.stream, b.payload, client.ToShard(w%int(b.f.shards)))
			return err
		})
	}
}

func floorAwaited(n int) func(*bench, context.Context, string) (benchFigures, error) {
	return func(b *bench, _ context.Context, addr string) (benchFigures, error) {
		c, err := newFloorClient(addr)
		if err != nil {
			return benchFigures{}, err
		}
		defer c.close()
		f, _, err := closed(n, b.f.seconds, func(int) error { return c.publish(b.payload) })
		return f, err
	}
}

// send publishes with at most window records unanswered, until total or d.
func (b *bench) send(ctx context.Context, window, total int, d time.Duration) (int, time.Duration, error) {
	p, err := b.client.Producer(b.stream)
	if err != nil {
		return 0, 0, err
	}
	for shard := range int(b.f.shards) {
		if _, err := p.Publish(ctx, b.payload, client.ToShard(shard)); err != nil {
			return 0, 0, err
		}
	}
	open := make([]client.Future, window)
	began := time.Now()
	n := 0
	for ; n != total; n++ {
		// The clock is asked now and then: it would be a good part of the work.
		if d > 0 && n%64 == 0 && time.Since(began) >= d {
			break
		}
		slot := &open[n%window]
		if n >= window {
			if _, err := slot.Wait(ctx); err != nil {
				return 0, 0, err
			}
		}
		if *slot, err = p.Send(ctx, b.payload, client.ToShard(n%int(b.f.shards))); err != nil {
			return 0, 0, err
		}
	}
	for i := range min(n, window) {
		if _, err := open[i].Wait(ctx); err != nil {
			return 0, 0, err
		}
	}
	took := time.Since(began)
	return n, took, p.Close(ctx)
}

func (b *bench) pipelined(ctx context.Context) (benchFigures, int, error) {
	n, took, err := b.send(ctx, benchWindow, -1, b.f.seconds)
	return figures(n, took, nil), n, err
}

func (b *bench) floorPipelined(_ context.Context, addr string) (benchFigures, error) {
	n, took, err := b.floorSend(addr, -1, b.f.seconds)
	return figures(n, took, nil), err
}

func (b *bench) floorSend(addr string, total int, d time.Duration) (int, time.Duration, error) {
	c, err := newFloorClient(addr)
	if err != nil {
		return 0, 0, err
	}
	defer c.close()
	began := time.Now()
	n := 0
	for ; n != total; n++ {
		if d > 0 && n%64 == 0 && time.Since(began) >= d {
			break
		}
		if err := c.send(b.payload, benchWindow); err != nil {
			return 0, 0, err
		}
	}
	err = c.drain()
	return n, time.Since(began), err
}

// fanout counts deliveries to many subscribers of one publisher.
func (b *bench) fanout(ctx context.Context) (benchFigures, int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var delivered atomic.Int64
	var reading sync.WaitGroup
	target := make(chan int, b.f.subs) // of size subs: each reader takes one
	for range b.f.subs {
		c, _, err := b.dial(ctx)
		if err != nil {
			return benchFigures{}, 0, err
		}
		defer c.Close()
		s, err := c.Subscribe(ctx, b.stream, client.AllShards(), client.FromEarliest())
		if err != nil {
			return benchFigures{}, 0, err
		}
		defer s.Close()
		reading.Go(func() {
			for n, end := 0, -1; n != end; {
				records, err := s.NextBatch(ctx)
				if err != nil {
					cancel(err)
					return
				}
				n += len(records)
				delivered.Add(int64(len(records)))
				if end < 0 {
					select {
					case end = <-target:
					default:
					}
				}
			}
		})
	}
	began := time.Now()
	n, _, err := b.send(ctx, benchWindow, -1, b.f.seconds)
	if err != nil {
		return benchFigures{}, 0, err
	}
	// The publishes that connected count too. One more wakes readers that are at the tail.
	total := n + int(b.f.shards) + 1
	for range b.f.subs {
		target <- total
	}
	if _, err := b.client.Publish(ctx, b.stream, b.payload); err != nil {
		return benchFigures{}, 0, err
	}
	reading.Wait()
	if err := context.Cause(ctx); err != nil {
		return benchFigures{}, 0, err
	}
	return figures(int(delivered.Load()), time.Since(began), nil), n, nil
}

func (b *bench) floorFanout(_ context.Context, addr string) (benchFigures, error) {
	var reading sync.WaitGroup
	var bytes atomic.Int64
	conns := make([]net.Conn, b.f.subs)
	for i := range conns {
		c, err := dialFloor(addr, floorSubscribe)
		if err != nil {
			return benchFigures{}, err
		}
		defer c.Close()
		conns[i] = c
	}
	size := int64(floorHead + len(b.payload))
	var want atomic.Int64
	want.Store(-1)
	for _, c := range conns {
		reading.Go(func() {
			buf := make([]byte, 256<<10)
			for have := int64(0); want.Load() < 0 || have < want.Load(); {
				n, err := c.Read(buf)
				if err != nil {
					return
				}
				have += int64(n)
				bytes.Add(int64(n))
			}
		})
	}
	began := time.Now()
	n, _, err := b.floorSend(addr, -1, b.f.seconds)
	if err != nil {
		return benchFigures{}, err
	}
	want.Store(int64(n+1) * size)
	// One more wakes those that have everything already.
	if _, _, err := b.floorSend(addr, 1, 0); err != nil {
		return benchFigures{}, err
	}
	reading.Wait()
	return figures(int(bytes.Load()/size), time.Since(began), nil), nil
}

// replay reads a stream from its start, checksums included.
func (b *bench) replay(ctx context.Context) (benchFigures, int, error) {
	n, _, err := b.send(ctx, 4*benchWindow, b.f.records, 0)
	if err != nil {
		return benchFigures{}, 0, err
	}
	b.begin(ctx)
	began := time.Now()
	s, err := b.client.Subscribe(ctx, b.stream, client.AllShards(), client.FromEarliest())
	if err != nil {
		return benchFigures{}, 0, err
	}
	defer s.Close()
	for have := 0; have < n; {
		records, err := s.NextBatch(ctx)
		if err != nil {
			return benchFigures{}, 0, err
		}
		have += len(records)
	}
	return figures(n, time.Since(began), nil), n, nil
}

func (b *bench) floorReplay(_ context.Context, addr string) (benchFigures, error) {
	if _, _, err := b.floorSend(addr, b.f.records, 0); err != nil {
		return benchFigures{}, err
	}
	began := time.Now()
	c, err := dialFloor(addr, floorRead)
	if err != nil {
		return benchFigures{}, err
	}
	defer c.Close()
	buf := make([]byte, 1<<20+floorHead+len(b.payload))
	have, n := 0, 0
	for {
		k, err := c.Read(buf[have:])
		have += k
		end := 0
		for have-end >= floorHead {
			size := int(binary.LittleEndian.Uint32(buf[end:]))
			if size > len(buf)-floorHead {
				return benchFigures{}, fmt.Errorf("frame of %d bytes", size)
			}
			if have-end < floorHead+size {
				break
			}
			if crc32.Checksum(buf[end+floorHead:end+floorHead+size], floorTable) != binary.LittleEndian.Uint32(buf[end+4:]) {
				return benchFigures{}, fmt.Errorf("frame %d fails its checksum", n)
			}
			end += floorHead + size
			n++
		}
		have = copy(buf, buf[end:have])
		if err == io.EOF {
			return figures(n, time.Since(began), nil), nil
		}
		if err != nil {
			return benchFigures{}, err
		}
	}
}

// latencyRate is how many records a second the latency case publishes.
const latencyRate = 500

// paced calls send at a fixed rate until d has passed. Each call is told when it was
// due, so that a stall counts for all that it delays.
func paced(ctx context.Context, d time.Duration, send func(due time.Time) error) (int, error) {
	const every = time.Second / latencyRate
	began := time.Now()
	for n := 0; ; n++ {
		due := began.Add(time.Duration(n) * every)
		if due.Sub(began) >= d {
			return n, nil
		}
		if wait := time.Until(due); wait > 0 {
			t := time.NewTimer(wait)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return n, context.Cause(ctx)
			}
		}
		if err := send(due); err != nil {
			return n, err
		}
	}
}

// stamp writes when a record was due into its first bytes.
func stamp(payload []byte, due time.Time) []byte {
	out := append([]byte(nil), payload...)
	binary.BigEndian.PutUint64(out, uint64(due.UnixNano()))
	return out
}

func stampedAt(payload []byte) time.Time {
	return time.Unix(0, int64(binary.BigEndian.Uint64(payload)))
}

// latency is the time from when a record is due to when a subscriber has it.
func (b *bench) latency(ctx context.Context) (benchFigures, int, error) {
	c, _, err := b.dial(ctx)
	if err != nil {
		return benchFigures{}, 0, err
	}
	defer c.Close()
	s, err := c.Subscribe(ctx, b.stream, client.FromLatest())
	if err != nil {
		return benchFigures{}, 0, err
	}
	defer s.Close()
	if _, err := b.client.Publish(ctx, b.stream, stamp(b.payload, time.Now())); err != nil {
		return benchFigures{}, 0, err
	}
	p, err := b.client.Producer(b.stream)
	if err != nil {
		return benchFigures{}, 0, err
	}
	var times []time.Duration
	var readErr error
	var reading sync.WaitGroup
	want := make(chan int, 1)
	reading.Go(func() {
		for n, end := 0, -1; n != end; n++ {
			if end < 0 {
				select {
				case end = <-want:
					if n == end {
						return
					}
				default:
				}
			}
			r, err := s.Next(ctx)
			if err != nil {
				readErr = err
				return
			}
			times = append(times, time.Since(stampedAt(r.Payload)))
		}
	})
	began := time.Now()
	n, err := paced(ctx, b.f.seconds, func(due time.Time) error {
		_, err := p.Send(ctx, stamp(b.payload, due))
		return err
	})
	// One before, n, and one more that wakes the reader.
	want <- n + 2
	took := time.Since(began)
	if err == nil {
		_, err = p.Publish(ctx, stamp(b.payload, time.Now()))
	}
	if err != nil {
		s.Close()
	}
	reading.Wait()
	if err == nil {
		err = readErr
	}
	if err != nil {
		return benchFigures{}, 0, err
	}
	return figures(n, took, times[1:n+1]), n, p.Close(ctx)
}

func (b *bench) floorLatency(ctx context.Context, addr string) (benchFigures, error) {
	sub, err := dialFloor(addr, floorSubscribe)
	if err != nil {
		return benchFigures{}, err
	}
	defer sub.Close()
	c, err := newFloorClient(addr)
	if err != nil {
		return benchFigures{}, err
	}
	defer c.close()
	var times []time.Duration
	var reading sync.WaitGroup
	reading.Go(func() {
		frame := make([]byte, floorHead+len(b.payload))
		for {
			if _, err := io.ReadFull(sub, frame); err != nil {
				return
			}
			times = append(times, time.Since(stampedAt(frame[floorHead:])))
		}
	})
	began := time.Now()
	n, err := paced(ctx, b.f.seconds, func(due time.Time) error { return c.send(stamp(b.payload, due), benchWindow) })
	took := time.Since(began)
	if err == nil {
		err = c.drain()
	}
	// What is stored is sent to subscribers next; half a second is ample.
	wait := time.AfterFunc(500*time.Millisecond, func() { sub.Close() })
	defer wait.Stop()
	reading.Wait()
	if err != nil {
		return benchFigures{}, err
	}
	return figures(n, took, times), nil
}
