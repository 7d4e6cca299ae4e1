package storage

import (
	"errors"
	"path/filepath"
	"time"

	"github.com/felixlog/felix/storage/internal/rules"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// markDelay is how long after it moved the durable mark is written and flushed: well
// within the second in which it must be.
const markDelay = 500 * time.Millisecond

// writeMark makes durable.mark say pos, and flushes it. It is called by one goroutine at
// a time: the one that tends the log, or an exclusive section.
func (l *Log) writeMark(pos filePos) (err error) {
	f, err := l.fs.OpenFile(filepath.Join(l.dir, segment.MarkName), vfs.Create)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := segment.WriteMark(f, segment.Mark{Segment: pos.seg, SyncedBytes: pos.pos}); err != nil {
		return err
	}
	if !rules.FlushMark.Holds() {
		return nil
	}
	return l.disk.flush(f)
}

// flushMark brings the mark up to the durable watermark.
func (l *Log) flushMark() {
	l.markMoved.Store(false)
	l.mu.Lock()
	pos := l.mu.durablePos
	if !rules.FlushBeforeMark.Holds() {
		pos = filePos{l.mu.active.id, l.mu.active.size.Load()}
	}
	l.mu.Unlock()
	if pos == l.markPos {
		return
	}
	if err := l.writeMark(pos); err != nil {
		// The mark stays behind, which is safe.
		l.backgroundError("write durable mark", err)
		return
	}
	l.markPos = pos
}

// lowerMark makes the mark vouch for nothing at or behind pos, before that is cut.
func (l *Log) lowerMark(pos filePos) error {
	l.mu.Lock()
	if l.mu.durablePos.seg > pos.seg || l.mu.durablePos.seg == pos.seg && l.mu.durablePos.pos > pos.pos {
		l.mu.durablePos = pos
	}
	l.mu.Unlock()
	if l.markPos.seg < pos.seg || l.markPos.seg == pos.seg && l.markPos.pos <= pos.pos {
		return nil
	}
	if !rules.LowerMarkBeforeCut.Holds() {
		return nil
	}
	if err := l.writeMark(pos); err != nil {
		return err
	}
	l.markPos = pos
	return nil
}
