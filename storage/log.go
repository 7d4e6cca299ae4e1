package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felixlog/felix/storage/vfs"
)

// State is what a log does about appends.
type State uint8

const (
	// StateServing: appends are taken.
	StateServing State = iota
	// StatePoisoned: appends are refused until Reopen; reads work.
	StatePoisoned
	// StateClosed: nothing works.
	StateClosed
)

// String is the state's name in health reports.
func (s State) String() string {
	switch s {
	case StateServing:
		return "serving"
	case StatePoisoned:
		return "poisoned"
	}
	return "closed"
}

// Health says whether a log serves, and why not.
type Health struct {
	State State
	Err   error // a *PoisonedError when poisoned
}

// Log is one durable log in one directory. Its methods may be called from several
// goroutines, unless it is in Manual mode.
type Log struct {
	dir     string
	shard   string
	fs      vfs.FS
	disk    *Disk
	ownDisk bool
	opt     Options

	// list is what readers work on; the pen and the exclusive operations replace it.
	list atomic.Pointer[segmentList]

	// Positions, each one past a record; see the package's first invariant. It does not
	// hold for the moment in which the log is cut.
	written atomic.Uint64 // in the file
	durable atomic.Uint64 // flushed; moved by the flush token's holder
	stable  atomic.Uint64 // as durable as the policy acknowledges
	maybe   atomic.Uint64 // one past what a write that poisoned the log may have left; see Next
	cuts    atomic.Uint64 // counts cuts of what readers may be looking at

	gens       atomic.Pointer[[]GenerationStart]
	recovery   atomic.Pointer[RecoveryReport]
	retention  atomic.Pointer[RetentionPolicy]
	dirtySince atomic.Int64 // Unix nanoseconds of the oldest write not flushed
	submitted  atomic.Bool  // queued for a worker
	tendAt     atomic.Int64 // background work is due when the active segment gets here
	allocated  atomic.Int64 // blocks of the active segment are reserved up to here
	markMoved  atomic.Bool  // the mark on disk is behind, and to be written
	pinned     atomic.Pointer[segmentFile]

	// Of the tending token's holder.
	markPos       filePos     // what durable.mark on disk says
	pushed        filePos     // dirty data is pushed out up to here
	prepareFailed SegmentID   // the active segment whose next could not be made
	undropped     []SegmentID // trimmed and perhaps still on disk, oldest first
	agenda        agenda
	due           due // guarded by the disk's mutex
	holds         holds

	mu  logMu
	pen pen

	work sync.WaitGroup // goroutines of this log
}

// logMu is the state that is shared by those who hand work on to one another. It is held
// for a few instructions, never across I/O, a callback or a wait.
//
// pen, flushing, applying and tending are tokens: who set one alone does that work, and
// clears it. exclusive is all of them.
type logMu struct {
	sync.Mutex
	state   State
	closing bool // Close was called: nothing new is accepted
	poison  *PoisonedError
	passing bool // a poisoned log lacks room or descriptors, and tries to reopen by itself
	spoilt  bool // the list of segments is not what is on disk: files were changed half-way

	queue    batchQueue // accepted, no offset yet
	inBytes  int64      // of batches accepted and not completed
	inCount  int
	unstable groupQueue // written, waiting for a flush
	apply    groupQueue // outcome known, to be completed

	pen, flushing, applying, tending bool
	flushOff                         bool // a flush found no descriptor; taskFlush tries again
	exclusive                        bool
	waiting                          int // for a token, on free
	free                             sync.Cond
	exclusives                       int // of those, waiting for exclusive

	pumps  int  // goroutines that will look for work again before they leave
	runner bool // one of them is the log's own

	active     *segmentFile   // the pen's, as far as it is published
	activePos  int64          // end of what is written to it
	activeSum  uint32         // checksum of the last record
	activeNext Offset         // one past it
	sealing    []*segmentFile // no longer written, not sealed, oldest first
	prepared   *prepared      // the next segment's empty file
	durablePos filePos        // how far the device is known to have the log
	lastBatch  int            // batches in the last group
	spare      *Group         // for the next append, so that a lone appender does without the pool
	preparing  bool           // somebody makes the next segment's file
	tendAgain  bool           // asked for while it was under way
}

// Dir is the log's directory.
func (l *Log) Dir() string { return l.dir }

// Shard is the log's name in errors and events.
func (l *Log) Shard() string { return l.shard }

// Head is the oldest offset that can be read.
func (l *Log) Head() Offset { return l.list.Load().head() }

// Next is the offset the next record gets, those of a write under way left out. Of a log
// that a failed write has poisoned it is behind what that may have left.
func (l *Log) Next() Offset { return Offset(max(l.written.Load(), l.maybe.Load())) }

// Written is one past the last record in the file.
func (l *Log) Written() Offset { return Offset(l.written.Load()) }

// Durable is one past the last record known to be on the device, in any mode.
func (l *Log) Durable() Offset { return Offset(l.durable.Load()) }

// Stable is one past the last record that is as durable as the policy acknowledges:
// Durable under OnCommit, else Written.
func (l *Log) Stable() Offset { return Offset(l.stable.Load()) }

// LastTimestamp is the greatest time of the newest segment that has records.
func (l *Log) LastTimestamp() Micros {
	sl := l.list.Load()
	for i := len(sl.all) - 1; i >= 0; i-- {
		if t := sl.all[i].last.Load(); t != 0 {
			return Micros(t)
		}
	}
	return 0
}

