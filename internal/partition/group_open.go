package partition

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// GroupHome says where the groups of a stream shard live and how they are kept.
type GroupHome struct {
	// Dir is the directory of their log; made when the first group is asked for.
	Dir string
	GroupsOptions
	// HoldBytes makes retention wait for the groups (a stream of kind queue): segments
	// that some group has not settled stay until the log is this much larger than its
	// retention bound. 0: retention does not wait, and what a group had not settled is
	// lost to it.
	HoldBytes int64
	// Made is told that the log is there, each time it is opened and before anything is
	// acknowledged from it; an error ends the opening. Lost is asked at the opening of the
	// shard when Dir, which may be there, holds no log: an error, of one that did, is that
	// of the opening. Either may be nil.
	Made func() error
	Lost func(there bool) error
}

// groupOpener opens a shard's groups when they are first needed.
type groupOpener struct {
	mu      sync.Mutex // held while they are opened: others wait for the outcome
	closed  bool
	copying atomic.Bool
}

// openExistingGroups opens the groups if they have a log: their positions bound
// retention from the start.
func (p *Partition) openExistingGroups(ctx context.Context) error {
	h := p.o.Groups
	if h == nil || p.log == nil {
		return nil
	}
	entries, err := p.o.Storage.FS.ReadDir(h.Dir)
	there := !errors.Is(err, fs.ErrNotExist)
	if err != nil && there {
		return err
	}
	logged := slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		class, _ := segment.ParseName(e.Name())
		return class == segment.NameSegment
	})
	if !logged && h.Lost != nil {
		if err := h.Lost(there); err != nil {
			return fmt.Errorf("consumer groups: %w", err)
		}
	}
	if len(entries) == 0 {
		return nil
	}
	_, err = p.Groups(ctx)
	return err
}

// Groups are the shard's consumer groups. Errors: ErrNoGroups for an in-memory stream,
// ErrClosed, ErrDeleted, those of opening their log.
func (p *Partition) Groups(ctx context.Context) (*Groups, error) {
	if g := p.groups.Load(); g != nil {
		return g, nil
	}
	if p.log == nil || p.o.Groups == nil {
		return nil, ErrNoGroups
	}
	if err := p.serving(); err != nil {
		return nil, err
	}
	p.opener.mu.Lock()
	defer p.opener.mu.Unlock()
	if g := p.groups.Load(); g != nil {
		return g, nil
	}
	if p.opener.closed {
		return nil, ErrClosed
	}
	return p.openGroups(ctx)
}

// openGroups opens the groups and publishes them. opener.mu is held.
func (p *Partition) openGroups(ctx context.Context) (*Groups, error) {
	h := p.o.Groups
	if err := p.o.Storage.FS.MkdirAll(h.Dir); err != nil {
		return nil, err
	}
	o := h.GroupsOptions
	o.Name = p.name
	g, err := newGroups(ctx, h.Dir, p, o)
	if err != nil {
		return nil, err
	}
	if h.Made != nil {
		if err := h.Made(); err != nil {
			return nil, errors.Join(fmt.Errorf("groups of %s: %w", p.name, err), g.close(context.WithoutCancel(ctx), ErrClosed))
		}
	}
	p.groups.Store(g)
	return g, nil
}

// reopenGroups makes groups serve again whose log is poisoned, or whose state could not
// be trusted any more: the latter are closed and opened anew.
func (p *Partition) reopenGroups(ctx context.Context) error {
	p.opener.mu.Lock()
	defer p.opener.mu.Unlock()
	g := p.groups.Load()
	if g == nil || p.opener.closed {
		return nil
	}
	if g.failed.Load() == nil {
		return g.log.Reopen(ctx)
	}
	if err := g.close(ctx, ErrClosed); err != nil && g.log.Health().State != storage.StateClosed {
		return err
	}
	_, err := p.openGroups(ctx)
	return err
}

// groupsState is Active, or what is wrong with the groups.
func (p *Partition) groupsState() State {
	switch g := p.groups.Load(); {
	case g == nil:
		return Active
	case g.failed.Load() != nil:
		return Damaged
	case g.log.Health().State == storage.StatePoisoned:
		return Poisoned
	}
	return Active
}

// groupsHealth is why groupsState is what it is.
func (p *Partition) groupsHealth() error {
	g := p.groups.Load()
	if g == nil {
		return nil
	}
	if err := g.failed.Load(); err != nil {
		return fmt.Errorf("consumer groups: %w", *err)
	}
	if h := g.log.Health(); h.State == storage.StatePoisoned {
		return fmt.Errorf("consumer groups: %w", h.Err)
	}
	return nil
}

// closeGroups ends the groups, and with them every request for them.
func (p *Partition) closeGroups(ctx context.Context, why error) error {
	p.opener.mu.Lock()
	p.opener.closed = true
	p.opener.mu.Unlock()
	g := p.groups.Load()
	if g == nil {
		return nil
	}
	return g.close(ctx, why)
}

// retentionLimit is an offset at or above which retention may take nothing on the
// groups' account: payloads of dead letters that have no copy yet, and of a stream of
// kind queue what is not settled, up to HoldBytes.
func (p *Partition) retentionLimit() storage.Offset {
	stable := p.log.Stable()
	g := p.groups.Load()
	if g == nil {
		return stable
	}
	limit := stable
	if hold := p.o.Groups.HoldBytes; hold > 0 {
		if needs, ok := g.Needs(); ok && p.bytes() <= p.retention.Load().Bytes+hold {
			limit = min(limit, needs)
		}
	}
	switch uncopied := g.Uncopied(limit); {
	case uncopied < limit:
		p.copyLetters(g, limit)
		limit = uncopied
	case !g.copiesStand():
		// The segment is removed for good; its copies must be there for good before.
		p.copyLetters(g, limit)
		limit = min(limit, p.log.Head())
	}
	return limit
}

// copyLetters has the payloads below limit copied in the background; the next pass of
// retention goes on.
func (p *Partition) copyLetters(g *Groups, limit storage.Offset) {
	if !p.opener.copying.CompareAndSwap(false, true) {
		return
	}
	g.background.start(func() {
		defer p.opener.copying.Store(false)
		if err := g.CopyLetters(g.life, limit); err != nil && g.life.Err() == nil && g.onError != nil {
			g.onError("copy of dead letters", err)
		}
	})
}

// bytes is what the stream's log takes.
func (p *Partition) bytes() (n int64) {
	for _, s := range p.log.Segments() {
		n += s.Bytes
	}
	return n
}
