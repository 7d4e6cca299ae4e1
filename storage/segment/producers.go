package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"

	"github.com/felixlog/felix/storage/vfs"
)

// Bounds of what is remembered of idempotent producers.
const (
	MaxProducers       = 4096 // a shard
	MaxProducerBatches = 64   // a producer

	producersMagic      = 0x464C5053 // "FLPS"
	producersVersion    = 2
	producersHeaderSize = 24
	producersMaxSize    = producersHeaderSize + 1 + openBatchSize + MaxProducers*(18+MaxProducerBatches*producerBatchSize)
	openBatchSize       = 32 + digestSize
	producerBatchSize   = 12 + digestSize
	digestSize          = 9
)

// Digest is a checksum over the payloads of a batch, if one is known.
type Digest struct {
	Known bool
	Value uint64
}

// ProducerBatch is a remembered batch of a producer.
type ProducerBatch struct {
	First  Offset
	Len    uint32
	Digest Digest
}

// ProducerEntry is one producer: its last sequence and its last batches, the newest
// last.
type ProducerEntry struct {
	ID           uint64
	LastSequence uint64
	Batches      []ProducerBatch
}

// OpenBatch is a batch of which not all records were in the log yet.
type OpenBatch struct {
	Tag    ProducerTag
	First  Offset
	Held   uint32 // records of it that are in the log
	Digest Digest // of those
}

// ProducerSnapshot is the state of idempotent producers after the records below AsOf.
// It is derived from the log, and dropped at any doubt.
type ProducerSnapshot struct {
	AsOf      Offset
	Open      *OpenBatch
	Producers []ProducerEntry
}

// AppendProducers appends the bytes of the file producers.
func AppendProducers(dst []byte, s *ProducerSnapshot) []byte {
	dst = binary.BigEndian.AppendUint32(dst, producersMagic)
	dst = binary.BigEndian.AppendUint16(dst, producersVersion)
	dst = binary.BigEndian.AppendUint16(dst, 0)
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.AsOf))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(s.Producers)))
	sum := len(dst)
	dst = binary.BigEndian.AppendUint32(dst, 0)
	if o := s.Open; o == nil {
		dst = append(dst, 0)
	} else {
		dst = append(dst, 1)
		dst = binary.BigEndian.AppendUint64(dst, o.Tag.ID)
		dst = binary.BigEndian.AppendUint64(dst, o.Tag.Sequence)
		dst = binary.BigEndian.AppendUint32(dst, o.Tag.Len)
		dst = binary.BigEndian.AppendUint64(dst, uint64(o.First))
		dst = binary.BigEndian.AppendUint32(dst, o.Held)
		dst = appendDigest(dst, o.Digest)
	}
	for i := range s.Producers {
		p := &s.Producers[i]
		dst = binary.BigEndian.AppendUint64(dst, p.ID)
		dst = binary.BigEndian.AppendUint64(dst, p.LastSequence)
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(p.Batches)))
		for _, b := range p.Batches {
			dst = binary.BigEndian.AppendUint64(dst, uint64(b.First))
			dst = binary.BigEndian.AppendUint32(dst, b.Len)
			dst = appendDigest(dst, b.Digest)
		}
	}
	binary.BigEndian.PutUint32(dst[sum:], crc32.ChecksumIEEE(dst[sum+4:]))
	return dst
}

