package queue

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/felixlog/felix/storage/segment"
)

// Offset and Micros are the log's.
type (
	Offset = segment.Offset
	Micros = segment.Micros
)

// Errors of the calls on a group.
var (
	// ErrInvalid: an argument that no group could take; nothing changed.
	ErrInvalid = errors.New("queue: invalid")
	// ErrStale: the claim named no longer stands; nothing changed.
	ErrStale = errors.New("queue: the claim no longer stands")
	// ErrNotDead: the offset is not among the group's dead letters; nothing changed.
	ErrNotDead = errors.New("queue: no such dead letter")
	// ErrHeld: the group is exclusive and another consumer holds it.
	ErrHeld = errors.New("queue: group is held by another consumer")
)

// Reason is why a record was given up on.
type Reason uint8

const (
	// ReasonAttempts: its last allowed delivery lapsed or was refused.
	ReasonAttempts Reason = 1
	// ReasonGivenUp: a consumer said so.
	ReasonGivenUp Reason = 2
)

// String names the reason as the commands print it.
func (r Reason) String() string {
	switch r {
	case ReasonAttempts:
		return "attempts_exhausted"
	case ReasonGivenUp:
		return "given_up"
	}
	return fmt.Sprintf("reason_%d", uint8(r))
}

// DeadLetter is a record the group has given up on.
type DeadLetter struct {
	Attempts uint32
	Reason   Reason
	At       Micros
	// Copied says that the payload stands in the group's own log, because its segment
	// is about to go or has gone.
	Copied bool
}

// Handout is one record handed to a consumer.
type Handout struct {
	Offset   Offset
	Attempts uint32 // this delivery included
	// Copied says that the payload is the copy in the group's log.
	Copied bool
}

// reopened is a dead letter that was redriven: an item of its own, apart from the
// window, in which its offset stays settled.
type reopened struct {
	item
	copied bool
	dirty  bool
}

// Group is one consumer group on one shard.
type Group struct {
	name string
	cfg  Config

	// start is where the group began or was last sought to. position is one past the
	// settled prefix. next is the first offset this core has not handed out; handed
	// the first whose delivery is not yet provided for in the log.
	start, position, next, handed Offset

	win    window
	again  map[Offset]*reopened
	dead   map[Offset]DeadLetter
	timers timerHeap // of claimed and delayed items
	owed   timerHeap // of ready items; deadlines are zero
	owners owners

	ready, delayed, claimed         int
	acked, discarded, lost, skipped uint64

	holder      string // of an exclusive group
	heldUntil   Micros
	dirty       bool // position, handed or a total changed
	dirtyConfig bool
	dirtyDead   map[Offset]struct{}
	goneBlocks  []uint64 // blocks passed whose entries are to be deleted
	goneCopies  []Offset // payload copies no longer needed
	existed     bool     // the log has an entry of the group, or will have

	journal *journal // the shard's
}

func newGroup(name string, at Offset) *Group {
	g := &Group{name: name, start: at, position: at, next: at, handed: at}
	g.win.reset(at)
	return g
}

// Name is the group's name.
func (g *Group) Name() string { return g.name }

// Exists reports whether the log has an entry of the group, or will have.
func (g *Group) Exists() bool { return g.existed }

// Config is what the group is set to.
func (g *Group) Config() Config { return g.cfg }

// Configure changes the configuration; it holds for deliveries from now on.
func (g *Group) Configure(c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	g.cfg, g.dirtyConfig, g.dirty = c, true, true
	return nil
}

// Position is one past the settled prefix.
func (g *Group) Position() Offset { return g.position }

// InFlight is how many records are claimed or delayed.
func (g *Group) InFlight() int { return g.claimed + g.delayed }

// Offers reports whether a poll could be handed something of a stream that ends at tail,
// by one consumer at least.
func (g *Group) Offers(tail Offset) bool {
	return (g.ready > 0 || g.next < tail) && g.InFlight() < g.cfg.maxInFlight()
}

// HeldUntil is until when an exclusive group is its holder's, if it does not poll again.
func (g *Group) HeldUntil() Micros { return g.heldUntil }

// NextDeadline is when the nearest claim or delay ends. It may be earlier than that of
// any that still stands, never later.
func (g *Group) NextDeadline() (Micros, bool) {
	if len(g.timers) == 0 {
		return 0, false
	}
	return g.timers[0].at, true
}

