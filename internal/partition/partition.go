package partition

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/vfs"
)

// Defaults of Options.
const (
	DefaultQueueCapacity    = 1024
	DefaultMaxQueueCapacity = 4096
	DefaultQueueBytes       = 16 << 20
	DefaultRingBytes        = 4 << 20
	DefaultReplayBatches    = 1024
	DefaultReplayBytes      = 1 << 20
	DefaultBlockFor         = 5 * time.Second
	DefaultSnapshotEvery    = 64 << 20
	DefaultHeldBytes        = 8 << 20
	DefaultReadPageBytes    = 4 << 20
)

// Options say how a shard is kept.
type Options struct {
	// Storage is how the log is kept; Hooks are set by Open. Unused in memory.
	Storage storage.Options
	// Name is the shard in errors and events: tenant/namespace/stream/shard.
	Name string
	// MaxRecordBytes bounds a payload; 0 is storage.DefaultMaxRecordBytes. With Groups it
	// is 64 MiB less 1 KiB at the most.
	MaxRecordBytes int
	// StorePublisher keeps the publisher's principal with each record.
	StorePublisher bool
	// Budget bounds publishes in flight; nil is no bound but the log's queue.
	Budget *Budget
	// Counters are those of the stream; nil makes some.
	Counters *Counters
	// RingBytes bounds the ring of recent groups, Rings those of all shards together.
	RingBytes int
	Rings     *stream.RingBudget
	// Overflow, QueueCapacity (default and most, in batches), QueueBytes, BlockFor,
	// ReplayBatches, ReplayBytes and HeldBytes (publishes held back while a subscriber
	// blocks) apply to in-memory shards.
	Overflow         stream.Overflow
	QueueCapacity    int
	MaxQueueCapacity int
	QueueBytes       int
	BlockFor         time.Duration
	ReplayBatches    int
	ReplayBytes      int
	HeldBytes        int
	// ReadPageBytes bounds the payload of one page of Read, unless a single record is
	// larger; 0 is DefaultReadPageBytes.
	ReadPageBytes int
	// SnapshotEvery is how many payload bytes are written between two snapshots of the
	// producers.
	SnapshotEvery int64
	// NextID gives subscription ids; nil counts from 1 in this shard.
	NextID func() uint64
	// Gate stands between stable and committed; nil on a single replica.
	Gate Gate
	// Groups is where the shard's consumer groups live; nil: it has none.
	Groups *GroupHome
	// Events are told what happened; all optional.
	Events Events
}

// Events are told what a shard's owner may want to log. They must not block.
type Events struct {
	// OnSlow: a subscription was ended because it held back publishes for too long.
	OnSlow func(shard string, s *Subscription)
	// OnDropped: a subscription has ended whose queue left out batches; see
	// Subscription.Dropped. The protocol has no word for it.
	OnDropped func(shard string, s *Subscription)
	// OnTornBatch: the log ended within a producer's batch, which was cut off.
	OnTornBatch func(shard string, from, tail storage.Offset)
	// OnProducersRebuilt: the producers were read back from the log's records.
	OnProducersRebuilt func(shard string, from, to storage.Offset)
	// OnDamagedRead: records that were acknowledged cannot be read any more. Told once for
	// a shard that is open.
	OnDamagedRead func(shard string, err error)
	// OnSnapshotError: the producer snapshot could not be written; it is tried again.
	OnSnapshotError func(shard string, err error)
}

func (o *Options) defaults() {
	orDefault(&o.MaxRecordBytes, storage.DefaultMaxRecordBytes)
	orDefault(&o.RingBytes, DefaultRingBytes)
	orDefault(&o.QueueCapacity, DefaultQueueCapacity)
	orDefault(&o.MaxQueueCapacity, DefaultMaxQueueCapacity)
	orDefault(&o.QueueBytes, DefaultQueueBytes)
	orDefault(&o.BlockFor, DefaultBlockFor)
	orDefault(&o.ReplayBatches, DefaultReplayBatches)
	orDefault(&o.ReplayBytes, DefaultReplayBytes)
	orDefault(&o.HeldBytes, DefaultHeldBytes)
	orDefault(&o.ReadPageBytes, DefaultReadPageBytes)
	orDefault(&o.SnapshotEvery, DefaultSnapshotEvery)
	if o.Counters == nil {
		o.Counters = new(Counters)
	}
}

func orDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// State is what a shard is doing.
type State uint8

// The states of a shard. Opening and Damaged are those of a shard that has no
// Partition; package broker keeps them.
const (
	Opening  State = iota
	Active         // serves
	Damaged        // the log was refused at open, or what was read from it cannot be trusted
	Poisoned       // reads, refuses publishes until it is reopened
	Closed
)

var stateNames = [...]string{"opening", "active", "damaged", "poisoned", "closed"}

func (s State) String() string { return stateNames[s] }

// Partition is one shard that is open. All methods may be called from several
// goroutines.
type Partition struct {
	name     string
	o        Options
	log      *storage.Log // nil in memory
	memory   *memory      // nil when durable
	gate     Gate
	budget   *Budget
	counters *Counters

	maxRecord      atomic.Int64
	storePublisher atomic.Bool
	stopped        atomic.Pointer[error] // why nothing new is taken in

	// readable is one past the last record that readers may see: stable, and committed
	// where there is a gate. It only rises, but for TruncateTo above it.
	readable  atomic.Uint64
	ring      *stream.Ring
	producers producerState
	commits   commitQueue

	subs   subscribers
	groups atomic.Pointer[Groups] // nil until one is asked for
	opener groupOpener
	// retention is the policy in force.
	retention atomic.Pointer[storage.RetentionPolicy]
	ids       atomic.Uint64

	damageTold sync.Once
	background background
	closeOnce  sync.Once
	closeErr   error
}

// Open opens the shard whose log is in dir, or makes an empty one. It reads what was
// written after the last snapshot of the producers.
func Open(ctx context.Context, dir string, o Options) (*Partition, error) {
	p := newPartition(o)
	if p.o.Storage.FS == nil {
		p.o.Storage.FS = vfs.OS()
	}
	so := p.o.Storage
	so.Shard = o.Name
	// The stream's limit may be raised while the log is open; it is checked here.
	so.MaxRecordBytes = maxBody
	// Retention begins once the groups can say what they need.
	so.RetentionBytes, so.RetentionAge = 0, 0
	so.Hooks = storage.Hooks{Admit: p.onAdmit, Reverted: p.onReverted, Stable: p.onStable, Reopened: p.onReopened}
	if o.Gate != nil {
		so.Hooks.Written = o.Gate.Written
	}
	log, err := storage.Open(ctx, dir, so)
	if err != nil {
		return nil, err
	}
	p.log = log
	if err := p.loadProducers(ctx); err != nil {
		return nil, errors.Join(err, log.Close(context.WithoutCancel(ctx)))
	}
	p.ring = stream.NewRing(p.o.RingBytes, p.o.Rings)
	p.readable.Store(uint64(log.Stable()))
	if o.Gate != nil {
		p.readable.Store(0)
	}
	if err := p.openExistingGroups(ctx); err != nil {
		return nil, errors.Join(err, log.Close(context.WithoutCancel(ctx)))
	}
	p.setRetention(storage.RetentionPolicy{Bytes: o.Storage.RetentionBytes, Age: o.Storage.RetentionAge})
	return p, nil
}

// setMaxRecord bounds payloads, so that groups can copy any of them.
func (p *Partition) setMaxRecord(bytes int) {
	if p.o.Groups != nil {
		bytes = min(bytes, maxBody-letterRoom)
	}
	p.maxRecord.Store(int64(bytes))
}

// setRetention puts a policy in force, within what the groups allow.
func (p *Partition) setRetention(r storage.RetentionPolicy) {
	if p.o.Groups != nil {
		r.Limit = p.retentionLimit
	}
	p.retention.Store(&r)
	p.log.SetRetention(r)
}

// maxBody is the most the format holds for a payload with its publisher.
const maxBody = 64 << 20

// NewMemory makes an in-memory shard.
func NewMemory(o Options) *Partition {
	p := newPartition(o)
	p.memory = newMemory(p)
	return p
}

func newPartition(o Options) *Partition {
	o.defaults()
	p := &Partition{name: o.Name, o: o, gate: o.Gate, budget: o.Budget, counters: o.Counters}
	p.setMaxRecord(o.MaxRecordBytes)
	p.storePublisher.Store(o.StorePublisher)
	return p
}

