package meta

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// LocalOptions configures a Local store.
type LocalOptions struct {
	// Log is how the metadata log is opened. Fsync is always OnCommit: a definition
	// that was acknowledged is there after a power cut, whatever the streams' policy.
	Log storage.Options
	// Now is the clock leases are counted on; nil is time.Now.
	Now func() time.Time
	// CompactAbove is the size in bytes of the log above which it is compacted when
	// most of it is superseded; zero is 1 MiB.
	CompactAbove int64
}

// Local is the Store of a single broker: one log, read as key to latest record. All of
// it is kept in memory as well, for metadata is small. Keys that hang on a lease are not
// written to the log: the leases of a single broker end with it.
type Local struct {
	mem  *Memory // the state; Local is what makes it last
	log  *storage.Log
	proj *projection.Projection
	work *projection.Compactor
	mu   sync.Mutex // orders transactions: held from the compares to the applied record
	err  error      // why no more can be written
}

// OpenLocal opens the store in dir, or makes it.
func OpenLocal(ctx context.Context, dir string, o LocalOptions) (*Local, error) {
	l := &Local{mem: NewMemory(MemoryOptions{Now: o.Now})}
	opts := o.Log
	opts.Shard = "metadata"
	opts.Fsync = storage.OnCommit
	opts.SegmentBytes = localSegmentBytes
	opts.Hooks = storage.Hooks{Admit: l.admit}
	log, err := storage.Open(ctx, dir, opts)
	if err != nil {
		return nil, fmt.Errorf("open metadata: %w", err)
	}
	l.log = log
	l.proj = projection.New(projection.EntrySetCodec{}, log.Head())
	compact := projection.CompactOptions{MinBytes: o.CompactAbove}
	if compact.MinBytes == 0 {
		compact.MinBytes = 1 << 20
	}
	l.work = projection.NewCompactor(log, projection.Latest{Projection: l.proj, Copier: projection.EntrySetCodec{}}, compact)
	if err := l.replay(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("read metadata: %w", err), log.Close(ctx))
	}
	return l, nil
}

// localSegmentBytes keeps the segments small, so that compaction gives room back soon.
const localSegmentBytes = 4 << 20

func (l *Local) replay(ctx context.Context) error {
	return projection.Replay(ctx, l.log, l.proj.Applied(), l.log.Next(), l.apply)
}

// apply takes a record that was in the log when it was opened.
func (l *Local) apply(rec *segment.Record) error {
	if err := l.proj.Apply(rec); err != nil {
		return err
	}
	if rec.Kind == segment.KindGenerationStart {
		return nil
	}
	m := l.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	var puts []Entry
	stamp, err := projection.ReadEntrySet(rec.Payload, func(e projection.Entry) error {
		if e.Delete {
			delete(m.mu.keys, string(e.Key))
			return nil
		}
		puts = append(puts, Entry{Key: string(e.Key), Value: append([]byte{}, e.Value...)})
		return nil
	})
	version := Version(stamp)
	if err != nil {
		return &projection.UnreadableError{Offset: rec.Offset, Err: err}
	}
	for _, e := range puts {
		e.Version = version
		m.mu.keys[e.Key] = e
	}
	// A restated entry is older than what was written before it; versions only rise.
	m.mu.version = max(m.mu.version, version)
	m.mu.floor = m.mu.version
	return nil
}

// admit refuses a compaction copy that was overtaken. Transactions and compaction take
// turns (mu), so nothing is ever in flight beside a copy.
func (l *Local) admit(b *storage.Batch, _ storage.Offset) error {
	if c, ok := b.User.(*projection.Copy); ok && c.Superseded(l.proj, &projection.Pending{}) {
		return projection.ErrSuperseded
	}
	return nil
}

// Get implements Store.
func (l *Local) Get(ctx context.Context, key string) (Entry, error) { return l.mem.Get(ctx, key) }

// List implements Store.
func (l *Local) List(ctx context.Context, prefix, after string, limit int) (Page, error) {
	return l.mem.List(ctx, prefix, after, limit)
}

// Watch implements Store.
func (l *Local) Watch(ctx context.Context, prefix string, after Version) (Watcher, error) {
	return l.mem.Watch(ctx, prefix, after)
}

