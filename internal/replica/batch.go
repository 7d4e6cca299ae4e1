package replica

import (
	"encoding/binary"
	"fmt"

	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// The bits of a record's first word that say how long it is (docs/formats).
const (
	lengthMask = 1<<27 - 1
	tagBit     = 1 << 31
	startBit   = 1 << 29
)

// walk goes over the headers of encoded records. It checks that the bytes are whole
// records with ascending offsets from first on and within the format's limits; checksums
// are checked by the log that stores them. Generation starts are appended to starts, if
// it is set. It returns the place after the last record, with the generation in force there
// when gen is the one before.
func walk(encoded []byte, first Offset, gen Generation, starts *[]storage.GenerationStart) (Place, error) {
	p := Place{Next: first, Generation: gen}
	for len(encoded) > 0 {
		if len(encoded) < segment.RecordHeaderSize {
			return p, fmt.Errorf("record %d: %d bytes of a header of %d", p.Next, len(encoded), segment.RecordHeaderSize)
		}
		word := binary.BigEndian.Uint32(encoded)
		body := int(word & lengthMask)
		if body > segment.MaxBodySize {
			return p, fmt.Errorf("record %d: length %d exceeds the limit of %d", p.Next, body, segment.MaxBodySize)
		}
		size := segment.RecordHeaderSize + body
		if word&tagBit != 0 {
			size += segment.ProducerTagSize
		}
		if size > len(encoded) {
			return p, fmt.Errorf("record %d: %d bytes of %d", p.Next, len(encoded), size)
		}
		if got := Offset(binary.BigEndian.Uint64(encoded[4:])); got != p.Next {
			return p, fmt.Errorf("record %d: has offset %d", p.Next, got)
		}
		if word&startBit != 0 {
			if body != 8 {
				return p, fmt.Errorf("record %d: generation start of %d bytes", p.Next, body)
			}
			g := Generation(binary.BigEndian.Uint64(encoded[segment.RecordHeaderSize:]))
			if g < p.Generation {
				return p, fmt.Errorf("record %d: generation %d after %d", p.Next, g, p.Generation)
			}
			p.Generation = g
			if starts != nil {
				*starts = append(*starts, storage.GenerationStart{Generation: g, Start: p.Next})
			}
		}
		p.Checksum = binary.BigEndian.Uint32(encoded[24:])
		p.Next++
		encoded = encoded[size:]
	}
	return p, nil
}

// skip cuts whole records from the front of encoded until it begins at offset to.
func skip(encoded []byte, to Offset) []byte {
	for len(encoded) >= segment.RecordHeaderSize && Offset(binary.BigEndian.Uint64(encoded[4:])) < to {
		word := binary.BigEndian.Uint32(encoded)
		size := segment.RecordHeaderSize + int(word&lengthMask)
		if word&tagBit != 0 {
			size += segment.ProducerTagSize
		}
		encoded = encoded[min(size, len(encoded)):]
	}
	return encoded
}
