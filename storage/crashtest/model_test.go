package crashtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/felixlog/felix/storage"
)

// fate is what the log said about a batch.
type fate uint8

const (
	fatePending fate = iota // nothing yet: it may be in the log
	fateAcked               // done: it is
	fateUnknown             // "unknown": it may be
	fateNever               // "not written" or refused: it is not, and never will be
)

// entry is one batch as it was handed to the log. Its number is its place in the
// order of handing over, which is the order of offsets.
type entry struct {
	number    uint64
	sizes     []int // of the payloads
	zeros     bool  // payloads end in zero bytes
	kind      storage.Kind
	tag       storage.ProducerTag
	tagged    bool
	publisher string
	fate      fate
	first     storage.Offset // with fateAcked
	limit     int            // so many of its records may be in the log at most
}

// payloadHead is the least size of a payload: the batch's number and the record's
// place in it.
const payloadHead = 12

// payload is the content of record i.
func (e *entry) payload(i int) []byte {
	if e.kind == storage.KindGenerationStart {
		return binary.BigEndian.AppendUint64(nil, e.number+1)
	}
	p := make([]byte, e.sizes[i])
	binary.BigEndian.PutUint64(p, e.number+1)
	binary.BigEndian.PutUint32(p[8:], uint32(i))
	if !e.zeros {
		for n := payloadHead; n < len(p); n++ {
			p[n] = byte(uint64(n)*7 + e.number + uint64(i))
		}
	}
	return p
}

// recordKind is the kind record i is stored as.
func (e *entry) recordKind(i int) storage.Kind {
	switch {
	case e.kind != storage.KindPlain || !e.tagged:
		return e.kind
	case i == 0:
		return storage.KindProducerFirst
	}
	return storage.KindProducerNext
}

// held is one record found in a log.
type held struct {
	offset    storage.Offset
	timestamp storage.Micros
	kind      storage.Kind
	payload   []byte
	publisher string
	tag       storage.ProducerTag
}

// ref names a record of the model.
type ref struct {
	number uint64
	index  int
}

// model is what a log must hold, may hold, and must not.
type model struct {
	entries []*entry
	at      map[storage.Offset]ref // acknowledged, or found by a recovery
	// Records below these are there after the event, unless trimmed: kill of the
	// process, cut of the power.
	killFloor, cutFloor storage.Offset
	// An unfinished truncation may have taken what is at or above this.
	ceiling storage.Offset
	// The oldest record is one of these.
	headMin, headMax storage.Offset
	// A reset that did not end may have left the log empty and beginning at these.
	emptyAt  []storage.Offset
	lastDone int // number of the newest answered batch, for the order of answers
}

func newModel() *model {
	return &model{at: map[storage.Offset]ref{}, ceiling: ^storage.Offset(0), lastDone: -1}
}

// raise notes positions up to which the log says that records survive.
func (m *model) raise(kill, cut storage.Offset) {
	m.killFloor = max(m.killFloor, min(kill, m.ceiling))
	m.cutFloor = max(m.cutFloor, min(cut, m.ceiling))
}

// add notes a batch about to be handed over.
func (m *model) add(e *entry) *entry {
	e.number = uint64(len(m.entries))
	e.limit = len(e.sizes)
	m.entries = append(m.entries, e)
	return e
}

// identify finds the batch a record belongs to and checks that it is what was
// handed over, to the byte.
func (m *model) identify(h held) (ref, error) {
	if len(h.payload) < 8 {
		return ref{}, fmt.Errorf("offset %d: phantom: payload % x", h.offset, h.payload)
	}
	number := binary.BigEndian.Uint64(h.payload) - 1
	if number >= uint64(len(m.entries)) {
		return ref{}, fmt.Errorf("offset %d: phantom: batch %d of %d", h.offset, number, len(m.entries))
	}
	e, i := m.entries[number], 0
	if e.kind != storage.KindGenerationStart {
		if len(h.payload) < payloadHead {
			return ref{}, fmt.Errorf("offset %d: phantom: short payload % x", h.offset, h.payload)
		}
		i = int(binary.BigEndian.Uint32(h.payload[8:]))
	}
	if i >= len(e.sizes) {
		return ref{}, fmt.Errorf("offset %d: phantom: record %d of batch %d, which has %d", h.offset, i, number, len(e.sizes))
	}
	switch {
	case !bytes.Equal(h.payload, e.payload(i)):
		return ref{}, fmt.Errorf("offset %d: record %d of batch %d: payload differs", h.offset, i, number)
	case h.kind != e.recordKind(i):
		return ref{}, fmt.Errorf("offset %d: record %d of batch %d: kind %v, was %v", h.offset, i, number, h.kind, e.recordKind(i))
	case h.publisher != e.publisher:
		return ref{}, fmt.Errorf("offset %d: record %d of batch %d: publisher %q, was %q", h.offset, i, number, h.publisher, e.publisher)
	case h.kind == storage.KindProducerFirst && h.tag != e.tag:
		return ref{}, fmt.Errorf("offset %d: batch %d: tag %+v, was %+v", h.offset, number, h.tag, e.tag)
	}
	return ref{number, i}, nil
}