// Health says whether the log takes appends.
func (l *Log) Health() Health {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.mu.state {
	case StatePoisoned:
		return Health{StatePoisoned, l.mu.poison}
	case StateClosed:
		return Health{StateClosed, ErrClosed}
	}
	return Health{}
}

// Recovery says what the last Open or Reopen found.
func (l *Log) Recovery() RecoveryReport { return *l.recovery.Load() }

func (l *Log) unsynced() (int64, time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.dirty(), time.Unix(0, l.dirtySince.Load())
}

// Open opens the log in dir, making it if there is none, and repairs what a crash may
// have left there. It fails with *DamagedError, leaving every byte as it was, where
// stored records are not what was written; with *OptionError for settings that cannot be.
func Open(ctx context.Context, dir string, o Options) (*Log, error) {
	if err := o.normalise(); err != nil {
		return nil, err
	}
	l := &Log{dir: dir, shard: o.Shard, fs: o.FS, disk: o.Disk, opt: o}
	l.mu.free.L = &l.mu.Mutex
	if l.disk == nil {
		d, err := NewDisk(DiskOptions{FS: o.FS, Dir: dir})
		if err != nil {
			return nil, err
		}
		l.disk, l.ownDisk = d, true
	}
	if err := l.open(ctx); err != nil {
		if l.ownDisk {
			err = errors.Join(err, l.disk.Close())
		}
		return nil, err
	}
	return l, nil
}

func (l *Log) open(ctx context.Context) error {
	start := time.Now()
	found, err := l.recover(ctx, l.opt.Restarted)
	if err != nil {
		return err
	}
	found.report.Duration = time.Since(start)
	l.install(found)
	if !l.opt.Manual {
		if err := l.disk.addLog(l); err != nil {
			l.retireAll()
			return err
		}
	}
	l.SetRetention(RetentionPolicy{Bytes: l.opt.RetentionBytes, Age: l.opt.RetentionAge})
	l.event(func(e *Events) {
		if e.OnRecovery != nil {
			e.OnRecovery(l.shard, found.report)
		}
	})
	return nil
}

// event calls f with the log's events.
func (l *Log) event(f func(*Events)) { f(&l.opt.Events) }

// wait blocks until ready, called with l.mu held, says so.
func (l *Log) waitFree(ready func() bool) {
	for !ready() {
		l.mu.waiting++
		l.mu.free.Wait()
		l.mu.waiting--
	}
}

// freed tells those who wait for a token that one is free. l.mu is held.
func (l *Log) freed() {
	if l.mu.waiting > 0 {
		l.mu.free.Broadcast()
	}
}

// lockExclusive takes every token, so that nothing but reads is under way. It does not
// wait for batches that are queued or not stable yet.
func (l *Log) lockExclusive() {
	l.mu.Lock()
	l.mu.exclusives++
	l.waitFree(func() bool {
		m := &l.mu
		return !m.pen && !m.flushing && !m.applying && !m.tending && !m.exclusive
	})
	l.mu.exclusives--
	l.mu.exclusive = true
	l.mu.Unlock()
}

func (l *Log) unlockExclusive() {
	l.mu.Lock()
	l.mu.exclusive = false
	l.freed()
	l.resume()
	l.mu.Unlock()
	l.kick() // for background work that gave way
}

// Close completes what was accepted, flushes, and closes the log. Batches that cannot
// be completed get an error; nobody is left waiting. The context bounds the waiting for
// batches to complete; the flush is done in any case.
func (l *Log) Close(ctx context.Context) error {
	l.mu.Lock()
	if l.mu.closing {
		l.mu.Unlock()
		return ErrClosed
	}
	l.mu.closing = true
	l.mu.Unlock()

	errs := []error{l.drain(ctx)}
	l.lockExclusive()
	l.mu.Lock()
	poisoned := l.mu.state == StatePoisoned
	if poisoned {
		errs = append(errs, fmt.Errorf("storage: close %s: not flushed: %w", l.dir, l.mu.poison))
	}
	l.mu.state = StateClosed
	l.failQueue(ErrClosed)
	l.mu.Unlock()
	if !poisoned {
		errs = append(errs, l.flushTail())
	}
	l.completeAll()
	l.unpin()
	l.retireAll()
	l.lockExclusiveDone()
	if !l.opt.Manual {
		l.disk.removeLog(l)
	}
	l.work.Wait()
	if l.ownDisk {
		errs = append(errs, l.disk.Close())
	}
	return errors.Join(errs...)
}

// lockExclusiveDone ends an exclusive section of a log that does nothing any more.
func (l *Log) lockExclusiveDone() {
	l.mu.Lock()
	l.mu.exclusive = false
	l.freed()
	l.mu.Unlock()
}

// retireAll closes the log's files.
func (l *Log) retireAll() {
	if sl := l.list.Load(); sl != nil {
		for _, s := range sl.all {
			l.disk.indexes.drop(s)
			s.handle.retire()
		}
	}
}

// Generations are the generation starts in the log, oldest first.
func (l *Log) Generations() []GenerationStart {
	if p := l.gens.Load(); p != nil {
		return append([]GenerationStart(nil), *p...)
	}
	return nil
}
