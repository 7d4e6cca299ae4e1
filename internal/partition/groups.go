package partition

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// GroupsOptions say how the consumer groups of a stream shard are kept.
type GroupsOptions struct {
	// Storage is how their log is kept; Hooks are set when it is opened. Its Fsync is the
	// stream's: an ack is as durable as the stream's records.
	Storage storage.Options
	// Name is the shard in errors and events: tenant/namespace/stream/shard.
	Name string
	// MaxWait bounds a long poll; 0 is 30 s.
	MaxWait time.Duration
	// PollBytes bounds the payloads of one poll, of which one is handed out in any case; 0
	// is DefaultPollBytes.
	PollBytes int
	// Defaults of groups that are not configured; zero fields are package queue's.
	Defaults queue.Config
	// Now is the clock of claims and delays; nil is time.Now.
	Now func() time.Time
	// OnError is told what went wrong in the background.
	OnError func(shard, what string, err error)
	// OnCompacted is told of compactions of the log.
	OnCompacted func(shard string, e CompactEvent)
	// OnLost is told of records that retention removed before a group settled them.
	OnLost func(shard, group string, records uint64)
	// OnClamped is told of groups that were past the end of their stream.
	OnClamped func(shard string, groups int)
}

// Errors of group requests beside those of package queue.
var (
	// ErrGroupsReloading: the group log took back a decision; the state is being read
	// again. Nothing was done.
	ErrGroupsReloading = errors.New("partition: the groups' state is being read again")
	// ErrNoGroups: an in-memory stream has none.
	ErrNoGroups = errors.New("partition: consumer groups need a durable stream")
)

// Groups are the consumer groups of one stream shard: one log of decisions, and the
// state they lead to.
//
// A request changes the state at once, under mu, and joins the decision that is open;
// Drive writes the decision as one record, and its requests are answered when the record
// is as durable as the stream's policy says. A request that changes nothing is answered
// behind what was decided before it. If the log takes a decision back, every request of
// it and of those behind it is refused, and the state is read from the log again; claims
// and delays, which the log does not keep, stand as they did before those requests.
type Groups struct {
	keyed
	o       GroupsOptions
	stream  *Partition
	proj    *projection.Projection
	pending projection.Pending
	waiting atomic.Bool // some poll waits

	pages       sync.Pool    // of *storage.Page, of the stream
	claimings   sync.Pool    // of *claiming
	recordBytes atomic.Int64 // of a payload, as last read

	copying atomic.Int32  // CopyLetters that run
	copies  atomic.Uint64 // one past the newest copy of a payload, in the groups' log

	mu struct {
		sync.Mutex
		shard     *queue.Shard
		epoch     uint64 // counts what was taken back
		broken    bool   // the state is not what the log says
		reloading bool   // a goroutine is about to mend that
		// undelivered waits for that. It is of the polls under way: there are no new ones meanwhile.
		undelivered []undelivered
		open        *decision
		dirty       []*queue.Group
		flying      int           // decisions handed to the log and not answered
		refused     []*decision   // those of flying that the log did not take; see unlock
		landed      chan struct{} // closed when flying is 0; nil while nobody waits for that
		waits       map[string]map[*pollWait]struct{}
	}
}

// decision gathers requests until they are written: as one batch, whose records hold what
// must be written together. It is the log's from sealLocked until decisionDone, which runs
// once, answers its requests and lets its memory serve another.
type decision struct {
	epoch uint64
	// entries are those of the parts, one behind the other. parts says where each ends:
	// what is added as one stays in one record. records says, once it is sealed, where
	// each record ends.
	entries        []projection.Entry
	parts, records []int
	bytes          int    // of the parts, until it is sealed
	room           []byte // what the groups' own entries are made of
	encoded        []byte // the payloads of batch
	answers        []answer
	mark           queue.Mark // of the state, once it is sealed
	batch          storage.Batch
	g              *Groups
}

var decisions = sync.Pool{New: func() any { return new(decision) }}

type answer struct {
	err  error
	done func(error)
}

// Bounds of a decision: the next request begins another.
const (
	maxAnswers       = 1024
	maxDecisionBytes = 1 << 20 // of parts, and of a record that holds more than one
)

// decisionKept bounds the bytes that a decision keeps for another; maxAnswers bounds what
// its lists keep.
const decisionKept = 16 << 10

// release lets a decision that is answered serve another.
func (d *decision) release() {
	if cap(d.room)+cap(d.encoded) > decisionKept || cap(d.entries) > maxAnswers {
		return
	}
	clear(d.entries)
	clear(d.answers)
	clear(d.batch.Payloads)
	*d = decision{
		entries: d.entries[:0], parts: d.parts[:0], records: d.records[:0], room: d.room[:0], encoded: d.encoded[:0],
		answers: d.answers[:0], batch: storage.Batch{Payloads: d.batch.Payloads[:0]},
	}
	decisions.Put(d)
}

