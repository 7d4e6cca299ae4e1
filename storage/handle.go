package storage

import (
	"errors"
	"io/fs"
	"sync"
	"sync/atomic"

	"github.com/felixlog/felix/storage/vfs"
)

// handle is a segment's descriptor, opened when somebody needs it and closed by the
// cache when nobody does. While refs is not negative the file is open.
type handle struct {
	cache    *fileCache
	path     string
	refs     atomic.Int32 // users; handleClosed when the file is not open
	used     atomic.Bool  // since the cache's clock hand last passed
	gone     atomic.Bool  // closed for good
	writable atomic.Bool  // opened for writing while the segment may be written
	file     vfs.File

	opening chan struct{} // cache.mu; closed when the opener is through
	slot    int           // cache.mu; place in cache.open
}

const handleClosed = -1

func (h *handle) init(c *fileCache, path string, writable bool) {
	h.cache, h.path = c, path
	h.writable.Store(writable)
	h.refs.Store(handleClosed)
}

// acquire gives the open file until release.
func (h *handle) acquire() (vfs.File, error) {
	for {
		r := h.refs.Load()
		if r < 0 {
			return h.cache.open(h)
		}
		if h.refs.CompareAndSwap(r, r+1) {
			if !h.used.Load() {
				h.used.Store(true)
			}
			return h.file, nil
		}
	}
}

func (h *handle) release() {
	if h.refs.Add(-1) == 0 && h.gone.Load() {
		h.tryClose()
	}
}

// retire closes the file as soon as nobody uses it; it is not opened again.
func (h *handle) retire() {
	h.gone.Store(true)
	h.tryClose()
}

func (h *handle) tryClose() {
	if !h.refs.CompareAndSwap(0, handleClosed) {
		return
	}
	f := h.file
	h.cache.forget(h)
	h.cache.closed(h.path, f.Close())
}

// fileCache bounds the open segment files of a disk. A file in use is never closed, so
// the bound is exceeded rather than anybody refused.
type fileCache struct {
	fs      vfs.FS
	limit   int
	onError func(path string, err error)

	mu   sync.Mutex
	list []*handle
	hand int
}

// open opens h's file, or waits for who is opening it.
func (c *fileCache) open(h *handle) (vfs.File, error) {
	for {
		c.mu.Lock()
		if h.gone.Load() {
			c.mu.Unlock()
			return nil, &fs.PathError{Op: "open", Path: h.path, Err: fs.ErrNotExist}
		}
		if h.refs.Load() >= 0 {
			c.mu.Unlock()
			return h.acquire()
		}
		if wait := h.opening; wait != nil {
			c.mu.Unlock()
			<-wait
			continue
		}
		done := make(chan struct{})
		h.opening = done
		victims := c.evict(c.limit - 1)
		c.mu.Unlock()
		for _, v := range victims {
			c.closed(v.path, v.file.Close())
		}

		mode := vfs.ReadOnly
		if h.writable.Load() {
			mode = vfs.ReadWrite
		}
		f, err := c.openFile(h.path, mode)

		c.mu.Lock()
		h.opening = nil
		if err == nil {
			c.put(h, f)
		}
		c.mu.Unlock()
		close(done)
		return f, err
	}
}

// openFile opens a file. When descriptors are lacking, whoever else took them, those of
// files that nobody uses are given up for it, one at a time.
func (c *fileCache) openFile(path string, mode vfs.Flag) (vfs.File, error) {
	for {
		f, err := c.fs.OpenFile(path, mode)
		if !IsOutOfFiles(err) {
			return f, err
		}
		c.mu.Lock()
		victims := c.evict(len(c.list) - 1)
		c.mu.Unlock()
		if len(victims) == 0 {
			return nil, err
		}
		for _, v := range victims {
			c.closed(v.path, v.file.Close())
		}
	}
}

// put notes that h's file is open, with one use of it. c.mu is held.
func (c *fileCache) put(h *handle, f vfs.File) {
	h.file = f
	h.slot = len(c.list)
	c.list = append(c.list, h)
	h.used.Store(true)
	h.refs.Store(1)
}

// evict takes files that nobody uses out of the cache until at most keep are left in it.
// c.mu is held; the caller closes them without it. An evicted handle may be opened again
// at once, so its file is taken from victims' own pointers before.
func (c *fileCache) evict(keep int) (victims []evicted) {
	for tries := 2 * len(c.list); len(c.list) > keep && tries > 0; tries-- {
		if c.hand >= len(c.list) {
			c.hand = 0
		}
		h := c.list[c.hand]
		if h.used.Swap(false) || !h.refs.CompareAndSwap(0, handleClosed) {
			c.hand++
			continue
		}
		victims = append(victims, evicted{h.path, h.file})
		c.remove(h)
	}
	return victims
}

type evicted struct {
	path string
	file vfs.File
}

func (c *fileCache) forget(h *handle) {
	c.mu.Lock()
	c.remove(h)
	c.mu.Unlock()
}

func (c *fileCache) remove(h *handle) {
	last := len(c.list) - 1
	c.list[h.slot] = c.list[last]
	c.list[h.slot].slot = h.slot
	c.list[last] = nil
	c.list = c.list[:last]
}

func (c *fileCache) closed(path string, err error) {
	if err != nil && !errors.Is(err, fs.ErrClosed) && c.onError != nil {
		c.onError(path, err)
	}
}

// openFiles is how many are open.
func (c *fileCache) openFiles() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.list)
}
