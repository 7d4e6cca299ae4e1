package partition

import (
	"context"
	"fmt"

	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// storeClamped makes it durable that groups were set back to the end of their stream,
// before the stream takes another record. Else a crash after the stream has grown past
// where they claimed to be would find them there again, and they would pass over records
// that nobody was handed.
func (g *Groups) storeClamped(ctx context.Context) error {
	done := make(chan error, 1)
	g.mu.Lock()
	g.mu.shard.Each(func(group *queue.Group) {
		if group.Dirty() {
			g.markLocked(group)
		}
	})
	g.joinLocked(nil, nil, func(err error) { done <- err })
	g.unlock()
	g.Drive(true)
	select {
	case err := <-done:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	return g.log.Sync(ctx)
}

// load reads the whole log, which compaction keeps small, and builds the state.
func (g *Groups) load(ctx context.Context) (shard *queue.Shard, clamped int, err error) {
	// A compaction that ends meanwhile must not take what is still to be read. One that
	// was ending as the hold was taken may have: the next attempt stands behind it.
	release := g.log.Hold(g.log.Head())
	defer release()
	var loader *queue.Loader
	for loader == nil || isTrimmed(err) {
		loader = queue.NewLoader()
		err = projection.Replay(ctx, g.log, g.log.Head(), g.log.Stable(), func(rec *segment.Record) error {
			if rec.Kind == segment.KindGenerationStart {
				return nil
			}
			if _, err := projection.ReadEntrySet(rec.Payload, loader.Add); err != nil {
				return &projection.UnreadableError{Offset: rec.Offset, Err: err}
			}
			return nil
		})
	}
	if err != nil {
		return nil, 0, err
	}
	// The bound is what the stream holds, not what readers may see of it: a group is past
	// the end only if its records are gone.
	shard, clamped, err = loader.Build(g.stream.log.Stable())
	if clamped > 0 && g.o.OnClamped != nil {
		g.o.OnClamped(g.name, clamped)
	}
	return shard, clamped, err
}

// distrustLocked notes that the state holds what the log does not: nothing more is
// decided on it, what was is refused, and the state is read again.
func (g *Groups) distrustLocked() {
	g.mu.epoch++
	g.mu.broken = true
	g.reloadLocked()
}

// reloadLocked has the state read again, unless that is under way.
func (g *Groups) reloadLocked() {
	if !g.mu.reloading {
		g.mu.reloading = true
		g.background.start(g.reload)
	}
}

// reload reads the state from the log again. It ends with a state to be trusted, or with
// the shard failed.
func (g *Groups) reload() {
	for {
		g.Drive(true) // the open decision is of before: the log refuses it in its turn
		epoch, ok := g.awaitDecisions()
		if !ok {
			return
		}
		shard, _, err := g.load(g.life)
		if storage.IsOutOfFiles(err) {
			g.loadLater()
			return
		}
		if err != nil {
			if g.life.Err() == nil {
				g.fail(fmt.Errorf("read the groups again: %w", err))
			}
			return
		}
		if g.trust(shard, epoch) {
			g.Drive(true) // what was given back meanwhile
			g.wakeAll()   // what a refused request had claimed is ready
			return
		}
	}
}

// loadLater leaves the state unread until somebody asks for it: the log is well, and there
// was no descriptor to read it with.
func (g *Groups) loadLater() {
	g.mu.Lock()
	g.mu.reloading = false
	g.mu.Unlock()
	g.wakeAll() // polls that wait are told, and try again if they like
}

// awaitDecisions waits until every decision handed to the log is answered, and returns
// the epoch of before. False when the shard ends.
func (g *Groups) awaitDecisions() (epoch uint64, ok bool) {
	g.mu.Lock()
	epoch = g.mu.epoch
	if g.mu.flying > 0 && g.mu.landed == nil {
		g.mu.landed = make(chan struct{})
	}
	landed := g.mu.landed
	g.mu.Unlock()
	if landed != nil {
		select {
		case <-landed:
		case <-g.life.Done():
		}
	}
	return epoch, g.life.Err() == nil
}

// trust puts shard, read after what was in flight in epoch, in the place of the state.
// False if more was taken back since.
func (g *Groups) trust(shard *queue.Shard, epoch uint64) bool {
	g.mu.Lock()
	defer g.unlock()
	if g.mu.epoch != epoch {
		return false
	}
	shard.Resume(g.mu.shard)
	g.mu.shard, g.mu.broken, g.mu.reloading, g.mu.dirty = shard, false, false, nil
	for _, u := range g.mu.undelivered {
		g.giveBackLocked(u)
	}
	g.mu.undelivered = nil
	return true
}
