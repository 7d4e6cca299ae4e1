package storage

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/felixlog/felix/storage/vfs"
)

// spaceWatch knows roughly how much room the disk has. It looks when enough was written
// since it last looked, and, while there is too little, at intervals.
type spaceWatch struct {
	d     *Disk
	short atomic.Bool  // below the reserve
	until atomic.Int64 // bytes that may be written before the next look
	free  atomic.Int64 // bytes, as last seen

	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
}

const (
	// spaceRecheck is how often room is looked for while there is too little.
	spaceRecheck = 250 * time.Millisecond
	// spaceMost bounds what is written between two looks.
	spaceMost  = 64 << 20
	spaceLeast = 64 << 10
)

// low says whether batches without UseReserve are to be refused. It costs a load.
func (w *spaceWatch) low() bool { return w.short.Load() }

// wrote counts written bytes, and looks at the disk when it is time.
func (w *spaceWatch) wrote(n int64) {
	if w.d == nil {
		return
	}
	if w.until.Add(-n) <= 0 {
		w.look()
	}
}

// Room looks at the disk now, and has appends refused or taken from now on by what it
// finds. Without being asked the disk is looked at as it is written.
func (d *Disk) Room() (vfs.Usage, error) {
	if d.space.d == nil {
		return vfs.Usage{}, &OptionError{"Dir", "is needed to know which disk to watch"}
	}
	return d.space.look()
}

// look reads the free room.
func (w *spaceWatch) look() (vfs.Usage, error) {
	d := w.d
	u, err := d.fs.Usage(d.dir)
	if err != nil {
		w.until.Store(spaceMost)
		if f := d.opt.Events.OnUsageError; f != nil {
			f(err)
		}
		return u, err
	}
	w.free.Store(u.Free)
	spare := u.Free - d.opt.MinFree
	w.until.Store(max(spaceLeast, min(spaceMost, spare/4)))
	w.set(spare < 0, u)
	return u, nil
}

func (w *spaceWatch) set(short bool, u vfs.Usage) {
	d := w.d
	if w.short.Swap(short) != short {
		f := d.opt.Events.OnRoom
		if short {
			f = d.opt.Events.OnLowSpace
		}
		if f != nil {
			f(u.Free, d.opt.MinFree)
		}
	}
	if !short {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	if w.timer == nil {
		w.timer = time.AfterFunc(spaceRecheck, func() { w.look() })
	} else {
		w.timer.Reset(spaceRecheck)
	}
}

// exhausted says that the system reported no room at all.
func (w *spaceWatch) exhausted() {
	if w.d != nil {
		w.until.Store(0)
		w.look()
	}
}

func (w *spaceWatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	if w.timer != nil {
		w.timer.Stop()
	}
}
