package logtool

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/felixlog/felix/storage/vfs"
)

const lockName = "LOCK"

type noLock struct{}

func (noLock) Close() error { return nil }

// lockRoot takes the lock of the data root that dir lies in, found by walking up. A
// directory outside any data root has no lock, and one that cannot be written, such as
// that of a read-only copy, cannot be in use.
func lockRoot(fsys vfs.FS, dir string) (io.Closer, error) {
	at, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find the data root of %s: %w", dir, err)
	}
	for {
		name := filepath.Join(at, lockName)
		info, err := fsys.Stat(name)
		switch {
		case err == nil && info.Mode().IsRegular():
			lock, err := fsys.Lock(name)
			switch {
			case errors.Is(err, vfs.ErrLocked):
				return nil, fmt.Errorf("%s is in use: %s is locked by a running broker; stop it, or use --read-only with verify and dump: %w", dir, name, err)
			case errors.Is(err, fs.ErrPermission):
				return noLock{}, nil
			case err != nil:
				return nil, fmt.Errorf("lock %s: %w", name, err)
			}
			return lock, nil
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.ENOTDIR):
			return nil, fmt.Errorf("find the data root of %s: %w", dir, err)
		}
		up := filepath.Dir(at)
		if up == at {
			return noLock{}, nil
		}
		at = up
	}
}
