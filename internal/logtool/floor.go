package logtool

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"

	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// space is what a file's bytes are written into.
type space string

const (
	spaceAppended space = "appended" // the file grows with every write
	spaceReserved space = "reserved" // it grows into blocks reserved 4 MiB ahead
	spaceZeroed   space = "zeroed"   // it is written over zeros that are on the device
)

const (
	floorStep   = 4 << 20
	floorZeroed = 64 << 20
	floorGroup  = 4096 // records that share a write at most
)

// floorLog is the least a log can do: records of the same size with a checksum over
// their payload, one write for what is there, one flush if asked. It has no offsets, no
// recovery and no readers.
type floorLog struct {
	fsys     vfs.FS
	path     string
	space    space
	sync     bool
	f        vfs.File
	pos      int64
	reserved int64
	buf      []byte
}

func newFloor(fsys vfs.FS, dir string, s space, sync bool) *floorLog {
	return &floorLog{fsys: fsys, path: filepath.Join(dir, "floor.bin"), space: s, sync: sync}
}

// reset begins anew, so that the file does not outgrow the disk.
func (l *floorLog) reset() error {
	if err := l.close(); err != nil {
		return err
	}
	f, err := l.fsys.OpenFile(l.path, vfs.CreateNew)
	if err != nil {
		return err
	}
	l.f, l.pos, l.reserved = f, 0, 0
	if l.space == spaceZeroed {
		zeros := make([]byte, 1<<20)
		for at := int64(0); at < floorZeroed; at += int64(len(zeros)) {
			if _, err := f.WriteAt(zeros, at); err != nil {
				return err
			}
		}
	}
	return f.Sync()
}

func (l *floorLog) close() error {
	if l.f == nil {
		return nil
	}
	err := errors.Join(l.f.Close(), l.fsys.Remove(l.path))
	l.f = nil
	return err
}

func (l *floorLog) encode(batch [][]byte) {
	for _, p := range batch {
		var head [segment.RecordHeaderSize]byte
		binary.BigEndian.PutUint32(head[:], uint32(len(p)))
		binary.BigEndian.PutUint32(head[4:], crc32.ChecksumIEEE(p))
		l.buf = append(append(l.buf, head[:]...), p...)
	}
}

// write stores what was encoded, and flushes.
func (l *floorLog) write() error {
	n := int64(len(l.buf))
	switch l.space {
	case spaceReserved:
		for l.pos+n > l.reserved {
			if err := l.f.Allocate(l.reserved, floorStep, true); err != nil && !errors.Is(err, vfs.ErrUnsupported) {
				return fmt.Errorf("reserve: %w", err)
			}
			l.reserved += floorStep
		}
	case spaceZeroed:
		if l.pos+n > floorZeroed {
			l.pos = 0
		}
	}
	if _, err := l.f.WriteAt(l.buf, l.pos); err != nil {
		return err
	}
	l.pos += n
	l.buf = l.buf[:0]
	if l.sync {
		return l.f.Datasync()
	}
	return nil
}

// append is the loop of one appender.
func (l *floorLog) append(batch [][]byte) error {
	l.encode(batch)
	return l.write()
}

// floorRequest is a batch on its way through a shared write.
type floorRequest struct {
	batch [][]byte
	err   chan error
}

// floorShared is the loop of many appenders: one goroutine gathers what waits, writes
// and flushes once, and answers each.
type floorShared struct {
	l    *floorLog
	reqs chan *floorRequest
	done chan struct{}
	mine []*floorRequest // one an appender
}

func newFloorShared(l *floorLog, appenders int) *floorShared {
	s := &floorShared{l: l, reqs: make(chan *floorRequest, floorGroup), done: make(chan struct{})}
	for range appenders {
		s.mine = append(s.mine, &floorRequest{err: make(chan error, 1)})
	}
	go s.run()
	return s
}

func (s *floorShared) run() {
	defer close(s.done)
	var group []*floorRequest
	for r := range s.reqs {
		group = append(group[:0], r)
		s.l.encode(r.batch)
		records := len(r.batch)
	gather:
		for records < floorGroup {
			select {
			case r, ok := <-s.reqs:
				if !ok {
					break gather
				}
				group = append(group, r)
				s.l.encode(r.batch)
				records += len(r.batch)
			default:
				break gather
			}
		}
		err := s.l.write()
		for _, r := range group {
			r.err <- err
		}
	}
}

func (s *floorShared) append(_ context.Context, appender int, batch [][]byte) error {
	r := s.mine[appender]
	r.batch = batch
	s.reqs <- r
	return <-r.err
}

func (s *floorShared) stop() {
	close(s.reqs)
	<-s.done
}