// add has entries written together.
func (d *decision) add(entries []projection.Entry) {
	d.entries = append(d.entries, entries...)
	d.parts = append(d.parts, len(d.entries))
	d.bytes += projection.EntrySetSize(entries)
}

// seal lays out what was added, and what the groups have to say, in records.
func (d *decision) seal(dirty []*queue.Group) {
	for _, group := range dirty {
		from := len(d.entries)
		d.entries, d.room = group.AppendEntries(d.entries, d.room)
		if len(d.entries) > from {
			d.parts = append(d.parts, len(d.entries))
		}
	}
	from, room := 0, 0
	for _, end := range d.parts {
		size := projection.EntrySetSize(d.entries[from:end])
		if size > room {
			d.records = append(d.records, end)
			room = maxDecisionBytes
		}
		d.records[len(d.records)-1] = end
		room -= size
		from = end
	}
	payloads := d.batch.Payloads
	d.each(func(entries []projection.Entry) {
		at := len(d.encoded)
		d.encoded = projection.AppendEntrySet(d.encoded, 0, entries)
		payloads = append(payloads, d.encoded[at:len(d.encoded):len(d.encoded)])
	})
	d.batch = storage.Batch{User: d, Done: decisionDone, UseReserve: true, Barrier: len(payloads) == 0, Payloads: payloads}
}

// each calls f for the entries of each record of a sealed decision.
func (d *decision) each(f func(entries []projection.Entry)) {
	from := 0
	for _, end := range d.records {
		f(d.entries[from:end])
		from = end
	}
}

