package segment_test

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/felixlog/felix/storage/segment"
)

// randomSpec draws a record of any kind.
func randomSpec(rng *rand.Rand, offset segment.Offset, maxPayload int) segment.RecordSpec {
	s := segment.RecordSpec{
		Offset: offset, Timestamp: segment.Micros(rng.Uint64() >> 1), Kind: segment.Kind(rng.IntN(5)),
		Payload: randomBytes(rng, rng.IntN(maxPayload+1)),
	}
	switch s.Kind {
	case segment.KindProducerFirst:
		s.Producer = segment.ProducerTag{ID: rng.Uint64(), Sequence: rng.Uint64(), Len: rng.Uint32()}
	case segment.KindGenerationStart:
		s.Payload = binary.BigEndian.AppendUint64(nil, rng.Uint64())
	case segment.KindCommit:
		c := segment.Commit{Event: s.Payload}
		for range rng.IntN(4) {
			op := segment.CommitOp{Key: randomBytes(rng, rng.IntN(10)), Delete: rng.IntN(2) == 0}
			if !op.Delete {
				op.Value = randomBytes(rng, rng.IntN(20))
			}
			c.Ops = append(c.Ops, op)
		}
		s.Payload = segment.AppendCommit(nil, &c)
	}
	if rng.IntN(3) == 0 {
		s.Publisher = randomBytes(rng, 1+rng.IntN(segment.MaxPublisherSize))
	}
	return s
}

func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, n, n+7)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:i+8], rng.Uint64())
	}
	return b
}

// built is a segment with what is known to be in it.
type built struct {
	base  segment.Offset
	bytes []byte
	specs []segment.RecordSpec
	pos   []int64 // start of each record, then the end
}

func build(rng *rand.Rand, records, maxPayload int) *built {
	f := &built{base: segment.Offset(rng.Uint64N(1 << 40))}
	f.bytes = segment.AppendHeader(nil, segment.Header{Version: segment.MaxVersion, BaseOffset: f.base, CreatedAt: 1})
	for i := range records {
		s := randomSpec(rng, f.base+segment.Offset(i), maxPayload)
		f.pos = append(f.pos, int64(len(f.bytes)))
		f.bytes = segment.AppendRecord(f.bytes, &s)
		f.specs = append(f.specs, s)
	}
	f.pos = append(f.pos, int64(len(f.bytes)))
	return f
}

// recordAt is the number of the record that holds the byte at position.
func (f *built) recordAt(position int64) int {
	i := 0
	for f.pos[i+1] <= position {
		i++
	}
	return i
}

// index is the index as the rule has it, written down naively.
func (f *built) index(spacing int64) []segment.IndexEntry {
	var entries []segment.IndexEntry
	for i := range f.specs {
		if len(entries) == 0 || f.pos[i] >= entries[len(entries)-1].Position+spacing {
			entries = append(entries, segment.IndexEntry{Offset: f.base + segment.Offset(i), Position: f.pos[i]})
		}
	}
	return entries
}
