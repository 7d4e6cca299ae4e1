package segment

import (
	"context"
	"fmt"
	"io"
)

// ReadLimits bound a read. The budget counts what is already in the ReadBuffer, so that
// one budget serves a read over several segments.
type ReadLimits struct {
	From        Offset // records below are passed over
	End         Offset // records at or above are not returned; zero: no bound
	EndPosition int64  // end of the readable bytes of the segment, at a record's end
	MaxBytes    int    // payload bytes; the first record is returned whatever its size
	MaxRecords  int    // zero: no bound
}

// ReadResult says where a read ended: the next record would be Next, at Position.
type ReadResult struct {
	Position int64
	Next     Offset
	Full     bool // the budget ended it, not the segment
}

// ReadBuffer holds what reads return, and is reused.
type ReadBuffer struct {
	// Records are views into the buffer, valid until Reset.
	Records []Record
	// Bytes is the sum of their payloads.
	Bytes int

	buf    []byte // what is read and decoded, then free room up to its capacity
	spent  int    // bytes of buffers given up since Reset; records are views of them
	demand int    // size of the next buffer made, learnt from the last page
	budget int    // MaxBytes of the last read
}

const (
	readChunk   = 64 << 10 // least buffer
	maxBudget   = 16 << 20 // of which memory is kept
	readAhead   = 256 << 10
	recordGuess = 64 // one byte of a page in so many is taken to be no payload
)

// Reset forgets the records and keeps the memory: of a page that took several buffers,
// the next one takes a single one of their size. What is kept stays within twice the
// budget of the last read, so that one large record does not stay for ever.
func (b *ReadBuffer) Reset() {
	kept := 2*b.budget + readChunk
	if b.spent > 0 {
		used := b.spent + len(b.buf)
		b.demand = min(used+used/8+DefaultIndexSpacing, kept)
		b.spent = 0
		clear(b.Records)
	}
	if cap(b.buf) > kept || cap(b.buf) < b.demand {
		clear(b.Records)
		b.buf = nil
	}
	b.demand = min(b.demand, kept)
	b.Records = b.Records[:0]
	b.Bytes = 0
	b.buf = b.buf[:0]
}

// room makes between least and most bytes available from buf[lo:] on, which stay in
// place or move to a new buffer; records decoded before keep the old one alive.
func (b *ReadBuffer) room(lo, least, most int) (from, n int) {
	if free := cap(b.buf) - lo; free >= least {
		return lo, min(free, most)
	}
	held := b.buf[lo:]
	b.spent += lo
	b.buf = append(make([]byte, 0, max(readChunk, b.demand, most)), held...)
	return 0, most
}

// ReadInto appends the records of a segment from limits.From on to into, starting at a
// place that an index or an earlier read gave: a record of offset at.Offset at
// at.Position. The checksum of every record returned is verified; those passed over have
// their headers verified. The error is a *Corruption if the bytes are damaged; one whose
// Position is at.Position may mean that the index and not the segment is wrong.
func ReadInto(ctx context.Context, r io.ReaderAt, at ScanStart, limits ReadLimits, into *ReadBuffer) (ReadResult, error) {
	version := at.Version
	if version == 0 || version > MaxVersion {
		version = MaxVersion
	}
	into.budget = min(limits.MaxBytes, maxBudget)
	res := ReadResult{Position: at.Position, Next: at.Offset}
	fail := func(c *Corruption) (ReadResult, error) {
		c.Shard, c.Segment, c.Position, c.Offset = at.Shard, at.Segment, res.Position, res.Next
		return res, c
	}
	lo := len(into.buf) // into.buf[lo:] is read and not yet decoded
	defer func() { into.buf = into.buf[:lo] }()
	for res.Position < limits.EndPosition {
		if limits.End > 0 && res.Next >= limits.End {
			return res, nil
		}
		if limits.MaxRecords > 0 && len(into.Records) >= limits.MaxRecords {
			res.Full = true
			return res, nil
		}
		rest := limits.EndPosition - res.Position
		if len(into.buf)-lo < RecordHeaderSize {
			if rest < RecordHeaderSize {
				return fail(corrupt(Truncated, "%d bytes of a record header of %d", rest, RecordHeaderSize))
			}
			var err error
			if lo, err = into.fill(ctx, r, lo, RecordHeaderSize, res.Position, rest, limits.MaxBytes); err != nil {
				return res, err
			}
		}
		h, c := decodeHead(into.buf[lo:], res.Next, version)
		if c != nil {
			return fail(c)
		}
		if int64(h.size) > rest {
			return fail(corrupt(Truncated, "%d bytes of a record of %d", rest, h.size))
		}
		if res.Next < limits.From {
			if skip := h.size; skip < len(into.buf)-lo {
				lo += skip
			} else {
				into.buf = into.buf[:lo]
			}
			res.Position += int64(h.size)
			res.Next++
			continue
		}
		if len(into.Records) > 0 && into.Bytes+int(h.word&bodyMask) > limits.MaxBytes {
			res.Full = true
			return res, nil
		}
		if h.size > len(into.buf)-lo {
			var err error
			if lo, err = into.fill(ctx, r, lo, h.size, res.Position, rest, limits.MaxBytes); err != nil {
				return res, err
			}
		}
		n := len(into.Records)
		if n == cap(into.Records) {
			into.Records = append(into.Records, Record{})
		} else {
			into.Records = into.Records[:n+1]
		}
		rec := &into.Records[n]
		if c := rec.decodeVerified(into.buf[lo:lo+h.size:lo+h.size], h, res.Next); c != nil {
			into.Records = into.Records[:n]
			return fail(c)
		}
		into.Bytes += len(rec.Payload)
		lo += h.size
		res.Position += int64(h.size)
		res.Next++
	}
	return res, nil
}

// fill reads on at pos, whose first bytes are already held in b.buf[lo:], so that need
// bytes are held. The file is known to hold rest bytes from pos.
func (b *ReadBuffer) fill(ctx context.Context, r io.ReaderAt, lo, need int, pos, rest int64, budget int) (int, error) {
	if err := ctx.Err(); err != nil {
		return lo, err
	}
	ahead := min(max(budget-b.Bytes, 0), readAhead)
	ahead += ahead/recordGuess + DefaultIndexSpacing
	want := int(min(rest, int64(max(need, ahead))))
	lo, want = b.room(lo, need, want)
	held := len(b.buf) - lo
	free := b.buf[len(b.buf) : lo+want]
	n, err := readFull(r, free, pos+int64(held))
	b.buf = b.buf[:len(b.buf)+n]
	if err != nil {
		return lo, fmt.Errorf("segment: read at %d: %w", pos, err)
	}
	return lo, nil
}
