package disk

import (
	"io"
	"io/fs"
	"sync"

	"github.com/felixlog/felix/storage/vfs"
)

// Counts is what happened on a Counting, on one path or all. Operations are
// counted when they begin, whatever becomes of them.
type Counts struct {
	Ops        [opCount]int64 // by kind; use Of
	ReadBytes  int64          // bytes read
	WriteBytes int64          // bytes written
	Open       int            // files and locks open now
	MaxOpen    int            // most open at once
}

// Of counts operations of a kind; OpFlush is OpSync and OpDatasync together, OpAny
// everything.
func (c Counts) Of(op Op) int64 {
	var n int64
	for kind := OpFlush + 1; kind < opEnd; kind++ {
		if op.covers(kind) {
			n += c.Ops[kind]
		}
	}
	return n
}

// Flushes counts Sync and Datasync.
func (c Counts) Flushes() int64 { return c.Of(OpFlush) }

// Writes counts WriteAt.
func (c Counts) Writes() int64 { return c.Of(OpWrite) }

func (c *Counts) add(o Counts) {
	for i := range c.Ops {
		c.Ops[i] += o.Ops[i]
	}
	c.ReadBytes += o.ReadBytes
	c.WriteBytes += o.WriteBytes
	c.Open += o.Open
}

// Counting counts what goes through to another file system.
type Counting struct {
	inner vfs.FS
	mu    struct {
		sync.Mutex
		paths   map[string]*Counts
		open    int
		maxOpen int
	}
}

// NewCounting returns inner with all counts at zero.
func NewCounting(inner vfs.FS) *Counting {
	c := &Counting{inner: inner}
	c.mu.paths = map[string]*Counts{}
	return c
}

// Total is the sum over all paths.
func (c *Counting) Total() Counts { return c.Path("") }

// Path is the sum over the paths that fit pattern, which reads as a Rule's does.
// MaxOpen is the disk's in any case.
func (c *Counting) Path(pattern string) Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	var sum Counts
	for name, counts := range c.mu.paths {
		if matchPath(pattern, name) {
			sum.add(*counts)
		}
	}
	sum.MaxOpen = c.mu.maxOpen
	return sum
}

// Reset sets all counts to zero but those of open files, which still are open.
func (c *Counting) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, counts := range c.mu.paths {
		*counts = Counts{Open: counts.Open}
	}
	c.mu.maxOpen = c.mu.open
}

// count adds one operation on name; change may add more to the same path.
func (c *Counting) count(op Op, name string, change func(*Counts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := c.mu.paths[name]
	if counts == nil {
		counts = &Counts{}
		c.mu.paths[name] = counts
	}
	if op != OpAny {
		counts.Ops[op]++
	}
	if change != nil {
		change(counts)
	}
}

func (c *Counting) opened(name string, n int) {
	c.count(OpAny, name, func(counts *Counts) {
		counts.Open += n
		c.mu.open += n
		c.mu.maxOpen = max(c.mu.maxOpen, c.mu.open)
	})
}

func (c *Counting) OpenFile(name string, flag vfs.Flag) (vfs.File, error) {
	op := OpOpen
	if flag == vfs.Create || flag == vfs.CreateNew {
		if _, err := c.inner.Stat(name); err != nil {
			op = OpCreate
		}
	}
	c.count(op, name, nil)
	f, err := c.inner.OpenFile(name, flag)
	if err != nil {
		return nil, err
	}
	c.opened(name, 1)
	return &countingFile{counting: c, inner: f, name: name}, nil
}

func (c *Counting) Remove(name string) error {
	c.count(OpRemove, name, nil)
	return c.inner.Remove(name)
}

// RemoveAll counts as one operation.
func (c *Counting) RemoveAll(name string) error {
	c.count(OpRemove, name, nil)
	return c.inner.RemoveAll(name)
}

// Rename counts on the old name.
func (c *Counting) Rename(oldName, newName string) error {
	c.count(OpRename, oldName, nil)
	return c.inner.Rename(oldName, newName)
}

func (c *Counting) MkdirAll(dir string) error {
	c.count(OpMkdir, dir, nil)
	return c.inner.MkdirAll(dir)
}

func (c *Counting) ReadDir(dir string) ([]fs.DirEntry, error) {
	c.count(OpReadDir, dir, nil)
	return c.inner.ReadDir(dir)
}

func (c *Counting) Stat(name string) (fs.FileInfo, error) {
	c.count(OpStat, name, nil)
	return c.inner.Stat(name)
}

func (c *Counting) SyncDir(dir string) error {
	c.count(OpSyncDir, dir, nil)
	return c.inner.SyncDir(dir)
}

func (c *Counting) Lock(name string) (io.Closer, error) {
	c.count(OpLock, name, nil)
	lock, err := c.inner.Lock(name)
	if err != nil {
		return nil, err
	}
	c.opened(name, 1)
	return &countingLock{c, lock, name}, nil
}

func (c *Counting) Usage(dir string) (vfs.Usage, error) {
	c.count(OpUsage, dir, nil)
	return c.inner.Usage(dir)
}

type countingLock struct {
	counting *Counting
	inner    io.Closer
	name     string
}

func (l *countingLock) Close() error {
	err := l.inner.Close()
	if err == nil {
		l.counting.opened(l.name, -1)
	}
	return err
}

// countingFile is an open file of a Counting.
type countingFile struct {
	counting *Counting
	inner    vfs.File
	name     string
}

func (f *countingFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.inner.ReadAt(p, off)
	f.counting.count(OpRead, f.name, func(c *Counts) { c.ReadBytes += int64(n) })
	return n, err
}

func (f *countingFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.inner.WriteAt(p, off)
	f.counting.count(OpWrite, f.name, func(c *Counts) { c.WriteBytes += int64(n) })
	return n, err
}

func (f *countingFile) Close() error {
	f.counting.count(OpClose, f.name, nil)
	err := f.inner.Close()
	if err == nil {
		f.counting.opened(f.name, -1)
	}
	return err
}

func (f *countingFile) Size() (int64, error) {
	f.counting.count(OpSize, f.name, nil)
	return f.inner.Size()
}

func (f *countingFile) Truncate(size int64) error {
	f.counting.count(OpTruncate, f.name, nil)
	return f.inner.Truncate(size)
}

func (f *countingFile) Sync() error {
	f.counting.count(OpSync, f.name, nil)
	return f.inner.Sync()
}

func (f *countingFile) Datasync() error {
	f.counting.count(OpDatasync, f.name, nil)
	return f.inner.Datasync()
}

func (f *countingFile) failFlush(op Op, err error) error {
	f.counting.count(op, f.name, nil)
	if inner, ok := f.inner.(flushFailer); ok {
		return inner.failFlush(op, err)
	}
	return wrap(op, f.name, err)
}

func (f *countingFile) Allocate(off, n int64, keepSize bool) error {
	f.counting.count(OpAllocate, f.name, nil)
	return f.inner.Allocate(off, n, keepSize)
}

func (f *countingFile) StartWriteback(off, n int64) error {
	f.counting.count(OpWriteback, f.name, nil)
	return f.inner.StartWriteback(off, n)
}

// Fd hides the descriptor: what goes past this seam would not be counted.
func (f *countingFile) Fd() uintptr { return ^uintptr(0) }

var _ vfs.FS = (*Counting)(nil)
