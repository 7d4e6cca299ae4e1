package partition

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// keyedState is what a keyed log is read into. Admit and Revert run under the log's pen;
// Apply in offset order, one record at a time, never beside another Apply but beside the
// other two.
type keyedState interface {
	Admit(b *storage.Batch, next storage.Offset) error
	Apply(rec *segment.Record) error
	// Revert forgets what was admitted at next or after it. What was admitted below is
	// written: it stands, and is applied later.
	Revert(next storage.Offset)
}

// keyed is a log that is read as key to latest: what caches, counters and the groups of
// a stream shard share. Its owner says what the records mean (into) and what is still
// needed of them (the compactor's reading).
type keyed struct {
	name    string
	log     *storage.Log
	into    keyedState
	compact *projection.Compactor
	// changed is told, after Apply, how far the state goes now; nil if nobody waits.
	changed func(next storage.Offset)
	// failing is told that the shard is out of service from now on; nil if nobody waits.
	failing func(err error)
	onError func(what string, err error)
	// onCompacted is told of a compaction that wrote or gave back something; nil if nobody
	// waits.
	onCompacted func(CompactEvent)

	// rec is the record that stable has applied: one at a time, and no allocation for each.
	rec segment.Record

	stopped    atomic.Pointer[error] // why nothing new is taken in: it is closed, or about to be
	failed     atomic.Pointer[error] // why it is out of service, its log open still
	applied    atomic.Uint64
	since      atomic.Int64 // bytes written since compaction was last considered
	compacting atomic.Bool
	background background
	life       context.Context
	end        context.CancelFunc
}

// considerEvery is how many bytes are written between two looks at whether compaction
// is due.
const considerEvery = 1 << 20

// openKeyed opens the log in dir for k, whose name, into, changed and onError are set.
// reading, called once the log is open, says where the state already stands (a snapshot)
// and what compaction needs to know.
func (k *keyed) open(ctx context.Context, dir string, o storage.Options, reading func(*storage.Log) (projection.Reading, error), c projection.CompactOptions) error {
	o.Shard = k.name
	o.Hooks = storage.Hooks{Admit: k.into.Admit, Reverted: k.into.Revert, Stable: k.stable, Reopened: k.reopened}
	log, err := storage.Open(ctx, dir, o)
	if err != nil {
		return err
	}
	k.log = log
	r, err := reading(log)
	if err == nil {
		k.applied.Store(uint64(r.Applied()))
		err = k.catchUp(ctx, log.Stable())
	}
	if err != nil {
		return errors.Join(fmt.Errorf("shard %s: %w", k.name, err), log.Close(context.WithoutCancel(ctx)))
	}
	k.compact = projection.NewCompactor(log, r, c)
	k.life, k.end = context.WithCancel(context.Background())
	k.consider()
	return nil
}

// catchUp applies what the log holds below end.
func (k *keyed) catchUp(ctx context.Context, end storage.Offset) error {
	return projection.Replay(ctx, k.log, storage.Offset(k.applied.Load()), end, func(rec *segment.Record) error {
		if err := k.into.Apply(rec); err != nil {
			return err
		}
		k.applied.Store(uint64(rec.Offset) + 1)
		return nil
	})
}

// stable takes in a group the log has acknowledged.
func (k *keyed) stable(g *storage.Group) {
	if k.failed.Load() != nil {
		return
	}
	defer func() { k.rec = segment.Record{} }() // it holds on to the group's memory
	at := g.First
	for buf := g.Encoded; len(buf) > 0; at++ {
		var n int
		var err error
		if k.rec, n, err = segment.DecodeRecord(buf, at); err == nil {
			err = k.into.Apply(&k.rec)
		}
		if err != nil {
			// The log encoded these bytes from what Admit let through a moment ago: the
			// state cannot be trusted any more.
			k.fail(err)
			return
		}
		buf = buf[n:]
	}
	k.applied.Store(uint64(g.Next))
	if k.changed != nil && g.First < g.Next {
		k.changed(g.Next)
	}
	if k.since.Add(int64(len(g.Encoded))) >= considerEvery {
		k.since.Store(0)
		k.consider()
	}
}

// reopened takes in what a poisoned log turned out to hold. Where there was no descriptor
// to read it with the log is not reopened, and tries again; nothing is wrong with what it
// holds.
func (k *keyed) reopened(from, next storage.Offset) error {
	k.into.Revert(from)
	if err := k.catchUp(k.life, next); storage.IsOutOfFiles(err) {
		return err
	} else if err != nil {
		k.fail(err)
		return nil
	}
	if k.changed != nil {
		k.changed(next)
	}
	return nil
}

