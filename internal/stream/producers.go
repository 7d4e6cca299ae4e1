package stream

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/felixlog/felix/storage/segment"
)

// Limits of what a shard remembers of its idempotent producers (the wire protocol,
// section 9).
const (
	MaxProducers      = segment.MaxProducers       // producers a shard
	RememberedBatches = segment.MaxProducerBatches // batches a producer
)

// Refusals of an idempotent publish.
var (
	// ErrUnknownProducer: the shard does not remember the producer, and the batch is
	// not its first.
	ErrUnknownProducer = errors.New("stream: unknown producer")
	// ErrSequenceExpired: the sequence is older than the batches remembered.
	ErrSequenceExpired = errors.New("stream: sequence is older than what is remembered")
	// ErrSequenceReused: the sequence was used for other payloads.
	ErrSequenceReused = errors.New("stream: sequence was used for other payloads")
	// ErrDuplicate: the batch is in the log already. Not a failure: the answer is the
	// original offset.
	ErrDuplicate = errors.New("stream: batch is in the log already")
)

// SequenceGapError refuses a batch whose sequence is past the next one.
type SequenceGapError struct {
	Expected uint64
}

func (e *SequenceGapError) Error() string {
	return fmt.Sprintf("stream: sequence gap: expected %d", e.Expected)
}

// Producers remembers, per idempotent producer, the last batches of a shard: those
// that are stable, and those admitted that are not yet.
// The zero value is empty. The caller serialises calls.
type Producers struct {
	byID map[uint64]*producer
	// flights are the admitted batches that are not stable, in offset order.
	flights fifo[flight]
	// oldest and newest end the list of producers with a stable batch, by the offset of
	// their last one; count is its length, at most MaxProducers.
	oldest, newest *producer
	count          int
	// evicted counts producers that were forgotten for others.
	evicted int
	// open is a batch of which the log so far holds only the first records.
	open openBatch
}

type producer struct {
	id uint64
	// next is the sequence after the last stable batch. Batches in flight have the
	// sequences from it on.
	next   uint64
	stable bool // in the list
	// batches are the last stable ones, oldest first, at most RememberedBatches. They
	// have the sequences up to next.
	batches fifo[remembered]
	flying  fifo[remembered]

	older, newer *producer
}

type remembered struct {
	first     segment.Offset
	len       uint32
	hasDigest bool
	digest    uint64
}

type flight struct {
	producer *producer
	end      segment.Offset // one past the batch's last record
}

type openBatch struct {
	tag    segment.ProducerTag
	first  segment.Offset
	held   uint32 // records seen; zero: no batch is open
	digest uint64
}

// Admit decides about the batch of n records that is about to get the offset next.
// With nil the batch is in flight: [Producers.Stable] or [Producers.Revert] decides
// over it. [ErrDuplicate] and [ErrSequenceReused] come with the offset of the batch
// that has the sequence. Other errors: [ErrUnknownProducer], [ErrSequenceExpired],
// [*SequenceGapError].
func (t *Producers) Admit(id, sequence uint64, n int, digest uint64, next segment.Offset) (segment.Offset, error) {
	p := t.byID[id]
	if p == nil {
		if sequence != 0 {
			return 0, ErrUnknownProducer
		}
		p = t.add(id)
	}
	flying := uint64(p.flying.len())
	expected := p.next + flying
	switch {
	case sequence == expected:
		p.flying.push(remembered{first: next, len: uint32(n), hasDigest: true, digest: digest})
		t.flights.push(flight{producer: p, end: next + segment.Offset(n)})
		return next, nil
	case sequence > expected:
		return 0, &SequenceGapError{Expected: expected}
	}
	back := expected - sequence // 1: the newest
	if back > RememberedBatches || back > flying+uint64(p.batches.len()) {
		return 0, ErrSequenceExpired
	}
	var b *remembered
	if back <= flying {
		b = p.flying.at(int(flying - back))
	} else {
		b = p.batches.at(p.batches.len() - int(back-flying))
	}
	if b.len != uint32(n) || b.hasDigest && b.digest != digest {
		return b.first, ErrSequenceReused
	}
	return b.first, ErrDuplicate
}

// Stable says that every record below end is stable: the batches in flight up to it
// are remembered from now on.
func (t *Producers) Stable(end segment.Offset) {
	for t.flights.len() > 0 && t.flights.at(0).end <= end {
		f := t.flights.pop()
		b := f.producer.flying.pop()
		t.remember(f.producer, b)
	}
}

// Revert forgets the batches in flight that reach past next, the offset to be given
// next now that the log has taken records back.
func (t *Producers) Revert(next segment.Offset) {
	for n := t.flights.len(); n > 0 && t.flights.at(n-1).end > next; n-- {
		p := t.flights.popBack().producer
		p.flying.popBack()
		if !p.stable && p.flying.len() == 0 {
			delete(t.byID, p.id)
		}
	}
}

// InFlight is the number of admitted batches that are not stable.
func (t *Producers) InFlight() int { return t.flights.len() }

// Len is the number of producers remembered.
func (t *Producers) Len() int { return t.count }

