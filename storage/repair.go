package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/felixlog/felix/storage/internal/rules"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

func beUint64(b []byte) uint64 { return binary.BigEndian.Uint64(b) }

// repair carries the verdict out. What is moved or cut goes from the log's end
// backwards, so that a pass that stops half-way leaves a log with the same verdict.
func (r *recovery) repair() error {
	for _, step := range []func() error{
		r.storeNames, r.removeFiles, r.moveLost, r.cutTail, r.trimSealed, r.begin, r.rewrite, r.rebuildIndexes, r.moveMark,
	} {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		if err := step(); err != nil {
			return err
		}
	}
	r.report.Segments = len(r.segs)
	r.report.Head = r.segs[0].header.BaseOffset
	r.report.Next = r.segs[len(r.segs)-1].res.Next
	return nil
}

func (r *recovery) syncDir() error {
	if !rules.SyncDirectory.Holds() {
		return nil
	}
	return r.l.fs.SyncDir(r.l.dir)
}

// storeNames flushes the directory as it was found: a name that can be listed is not a
// stored one, after a kill or a flush of the directory that failed, nor is one that is
// gone: a removed segment would come back with the next power cut, and the head or the
// tail with it. For a log that is to begin that goes for the directory's own name too, and
// those above it. Flushing a directory that has not changed costs next to nothing.
func (r *recovery) storeNames() error {
	if err := r.syncDir(); err != nil {
		return err
	}
	if r.hasLost && rules.SyncDirectory.Holds() {
		if err := r.l.fs.SyncDir(r.l.lostDir()); err != nil {
			return err
		}
	}
	if len(r.segs) > 0 || !rules.SyncDirectory.Holds() {
		return nil
	}
	for dir := r.l.dir; filepath.Dir(dir) != dir; dir = filepath.Dir(dir) {
		err := r.l.fs.SyncDir(filepath.Dir(dir))
		if dir != r.l.dir && beyondUs(err) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// beyondUs says whether a directory could not be flushed because it is none that this
// process could have made: not ours to read, or of a kind that is never flushed.
func beyondUs(err error) bool {
	for _, kind := range []error{fs.ErrPermission, syscall.EINVAL, syscall.EROFS, syscall.ENOTSUP, syscall.ENOSYS, vfs.ErrUnsupported} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// removeFiles removes what holds no records.
func (r *recovery) removeFiles() error {
	if len(r.remove) == 0 {
		return nil
	}
	for _, name := range r.remove {
		if err := r.l.fs.Remove(filepath.Join(r.l.dir, name)); err != nil {
			return err
		}
	}
	return r.syncDir()
}

// moveLost moves whole segments aside, the newest first.
func (r *recovery) moveLost() error {
	for i := len(r.lost) - 1; i >= 0; i-- {
		s := r.lost[i]
		saved, err := r.l.moveToLost(segment.SegmentName(s.id))
		if err != nil {
			return err
		}
		r.report.MovedSegments++
		r.cutEvent(CutEvent{Segment: s.id, To: s.size, Reason: "segment behind the end of the log", Saved: saved, MayBeLost: r.report.MayHaveLost})
	}
	return nil
}

func (r *recovery) cutEvent(e CutEvent) {
	if f := r.l.opt.Events.OnCut; f != nil {
		f(r.l.shard, e)
	}
}

// cutTail cuts the log where the verdict says.
func (r *recovery) cutTail() error {
	if r.cut == nil {
		return nil
	}
	l, s := r.l, r.segs[r.cut.at]
	return r.with(s, vfs.ReadWrite, func(f vfs.File) error {
		if s.size <= r.cut.pos {
			return nil
		}
		saved, err := l.saveTail(f, s.id, r.cut.pos, s.size)
		if err != nil {
			return err
		}
		if r.hasMark && (r.mark.Segment > s.id || r.mark.Segment == s.id && r.mark.SyncedBytes > r.cut.pos) && rules.LowerMarkBeforeCut.Holds() {
			if err := l.writeMark(filePos{s.id, r.cut.pos}); err != nil {
				return err
			}
			r.mark = segment.Mark{Segment: s.id, SyncedBytes: r.cut.pos}
		}
		if err := f.Truncate(r.cut.pos); err != nil {
			return err
		}
		if rules.FlushCut.Holds() {
			if err := f.Sync(); err != nil {
				return err
			}
		}
		r.report.TruncatedBytes += s.size - r.cut.pos
		r.cutEvent(CutEvent{Segment: s.id, From: r.cut.pos, To: s.size, Next: s.res.Next, Reason: r.cut.reason, Saved: saved, MayBeLost: r.report.MayHaveLost, Zeros: saved == ""})
		s.size = r.cut.pos
		return nil
	})
}

// trimSealed cuts the zero tails of segments that were being sealed.
func (r *recovery) trimSealed() error {
	for _, s := range r.segs {
		if s.trim == 0 {
			continue
		}
		err := r.with(s, vfs.ReadWrite, func(f vfs.File) error {
			if err := f.Truncate(s.trim); err != nil {
				return err
			}
			return f.Sync()
		})
		if err != nil {
			return err
		}
		r.report.TruncatedBytes += s.size - s.trim
		r.cutEvent(CutEvent{Segment: s.id, From: s.trim, To: s.size, Next: s.res.Next, Reason: "zero tail of a sealed segment", Zeros: true})
		s.size = s.trim
	}
	return nil
}

// begin makes the first segment of a log that has none.
func (r *recovery) begin() error {
	if len(r.segs) > 0 {
		return nil
	}
	l := r.l
	s := &foundSegment{id: r.firstID(), size: segment.HeaderSize, full: true}
	s.header = segment.Header{Version: segment.MinVersion, BaseOffset: l.opt.Base, CreatedAt: l.opt.Clock()}
	s.res = segment.ScanResult{Header: s.header, End: segment.HeaderSize, Next: l.opt.Base}
	s.index = segment.NewIndex(l.opt.Base, l.opt.IndexSpacing)
	// The name appears with the header flushed: nothing vouches for a first segment yet.
	if err := segment.WriteFile(l.fs, l.dir, segment.SegmentName(s.id), segment.AppendHeader(nil, s.header)); err != nil {
		return err
	}
	r.report.Created = true
	r.segs = append(r.segs, s)
	return nil
}

// firstID is the ID of the first segment: never one that the mark may vouch for.
func (r *recovery) firstID() SegmentID {
	if r.hasMark {
		return r.mark.Segment + 1
	}
	return 0
}

// rewrite writes what the mark does not vouch for over itself and flushes it: what can
// be read may be only in memory, after a kill or a flush that failed.
func (r *recovery) rewrite() error {
	if !rules.RewriteAtOpen.Holds() {
		return nil
	}
	for i, s := range r.segs {
		from := int64(0)
		newest := i == len(r.segs)-1
		switch {
		case !r.hasMark && !newest && s.rebuilt == "":
			continue // sealed: it has its index
		case r.hasMark && s.id < r.mark.Segment:
			continue
		case r.hasMark && s.id == r.mark.Segment:
			from = min(r.mark.SyncedBytes, s.size)
		}
		// The newest is flushed in any case: its length may be one that a cut left in
		// memory only.
		if r.report.Created || from == s.size && !(newest && rules.FlushCut.Holds()) {
			continue
		}
		if err := r.rewriteSegment(s, from); err != nil {
			return err
		}
	}
	return nil
}

func (r *recovery) rewriteSegment(s *foundSegment, from int64) error {
	return r.with(s, vfs.ReadWrite, func(f vfs.File) error {
		buf := make([]byte, min(1<<20, s.size-from))
		for pos := from; pos < s.size; {
			if err := r.ctx.Err(); err != nil {
				return err
			}
			b := buf[:min(int64(len(buf)), s.size-pos)]
			if n, err := f.ReadAt(b, pos); n < len(b) {
				return errors.Join(io.ErrUnexpectedEOF, err)
			}
			n, err := f.WriteAt(b, pos)
			if err == nil && n < len(b) {
				err = io.ErrShortWrite
			}
			if err != nil {
				return fmt.Errorf("rewrite segment %d at %d: %w", s.id, pos, err)
			}
			pos += int64(n)
		}
		r.report.RewrittenBytes += s.size - from
		return f.Sync()
	})
}

// rebuildIndexes writes the indexes that are missing or wrong. Of a newest segment whose
// index has only the first record none is made: it says nothing, and making thousands of
// files was most of the time it took to open as many small shards.
func (r *recovery) rebuildIndexes() error {
	for i, s := range r.segs {
		newest := i == len(r.segs)-1
		if s.index == nil {
			continue // its file is right
		}
		if newest || s.full && s.rebuilt == "" {
			switch {
			case newest && s.index.Len() <= 1 && !r.indexes[s.id], s.index.Len() == 0 && !r.indexes[s.id], r.sameIndex(s):
				continue
			case !r.indexes[s.id]:
				s.rebuilt = IndexMissing
			default:
				s.rebuilt = "not what the segment says"
			}
		}
		if s.rebuilt == "" {
			continue
		}
		if s.header.Version >= segment.VersionGeneration && !newest {
			if err := segment.WriteEpochs(r.l.fs, r.l.dir, r.gens); err != nil {
				return err
			}
		}
		if err := segment.WriteDerived(r.l.fs, r.l.dir, segment.IndexName(s.id), s.index.AppendTo(nil)); err != nil {
			return err
		}
		r.report.IndexesRebuilt++
		// That of the newest is written when the log is closed: after a kill there is none, or
		// that of an earlier close.
		if f := r.l.opt.Events.OnIndexRebuilt; f != nil && !newest {
			f(r.l.shard, s.id, s.rebuilt)
		}
	}
	return nil
}

// moveMark makes the mark vouch for the whole log, which is flushed now.
func (r *recovery) moveMark() error {
	s := r.segs[len(r.segs)-1]
	pos := filePos{s.id, s.size}
	if r.hasMark && r.mark == (segment.Mark{Segment: pos.seg, SyncedBytes: pos.pos}) {
		return nil
	}
	if !r.hasMark {
		// Its name is stored before it says anything.
		f, err := r.l.fs.OpenFile(filepath.Join(r.l.dir, segment.MarkName), vfs.Create)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Close(), r.syncDir()); err != nil {
			return err
		}
	}
	return r.l.writeMark(pos)
}

// install makes the log what recovery found. Every token is held, or nobody knows the
// log yet.
func (l *Log) install(r *recovery) {
	all := make([]*segmentFile, len(r.segs))
	now := l.opt.Clock()
	for i, s := range r.segs {
		sf := newSegmentFile(l, s.id, s.header.BaseOffset, s.header.Version, i == len(r.segs)-1)
		sf.created = s.header.CreatedAt
		sf.size.Store(s.size)
		sf.first.Store(uint64(s.first))
		sf.last.Store(uint64(s.last))
		sf.seenAt.Store(uint64(now))
		sf.next = s.res.Next
		sf.sealed.Store(i < len(r.segs)-1)
		all[i] = sf
	}
	newest := r.segs[len(r.segs)-1]
	active := all[len(all)-1]
	active.idx.index = newest.index
	l.list.Store(&segmentList{all})
	gens := r.gens
	l.gens.Store(&gens)
	report := r.report
	l.recovery.Store(&report)

	next := newest.res.Next
	p := &l.pen
	p.active, p.pos, p.next = active, newest.size, next
	p.indexNext = l.indexNext(active)
	p.zeroEnd = newest.size
	p.last, p.sum = 0, 0
	for i := len(r.segs) - 1; i >= 0; i-- {
		if s := r.segs[i]; s.res.Next > s.header.BaseOffset {
			p.last, p.sum = s.last, s.res.LastChecksum
			break
		}
	}
	l.allocated.Store(newest.size)
	l.tendAt.Store(0)
	l.prepareFailed, l.pushed, l.undropped = SegmentID(0), filePos{}, nil
	l.markPos = filePos{newest.id, newest.size}
	l.markMoved.Store(false)

	l.mu.Lock()
	l.mu.active, l.mu.activePos, l.mu.activeSum, l.mu.activeNext = active, newest.size, p.sum, next
	l.mu.durablePos = l.markPos
	l.mu.sealing = nil
	l.mu.prepared = nil
	l.mu.spoilt = false
	l.mu.Unlock()
	for _, at := range []interface{ Store(uint64) }{&l.written, &l.durable, &l.stable, &l.maybe} {
		at.Store(uint64(next))
	}
}
