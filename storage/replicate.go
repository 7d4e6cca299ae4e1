package storage

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"sort"

	"github.com/felixlog/felix/storage/segment"
)

// encodedInfo is what a batch of another log's records says about itself.
type encodedInfo struct {
	first, next         Offset
	firstTime, lastTime Micros
}

// checkEncoded verifies every record of b.Encoded.
func (l *Log) checkEncoded(b *Batch) error {
	if len(b.Payloads) > 0 {
		return fmt.Errorf("storage: a batch holds encoded records or payloads, not both: %w", ErrEmptyBatch)
	}
	if int64(len(b.Encoded)) > MaxBatchBytes {
		return &BatchTooLargeError{Size: int64(len(b.Encoded)), Max: MaxBatchBytes}
	}
	if len(b.Encoded) < segment.RecordHeaderSize {
		return fmt.Errorf("storage: %d bytes hold no record: %w", len(b.Encoded), ErrEmptyBatch)
	}
	e := &b.enc
	*e = encodedInfo{first: Offset(binary.BigEndian.Uint64(b.Encoded[4:]))}
	e.next = e.first
	version := segment.MinVersion
	for rest := b.Encoded; len(rest) > 0; e.next++ {
		rec, n, err := segment.DecodeRecord(rest, e.next)
		if err != nil {
			return fmt.Errorf("storage: shipped record: %w", err)
		}
		if e.next == e.first {
			e.firstTime = rec.Timestamp
		}
		e.lastTime = rec.Timestamp
		version = max(version, rec.LeastVersion())
		rest = rest[n:]
	}
	b.size, b.version = int64(len(b.Encoded)), uint16(version)
	return nil
}

// recordSize is the size of the encoded record at the start of b, which was verified.
func recordSize(b []byte) int {
	word := binary.BigEndian.Uint32(b)
	n := segment.RecordHeaderSize + int(word&(1<<27-1))
	if word>>31 != 0 {
		n += segment.ProducerTagSize
	}
	return n
}

// admitEncoded compares shipped records with the log: the one before them must be the
// log's own, those that are there already must be the same bytes. What is left to append
// is left in b.
func (l *Log) admitEncoded(b *Batch, next Offset) error {
	e := &b.enc
	head := l.Head()
	if e.first > next {
		return l.mismatch("records before %d are missing", e.first)
	}
	if e.first > 0 && e.first > head {
		if b.Prev.Offset != e.first-1 {
			return l.mismatch("the record before %d is named as %d", e.first, b.Prev.Offset)
		}
		own, err := l.ownID(e.first-1, next)
		if err != nil {
			return err
		}
		if own != b.Prev {
			return l.mismatch("record %d differs", b.Prev.Offset)
		}
	}
	if e.first == next {
		return nil
	}
	skip := 0
	off := e.first
	for off < min(e.next, next) {
		n := 0
		until := off
		for until < min(e.next, next) && (n == 0 || n < 256<<10) {
			n += recordSize(b.Encoded[skip+n:])
			until++
		}
		if until > head {
			if err := l.compare(b.Encoded[skip:skip+n], off, until, head); err != nil {
				return err
			}
		}
		skip, off = skip+n, until
	}
	b.Encoded = b.Encoded[skip:]
	e.first = off
	b.size = int64(len(b.Encoded))
	b.First = off
	if off > head {
		own, err := l.ownID(off-1, next)
		if err != nil {
			return err
		}
		b.Prev = own
	}
	if len(b.Encoded) >= 20 {
		e.firstTime = Micros(binary.BigEndian.Uint64(b.Encoded[12:]))
	}
	return nil
}

// compare says whether the log's records [from, until) are the bytes of b.
func (l *Log) compare(b []byte, from, until, head Offset) error {
	for from < head {
		b = b[recordSize(b):]
		from++
	}
	for from < until {
		own, next, err := l.readEncoded(context.Background(), from, len(b), nil, until)
		if err != nil {
			return err
		}
		if len(own) > len(b) || !bytes.Equal(own, b[:len(own)]) {
			return l.mismatch("records from %d differ", from)
		}
		b, from = b[len(own):], next
	}
	return nil
}

func (l *Log) mismatch(format string, args ...any) error {
	e := &MismatchError{Reason: fmt.Sprintf(format, args...), Tail: l.pen.next}
	if gens := *l.gens.Load(); len(gens) > 0 {
		e.LastGeneration, e.LastStart = gens[len(gens)-1].Generation, gens[len(gens)-1].Start
	}
	return e
}

// encodeVerbatim appends b's records to buf as they are.
func (l *Log) encodeVerbatim(buf []byte, b *Batch) ([]byte, uint32) {
	p := &l.pen
	b.First = b.enc.first
	b.Timestamp = b.enc.lastTime
	off := b.enc.first
	last := 0
	for at := 0; at < len(b.Encoded); off++ {
		last = at
		l.indexRecord(off, p.pos+int64(len(buf)+at))
		if binary.BigEndian.Uint32(b.Encoded[at:])>>27 == 1<<2 {
			p.gens = append(p.gens, GenerationStart{Generation: Generation(binary.BigEndian.Uint64(b.Encoded[at+segment.RecordHeaderSize:])), Start: off})
		}
		at += recordSize(b.Encoded[at:])
	}
	sum := binary.BigEndian.Uint32(b.Encoded[last+24:])
	return append(buf, b.Encoded...), sum
}

