package config

import "time"

// Storage modes of Storage.Mode.
const (
	StorageDisk = "disk"
	StorageNone = "none"
)

// Fsync modes of Storage.FsyncMode.
const (
	FsyncNone     = "none"
	FsyncPeriodic = "periodic"
	FsyncOnCommit = "on_commit"
)

// Auto stands for a size the program chooses itself.
const Auto int64 = -1

// Options is everything `felix serve` can be told. Sizes are bytes.
type Options struct {
	Data     string // directory of everything the broker keeps
	Listen   string // clients: QUIC on UDP and TLS on TCP, one port number
	HTTP     HTTP
	TLS      TLS
	Auth     Auth
	Storage  Storage
	Streams  Streams
	Caches   Caches
	Groups   Groups
	Limits   Limits
	Log      Log
	Shutdown Shutdown
	Memory   Memory
}

// HTTP is the listener of API, health and metrics.
type HTTP struct {
	Listen       string
	TLSCert      string // PEM files; both or none. None: plain HTTP, loopback only
	TLSKey       string
	MaxBodyBytes int64
}

// TLS is the clients' certificate.
type TLS struct {
	Cert        string // PEM files; both or none. None: a private CA made at the first start, loopback only
	Key         string
	RequireALPN bool
}

// Auth is where tokens are verified from.
type Auth struct {
	Keys string // directory of signing keys; empty: keys/ in the data directory
}

// Storage is the durable log's part, for every stream that does not say otherwise.
type Storage struct {
	Mode                   string // StorageDisk or StorageNone
	Dir                    string // root of the logs; empty: streams/ in the data directory
	FsyncMode              string
	FsyncInterval          time.Duration
	SegmentBytes           int64
	IndexSpacingBytes      int64
	MaxRecordsPerRead      int64
	MaxRecordBytes         int64
	Preallocate            bool
	ZeroAhead              bool
	VerifyAllOnOpen        bool
	RepairChecksumTail     bool
	IOUring                bool
	MaxFlushes             int64
	MaxOpenFiles           int64
	MinFree                int64 // Auto: the smaller of 1 GiB and 5 % of the file system; 0: off
	RetentionBytes         int64 // 0: no bound
	RetentionAge           time.Duration
	RetentionCheckInterval time.Duration
}

// Streams is what readers and the memory of streams may use.
type Streams struct {
	RingBytes     int64         // recent records of a shard kept in memory
	RingsBytes    int64         // the same of all shards together
	QueueCapacity int64         // batches waiting for one subscriber of an in-memory stream
	BlockTimeout  time.Duration // how long a full queue of policy block holds publishers back

	QueueHoldBytes int64 // by which a stream of kind queue may exceed its retention for its groups
}

// Caches is what the readers of caches may use.
type Caches struct {
	ValuesBytes int64 // of values kept in memory, of all caches together
}

// Groups is how consumer groups are set that were not configured when they were made.
type Groups struct {
	Visibility  time.Duration // how long a claim stands when the poll does not say
	MaxAttempts int64         // deliveries before a record is a dead letter
	Backoff     time.Duration // after the first nack that names no delay; 0: none
	BackoffMax  time.Duration // 0: the longest delay there is
	MaxInFlight int64         // claimed and delayed records
}

// Limits bound what clients can make the broker hold.
type Limits struct {
	FrameBytes              int64
	PreauthFrameBytes       int64
	PreauthStreams          int64
	AuthTimeout             time.Duration // 0: off
	Connections             int64
	Subscriptions           int64
	PublishWindow           int64
	ConnectionInflightBytes int64
	TenantInflightBytes     int64
	TenantBytesPerSecond    int64 // 0: no bound
	TenantRecordsPerSecond  int64 // 0: no bound
	NodeInflightBytes       int64
	ReadPageBytes           int64 // payload of one page of a read by range
	PollRecords             int64
	PollBytes               int64         // payload of one poll
	PollWait                time.Duration // of a poll that finds nothing
	IdleTimeout             time.Duration
	KeepAlive               time.Duration
}

// Log is the program's own log on standard error.
type Log struct {
	Level  string // debug, info, warn, error
	Format string // auto, text, json
}

// Shutdown bounds a graceful stop.
type Shutdown struct {
	Timeout time.Duration
}

// Memory is the soft limit of the Go runtime.
type Memory struct {
	Limit int64 // Auto: GOMEMLIMIT if set, else nine tenths of the container's limit
}
