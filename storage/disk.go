package storage

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/felixlog/felix/storage/vfs"
)

// Limits of a disk.
const (
	DefaultMaxFlushes   = 16
	DefaultMaxOpenFiles = 2048
	DefaultIndexMemory  = 32 << 20

	maxKeptBuffer = groupBytes + groupBytes/2

	// What an idle log may keep for its next append.
	spareBuffer  = 4 << 10
	spareBatches = 16
)

// DiskOptions say how the logs of one disk share it.
type DiskOptions struct {
	// FS is the file system; nil is vfs.OS().
	FS vfs.FS
	// Dir is any directory on the disk; its free space is watched.
	Dir string
	// MaxFlushes bounds the flushes in flight and the background workers: default 16.
	MaxFlushes int
	// MaxOpenFiles bounds the segment files kept open: default 2048.
	MaxOpenFiles int
	// IndexMemory bounds the indexes of sealed segments kept in memory, in bytes:
	// default 32 MiB.
	IndexMemory int64
	// MinFree is the reserve in bytes: below it batches without UseReserve are refused
	// with ErrDiskFull. 0 keeps none; see DefaultMinFree.
	MinFree int64
	// IOUring submits flushes through io_uring where the system allows it, and falls
	// back to blocking flushes where it does not.
	IOUring bool
	// Events are told what happens to the disk.
	Events DiskEvents
}

// DiskEvents are optional; they must not block.
type DiskEvents struct {
	// OnLowSpace: free room fell below the reserve; OnRoom: it is above it again.
	OnLowSpace func(free, reserve int64)
	OnRoom     func(free, reserve int64)
	// OnCloseError: closing a file that is no longer needed failed.
	OnCloseError func(path string, err error)
	// OnNoIOUring: io_uring was asked for and is not to be had; flushes block instead.
	OnNoIOUring func(err error)
	// OnUsageError: the free room could not be read.
	OnUsageError func(err error)
}

// Disk is what logs on one disk share: it bounds their flushes in flight and their open
// files, watches the free room, and does their background work on goroutines that exist
// only while there is some.
type Disk struct {
	fs       vfs.FS
	dir      string
	opt      DiskOptions
	flushes  chan struct{} // a slot for each flush in flight
	groups   sync.Pool     // of *Group
	parkings sync.Pool     // of *parking; not global, for a channel belongs to one synctest bubble
	files    fileCache
	indexes  indexCache
	space    spaceWatch
	flusher  flusher

	mu struct {
		sync.Mutex
		closed  bool
		logs    map[*Log]struct{}
		queue   []*Log // waiting for a worker, each at most once
		workers int
		timed   timed // with something due at a time
		timer   *time.Timer
		armed   time.Time // zero: the timer is not set
	}
	work sync.WaitGroup // workers, timers and log goroutines
}

// NewDisk makes a disk. Nothing runs until a log has work.
func NewDisk(o DiskOptions) (*Disk, error) {
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	setDefault(&o.MaxFlushes, DefaultMaxFlushes)
	setDefault(&o.MaxOpenFiles, DefaultMaxOpenFiles)
	setDefault(&o.IndexMemory, int64(DefaultIndexMemory))
	switch {
	case o.MaxFlushes < 1 || o.MaxFlushes > 1024:
		return nil, &OptionError{"MaxFlushes", fmt.Sprintf("%d is outside 1 to 1024", o.MaxFlushes)}
	case o.MaxOpenFiles < 8:
		return nil, &OptionError{"MaxOpenFiles", fmt.Sprintf("%d is below 8", o.MaxOpenFiles)}
	case o.MinFree < 0:
		return nil, &OptionError{"MinFree", "must not be negative"}
	case o.MinFree > 0 && o.Dir == "":
		return nil, &OptionError{"MinFree", "needs Dir to know which disk to watch"}
	}
	d := &Disk{fs: o.FS, dir: o.Dir, opt: o, flushes: make(chan struct{}, o.MaxFlushes)}
	d.files.fs, d.files.limit, d.files.onError = o.FS, o.MaxOpenFiles, o.Events.OnCloseError
	d.indexes.limit = o.IndexMemory
	if o.Dir != "" {
		d.space.d = d
	}
	d.groups.New = func() any { return new(Group) }
	d.parkings.New = newParking
	d.mu.logs = make(map[*Log]struct{})
	var err error
	if d.flusher, err = newFlusher(o.IOUring); err != nil && o.Events.OnNoIOUring != nil {
		o.Events.OnNoIOUring(err)
	}
	return d, nil
}