// fail takes the shard out of service until it is closed and opened anew: what it holds
// in memory may differ from the log.
func (k *keyed) fail(err error) {
	err = fmt.Errorf("shard %s: %w", k.name, err)
	if !k.failed.CompareAndSwap(nil, &err) {
		return
	}
	if k.onError != nil {
		k.onError("apply", err)
	}
	if k.failing != nil {
		k.failing(err)
	}
}

// serving is why requests are refused; nil while the shard is open.
func (k *keyed) serving() error {
	if err := k.stopped.Load(); err != nil {
		return *err
	}
	if err := k.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// State is what the shard is doing.
func (k *keyed) State() State {
	switch {
	case k.stopped.Load() != nil:
		return Closed
	case k.failed.Load() != nil:
		return Damaged
	}
	switch k.log.Health().State {
	case storage.StatePoisoned:
		return Poisoned
	case storage.StateClosed:
		return Closed
	}
	return Active
}

// Health is why the state is what it is; nil when the shard is active.
func (k *keyed) Health() error {
	if err := k.serving(); err != nil {
		return err
	}
	return k.log.Health().Err
}

// Reopen makes a poisoned log serve again, if the disk lets it. A shard that is out of
// service for what it holds in memory is ErrOpenAnew.
func (k *keyed) Reopen(ctx context.Context) error {
	if err := k.failed.Load(); err != nil {
		return fmt.Errorf("%w: %w", ErrOpenAnew, *err)
	}
	return k.log.Reopen(ctx)
}

// Drive does the queued work; see storage.Log.Drive.
func (k *keyed) Drive(inline bool) { k.log.Drive(inline) }

// Log is the shard's log, for operators.
func (k *keyed) Log() *storage.Log { return k.log }

// consider starts a compaction in the background if one is due and none runs.
func (k *keyed) consider() {
	if k.serving() != nil || !k.compact.Due() || !k.compacting.CompareAndSwap(false, true) {
		return
	}
	k.background.start(func() {
		defer k.compacting.Store(false)
		_, err := k.compactWhile(k.life, func() bool { return k.life.Err() == nil && k.failed.Load() == nil })
		if err != nil && k.life.Err() == nil && k.onError != nil {
			k.onError("compaction", err)
		}
	})
}

// CompactEvent is one compaction of a shard's log: as many of its oldest segments as
// were due.
type CompactEvent struct {
	projection.CompactResult
	Before, After int64 // bytes of the log; what is published meanwhile is in After
	Duration      time.Duration
	Err           error // why it ended early, or nil
}

// compactWhile compacts segment by segment while it is due and wanted. It ends early when
// one is held back by a reader or a copy: the next look tries again.
func (k *keyed) compactWhile(ctx context.Context, wanted func() bool) (total projection.CompactResult, err error) {
	began, before := time.Now(), k.bytes()
	for err == nil && wanted() && k.compact.Due() {
		var res projection.CompactResult
		res, err = k.compact.Segment(ctx)
		total.Copied += res.Copied
		total.Dropped += res.Dropped
		total.Bytes += res.Bytes
		total.Written += res.Written
		if res.Bytes == 0 {
			break
		}
	}
	if k.onCompacted != nil && (total.Bytes > 0 || total.Written > 0) {
		k.onCompacted(CompactEvent{CompactResult: total, Before: before, After: k.bytes(), Duration: time.Since(began), Err: err})
	}
	return total, err
}

// bytes is what the log holds.
func (k *keyed) bytes() (n int64) {
	for _, s := range k.log.Segments() {
		n += s.Bytes
	}
	return n
}

// ErrCompacting: a compaction of the shard runs already.
var ErrCompacting = errors.New("partition: the shard is being compacted")

// Compact runs compaction until nothing more is to be gained, as an operator asks for.
// ErrCompacting when one runs in the background.
func (k *keyed) Compact(ctx context.Context) (total projection.CompactResult, err error) {
	if err := k.serving(); err != nil {
		return total, err
	}
	if !k.compacting.CompareAndSwap(false, true) {
		return total, ErrCompacting
	}
	defer k.compacting.Store(false)
	return k.compactWhile(ctx, func() bool { return true })
}

// stop refuses what is new with why, ends the upkeep and closes the log.
func (k *keyed) stop(ctx context.Context, why error) error {
	k.stopped.CompareAndSwap(nil, &why)
	k.end()
	k.background.stop()
	return k.log.Close(ctx)
}

// closedAs puts the shard's own reason in the place of the log's being closed.
func (k *keyed) closedAs(err error) error {
	if errors.Is(err, storage.ErrClosed) {
		if why := k.serving(); why != nil {
			return why
		}
		return ErrClosed
	}
	return err
}
