package replica

import (
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/storage"
)

// The words of the log, under the names they have here.
type (
	Offset     = storage.Offset
	Generation = storage.Generation
)

// LogID numbers the logs of a shard: zero is the stream's or the cache's own, the
// others its siblings (group state).
type LogID uint8

// MaxLogs bounds the logs of one shard.
const MaxLogs = 4

// Opening names one opening of a data directory: its disk, and how often it was opened
// before. Openings of one disk are ordered by Count, which rises with each start and is
// on disk before anything is answered.
type Opening struct {
	Disk  meta.DiskID
	Count uint64
}

// Term is a generation with the opening it was given to. Two leaders never share a
// Term; after a restore of the metadata they might share a Generation, and are told
// apart by the opening.
type Term struct {
	Generation Generation
	By         Opening
}

// Place is a position in a log: Next is the offset of the record that follows,
// Generation and Checksum are those of the record before it. They are zero where
// nothing is before, or where what was there is trimmed.
type Place struct {
	Next       Offset
	Generation Generation
	Checksum   uint32
}

// ShardID names a shard on the wire between brokers: the incarnation of its stream or
// cache, which is unique, and its number.
type ShardID struct {
	Incarnation uint64
	Shard       uint32
}

// Limits and defaults.
const (
	// MaxShipBytes bounds the records of one message, beyond its first record.
	MaxShipBytes = 1 << 20
	// MaxInflight bounds the unanswered batches to one follower, per log; beyond it the
	// follower is fed from the log as it answers.
	MaxInflight = 64
	// UnshippedBytes and UnshippedTime bound what a leader acknowledged and a majority
	// does not hold (rule 8).
	UnshippedBytes = 4 << 20
	UnshippedTime  = time.Second
	// LeaseTime is how long a follower's answer binds it (rule 9).
	LeaseTime = 3 * time.Second
	// ResendAfter is how long an unanswered batch or question waits before it is sent
	// again.
	ResendAfter = 300 * time.Millisecond
	// AwayAfter is how long a follower of a leader-consistency shard may be silent before
	// the leader asks to go on without it.
	AwayAfter = 10 * time.Second
	// MaxWaitingReads bounds the linearizable reads that wait; beyond it they fail.
	MaxWaitingReads = 4096
)

// Config is what a replica is told once.
type Config struct {
	Node  meta.NodeID
	Shard ShardID
	Key   meta.ShardKey
	// Consistency says when writes are acknowledged.
	Consistency meta.Consistency
	// Leases lets linearizable reads use a lease of LeaseTime.
	Leases bool
	// ShipBytes bounds the records read at once for a follower that is behind; zero is
	// MaxShipBytes.
	ShipBytes int
	// UnshippedBytes bounds what is acknowledged and not committed, beyond the first batch;
	// zero is the constant of that name.
	UnshippedBytes int64
	// Rules are the clauses switched off, for tests.
	Rules Rules
}

// Opened is the state of the directory as it was opened.
type Opened struct {
	Opening Opening
	// Accepted is the highest term accepted: the higher of the journal's and the
	// replica files'. Its By is zero when only the generation is known.
	Accepted Term
	// Forgetful: the replica may have lost records it acknowledged (rule 6).
	Forgetful bool
	// Now is the time of the opening.
	Now time.Duration
	// Logs are the shard's logs, recovered and flushed.
	Logs []LogOpened
}

// LogOpened is one recovered log.
type LogOpened struct {
	Head        Offset // the oldest retained
	Next        Offset // one past the last
	Mark        Offset // the stored committed mark, of what was durable then
	Last        Place  // of Next
	Generations []storage.GenerationStart
	// Unknown: the log is there and cannot be read, or holds records whose generation
	// it cannot say.
	Unknown bool
}