// Replay takes in a record that the log holds, stable and in offset order, as a shard
// does when it opens. Nothing may be in flight. Records of other kinds are ignored.
func (t *Producers) Replay(r *segment.Record) {
	o := &t.open
	switch r.Kind {
	case segment.KindProducerFirst:
		if r.Producer.Len == 0 {
			*o = openBatch{}
			return
		}
		*o = openBatch{tag: r.Producer, first: r.Offset, held: 1, digest: extendDigest(0, r.Payload)}
	case segment.KindProducerNext:
		if o.held == 0 || r.Offset != o.first+segment.Offset(o.held) {
			*o = openBatch{}
			return
		}
		o.held++
		o.digest = extendDigest(o.digest, r.Payload)
	default:
		*o = openBatch{}
		return
	}
	if o.held < o.tag.Len {
		return
	}
	t.replayed(o.tag.ID, o.tag.Sequence, remembered{first: o.first, len: o.tag.Len, hasDigest: true, digest: o.digest})
	*o = openBatch{}
}

// OpenBatch says where the batch begins of which the records replayed so far hold only
// a part; false when the last batch is whole.
func (t *Producers) OpenBatch() (segment.Offset, bool) { return t.open.first, t.open.held > 0 }

// CloseOpen forgets the part of a batch that [Producers.OpenBatch] told of.
func (t *Producers) CloseOpen() { t.open = openBatch{} }

func (t *Producers) replayed(id, sequence uint64, b remembered) {
	p := t.byID[id]
	if p == nil {
		p = t.add(id)
		p.next = sequence
	}
	if n := p.batches.len(); n > 0 && b.first <= p.batches.at(n-1).first {
		return // known
	}
	if p.next != sequence {
		p.batches.clear()
		p.next = sequence
	}
	t.remember(p, b)
}

func (t *Producers) add(id uint64) *producer {
	if t.byID == nil {
		t.byID = make(map[uint64]*producer)
	}
	p := &producer{id: id}
	t.byID[id] = p
	return p
}

// remember makes b the newest stable batch of p, and p the producer written last.
func (t *Producers) remember(p *producer, b remembered) {
	if p.batches.len() == RememberedBatches {
		p.batches.pop()
	}
	p.batches.push(b)
	p.next++
	if p.stable {
		t.unlink(p)
	}
	t.link(p)
	for t.count > MaxProducers {
		t.evict()
	}
}

// evict forgets the producer that was written least recently. One that has batches in
// flight is about to be written again: it goes to the other end.
func (t *Producers) evict() {
	p := t.oldest
	t.unlink(p)
	if p.flying.len() > 0 {
		// Its sequence must survive until the flight lands, which links it again.
		return
	}
	delete(t.byID, p.id)
	t.evicted++
}

// Evicted is how many producers were forgotten for others since the zero value or Restore.
func (t *Producers) Evicted() int { return t.evicted }

func (t *Producers) link(p *producer) {
	p.stable = true
	p.older, p.newer = t.newest, nil
	if t.newest != nil {
		t.newest.newer = p
	} else {
		t.oldest = p
	}
	t.newest = p
	t.count++
}

func (t *Producers) unlink(p *producer) {
	p.stable = false
	if p.older != nil {
		p.older.newer = p.newer
	} else {
		t.oldest = p.newer
	}
	if p.newer != nil {
		p.newer.older = p.older
	} else {
		t.newest = p.older
	}
	p.older, p.newer = nil, nil
	t.count--
}

// Snapshot is what a `producers` file says: the stable state as of the offset asOf,
// producers in the order of their last batch.
func (t *Producers) Snapshot(asOf segment.Offset) *segment.ProducerSnapshot {
	s := &segment.ProducerSnapshot{AsOf: asOf, Producers: make([]segment.ProducerEntry, 0, t.count)}
	if o := &t.open; o.held > 0 {
		s.Open = &segment.OpenBatch{Tag: o.tag, First: o.first, Held: o.held, Digest: segment.Digest{Known: true, Value: o.digest}}
	}
	for p := t.oldest; p != nil; p = p.newer {
		e := segment.ProducerEntry{ID: p.id, LastSequence: p.next - 1, Batches: make([]segment.ProducerBatch, p.batches.len())}
		for i := range e.Batches {
			b := p.batches.at(i)
			e.Batches[i] = segment.ProducerBatch{First: b.first, Len: b.len, Digest: segment.Digest{Known: b.hasDigest, Value: b.digest}}
		}
		s.Producers = append(s.Producers, e)
	}
	return s
}

// Restore replaces everything remembered by what a snapshot says. Producers written
// elsewhere may be in any order: they are put in that of their last batch.
func (t *Producers) Restore(s *segment.ProducerSnapshot) {
	*t = Producers{}
	entries := slices.Clone(s.Producers)
	slices.SortStableFunc(entries, func(a, b segment.ProducerEntry) int { return cmp.Compare(lastFirst(&a), lastFirst(&b)) })
	for i := range entries {
		e := &entries[i]
		if t.byID[e.ID] != nil {
			continue
		}
		p := t.add(e.ID)
		for _, b := range e.Batches {
			if p.batches.len() == RememberedBatches {
				p.batches.pop()
			}
			p.batches.push(remembered{first: b.First, len: b.Len, hasDigest: b.Digest.Known, digest: b.Digest.Value})
		}
		p.next = e.LastSequence + 1
		t.link(p)
	}
	for t.count > MaxProducers {
		t.evict()
	}
	if o := s.Open; o != nil {
		t.open = openBatch{tag: o.Tag, first: o.First, held: o.Held, digest: o.Digest.Value}
	}
}

func lastFirst(e *segment.ProducerEntry) segment.Offset {
	if n := len(e.Batches); n > 0 {
		return e.Batches[n-1].First
	}
	return 0
}
