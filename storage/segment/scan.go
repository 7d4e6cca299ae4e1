package segment

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// ErrStop, returned by a visit, ends a scan there without an error.
var ErrStop = errors.New("segment: stop")

// ScanStart says where a scan begins and what it is told about the segment.
type ScanStart struct {
	Shard   string // for errors
	Segment ID     // for errors

	// Position is where a record of offset Offset begins, in a segment of version
	// Version (zero: any that is read). At position 0 the segment header comes first
	// and says both.
	Position int64
	Offset   Offset
	Version  Version

	// Index, when set, is told of every good record. It holds no entry of a record at
	// or after Position, but may hold the entry of the record at Position itself.
	Index *Index
}

// ScanResult is what a scan found.
type ScanResult struct {
	Header         Header // if the scan began with it
	End            int64  // byte after the last good record
	Next           Offset // offset after the last good record
	Records        int64
	FirstTimestamp Micros // of the first record scanned; zero if none
	LastTimestamp  Micros // of the last
	MaxTimestamp   Micros // the highest
	LastChecksum   uint32 // of the last record
	NeedVersion    Version
	Damage         *Corruption // why the scan ended before the file; nil if it did not
}

// scanBuffer is how much of a segment a scan holds at once; it grows only to one
// record, after that record's header was verified.
const scanBuffer = 256 << 10

var scanBuffers = sync.Pool{New: func() any { b := make([]byte, scanBuffer); return &b }}

// Scan decodes and verifies records in order up to size, the length of the segment in
// bytes, and calls visit, if there is one, with each good one. The record and its views
// are valid during the call only. The scan ends at size, at the first damage, when visit
// returns an error (which Scan returns, but for ErrStop), when ctx ends, or when reading
// fails. The error is never a *Corruption: damage is in the result.
func Scan(ctx context.Context, r io.ReaderAt, size int64, from ScanStart, visit func(*Record) error) (ScanResult, error) {
	buf := scanBuffers.Get().(*[]byte)
	defer scanBuffers.Put(buf)
	s := scanner{r: r, size: size, buf: *buf, pos: from.Position, version: from.Version}
	return s.run(ctx, from, visit)
}

type scanner struct {
	r       io.ReaderAt
	size    int64
	buf     []byte // whole buffer
	lo, hi  int    // buf[lo:hi] is read and not yet decoded
	pos     int64  // file position of buf[lo]
	version Version
}

func (s *scanner) run(ctx context.Context, from ScanStart, visit func(*Record) error) (ScanResult, error) {
	res := ScanResult{End: from.Position, Next: from.Offset, NeedVersion: MinVersion}
	if s.version == 0 || s.version > MaxVersion {
		s.version = MaxVersion
	}
	damage := func(c *Corruption, pos int64) (ScanResult, error) {
		c.Shard, c.Segment, c.Position, c.Offset = from.Shard, from.Segment, pos, res.Next
		res.Damage = c
		return res, nil
	}
	if from.Position == 0 {
		if err := s.fill(ctx, int(min(HeaderSize, s.size))); err != nil {
			return res, err
		}
		if c := checkHeader(s.buf[s.lo:s.hi]); c != nil {
			return damage(c, 0)
		}
		h, err := DecodeHeader(s.buf[s.lo:s.hi])
		if err != nil {
			return res, err
		}
		res.Header, res.Next, res.End = h, h.BaseOffset, HeaderSize
		s.version = h.Version
		s.advance(HeaderSize)
	}

	var rec Record
	maxWord := uint32(0)
	for s.pos < s.size {
		rest := s.size - s.pos
		if s.hi-s.lo < RecordHeaderSize {
			if rest < RecordHeaderSize {
				return damage(corrupt(Truncated, "%d bytes of a record header of %d", rest, RecordHeaderSize), s.pos)
			}
			if err := s.fill(ctx, RecordHeaderSize); err != nil {
				return res, err
			}
		}
		h, c := decodeHead(s.buf[s.lo:s.hi], res.Next, s.version)
		if c != nil {
			return damage(c, s.pos)
		}
		if h.size > s.hi-s.lo {
			if int64(h.size) > rest {
				return damage(corrupt(Truncated, "%d bytes of a record of %d", rest, h.size), s.pos)
			}
			if err := s.fill(ctx, h.size); err != nil {
				return res, err
			}
		}
		b := s.buf[s.lo : s.lo+h.size : s.lo+h.size]
		if c := rec.decodeVerified(b, h, res.Next); c != nil {
			return damage(c, s.pos)
		}
		if visit != nil {
			if err := visit(&rec); err != nil {
				if errors.Is(err, ErrStop) {
					err = nil
				}
				return res, err
			}
		}
		if from.Index != nil && s.pos >= from.Index.next {
			from.Index.Add(res.Next, s.pos)
		}
		if res.Records == 0 {
			res.FirstTimestamp = rec.Timestamp
		}
		if h.word > maxWord {
			maxWord = h.word
			res.NeedVersion = max(res.NeedVersion, wordVersion(h.word))
		}
		res.MaxTimestamp = max(res.MaxTimestamp, rec.Timestamp)
		res.LastTimestamp = rec.Timestamp
		res.LastChecksum = rec.Checksum
		res.Records++
		res.Next++
		s.advance(h.size)
		res.End = s.pos
	}
	return res, nil
}

func (s *scanner) advance(n int) {
	s.lo += n
	s.pos += int64(n)
}

// fill makes at least need bytes at s.pos available, which the file is known to hold,
// and as many more as the buffer has room for.
func (s *scanner) fill(ctx context.Context, need int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	kept := s.buf[s.lo:s.hi]
	if need > len(s.buf) {
		s.buf = make([]byte, need)
	}
	s.hi = copy(s.buf, kept)
	s.lo = 0
	want := int(min(int64(len(s.buf)), s.size-s.pos))
	n, err := readFull(s.r, s.buf[s.hi:want], s.pos+int64(s.hi))
	s.hi += n
	if err != nil {
		return fmt.Errorf("segment: read at %d: %w", s.pos, err)
	}
	return nil
}

// readFull reads all of b. A file that ends before it, though its size said otherwise, is
// io.ErrUnexpectedEOF.
func readFull(r io.ReaderAt, b []byte, at int64) (int, error) {
	n, err := r.ReadAt(b, at)
	if n == len(b) {
		return n, nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// decodeVerified fills r from the bytes of a record whose header is verified, all of
// which are there.
func (r *Record) decodeVerified(buf []byte, h recordHead, offset Offset) *Corruption {
	stored := binary.BigEndian.Uint32(buf[24:])
	if sum := bodySum(h.chained, buf[28:]); sum != stored {
		return corrupt(RecordChecksum, "stored %08x, computed %08x", stored, sum)
	}
	r.Offset = offset
	r.Timestamp = Micros(binary.BigEndian.Uint64(buf[12:]))
	r.HeaderCRC = h.header
	r.Checksum = stored
	r.Size = h.size
	if h.word <= bodyMask {
		r.Payload = buf[28:]
		if r.Kind != KindPlain || r.HasPublisher { // of the record decoded into r before
			r.Kind, r.HasPublisher, r.Producer, r.Publisher = KindPlain, false, ProducerTag{}, nil
		}
		return nil
	}
	return r.decodeBody(buf, h.word)
}