// find returns the item of an offset: the redriven one, or the window's. nil where the
// offset is settled, or was never handed out.
func (g *Group) find(o Offset) *item {
	if r := g.again[o]; r != nil {
		return &r.item
	}
	if o < g.position {
		return nil
	}
	_, it, _ := g.win.peek(o)
	if it == nil || it.state == settled {
		return nil
	}
	return it
}

// touch marks what has to be written because o's item changed.
func (g *Group) touch(o Offset) {
	g.dirty = true
	if r := g.again[o]; r != nil {
		r.dirty = true
		return
	}
	if b, _, _ := g.win.peek(o); b != nil {
		b.dirty = true
	}
}

func (g *Group) count(s state, by int) {
	switch s {
	case ready:
		g.ready += by
	case delayed:
		g.delayed += by
	case claimed:
		g.claimed += by
	}
}

// leave takes an item out of the counts of the state it is in.
func (g *Group) leave(o Offset, it *item) {
	g.noteItem(o, it)
	g.count(it.state, -1)
	if it.state == claimed {
		g.owners.release(it.owner)
		it.owner = 0
	}
}

// move changes an item's state.
func (g *Group) move(o Offset, it *item, to state) {
	g.leave(o, it)
	g.count(to, 1)
	it.state = to
}

// settleOffset ends an offset's life and moves the position over what is settled.
func (g *Group) settleOffset(o Offset) {
	g.dirty = true
	if r := g.again[o]; r != nil {
		g.leave(o, &r.item)
		if r.copied {
			g.goneCopies = append(g.goneCopies, o)
		}
		delete(g.again, o)
		g.markDead(o) // its entry is deleted
		return
	}
	if it := g.find(o); it != nil {
		g.leave(o, it)
	}
	g.win.settle(o)
	if o == g.position {
		g.position = g.win.advance(g.position, g.next)
		g.win.drop(g.position, func(n uint64) { g.goneBlocks = append(g.goneBlocks, n) })
	}
}

func (g *Group) markDead(o Offset) {
	if g.dirtyDead == nil {
		g.dirtyDead = map[Offset]struct{}{}
	}
	g.dirtyDead[o] = struct{}{}
}

// open makes an item ready, or a dead letter when its deliveries are used up.
func (g *Group) open(o Offset, it *item, now Micros) {
	if uint32(it.attempts) >= g.cfg.maxAttempts() {
		g.bury(o, it, ReasonAttempts, now)
		return
	}
	g.move(o, it, ready)
	it.deadline, it.timed = 0, false
	g.owed.push(timer{0, o})
}

func (g *Group) bury(o Offset, it *item, why Reason, now Micros) {
	d := DeadLetter{Attempts: uint32(it.attempts), Reason: why, At: now}
	if r := g.again[o]; r != nil {
		d.Copied = r.copied
		r.copied = false // the copy stays, with the dead letter
	}
	g.settleOffset(o)
	if g.dead == nil {
		g.dead = map[Offset]DeadLetter{}
	}
	g.dead[o] = d
	g.markDead(o)
}

// Tick ends the claims and delays whose time has come.
func (g *Group) Tick(now Micros) {
	for len(g.timers) > 0 && g.timers[0].at <= now {
		t := g.timers.pop()
		it := g.find(t.offset)
		if it == nil || !it.timed || it.deadline != t.at || !it.inFlight() {
			continue
		}
		g.open(t.offset, it, now)
	}
	if g.holder != "" && g.heldUntil <= now {
		g.holder = ""
	}
	if len(g.timers) > 4*g.InFlight()+1024 {
		g.pruneTimers()
	}
}

// after adds a duration to a time and stays at the end of time rather than wrap.
func after(now Micros, d time.Duration) Micros {
	us := Micros(d / time.Microsecond)
	if now > math.MaxInt64-us {
		return math.MaxInt64
	}
	return now + us
}

// Full reports whether something could be handed out of a stream that ends at tail, were
// it not for the bound on records in flight.
func (g *Group) Full(tail Offset) bool {
	return (g.ready > 0 || g.next < tail) && g.InFlight() >= g.cfg.maxInFlight()
}

// PollRequest asks for records.
type PollRequest struct {
	Max        int           // at most MaxPollRecords
	Visibility time.Duration // 0: the group's
	Member     string        // consumer name with its principal; empty: unnamed
	Conn       uint64        // the connection it polls on
	// Reclaim takes the claims that Member holds on other connections first.
	Reclaim    bool
	Head, Tail Offset // what the stream's log holds and may be read of it
}

