package soak

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"time"

	"github.com/felixlog/felix/storage/vfs"
)

// probe measures the machine beside the broker, each part on a thread of its own: what
// is late here is late for everybody, the load's own clock included.
type probe struct {
	dir   string
	watch *watch
}

const (
	probeSleep = time.Millisecond
	probeFlush = 50 * time.Millisecond
	probeBytes = 4096
)

// sleep notes how late a short sleep ends.
func (p *probe) sleep(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for ctx.Err() == nil {
		began := time.Now()
		if err := nap(probeSleep); err != nil {
			return fmt.Errorf("probe: sleep: %w", err)
		}
		late := milliseconds(time.Since(began) - probeSleep)
		p.watch.at(began, func(s *Second) { s.SleepLate = max(s.SleepLate, late) })
	}
	return nil
}

// flush notes how long a page takes to be written and flushed, over and over the same.
func (p *probe) flush(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f, err := vfs.OS().OpenFile(filepath.Join(p.dir, "probe"), vfs.Create)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	defer f.Close()
	page := make([]byte, probeBytes)
	return every(ctx, time.Now(), probeFlush, func(time.Time) error {
		began := time.Now()
		if _, err := f.WriteAt(page, 0); err != nil {
			return fmt.Errorf("probe: %w", err)
		}
		if err := f.Datasync(); err != nil {
			return fmt.Errorf("probe: flush: %w", err)
		}
		took := milliseconds(time.Since(began))
		p.watch.at(began, func(s *Second) { s.FlushTook = max(s.FlushTook, took) })
		return nil
	})
}

func milliseconds(d time.Duration) float64 { return max(0, float64(d)/float64(time.Millisecond)) }
