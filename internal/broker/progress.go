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
	// Read is how much of the logs being opened now was read, and Bytes what they hold.
	Read, Bytes int64
	part        float64 // the shares read of them, added up
}

// Ready says that every shard has been tried.
func (p Progress) Ready() bool { return p.Opened == p.Total }

// Percent is the share of the shards that was opened, one being opened counting by the
// bytes read of its log; 100 when there are none, and not before all are tried.
func (p Progress) Percent() int {
	if p.Ready() {
		return 100
	}
	return min(99, int((float64(p.Opened)+p.part)*100/float64(p.Total)))
}

type progress struct {
	mu   sync.Mutex
	p    Progress
	logs map[string]logRead // by shard, of those that are opened for the first time
}

// logRead is how much of a log its recovery has read.
type logRead struct {
	read, bytes int64
	part        float64 // the largest share yet: more than one log may go by a shard's name
}

// begin has what is read of a shard's log counted until the shard is done.
func (g *progress) begin(shard string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.logs == nil {
		g.logs = make(map[string]logRead)
	}
	g.logs[shard] = logRead{}
}

// read takes in how far the recovery of a log is: one of a shard that is opened again, or
// of a group, does not count.
func (g *progress) read(shard string, read, bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l, opening := g.logs[shard]
	if !opening || bytes <= 0 {
		return
	}
	// What is looked at twice is read twice.
	l.read, l.bytes = min(read, bytes), bytes
	l.part = max(l.part, float64(l.read)/float64(bytes))
	g.logs[shard] = l
}

func (g *progress) now() Progress {
	p := g.p
	for _, l := range g.logs {
		p.Read += l.read
		p.Bytes += l.bytes
		p.part += l.part
	}
	return p
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
func (g *progress) done(shard string, failed bool, publish func()) Progress {
	g.mu.Lock()
	defer g.mu.Unlock()
	publish()
	delete(g.logs, shard)
	g.p.Opened++
	if failed {
		g.p.Failed++
	}
	return g.now()
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
	return b.progress.now()
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