// handedStep is how far ahead of itself a group provides for first deliveries, so that
// not each poll has to write. A crash counts one delivery too many for at most as many
// records.
const handedStep = 1024

// Poll claims up to r.Max records, those that are owed before new ones, and appends
// them to out. Nothing to hand out is no error. What it changed must be written
// (Encode) before the records leave.
func (g *Group) Poll(now Micros, r PollRequest, out []Handout) ([]Handout, error) {
	if r.Max <= 0 || r.Max > MaxPollRecords {
		return out, fmt.Errorf("%w: max_records %d, want 1 to %d", ErrInvalid, r.Max, MaxPollRecords)
	}
	if r.Visibility < 0 || r.Visibility > MaxVisibility {
		return out, fmt.Errorf("%w: visibility %v, want more than 0 and at most %v", ErrInvalid, r.Visibility, MaxVisibility)
	}
	if g.cfg.Exclusive && r.Member == "" {
		return out, fmt.Errorf("%w: group %q is exclusive: name the consumer", ErrInvalid, g.name)
	}
	g.note()
	g.Trim(r.Head)
	g.Tick(now)
	visibility := r.Visibility
	if visibility == 0 {
		visibility = g.cfg.visibility()
	}
	if g.cfg.Exclusive {
		if g.holder != "" && g.holder != r.Member {
			return out, fmt.Errorf("%w: %q until %d", ErrHeld, g.holder, g.heldUntil)
		}
		g.holder, g.heldUntil = r.Member, max(g.heldUntil, after(now, visibility))
	}
	if r.Reclaim && r.Member != "" {
		g.reclaim(now, r)
	}
	deadline := after(now, visibility)
	room := g.cfg.maxInFlight() - g.InFlight()
	take := min(r.Max, room)
	for ; take > 0 && len(g.owed) > 0; take-- {
		o := g.owed.pop().offset
		it := g.find(o)
		if it == nil || it.state != ready {
			take++ // stale entry
			continue
		}
		out = append(out, g.claim(o, it, deadline, r))
	}
	for ; take > 0 && g.next < r.Tail; take-- {
		o := g.next
		g.next++
		_, it := g.win.at(o)
		if it == nil || it.state == settled {
			take++
			continue
		}
		out = append(out, g.claim(o, it, deadline, r))
	}
	if g.next > g.handed {
		g.handed = min(r.Tail, g.next+handedStep)
		g.dirty = true
	}
	if len(out) > 0 && !g.existed {
		g.existed, g.dirty = true, true
	}
	return out, nil
}

func (g *Group) claim(o Offset, it *item, deadline Micros, r PollRequest) Handout {
	g.move(o, it, claimed)
	if it.attempts < math.MaxUint16 {
		it.attempts++
	}
	it.deadline, it.timed = deadline, true
	it.owner = g.owners.take(r.Member, r.Conn)
	g.timers.push(timer{deadline, o})
	h := Handout{Offset: o, Attempts: uint32(it.attempts)}
	if again := g.again[o]; again != nil {
		h.Copied = again.copied
		g.touch(o)
	} else if it.attempts > 1 {
		g.touch(o) // a first delivery is covered by handed
	}
	return h
}

// reclaim opens the member's claims of its other connections.
func (g *Group) reclaim(now Micros, r PollRequest) {
	if !g.owners.elsewhere(r.Member, r.Conn) {
		return
	}
	g.each(func(o Offset, it *item) {
		if it.state == claimed && g.owners.is(it.owner, r.Member, r.Conn) {
			g.open(o, it, now)
			g.touch(o)
		}
	})
}

// each calls f for every item that is not settled, redriven ones included. f may settle
// the item it is given.
func (g *Group) each(f func(Offset, *item)) {
	for o := range g.again {
		if r := g.again[o]; r != nil {
			f(o, &r.item)
		}
	}
	for o := g.position; o < g.next; {
		b, it, ok := g.win.peek(o)
		if !ok {
			return
		}
		if b == nil {
			o = (o/blockSize + 1) * blockSize
			continue
		}
		if it.state != settled {
			f(o, it)
		}
		o++
	}
}

// tally counts a settled record. One below the start (redriven after a seek) belongs to
// the books of before.
func (g *Group) tally(total *uint64, o Offset) {
	if o >= g.start {
		*total++
	}
}

