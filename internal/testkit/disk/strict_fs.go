package disk

import (
	"io"
	"io/fs"
	"strings"
	"syscall"
	"time"

	"github.com/felixlog/felix/storage/vfs"
)

// OpenFile implements vfs.FS.
func (d *Strict) OpenFile(name string, flag vfs.Flag) (vfs.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, op, err := d.open(name, flag)
	if err != nil {
		return nil, wrap(op, name, err)
	}
	return &strictFile{disk: d, inode: f, name: name, readOnly: flag == vfs.ReadOnly}, nil
}

// open finds or makes a file and takes a descriptor for it. Caller holds d.mu.
func (d *Strict) open(name string, flag vfs.Flag) (*inode, Op, error) {
	if err := d.alive(); err != nil {
		return nil, OpOpen, err
	}
	if d.mu.opts.MaxOpen > 0 && d.mu.opens >= d.mu.opts.MaxOpen {
		return nil, OpOpen, syscall.EMFILE
	}
	f, err := d.lookup(name)
	switch {
	case err == nil && flag == vfs.CreateNew:
		return nil, OpOpen, syscall.EEXIST
	case err == nil && f.dir:
		return nil, OpOpen, syscall.EISDIR
	case err == syscall.ENOENT && (flag == vfs.Create || flag == vfs.CreateNew):
		dir, elem, err := d.parent(name)
		if err != nil {
			return nil, OpCreate, err
		}
		err = d.step(Event{Op: OpCreate, Path: name}, func(bool) error {
			f = newFile()
			d.mu.apply(change{dir, elem, f})
			return nil
		})
		if err != nil {
			return nil, OpCreate, err
		}
	case err != nil:
		return nil, OpOpen, err
	}
	d.mu.held[f]++
	d.mu.opens++
	return f, OpOpen, nil
}

// release gives a descriptor back. Caller holds d.mu.
func (d *Strict) release(f *inode) {
	if d.mu.held[f]--; d.mu.held[f] == 0 {
		delete(d.mu.held, f)
	}
	d.mu.opens--
}

// Remove implements vfs.FS.
func (d *Strict) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return wrap(OpRemove, name, d.remove(name))
}

// remove takes one name away. Caller holds d.mu.
func (d *Strict) remove(name string) error {
	if err := d.alive(); err != nil {
		return err
	}
	f, err := d.lookup(name)
	if err != nil {
		return err
	}
	dir, elem, err := d.parent(name)
	if err != nil {
		return err
	}
	if f.dir && len(f.entries) > 0 {
		return syscall.ENOTEMPTY
	}
	return d.step(Event{Op: OpRemove, Path: name}, func(bool) error {
		d.mu.apply(change{dir, elem, nil})
		return nil
	})
}

// RemoveAll implements vfs.FS. Every name removed is an operation of its own.
func (d *Strict) RemoveAll(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.removeAll(name)
	if err == syscall.ENOENT || err == syscall.ENOTDIR {
		return nil
	}
	return wrap(OpRemove, name, err)
}

func (d *Strict) removeAll(name string) error {
	if err := d.alive(); err != nil {
		return err
	}
	f, err := d.lookup(name)
	if err != nil {
		return err
	}
	if f.dir {
		for _, elem := range sortedNames(f.entries) {
			if err := d.removeAll(strings.TrimSuffix(name, "/") + "/" + elem); err != nil {
				return err
			}
		}
	}
	return d.remove(name)
}

// Rename implements vfs.FS.
func (d *Strict) Rename(oldName, newName string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return wrap(OpRename, oldName, d.rename(oldName, newName))
}

func (d *Strict) rename(oldName, newName string) error {
	if err := d.alive(); err != nil {
		return err
	}
	f, err := d.lookup(oldName)
	if err != nil {
		return err
	}
	from, fromElem, err := d.parent(oldName)
	if err != nil {
		return err
	}
	to, toElem, err := d.parent(newName)
	if err != nil {
		return err
	}
	target := to.entries[toElem]
	switch {
	case target == f:
		return nil
	case target != nil && target.dir && !f.dir:
		return syscall.EISDIR
	case target != nil && !target.dir && f.dir:
		return syscall.ENOTDIR
	case target != nil && target.dir && len(target.entries) > 0:
		return syscall.ENOTEMPTY
	case f.dir && within(f, to):
		return syscall.EINVAL
	}
	return d.step(Event{Op: OpRename, Path: oldName + " -> " + newName}, func(bool) error {
		d.mu.apply(change{from, fromElem, nil}, change{to, toElem, f})
		return nil
	})
}

