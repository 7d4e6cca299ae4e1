package broker

import (
	"context"
	"sync"

	"github.com/felixlog/felix/internal/partition"
)

// Progress is how far opening the shards has come.
type Progress struct {
	Total  int // shards of the catalog
	Opened int // tried: serving, or failed
	Failed int // of those, out of service
}

// Ready says that every shard has been tried.
func (p Progress) Ready() bool { return p.Opened == p.Total }

// Percent is the share tried, 100 when there are none.
func (p Progress) Percent() int {
	if p.Total == 0 {
		return 100
	}
	return p.Opened * 100 / p.Total
}

type progress struct {
	mu sync.Mutex
	p  Progress
}

func (g *progress) add(n int) {
	g.mu.Lock()
	g.p.Total += n
	g.mu.Unlock()
}

// remove forgets n shards of a deleted stream, which were all tried, some in vain.
func (g *progress) remove(n, failed int) {
	g.mu.Lock()
	g.p.Total -= n
	g.p.Opened -= n
	g.p.Failed -= failed
	g.mu.Unlock()
}

// done counts a shard that has been tried; publish makes it known under the same lock.
func (g *progress) done(failed bool, publish func()) Progress {
	g.mu.Lock()
	defer g.mu.Unlock()
	publish()
	g.p.Opened++
	if failed {
		g.p.Failed++
	}
	return g.p
}

// failed counts a shard that served and does not any more.
func (g *progress) failed() {
	g.mu.Lock()
	g.p.Failed++
	g.mu.Unlock()
}

func (g *progress) healed() {
	g.mu.Lock()
	g.p.Failed--
	g.mu.Unlock()
}

// Progress is how far opening the shards has come.
func (b *Broker) Progress() Progress {
	b.progress.mu.Lock()
	defer b.progress.mu.Unlock()
	return b.progress.p
}

// Ready says that every shard has been tried and the broker is not shutting down.
// Damaged ones do not keep it from being ready: [Broker.Damaged] names them.
func (b *Broker) Ready() bool { return !b.draining.Load() && b.Progress().Ready() }

// WaitJudged waits until the bytes of every shard have been looked at: one that could not
// be opened for another reason is still as the last run left it.
func (b *Broker) WaitJudged(ctx context.Context) error {
	return b.await(ctx, func() (bool, error) {
		if !b.Progress().Ready() {
			return false, nil
		}
		judged := true
		b.resources(func(r *resource) {
			for i := range r.shards {
				st := r.shards[i].status.Load()
				judged = judged && st.state != partition.Opening && !st.unjudged()
			}
		})
		return judged, nil
	})
}

// WaitReady waits until every shard has been tried.
func (b *Broker) WaitReady(ctx context.Context) error {
	return b.await(ctx, func() (bool, error) { return b.Progress().Ready(), nil })
}