// Trim counts as lost what the stream's retention removed before the group settled it,
// and moves past it. It reports how many records that were.
func (g *Group) Trim(head Offset) uint64 {
	before := g.lost
	for o, r := range g.again {
		if o < head && !r.copied {
			g.tally(&g.lost, o)
			g.settleOffset(o)
		}
	}
	if g.position >= head {
		return g.lost - before
	}
	for o := g.position; o < min(head, g.next); o++ {
		if it := g.find(o); it != nil && g.again[o] == nil {
			g.lost++
			g.settleOffset(o)
		}
	}
	if g.next < head {
		g.lost += uint64(head - g.next)
		g.next = head
		g.position = head
		g.win.drop(head, func(n uint64) { g.goneBlocks = append(g.goneBlocks, n) })
		g.handed = max(g.handed, head)
	}
	g.dirty = true
	return g.lost - before
}

// Skip settles an offset that holds no record for consumers (a generation start). Only
// an offset that Poll has just handed out can be skipped.
func (g *Group) Skip(o Offset) {
	if it := g.find(o); it != nil {
		g.skipped++
		g.settleOffset(o)
	}
}

// Unclaim undoes the claim of a record that Poll has just handed out and that does not
// leave after all (the answer is full). The delivery is not counted.
func (g *Group) Unclaim(o Offset) {
	it := g.find(o)
	if it == nil || it.state != claimed {
		return
	}
	g.move(o, it, ready)
	it.attempts--
	it.deadline, it.timed = 0, false
	g.owed.push(timer{0, o})
	g.touch(o)
	if it.attempts == 1 {
		g.restate(uint64(o) / blockSize) // its entry counts two, and a block with nothing to say is not written
	}
}

// Return undoes the claim of a delivery that did not reach its consumer, as Unclaim does,
// unless it has ended otherwise.
func (g *Group) Return(o Offset, attempts uint32) {
	if it := g.find(o); it != nil && it.state == claimed && uint32(it.attempts) == attempts {
		g.Unclaim(o)
	}
}

// Ack settles an offset. Below the position, and for what is settled already, it is a
// success that changes nothing. A claim that has lapsed is acked as well, as long as
// the record was not given up on: the work is done, and the message names no delivery.
// tail is the stream's.
func (g *Group) Ack(now Micros, o, tail Offset) error {
	g.Tick(now)
	it, err := g.handedOut(o, tail)
	if err != nil || it == nil {
		return err
	}
	g.tally(&g.acked, o)
	g.settleOffset(o)
	return nil
}

// handedOut returns the item of an offset that was handed out and is not settled; nil
// without an error if it is settled.
func (g *Group) handedOut(o, tail Offset) (*item, error) {
	if o >= tail {
		return nil, fmt.Errorf("%w: offset %d was never handed out, the shard ends at %d", ErrInvalid, o, tail)
	}
	if it := g.find(o); it != nil && it.state != fresh {
		return it, nil
	}
	if _, dead := g.dead[o]; dead {
		return nil, fmt.Errorf("%w: record %d is a dead letter", ErrStale, o)
	}
	if o < g.next {
		return nil, nil
	}
	return nil, fmt.Errorf("%w: offset %d is not handed out, the group is at %d", ErrStale, o, g.next)
}

// standing returns the claim on o; attempts, if not zero, must be its delivery.
func (g *Group) standing(o, tail Offset, attempts uint32) (*item, error) {
	it, err := g.handedOut(o, tail)
	if err != nil {
		return nil, err
	}
	if it == nil || it.state != claimed || attempts != 0 && uint32(it.attempts) != attempts {
		return nil, fmt.Errorf("%w: record %d", ErrStale, o)
	}
	return it, nil
}

// NackRequest gives a record back.
type NackRequest struct {
	Offset   Offset
	Attempts uint32 // the delivery meant; 0: whichever stands
	Delay    time.Duration
	HasDelay bool // false: the group's backoff decides
	Tail     Offset
}

