package logtool

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// logOptions are the flags of commands that open a log.
type logOptions struct {
	fsync        string
	interval     time.Duration
	segmentBytes int64
	preallocate  bool
	zeroAhead    bool
}

func (o *logOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.fsync, "fsync", "periodic", "when to flush: none, periodic, on_commit")
	f.DurationVar(&o.interval, "fsync-interval", storage.DefaultFsyncInterval, "interval of periodic")
	f.Int64Var(&o.segmentBytes, "segment-bytes", storage.DefaultSegmentBytes, "size at which a segment is rolled")
	f.BoolVar(&o.preallocate, "preallocate", true, "reserve disk space ahead of the log")
	f.BoolVar(&o.zeroAhead, "zero-ahead", true, "write zeros ahead of the log under on_commit")
}

func (o *logOptions) storage(dir string) (storage.Options, error) {
	mode, err := storage.ParseFsyncMode(o.fsync)
	if err != nil {
		return storage.Options{}, usagef("--fsync: %w", err)
	}
	return storage.Options{
		Shard: filepath.Base(dir), Fsync: mode, FsyncInterval: o.interval, SegmentBytes: o.segmentBytes,
		Preallocate: o.preallocate, ZeroAhead: o.zeroAhead, MaxRecordBytes: segment.MaxBodySize,
	}, nil
}

// writeOptions say what write appends.
type writeOptions struct {
	records     int64
	payload     int
	batch       int
	concurrency int
}

func (o *writeOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&o.payload, "payload-bytes", 128, "size of each payload")
	f.IntVar(&o.batch, "batch", 1, "records in one append")
	f.IntVar(&o.concurrency, "concurrency", 1, "appends at once")
}

func (o *writeOptions) check() error {
	switch {
	case o.payload < 0 || o.payload > segment.MaxBodySize:
		return usagef("--payload-bytes %d is outside 0 to %d", o.payload, segment.MaxBodySize)
	case o.batch < 1:
		return usagef("--batch %d is below 1", o.batch)
	case o.concurrency < 1 || o.concurrency > 4096:
		return usagef("--concurrency %d is outside 1 to 4096", o.concurrency)
	}
	return nil
}

// writeResult is what write did.
type writeResult struct {
	Records int64          `json:"records"` // acknowledged
	Bytes   int64          `json:"payload_bytes"`
	Head    storage.Offset `json:"head"`
	Next    storage.Offset `json:"next"`
	Rate    float64        `json:"rate"`
	P50     float64        `json:"p50_us"`
	P99     float64        `json:"p99_us"`
	P999    float64        `json:"p999_us"`
}

func writeCommand() *cobra.Command {
	var c command
	var lo logOptions
	var wo writeOptions
	cmd := &cobra.Command{
		Use:   "write --dir DIR",
		Short: "Append records to a shard's log, each acknowledged",
		Long: "write appends records that verify --payload-bytes knows again, making the log if there is none, and says how many were acknowledged.\n" +
			"A directory in which a broker keeps several logs, such as its data directory, is refused.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := wo.check(); err != nil {
				return err
			}
			if wo.records < 0 {
				return usagef("--records %d is below 0", wo.records)
			}
			o, err := lo.storage(c.dir)
			if err != nil {
				return err
			}
			return c.locked(true, func(note func() error) error { return c.write(cmd, o, wo, note) })
		},
	}
	c.flags(cmd, "shard directory")
	lo.flags(cmd)
	wo.flags(cmd)
	cmd.Flags().Int64Var(&wo.records, "records", 100_000, "records to append")
	return cmd
}

func (c *command) write(cmd *cobra.Command, o storage.Options, wo writeOptions, note func() error) (err error) {
	ctx := cmd.Context()
	log, err := storage.Open(ctx, c.dir, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close(context.WithoutCancel(ctx))) }()
	if err := note(); err != nil {
		return err
	}
	p := startProgress(cmd.ErrOrStderr(), "wrote")
	defer p.stop()

	var acknowledged, given atomic.Int64
	seed := uint64(time.Now().UnixNano())
	batches := make([]patternBatch, wo.concurrency)
	for i := range batches {
		batches[i].init(wo, uint64(i)<<40)
	}
	l := load{appenders: wo.concurrency, ops: (wo.records + int64(wo.batch) - 1) / int64(wo.batch)}
	var r *sliceResult
	if l.ops > 0 {
		r, err = l.run(ctx, func(ctx context.Context, i int) error {
			b := &batches[i]
			n := int(min(int64(wo.batch), wo.records-given.Add(int64(wo.batch))+int64(wo.batch)))
			b.fill(seed, n)
			if err := log.Append(ctx, &b.Batch); err != nil {
				return err
			}
			acknowledged.Add(int64(n))
			p.add(int64(n * wo.payload))
			return nil
		})
	} else {
		r = new(sliceResult)
	}
	if err != nil {
		return fmt.Errorf("%d of %d records were acknowledged: %w", acknowledged.Load(), wo.records, err)
	}
	n := acknowledged.Load()
	res := writeResult{
		Records: n, Bytes: n * int64(wo.payload), Head: log.Head(), Next: log.Next(),
		P50: r.hist.quantile(.5), P99: r.hist.quantile(.99), P999: r.hist.quantile(.999),
	}
	if r.elapsed > 0 {
		res.Rate = float64(n) / r.elapsed.Seconds()
	}
	p.clear()
	if c.json {
		return printJSON(cmd.OutOrStdout(), res)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d records acknowledged under %s, %.0f/s, p50 %.0f µs, p99 %.0f µs; the log holds offsets %d to %d (exclusive)\n",
		n, o.Fsync, res.Rate, res.P50, res.P99, res.Head, res.Next)
	return err
}

// patternBatch is a batch whose payloads are made anew for every append.
type patternBatch struct {
	storage.Batch
	all [][]byte
	n   uint64
}

func (b *patternBatch) init(o writeOptions, first uint64) {
	b.n = first
	memory := make([]byte, o.batch*o.payload)
	for i := range o.batch {
		b.all = append(b.all, memory[i*o.payload:(i+1)*o.payload:(i+1)*o.payload])
	}
}

func (b *patternBatch) fill(seed uint64, n int) {
	b.Payloads = b.all[:n]
	for i := range b.Payloads {
		b.n++
		pattern(b.Payloads[i], mix(seed+b.n))
	}
}