// DefaultMinFree is the reserve for a disk of this size: the smaller of 1 GiB and 5 %.
func DefaultMinFree(fsys vfs.FS, dir string) (int64, error) {
	u, err := fsys.Usage(dir)
	if err != nil {
		return 0, fmt.Errorf("storage: free room of %s: %w", dir, err)
	}
	return min(1<<30, u.Total/20), nil
}

// Close ends the disk's background work. Its logs are to be closed before.
func (d *Disk) Close() error {
	d.mu.Lock()
	d.mu.closed = true
	if d.mu.timer != nil && d.mu.timer.Stop() {
		d.work.Done()
	}
	n := len(d.mu.logs)
	d.mu.Unlock()
	d.space.stop()
	d.work.Wait()
	if n > 0 {
		return fmt.Errorf("storage: disk closed with %d logs open", n)
	}
	return nil
}

// Unsynced is how many bytes of its logs are not on the device, and for how long the
// oldest of them has not been.
func (d *Disk) Unsynced() (bytes int64, oldest time.Duration) {
	d.mu.Lock()
	logs := slices.Collect(maps.Keys(d.mu.logs))
	d.mu.Unlock()
	now := time.Now()
	for _, l := range logs { // a log's mutex is not taken under the disk's
		n, since := l.unsynced()
		bytes += n
		if n > 0 {
			oldest = max(oldest, now.Sub(since))
		}
	}
	return bytes, oldest
}

func (d *Disk) addLog(l *Log) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.closed {
		return ErrClosed
	}
	d.mu.logs[l] = struct{}{}
	return nil
}

func (d *Disk) removeLog(l *Log) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.mu.logs, l)
	d.mu.timed.remove(l)
}

// submit has a worker call l.maintain soon.
func (d *Disk) submit(l *Log) {
	if !l.submitted.CompareAndSwap(false, true) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.closed {
		return
	}
	d.mu.queue = append(d.mu.queue, l)
	// Those there are may all be held up by a slow log.
	if d.mu.workers < d.opt.MaxFlushes {
		d.mu.workers++
		d.work.Add(1)
		go d.worker()
	}
}

// worker does background work until there is none.
func (d *Disk) worker() {
	defer d.work.Done()
	for {
		d.mu.Lock()
		if len(d.mu.queue) == 0 {
			d.mu.workers--
			d.mu.Unlock()
			return
		}
		l := d.mu.queue[0]
		d.mu.queue = d.mu.queue[1:]
		if len(d.mu.queue) == 0 {
			d.mu.queue = nil
		}
		d.mu.Unlock()
		l.submitted.Store(false)
		l.maintain()
	}
}

// getGroup gives an empty group: the log's spare one, or one of the disk's. l.mu is held.
func (l *Log) getGroup() *Group {
	if g := l.mu.spare; g != nil {
		l.mu.spare = nil
		return g
	}
	return l.disk.groups.Get().(*Group)
}

// putGroup keeps g, which nobody uses any more. l.mu is held.
func (l *Log) putGroup(g *Group) {
	clear(g.Batches)
	buf, batches := g.buf[:0], g.Batches[:0]
	if cap(buf) > maxKeptBuffer {
		buf = nil
	}
	if cap(batches) > groupBatches {
		batches = nil
	}
	g.Batches, g.buf, g.Encoded, g.link = batches, buf, nil, nil
	g.Err, g.Timestamp, g.bytes = nil, 0, 0
	if cap(buf) <= spareBuffer && cap(batches) <= spareBatches && l.mu.spare == nil {
		l.mu.spare = g
		return
	}
	l.disk.groups.Put(g)
}
