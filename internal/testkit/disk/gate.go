package disk

import (
	"context"
	"fmt"
	"sync"
)

// Gate holds operations until the test lets them go.
type Gate struct {
	mu struct {
		sync.Mutex
		arrived int
		waiting []chan struct{} // one per held operation, oldest first
		passes  int             // let through ahead of their arrival
		open    bool
		changed chan struct{} // closed and replaced at every arrival
	}
}

// NewGate returns a closed gate. Inside a synctest bubble it must be made there.
func NewGate() *Gate {
	g := &Gate{}
	g.mu.changed = make(chan struct{})
	return g
}

// wait holds the caller until it is let go.
func (g *Gate) wait() {
	g.mu.Lock()
	g.mu.arrived++
	close(g.mu.changed)
	g.mu.changed = make(chan struct{})
	if g.mu.open || g.mu.passes > 0 {
		g.mu.passes = max(g.mu.passes-1, 0)
		g.mu.Unlock()
		return
	}
	release := make(chan struct{})
	g.mu.waiting = append(g.mu.waiting, release)
	g.mu.Unlock()
	<-release
}

// Await returns when n operations have arrived since the gate was made, held or
// let through, or with ctx's error and how many there were.
func (g *Gate) Await(ctx context.Context, n int) error {
	for {
		g.mu.Lock()
		arrived, changed := g.mu.arrived, g.mu.changed
		g.mu.Unlock()
		if arrived >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d operations at the gate: %w", arrived, n, ctx.Err())
		}
	}
}

// Arrived counts the operations that have come to the gate.
func (g *Gate) Arrived() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.arrived
}

// Held counts the operations waiting now.
func (g *Gate) Held() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.mu.waiting)
}

// Release lets n operations go, the oldest first; if fewer are waiting, the next
// ones pass without waiting.
func (g *Gate) Release(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for ; n > 0 && len(g.mu.waiting) > 0; n-- {
		close(g.mu.waiting[0])
		g.mu.waiting = g.mu.waiting[1:]
	}
	g.mu.passes += n
}

// Open lets everything go, now and later.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.open = true
	for _, w := range g.mu.waiting {
		close(w)
	}
	g.mu.waiting = nil
}

// Shut holds again what arrives from now on.
func (g *Gate) Shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.open, g.mu.passes = false, 0
}
