package storage

import (
	"context"
	"fmt"
	"time"

	"github.com/felixlog/felix/storage/internal/rules"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// flushTarget is what one flush makes durable: everything written before it began.
type flushTarget struct {
	active *segmentFile
	pos    int64
	next   Offset
	seals  []*segmentFile // to be sealed before
	dirty  int64
	start  time.Time
}

// flushGroups is the pump's flush. After an error the log is poisoned, or the flush put
// off. l.mu is held before and after, not meanwhile.
func (l *Log) flushGroups() error {
	m := &l.mu
	m.flushing = true
	t := l.target()
	m.Unlock()
	err := l.flushTo(t)
	if err != nil && !rules.PoisonOnFlushFailure.Holds() {
		err = l.flushTo(t) // believing a flush after one that failed is the mistake
	}
	unopened := outOfFiles(err)
	if unopened {
		l.backgroundError("flush", err)
	} else if err != nil {
		l.flushFailed(err)
	}
	m.Lock()
	if err == nil {
		l.reached(t)
	}
	m.flushing = false
	m.flushOff = unopened
	if unopened {
		l.schedule(taskFlush, passingDelay)
	}
	l.freed()
	return err
}

// target is what a flush that begins now covers. l.mu is held.
func (l *Log) target() flushTarget {
	m := &l.mu
	// The pen may be ahead of what it published, but moves written after its write and
	// m.active before it: all below written is in files up to m.active.
	t := flushTarget{active: m.active, dirty: m.dirty(), next: l.Written(), start: time.Now()}
	t.pos = t.active.size.Load()
	if len(m.sealing) > 0 {
		t.seals = append(t.seals, m.sealing...)
	}
	return t
}

// dirty is how many bytes are not known to be on the device. l.mu is held.
func (m *logMu) dirty() int64 {
	n := m.dirtyOf(m.active)
	for _, s := range m.sealing {
		n += m.dirtyOf(s)
	}
	return n
}

func (m *logMu) dirtyOf(s *segmentFile) int64 {
	switch {
	case s.id < m.durablePos.seg:
		return 0
	case s.id == m.durablePos.seg:
		return s.size.Load() - m.durablePos.pos
	}
	return s.size.Load()
}

// flushTo puts t on the device. A file that could not be opened for lack of descriptors
// was not flushed, and nothing was asked of the device: such an error says nothing about
// what is on it, and the flush may be tried again. The flush token is held.
func (l *Log) flushTo(t flushTarget) error {
	for _, s := range t.seals {
		if err := l.seal(s); err != nil {
			return fmt.Errorf("seal segment %d: %w", s.id, err)
		}
	}
	if !rules.FlushBeforeAck.Holds() {
		return nil
	}
	f, err := t.active.handle.acquire()
	if err != nil {
		return err
	}
	defer t.active.handle.release()
	return l.disk.flush(f)
}

// flush flushes f, when there are not too many flushes in flight.
func (d *Disk) flush(f vfs.File) error {
	d.flushes <- struct{}{}
	defer func() { <-d.flushes }()
	return d.flusher.datasync(f)
}

// reached moves the durable watermark to t and lets the groups below it be completed.
// l.mu is held, and the flush token.
func (l *Log) reached(t flushTarget) {
	m := &l.mu
	l.durable.Store(uint64(t.next))
	m.durablePos = filePos{t.active.id, t.pos}
	appends := l.release(t.next)
	l.dirtySince.Store(t.start.UnixNano())
	if m.dirty() == 0 {
		l.unpin()
	} else if l.opt.Fsync == Periodic {
		l.schedule(taskFlush, l.opt.FsyncInterval)
	}
	if !l.markMoved.Swap(true) {
		l.schedule(taskMark, markDelay)
	}
	if f := l.opt.Events.OnSync; f != nil {
		e := SyncEvent{Shard: l.shard, Duration: time.Since(t.start), Appends: appends, Bytes: t.dirty}
		m.Unlock()
		f(e)
		m.Lock()
	}
}

// release settles the groups that are below the watermark. l.mu is held.
func (l *Log) release(next Offset) (appends int) {
	m := &l.mu
	for m.unstable.head != nil && m.unstable.head.Next <= next {
		g := m.unstable.pop()
		appends += len(g.Batches)
		l.settle(g)
	}
	return appends
}

// flushFailed poisons the log. The flush token is held, l.mu is not.
func (l *Log) flushFailed(err error) {
	if f := l.opt.Events.OnSyncFailure; f != nil {
		f(l.shard, err)
	}
	l.poison("flush", err)
}

// seal makes a segment that is no longer written what it will stay: flushed, trimmed of
// what was reserved, flushed again, and indexed. The flush token is held.
func (l *Log) seal(s *segmentFile) error {
	if s.sealed.Load() {
		return nil
	}
	f, err := s.handle.acquire()
	if err != nil {
		return err
	}
	defer s.handle.release()
	if rules.SealBeforeWatermark.Holds() {
		if err := l.disk.flush(f); err != nil {
			return err
		}
	}
	l.mu.Lock()
	l.durable.Store(max(l.durable.Load(), uint64(s.next)))
	l.mu.durablePos = filePos{s.id, s.size.Load()}
	l.mu.Unlock()
	if l.opt.Preallocate || l.opt.ZeroAhead {
		if err := f.Truncate(s.size.Load()); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
	if err := l.writeIndex(s); err != nil {
		// The index is derived: recovery makes it again.
		l.backgroundError("write index", err)
	}
	s.seenAt.Store(uint64(l.opt.Clock()))
	s.sealed.Store(true)
	s.handle.writable.Store(false)
	s.idx.Lock()
	x := s.idx.index
	s.idx.index = nil
	s.idx.Unlock()
	l.disk.indexes.put(s, x)

	l.mu.Lock()
	if len(l.mu.sealing) > 0 && l.mu.sealing[0] == s {
		l.mu.sealing = l.mu.sealing[1:]
		if len(l.mu.sealing) == 0 {
			l.mu.sealing = nil
		}
	}
	l.freed()
	l.mu.Unlock()
	if f := l.opt.Events.OnSeal; f != nil {
		f(l.shard, s.descriptor(s.next))
	}
	return nil
}

// writeIndex writes the index file of s, and before it the epochs when a generation
// starts in s: a segment with an index has its generations in epochs.
func (l *Log) writeIndex(s *segmentFile) error {
	if gens := l.gens.Load(); gens != nil && len(*gens) > 0 && (*gens)[len(*gens)-1].Start >= s.base {
		if err := segment.WriteEpochs(l.fs, l.dir, *gens); err != nil {
			return err
		}
	}
	s.idx.Lock()
	b := s.idx.index.AppendTo(nil)
	s.idx.Unlock()
	return segment.WriteDerived(l.fs, l.dir, segment.IndexName(s.id), b)
}

func (l *Log) pin(s *segmentFile) {
	if l.pinned.Load() != nil {
		return
	}
	if _, err := s.handle.acquire(); err == nil {
		l.pinned.Store(s)
	}
}

func (l *Log) unpin() {
	if s := l.pinned.Swap(nil); s != nil {
		s.handle.release()
	}
}

// syncNow takes the flush token and flushes what is written, in any mode.
func (l *Log) syncNow() error {
	m := &l.mu
	m.Lock()
	l.waitFree(func() bool { return !m.flushing && !m.exclusive })
	if m.state != StateServing {
		err := m.refusal()
		m.Unlock()
		return err
	}
	err := l.flushGroups()
	if m.state != StateServing {
		err = m.refusal()
	}
	l.resume()
	m.Unlock()
	return err
}

// Sync makes everything appended before it durable, in any mode. In Manual mode it works
// until that is so.
func (l *Log) Sync(ctx context.Context) error {
	var b Batch
	b.Barrier, b.UseReserve = true, true
	if err := l.Append(ctx, &b); err != nil {
		return err
	}
	if l.Durable() >= b.First {
		return nil
	}
	return l.syncNow()
}

// poison refuses appends from now on, and gives what was accepted its outcome.
func (l *Log) poison(op string, cause error) {
	err := &PoisonedError{Op: op, Cause: cause}
	m := &l.mu
	m.Lock()
	if m.state != StateServing {
		m.Unlock()
		return
	}
	m.state = StatePoisoned
	m.poison, m.passing = err, passes(cause)
	l.failUnstable(fmt.Errorf("%w: %w", ErrUnknownOutcome, err))
	if !m.pen { // who holds it does so, in order
		l.failQueue(err)
	}
	l.freed()
	m.Unlock()
	if f := l.opt.Events.OnPoison; f != nil {
		f(l.shard, err)
	}
	if vfs.OutOfSpace(cause) {
		l.disk.space.exhausted()
	}
	if passes(cause) {
		l.schedule(taskReopen, passingDelay)
	}
}
