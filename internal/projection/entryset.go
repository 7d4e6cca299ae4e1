package projection

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/felixlog/felix/storage/segment"
)

// An entry set is the payload of a record that decides several keys at once: one
// transaction of the metadata, one decision of a consumer group. Integers are
// big-endian:
//
//	u8 1 | u64 stamp | u32 entries | per entry: u8 op (0 put, 1 delete) | u16 key_len | key | u32 value_len | value
//
// A delete has value_len 0. The stamp is the owner's (the metadata keep the version of
// the transaction in it); a compaction copy keeps the stamp of the set it restates.
const (
	entrySetVersion = 1
	entrySetHeader  = 1 + 8 + 4
	entryMin        = 1 + 2 + 4
)

// Entry is one key of an entry set.
type Entry struct {
	Delete     bool
	Key, Value []byte
}

// EntrySetSize is the size of the encoded set of entries.
func EntrySetSize(entries []Entry) int {
	n := entrySetHeader
	for _, e := range entries {
		n += entryMin + len(e.Key)
		if !e.Delete {
			n += len(e.Value)
		}
	}
	return n
}

// AppendEntrySet appends the encoded set. Keys are at most MaxKeyBytes.
func AppendEntrySet(dst []byte, stamp uint64, entries []Entry) []byte {
	dst = append(dst, entrySetVersion)
	dst = binary.BigEndian.AppendUint64(dst, stamp)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(entries)))
	for _, e := range entries {
		op := byte(0)
		if e.Delete {
			op, e.Value = 1, nil
		}
		dst = append(dst, op)
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(e.Key)))
		dst = append(dst, e.Key...)
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(e.Value)))
		dst = append(dst, e.Value...)
	}
	return dst
}

// ReadEntrySet calls f for each entry in order and returns the stamp. The entries'
// bytes are views of b. Every length is checked before it is used.
func ReadEntrySet(b []byte, f func(Entry) error) (stamp uint64, err error) {
	if len(b) < entrySetHeader {
		return 0, fmt.Errorf("entry set of %d bytes, shorter than its header", len(b))
	}
	if b[0] != entrySetVersion {
		return 0, fmt.Errorf("entry set of version %d, this release reads %d", b[0], entrySetVersion)
	}
	stamp = binary.BigEndian.Uint64(b[1:])
	count := int64(binary.BigEndian.Uint32(b[9:]))
	b = b[entrySetHeader:]
	if count > int64(len(b)/entryMin) {
		return 0, fmt.Errorf("entry set claims %d entries in %d bytes", count, len(b))
	}
	for ; count > 0; count-- {
		if len(b) < 3 || len(b) < 3+int(binary.BigEndian.Uint16(b[1:]))+4 {
			return 0, errors.New("entry set ends inside a key")
		}
		if b[0] > 1 {
			return 0, fmt.Errorf("entry set with unknown operation %d", b[0])
		}
		e := Entry{Delete: b[0] == 1}
		n := int(binary.BigEndian.Uint16(b[1:]))
		e.Key, b = b[3:3+n], b[3+n:]
		size := int64(binary.BigEndian.Uint32(b))
		if b = b[4:]; size > int64(len(b)) {
			return 0, errors.New("entry set ends inside a value")
		}
		e.Value, b = b[:size], b[size:]
		if err := f(e); err != nil {
			return 0, err
		}
	}
	if len(b) != 0 {
		return 0, fmt.Errorf("entry set with %d bytes after its last entry", len(b))
	}
	return stamp, nil
}

// EntrySetCodec is the Codec and the Copier of a log whose records are entry sets.
// Generation starts decide nothing.
type EntrySetCodec struct{}

// Changes implements Codec.
func (EntrySetCodec) Changes(rec *segment.Record, f func(Change) error) error {
	if rec.Kind == segment.KindGenerationStart {
		return nil
	}
	_, err := ReadEntrySet(rec.Payload, func(e Entry) error {
		return f(Change{Key: e.Key, Delete: e.Delete, Version: rec.Offset})
	})
	return err
}

// Copy implements Copier: the set that holds the one entry.
func (EntrySetCodec) Copy(rec *segment.Record, c Change, _ Ref) ([]byte, error) {
	var one []Entry
	stamp, err := ReadEntrySet(rec.Payload, func(e Entry) error {
		if !e.Delete && string(e.Key) == string(c.Key) {
			one = append(one[:0], e)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return AppendEntrySet(nil, stamp, one), nil
}
