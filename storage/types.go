package storage

import "github.com/felixlog/felix/storage/segment"

// The words of the log are those of its format; they are one type under two names.
type (
	// Offset is the place of a record in a log; see segment.Offset.
	Offset = segment.Offset
	// Generation is an epoch of leadership; see segment.Generation.
	Generation = segment.Generation
	// GenerationStart says at which offset a generation began to lead.
	GenerationStart = segment.GenerationStart
	// Kind is what a record is; see segment.Kind.
	Kind = segment.Kind
	// Micros is a point in time in microseconds since 1970-01-01 UTC.
	Micros = segment.Micros
	// ProducerTag names a batch of an idempotent producer.
	ProducerTag = segment.ProducerTag
	// Record is a decoded record; its bytes are views of the page it was read into.
	Record = segment.Record
	// SegmentID names a segment file; IDs ascend with age and are not offsets.
	SegmentID = segment.ID
	// Corruption says what is wrong with stored bytes, and where.
	Corruption = segment.Corruption
)

// The kinds a batch may have. A batch of KindPlain with HasProducer set is stored
// as the producer's batch: its first record carries the tag.
const (
	KindPlain           = segment.KindPlain
	KindProducerFirst   = segment.KindProducerFirst
	KindProducerNext    = segment.KindProducerNext
	KindGenerationStart = segment.KindGenerationStart
	KindCommit          = segment.KindCommit
)

// RecordID names one record of one history: two logs that hold a record with the
// same ID hold the same records up to it. The zero RecordID stands before the
// first record of a log that begins at offset 0.
type RecordID struct {
	Offset     Offset
	Generation Generation // in force at Offset; 0 before the first generation start
	Checksum   uint32     // the record's own
}

// Descriptor says what a segment holds.
type Descriptor struct {
	ID        SegmentID
	Base      Offset // of its first record
	Next      Offset // one past its last record
	Bytes     int64  // of the file's content, its header included
	FirstTime Micros // of its first record; 0 when it has none
	LastTime  Micros // the greatest of its records
	Sealed    bool
}

// SealedSegment is a segment that will not be written again, as a copy of it can
// be checked.
type SealedSegment struct {
	Descriptor
	CRC32 uint32 // IEEE, over the whole file
}