// answered notes a batch's outcome.
func (m *model) answered(e *entry, b *storage.Batch, durable bool) error {
	if e.fate != fatePending {
		return fmt.Errorf("batch %d answered twice", e.number)
	}
	if int(e.number) < m.lastDone {
		return fmt.Errorf("batch %d answered after batch %d", e.number, m.lastDone)
	}
	m.lastDone = int(e.number)
	switch {
	case b.Err == nil:
		e.fate, e.first = fateAcked, b.First
		for i := range e.sizes {
			if err := m.place(b.First+storage.Offset(i), ref{e.number, i}); err != nil {
				return err
			}
		}
		end := b.First + storage.Offset(len(e.sizes))
		m.raise(end, 0)
		if durable {
			m.raise(0, end)
		}
	case outcomeUnknown(b.Err):
		e.fate = fateUnknown
	default:
		e.fate, e.limit = fateNever, 0
	}
	return nil
}

// place notes that a record was acknowledged or seen at an offset.
func (m *model) place(o storage.Offset, r ref) error {
	if old, ok := m.at[o]; ok && old != r {
		return fmt.Errorf("offset %d given to record %d of batch %d after record %d of batch %d",
			o, r.index, r.number, old.index, old.number)
	}
	m.at[o] = r
	return nil
}

// check holds a log that lies between head and next against the model; records below
// floor must be there.
func (m *model) check(head, next storage.Offset, records []held, floor storage.Offset) error {
	if head == next && len(records) == 0 && slices.Contains(m.emptyAt, head) {
		return nil
	}
	if head < m.headMin || head > m.headMax {
		return fmt.Errorf("oldest record is %d, must be in [%d, %d]", head, m.headMin, m.headMax)
	}
	if next < floor {
		return fmt.Errorf("log ends at %d, records below %d must be there", next, floor)
	}
	if next < head {
		return fmt.Errorf("log ends at %d before it begins at %d", next, head)
	}
	if want := int(next - head); len(records) != want {
		return fmt.Errorf("%d records in [%d, %d)", len(records), head, next)
	}
	var before ref
	var stamp storage.Micros
	for n, h := range records {
		if h.offset != head+storage.Offset(n) {
			return fmt.Errorf("offset %d where %d should be", h.offset, head+storage.Offset(n))
		}
		r, err := m.identify(h)
		if err != nil {
			return err
		}
		e := m.entries[r.number]
		if r.index >= e.limit {
			return fmt.Errorf("offset %d: record %d of batch %d came back: %v, at most %d of its records may be there",
				h.offset, r.index, r.number, e.fate, e.limit)
		}
		if known, ok := m.at[h.offset]; ok && known != r {
			return fmt.Errorf("offset %d: record %d of batch %d, was record %d of batch %d",
				h.offset, r.index, r.number, known.index, known.number)
		}
		if n > 0 {
			follows := r.number == before.number && r.index == before.index+1
			if !follows && (r.index != 0 || r.number <= before.number) {
				return fmt.Errorf("offset %d: record %d of batch %d after record %d of batch %d",
					h.offset, r.index, r.number, before.index, before.number)
			}
			if cut := m.entries[before.number]; !follows && before.index+1 < cut.limit {
				return fmt.Errorf("offset %d: batch %d has a hole after record %d", h.offset, before.number, before.index)
			}
			if h.timestamp < stamp {
				return fmt.Errorf("offset %d: time %d after %d", h.offset, h.timestamp, stamp)
			}
		} else if r.index != 0 {
			return fmt.Errorf("offset %d: the log begins inside batch %d", h.offset, r.number)
		}
		before, stamp = r, h.timestamp
	}
	return nil
}

// recovered takes a recovery that passed check as what the log is from now on: what
// is in it is on the device, and what is not is gone for good. Where the process
// lived on (alive), batches without an answer may still come.
func (m *model) recovered(head, next storage.Offset, records []held, alive bool) error {
	m.at = map[storage.Offset]ref{}
	found := map[uint64]int{}
	for _, h := range records {
		r, err := m.identify(h)
		if err != nil {
			return err
		}
		m.at[h.offset] = r
		found[r.number] = r.index + 1
	}
	for _, e := range m.entries {
		if !alive || e.fate != fatePending {
			e.limit = found[e.number]
		}
		if !alive && e.fate == fatePending {
			e.fate = fateUnknown // nobody is left to answer
		}
	}
	m.killFloor, m.cutFloor, m.ceiling = next, next, ^storage.Offset(0)
	m.headMin, m.headMax = head, head
	m.emptyAt = nil
	if !alive {
		m.lastDone = len(m.entries) - 1
	}
	return nil
}

// cutting notes that a truncation to next was asked for: what is at or above may be
// gone from now on.
func (m *model) cutting(next storage.Offset) {
	m.ceiling = min(m.ceiling, next)
	m.killFloor, m.cutFloor = min(m.killFloor, next), min(m.cutFloor, next)
}

// cut notes that the truncation is done: what was at or above is gone.
func (m *model) cut(next storage.Offset) {
	m.ceiling = ^storage.Offset(0)
	for o, r := range m.at {
		if o >= next {
			m.entries[r.number].limit = min(m.entries[r.number].limit, r.index)
			delete(m.at, o)
		}
	}
}

// resetting notes that a reset to base was asked for.
func (m *model) resetting(base storage.Offset) {
	m.cutting(0)
	m.emptyAt = []storage.Offset{base, 0}
}

// reset notes that it is done.
func (m *model) reset(base storage.Offset) {
	m.cut(0)
	for _, e := range m.entries {
		if e.fate != fatePending {
			e.limit = 0
		}
	}
	m.emptyAt = nil
	m.headMin, m.headMax = base, base
	m.raise(base, base)
}
