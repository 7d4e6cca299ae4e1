package soak

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Options say what is run and for how long.
type Options struct {
	// Time is how long the load lasts.
	Time time.Duration
	// Dir is where the broker's data is, and the file the probe writes.
	Dir string
	// Broker makes the command that runs `felix` with arguments.
	Broker func(args ...string) *exec.Cmd
	// SegmentBytes and RetentionBytes are those of each shard of the stream.
	SegmentBytes, RetentionBytes int64
	// Guests is how many clients come and go before the clock starts.
	Guests int
	// StructureOnly leaves the verdict out: the run shows that every part of it works. That
	// of a few seconds beside other work says nothing of latencies or of what rises.
	StructureOnly bool
	// Progress is told of each second; it may be nil.
	Progress func(Second)
}

// Rates of the load, a second. The machine should be mostly idle: what is looked for is
// what the broker does by itself.
const (
	publishRate = 1000
	cacheRate   = 200 // puts, and as many gets
	queueRate   = 100
	dialRate    = 4
	recordBytes = 512
	valueBytes  = 1024
	cacheKeys   = 2000
	shards      = 4
)

// Run runs the load for its time and returns what was seen. An error is one of the load
// or of the broker: nothing it does is meant to fail.
func Run(ctx context.Context, o Options) (_ *Report, err error) {
	b, err := startBroker(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Kill()) }()
	if err := b.prepare(ctx, o); err != nil {
		return nil, err
	}
	if err := b.welcome(ctx, o.Guests); err != nil {
		return nil, fmt.Errorf("before the load: %w", err)
	}
	w := &watch{broker: b, begin: time.Now(), seconds: make([]Second, int(o.Time/time.Second)+1), latencies: newLatencies(int(o.Time/time.Second) + 1)}
	running, stop := context.WithDeadline(ctx, w.begin.Add(o.Time))
	defer stop()
	group, running := errgroup.WithContext(running)
	l := &load{broker: b, watch: w}
	for _, part := range []func(context.Context) error{l.publish, l.replay, l.putAndGet, l.queue, l.consume, l.comeAndGo} {
		group.Go(func() error { return part(running) })
	}
	group.Go(func() error { return w.look(running, o.Progress) })
	p := &probe{dir: o.Dir, watch: w}
	group.Go(func() error { return p.sleep(running) })
	group.Go(func() error { return p.flush(running) })
	group.Go(func() error {
		select {
		case <-b.Exited():
			return fmt.Errorf("the broker ended: %w", b.Err())
		case <-running.Done():
			return nil
		}
	})
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("after %s: %w%s", time.Since(w.begin).Round(time.Second), err, b.Tail())
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := b.Stop(); err != nil {
		return nil, err
	}
	return w.report(o), nil
}

// ended is err, unless it only says that the time is over.
func ended(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return nil
	}
	return err
}

// every calls f at a rate until ctx ends or f fails. due is when the call should have been; one
// that comes late does not move those after it.
func every(ctx context.Context, begin time.Time, interval time.Duration, f func(due time.Time) error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for due := begin; ; due = due.Add(interval) {
		if wait := time.Until(due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return nil
			}
		} else if ctx.Err() != nil {
			return nil
		}
		if err := f(due); err != nil {
			return ended(ctx, err)
		}
	}
}

// watch gathers what is seen, second by second.
type watch struct {
	broker    *broker
	begin     time.Time
	latencies *latencies

	mu      sync.Mutex
	seconds []Second
}

// at changes the second a moment lies in.
func (w *watch) at(t time.Time, change func(*Second)) {
	i := int(t.Sub(w.begin) / time.Second)
	if i < 0 || i >= len(w.seconds) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.seconds[i])
}

// look asks the broker for its figures once a second.
func (w *watch) look(ctx context.Context, progress func(Second)) error {
	client := &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	var before *usage
	return every(ctx, w.begin.Add(time.Second/2), time.Second, func(due time.Time) error {
		p, err := scrape(ctx, client, w.broker.HTTP+"/metrics")
		if err != nil {
			return err
		}
		u, err := usageNow(p.cpu)
		if err != nil {
			return err
		}
		others := u.others(before)
		before = u
		var now Second
		w.at(due, func(s *Second) {
			s.Others = others
			s.Resident, s.Goroutines, s.Descriptors = p.resident, p.goroutines, p.descriptors
			now = *s
		})
		now.At = int(due.Sub(w.begin) / time.Second)
		if progress != nil {
			progress(now)
		}
		return nil
	})
}

// report is all that was seen. The broker has ended, so that its log is whole.
func (w *watch) report(o Options) *Report {
	r := &Report{Time: o.Time.String(), Rate: publishRate, SegmentBytes: o.SegmentBytes, RetentionBytes: o.RetentionBytes, Begin: w.begin, StructureOnly: o.StructureOnly}
	for _, e := range w.broker.events() {
		w.at(e.at, func(s *Second) { s.mark(e.kind) })
		if e.kind == compaction {
			// What it removes it has copied just before.
			w.at(e.at.Add(-time.Second), func(s *Second) { s.Compacting = true })
		}
	}
	whole := len(w.seconds) - 1
	for i := range w.seconds[:whole] {
		s := &w.seconds[i]
		s.At = i
		w.latencies.summarize(i, s)
	}
	r.Seconds = w.seconds[:whole]
	r.Judge()
	return r
}
