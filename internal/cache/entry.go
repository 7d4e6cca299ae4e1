package cache

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/storage/segment"
)

// Offset is a place in the cache shard's log.
type Offset = segment.Offset

// Millis is a point in time in milliseconds since the Unix epoch; 0 = never.
type Millis = projection.Millis

// Entry is what one record says of one key.
type Entry struct {
	Delete  bool
	Expires Millis // absolute; 0 = never
	// Origin is the offset of the put this entry restates, with Copied. Only compaction
	// writes such entries (version 2 of the format).
	Origin Offset
	Copied bool
	Key    []byte
	Value  []byte // of a put
}

// Sizes of the encoded entry before its key, by version.
const (
	entrySize1 = 1 + 1 + 8 + 4
	entrySize2 = entrySize1 + 8

	// MaxKeyBytes bounds a key.
	MaxKeyBytes = 4 << 10
	// MaxOverhead is what a record holds beside its value at the most; a compaction copy
	// holds more than the put it restates.
	MaxOverhead = entrySize2 + MaxKeyBytes
)

// ErrEntry is wrapped by every refusal to decode an entry.
var ErrEntry = errors.New("cache entry")

// EntrySize is the encoded size of a put of key and value, or of a delete.
func EntrySize(key, value int) int { return entrySize1 + key + value }

// AppendEntry appends the encoded entry (docs/formats, "Cache entries"): version 1, or 2
// with Copied.
func AppendEntry(dst []byte, e Entry) []byte {
	op := byte(0)
	if e.Delete {
		op = 1
	}
	version := byte(1)
	if e.Copied {
		version = 2
	}
	dst = append(dst, version, op)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Expires))
	if e.Copied {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Origin))
	}
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(e.Key)))
	dst = append(dst, e.Key...)
	return append(dst, e.Value...)
}

// DecodeEntry reads an entry; its bytes are views of b.
func DecodeEntry(b []byte) (Entry, error) {
	if len(b) == 0 {
		return Entry{}, fmt.Errorf("%w: empty record", ErrEntry)
	}
	head := entrySize1
	switch b[0] {
	case 1:
	case 2:
		head = entrySize2
	default:
		return Entry{}, fmt.Errorf("%w: version %d, this release reads 1 and 2", ErrEntry, b[0])
	}
	if len(b) < head {
		return Entry{}, fmt.Errorf("%w: %d bytes, shorter than its header", ErrEntry, len(b))
	}
	if b[1] > 1 {
		return Entry{}, fmt.Errorf("%w: unknown operation %d", ErrEntry, b[1])
	}
	e := Entry{Delete: b[1] == 1, Expires: Millis(binary.LittleEndian.Uint64(b[2:]))}
	if b[0] == 2 {
		e.Copied, e.Origin = true, Offset(binary.LittleEndian.Uint64(b[10:]))
	}
	n := int64(binary.LittleEndian.Uint32(b[head-4:]))
	if n > int64(len(b)-head) {
		return Entry{}, fmt.Errorf("%w: key of %d bytes in a record with %d left", ErrEntry, n, len(b)-head)
	}
	e.Key, e.Value = b[head:head+int(n)], b[head+int(n):]
	return e, nil
}

// Codec reads a cache's log for the projection, and makes compaction's copies.
type Codec struct{}

// Changes implements projection.Codec.
func (Codec) Changes(rec *segment.Record, f func(projection.Change) error) error {
	if rec.Kind == segment.KindGenerationStart {
		return nil
	}
	e, err := DecodeEntry(rec.Payload)
	if err != nil {
		return err
	}
	c := projection.Change{Key: e.Key, Delete: e.Delete, Expires: e.Expires, Version: rec.Offset}
	if e.Copied {
		if e.Origin > rec.Offset {
			return fmt.Errorf("%w: copy at %d of a later record %d", ErrEntry, rec.Offset, e.Origin)
		}
		c.Version = e.Origin
	}
	return f(c)
}

// Copy implements projection.Copier.
func (Codec) Copy(rec *segment.Record, _ projection.Change, ref projection.Ref) ([]byte, error) {
	e, err := DecodeEntry(rec.Payload)
	if err != nil {
		return nil, err
	}
	e.Copied, e.Origin = true, ref.Version
	return AppendEntry(make([]byte, 0, len(rec.Payload)+8), e), nil
}