// Nack ends a claim: the record is ready now or after a delay, or given up on when its
// deliveries are used up.
func (g *Group) Nack(now Micros, r NackRequest) error {
	if r.Delay < 0 || r.Delay > MaxDelay {
		return fmt.Errorf("%w: delay %v, want 0 to %v", ErrInvalid, r.Delay, MaxDelay)
	}
	g.Tick(now)
	it, err := g.standing(r.Offset, r.Tail, r.Attempts)
	if err != nil {
		return err
	}
	delay := r.Delay
	if !r.HasDelay {
		delay = g.cfg.delay(uint64(r.Offset), uint32(it.attempts))
	}
	if delay == 0 || uint32(it.attempts) >= g.cfg.maxAttempts() {
		g.open(r.Offset, it, now)
	} else {
		g.move(r.Offset, it, delayed)
		it.deadline, it.timed = after(now, delay), true
		g.timers.push(timer{it.deadline, r.Offset})
	}
	return nil
}

// Extend moves the end of a claim to d from now, at most MaxVisibility, and returns
// how long it stands.
func (g *Group) Extend(now Micros, o Offset, attempts uint32, d time.Duration, tail Offset) (time.Duration, error) {
	if d <= 0 {
		return 0, fmt.Errorf("%w: extend by %v, want more than 0", ErrInvalid, d)
	}
	g.Tick(now)
	it, err := g.standing(o, tail, attempts)
	if err != nil {
		return 0, err
	}
	d = min(d, MaxVisibility)
	g.noteItem(o, it)
	it.deadline = after(now, d)
	g.timers.push(timer{it.deadline, o})
	return d, nil
}

// GiveUp makes a claimed record a dead letter.
func (g *Group) GiveUp(now Micros, o, tail Offset) error {
	g.Tick(now)
	it, err := g.handedOut(o, tail)
	if err != nil {
		return err
	}
	if it == nil {
		return fmt.Errorf("%w: record %d is settled", ErrStale, o)
	}
	g.bury(o, it, ReasonGivenUp, now)
	return nil
}

// Discard forgets a dead letter. One that is not listed is a success that changes
// nothing, so that a retry is.
func (g *Group) Discard(o Offset) {
	d, ok := g.dead[o]
	if !ok {
		return
	}
	if d.Copied {
		g.goneCopies = append(g.goneCopies, o)
	}
	delete(g.dead, o)
	g.tally(&g.discarded, o)
	g.dirty = true
	g.markDead(o)
}

// Redrive makes a dead letter a ready record again, its attempts forgotten.
func (g *Group) Redrive(o Offset) error {
	d, ok := g.dead[o]
	if !ok {
		if g.again[o] != nil {
			return nil // a retry
		}
		return fmt.Errorf("%w: %d", ErrNotDead, o)
	}
	delete(g.dead, o)
	if g.again == nil {
		g.again = map[Offset]*reopened{}
	}
	g.again[o] = &reopened{item: item{state: ready}, copied: d.Copied, dirty: true}
	g.ready++
	g.owed.push(timer{0, o})
	g.dirty = true
	g.markDead(o)
	return nil
}

// Seek moves the group to an offset in [head, tail]. Claims, delays and redriven
// records are void, totals begin again, and dead letters at or above the offset are
// forgotten, for those records come again. With ifNew only a group that was never used
// moves. It reports whether it moved.
func (g *Group) Seek(to, head, tail Offset, ifNew bool) (bool, error) {
	if to < head || to > tail {
		return false, fmt.Errorf("%w: seek to %d, the shard holds [%d, %d)", ErrInvalid, to, head, tail)
	}
	if ifNew && g.existed {
		return false, nil
	}
	g.noteAll()
	for n := range g.win.blocks {
		if b := g.win.blocks[n]; b != nil && b.stored || b == nil && g.win.done[n].stored {
			g.goneBlocks = append(g.goneBlocks, g.win.first+uint64(n))
		}
	}
	for o, r := range g.again {
		if r.copied {
			g.goneCopies = append(g.goneCopies, o)
		}
		g.markDead(o)
	}
	for o, d := range g.dead {
		if o >= to {
			if d.Copied {
				g.goneCopies = append(g.goneCopies, o)
			}
			delete(g.dead, o)
			g.markDead(o)
		}
	}
	g.win.reset(to)
	g.again, g.timers, g.owed, g.owners = nil, nil, nil, owners{}
	g.ready, g.delayed, g.claimed = 0, 0, 0
	g.acked, g.discarded, g.lost, g.skipped = 0, 0, 0, 0
	g.start, g.position, g.next, g.handed = to, to, to, to
	g.holder = ""
	g.dirty, g.existed = true, true
	return true, nil
}
