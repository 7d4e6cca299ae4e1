package storage

// Batch is one unit of appending: its records get consecutive offsets, are never
// split over segments, and are written and acknowledged together. (A power cut may leave
// the first of a batch that was not acknowledged: a [ProducerTag] says where one begins.)
// The caller sets the
// first group of fields and leaves them and the payloads untouched until Done runs
// or Append returns; then the batch may be used again.
type Batch struct {
	// Payloads are the records, at least one unless Barrier is set.
	Payloads [][]byte
	// Kind is KindPlain, KindGenerationStart (payload: the generation, big-endian
	// u64) or KindCommit.
	Kind Kind
	// Producer tags the first record when HasProducer is set; the others continue it.
	Producer    ProducerTag
	HasProducer bool
	// Publisher is stored with each record when not empty; at most 255 bytes.
	Publisher []byte
	// Expected, with HasExpected, must be the offset the first record gets; else the
	// batch is refused with *OffsetMismatchError.
	Expected    Offset
	HasExpected bool
	// UseReserve allows appending below the disk's MinFree: acks, deletes, dead
	// letters, metadata.
	UseReserve bool
	// Barrier marks a batch without records, which completes when everything before
	// it is stable. It passes Admit like any other.
	Barrier bool
	// Encoded, when not empty, holds records as another log of this format encoded
	// them, instead of Payloads. They are stored verbatim if Prev is this log's own
	// record before them; see Log.AppendEncoded.
	Encoded []byte
	Prev    RecordID
	// User is the caller's.
	User any
	// Done, if set, is called once, when the outcome is known, in offset order with
	// the Done of other batches. It must not block and must not append waiting; it
	// may Enqueue.
	Done func(*Batch)

	// First is the offset of the first record, Timestamp its time, Err the outcome.
	// Set before Done. With Err set, First means something only if Admit set it.
	First     Offset
	Timestamp Micros
	Err       error

	size     int64 // bytes to be written
	charge   int64 // bytes counted against the queue's bound
	version  uint16
	admitted bool // it got an offset
	enc      encodedInfo
	wait     waiter
	next     *Batch
}

// Records is how many records the batch holds, as far as that is known without
// decoding: 0 for Encoded and Barrier.
func (b *Batch) Records() int { return len(b.Payloads) }

// Group is what one write put into the log. It is valid during the call it is
// handed to, and so is everything in it.
type Group struct {
	First, Next Offset // [First, Next)
	Encoded     []byte // the records as they are on disk
	Batches     []*Batch
	Timestamp   Micros // of its newest record
	// Err is set for a group whose records have no certain place: Stable is not
	// called for it.
	Err error

	buf   []byte
	bytes int64 // queue bytes to give back
	link  *Group
}

// Hooks are the owner's places in the way of a batch. All are optional, set at
// Open, called without locks that a caller can hold, and must not block.
type Hooks struct {
	// Admit is called in offset order as b is about to get next, while nothing else
	// can get an offset. An error refuses b: it gets no offset and completes in order
	// with that error once everything before it is stable. Admit may set b.First of a
	// batch it refuses (a duplicate's original offset).
	Admit func(b *Batch, next Offset) error
	// Reverted says that admitted batches were taken back: forget those that had next or
	// a later offset, which will be given again. What was admitted below next stands,
	// stable or not yet.
	Reverted func(next Offset)
	// Written is called after the write and before the flush.
	Written func(g *Group)
	// Stable is called in offset order when a group is as durable as the log's
	// policy acknowledges, before the Done of its batches.
	Stable func(g *Group)
	// Reopened is called when a poisoned log serves again, before it takes the next
	// batch: forget all that were admitted and are not stable. The records in
	// [from, next) had been answered ErrUnknownOutcome, are now in the log, and are
	// stable; Stable is not called for them. It may read the log. An error leaves the log
	// poisoned and is Reopen's; the next Reopen tells of the same records again.
	Reopened func(from, next Offset) error
}

// filePos is a place in a segment.
type filePos struct {
	seg SegmentID
	pos int64
}