// AppendEncoded appends records as another log of this format encoded them, byte for
// byte, and waits like Append. prev names the record before them; it must be this log's
// own, unless that is gone or the log begins here. Records that are there already must be
// the same. Otherwise the answer is *MismatchError, and nothing was appended.
func (l *Log) AppendEncoded(ctx context.Context, prev RecordID, encoded []byte) error {
	return l.Append(ctx, &Batch{Encoded: encoded, Prev: prev, UseReserve: true})
}

// addGenerations notes generation starts that were written.
func (l *Log) addGenerations(gs []GenerationStart) {
	old := *l.gens.Load()
	all := append(old[:len(old):len(old)], gs...)
	l.gens.Store(&all)
}

// generationAt is the generation in force at off.
func (l *Log) generationAt(off Offset) Generation {
	gens := *l.gens.Load()
	i := sort.Search(len(gens), func(i int) bool { return gens[i].Start > off })
	if i == 0 {
		return 0
	}
	return gens[i-1].Generation
}

// ownID is the ID of a record below next, asked by the pen's holder.
func (l *Log) ownID(off, next Offset) (RecordID, error) {
	if off+1 == next && next == l.pen.next {
		return RecordID{off, l.generationAt(off), l.pen.sum}, nil
	}
	return l.RecordID(context.Background(), off)
}

// RecordID names the record at off: *TrimmedError below the head, *OffsetMismatchError
// at or past the tail.
func (l *Log) RecordID(ctx context.Context, off Offset) (RecordID, error) {
	if tail := l.Written(); off >= tail {
		return RecordID{}, &OffsetMismatchError{Expected: off, Tail: tail}
	}
	var p Page
	if err := l.Read(ctx, &p, ReadRange{From: off, End: off + 1, MaxBytes: 1, MaxRecords: 1, Limit: LimitWritten}); err != nil {
		return RecordID{}, err
	}
	if len(p.Records) == 0 {
		return RecordID{}, &OffsetMismatchError{Expected: off, Tail: l.Written()}
	}
	return RecordID{off, l.generationAt(off), p.Records[0].Checksum}, nil
}

// LastRecordID names the last record written; the zero RecordID when the log has had
// none.
func (l *Log) LastRecordID() RecordID {
	l.mu.Lock()
	next, sum := l.mu.activeNext, l.mu.activeSum
	l.mu.Unlock()
	if next == 0 || sum == 0 && next == l.Head() {
		return RecordID{}
	}
	return RecordID{next - 1, l.generationAt(next - 1), sum}
}

// ReadEncoded appends the records from from on to dst as they are on disk: whole records
// of one segment, up to about max bytes and at least one, their checksums verified. It
// returns dst and where to read on. It reads up to Written.
func (l *Log) ReadEncoded(ctx context.Context, from Offset, max int, dst []byte) ([]byte, Offset, error) {
	var err error
	for range readAttempts {
		cuts := l.cuts.Load()
		var next Offset
		var out []byte
		out, next, err = l.readEncoded(ctx, from, max, dst, l.Written())
		if err == nil {
			return out, next, nil
		}
		if ctx.Err() != nil || l.cuts.Load() == cuts && !gone(err) {
			break
		}
	}
	return dst, from, err
}

func (l *Log) readEncoded(ctx context.Context, from Offset, maxBytes int, dst []byte, tail Offset) ([]byte, Offset, error) {
	if from >= tail {
		return dst, from, nil
	}
	sl := l.list.Load()
	i := sl.find(from)
	if i < 0 {
		return dst, from, &TrimmedError{Requested: from, Oldest: sl.head()}
	}
	s := sl.all[i]
	end, size := min(tail, sl.next(i, tail)), s.size.Load()
	f, err := s.handle.acquire()
	if err != nil {
		return dst, from, l.trimmedOr(from, err)
	}
	defer s.handle.release()
	pos, at, err := l.locate(ctx, s, from)
	if err != nil {
		return dst, from, l.trimmedOr(from, err)
	}
	var buf segment.ReadBuffer
	res, err := segment.ReadInto(ctx, f, segment.ScanStart{Shard: l.shard, Segment: s.id, Position: pos, Offset: at},
		segment.ReadLimits{From: from, End: from + 1, EndPosition: size, MaxBytes: 1, MaxRecords: 1}, &buf)
	if err != nil {
		return dst, from, l.readError(err)
	}
	if len(buf.Records) == 0 {
		return dst, from, fmt.Errorf("storage: segment %d ends before offset %d", s.id, from)
	}
	first := buf.Records[0].Size
	pos = res.Position - int64(first)
	n := int(min(int64(max(maxBytes, first)), size-pos))
	start := len(dst)
	dst = append(dst, make([]byte, n)...)
	got, err := f.ReadAt(dst[start:], pos)
	if got < n {
		return dst[:start], from, l.readError(fmt.Errorf("segment %d at %d: %w", s.id, pos, err))
	}
	done, next := 0, from
	for next < end && done < n {
		if n-done < segment.RecordHeaderSize || recordSize(dst[start+done:]) > n-done {
			break
		}
		_, size, err := segment.DecodeRecord(dst[start+done:], next)
		if err != nil {
			return dst[:start], from, l.readError(err)
		}
		done += size
		next++
	}
	return dst[:start+done], next, nil
}

// trimmedOr is a *TrimmedError when off was trimmed meanwhile, else err.
func (l *Log) trimmedOr(off Offset, err error) error {
	if head := l.Head(); off < head {
		return &TrimmedError{Requested: off, Oldest: head}
	}
	return err
}
