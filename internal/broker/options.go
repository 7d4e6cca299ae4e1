package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/vfs"
)

// Options say what a broker serves and within what bounds.
type Options struct {
	// Catalog holds the definitions; required.
	Catalog *meta.Catalog
	// Root is the directory of the shards. Empty is "storage none": streams are in
	// memory, and durable ones are refused.
	Root string
	// FS is the file system; nil is the host's.
	FS vfs.FS
	// Disk is what the logs share; nil gives each log a private one.
	Disk *storage.Disk
	// Restarted says that the machine was started anew since the root was last open.
	Restarted bool
	// Clock is the wall clock of the logs; nil is the system's.
	Clock func() storage.Micros

	Defaults Defaults
	Limits   Limits
	// Storage is told what happens in the logs.
	Storage storage.Events
	// Events are told what happens to shards.
	Events Events
	// Log is where the broker says what an operator should know; nil is nowhere.
	Log *slog.Logger
}

// Defaults apply to streams that do not say otherwise.
type Defaults struct {
	Fsync              storage.FsyncMode
	FsyncInterval      time.Duration // 0: 250 ms
	SegmentBytes       int64         // 0: 256 MiB
	IndexSpacing       int64         // 0: 4096
	MaxRecordsPerRead  int           // 0: 10,000
	MaxValueBytes      int64         // of a cache's value; 0: 8 MiB
	Preallocate        bool
	ZeroAhead          bool
	VerifyAllOnOpen    bool
	RepairChecksumTail bool
	RetentionBytes     int64 // 0: no bound
	RetentionAge       time.Duration
	RetentionInterval  time.Duration // 0: a minute
}

// keyedSegment is the segment size of logs that compaction keeps small: it gives back
// whole segments, so theirs are smaller than a stream's.
func (d *Defaults) keyedSegment() int64 {
	if d.SegmentBytes > 0 {
		return min(d.SegmentBytes, 16<<20)
	}
	return 16 << 20
}

// Limits bound what a broker takes in. Zero fields have the defaults of DefaultLimits.
type Limits struct {
	// MostRecordBytes bounds the records of every stream, whatever it asks for, and the
	// values of caches: what is larger could be stored and never read. 0: no bound.
	MostRecordBytes int64

	NodeInFlight   int64 // bytes of publishes accepted and not answered
	TenantInFlight int64 // the same, of one tenant
	// What a tenant that does not say otherwise may write a second, over all its streams
	// and caches; 0 is no bound.
	TenantBytesPerSecond   int64
	TenantRecordsPerSecond int64
	RingBytes              int   // a shard's ring of recent groups
	RingsBytes             int64 // all of them
	CacheValuesBytes       int64 // of values of caches kept in memory; below 0: none
	QueueCapacity          int   // batches, of a subscriber of an in-memory stream
	MaxQueueCapacity       int
	QueueBytes             int
	BlockFor               time.Duration // how long a subscriber may hold back publishes
	ReplayBatches          int           // kept by an in-memory shard
	ReplayBytes            int
	LogQueueBytes          int64         // queued for one log
	ReadPageBytes          int           // payload of one page of a read by range
	PollBytes              int           // payload of one poll of a group
	PollWait               time.Duration // of a poll that finds nothing
	Groups                 queue.Config  // of groups that are not configured when they are made
	QueueHoldBytes         int64         // by which a stream of kind queue may exceed its retention for its groups
	Recovering             int           // shards opened at once
	RetryOpen              time.Duration // before a shard that could not be opened is tried again; doubles up to 30 s
}

// DefaultLimits are the bounds of an ordinary broker.
func DefaultLimits() Limits {
	return Limits{
		NodeInFlight:     256 << 20,
		TenantInFlight:   128 << 20,
		RingBytes:        partition.DefaultRingBytes,
		RingsBytes:       256 << 20,
		CacheValuesBytes: 32 << 20,
		QueueCapacity:    partition.DefaultQueueCapacity,
		MaxQueueCapacity: partition.DefaultMaxQueueCapacity,
		QueueBytes:       partition.DefaultQueueBytes,
		BlockFor:         partition.DefaultBlockFor,
		ReplayBatches:    partition.DefaultReplayBatches,
		ReplayBytes:      partition.DefaultReplayBytes,
		LogQueueBytes:    storage.DefaultQueueBytes,
		ReadPageBytes:    partition.DefaultReadPageBytes,
		PollBytes:        partition.DefaultPollBytes,
		PollWait:         partition.DefaultPollWait,
		QueueHoldBytes:   1 << 30,
		Recovering:       max(4, 2*runtime.GOMAXPROCS(0)),
		RetryOpen:        time.Second,
	}
}