// within reports whether dir is f or lies below it.
func within(f, dir *inode) bool {
	if f == dir {
		return true
	}
	for _, child := range f.entries {
		if child.dir && within(child, dir) {
			return true
		}
	}
	return false
}

// MkdirAll implements vfs.FS. Every directory made is an operation of its own.
func (d *Strict) MkdirAll(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.alive(); err != nil {
		return wrap(OpMkdir, name, err)
	}
	dir := d.mu.root
	made := ""
	for _, elem := range split(name) {
		made += "/" + elem
		next := dir.entries[elem]
		if next == nil {
			next = newDir()
			err := d.step(Event{Op: OpMkdir, Path: made}, func(bool) error {
				d.mu.apply(change{dir, elem, next})
				return nil
			})
			if err != nil {
				return wrap(OpMkdir, name, err)
			}
		}
		if !next.dir {
			return wrap(OpMkdir, name, syscall.ENOTDIR)
		}
		dir = next
	}
	return nil
}

// ReadDir implements vfs.FS.
func (d *Strict) ReadDir(name string) ([]fs.DirEntry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	dir, err := d.find(name)
	if err == nil && !dir.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, wrap(OpReadDir, name, err)
	}
	list := make([]fs.DirEntry, 0, len(dir.entries))
	for _, elem := range sortedNames(dir.entries) {
		list = append(list, fs.FileInfoToDirEntry(infoOf(elem, dir.entries[elem])))
	}
	return list, nil
}

// Stat implements vfs.FS. Times are the Unix epoch.
func (d *Strict) Stat(name string) (fs.FileInfo, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, err := d.find(name)
	if err != nil {
		return nil, wrap(OpStat, name, err)
	}
	base := "/"
	if elems := split(name); len(elems) > 0 {
		base = elems[len(elems)-1]
	}
	return infoOf(base, f), nil
}

// find is lookup with the power on. Caller holds d.mu.
func (d *Strict) find(name string) (*inode, error) {
	if err := d.alive(); err != nil {
		return nil, err
	}
	return d.lookup(name)
}

// SyncDir implements vfs.FS.
func (d *Strict) SyncDir(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	dir, err := d.find(name)
	if err == nil && !dir.dir {
		err = syscall.ENOTDIR
	}
	if err == nil {
		err = d.step(Event{Op: OpSyncDir, Path: name}, func(bool) error {
			d.mu.namespace.sync(dir)
			return nil
		})
	}
	return wrap(OpSyncDir, name, err)
}

// Lock implements vfs.FS.
func (d *Strict) Lock(name string) (io.Closer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, _, err := d.open(name, vfs.Create)
	if err != nil {
		return nil, wrap(OpLock, name, err)
	}
	if d.mu.locks[f] {
		d.release(f)
		return nil, wrap(OpLock, name, vfs.ErrLocked)
	}
	d.mu.locks[f] = true
	return &strictLock{strictFile{disk: d, inode: f, name: name}}, nil
}

// Usage implements vfs.FS.
func (d *Strict) Usage(name string) (vfs.Usage, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.find(name); err != nil {
		return vfs.Usage{}, wrap(OpUsage, name, err)
	}
	free := d.room()
	total := d.mu.opts.Capacity
	if total == 0 {
		total = free
	}
	return vfs.Usage{Total: total, Free: free}, nil
}

// fileInfo is a fixed description of a file.
type fileInfo struct {
	name string
	size int64
	dir  bool
}

func infoOf(name string, f *inode) fileInfo {
	return fileInfo{name: name, size: int64(len(f.data)), dir: f.dir}
}

func (i fileInfo) Name() string       { return i.name }
func (i fileInfo) Size() int64        { return i.size }
func (i fileInfo) ModTime() time.Time { return time.Unix(0, 0) }
func (i fileInfo) IsDir() bool        { return i.dir }
func (i fileInfo) Sys() any           { return nil }

func (i fileInfo) Mode() fs.FileMode {
	if i.dir {
		return fs.ModeDir | 0o700
	}
	return 0o600
}
