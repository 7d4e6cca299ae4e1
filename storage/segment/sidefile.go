package segment

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/felixlog/felix/storage/vfs"
)

// WriteFile puts data in place of dir/name so that after a crash the file is the old or
// the new one: a temporary beside it, flushed, renamed, and the directory flushed.
func WriteFile(fsys vfs.FS, dir, name string, data []byte) error {
	if err := putFile(fsys, dir, name, data, true); err != nil {
		return err
	}
	if err := fsys.SyncDir(dir); err != nil {
		return fmt.Errorf("segment: write %s: %w", name, err)
	}
	return nil
}

// WriteDerived puts data in place of dir/name without flushing anything: after a kill the
// file is the old or the new one, after a power cut it may be anything. It is for files
// that are made again from the log whenever they do not hold what they should.
func WriteDerived(fsys vfs.FS, dir, name string, data []byte) error {
	return putFile(fsys, dir, name, data, false)
}

func putFile(fsys vfs.FS, dir, name string, data []byte, flush bool) error {
	temp := filepath.Join(dir, TempName(name))
	if err := writeWhole(fsys, temp, data, flush); err != nil {
		return fmt.Errorf("segment: write %s: %w", name, errors.Join(err, removeIfThere(fsys, temp)))
	}
	if err := fsys.Rename(temp, filepath.Join(dir, name)); err != nil {
		return fmt.Errorf("segment: write %s: %w", name, errors.Join(err, removeIfThere(fsys, temp)))
	}
	return nil
}

func writeWhole(fsys vfs.FS, path string, data []byte, flush bool) error {
	f, err := fsys.OpenFile(path, vfs.Create)
	if err != nil {
		return err
	}
	err = func() error {
		if err := f.Truncate(0); err != nil {
			return err
		}
		if n, err := f.WriteAt(data, 0); err != nil {
			return err
		} else if n < len(data) {
			return io.ErrShortWrite
		}
		if !flush {
			return nil
		}
		return f.Sync()
	}()
	return errors.Join(err, f.Close())
}

func removeIfThere(fsys vfs.FS, path string) error {
	if err := fsys.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ReadFile reads the whole of dir/name, at most limit bytes: a longer file is a
// *Corruption of kind SideFileDamaged, found before anything is allocated. A missing
// file is fs.ErrNotExist.
func ReadFile(fsys vfs.FS, dir, name string, limit int64) (data []byte, err error) {
	f, err := fsys.OpenFile(filepath.Join(dir, name), vfs.ReadOnly)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, sideDamage(name, "%d bytes, at most %d are expected", size, limit)
	}
	data = make([]byte, size)
	n, err := f.ReadAt(data, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return data[:n], nil
}

func sideDamage(name, format string, args ...any) *Corruption {
	c := corrupt(SideFileDamaged, format, args...)
	c.File = name
	return c
}