// Events are told what happens to shards. All are optional; they must not block.
type Events struct {
	// OnState: a shard changed its state; err is why it does not serve.
	OnState func(shard string, state partition.State, err error)
	// OnSetAside: a directory of another incarnation was moved out of the way.
	OnSetAside func(shard, movedTo string, found, want uint64)
	// OnAdopted: a directory did not say its incarnation and was taken as the shard's.
	OnAdopted func(shard, dir string)
	// OnOrphan: a directory belongs to no stream of the catalog; it is left alone.
	OnOrphan func(dir string)
	// OnRemoved: a deleted shard's directory is gone.
	OnRemoved func(dir string)
	// OnProgress: another shard has been opened, or could not be. Workers call it side
	// by side, so a lower figure may come after a higher one.
	OnProgress func(Progress)
	// OnGroupLost: retention removed records that a group had not settled.
	OnGroupLost func(shard, group string, records uint64)
	// OnGroupsClamped: groups that were past the end of their stream were set back to it.
	OnGroupsClamped func(shard string, groups int)
	// OnBackgroundError: compaction, a snapshot or a copy failed; it is tried again.
	OnBackgroundError func(shard, what string, err error)
	// OnCompacted: the log of a cache, of counters or of groups was compacted.
	OnCompacted func(shard string, e partition.CompactEvent)
	// Partition events, of every shard.
	Partition partition.Events
}

func (o *Options) normalise() error {
	if o.Catalog == nil {
		return errors.New("broker: no catalog")
	}
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	l, d := &o.Limits, DefaultLimits()
	for _, n := range []struct {
		name string
		v    int64
	}{
		{"node_in_flight", l.NodeInFlight}, {"tenant_in_flight", l.TenantInFlight},
		{"tenant_bytes_per_second", l.TenantBytesPerSecond}, {"tenant_records_per_second", l.TenantRecordsPerSecond}, {"ring_bytes", int64(l.RingBytes)},
		{"rings_bytes", l.RingsBytes}, {"queue_capacity", int64(l.QueueCapacity)}, {"max_queue_capacity", int64(l.MaxQueueCapacity)},
		{"queue_bytes", int64(l.QueueBytes)}, {"block_for", int64(l.BlockFor)}, {"replay_batches", int64(l.ReplayBatches)},
		{"replay_bytes", int64(l.ReplayBytes)}, {"log_queue_bytes", l.LogQueueBytes}, {"queue_hold_bytes", l.QueueHoldBytes}, {"read_page_bytes", int64(l.ReadPageBytes)},
		{"poll_bytes", int64(l.PollBytes)}, {"poll_wait", int64(l.PollWait)}, {"recovering", int64(l.Recovering)},
		{"retry_open", int64(l.RetryOpen)},
	} {
		if n.v < 0 {
			return fmt.Errorf("broker: limit %s is negative", n.name)
		}
	}
	orDefault(&l.NodeInFlight, d.NodeInFlight)
	orDefault(&l.TenantInFlight, d.TenantInFlight)
	orDefault(&l.RingBytes, d.RingBytes)
	orDefault(&l.RingsBytes, d.RingsBytes)
	orDefault(&l.CacheValuesBytes, d.CacheValuesBytes)
	orDefault(&l.QueueCapacity, d.QueueCapacity)
	orDefault(&l.MaxQueueCapacity, d.MaxQueueCapacity)
	orDefault(&l.QueueBytes, d.QueueBytes)
	orDefault(&l.BlockFor, d.BlockFor)
	orDefault(&l.ReplayBatches, d.ReplayBatches)
	orDefault(&l.ReplayBytes, d.ReplayBytes)
	orDefault(&l.LogQueueBytes, d.LogQueueBytes)
	orDefault(&l.QueueHoldBytes, d.QueueHoldBytes)
	orDefault(&l.ReadPageBytes, d.ReadPageBytes)
	orDefault(&l.PollBytes, d.PollBytes)
	orDefault(&l.PollWait, d.PollWait)
	if err := l.Groups.Validate(); err != nil {
		return fmt.Errorf("broker: groups: %w", err)
	}
	orDefault(&l.Recovering, d.Recovering)
	orDefault(&l.RetryOpen, d.RetryOpen)
	return nil
}

func orDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}
