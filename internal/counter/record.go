package counter

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/felixlog/felix/storage/segment"
)

// Offset is a place in the counter shard's log.
type Offset = segment.Offset

// A counter record, integers big-endian:
//
//	u8 1 | u8 0 | i64 delta | u8 tagged | u64 producer, u64 sequence with tagged 1 | key     an addition
//	u8 1 | u8 1 | i64 sum | key                                        a key's checkpoint
//	u8 1 | u8 2 | u64 producer | u64 next | u64 seen                   a producer's checkpoint
//
// next is one past the highest sequence seen of the producer; bit i of seen is set when
// sequence next-1-i was.
const (
	recordVersion = 1
	opAdd         = 0
	opSum         = 1
	opProducer    = 2

	addSize      = 2 + 8 + 1
	tagSize      = 16
	sumSize      = 2 + 8
	producerSize = 2 + 3*8
)

// Tag names one addition of one producer.
type Tag struct{ Producer, Sequence uint64 }

// record is one decoded record.
type record struct {
	op     byte
	value  int64 // delta or sum
	tagged bool
	tag    Tag // with opProducer: Sequence is next
	seen   uint64
	key    []byte
}

// AddSize is the encoded size of an addition.
func AddSize(key int, tagged bool) int {
	if tagged {
		return addSize + tagSize + key
	}
	return addSize + key
}

// AppendAdd appends an addition; tag may be nil.
func AppendAdd(dst, key []byte, delta int64, tag *Tag) []byte {
	dst = append(dst, recordVersion, opAdd)
	dst = binary.BigEndian.AppendUint64(dst, uint64(delta))
	if tag == nil {
		dst = append(dst, 0)
	} else {
		dst = append(dst, 1)
		dst = binary.BigEndian.AppendUint64(dst, tag.Producer)
		dst = binary.BigEndian.AppendUint64(dst, tag.Sequence)
	}
	return append(dst, key...)
}

func appendSum(dst, key []byte, sum int64) []byte {
	dst = append(dst, recordVersion, opSum)
	dst = binary.BigEndian.AppendUint64(dst, uint64(sum))
	return append(dst, key...)
}

func appendProducer(dst []byte, id uint64, w window) []byte {
	dst = append(dst, recordVersion, opProducer)
	dst = binary.BigEndian.AppendUint64(dst, id)
	dst = binary.BigEndian.AppendUint64(dst, w.next)
	return binary.BigEndian.AppendUint64(dst, w.seen)
}

// ErrRecord is wrapped by every refusal to decode a record.
var ErrRecord = errors.New("counter record")

func decode(b []byte) (record, error) {
	if len(b) < 2 {
		return record{}, fmt.Errorf("%w: %d bytes", ErrRecord, len(b))
	}
	if b[0] != recordVersion {
		return record{}, fmt.Errorf("%w: version %d, this release reads %d", ErrRecord, b[0], recordVersion)
	}
	r := record{op: b[1]}
	switch {
	case r.op == opAdd && len(b) >= addSize && b[10] <= 1:
		r.value, r.tagged, r.key = int64(binary.BigEndian.Uint64(b[2:])), b[10] == 1, b[addSize:]
		if !r.tagged {
			return r, nil
		}
		if len(r.key) < tagSize {
			return record{}, fmt.Errorf("%w: torn tag", ErrRecord)
		}
		r.tag = Tag{binary.BigEndian.Uint64(r.key), binary.BigEndian.Uint64(r.key[8:])}
		r.key = r.key[tagSize:]
	case r.op == opSum && len(b) >= sumSize:
		r.value, r.key = int64(binary.BigEndian.Uint64(b[2:])), b[sumSize:]
	case r.op == opProducer && len(b) == producerSize:
		r.tag = Tag{binary.BigEndian.Uint64(b[2:]), binary.BigEndian.Uint64(b[10:])}
		r.seen = binary.BigEndian.Uint64(b[18:])
	default:
		return record{}, fmt.Errorf("%w: operation %d in %d bytes", ErrRecord, r.op, len(b))
	}
	return r, nil
}

// Check refuses what is no counter record.
func Check(payload []byte) error {
	_, err := decode(payload)
	return err
}
