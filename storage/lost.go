package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// maxLostNames bounds the search for a free name under lost/.
const maxLostNames = 1 << 20

// saveTail copies the bytes [from, to) of a segment to a file under lost/ and flushes it,
// without the zeros at their end. It returns the file's path relative to the log's
// directory, empty if there was nothing but zeros.
func (l *Log) saveTail(f vfs.File, id SegmentID, from, to int64) (string, error) {
	end, err := lastNonZero(f, from, to)
	if err != nil || end == from {
		return "", err
	}
	out, name, err := l.createLost(fmt.Sprintf("%s.from-%d", segment.SegmentName(id), from))
	if err != nil {
		return "", err
	}
	err = func() error {
		buf := make([]byte, min(1<<20, end-from))
		for pos := from; pos < end; {
			b := buf[:min(int64(len(buf)), end-pos)]
			if n, err := f.ReadAt(b, pos); n < len(b) {
				return errors.Join(io.ErrUnexpectedEOF, err)
			}
			n, err := out.WriteAt(b, pos-from)
			if err == nil && n < len(b) {
				err = io.ErrShortWrite
			}
			if err != nil {
				return err
			}
			pos += int64(n)
		}
		return out.Sync()
	}()
	if err := errors.Join(err, out.Close()); err != nil {
		return "", err
	}
	return name, l.syncLost()
}

func lastNonZero(f vfs.File, from, to int64) (int64, error) {
	buf := make([]byte, min(64<<10, to-from))
	for end := to; end > from; {
		start := max(from, end-int64(len(buf)))
		b := buf[:end-start]
		if n, err := f.ReadAt(b, start); n < len(b) {
			return 0, errors.Join(io.ErrUnexpectedEOF, err)
		}
		for i := len(b) - 1; i >= 0; i-- {
			if b[i] != 0 {
				return start + int64(i) + 1, nil
			}
		}
		end = start
	}
	return from, nil
}

func (l *Log) lostDir() string { return filepath.Join(l.dir, segment.LostDir) }

func (l *Log) syncLost() error {
	return errors.Join(l.fs.SyncDir(l.lostDir()), l.fs.SyncDir(l.dir))
}

// createLost makes a new file under lost/.
func (l *Log) createLost(stem string) (vfs.File, string, error) {
	if err := l.fs.MkdirAll(l.lostDir()); err != nil {
		return nil, "", err
	}
	for n := range maxLostNames {
		name := filepath.Join(segment.LostDir, fmt.Sprintf("%s.%d", stem, n))
		f, err := l.fs.OpenFile(filepath.Join(l.dir, name), vfs.CreateNew)
		if !errors.Is(err, fs.ErrExist) {
			return f, name, err
		}
	}
	return nil, "", fmt.Errorf("storage: no free name for %s in %s", stem, l.lostDir())
}

// moveToLost moves a file of the log under lost/.
func (l *Log) moveToLost(name string) (string, error) {
	f, to, err := l.createLost(name)
	if err != nil {
		return "", err
	}
	if err := f.Close(); err != nil {
		return "", err
	}
	if err := l.fs.Rename(filepath.Join(l.dir, name), filepath.Join(l.dir, to)); err != nil {
		return "", err
	}
	return to, l.syncLost()
}
