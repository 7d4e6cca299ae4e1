package logtool

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"runtime"
	"time"

	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

const (
	readBytes   = 256 << 20 // of segments, in the rows that read
	fillBatch   = 256
	rollBytes   = 1 << 30 // appended on each side of the row of rolls
	idleLogs    = 10_000
	idleOpeners = 8
)

// fill writes a log of about total bytes and closes it.
func (o benchOptions) fill(ctx context.Context, dir string, total int64, segmentBytes int64) (err error) {
	o.fsync, o.segmentBytes, o.batch = "none", segmentBytes, fillBatch
	so, err := o.storage(dir)
	if err != nil {
		return err
	}
	log, err := storage.Open(ctx, dir, so)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close(context.WithoutCancel(ctx))) }()
	b := storage.Batch{Payloads: o.payloads()}
	for n := int64(0); n < total; n += int64(fillBatch * (o.payload + segment.RecordHeaderSize)) {
		if err := log.Append(ctx, &b); err != nil {
			return err
		}
	}
	return nil
}

// bareReader reads and sums all segments of a directory, a record's bytes at a time,
// knowing nothing about them.
type bareReader struct {
	files []vfs.File
	sizes []int64
	buf   []byte
	sum   uint32
}

func openBare(fsys vfs.FS, dir string) (*bareReader, error) {
	l, err := list(fsys, dir)
	if err != nil {
		return nil, err
	}
	r := &bareReader{buf: make([]byte, 256<<10)}
	for _, id := range l.segments {
		f, err := fsys.OpenFile(filepath.Join(dir, segment.SegmentName(id)), vfs.ReadOnly)
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
		r.files = append(r.files, f)
		n, err := f.Size()
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
		r.sizes = append(r.sizes, n)
	}
	return r, nil
}

func (r *bareReader) close() error {
	var errs []error
	for _, f := range r.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

func (r *bareReader) run(recordSize int) (records int64, err error) {
	for i, f := range r.files {
		for at := int64(0); at < r.sizes[i]; {
			b := r.buf[:min(int64(len(r.buf)), r.sizes[i]-at)]
			if n, err := f.ReadAt(b, at); n < len(b) {
				return 0, err
			}
			at += int64(len(b))
			for len(b) > 0 {
				n := min(recordSize, len(b))
				r.sum ^= crc32.ChecksumIEEE(b[:n])
				b = b[n:]
				records++
			}
		}
	}
	return records, nil
}

// timed is a contender whose slice is one call that says how many records it did.
func timed(f func(ctx context.Context) (int64, error)) contender {
	return contender{slice: func(ctx context.Context) (*sliceResult, error) {
		r := new(sliceResult)
		start := time.Now()
		n, err := f(ctx)
		r.elapsed = time.Since(start)
		r.ops = n
		r.hist.add(r.elapsed)
		return r, err
	}}
}

// readCase measures a sequential read of everything, checksums verified, beside a bare
// read and checksum over the same files.
func readCase(o benchOptions) benchCase {
	return benchCase{name: "read/sequential", run: func(ctx context.Context, dir string) (row *benchRow, err error) {
		logDir := filepath.Join(dir, "log")
		if err := o.fill(ctx, logDir, readBytes, 64<<20); err != nil {
			return nil, err
		}
		so, err := o.storage(logDir)
		if err != nil {
			return nil, err
		}
		log, err := storage.Open(ctx, logDir, so)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, log.Close(context.WithoutCancel(ctx))) }()
		bare, err := openBare(vfs.OS(), logDir)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, bare.close()) }()
		var page storage.Page
		var mallocs uint64
		ours := timed(func(ctx context.Context) (int64, error) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			at, end := log.Head(), log.Written()
			for at < end {
				if err := log.Read(ctx, &page, storage.ReadRange{From: at, MaxBytes: 128 << 10, Limit: storage.LimitWritten}); err != nil {
					return 0, err
				}
				at = page.Next
			}
			runtime.ReadMemStats(&after)
			mallocs += after.Mallocs - before.Mallocs
			return int64(end - log.Head()), nil
		})
		row, err = o.compareReads(ctx, ours, bare)
		if err == nil {
			row.Allocs = float64(mallocs) / (row.Rate * float64(o.rounds+1))
			row.Note = "pages of 128 KiB through (*Log).Read; latencies are of one pass over everything"
		}
		return row, err
	}}
}

