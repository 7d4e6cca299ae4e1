package dirlock

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/felixlog/felix/storage/vfs"
)

// Name is the file that is locked, in the directory it is about. It stays when the lock
// is let go.
const Name = "LOCK"

// maxNote bounds what is read of the file; no note is as long.
const maxNote = 64

// HeldError says that another process has a directory.
type HeldError struct {
	Path   string // the file that is locked
	Holder int    // the process that has it; 0 if the file does not say, or names one that is no more
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

// Content is what a file called LOCK says.
type Content int

const (
	Empty   Content = iota // nothing: just made, or by a program that writes nothing
	Noted                  // the id of a process, as Note writes it
	Foreign                // something that Note never wrote
)

// Take locks dir, which is there and ours to write in, and notes in the file who has it.
// Closing lets it go.
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

// Lock is Take without the note: for who only reads, and for who does not know yet whether
// the directory is its own. A file that is there is not changed.
func Lock(fsys vfs.FS, dir string) (io.Closer, error) {
	path := filepath.Join(dir, Name)
	lock, err := fsys.Lock(path)
	if errors.Is(err, vfs.ErrLocked) {
		return nil, &HeldError{Path: path, Holder: holder(fsys, path), Err: err}
	}
	return lock, err
}

// Note writes this process's id into the file, for whoever is refused. A foreign file is
// left as it is: it keeps others out all the same.
func Note(fsys vfs.FS, dir string) error {
	f, err := fsys.OpenFile(filepath.Join(dir, Name), vfs.ReadWrite)
	if err != nil {
		return err
	}
	content, _, err := read(f)
	if err == nil && content != Foreign {
		err = f.Truncate(0)
		if err == nil {
			_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		}
	}
	return errors.Join(err, f.Close())
}

// Look says what the file in dir holds.
func Look(fsys vfs.FS, dir string) (Content, error) {
	content, _, err := look(fsys, filepath.Join(dir, Name))
	return content, err
}

func look(fsys vfs.FS, path string) (Content, int, error) {
	f, err := fsys.OpenFile(path, vfs.ReadOnly)
	if err != nil {
		return 0, 0, err
	}
	content, pid, err := read(f)
	return content, pid, errors.Join(err, f.Close())
}

// read gives what f holds, and the process that it names.
func read(f vfs.File) (Content, int, error) {
	raw := make([]byte, maxNote)
	n, err := f.ReadAt(raw, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, 0, err
	}
	if n == len(raw) {
		return Foreign, 0, nil
	}
	// Zeros are what a power cut may leave of a note.
	text := strings.TrimRight(string(raw[:n]), "\x00")
	if text == "" {
		return Empty, 0, nil
	}
	text = strings.TrimSuffix(text, "\n")
	pid, err := strconv.Atoi(text)
	if err != nil || pid <= 0 || strconv.Itoa(pid) != text {
		return Foreign, 0, nil
	}
	return Noted, pid, nil
}

// holder is the process named in the file, 0 if none is. One that is no more is not named:
// who has the lock only reads, and the note is of who had it before.
func holder(fsys vfs.FS, path string) int {
	_, pid, err := look(fsys, path)
	if err != nil || pid == 0 {
		return 0
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return 0
	}
	gone := errors.Is(p.Signal(syscall.Signal(0)), os.ErrProcessDone)
	if err := p.Release(); err != nil || gone {
		return 0
	}
	return pid
}
