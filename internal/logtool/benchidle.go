package logtool

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/felixlog/felix/storage"
)

// idleCase measures opening many shards that hold a little and are then left alone: the
// time, and the memory each keeps.
func idleCase(o benchOptions) benchCase {
	return benchCase{name: "idle/10000-shards", run: func(ctx context.Context, dir string) (row *benchRow, err error) {
		o.fsync, o.batch = "periodic", 1
		shard := func(i int) string { return filepath.Join(dir, fmt.Sprintf("%02x", i%256), fmt.Sprintf("s_%d", i)) }
		disk, err := storage.NewDisk(storage.DiskOptions{Dir: dir})
		if err != nil {
			return nil, err
		}
		logs := make([]*storage.Log, idleLogs)
		closeAll := func() error {
			var errs []error
			for i, l := range logs {
				if l != nil {
					errs = append(errs, l.Close(context.WithoutCancel(ctx)))
					logs[i] = nil
				}
			}
			return errors.Join(errs...)
		}
		defer func() { err = errors.Join(err, closeAll(), disk.Close()) }()
		payloads := o.payloads()
		each := func(f func(i int) error) error {
			var g errgroup.Group
			g.SetLimit(idleOpeners)
			for i := range idleLogs {
				g.Go(func() error { return f(i) })
			}
			return g.Wait()
		}
		open := func(i int) (err error) {
			so, err := o.storage(shard(i))
			if err != nil {
				return err
			}
			so.Disk = disk
			logs[i], err = storage.Open(ctx, shard(i), so)
			return err
		}
		err = each(func(i int) error {
			if err := open(i); err != nil {
				return err
			}
			return logs[i].Append(ctx, &storage.Batch{Payloads: payloads})
		})
		if err != nil {
			return nil, err
		}
		if err := closeAll(); err != nil {
			return nil, err
		}
		before := heap()
		start := time.Now()
		if err := each(open); err != nil {
			return nil, err
		}
		took := time.Since(start)
		each1 := float64(heap()-before) / idleLogs
		row = &benchRow{
			Params: map[string]any{"shards": idleLogs, "bytes_each": int64(each1), "seconds": took.Seconds(), "goroutines": runtime.NumGoroutine()},
			side:   side{Rate: idleLogs / took.Seconds()},
			Note:   fmt.Sprintf("%d shards opened in %.2f s, %.1f KiB each, %d goroutines", idleLogs, took.Seconds(), each1/1024, runtime.NumGoroutine()),
		}
		return row, nil
	}}
}

// heap is the memory in use after a collection, stacks included.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
