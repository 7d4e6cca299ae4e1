package vfs

import (
	"errors"
	"io"
	"io/fs"
	"syscall"
)

// ErrUnsupported reports that the file system cannot do what was asked (for
// example reserve blocks). A caller goes on without it.
var ErrUnsupported = errors.New("vfs: operation not supported")

// ErrLocked reports that another process holds the lock asked for.
var ErrLocked = errors.New("vfs: locked by another process")

// OutOfSpace reports whether err says that the file system, or the user's share of it, has
// no room.
func OutOfSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// FS is the file-system seam: everything the log does to a disk goes through it,
// so that a test can put a lying, failing or counting disk in its place. Names are
// slash-separated paths as the host understands them; an FS does not clean them.
// Errors wrap *fs.PathError, so errors.Is with fs.ErrNotExist, fs.ErrExist and
// syscall.ENOSPC works. Methods may be called from several goroutines.
type FS interface {
	// OpenFile opens name. See Flag for the modes.
	OpenFile(name string, flag Flag) (File, error)
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// RemoveAll removes name and what is below it; a missing name is no error.
	RemoveAll(name string) error
	// Rename replaces newName by oldName. It is durable only after SyncDir of
	// both parents.
	Rename(oldName, newName string) error
	// MkdirAll makes dir and its missing parents, mode 0700.
	MkdirAll(dir string) error
	// ReadDir lists dir, sorted by name.
	ReadDir(dir string) ([]fs.DirEntry, error)
	// Stat describes name, following links.
	Stat(name string) (fs.FileInfo, error)
	// SyncDir makes the entries of dir durable: files made, renamed, removed.
	SyncDir(dir string) error
	// Lock takes an exclusive advisory lock on the file name, making it if needed,
	// and holds it until the closer is closed or the process ends. ErrLocked when
	// somebody else holds it.
	Lock(name string) (io.Closer, error)
	// Usage says how much room the file system holding dir has.
	Usage(dir string) (Usage, error)
}

// Flag selects how OpenFile opens.
type Flag int

const (
	// ReadOnly opens an existing file for reading.
	ReadOnly Flag = iota
	// ReadWrite opens an existing file for reading and writing.
	ReadWrite
	// Create opens for reading and writing, making the file if it is missing.
	Create
	// CreateNew makes a file for reading and writing; fs.ErrExist if it is there.
	CreateNew
)

// File is one open file. All access is positioned; there is no shared cursor.
// Concurrent ReadAt and WriteAt of disjoint ranges are allowed.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Size is the file's length in bytes.
	Size() (int64, error)
	// Truncate sets the length; growing fills with zeros.
	Truncate(size int64) error
	// Sync flushes data and all metadata to the device (fsync).
	Sync() error
	// Datasync flushes data and the metadata needed to read it back, the length
	// included (fdatasync).
	Datasync() error
	// Allocate reserves blocks for [off, off+n). With keepSize the length stays.
	// ErrUnsupported where the file system cannot.
	Allocate(off, n int64, keepSize bool) error
	// StartWriteback asks the system to begin writing the dirty pages of
	// [off, off+n) without waiting. A hint: it promises nothing about durability.
	StartWriteback(off, n int64) error
	// Fd is the descriptor for system calls outside this seam (io_uring), or
	// ^uintptr(0) when the file has none.
	Fd() uintptr
}

// Usage is the room of a file system in bytes.
type Usage struct {
	Total int64
	Free  int64 // free for an ordinary user
}
