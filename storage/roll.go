package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/felixlog/felix/storage/internal/rules"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

const (
	// allocateStep is how much room is reserved at once, allocateFrom how much a segment
	// must hold before any is.
	allocateStep = 4 << 20
	allocateFrom = 16 << 10
	// zeroStep is the most that is zeroed ahead at once, zeroLeast the least: a log that
	// holds little gets little.
	zeroStep  = 1 << 20
	zeroLeast = 64 << 10
	// sealBacklog is how many segments may wait to be sealed before the pen's holder does it.
	sealBacklog = 4
)

var zeros [zeroStep]byte

// prepared is the file of the next segment, made ahead: empty, its name flushed. It is
// not kept open, for a log may be idle after it was made.
type prepared struct {
	id   SegmentID
	path string
}

// roll takes the next segment into use for a record of offset next. The pen is held and
// nothing of the group is encoded yet.
func (l *Log) roll(v segment.Version, next Offset) error {
	p := &l.pen
	v = max(v, segment.MinVersion)
	if p.pos <= segment.HeaderSize {
		return l.raiseVersion(v)
	}
	np, err := l.nextFile(p.active.id + 1)
	if err != nil {
		l.nextTaken()
		return fmt.Errorf("storage: make segment: %w", err)
	}
	s := newSegmentFile(l, np.id, next, v, true)
	s.created = l.opt.Clock()
	if err := l.begin(s); err != nil {
		// What is left must not be taken for a segment.
		s.handle.retire()
		err = errors.Join(fmt.Errorf("storage: write segment header: %w", err), l.discard(np))
		l.nextTaken()
		return err
	}
	s.size.Store(segment.HeaderSize)
	s.idx.index = segment.NewIndex(next, l.opt.IndexSpacing)

	old := p.active
	old.next = next
	p.active, p.pos = s, segment.HeaderSize
	p.indexNext, p.zeroEnd = 0, segment.HeaderSize
	l.allocated.Store(segment.HeaderSize)
	if l.opt.Preallocate {
		l.allocated.Store(min(allocateStep, l.opt.SegmentBytes))
	}
	l.tendAt.Store(0)

	l.mu.Lock()
	l.list.Store(l.list.Load().with(s))
	l.mu.active, l.mu.activePos = s, p.pos
	l.mu.sealing = append(l.mu.sealing, old)
	l.mu.preparing = false
	l.freed()
	l.mu.Unlock()
	if l.opt.Events.OnRoll != nil {
		l.opt.Events.OnRoll(l.shard, old.descriptor(next), s.descriptor(next))
	}
	l.kick()
	l.sealBehind()
	return nil
}

// begin writes the header of a new segment.
func (l *Log) begin(s *segmentFile) error {
	f, err := s.handle.acquire()
	if err != nil {
		return err
	}
	defer s.handle.release()
	return writeHeader(f, s)
}

// sealBehind seals segments itself while too many wait for it, before it writes on. The
// pen is held.
func (l *Log) sealBehind() {
	m := &l.mu
	m.Lock()
	defer m.Unlock()
	for len(m.sealing) >= sealBacklog && m.state == StateServing {
		if m.flushing {
			l.waitFree(func() bool { return !m.flushing })
			continue
		}
		if l.flushGroups() != nil {
			return // poisoned, or tried again
		}
	}
}

// raiseVersion rewrites the header of an active segment without records. A header that
// may be neither the old nor the new one poisons the log: nothing behind it could be read.
func (l *Log) raiseVersion(v segment.Version) error {
	s := l.pen.active
	f, err := s.handle.acquire()
	if err != nil {
		return err
	}
	defer s.handle.release()
	before := s.version()
	s.ver.Store(uint32(v))
	if err := writeHeader(f, s); err != nil {
		s.ver.Store(uint32(before))
		err = fmt.Errorf("storage: write segment header: %w", err)
		if again := writeHeader(f, s); again != nil {
			err = errors.Join(err, again)
			l.poison("write segment header", err)
		}
		return err
	}
	return nil
}

func writeHeader(f vfs.File, s *segmentFile) error {
	var b [segment.HeaderSize]byte
	h := segment.AppendHeader(b[:0], segment.Header{Version: s.version(), BaseOffset: s.base, CreatedAt: s.created})
	n, err := f.WriteAt(h, 0)
	if err == nil && n < len(h) {
		err = io.ErrShortWrite
	}
	return err
}

// nextTaken lets the next file be prepared again after a roll that did not happen.
func (l *Log) nextTaken() {
	l.mu.Lock()
	l.mu.preparing = false
	l.freed()
	l.mu.Unlock()
}

