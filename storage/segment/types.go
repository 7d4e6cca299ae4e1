package segment

import "strconv"

// Offset is the place of a record in a shard's log. Offsets are dense: they ascend by
// exactly one within a segment and across segments.
type Offset uint64

// String is the offset in decimal.
func (o Offset) String() string { return strconv.FormatUint(uint64(o), 10) }

// Generation is an epoch of leadership over a shard's log.
type Generation uint64

// Micros is a point in time, in microseconds since 1970-01-01 UTC.
type Micros uint64

// ID names a segment file. IDs ascend with age; they are not offsets.
type ID uint64

// GenerationStart says at which offset a generation began to lead.
type GenerationStart struct {
	Generation Generation
	Start      Offset
}

// Version is the version of a segment file: the least that can hold what is in it.
type Version uint16

// The versions that can be read and written. Version 1 and those above MaxVersion are
// refused by name.
const (
	VersionPlain      Version = 2 // plain records only
	VersionProducer   Version = 3 // and batches of idempotent producers
	VersionGeneration Version = 4 // and generation starts
	VersionCommit     Version = 5 // and atomic commits
	VersionPublisher  Version = 6 // and the publisher's principal

	MinVersion = VersionPlain
	MaxVersion = VersionPublisher
)

// Kind is what a record is. Whether it carries its publisher's principal is apart from
// its kind.
type Kind uint8

const (
	// KindPlain is a record of a publish without more.
	KindPlain Kind = iota
	// KindProducerFirst opens the batch of an idempotent producer and carries its tag.
	KindProducerFirst
	// KindProducerNext continues the batch of the record before it.
	KindProducerNext
	// KindGenerationStart marks the first record of a generation; its payload is the
	// generation. It takes an offset; no reader but replication sees it.
	KindGenerationStart
	// KindCommit is an atomic commit: an event and the cache operations that go with it.
	KindCommit

	kindCount
)

var kindNames = [kindCount]string{"plain", "producer-first", "producer-next", "generation-start", "commit"}

// String is the kind's name in dumps and errors.
func (k Kind) String() string {
	if k < kindCount {
		return kindNames[k]
	}
	return "kind-" + strconv.Itoa(int(k))
}

// LeastVersion is the least segment version that can hold a record of this kind.
func (k Kind) LeastVersion() Version {
	switch k {
	case KindProducerFirst, KindProducerNext:
		return VersionProducer
	case KindGenerationStart:
		return VersionGeneration
	case KindCommit:
		return VersionCommit
	default:
		return VersionPlain
	}
}

// ProducerTag says which batch of which idempotent producer a record opens.
type ProducerTag struct {
	ID       uint64
	Sequence uint64
	Len      uint32 // records in the batch
}

// Sizes and limits of the format, in bytes.
const (
	HeaderSize       = 32       // segment header
	RecordHeaderSize = 28       // record header, without tag
	ProducerTagSize  = 20       // tag between header and payload
	MaxBodySize      = 64 << 20 // payload with the publisher trailer
	MaxPublisherSize = 255      // publisher's principal
	MaxRecordSize    = RecordHeaderSize + ProducerTagSize + MaxBodySize

	// DefaultIndexSpacing is the distance between index entries.
	DefaultIndexSpacing = 4096
)
