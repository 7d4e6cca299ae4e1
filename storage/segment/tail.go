package segment

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
)

// Tail says what the end of a scan means for what may be cut.
type Tail uint8

const (
	// TailClean: the scan reached the end of the file.
	TailClean Tail = iota
	// TailTorn: the last record is incomplete, cut short by the end of the file, and not
	// all zero.
	TailTorn
	// TailZero: from the damaged record, or from a 512-byte boundary inside it, there
	// are only zeros to the end of the file.
	TailZero
	// TailDamaged: the damaged record is the last thing in the file; no good record was
	// found after it.
	TailDamaged
	// TailInterior: good records follow the damaged one.
	TailInterior
)

var tailNames = [...]string{"clean", "torn", "zero-filled", "damaged", "interior"}

// String is the tail's name in reports.
func (t Tail) String() string {
	if int(t) < len(tailNames) {
		return tailNames[t]
	}
	return fmt.Sprintf("Tail(%d)", uint8(t))
}

const (
	sectorSize = 512
	// headerSummed is how much of a record its header checksum depends on.
	headerSummed = 24
)

// ClassifyTail says what ended a scan of r, of size bytes, that found res. Damage of the
// segment's header is TailInterior here; HeaderState is about that. It reads the rest of
// the file where it must, so it is for damaged segments only.
func ClassifyTail(ctx context.Context, r io.ReaderAt, size int64, res ScanResult) (Tail, error) {
	d := res.Damage
	if d == nil {
		return TailClean, nil
	}
	if d.Kind < Truncated || d.Kind > RecordBody {
		return TailInterior, nil
	}
	if d.Kind == Truncated {
		// An incomplete record that is all zero is the beginning of a zero-filled tail.
		zeros, err := zerosFrom(ctx, r, d.Position, size)
		if err != nil {
			return 0, err
		}
		if zeros == d.Position {
			return TailZero, nil
		}
		return TailTorn, nil
	}
	// Where the record ends, if its header can be believed.
	end := d.Position + 1
	summed := d.Position + headerSummed
	if d.Kind != RecordHeaderChecksum && d.Kind != RecordTooLarge {
		n, err := storedSize(r, d.Position)
		if err != nil {
			return 0, err
		}
		end = min(size, d.Position+n)
		summed = end
	}
	if d.Kind == RecordHeaderChecksum || d.Kind == RecordChecksum {
		zeros, err := zerosFrom(ctx, r, d.Position, size)
		if err != nil {
			return 0, err
		}
		boundary := (zeros + sectorSize - 1) / sectorSize * sectorSize
		if zeros == d.Position || boundary < summed && boundary < size {
			return TailZero, nil
		}
	}
	_, _, found, err := FindRecord(ctx, r, end, size, d)
	if err != nil {
		return 0, err
	}
	if found {
		return TailInterior, nil
	}
	return TailDamaged, nil
}

func storedSize(r io.ReaderAt, pos int64) (int64, error) {
	var head [RecordHeaderSize]byte
	if _, err := readFull(r, head[:], pos); err != nil {
		return 0, fmt.Errorf("segment: read at %d: %w", pos, err)
	}
	word := binary.BigEndian.Uint32(head[:])
	n := RecordHeaderSize + int64(word&bodyMask)
	if word >= bitFirst {
		n += ProducerTagSize
	}
	return n, nil
}

// zerosFrom is the lowest position at or above from, from which all bytes to size are
// zero; size if the last byte is not.
func zerosFrom(ctx context.Context, r io.ReaderAt, from, size int64) (int64, error) {
	buf := make([]byte, 64<<10)
	for end := size; end > from; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		start := max(from, end-int64(len(buf)))
		b := buf[:end-start]
		if _, err := readFull(r, b, start); err != nil {
			return 0, fmt.Errorf("segment: read at %d: %w", start, err)
		}
		for i := len(b) - 1; i >= 0; i-- {
			if b[i] != 0 {
				return start + int64(i) + 1, nil
			}
		}
		end = start
	}
	return from, nil
}