func appendDigest(dst []byte, d Digest) []byte {
	if !d.Known {
		return append(dst, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	return binary.BigEndian.AppendUint64(append(dst, 1), d.Value)
}

// DecodeProducers reads the file producers. The error is a *Corruption; the caller then
// rebuilds from the log, as it does when AsOf is below its oldest record or past its
// tail.
func DecodeProducers(b []byte) (*ProducerSnapshot, error) {
	s, c := decodeProducers(b)
	if c != nil {
		return nil, c
	}
	return s, nil
}

func decodeProducers(b []byte) (*ProducerSnapshot, *Corruption) {
	if len(b) < producersHeaderSize {
		return nil, sideDamage(ProducersName, "%d bytes of a header of %d", len(b), producersHeaderSize)
	}
	if c := checkSide(ProducersName, b, producersMagic, producersVersion); c != nil {
		return nil, c
	}
	if got, want := crc32.ChecksumIEEE(b[producersHeaderSize:]), binary.BigEndian.Uint32(b[20:]); got != want {
		return nil, sideDamage(ProducersName, "checksum stored %08x, computed %08x", want, got)
	}
	count := binary.BigEndian.Uint32(b[16:])
	if count > MaxProducers {
		return nil, sideDamage(ProducersName, "%d producers, at most %d are remembered", count, MaxProducers)
	}
	s := &ProducerSnapshot{AsOf: Offset(binary.BigEndian.Uint64(b[8:]))}
	r := sideReader{b: b[producersHeaderSize:]}
	switch flag := r.u8(); flag {
	case 0:
	case 1:
		s.Open = &OpenBatch{
			Tag:   ProducerTag{ID: r.u64(), Sequence: r.u64(), Len: r.u32()},
			First: Offset(r.u64()), Held: r.u32(), Digest: r.digest(),
		}
	default:
		r.bad = true
	}
	for i := range count {
		p := ProducerEntry{ID: r.u64(), LastSequence: r.u64()}
		n := int(r.u16())
		if n > MaxProducerBatches {
			return nil, sideDamage(ProducersName, "%d batches of producer %d, at most %d are remembered", n, p.ID, MaxProducerBatches)
		}
		if r.bad || n*producerBatchSize > len(r.b) {
			return nil, sideDamage(ProducersName, "it ends within producer %d of %d", i+1, count)
		}
		p.Batches = make([]ProducerBatch, n)
		for j := range p.Batches {
			p.Batches[j] = ProducerBatch{First: Offset(r.u64()), Len: r.u32(), Digest: r.digest()}
		}
		s.Producers = append(s.Producers, p)
	}
	if r.bad || len(r.b) != 0 {
		return nil, sideDamage(ProducersName, "the body does not parse")
	}
	return s, nil
}

// sideReader reads integers one after the other; past the end, and after a flag that is
// neither 0 nor 1, it is bad and reads zeros.
type sideReader struct {
	b   []byte
	bad bool
}

func (r *sideReader) take(n int) []byte {
	if n > len(r.b) {
		r.bad, r.b = true, nil
		return make([]byte, n)
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *sideReader) u8() uint8   { return r.take(1)[0] }
func (r *sideReader) u16() uint16 { return binary.BigEndian.Uint16(r.take(2)) }
func (r *sideReader) u32() uint32 { return binary.BigEndian.Uint32(r.take(4)) }
func (r *sideReader) u64() uint64 { return binary.BigEndian.Uint64(r.take(8)) }

func (r *sideReader) digest() Digest {
	known := r.u8()
	d := Digest{Known: known == 1, Value: r.u64()}
	if known > 1 || known == 0 && d.Value != 0 {
		r.bad = true
	}
	return d
}

// WriteProducers replaces dir's producers file.
func WriteProducers(fsys vfs.FS, dir string, s *ProducerSnapshot) error {
	return WriteFile(fsys, dir, ProducersName, AppendProducers(nil, s))
}

// ReadProducers reads dir's producers file: nil if it is missing or damaged. The error
// is of the file system.
func ReadProducers(fsys vfs.FS, dir string) (*ProducerSnapshot, error) {
	b, err := ReadFile(fsys, dir, ProducersName, producersMaxSize)
	if err == nil {
		var s *ProducerSnapshot
		if s, err = DecodeProducers(b); err == nil {
			return s, nil
		}
	}
	if _, damaged := errors.AsType[*Corruption](err); damaged || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return nil, fmt.Errorf("segment: read %s: %w", ProducersName, err)
}
