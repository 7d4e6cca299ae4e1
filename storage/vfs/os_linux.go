package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// retry repeats a system call that a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func fdatasync(fd int) error {
	for {
		if err := unix.Fdatasync(fd); err != unix.EINTR {
			return err
		}
	}
}

func (f *osFile) datasync() error { return f.descriptor("fdatasync", fdatasync) }

func (f *osFile) allocate(off, n int64, keepSize bool) error {
	var mode uint32
	if keepSize {
		mode = unix.FALLOC_FL_KEEP_SIZE
	}
	return f.descriptor("fallocate", func(fd int) error {
		err := retry(func() error { return unix.Fallocate(fd, mode, off, n) })
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
			return fmt.Errorf("%w (%v)", ErrUnsupported, err)
		}
		return err
	})
}

func (f *osFile) startWriteback(off, n int64) error {
	return f.descriptor("sync_file_range", func(fd int) error {
		err := retry(func() error { return unix.SyncFileRange(fd, off, n, unix.SYNC_FILE_RANGE_WRITE) })
		if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ESPIPE) {
			return fmt.Errorf("%w (%v)", ErrUnsupported, err)
		}
		return err
	})
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func usage(dir string) (Usage, error) {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Statfs(dir, &st) }); err != nil {
		return Usage{}, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	// Block counts are in fragments; file systems without fragments report 0.
	unit := int64(st.Frsize)
	if unit == 0 {
		unit = int64(st.Bsize)
	}
	return Usage{Total: int64(st.Blocks) * unit, Free: int64(st.Bavail) * unit}, nil
}
