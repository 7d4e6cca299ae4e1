package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/felixlog/felix/storage/internal/rules"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// TruncateTo cuts the log so that next is the next offset to be given: the divergent
// records of a replica. What is cut is first copied to lost/; the durable mark is lowered
// before the cut, and the cut is flushed when TruncateTo returns. Batches that were
// written at or above next and not stable get ErrUnknownOutcome; those that are queued
// keep waiting. It fails with *TrimmedError below the head and *OffsetMismatchError past
// the tail. After another error the log is poisoned if files were changed.
func (l *Log) TruncateTo(ctx context.Context, next Offset) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return l.exclusively(func() error {
		tail := l.Written()
		switch {
		case next == tail:
			return nil
		case next > tail:
			return &OffsetMismatchError{Expected: next, Tail: tail}
		case next < l.Head():
			return &TrimmedError{Requested: next, Oldest: l.Head()}
		}
		sl := l.list.Load()
		i := sl.find(next)
		s := sl.all[i]
		pos, err := l.position(ctx, s, next)
		if err != nil {
			return err
		}
		l.failAbove(next)
		if err := l.discardPrepared(); err != nil {
			return l.spoiled("truncate", err)
		}
		if err := l.cutFiles(sl, i, pos, next); err != nil {
			return l.spoiled("truncate", err)
		}
		return l.reload(ctx, next, 0)
	})
}

// Reset empties the log and lets it begin at base. Records at or above base are moved to
// lost/, a log that ends below base is removed.
func (l *Log) Reset(ctx context.Context, base Offset) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return l.exclusively(func() error {
		sl := l.list.Load()
		keep := l.Written() > base
		l.failAbove(0)
		if err := l.removeUndropped(); err != nil {
			return l.spoiled("reset", err)
		}
		if err := l.discardPrepared(); err != nil {
			return l.spoiled("reset", err)
		}
		if err := l.lowerMark(filePos{}); err != nil {
			return l.spoiled("reset", err)
		}
		for i := len(sl.all) - 1; i >= 0; i-- {
			if err := l.removeSegment(sl.all[i], keep); err != nil {
				return l.spoiled("reset", err)
			}
		}
		none := []GenerationStart{}
		if err := segment.WriteEpochs(l.fs, l.dir, none); err != nil {
			return l.spoiled("reset", err)
		}
		return l.reload(ctx, base, 0)
	})
}

// exclusively runs f while nothing but reads is under way.
func (l *Log) exclusively(f func() error) error {
	l.lockExclusive()
	defer l.unlockExclusive()
	l.mu.Lock()
	state, refusal := l.mu.state, l.mu.refusal()
	l.mu.Unlock()
	if state != StateServing {
		return refusal
	}
	return f()
}

// spoiled poisons the log after files were changed half-way: reopening finishes it.
func (l *Log) spoiled(op string, err error) error {
	l.mu.Lock()
	l.mu.spoilt = true
	l.mu.Unlock()
	l.poison(op, err)
	return fmt.Errorf("storage: %s: %w", op, err)
}

// failAbove gives the batches written at or above next their outcome: from here on the
// log ends there, however often the cut has to be tried.
func (l *Log) failAbove(next Offset) {
	m := &l.mu
	m.Lock()
	defer m.Unlock()
	l.stable.Store(min(l.stable.Load(), uint64(next)))
	var kept groupQueue
	for m.unstable.head != nil {
		g := m.unstable.pop()
		if g.Next > next && g.Err == nil {
			g.fail(fmt.Errorf("%w: the log was cut at offset %d", ErrUnknownOutcome, next))
			g.First, g.Next = next, next
		}
		kept.push(g)
	}
	m.unstable = kept
}

func (l *Log) discardPrepared() error {
	l.mu.Lock()
	np := l.mu.prepared
	l.mu.prepared = nil
	l.mu.Unlock()
	if np == nil {
		return nil
	}
	return l.discard(np)
}

// position is the byte at which the record of that offset starts in s.
func (l *Log) position(ctx context.Context, s *segmentFile, off Offset) (int64, error) {
	f, err := s.handle.acquire()
	if err != nil {
		return 0, err
	}
	defer s.handle.release()
	pos, at, err := l.locate(ctx, s, off)
	if err != nil {
		return 0, err
	}
	if at == off {
		return pos, nil
	}
	var buf segment.ReadBuffer
	res, err := segment.ReadInto(ctx, f, segment.ScanStart{Shard: l.shard, Segment: s.id, Position: pos, Offset: at},
		segment.ReadLimits{From: off, End: off, EndPosition: s.size.Load(), MaxBytes: 1}, &buf)
	if err != nil {
		return 0, l.readError(err)
	}
	return res.Position, nil
}