func (o benchOptions) compareReads(ctx context.Context, ours contender, bare *bareReader) (*benchRow, error) {
	floor := timed(func(context.Context) (int64, error) { return bare.run(o.payload + segment.RecordHeaderSize) })
	of, ff, ratio, err := compare(ctx, o.rounds, 1, ours, floor)
	if err != nil {
		return nil, err
	}
	row := &benchRow{Params: map[string]any{"payload_bytes": o.payload, "bytes": sum(bare.sizes)}, side: of.side("")}
	row.against(ff.side("read and checksum"), ratio)
	return row, nil
}

func sum(sizes []int64) (n int64) {
	for _, s := range sizes {
		n += s
	}
	return n
}

// recoverCase measures opening a log whose active segment holds everything, which reads
// and indexes all of it.
func recoverCase(o benchOptions) benchCase {
	return benchCase{name: "recover/active-segment", run: func(ctx context.Context, dir string) (row *benchRow, err error) {
		logDir := filepath.Join(dir, "log")
		if err := o.fill(ctx, logDir, readBytes, 1<<34); err != nil {
			return nil, err
		}
		so, err := o.storage(logDir)
		if err != nil {
			return nil, err
		}
		so.SegmentBytes = 1 << 34
		bare, err := openBare(vfs.OS(), logDir)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, bare.close()) }()
		ours := contender{slice: func(ctx context.Context) (*sliceResult, error) {
			r := new(sliceResult)
			start := time.Now()
			log, err := storage.Open(ctx, logDir, so)
			r.elapsed = time.Since(start)
			r.hist.add(r.elapsed)
			if err != nil {
				return nil, err
			}
			r.ops = int64(log.Next() - log.Head())
			return r, log.Close(ctx)
		}}
		row, err = o.compareReads(ctx, ours, bare)
		if err == nil {
			row.Note = fmt.Sprintf("%s opened in %.0f ms after a clean close", bytesText(sum(bare.sizes)), row.P50/1e3)
		}
		return row, err
	}}
}

// rollCase measures the latency of appends across rolls beside a log that never rolls.
func rollCase(o benchOptions) benchCase {
	return benchCase{name: "rolls/none/batch=16", run: func(ctx context.Context, dir string) (row *benchRow, err error) {
		o.fsync, o.batch, o.concurrency, o.records = "none", 16, 1, 0
		open := func(name string, segmentBytes int64) (*storage.Log, error) {
			o := o
			o.segmentBytes = segmentBytes
			so, err := o.storage(filepath.Join(dir, name))
			if err != nil {
				return nil, err
			}
			so.RetentionBytes = 1 << 30
			return storage.Open(ctx, filepath.Join(dir, name), so)
		}
		rolling, err := open("rolling", o.segmentBytes)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, rolling.Close(context.WithoutCancel(ctx))) }()
		// The one that never rolls is made anew for each slice, so that it does not grow.
		var still *storage.Log
		defer func() {
			if still != nil {
				err = errors.Join(err, still.Close(context.WithoutCancel(ctx)))
			}
		}()
		payloads := o.payloads()
		run := func(log **storage.Log) contender {
			ops := int64(rollBytes / 4 / (16 * (o.payload + segment.RecordHeaderSize)))
			return contender{slice: func(ctx context.Context) (*sliceResult, error) {
				b := storage.Batch{Payloads: payloads}
				return load{appenders: 1, ops: ops}.run(ctx, func(ctx context.Context, _ int) error { return (*log).Append(ctx, &b) })
			}}
		}
		base := run(&still)
		base.prepare = func() error {
			if still != nil {
				if err := errors.Join(still.Close(ctx), vfs.OS().RemoveAll(filepath.Join(dir, "still"))); err != nil {
					return err
				}
			}
			still, err = open("still", 1<<40)
			return err
		}
		of, bf, ratio, err := compare(ctx, min(o.rounds, 6), 16, run(&rolling), base)
		if err != nil {
			return nil, err
		}
		row = &benchRow{Params: o.params(), side: of.side("")}
		row.against(bf.side("the same log without rolls"), ratio)
		row.Params["segment_bytes"] = o.segmentBytes
		row.Note = fmt.Sprintf("p999 across rolls is %.2f of the p999 without", row.P999/row.Floor.P999)
		return row, nil
	}}
}
