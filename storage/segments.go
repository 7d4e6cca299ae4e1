package storage

import (
	"path/filepath"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/felixlog/felix/storage/segment"
)

// segmentFile is one segment of a log. Its identity never changes. While it is the
// active one, the pen extends it: size, first and last move before the log's written
// offset does, so that whoever read that offset finds them far enough. Next is set once,
// before the list that shows the segment as no longer active is published.
type segmentFile struct {
	id      SegmentID
	base    Offset
	ver     atomic.Uint32 // raised only while there is no record
	created Micros
	handle  handle

	size   atomic.Int64  // readable bytes, header included
	first  atomic.Uint64 // Micros of the first record
	last   atomic.Uint64 // the greatest Micros of its records
	next   Offset        // one past its last record, once it is no longer active
	sealed atomic.Bool   // flushed, trimmed and indexed: not written again
	seenAt atomic.Uint64 // wall clock when it was sealed or found, Micros

	// The index while it is in memory: of an active segment always.
	idx struct {
		sync.Mutex
		index *segment.Index
	}
}

func newSegmentFile(l *Log, id SegmentID, base Offset, v segment.Version, writable bool) *segmentFile {
	s := &segmentFile{id: id, base: base}
	s.ver.Store(uint32(v))
	s.handle.init(&l.disk.files, filepath.Join(l.dir, segment.SegmentName(id)), writable)
	return s
}

func (s *segmentFile) version() segment.Version { return segment.Version(s.ver.Load()) }

// entries are the index entries known now; they do not change any more.
func (s *segmentFile) entries() ([]segment.IndexEntry, bool) {
	s.idx.Lock()
	defer s.idx.Unlock()
	if s.idx.index == nil {
		return nil, false
	}
	return s.idx.index.Entries(), true
}

func (s *segmentFile) descriptor(next Offset) Descriptor {
	return Descriptor{
		ID: s.id, Base: s.base, Next: next, Bytes: s.size.Load(),
		FirstTime: Micros(s.first.Load()), LastTime: Micros(s.last.Load()), Sealed: s.sealed.Load(),
	}
}

// segmentList is the log's segments at one moment, oldest first; the last one is active.
// It is immutable.
type segmentList struct {
	all []*segmentFile
}

func (sl *segmentList) active() *segmentFile { return sl.all[len(sl.all)-1] }

func (sl *segmentList) head() Offset { return sl.all[0].base }

// find is the index of the segment that holds off, or would: the last one whose base is
// not above it. -1 when off is below the head.
func (sl *segmentList) find(off Offset) int {
	return sort.Search(len(sl.all), func(i int) bool { return sl.all[i].base > off }) - 1
}

// next is one past the last record of segment i; tail is that of the active one.
func (sl *segmentList) next(i int, tail Offset) Offset {
	if i == len(sl.all)-1 {
		return tail
	}
	return sl.all[i].next
}

func (sl *segmentList) with(s *segmentFile) *segmentList {
	all := make([]*segmentFile, len(sl.all), len(sl.all)+1)
	copy(all, sl.all)
	return &segmentList{append(all, s)}
}

func (sl *segmentList) without(n int) *segmentList {
	return &segmentList{append([]*segmentFile(nil), sl.all[n:]...)}
}

// Segments describes the log's segments, oldest first; the last one is active.
func (l *Log) Segments() []Descriptor {
	tail := l.Written()
	sl := l.list.Load()
	out := make([]Descriptor, len(sl.all))
	for i, s := range sl.all {
		out[i] = s.descriptor(sl.next(i, tail))
	}
	return out
}
