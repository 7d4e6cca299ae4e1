package node

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/internal/config"
	"github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/internal/server"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/vfs"
)

// The reserve of min_free auto: the smaller of both.
const (
	mostReserve  = 1 << 30
	reserveShare = 20 // 1/20 = 5 %
)

// plan is what the settings come to, part by part. It holds plain values, so that a
// test can see that each setting reaches the part it is about.
type plan struct {
	root       string // of the logs; empty: in memory only
	disk       diskPlan
	defaults   broker.Defaults
	broker     broker.Limits
	server     server.Limits
	alpn       bool
	record     int64 // largest record of a stream that does not say
	mostRecord int64 // largest a stream may ask for
}

type diskPlan struct {
	maxFlushes   int
	maxOpenFiles int
	minFree      int64
	ioUring      bool
}

// planOf maps the settings. The data directory is made already: its file system
// decides what min_free auto is.
func planOf(o *config.Options, fsys vfs.FS) (plan, error) {
	st, li := &o.Storage, &o.Limits
	fsync, err := storage.ParseFsyncMode(st.FsyncMode)
	if err != nil {
		return plan{}, err
	}
	p := plan{
		disk: diskPlan{
			maxFlushes: int(st.MaxFlushes), maxOpenFiles: int(st.MaxOpenFiles), minFree: st.MinFree, ioUring: st.IOUring,
		},
		defaults: broker.Defaults{
			Fsync: fsync, FsyncInterval: st.FsyncInterval, SegmentBytes: st.SegmentBytes, IndexSpacing: st.IndexSpacingBytes,
			MaxRecordsPerRead: int(st.MaxRecordsPerRead), MaxValueBytes: st.MaxRecordBytes, Preallocate: st.Preallocate, ZeroAhead: st.ZeroAhead,
			VerifyAllOnOpen: st.VerifyAllOnOpen, RepairChecksumTail: st.RepairChecksumTail,
			RetentionBytes: st.RetentionBytes, RetentionAge: st.RetentionAge, RetentionInterval: st.RetentionCheckInterval,
		},
		broker: broker.DefaultLimits(),
		server: server.Limits{
			Connections: int(li.Connections), AuthTimeout: li.AuthTimeout, PreAuthFrameBytes: int(li.PreauthFrameBytes),
			PreAuthStreams: int(li.PreauthStreams), FrameBytes: int(li.FrameBytes), PublishWindow: int(li.PublishWindow),
			InFlightBytes: int(li.ConnectionInflightBytes), Subscriptions: int(li.Subscriptions),
			PollRecords: int(li.PollRecords),
			IdleTimeout: li.IdleTimeout, KeepAlive: li.KeepAlive,
		},
		alpn:       o.TLS.RequireALPN,
		record:     st.MaxRecordBytes,
		mostRecord: config.MostRecordBytes(li.FrameBytes),
	}
	if li.AuthTimeout == 0 {
		// Zero switches it off for operators; for the server that is a negative one.
		p.server.AuthTimeout = -1
	}
	p.broker.MostRecordBytes = p.mostRecord
	p.broker.NodeInFlight = li.NodeInflightBytes
	p.broker.TenantInFlight = li.TenantInflightBytes
	p.broker.TenantBytesPerSecond = li.TenantBytesPerSecond
	p.broker.TenantRecordsPerSecond = li.TenantRecordsPerSecond
	p.broker.RingBytes = int(o.Streams.RingBytes)
	p.broker.RingsBytes = o.Streams.RingsBytes
	p.broker.CacheValuesBytes = o.Caches.ValuesBytes
	if o.Caches.ValuesBytes == 0 {
		p.broker.CacheValuesBytes = -1 // for the broker 0 is the default
	}
	p.broker.QueueCapacity = int(o.Streams.QueueCapacity)
	p.broker.BlockFor = o.Streams.BlockTimeout
	p.broker.QueueHoldBytes = o.Streams.QueueHoldBytes
	page := config.MostPageBytes(li.FrameBytes)
	p.broker.ReadPageBytes = int(min(li.ReadPageBytes, page))
	p.broker.PollBytes = int(min(li.PollBytes, page))
	p.broker.PollWait = li.PollWait
	p.broker.Groups = groupsOf(&o.Groups)
	if st.Mode == config.StorageNone {
		return p, nil
	}
	if p.root = st.Dir; p.root == "" {
		p.root = filepath.Join(o.Data, logsDir)
	}
	if st.MinFree == config.Auto {
		usage, err := usageOf(fsys, p.root)
		if err != nil {
			return plan{}, err
		}
		p.disk.minFree = min(mostReserve, usage.Total/reserveShare)
	}
	return p, nil
}

// groupsOf is how groups are set that nobody configures. What is a group's default anyway
// is left out: a group that says nothing has nothing to write down.
func groupsOf(g *config.Groups) queue.Config {
	c := queue.Config{Backoff: g.Backoff, BackoffMax: g.BackoffMax}
	if g.Visibility != queue.DefaultVisibility {
		c.Visibility = g.Visibility
	}
	if g.MaxAttempts != queue.DefaultMaxAttempts {
		c.MaxAttempts = int(g.MaxAttempts)
	}
	if g.MaxInFlight != queue.DefaultMaxInFlight {
		c.MaxInFlight = int(g.MaxInFlight)
	}
	return c
}

// usageOf is the room of the file system dir will be on; dir may not exist yet.
func usageOf(fsys vfs.FS, dir string) (vfs.Usage, error) {
	for {
		usage, err := fsys.Usage(dir)
		if up := filepath.Dir(dir); err != nil && errors.Is(err, fs.ErrNotExist) && up != dir {
			dir = up
			continue
		}
		return usage, err
	}
}