// newGroups opens the groups whose log is in dir, or makes an empty one.
func newGroups(ctx context.Context, dir string, stream *Partition, o GroupsOptions) (*Groups, error) {
	orDefault(&o.MaxWait, DefaultPollWait)
	orDefault(&o.PollBytes, DefaultPollBytes)
	if o.Now == nil {
		o.Now = time.Now
	}
	g := &Groups{o: o, stream: stream}
	g.name = o.Name
	g.pages.New = func() any { return new(storage.Page) }
	g.claimings.New = newClaiming
	g.into = (*groupsLog)(g)
	g.failing = func(error) { g.wakeAll() }
	if o.OnError != nil {
		g.onError = func(what string, err error) { o.OnError(o.Name, what, err) }
	}
	if o.OnCompacted != nil {
		g.onCompacted = func(e CompactEvent) { o.OnCompacted(o.Name, e) }
	}
	g.mu.waits = map[string]map[*pollWait]struct{}{}
	pace := projection.NewPace(DefaultCompactPace)
	so := o.Storage
	so.MaxRecordBytes = maxBody // a copy of any payload fits; see letterRoom
	err := g.open(ctx, dir, so, func(log *storage.Log) (projection.Reading, error) {
		g.proj = projection.New(projection.EntrySetCodec{}, log.Head())
		return projection.Latest{Projection: g.proj, Copier: projection.EntrySetCodec{}}, nil
	}, projection.CompactOptions{Pace: pace, MinBytes: 4 << 20})
	if err != nil {
		return nil, err
	}
	shard, clamped, err := g.load(ctx)
	if err == nil {
		g.mu.shard = shard
		if clamped > 0 {
			err = g.storeClamped(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("groups of %s: %w", o.Name, err), g.stop(context.WithoutCancel(ctx), ErrClosed))
	}
	return g, nil
}

// groupsLog is the Groups as their log sees them.
type groupsLog Groups

// Admit implements keyedState.
func (l *groupsLog) Admit(b *storage.Batch, next storage.Offset) error {
	g := (*Groups)(l)
	switch u := b.User.(type) {
	case *decision:
		g.mu.Lock()
		stale := u.epoch != g.mu.epoch
		g.mu.Unlock()
		if stale {
			return ErrGroupsReloading
		}
		u.each(func(entries []projection.Entry) {
			for i := range entries {
				g.pending.Set(entries[i].Key, projection.InFlight{Ref: projection.Ref{Offset: next}, Deleted: entries[i].Delete})
			}
			next++
		})
	case *projection.Copy:
		if u.Superseded(g.proj, &g.pending) {
			return projection.ErrSuperseded
		}
	}
	return nil
}

// Apply implements keyedState.
func (l *groupsLog) Apply(rec *segment.Record) error {
	g := (*Groups)(l)
	if err := g.proj.Apply(rec); err != nil {
		return err
	}
	g.pending.Settle(rec.Offset)
	return nil
}

// Revert implements keyedState. The state already has what was decided after next, so
// that it has to be read again.
func (l *groupsLog) Revert(next storage.Offset) {
	g := (*Groups)(l)
	g.pending.Revert(next)
	g.mu.Lock()
	g.distrustLocked()
	g.mu.Unlock()
}

func (g *Groups) now() segment.Micros { return segment.Micros(g.o.Now().UnixMicro()) }

// GroupOp changes a group's state or looks at it; it runs under the shard's lock and must
// not block. head and tail are what the stream's log holds.
type GroupOp func(now segment.Micros, group *queue.Group, head, tail storage.Offset) error

// Submit runs op on a group and has done called with its error when everything it
// depends on is durable: at once, if it is so already, else when Drive has made it so.
// With create the group is made if it is not there; else op gets nil. An error means that
// op did not run and done will not.
func (g *Groups) Submit(name string, create bool, op GroupOp, done func(error)) error {
	return g.submit(name, create, true, op, done)
}

// submit is Submit. wakes: op may have made something ready for polls that wait.
func (g *Groups) submit(name string, create, wakes bool, op GroupOp, done func(error)) error {
	if err := g.log.Health().Err; err != nil {
		return g.closedAs(err)
	}
	head, tail := g.stream.log.Head(), g.stream.readableNow()
	settled, err := g.decide(name, create, wakes, op, done, head, tail)
	if settled {
		done(err)
		return nil
	}
	return err
}

// decide runs op and adds it to the open decision; settled says that there is nothing to
// wait for, and err is then op's.
func (g *Groups) decide(name string, create, wakes bool, op GroupOp, done func(error), head, tail storage.Offset) (settled bool, err error) {
	g.mu.Lock()
	defer g.unlock()
	if err := g.serving(); err != nil { // under mu: close answers what was let in before
		return false, err
	}
	group, err := g.groupLocked(name, create, head)
	if err != nil {
		return false, err
	}
	var lost uint64
	var before queue.Micros
	var timed bool
	if group != nil {
		lost = group.Trim(head)
		before, timed = group.NextDeadline()
	}
	err = op(g.now(), group, head, tail)
	quiet := g.quietLocked(group)
	if !quiet {
		g.joinLocked(group, err, done)
	}
	if lost > 0 && g.o.OnLost != nil {
		g.o.OnLost(g.name, name, lost)
	}
	if group != nil {
		// Those that wait look again when there may be something, or sooner than they
		// know of.
		at, ok := group.NextDeadline()
		if wakes && group.Offers(tail) || ok && (!timed || at < before) {
			g.wakeLocked(name)
		}
		g.forgetLocked(group)
	}
	if quiet {
		g.mu.shard.Confirm(g.mu.shard.Mark())
		return true, err
	}
	return false, nil
}

// quietLocked reports that the state is what the log holds: nothing has been decided that
// is not durable, by this group or by another. That the log is well is asked last: one
// that fails says so before the decisions in flight are given back.
func (g *Groups) quietLocked(group *queue.Group) bool {
	return g.mu.open == nil && g.mu.flying == 0 && len(g.mu.dirty) == 0 && (group == nil || !group.Dirty()) && g.log.Health().Err == nil
}

// forgetLocked drops a group that was named and nothing else: nothing of it is in the
// log, and nobody waits at it.
func (g *Groups) forgetLocked(group *queue.Group) {
	if !group.Exists() && !group.Dirty() && len(g.mu.waits[group.Name()]) == 0 {
		g.mu.shard.Forget(group.Name())
	}
}

func (g *Groups) groupLocked(name string, create bool, head storage.Offset) (*queue.Group, error) {
	if g.mu.broken {
		g.reloadLocked()
		return nil, ErrGroupsReloading
	}
	group, ok := g.mu.shard.Lookup(name)
	if ok {
		return group, nil
	}
	if err := queue.ValidGroup(name); err != nil || !create {
		return nil, err
	}
	group, err := g.mu.shard.Group(name, head)
	if err == nil && g.o.Defaults != (queue.Config{}) {
		err = group.Configure(g.o.Defaults)
	}
	return group, err
}

// joinLocked adds a request to the open decision.
func (g *Groups) joinLocked(group *queue.Group, err error, done func(error)) {
	d := g.openLocked()
	if done != nil {
		d.answers = append(d.answers, answer{err, done})
	}
	if group != nil && group.Dirty() {
		g.markLocked(group)
	}
	if len(d.answers) >= maxAnswers || d.bytes >= maxDecisionBytes {
		g.sealLocked()
	}
}

func (g *Groups) openLocked() *decision {
	if g.mu.open == nil {
		g.mu.open = decisions.Get().(*decision)
		g.mu.open.epoch, g.mu.open.g = g.mu.epoch, g
	}
	return g.mu.open
}

func (g *Groups) markLocked(group *queue.Group) {
	for _, other := range g.mu.dirty {
		if other == group {
			return
		}
	}
	g.mu.dirty = append(g.mu.dirty, group)
}

// sealLocked hands the open decision to the log.
func (g *Groups) sealLocked() {
	d := g.mu.open
	if d == nil {
		return
	}
	g.mu.open = nil
	d.seal(g.mu.dirty)
	g.mu.dirty = g.mu.dirty[:0]
	d.mark = g.mu.shard.Mark()
	g.mu.flying++
	if err := g.log.Enqueue(&d.batch); err != nil {
		// The state has changed and the log does not say so.
		d.batch.Err = err
		g.distrustLocked()
		g.mu.refused = append(g.mu.refused, d)
	}
}

// unlock unlocks mu and answers the decisions that the log did not take. Whoever may have
// sealed one unlocks so: it needs no other goroutine, and none is left when the shard
// ends.
func (g *Groups) unlock() {
	refused := g.mu.refused
	g.mu.refused = nil
	g.mu.Unlock()
	for _, d := range refused {
		decisionDone(&d.batch)
	}
}

func decisionDone(b *storage.Batch) {
	d := b.User.(*decision)
	g := d.g
	g.mu.Lock()
	if b.Err == nil {
		g.mu.shard.Confirm(d.mark) // the state is that of d: it is replaced when nothing flies
	}
	if g.mu.flying--; g.mu.flying == 0 && g.mu.landed != nil {
		close(g.mu.landed)
		g.mu.landed = nil
	}
	g.mu.Unlock()
	err := b.Err
	if err != nil {
		err = g.closedAs(err)
	}
	for _, a := range d.answers {
		if err != nil {
			a.done(err)
		} else {
			a.done(a.err)
		}
	}
	d.release()
}

// Drive writes what is decided; see storage.Log.Drive.
func (g *Groups) Drive(inline bool) {
	g.mu.Lock()
	g.sealLocked()
	g.unlock()
	g.log.Drive(inline)
}

// Do is Submit, Drive and the wait for the answer. ctx ends the waiting, not what was
// decided.
func (g *Groups) Do(ctx context.Context, name string, create bool, op GroupOp) error {
	return g.do(ctx, name, create, true, op)
}

func (g *Groups) do(ctx context.Context, name string, create, wakes bool, op GroupOp) error {
	done := make(chan error, 1)
	if err := g.submit(name, create, wakes, op, func(err error) { done <- err }); err != nil {
		return err
	}
	g.Drive(true)
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return errors.Join(storage.ErrUnknownOutcome, ctx.Err())
	}
}

