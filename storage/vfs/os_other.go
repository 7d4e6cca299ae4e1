//go:build !linux && !darwin

package vfs

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
)

// datasync is the full flush where the system has no lesser one.
func (f *osFile) datasync() error { return f.f.Sync() }

func (f *osFile) allocate(off, n int64, keepSize bool) error {
	return f.wrap("fallocate", ErrUnsupported)
}

func (f *osFile) startWriteback(off, n int64) error {
	return f.wrap("sync_file_range", ErrUnsupported)
}

func syncDir(dir string) error {
	if runtime.GOOS == "windows" || runtime.GOOS == "plan9" {
		// A directory cannot be flushed there; saying it was would be a lie.
		return &fs.PathError{Op: "fsync", Path: dir, Err: ErrUnsupported}
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func usage(dir string) (Usage, error) {
	return Usage{}, &fs.PathError{Op: "statfs", Path: dir, Err: ErrUnsupported}
}
