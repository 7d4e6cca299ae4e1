package dirlock

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/felixlog/felix/storage/vfs"
)

// Name is the file that is locked, in the directory it is about. It stays when the lock
// is let go.
const Name = "LOCK"

// maxNote bounds what is read of the file.
const maxNote = 64

// HeldError says that another process has a directory.
type HeldError struct {
	Path   string // the file that is locked
	Holder int    // the process that has it; 0 if the file does not say
	Err    error
}

func (e *HeldError) Error() string {
	s := e.Path + " is locked by another process"
	if e.Holder != 0 {
		s += " (" + strconv.Itoa(e.Holder) + ")"
	}
	return s
}

func (e *HeldError) Unwrap() error { return e.Err }

// Take locks dir, which is there, and notes in the file who has it. Closing lets it go.
func Take(fsys vfs.FS, dir string) (io.Closer, error) {
	lock, err := Lock(fsys, dir)
	if err != nil {
		return nil, err
	}
	if err := Note(fsys, dir); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// Lock is Take without the note.
func Lock(fsys vfs.FS, dir string) (io.Closer, error) {
	path := filepath.Join(dir, Name)
	lock, err := fsys.Lock(path)
	if errors.Is(err, vfs.ErrLocked) {
		return nil, &HeldError{Path: path, Holder: holder(fsys, path), Err: err}
	}
	return lock, err
}

// Note writes this process's id into the file, for whoever is refused.
func Note(fsys vfs.FS, dir string) error {
	f, err := fsys.OpenFile(filepath.Join(dir, Name), vfs.ReadWrite)
	if err != nil {
		return err
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return errors.Join(err, f.Close())
}

// holder is the process named in the file, 0 if none is.
func holder(fsys vfs.FS, path string) int {
	f, err := fsys.OpenFile(path, vfs.ReadOnly)
	if err != nil {
		return 0
	}
	raw := make([]byte, maxNote)
	n, err := f.ReadAt(raw, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	pid, perr := strconv.Atoi(strings.TrimSpace(string(raw[:n])))
	if errors.Join(err, perr, f.Close()) != nil {
		return 0
	}
	return pid
}