// DeleteGroup forgets a group. It reports whether there was one.
func (g *Groups) DeleteGroup(ctx context.Context, name string) (existed bool, err error) {
	err = g.Do(ctx, name, false, func(_ segment.Micros, group *queue.Group, _, _ storage.Offset) error {
		if group == nil {
			return nil
		}
		// What the group decided before goes to the log with its end, in this order.
		var entries []projection.Entry
		entries, existed = g.mu.shard.Delete(name, group.Encode(nil))
		g.openLocked().add(entries)
		return nil
	})
	return existed, err
}

// close refuses what is new with why, finishes what is in flight and closes the log.
// Polls that wait are answered empty.
func (g *Groups) close(ctx context.Context, why error) error {
	g.stopped.CompareAndSwap(nil, &why)
	g.Drive(true) // what is decided has its answers coming, whether its requests drive it or not
	err := g.stop(ctx, why)
	g.wakeAll()
	return err
}

// Names lists the groups that exist; one that was only named does not.
func (g *Groups) Names() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var names []string
	g.mu.shard.Each(func(group *queue.Group) {
		if group.Exists() {
			names = append(names, group.Name())
		}
	})
	return names
}

// GroupStats is a group with its books.
type GroupStats struct {
	Group string
	queue.Stats
}

// NoGroup are the books of a group that the shard has not seen: what it would have before
// it.
func (p *Partition) NoGroup() queue.Stats {
	if p.log == nil {
		return queue.Stats{}
	}
	return queue.StatsOfNone(p.log.Head(), p.readableNow())
}

// GroupStats gives the books of at most limit groups of the shard, ordered by name, and
// how many there are.
func (p *Partition) GroupStats(limit int) (stats []GroupStats, groups int) {
	g := p.groups.Load()
	if g == nil {
		return nil, 0
	}
	head, tail := p.log.Head(), p.readableNow()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.shard.Each(func(group *queue.Group) {
		if !group.Exists() {
			return
		}
		if groups++; groups > limit {
			return
		}
		if lost := group.Trim(head); lost > 0 && g.o.OnLost != nil {
			g.o.OnLost(g.name, group.Name(), lost)
		}
		stats = append(stats, GroupStats{group.Name(), group.Stats(g.now(), head, tail)})
	})
	return stats, groups
}
