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
type locks struct {
	fsys  vfs.FS
	held  []io.Closer
	notes []string // the directories whose locks may say who has them
}

func (l *locks) Close() error {
	var all []error
	for _, lock := range slices.Backward(l.held) {
		all = append(all, lock.Close())
	}
	return errors.Join(all...)
}

// note has the locks say who has them, once a writer has found a log that it can write.
func (l *locks) note() error {
	for _, at := range l.notes {
		if err := dirlock.Note(l.fsys, at); err != nil {
			return fmt.Errorf("write %s: %w", filepath.Join(at, lockName), err)
		}
	}
	return nil
}

// lockRoot takes the locks that keep others from dir: those of the directory itself, of
// the storage directory and of the data root that it lies in, found by walking up the
// real path, whichever links dir was named by. Outside of all of them a writer makes dir
// and a lock in it, and a reader, which changes nothing, goes without. A directory that
// cannot be written, such as that of a read-only copy, cannot be in use. On the way up a
// file of that name that says what no broker writes is another program's, and left alone.
func lockRoot(fsys vfs.FS, dir string, write bool) (_ *locks, err error) {
	at, err := realPath(dir)
	if err != nil {
		return nil, fmt.Errorf("find the data root of %s: %w", dir, err)
	}
	held := &locks{fsys: fsys}
	defer func() {
		if err != nil {
			err = errors.Join(err, held.Close())
		}
	}()
	take := func(up string, content dirlock.Content) error {
		lock, err := dirlock.Lock(fsys, up)
		var other *dirlock.HeldError
		switch {
		case errors.As(err, &other):
			return fmt.Errorf("%s is in use: %w; stop it, or use --read-only with verify and dump", dir, err)
		case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
			return nil
		case err != nil:
			return fmt.Errorf("lock %s: %w", filepath.Join(up, lockName), err)
		}
		held.held = append(held.held, lock)
		// A writer's note goes into the directory itself, and above it where there was one:
		// an empty file there may be anybody's.
		if up == at || content == dirlock.Noted {
			held.notes = append(held.notes, up)
		}
		return nil
	}
	for up := at; ; up = filepath.Dir(up) {
		info, err := fsys.Stat(filepath.Join(up, lockName))
		switch {
		case err == nil && info.Mode().IsRegular():
			content, err := dirlock.Look(fsys, up)
			if err != nil {
				content = dirlock.Empty // whether it can be locked says more
			}
			if content == dirlock.Foreign && up != at {
				break
			}
			if err := take(up, content); err != nil {
				return nil, err
			}
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.ENOTDIR):
			return nil, fmt.Errorf("find the data root of %s: %w", dir, err)
		}
		if filepath.Dir(up) == up {
			break
		}
	}
	if len(held.held) > 0 || !write {
		return held, nil
	}
	if err := fsys.MkdirAll(at); err != nil {
		return nil, fmt.Errorf("make %s: %w", dir, err)
	}
	if err := take(at, dirlock.Empty); err != nil {
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