// Grant implements Store.
func (l *Local) Grant(ctx context.Context, ttl time.Duration) (LeaseID, error) {
	return l.mem.Grant(ctx, ttl)
}

// KeepAlive implements Store.
func (l *Local) KeepAlive(ctx context.Context, id LeaseID) (time.Duration, error) {
	return l.mem.KeepAlive(ctx, id)
}

// Revoke implements Store.
func (l *Local) Revoke(ctx context.Context, id LeaseID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mem.Revoke(ctx, id)
}

// Txn implements Store. A transaction is applied when its record is on the device; if
// that cannot be said, the store stops writing until it is opened again, since what it
// holds in memory and what the log holds might differ.
func (l *Local) Txn(ctx context.Context, compares []Compare, ops []Op) (Version, error) {
	if err := CheckTxn(compares, ops); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, errors.Join(ErrUnknownOutcome, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return 0, fmt.Errorf("%w: %w", ErrUnavailable, l.err)
	}
	version, err := l.plan(compares, ops)
	if err != nil || len(ops) == 0 {
		return version, err
	}
	payload := projection.AppendEntrySet(nil, uint64(version), logged(ops))
	b := &storage.Batch{Payloads: [][]byte{payload}, UseReserve: true}
	// The wait is not the caller's to end: an answer that is known to be written must
	// be in memory before the next transaction compares against it.
	if err := l.log.Append(context.WithoutCancel(ctx), b); err != nil {
		if errors.Is(err, storage.ErrUnknownOutcome) {
			l.err = fmt.Errorf("metadata log: %w", err)
			return 0, fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
		}
		return 0, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	rec := segment.Record{Offset: b.First, Payload: payload, Size: segment.RecordHeaderSize + len(payload)}
	if err := l.proj.Apply(&rec); err != nil {
		l.err = err
		return 0, fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	}
	if version, err = l.settle(ops); err != nil {
		l.err = err
		return 0, fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	}
	l.compact(ctx)
	return version, nil
}

// plan says which version the transaction will have, or why it is refused.
func (l *Local) plan(compares []Compare, ops []Op) (Version, error) {
	m := l.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expireLocked()
	if err := m.admitLocked(compares, ops); err != nil {
		return 0, err
	}
	if len(ops) == 0 {
		return m.mu.version, nil
	}
	return m.mu.version + 1, nil
}

// settle applies a transaction whose record is on the device. A lease that ended while
// it was written takes its keys with it, as if it had ended just after.
func (l *Local) settle(ops []Op) (Version, error) {
	m := l.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	applied := make([]Op, len(ops))
	for i, op := range ops {
		if op.Lease != 0 && m.mu.leases[op.Lease] == nil {
			op = Delete(op.Key)
		}
		applied[i] = op
	}
	return m.txnLocked(nil, applied)
}

// logged is what the record says of ops. A key that hangs on a lease is a delete there:
// whatever it held before is gone with this write, after a restart too.
func logged(ops []Op) []projection.Entry {
	entries := make([]projection.Entry, len(ops))
	for i, op := range ops {
		entries[i] = projection.Entry{Delete: op.Delete || op.Lease != 0, Key: []byte(op.Key), Value: op.Value}
	}
	return entries
}

// compact gives back what is superseded. A failure is not the transaction's: the log
// is as good as before, and the next one tries again.
func (l *Local) compact(ctx context.Context) {
	if !l.work.Due() {
		return
	}
	before := l.proj.Applied()
	_, err := l.work.Segment(context.WithoutCancel(ctx))
	if err == nil || l.log.Next() > before {
		// The copies went through the log, not through Txn: read them in.
		if err := l.proj.CatchUp(context.WithoutCancel(ctx), l.log, l.log.Next()); err != nil {
			l.err = fmt.Errorf("metadata log: %w", err)
		}
	}
}

// Close closes the log. Waiting watchers end with ErrClosed.
func (l *Local) Close(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = ErrClosed
	}
	l.mem.Close()
	return l.log.Close(ctx)
}

var _ interface {
	Store
	Close(context.Context) error
} = (*Local)(nil)