// Name is the shard in errors and events.
func (p *Partition) Name() string { return p.name }

// Durable says whether the records are in a log.
func (p *Partition) Durable() bool { return p.log != nil }

// Log is the shard's log, nil in memory: for readings of it and for operators.
func (p *Partition) Log() *storage.Log { return p.log }

// Counters are those of the stream.
func (p *Partition) Counters() *Counters { return p.counters }

// Configure changes what may change while the shard is open.
func (p *Partition) Configure(maxRecordBytes int, storePublisher bool, retention storage.RetentionPolicy) {
	p.setMaxRecord(maxRecordBytes)
	p.storePublisher.Store(storePublisher)
	if p.log != nil {
		p.setRetention(retention)
	}
}

// State is what the shard is doing: its log, or its groups if those are worse off.
func (p *Partition) State() State {
	if p.stopped.Load() != nil {
		return Closed
	}
	if p.log != nil {
		switch p.log.Health().State {
		case storage.StatePoisoned:
			return Poisoned
		case storage.StateClosed:
			return Closed
		}
	}
	return p.groupsState()
}

// Health is why the state is what it is; nil when the shard is active.
func (p *Partition) Health() error {
	if err := p.serving(); err != nil {
		return err
	}
	if p.log != nil {
		return errors.Join(p.log.Health().Err, p.groupsHealth())
	}
	return nil
}

// serving is the error that answers every new request, nil while the shard is open.
func (p *Partition) serving() error {
	if err := p.stopped.Load(); err != nil {
		return *err
	}
	return nil
}

// closedAs puts the shard's own reason in the place of the log's being closed.
func (p *Partition) closedAs(err error) error {
	if errors.Is(err, storage.ErrClosed) {
		if why := p.serving(); why != nil {
			return why
		}
		return ErrClosed
	}
	return err
}

// Positions are a shard's places at one moment, each one past a record but Oldest.
type Positions struct {
	Oldest   storage.Offset // the oldest that can be read
	Next     storage.Offset // the offset to be given next
	Stable   storage.Offset
	Readable storage.Offset // what subscribers see
	Live     storage.Offset // Readable without trailing records that hold no event
}

// Positions gives the shard's places.
func (p *Partition) Positions() Positions {
	if p.memory != nil {
		return p.memory.positions()
	}
	r := p.readableNow()
	return Positions{Oldest: p.log.Head(), Next: p.log.Next(), Stable: p.log.Stable(), Readable: r, Live: p.live(r)}
}

func (p *Partition) readableNow() storage.Offset { return storage.Offset(p.readable.Load()) }

// live is end without the generation starts right before it.
func (p *Partition) live(end storage.Offset) storage.Offset {
	starts := p.log.Generations()
	for i := len(starts) - 1; i >= 0 && end > 0 && starts[i].Start >= end-1; i-- {
		if starts[i].Start == end-1 {
			end--
		}
	}
	return end
}

// Close refuses what is new with ErrClosed, finishes what is in flight, flushes, and
// writes the producer snapshot. Subscriptions end with ErrClosed after what they can
// read without the disk. ctx ends the waiting; the log is closed in any case.
func (p *Partition) Close(ctx context.Context) error { return p.stop(ctx, ErrClosed) }

// Delete is Close for a stream that was deleted: requests and subscriptions get
// ErrDeleted, those in flight their outcome.
func (p *Partition) Delete(ctx context.Context) error { return p.stop(ctx, ErrDeleted) }

func (p *Partition) stop(ctx context.Context, why error) error {
	p.closeOnce.Do(func() {
		p.stopped.Store(&why)
		if p.memory != nil {
			p.memory.stop(why)
			return
		}
		p.closeErr = errors.Join(p.closeGroups(ctx, why), p.stopLog(ctx))
		p.subs.stop(why)
	})
	return p.closeErr
}

// background runs the shard's short-lived goroutines, none after stop.
type background struct {
	mu      sync.Mutex
	stopped bool
	group   sync.WaitGroup
}

func (b *background) start(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.stopped {
		b.group.Go(f)
	}
}

// stop waits for those that run.
func (b *background) stop() {
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	b.group.Wait()
}