// FindRecord looks for a good record that starts at or after position from, byte by
// byte, and returns its position and offset. After damage other than OffsetOutOfOrder
// only offsets that can follow the damaged record's count, so that records inside a
// payload are not taken for the log's.
func FindRecord(ctx context.Context, r io.ReaderAt, from, size int64, damage *Corruption) (int64, Offset, bool, error) {
	buf := make([]byte, scanBuffer)
	for base := from; base <= size-RecordHeaderSize; {
		if err := ctx.Err(); err != nil {
			return 0, 0, false, err
		}
		b := buf[:min(int64(len(buf)), size-base)]
		if _, err := readFull(r, b, base); err != nil {
			return 0, 0, false, fmt.Errorf("segment: read at %d: %w", base, err)
		}
		i := 0
		for ; i <= len(b)-RecordHeaderSize; i++ {
			h, ok := plausible(b[i:i+RecordHeaderSize], size-base-int64(i), damage)
			if !ok {
				continue
			}
			pos := base + int64(i)
			good, err := checkBody(ctx, r, pos, h, binary.BigEndian.Uint32(b[i+24:]))
			if err != nil {
				return 0, 0, false, err
			}
			if good {
				return pos, Offset(binary.BigEndian.Uint64(b[i+4:])), true, nil
			}
		}
		base += int64(i)
	}
	return 0, 0, false, nil
}

// plausible says whether a record with an intact header, of at most rest bytes, starts
// at b. The cheap looks come first: nearly every position fails them.
func plausible(b []byte, rest int64, damage *Corruption) (recordHead, bool) {
	word := binary.BigEndian.Uint32(b)
	if word&bodyMask > MaxBodySize || int64(word&bodyMask) > rest {
		return recordHead{}, false
	}
	offset := Offset(binary.BigEndian.Uint64(b[4:]))
	if damage.Kind != OffsetOutOfOrder && uint64(offset-damage.Offset-1) > uint64(rest)/RecordHeaderSize+MaxRecordSize/RecordHeaderSize {
		return recordHead{}, false
	}
	h, c := decodeHead(b, offset, MaxVersion)
	return h, c == nil && int64(h.size) <= rest
}

// checkBody sums a record's body in pieces.
func checkBody(ctx context.Context, r io.ReaderAt, pos int64, h recordHead, stored uint32) (bool, error) {
	buf := make([]byte, min(64<<10, h.size))
	sum := h.chained
	for at, end := pos+RecordHeaderSize, pos+int64(h.size); at < end; {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		b := buf[:min(int64(len(buf)), end-at)]
		if _, err := readFull(r, b, at); err != nil {
			return false, fmt.Errorf("segment: read at %d: %w", at, err)
		}
		sum = crc32.Update(sum, crc32.IEEETable, b)
		at += int64(len(b))
	}
	return sum == stored, nil
}

// HeaderFinding is what stands where a segment's header should.
type HeaderFinding uint8

const (
	// HeaderGood: a header that can be read.
	HeaderGood HeaderFinding = iota
	// HeaderShort: the file is shorter than a header.
	HeaderShort
	// HeaderZero: the header is all zero, and so is everything after it.
	HeaderZero
	// HeaderBad: anything else; the segment is refused.
	HeaderBad
)

// HeaderState looks at the header of a segment of size bytes. HeaderShort and HeaderZero
// are what an unfinished roll leaves. With HeaderBad the *Corruption says why.
func HeaderState(ctx context.Context, r io.ReaderAt, size int64) (HeaderFinding, Header, *Corruption, error) {
	if size < HeaderSize {
		return HeaderShort, Header{}, nil, nil
	}
	var b [HeaderSize]byte
	if _, err := readFull(r, b[:], 0); err != nil {
		return 0, Header{}, nil, fmt.Errorf("segment: read header: %w", err)
	}
	if c := checkHeader(b[:]); c != nil {
		if b != [HeaderSize]byte{} {
			return HeaderBad, Header{}, c, nil
		}
		zeros, err := zerosFrom(ctx, r, 0, size)
		if err != nil {
			return 0, Header{}, nil, err
		}
		if zeros == 0 {
			return HeaderZero, Header{}, nil, nil
		}
		return HeaderBad, Header{}, c, nil
	}
	h, err := DecodeHeader(b[:])
	return HeaderGood, h, nil, err
}
