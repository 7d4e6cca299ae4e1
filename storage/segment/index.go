package segment

import (
	"encoding/binary"
	"sort"
)

const (
	indexHeaderSize   = 24
	indexEntrySize    = 16
	indexMinVersion   = 2
	indexMaxVersion   = 4
	indexWriteVersion = 3
)

// IndexEntry says at which byte of a segment a record starts.
type IndexEntry struct {
	Offset   Offset
	Position int64
}

// Index is the sparse index of one segment: an entry for the first record, then one for
// each record that starts at least spacing bytes after the start of the last entry's
// record. It only says where a validating scan may start.
//
// Entries once added never change, so what Entries returned may be read while the
// owner adds more.
type Index struct {
	base    Offset
	spacing int64
	next    int64 // a record that starts here or later gets an entry
	entries []IndexEntry
}

// NewIndex makes an empty index of the segment that begins at base. Spacing is in
// bytes; below 1 it is DefaultIndexSpacing.
func NewIndex(base Offset, spacing int64) *Index {
	if spacing < 1 {
		spacing = DefaultIndexSpacing
	}
	return &Index{base: base, spacing: spacing}
}

// Add tells the index of a record; records come in order. It says whether the record
// got an entry.
func (x *Index) Add(offset Offset, position int64) bool {
	if position < x.next {
		return false
	}
	x.entries = append(x.entries, IndexEntry{Offset: offset, Position: position})
	x.next = position + x.spacing
	return true
}

// Truncate forgets the entries of records that start at or after position.
func (x *Index) Truncate(position int64) {
	n := sort.Search(len(x.entries), func(i int) bool { return x.entries[i].Position >= position })
	x.entries = x.entries[:n:n]
	x.next = 0
	if n > 0 {
		x.next = x.entries[n-1].Position + x.spacing
	}
}

// Base is the base offset of the index's segment.
func (x *Index) Base() Offset { return x.base }

// Len is the number of entries.
func (x *Index) Len() int { return len(x.entries) }

// Entries are the entries in ascending order; they are not to be changed.
func (x *Index) Entries() []IndexEntry { return x.entries }

// Last is the last entry, false if there is none.
func (x *Index) Last() (IndexEntry, bool) {
	if len(x.entries) == 0 {
		return IndexEntry{}, false
	}
	return x.entries[len(x.entries)-1], true
}

// Lookup is the greatest entry at or below offset; false if there is none.
func (x *Index) Lookup(offset Offset) (IndexEntry, bool) { return LookupEntry(x.entries, offset) }

// LookupEntry is the greatest of the ascending entries at or below offset.
func LookupEntry(entries []IndexEntry, offset Offset) (IndexEntry, bool) {
	lo, hi := 0, len(entries)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if entries[mid].Offset <= offset {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return IndexEntry{}, false
	}
	return entries[lo-1], true
}

// EncodedSize is the size of the index file, in bytes.
func (x *Index) EncodedSize() int { return indexHeaderSize + len(x.entries)*indexEntrySize }

// AppendTo appends the bytes of the index file.
func (x *Index) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, indexMagic)
	dst = binary.BigEndian.AppendUint16(dst, indexWriteVersion)
	dst = binary.BigEndian.AppendUint16(dst, 0)
	dst = binary.BigEndian.AppendUint64(dst, uint64(x.base))
	dst = binary.BigEndian.AppendUint64(dst, 0)
	for _, e := range x.entries {
		dst = binary.BigEndian.AppendUint64(dst, uint64(e.Offset))
		dst = binary.BigEndian.AppendUint64(dst, uint64(e.Position))
	}
	return dst
}

// DecodeIndex reads an index file of a segment with this base offset and size in bytes.
// Whatever does not fit refuses the whole index, which is then to be rebuilt. An index
// that passes can still be short of entries at its end: a scan from its last entry with
// the index in ScanOptions adds those, and tells so by a changed Len.
func DecodeIndex(b []byte, base Offset, spacing, segmentSize int64) (*Index, error) {
	x := NewIndex(base, spacing)
	if c := x.decode(b, segmentSize); c != nil {
		return nil, c
	}
	return x, nil
}

func (x *Index) decode(b []byte, segmentSize int64) *Corruption {
	if len(b) < indexHeaderSize {
		return corrupt(IndexDamaged, "%d bytes of an index header of %d", len(b), indexHeaderSize)
	}
	if m := binary.BigEndian.Uint32(b); m != indexMagic {
		return corrupt(IndexDamaged, "not an index: it begins with %08x", m)
	}
	if v := binary.BigEndian.Uint16(b[4:]); v < indexMinVersion || v > indexMaxVersion {
		return corrupt(IndexDamaged, "index version %d is not supported", v)
	}
	if f := binary.BigEndian.Uint16(b[6:]); f != 0 {
		return corrupt(IndexDamaged, "unknown flags %04x", f)
	}
	if got := Offset(binary.BigEndian.Uint64(b[8:])); got != x.base {
		return corrupt(IndexDamaged, "index of a segment that begins at %d, not at %d", got, x.base)
	}
	b = b[indexHeaderSize:]
	if len(b)%indexEntrySize != 0 {
		return corrupt(IndexDamaged, "%d bytes after the last whole entry", len(b)%indexEntrySize)
	}
	n := len(b) / indexEntrySize
	if most := (segmentSize-HeaderSize)/RecordHeaderSize + 1; int64(n) > most {
		return corrupt(IndexDamaged, "%d entries for a segment of %d bytes", n, segmentSize)
	}
	x.entries = make([]IndexEntry, 0, n)
	for i := range n {
		e := IndexEntry{
			Offset:   Offset(binary.BigEndian.Uint64(b[i*indexEntrySize:])),
			Position: int64(binary.BigEndian.Uint64(b[i*indexEntrySize+8:])),
		}
		if i == 0 {
			if e.Offset != x.base || e.Position != HeaderSize {
				return corrupt(IndexDamaged, "first entry is offset %d at %d, not %d at %d", e.Offset, e.Position, x.base, HeaderSize)
			}
		} else if last := x.entries[i-1]; e.Position < x.next || e.Offset <= last.Offset ||
			uint64(e.Offset-last.Offset) > uint64(e.Position-last.Position)/RecordHeaderSize {
			return corrupt(IndexDamaged, "entry %d, offset %d at %d, does not follow offset %d at %d", i, e.Offset, e.Position, last.Offset, last.Position)
		}
		if e.Position > segmentSize-RecordHeaderSize {
			return corrupt(IndexDamaged, "entry %d at %d is past the segment's %d bytes", i, e.Position, segmentSize)
		}
		x.Add(e.Offset, e.Position)
	}
	return nil
}

// IndexBase is the base offset that an index file says it belongs to, for a reader that
// has only the file. The error is a *Corruption.
func IndexBase(b []byte) (Offset, error) {
	if len(b) < indexHeaderSize {
		return 0, corrupt(IndexDamaged, "%d bytes of an index header of %d", len(b), indexHeaderSize)
	}
	return Offset(binary.BigEndian.Uint64(b[8:])), nil
}
