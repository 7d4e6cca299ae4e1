//go:build unix

package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// BenchmarkAppend beside bare loops over the same file system and codec, in one process:
// the figures mean something as ratios only.
func BenchmarkAppend(b *testing.B) {
	for _, mode := range []FsyncMode{None, OnCommit} {
		for _, batch := range []int{1, 16} {
			for _, appenders := range []int{1, 64} {
				name := fmt.Sprintf("%v/batch%d/appenders%d", mode, batch, appenders)
				b.Run("bare/"+name, func(b *testing.B) { benchBare(b, mode, batch, appenders) })
				b.Run("log/"+name, func(b *testing.B) { benchLog(b, mode, batch, appenders) })
				b.Run("code/"+name, func(b *testing.B) { benchCode(b, mode, batch, appenders) })
			}
		}
	}
	for _, ring := range []bool{false, true} {
		for _, zero := range []bool{false, true} {
			for _, appenders := range []int{1, 64} {
				b.Run(fmt.Sprintf("flush/uring=%v/zeros=%v/appenders%d", ring, zero, appenders), func(b *testing.B) {
					benchOptions(b, DiskOptions{IOUring: ring}, Options{Fsync: OnCommit, Preallocate: true, ZeroAhead: zero}, 1, appenders)
				})
			}
		}
	}
}

// report adds the processor time of an append, which other work on the machine disturbs
// less than its duration.
func report(b *testing.B, batch int, before time.Duration) {
	b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "records/s")
	b.ReportMetric(float64(cpuTime()-before)/float64(b.N), "cpu-ns/op")
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchLog(b *testing.B, mode FsyncMode, batch, appenders int) {
	benchOptions(b, DiskOptions{}, Options{Fsync: mode, Preallocate: true}, batch, appenders)
}

// benchCode is the log without its disk: what its own code costs.
func benchCode(b *testing.B, mode FsyncMode, batch, appenders int) {
	fsys := nullFS{disk.NewStrict(1, disk.Options{})}
	benchOptions(b, DiskOptions{FS: fsys}, Options{FS: fsys, Fsync: mode}, batch, appenders)
}

func benchOptions(b *testing.B, do DiskOptions, o Options, batch, appenders int) {
	d, err := NewDisk(do)
	if err != nil {
		b.Fatal(err)
	}
	o.Disk = d
	ctx := b.Context() // as callers have: one that may end
	l, err := Open(ctx, b.TempDir(), o)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := errors.Join(l.Close(ctx), d.Close()); err != nil {
			b.Error(err)
		}
	}()
	b.ReportAllocs()
	b.ResetTimer()
	cpu := cpuTime()
	var wg sync.WaitGroup
	for w := range appenders {
		wg.Go(func() {
			bt := &Batch{Payloads: benchPayloads(batch)}
			for i := w; i < b.N; i += appenders {
				if err := l.Append(ctx, bt); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	report(b, batch, cpu)
}

// benchBare is what the machine allows: one appender encodes and writes; many hand their
// batches to one goroutine that encodes and writes what waits, flushes once, and answers.
func benchBare(b *testing.B, mode FsyncMode, batch, appenders int) {
	f, err := vfs.OS().OpenFile(filepath.Join(b.TempDir(), "bare"), vfs.Create)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil && !os.IsNotExist(err) {
			b.Error(err)
		}
	}()
	var pos int64
	var off Offset
	var buf []byte
	var spec segment.RecordSpec
	encode := func(ps [][]byte) {
		for _, p := range ps {
			spec.Offset, spec.Timestamp, spec.Payload = off, 1, p
			buf = segment.AppendRecord(buf, &spec)
			off++
		}
	}
	write := func() {
		if _, err := f.WriteAt(buf, pos); err != nil {
			b.Error(err)
		}
		pos += int64(len(buf))
		buf = buf[:0]
		if pos > 256<<20 {
			pos = 0
		}
		if mode == OnCommit {
			if err := f.Datasync(); err != nil {
				b.Error(err)
			}
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	cpu := cpuTime()
	if appenders == 1 {
		ps := benchPayloads(batch)
		for range b.N {
			encode(ps)
			write()
		}
	} else {
		type req struct {
			ps   [][]byte
			done chan error
		}
		ch := make(chan *req, 4096)
		go func() {
			var rs []*req
			for r := range ch {
				rs = append(rs[:0], r)
				encode(r.ps)
			more:
				for len(rs) < 4096 {
					select {
					case r, ok := <-ch:
						if !ok {
							break more
						}
						rs = append(rs, r)
						encode(r.ps)
					default:
						break more
					}
				}
				write()
				for _, r := range rs {
					r.done <- nil
				}
			}
		}()
		var wg sync.WaitGroup
		for w := range appenders {
			wg.Go(func() {
				r := &req{ps: benchPayloads(batch), done: make(chan error, 1)}
				for i := w; i < b.N; i += appenders {
					ch <- r
					if err := <-r.done; err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
		close(ch)
	}
	b.StopTimer()
	report(b, batch, cpu)
}