// cutFiles moves the segments behind i away and cuts i at pos.
func (l *Log) cutFiles(sl *segmentList, i int, pos int64, next Offset) error {
	s := sl.all[i]
	if err := l.lowerMark(filePos{s.id, pos}); err != nil {
		return err
	}
	for k := len(sl.all) - 1; k > i; k-- {
		if err := l.removeSegment(sl.all[k], true); err != nil {
			return err
		}
	}
	s.handle.writable.Store(true)
	f, err := l.fs.OpenFile(filepath.Join(l.dir, segment.SegmentName(s.id)), vfs.ReadWrite)
	if err != nil {
		return err
	}
	err = func() error {
		size := s.size.Load()
		saved, err := l.saveTail(f, s.id, pos, size)
		if err != nil {
			return err
		}
		l.cuts.Add(1)
		if err := f.Truncate(pos); err != nil {
			return err
		}
		s.size.Store(pos)
		if f := l.opt.Events.OnCut; f != nil {
			f(l.shard, CutEvent{Segment: s.id, From: pos, To: size, Next: next, Reason: "truncated", Saved: saved})
		}
		if !rules.FlushCut.Holds() {
			return nil
		}
		return f.Sync()
	}()
	return errors.Join(err, f.Close())
}

// removeSegment takes a segment out of the directory: to lost/ when it is to be kept.
func (l *Log) removeSegment(s *segmentFile, keep bool) error {
	name := segment.SegmentName(s.id)
	l.cuts.Add(1)
	l.disk.indexes.drop(s)
	if keep && s.size.Load() > segment.HeaderSize {
		saved, err := l.moveToLost(name)
		if err != nil {
			return err
		}
		if f := l.opt.Events.OnCut; f != nil {
			f(l.shard, CutEvent{Segment: s.id, To: s.size.Load(), Next: s.base, Reason: "truncated", Saved: saved})
		}
	} else if err := l.fs.Remove(filepath.Join(l.dir, name)); err != nil {
		return err
	}
	if err := l.fs.Remove(filepath.Join(l.dir, segment.IndexName(s.id))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return l.fs.SyncDir(l.dir)
}

// reload looks at the directory as Open does and goes on with what is there, if that is
// all below stable: what was acknowledged or read must not get lost under those who know
// it, nor its offsets be given again. The log is held exclusively.
func (l *Log) reload(ctx context.Context, base, stable Offset) error {
	old := l.list.Load()
	l.unpin()
	saved := l.opt.Base
	l.opt.Base = base
	found, err := l.recover(context.WithoutCancel(ctx), false)
	l.opt.Base = saved
	if err != nil {
		return l.spoiled("reload", err)
	}
	if next := found.segs[len(found.segs)-1].res.Next; next < stable {
		return l.spoiled("reload", &LostError{From: next, Until: stable})
	}
	l.cuts.Add(1)
	l.install(found)
	for _, s := range old.all {
		l.disk.indexes.drop(s)
		s.handle.retire()
	}
	return nil
}

// Reopen lets a poisoned log serve again: what is on disk is looked at as Open does,
// written over itself and flushed. Records whose outcome was unknown may be among it; see
// Hooks.Reopened. A log that serves is left alone. After an error it is poisoned still; if
// room or descriptors were lacking it tries again by itself. *LostError means that the device
// dropped records that were stable; the log stays as it is then, and only opening it anew
// accepts the loss.
func (l *Log) Reopen(ctx context.Context) error {
	l.lockExclusive()
	l.mu.Lock()
	state := l.mu.state
	l.mu.Unlock()
	switch state {
	case StateServing:
		l.unlockExclusive()
		return nil
	case StateClosed:
		l.unlockExclusive()
		return ErrClosed
	}
	from := l.Stable()
	err := l.discardPrepared()
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = l.cutUnpublished()
	}
	if err == nil {
		err = l.reload(ctx, l.Head(), from)
	}
	if err == nil {
		l.completeAll()
		err = l.tellReopened(from)
	}
	l.mu.Lock()
	if err == nil {
		l.mu.state, l.mu.poison, l.mu.flushOff = StateServing, nil, false
	}
	l.mu.passing = passes(err)
	l.mu.Unlock()
	l.unlockExclusive()
	if err != nil {
		if passes(err) {
			l.schedule(taskReopen, passingDelay)
		}
		return fmt.Errorf("storage: reopen %s: %w", l.dir, err)
	}
	l.kick()
	if f := l.opt.Events.OnReopen; f != nil {
		f(l.shard)
	}
	return nil
}

