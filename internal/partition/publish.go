package partition

import (
	"errors"

	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// Publish is one batch on its way into a shard. The caller sets the first group of
// fields and leaves them, and the payload bytes, untouched until Done has run or
// [Partition.Publish] has returned an error; then it may be used again.
type Publish struct {
	// Payloads are the records. An empty batch is answered at once, without an offset.
	Payloads [][]byte
	// Publisher is the principal; stored, and delivered, only where the stream asks for
	// it. At most 255 bytes.
	Publisher []byte
	// Idempotent batches carry the producer's id and sequence.
	Idempotent           bool
	ProducerID, Sequence uint64
	// Expected, with HasExpected, must be the offset the first record gets.
	Expected    storage.Offset
	HasExpected bool
	// Done runs once, on any goroutine, possibly before Publish returns. It must not
	// block. On a durable shard it runs in the order of the offsets, refusals among them;
	// in memory, publishes of several goroutines are answered side by side.
	Done func(*Publish)
	// User is the caller's.
	User any

	// First is the offset of the first record, if HasOffset: an in-memory stream has
	// none, nor has an empty batch. Also that of a duplicate, and of the batch that used
	// the sequence of one refused with stream.ErrSequenceReused.
	First     storage.Offset
	HasOffset bool
	// Duplicate: the batch was in the log already; Err is nil.
	Duplicate bool
	Timestamp storage.Micros
	Err       error

	batch     storage.Batch
	shard     *Partition
	publisher []byte // to be stored
	cost      int64  // taken from the budget
	bytes     int64  // of payloads
	digest    uint64
	needs     storage.Offset // with a gate: answered when this is committed
}

// Reset clears everything but the memory of Payloads.
func (b *Publish) Reset() { *b = Publish{Payloads: b.Payloads[:0]} }

// recordCost is what a record in flight takes beside its payload, so that empty
// records are bounded too.
const recordCost = 64

// Publish takes a batch in, without I/O. An error means that nothing of it was or will
// be done, and that Done does not run. What is taken in is written by
// [Partition.Drive].
func (p *Partition) Publish(b *Publish) error {
	err := p.accept(b)
	if err != nil {
		b.Err = err
		p.counters.Publishes[resultOf(b)].Add(1)
	}
	return err
}

func (p *Partition) accept(b *Publish) error {
	if err := p.serving(); err != nil {
		return err
	}
	b.shard = p
	b.First, b.HasOffset, b.Duplicate, b.Timestamp, b.Err = 0, false, false, 0, nil
	b.cost = 0
	if len(b.Payloads) == 0 {
		b.bytes = 0
		if b.Idempotent || b.HasExpected {
			return ErrEmptyBatch
		}
		b.finish()
		return nil
	}
	most := int(p.maxRecord.Load())
	publisher := b.Publisher
	if !p.storePublisher.Load() {
		publisher = nil
	}
	if len(publisher) > segment.MaxPublisherSize {
		return segment.ErrPublisherTooLong
	}
	bytes := 0
	for _, r := range b.Payloads {
		if len(r) > most {
			return &storage.RecordTooLargeError{Size: len(r), Max: most}
		}
		bytes += len(r)
	}
	b.bytes = int64(bytes)
	if p.memory != nil && b.HasExpected {
		return ErrMemoryStream
	}
	cost := b.bytes + int64(len(b.Payloads))*recordCost
	if err := p.budget.Admit(cost, b.bytes, len(b.Payloads)); err != nil {
		return err
	}
	b.cost = cost
	if b.Idempotent {
		b.digest = stream.Digest(b.Payloads)
	}
	var err error
	if p.memory != nil {
		err = p.memory.publish(b, publisher)
	} else {
		err = p.enqueue(b, publisher)
	}
	if err != nil {
		p.budget.Release(cost)
		b.cost = 0
		return p.closedAs(err)
	}
	return nil
}

func (p *Partition) enqueue(b *Publish, publisher []byte) error {
	s := &b.batch
	s.Payloads = b.Payloads
	s.Kind = storage.KindPlain
	s.Publisher = publisher
	s.HasProducer = b.Idempotent
	if b.Idempotent {
		s.Producer = storage.ProducerTag{ID: b.ProducerID, Sequence: b.Sequence, Len: uint32(len(b.Payloads))}
	}
	s.Expected, s.HasExpected = b.Expected, b.HasExpected
	s.User = b
	s.Done = batchDone
	s.First, s.Timestamp, s.Err = 0, 0, nil
	return p.log.Enqueue(s)
}

// batchDone is the Done of every batch a publish puts into a log.
func batchDone(s *storage.Batch) {
	b := s.User.(*Publish)
	p := b.shard
	b.Err = s.Err
	switch {
	case b.Err == nil:
		b.First, b.HasOffset, b.Timestamp = s.First, true, s.Timestamp
	case errors.Is(b.Err, stream.ErrDuplicate):
		b.First, b.HasOffset, b.Duplicate, b.Err = s.First, true, true, nil
	case errors.Is(b.Err, stream.ErrSequenceReused):
		b.First, b.HasOffset = s.First, true
	default:
		b.Err = p.closedAs(b.Err)
	}
	if p.gate != nil {
		p.await(b)
		return
	}
	b.finish()
}

// finish counts and answers.
func (b *Publish) finish() {
	p := b.shard
	if b.cost > 0 {
		p.budget.Release(b.cost)
		b.cost = 0
	}
	r := resultOf(b)
	p.counters.Publishes[r].Add(1)
	if r == ResultOK {
		p.counters.Records.Add(uint64(len(b.Payloads)))
		p.counters.Bytes.Add(uint64(b.bytes))
	}
	b.Done(b)
}

// Drive has the queued batches written, and flushed where the log's policy asks for
// it: by this goroutine with inline, else the flush is left to another. It returns
// when there is nothing more for this goroutine to do.
func (p *Partition) Drive(inline bool) {
	if p.log != nil {
		p.log.Drive(inline)
	}
}
