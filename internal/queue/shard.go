package queue

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/felixlog/felix/internal/projection"
)

// MaxGroups bounds the groups of one stream shard.
const MaxGroups = 100_000

// Shard holds the groups of one stream shard.
type Shard struct {
	groups  map[string]*Group
	journal *journal
}

// NewShard returns a shard without groups.
func NewShard() *Shard { return &Shard{groups: map[string]*Group{}, journal: &journal{}} }

// Len is the number of groups.
func (s *Shard) Len() int { return len(s.groups) }

// ValidGroup refuses a name no new group can have. One that was made with a control
// character, when that was allowed, goes on.
func ValidGroup(name string) error {
	switch {
	case name == "" || len(name) > MaxGroupName:
		return fmt.Errorf("%w: group name of %d bytes, want 1 to %d", ErrInvalid, len(name), MaxGroupName)
	case !utf8.ValidString(name) || HasControl(name):
		return fmt.Errorf("%w: group name %q is not UTF-8 without NUL and other control characters", ErrInvalid, name)
	}
	return nil
}

// HasControl reports whether a name has a control character in it: it would reach
// terminals, logs and labels.
func HasControl(name string) bool { return strings.ContainsFunc(name, unicode.IsControl) }

// Lookup returns a group that exists.
func (s *Shard) Lookup(name string) (*Group, bool) {
	g, ok := s.groups[name]
	return g, ok
}

// Group returns the group, making it at head, the oldest retained record, if it is not
// there. It begins to exist for others with its first decision that is written.
func (s *Shard) Group(name string, head Offset) (*Group, error) {
	if g, ok := s.groups[name]; ok {
		return g, nil
	}
	if err := ValidGroup(name); err != nil {
		return nil, err
	}
	if len(s.groups) >= MaxGroups {
		return nil, fmt.Errorf("%w: the shard has %d groups, at most %d", ErrInvalid, len(s.groups), MaxGroups)
	}
	g := newGroup(name, head)
	s.add(g)
	return g, nil
}

func (s *Shard) add(g *Group) {
	g.journal = s.journal
	s.groups[g.name] = g
}

// Forget drops a group of which the log has nothing.
func (s *Shard) Forget(name string) { delete(s.groups, name) }

// Delete forgets the group and appends the entries that make the log forget it.
func (s *Shard) Delete(name string, out []projection.Entry) ([]projection.Entry, bool) {
	g, ok := s.groups[name]
	if !ok {
		return out, false
	}
	g.noteAll()
	delete(s.groups, name)
	return g.EncodeDelete(out), true
}

// Each calls f for every group, ordered by name.
func (s *Shard) Each(f func(*Group)) {
	names := make([]string, 0, len(s.groups))
	for n := range s.groups {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		f(s.groups[n])
	}
}

// Lowest is the lowest offset any group has not settled, dead letters without a copy
// and redriven records included: what a stream of kind queue still needs. ok is false
// without groups.
func (s *Shard) Lowest() (low Offset, ok bool) {
	for _, g := range s.groups {
		l := g.Needs()
		if !ok || l < low {
			low, ok = l, true
		}
	}
	return low, ok
}

// Loader gathers the newest entry of each key of a group log, in any order, and builds
// the shard from them.
type Loader struct {
	parts map[string]*parts
}

type parts struct {
	meta, config []byte
	blocks       map[uint64][]byte
	dead, again  map[Offset][]byte
}

// NewLoader returns an empty loader.
func NewLoader() *Loader { return &Loader{parts: map[string]*parts{}} }

// Add takes one entry; a later one of the same key replaces it. The value is kept.
func (l *Loader) Add(e projection.Entry) error {
	group, kind, n, err := parseKey(e.Key)
	if err != nil {
		return err
	}
	p := l.parts[group]
	if p == nil {
		if e.Delete {
			return nil
		}
		p = &parts{blocks: map[uint64][]byte{}, dead: map[Offset][]byte{}, again: map[Offset][]byte{}}
		l.parts[group] = p
	}
	v := slices.Clone(e.Value)
	if e.Delete {
		v = nil
	}
	switch kind {
	case kindMeta:
		p.meta = v
	case kindConfig:
		p.config = v
	case kindBlock:
		set(p.blocks, n, v)
	case kindDead:
		set(p.dead, Offset(n), v)
	case kindAgain:
		set(p.again, Offset(n), v)
	case KindPayload:
		// Read from the log when it is asked for.
	default:
		return fmt.Errorf("queue: entry of unknown kind %q", kind)
	}
	return nil
}

func set[K comparable](m map[K][]byte, k K, v []byte) {
	if v == nil {
		delete(m, k)
	} else {
		m[k] = v
	}
}

// Build makes the shard's groups. What was claimed or delayed is ready. tail is the
// stream's committed tail: a group that claims to be past it (its stream lost records
// that it had settled) is clamped, and clamped counts those groups.
func (l *Loader) Build(tail Offset) (s *Shard, clamped int, err error) {
	s = NewShard()
	for name, p := range l.parts {
		if p.meta == nil {
			continue // deleted
		}
		g, cut, err := p.build(name, tail)
		if err != nil {
			return nil, 0, fmt.Errorf("group %q: %w", name, err)
		}
		if cut {
			clamped++
		}
		s.add(g)
	}
	return s, clamped, nil
}

