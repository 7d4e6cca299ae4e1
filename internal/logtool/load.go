package logtool

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// load drives an operation from several appenders, each waiting for its own before it
// does the next.
type load struct {
	appenders int
	ops       int64         // operations of a slice; zero: as many as fit
	length    time.Duration // of a slice; zero: until ops are done
}

// sliceResult is one slice of a load.
type sliceResult struct {
	ops     int64
	elapsed time.Duration
	hist    histogram
}

// run does one slice. The first error ends it.
func (l load) run(ctx context.Context, op func(ctx context.Context, appender int) error) (*sliceResult, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		left  atomic.Int64
		wg    sync.WaitGroup
		hists = make([]*histogram, l.appenders)
	)
	left.Store(l.ops)
	start := time.Now()
	for i := range l.appenders {
		hists[i] = new(histogram)
		wg.Go(func() {
			last := time.Now()
			for ctx.Err() == nil {
				if l.ops > 0 && left.Add(-1) < 0 || l.length > 0 && last.Sub(start) >= l.length {
					return
				}
				if err := op(ctx, i); err != nil {
					cancel(err)
					return
				}
				now := time.Now()
				hists[i].add(now.Sub(last))
				last = now
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	r := &sliceResult{elapsed: time.Since(start)}
	for _, h := range hists {
		r.hist.merge(h)
	}
	r.ops = int64(r.hist.total)
	return r, nil
}

// counted runs f and says how many allocations the process made meanwhile.
func counted(f func() (*sliceResult, error)) (*sliceResult, uint64, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r, err := f()
	runtime.ReadMemStats(&after)
	return r, after.Mallocs - before.Mallocs, err
}

// overhead is how many allocations a slice makes for itself: its goroutines and what
// they count in.
func (l load) overhead(ctx context.Context) (uint64, error) {
	empty := load{appenders: l.appenders, ops: int64(l.appenders)}
	least := ^uint64(0)
	for range 3 {
		_, n, err := counted(func() (*sliceResult, error) {
			return empty.run(ctx, func(context.Context, int) error { return nil })
		})
		if err != nil {
			return 0, err
		}
		least = min(least, n)
	}
	return least, nil
}
