package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"
)

const (
	fileMode = 0o600
	dirMode  = 0o700
)

// osFS is the host's file system. It has no state.
type osFS struct{}

// OS returns the file system of the host. All values it returns are alike.
func OS() FS { return osFS{} }

func (osFS) OpenFile(name string, flag Flag) (File, error) {
	var mode int
	switch flag {
	case ReadOnly:
		mode = os.O_RDONLY
	case ReadWrite:
		mode = os.O_RDWR
	case Create:
		mode = os.O_RDWR | os.O_CREATE
	case CreateNew:
		mode = os.O_RDWR | os.O_CREATE | os.O_EXCL
	default:
		return nil, &fs.PathError{Op: "open", Path: name, Err: fmt.Errorf("flag %d: %w", flag, fs.ErrInvalid)}
	}
	f, err := os.OpenFile(name, mode, fileMode)
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &osFile{f: f, raw: raw}, nil
}

func (osFS) Remove(name string) error    { return os.Remove(name) }
func (osFS) RemoveAll(name string) error { return os.RemoveAll(name) }

func (osFS) Rename(oldName, newName string) error {
	err := os.Rename(oldName, newName)
	var link *os.LinkError
	if errors.As(err, &link) {
		// The os package reports a rename as a LinkError; the contract of FS is
		// *fs.PathError throughout.
		return fmt.Errorf("rename to %s: %w", newName, &fs.PathError{Op: "rename", Path: oldName, Err: link.Err})
	}
	return err
}

func (osFS) MkdirAll(dir string) error                 { return os.MkdirAll(dir, dirMode) }
func (osFS) ReadDir(dir string) ([]fs.DirEntry, error) { return os.ReadDir(dir) }
func (osFS) Stat(name string) (fs.FileInfo, error)     { return os.Stat(name) }
func (osFS) SyncDir(dir string) error                  { return syncDir(dir) }
func (osFS) Usage(dir string) (Usage, error)           { return usage(dir) }

func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, err
	}
	if err := lockFile(f); err != nil {
		return nil, errors.Join(&fs.PathError{Op: "lock", Path: name, Err: err}, f.Close())
	}
	// The lock lives as long as the open file. The file itself stays: removing it
	// would let a third process lock a new file of the same name while a second
	// one waits on the old.
	return f, nil
}

// osFile is one open file of the host.
type osFile struct {
	f   *os.File
	raw syscall.RawConn
}

func (f *osFile) ReadAt(p []byte, off int64) (int, error)  { return f.f.ReadAt(p, off) }
func (f *osFile) WriteAt(p []byte, off int64) (int, error) { return f.f.WriteAt(p, off) }
func (f *osFile) Close() error                             { return f.f.Close() }
func (f *osFile) Truncate(size int64) error                { return f.f.Truncate(size) }
func (f *osFile) Fd() uintptr                              { return f.f.Fd() }

// Sync of the os package is fsync, and F_FULLFSYNC where that is what reaches
// the device.
func (f *osFile) Sync() error { return f.f.Sync() }

func (f *osFile) Datasync() error { return f.datasync() }

func (f *osFile) Size() (int64, error) {
	info, err := f.f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f *osFile) Allocate(off, n int64, keepSize bool) error {
	if off < 0 || n <= 0 {
		return f.wrap("fallocate", fmt.Errorf("range [%d, +%d): %w", off, n, fs.ErrInvalid))
	}
	return f.allocate(off, n, keepSize)
}

func (f *osFile) StartWriteback(off, n int64) error {
	if off < 0 || n < 0 {
		return f.wrap("sync_file_range", fmt.Errorf("range [%d, +%d): %w", off, n, fs.ErrInvalid))
	}
	return f.startWriteback(off, n)
}

func (f *osFile) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		return err
	}
	return &fs.PathError{Op: op, Path: f.f.Name(), Err: err}
}

// control runs one system call on a file's descriptor while the descriptor is
// held open, so that a concurrent Close cannot hand its number to another file
// in the middle. The values are pooled with their closure: a flush allocates
// nothing.
type control struct {
	call func(fd int) error
	err  error
	run  func(fd uintptr)
}

var controls = sync.Pool{New: func() any {
	c := &control{}
	c.run = func(fd uintptr) { c.err = c.call(int(fd)) }
	return c
}}

// descriptor runs call with f's descriptor and wraps its error with op.
func (f *osFile) descriptor(op string, call func(fd int) error) error {
	c := controls.Get().(*control)
	c.call, c.err = call, nil
	var err error
	if f.raw.Control(c.run) != nil {
		err = fs.ErrClosed // the one reason for which Control does not run
	} else {
		err = c.err
	}
	c.call, c.err = nil, nil
	controls.Put(c)
	return f.wrap(op, err)
}
