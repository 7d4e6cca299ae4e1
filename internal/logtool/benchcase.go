package logtool

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// benchCase is one row to be measured in a directory of its own.
type benchCase struct {
	name string
	run  func(ctx context.Context, dir string) (*benchRow, error)
}

// suite is every row, at the sizes given.
func suite(o benchOptions) []benchCase {
	var all []benchCase
	for _, fsync := range []string{"none", "on_commit"} {
		for _, batch := range []int{1, 16} {
			for _, appenders := range []int{1, 64} {
				o := o
				o.fsync, o.batch, o.concurrency = fsync, batch, appenders
				all = append(all, appendCase(o))
			}
		}
	}
	all = append(all, readCase(o), recoverCase(o), rollCase(o), idleCase(o))
	if o.rows == "" {
		return all
	}
	var some []benchCase
	for _, c := range all {
		for want := range strings.SplitSeq(o.rows, ",") {
			if strings.Contains(c.name, strings.TrimSpace(want)) {
				some = append(some, c)
				break
			}
		}
	}
	return some
}

func suiteNames() []string {
	var names []string
	for _, c := range suite(benchOptions{}) {
		names = append(names, c.name)
	}
	return names
}

func readSmall(dir, name string) ([]byte, error) {
	return segment.ReadFile(vfs.OS(), dir, name, 16<<20)
}

func (o *benchOptions) space() space {
	switch {
	case o.floor != "":
		return space(o.floor)
	case o.zeroAhead && o.fsync == "on_commit" && o.batch*o.concurrency*(o.payload+segment.RecordHeaderSize) <= storage.ZeroAheadLargest:
		return spaceZeroed
	case o.preallocate:
		return spaceReserved
	}
	return spaceAppended
}

// payloads are the records of one append.
func (o *benchOptions) payloads() [][]byte {
	batch := make([][]byte, o.batch)
	for i := range batch {
		batch[i] = make([]byte, o.payload)
		pattern(batch[i], uint64(i))
	}
	return batch
}

func (o *benchOptions) params() map[string]any {
	return map[string]any{
		"fsync": o.fsync, "batch": o.batch, "concurrency": o.concurrency, "payload_bytes": o.payload, "floor_space": string(o.space()),
	}
}

func (o *benchOptions) load() load {
	l := load{appenders: o.concurrency, length: o.slice}
	if o.records > 0 {
		l.length = 0
		l.ops = max(int64(o.concurrency), o.records/int64(o.rounds*o.batch))
	}
	return l
}

// appendCase measures appends beside the bare loop of the same shape.
func appendCase(o benchOptions) benchCase {
	name := fmt.Sprintf("append/%s/batch=%d/appenders=%d", o.fsync, o.batch, o.concurrency)
	return benchCase{name: name, run: func(ctx context.Context, dir string) (*benchRow, error) { return o.appends(ctx, dir) }}
}

func (o benchOptions) appends(ctx context.Context, dir string) (row *benchRow, err error) {
	fsys := vfs.OS()
	so, err := o.storage(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	var flushes atomic.Int64
	so.Events.OnSync = func(storage.SyncEvent) { flushes.Add(1) }
	log, err := storage.Open(ctx, filepath.Join(dir, "log"), so)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, log.Close(context.WithoutCancel(ctx))) }()

	batches := make([]storage.Batch, o.concurrency)
	for i := range batches {
		batches[i].Payloads = o.payloads()
	}
	var mallocs uint64
	ours := contender{
		// What was written is dropped between slices, as the bare loop's file is.
		prepare: func() error {
			flushes.Store(0)
			if log.Next() == log.Head() {
				return nil
			}
			if _, err := log.Seal(ctx); err != nil {
				return err
			}
			_, err := log.TrimHead(ctx, log.Next())
			flushes.Store(0)
			return err
		},
	}
	flushed := int64(0)
	own, err := o.load().overhead(ctx)
	if err != nil {
		return nil, err
	}
	ours.slice = func(ctx context.Context) (*sliceResult, error) {
		r, n, err := counted(func() (*sliceResult, error) {
			return o.load().run(ctx, func(ctx context.Context, i int) error { return log.Append(ctx, &batches[i]) })
		})
		mallocs += n - min(n, own)
		flushed += flushes.Load()
		return r, err
	}

	bare := newFloor(fsys, dir, o.space(), o.fsync == "on_commit")
	defer func() { err = errors.Join(err, bare.close()) }()
	what := "encode and write"
	var append func(ctx context.Context, i int) error
	payloads := o.payloads()
	if o.concurrency == 1 {
		append = func(context.Context, int) error { return bare.append(payloads) }
	} else {
		what = "encode and shared write"
		shared := newFloorShared(bare, o.concurrency)
		defer shared.stop()
		append = func(ctx context.Context, i int) error { return shared.append(ctx, i, payloads) }
	}
	if o.fsync == "on_commit" {
		what += " and flush"
	}
	floor := contender{
		prepare: bare.reset,
		slice:   func(ctx context.Context) (*sliceResult, error) { return o.load().run(ctx, append) },
	}
	of, ff, ratio, err := compare(ctx, o.rounds, o.batch, ours, floor)
	if err != nil {
		return nil, err
	}
	row = &benchRow{Params: o.params(), side: of.side("")}
	row.against(ff.side(what), ratio)
	// The slice that does not count is counted here: one part in rounds + 1.
	ops := float64(of.ops) * float64(o.rounds+1) / float64(o.rounds)
	row.Flushes = float64(flushed) / ops
	row.Allocs = math.Round(100*float64(mallocs)/ops) / 100
	return row, nil
}
