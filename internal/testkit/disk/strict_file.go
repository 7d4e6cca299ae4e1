package disk

import (
	"hash/fnv"
	"io"
	"io/fs"
	"syscall"

	"github.com/felixlog/felix/storage/vfs"
)

// maxFile bounds a file in memory, so that a position gone wrong is an error and
// not an allocation: 1 GiB.
const maxFile = 1 << 30

// strictFile is an open file of a Strict.
type strictFile struct {
	disk     *Strict
	inode    *inode
	name     string
	readOnly bool
	closed   bool // under disk.mu
}

// strictLock is a held lock.
type strictLock struct{ strictFile }

func (l *strictLock) Close() error {
	l.disk.mu.Lock()
	delete(l.disk.mu.locks, l.inode)
	l.disk.mu.Unlock()
	return l.strictFile.Close()
}

// usable checks the handle. Caller holds disk.mu.
func (f *strictFile) usable(writing bool) error {
	switch {
	case f.disk.mu.off:
		return ErrPowerOff
	case f.closed:
		return fs.ErrClosed
	case writing && f.readOnly:
		return syscall.EBADF
	}
	return nil
}

// step runs a counted operation on the file.
func (f *strictFile) step(e Event, writing bool, do func(last bool) error) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	e.Path = f.name
	err := f.usable(writing)
	if err == nil {
		err = f.disk.step(e, do)
	}
	return wrap(e.Op, f.name, err)
}

func (f *strictFile) ReadAt(p []byte, off int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.usable(false); err != nil {
		return 0, wrap(OpRead, f.name, err)
	}
	if off < 0 {
		return 0, wrap(OpRead, f.name, syscall.EINVAL)
	}
	n := 0
	if off < int64(len(f.inode.data)) {
		n = copy(p, f.inode.data[off:])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *strictFile) WriteAt(p []byte, off int64) (int, error) {
	// What is written goes into the trace's hash, not into the trace.
	sum := fnv.New64a()
	sum.Write(p)
	n := 0
	err := f.step(Event{Op: OpWrite, Off: off, Len: int64(len(p))}, true, func(last bool) error {
		if off < 0 || off > maxFile || int64(len(p)) > maxFile-off {
			return syscall.EFBIG
		}
		f.disk.mu.sum.Write(sum.Sum(nil))
		part := p
		if last {
			// A write that is interrupted ends between two pages of the cache.
			end := off + f.disk.mu.rand.Int64N(int64(len(p))+blockSize)
			end = min(end/blockSize*blockSize, off+int64(len(p)))
			part = p[:max(end-off, 0)]
		}
		limit := roundUp(f.inode.blocks()) + f.disk.room()
		var err error
		if off+int64(len(part)) > limit {
			part, err = part[:max(limit-off, 0)], syscall.ENOSPC
		}
		f.inode.write(part, off)
		n = len(part)
		return err
	})
	if err != nil && f.disk.Off() {
		n = 0
	}
	return n, err
}

func (f *strictFile) Close() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.usable(false); err != nil {
		return wrap(OpClose, f.name, err)
	}
	f.closed = true
	f.disk.release(f.inode)
	return nil
}

func (f *strictFile) Size() (int64, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.usable(false); err != nil {
		return 0, wrap(OpSize, f.name, err)
	}
	return int64(len(f.inode.data)), nil
}

func (f *strictFile) Truncate(size int64) error {
	return f.step(Event{Op: OpTruncate, Off: size}, true, func(bool) error {
		if size < 0 || size > maxFile {
			return syscall.EINVAL
		}
		if roundUp(size)-f.inode.blocks() > f.disk.room() {
			return syscall.ENOSPC
		}
		f.inode.truncate(size)
		return nil
	})
}

func (f *strictFile) Sync() error     { return f.flush(OpSync) }
func (f *strictFile) Datasync() error { return f.flush(OpDatasync) }

func (f *strictFile) flush(op Op) error {
	return f.step(Event{Op: op}, false, func(bool) error {
		f.inode.flush()
		return nil
	})
}

// failFlush is what a flush does that fails and drops: the sectors that were dirty
// are never written unless they are written anew.
func (f *strictFile) failFlush(op Op, err error) error {
	return f.step(Event{Op: op}, false, func(bool) error {
		f.inode.giveUp()
		if f.disk.mu.rand.IntN(4) == 0 {
			f.inode.evict(f.disk.mu.rand)
		}
		return err
	})
}

func (f *strictFile) Allocate(off, n int64, keepSize bool) error {
	return f.step(Event{Op: OpAllocate, Off: off, Len: n}, true, func(bool) error {
		if off < 0 || n <= 0 || off > maxFile || n > maxFile-off {
			return syscall.EINVAL
		}
		if f.disk.mu.opts.NoAllocate {
			return vfs.ErrUnsupported
		}
		end := off + n
		if roundUp(end)-f.inode.blocks() > f.disk.room() {
			return syscall.ENOSPC
		}
		f.inode.reserved = max(f.inode.reserved, end)
		if !keepSize {
			f.inode.grow(end)
		}
		return nil
	})
}

// StartWriteback changes nothing a power cut does not decide anyway.
func (f *strictFile) StartWriteback(off, n int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	err := f.usable(true)
	if err == nil && (off < 0 || n < 0) {
		err = syscall.EINVAL
	}
	return wrap(OpWriteback, f.name, err)
}

func (f *strictFile) Fd() uintptr { return ^uintptr(0) }