// tellReopened tells the owner of the records from that offset on. The log is held
// exclusively.
func (l *Log) tellReopened(from Offset) error {
	h := l.opt.Hooks.Reopened
	if h == nil {
		return nil
	}
	err := h(from, l.Written())
	if err != nil {
		l.stable.Store(uint64(from)) // where the next Reopen begins to tell
	}
	return err
}

// cutUnpublished cuts what a failed write left behind the tail, where the cut failed
// then: only this process can tell it from damage. The log is held exclusively.
func (l *Log) cutUnpublished() error {
	l.mu.Lock()
	s, pos, spoilt := l.mu.active, l.mu.activePos, l.mu.spoilt
	l.mu.Unlock()
	if spoilt {
		return nil
	}
	f, err := s.handle.acquire()
	if err != nil {
		return err
	}
	defer s.handle.release()
	if pos <= segment.HeaderSize {
		// What raiseVersion left may be no header.
		if err := writeHeader(f, s); err != nil {
			return err
		}
	}
	size, err := f.Size()
	if err != nil || size <= pos {
		return err
	}
	if err := f.Truncate(pos); err != nil {
		return err
	}
	return l.disk.flush(f)
}

// reopenPassing reopens a log that is poisoned for want of room or descriptors, when there
// are some.
func (l *Log) reopenPassing() bool {
	l.mu.Lock()
	passing, poison := l.mu.passing && l.mu.state == StatePoisoned, l.mu.poison
	l.mu.Unlock()
	if !passing {
		return false
	}
	if vfs.OutOfSpace(poison) && l.disk.space.low() {
		l.schedule(taskReopen, passingDelay)
		return true
	}
	if err := l.Reopen(context.Background()); err != nil {
		l.backgroundError("reopen", err)
	}
	return true
}

// drain waits until everything accepted is completed, the log is poisoned, or ctx ends.
func (l *Log) drain(ctx context.Context) error {
	if l.opt.Manual {
		for l.work1() {
		}
		return nil
	}
	stop := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.mu.free.Broadcast()
	})
	defer stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resume()
	l.waitFree(func() bool { return l.mu.inCount == 0 && !l.mu.applying || ctx.Err() != nil })
	if l.mu.inCount > 0 {
		return fmt.Errorf("storage: close: %w", ctx.Err())
	}
	return nil
}

// flushTail puts everything on the device at Close, with its index and mark. The log is
// held exclusively, its state is closed.
func (l *Log) flushTail() error {
	l.mu.Lock()
	t := l.target()
	clean := t.dirty == 0 && len(t.seals) == 0 && l.mu.durablePos == l.markPos
	l.mu.Unlock()
	if err := l.discardPrepared(); err != nil {
		return err
	}
	if clean {
		return nil
	}
	err := l.flushTo(t)
	l.mu.Lock()
	if err != nil {
		l.failUnstable(fmt.Errorf("%w: %w", ErrUnknownOutcome, err))
	} else {
		l.reached(t)
	}
	l.mu.Unlock()
	if err != nil {
		return fmt.Errorf("storage: flush at close: %w", err)
	}
	return errors.Join(l.trimActive(t), l.writeIndex(t.active), l.markTail())
}

// trimActive gives back what was reserved behind the tail.
func (l *Log) trimActive(t flushTarget) error {
	if !l.opt.Preallocate && !l.opt.ZeroAhead {
		return nil
	}
	f, err := t.active.handle.acquire()
	if err != nil {
		return err
	}
	defer t.active.handle.release()
	if err := f.Truncate(t.pos); err != nil {
		return err
	}
	return l.disk.flush(f)
}

func (l *Log) markTail() error {
	l.flushMark()
	l.mu.Lock()
	behind := l.markPos != l.mu.durablePos
	l.mu.Unlock()
	if behind {
		return errors.New("storage: durable mark could not be written at close")
	}
	return nil
}
