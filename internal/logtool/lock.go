package logtool

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/felixlog/felix/internal/dirlock"
	"github.com/felixlog/felix/storage/vfs"
)

const lockName = dirlock.Name

// locks are let go together.
type locks []io.Closer

func (l locks) Close() error {
	var all []error
	for _, lock := range slices.Backward(l) {
		all = append(all, lock.Close())
	}
	return errors.Join(all...)
}

// lockRoot takes the locks that keep others from dir: those of the directory itself, of
// the storage directory and of the data root that it lies in, found by walking up the
// real path, whichever links dir was named by. Outside of all of them a writer makes dir
// and a lock in it, and a reader, which changes nothing, goes without. A directory that
// cannot be written, such as that of a read-only copy, cannot be in use.
func lockRoot(fsys vfs.FS, dir string, write bool) (_ io.Closer, err error) {
	at, err := realPath(dir)
	if err != nil {
		return nil, fmt.Errorf("find the data root of %s: %w", dir, err)
	}
	var held locks
	found := false
	defer func() {
		if err != nil {
			err = errors.Join(err, held.Close())
		}
	}()
	take := func(at string) error {
		lock, err := dirlock.Take(fsys, at)
		var other *dirlock.HeldError
		switch {
		case errors.As(err, &other):
			return fmt.Errorf("%s is in use: %w; stop it, or use --read-only with verify and dump", dir, err)
		case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
			return nil
		case err != nil:
			return fmt.Errorf("lock %s: %w", filepath.Join(at, lockName), err)
		}
		held = append(held, lock)
		return nil
	}
	for up := at; ; up = filepath.Dir(up) {
		info, err := fsys.Stat(filepath.Join(up, lockName))
		switch {
		case err == nil && info.Mode().IsRegular():
			found = true
			if err := take(up); err != nil {
				return nil, err
			}
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.ENOTDIR):
			return nil, fmt.Errorf("find the data root of %s: %w", dir, err)
		}
		if filepath.Dir(up) == up {
			break
		}
	}
	if found || !write {
		return held, nil
	}
	if err := fsys.MkdirAll(at); err != nil {
		return nil, fmt.Errorf("make %s: %w", dir, err)
	}
	if err := take(at); err != nil {
		return nil, err
	}
	return held, nil
}

// realPath is dir without links, as far as it is there.
func realPath(dir string) (string, error) {
	at, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	missing := ""
	for {
		path, err := filepath.EvalSymlinks(at)
		switch up := filepath.Dir(at); {
		case err == nil:
			return filepath.Join(path, missing), nil
		case errors.Is(err, fs.ErrNotExist) && up != at:
			at, missing = up, filepath.Join(filepath.Base(at), missing)
		case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ENOTDIR):
			return filepath.Join(at, missing), nil // what uses it says what is wrong with it
		default:
			return "", err
		}
	}
}