// nextFile gives the prepared file, or makes one. Until the segment is in use, or
// nextTaken says that it will not be, preparing stays set: whoever prepared the same file
// meanwhile would empty it under the roll, and have it removed by the roll after.
func (l *Log) nextFile(id SegmentID) (*prepared, error) {
	l.mu.Lock()
	l.waitFree(func() bool { return !l.mu.preparing })
	np := l.mu.prepared
	l.mu.prepared = nil
	l.mu.preparing = true
	l.mu.Unlock()
	if np != nil && np.id == id {
		return np, nil
	}
	if np != nil {
		if err := l.discard(np); err != nil {
			return nil, err
		}
	}
	return l.makeFile(id)
}

// makeFile makes the empty file of a segment and flushes its name.
func (l *Log) makeFile(id SegmentID) (*prepared, error) {
	path := filepath.Join(l.dir, segment.SegmentName(id))
	f, err := l.fs.OpenFile(path, vfs.CreateNew)
	if errors.Is(err, fs.ErrExist) {
		// Left by a roll that did not happen; nothing but a header can be in it.
		if f, err = l.fs.OpenFile(path, vfs.Create); err == nil {
			if err = f.Truncate(0); err != nil {
				err = errors.Join(err, f.Close())
			}
		}
	}
	if err != nil {
		return nil, err
	}
	np := &prepared{id: id, path: path}
	if l.opt.Preallocate {
		err = f.Allocate(0, min(allocateStep, l.opt.SegmentBytes), true)
		if errors.Is(err, vfs.ErrUnsupported) || vfs.OutOfSpace(err) {
			err = nil
		}
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, errors.Join(err, l.discard(np))
	}
	if rules.SyncDirectory.Holds() {
		if err := l.fs.SyncDir(l.dir); err != nil {
			return nil, errors.Join(err, l.discard(np))
		}
	}
	return np, nil
}

// discard removes a prepared file that is not used.
func (l *Log) discard(np *prepared) error {
	return l.fs.Remove(np.path)
}

// prepareNext makes the next segment's file ahead of its need.
func (l *Log) prepareNext() bool {
	m := &l.mu
	m.Lock()
	want := m.state == StateServing && m.prepared == nil && !m.preparing && l.prepareFailed != m.active.id+1 && m.activePos >= l.opt.SegmentBytes/2
	id := m.active.id + 1
	if !want {
		m.Unlock()
		return false
	}
	m.preparing = true
	m.Unlock()

	np, err := l.makeFile(id)

	m.Lock()
	m.preparing = false
	if err == nil {
		m.prepared = np
	}
	l.freed()
	m.Unlock()
	if err != nil {
		l.backgroundError("prepare segment", err)
		l.prepareFailed = id
		return false
	}
	return true
}

// allocateAhead reserves the active segment's next step.
func (l *Log) allocateAhead() bool {
	if !l.opt.Preallocate {
		return false
	}
	l.mu.Lock()
	s, pos := l.mu.active, l.mu.activePos
	l.mu.Unlock()
	from := l.allocated.Load()
	if pos < allocateFrom || from >= l.opt.SegmentBytes || pos+allocateStep/2 < from {
		return false
	}
	from = max(from, pos)
	to := min(from+allocateStep, l.opt.SegmentBytes)
	if to > from {
		f, err := s.handle.acquire()
		if err == nil {
			err = f.Allocate(from, to-from, true)
			s.handle.release()
		}
		if err != nil && !errors.Is(err, vfs.ErrUnsupported) && !vfs.OutOfSpace(err) {
			l.backgroundError("allocate", err)
		}
	}
	// Also after a failure: the room is a help, and the next step is another try.
	l.allocated.Store(max(to, from))
	return true
}

// zeroAhead writes zeros behind end, where a write of n bytes ended, when less than half
// a step of them is left. They are a help: a failure only makes flushes slower.
func (l *Log) zeroAhead(f vfs.File, end int64, n int) {
	p := &l.pen
	step := min(zeroStep, max(zeroLeast, end))
	if n > ZeroAheadLargest || end+step/2 < p.zeroEnd || end >= l.opt.SegmentBytes {
		return
	}
	from := max(end, p.zeroEnd)
	to := min(from+step, l.opt.SegmentBytes)
	if to <= from {
		return
	}
	written, err := f.WriteAt(zeros[:to-from], from)
	p.zeroEnd = from + int64(written)
	if err != nil {
		p.zeroEnd = l.opt.SegmentBytes
		l.backgroundError("zero ahead", err)
	}
}

func (l *Log) backgroundError(op string, err error) {
	if f := l.opt.Events.OnBackgroundError; f != nil {
		f(l.shard, op, err)
	}
}