func (p *parts) build(name string, tail Offset) (g *Group, cut bool, err error) {
	g = newGroup(name, 0)
	g.existed = true
	if err := g.decodeMeta(p.meta); err != nil {
		return nil, false, err
	}
	if p.config != nil {
		if g.cfg, err = decodeConfig(p.config); err != nil {
			return nil, false, err
		}
	}
	if g.handed > tail {
		cut = true
		g.start, g.position, g.handed = min(g.start, tail), min(g.position, tail), tail
		g.dirty = true
	}
	g.win.reset(g.position)
	g.next = g.handed
	for o := g.position; o < g.handed; o++ {
		_, it := g.win.at(o)
		it.state, it.attempts = ready, 1
	}
	// Offsets of the first block below the position are settled, whatever it says.
	if b, _, ok := g.win.peek(g.position); ok && b != nil {
		for i := range int(uint64(g.position) % blockSize) {
			b.items[i] = item{state: settled}
			b.open--
		}
	}
	for n, v := range p.blocks {
		if err := g.loadBlock(n, v); err != nil {
			return nil, false, err
		}
	}
	for o := g.position; o < g.next; o++ {
		if it := g.find(o); it != nil {
			g.revive(o, it)
		}
	}
	if err := errors.Join(g.loadDead(p, tail), g.loadAgain(p, tail)); err != nil {
		return nil, false, err
	}
	if cut {
		// Of offsets that are not there any more, and that other records will get.
		g.restate(uint64(tail) / blockSize)
		g.rebalance(tail)
	}
	return g, cut, nil
}

// restate has the entry of block n written anew: it says something that is not so any more.
func (g *Group) restate(n uint64) {
	i := n - g.win.first
	if n < g.win.first || i >= uint64(len(g.win.blocks)) {
		return
	}
	if b := g.win.blocks[i]; b != nil && b.stored {
		g.goneBlocks = append(g.goneBlocks, n)
		b.dirty, b.stored = true, false
	}
}

// rebalance makes the totals of a clamped group fit what is left of its stream: what is
// in no other state was acked.
func (g *Group) rebalance(tail Offset) {
	g.acked, g.discarded, g.lost, g.skipped = 0, 0, 0, 0
	s := g.stats(tail)
	g.acked = uint64(tail-g.start) + s.BeforeStart - s.Ready - s.Claimed - s.DeadSinceStart
}

// revive makes an item of before a restart ready. One whose deliveries are used up is a
// claim that has long lapsed: the next Tick, which knows the time, gives it up.
func (g *Group) revive(o Offset, it *item) {
	if uint32(it.attempts) >= g.cfg.maxAttempts() {
		it.state, it.deadline, it.timed = claimed, 0, true
		g.claimed++
		g.timers.push(timer{0, o})
		return
	}
	it.state = ready
	g.ready++
	g.owed.push(timer{0, o})
}

func (g *Group) loadBlock(n uint64, v []byte) error {
	first := Offset(n * blockSize)
	if n > uint64(g.next)/blockSize || n < g.win.first {
		g.goneBlocks = append(g.goneBlocks, n) // clamped away: goes with the next decision
		return nil
	}
	g.win.at(max(first, g.position)) // the block is there, to remember its entry
	err := decodeBlock(v, func(i int, done bool, attempts uint16) {
		o := first + Offset(i)
		if o < g.position || o >= g.next {
			return
		}
		if done {
			g.win.settle(o)
		} else if _, it := g.win.at(o); it != nil {
			it.attempts = attempts
		}
	})
	if err != nil {
		return err
	}
	i := n - g.win.first
	if i < uint64(len(g.win.blocks)) {
		if b := g.win.blocks[i]; b != nil {
			b.dirty, b.stored = false, true
		} else {
			g.win.done[i] = blockMark{stored: true}
		}
	}
	return nil
}

func (g *Group) loadDead(p *parts, tail Offset) error {
	for o, v := range p.dead {
		d, err := decodeDead(v)
		if err != nil {
			return err
		}
		if o >= tail {
			g.markDead(o) // clamped: its record is gone
			if d.Copied {
				g.goneCopies = append(g.goneCopies, o)
			}
			continue
		}
		if g.dead == nil {
			g.dead = map[Offset]DeadLetter{}
		}
		g.dead[o] = d
	}
	return nil
}

func (g *Group) loadAgain(p *parts, tail Offset) error {
	for o, v := range p.again {
		r, err := decodeAgain(v)
		if err != nil {
			return err
		}
		if o >= tail {
			g.markDead(o)
			if r.copied {
				g.goneCopies = append(g.goneCopies, o)
			}
			continue
		}
		if g.again == nil {
			g.again = map[Offset]*reopened{}
		}
		g.again[o] = r
		g.revive(o, &r.item)
	}
	return nil
}
