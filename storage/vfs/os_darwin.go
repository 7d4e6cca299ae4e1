package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// datasync is Sync: macOS has one call that reaches the device, F_FULLFSYNC,
// and it is the one os.File.Sync makes.
func (f *osFile) datasync() error { return f.f.Sync() }

func (f *osFile) allocate(off, n int64, keepSize bool) error {
	if !keepSize {
		return f.wrap("fallocate", ErrUnsupported)
	}
	size, err := f.Size()
	if err != nil {
		return err
	}
	// F_PEOFPOSMODE reserves from the physical end of the file, so only what is
	// missing beyond the length is asked for.
	missing := off + n - size
	if missing <= 0 {
		return nil
	}
	return f.descriptor("fallocate", func(fd int) error {
		store := unix.Fstore_t{Flags: unix.F_ALLOCATEALL, Posmode: unix.F_PEOFPOSMODE, Length: missing}
		err := unix.FcntlFstore(uintptr(fd), unix.F_PREALLOCATE, &store)
		if errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("%w (%v)", ErrUnsupported, err)
		}
		return err
	})
}

func (f *osFile) startWriteback(off, n int64) error {
	return f.wrap("sync_file_range", ErrUnsupported)
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
	if err := unix.Statfs(dir, &st); err != nil {
		return Usage{}, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	unit := int64(st.Bsize)
	return Usage{Total: int64(st.Blocks) * unit, Free: int64(st.Bavail) * unit}, nil
}
