package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

const (
	bodyMask     = 1<<27 - 1
	bitPublisher = 1 << 27
	bitCommit    = 1 << 28
	bitGenStart  = 1 << 29
	bitNext      = 1 << 30
	bitFirst     = 1 << 31
	kindBits     = bitCommit | bitGenStart | bitNext | bitFirst
)

// Errors of (*RecordSpec).Validate.
var (
	// ErrBodyTooLarge: payload and publisher trailer together exceed MaxBodySize.
	ErrBodyTooLarge = errors.New("segment: record body exceeds 64 MiB")
	// ErrPublisherTooLong: the publisher's principal exceeds MaxPublisherSize.
	ErrPublisherTooLong = errors.New("segment: publisher exceeds 255 bytes")
	// ErrKind: not a kind this package can encode.
	ErrKind = errors.New("segment: unknown record kind")
)

// RecordSpec is a record to be encoded.
type RecordSpec struct {
	Offset    Offset
	Timestamp Micros
	Kind      Kind
	Producer  ProducerTag // with KindProducerFirst
	Payload   []byte
	Publisher []byte // stored when not empty
}

// Size is the number of bytes the record takes on disk.
func (s *RecordSpec) Size() int {
	n := RecordHeaderSize + len(s.Payload)
	if s.Kind == KindProducerFirst {
		n += ProducerTagSize
	}
	if len(s.Publisher) > 0 {
		n += len(s.Publisher) + 1
	}
	return n
}

// LeastVersion is the least segment version that can hold the record.
func (s *RecordSpec) LeastVersion() Version {
	if len(s.Publisher) > 0 {
		return VersionPublisher
	}
	return s.Kind.LeastVersion()
}

// Validate says whether the format can hold the record.
func (s *RecordSpec) Validate() error {
	if s.Kind >= kindCount {
		return fmt.Errorf("%w %d", ErrKind, s.Kind)
	}
	body := len(s.Payload)
	if n := len(s.Publisher); n > 0 {
		if n > MaxPublisherSize {
			return fmt.Errorf("%w: %d", ErrPublisherTooLong, n)
		}
		body += n + 1
	}
	if body > MaxBodySize {
		return fmt.Errorf("%w: %d bytes", ErrBodyTooLarge, body)
	}
	switch s.Kind {
	case KindGenerationStart:
		if len(s.Payload) != 8 {
			return fmt.Errorf("segment: a generation start holds 8 bytes, not %d", len(s.Payload))
		}
	case KindCommit:
		if c := checkCommit(s.Payload); c != nil {
			return fmt.Errorf("segment: commit body: %s", c.Detail)
		}
	}
	return nil
}

// AppendRecord appends the encoded record. It allocates only if dst has no room, and
// copies the payload once. The caller has checked Validate; a body that the length field
// cannot hold is a bug of the caller and panics with the error of Validate: its bytes would
// be read back as another kind of record.
func AppendRecord(dst []byte, s *RecordSpec) []byte {
	size := s.Size()
	if size-RecordHeaderSize > MaxBodySize || len(s.Publisher) > MaxPublisherSize || s.Kind >= kindCount {
		if err := s.Validate(); err != nil {
			panic(err)
		}
	}
	at := len(dst)
	dst = slices.Grow(dst, size)[:at+size]
	b := dst[at : at+size : at+size]

	word := kindWord[s.Kind]
	at = RecordHeaderSize
	if s.Kind == KindProducerFirst {
		binary.BigEndian.PutUint64(b[28:], s.Producer.ID)
		binary.BigEndian.PutUint64(b[36:], s.Producer.Sequence)
		binary.BigEndian.PutUint32(b[44:], s.Producer.Len)
		at += ProducerTagSize
	}
	body := size - at
	at += copy(b[at:], s.Payload)
	if len(s.Publisher) > 0 {
		word |= bitPublisher
		at += copy(b[at:], s.Publisher)
		b[at] = byte(len(s.Publisher))
	}
	binary.BigEndian.PutUint32(b[0:], word|uint32(body))
	binary.BigEndian.PutUint64(b[4:], uint64(s.Offset))
	binary.BigEndian.PutUint64(b[12:], uint64(s.Timestamp))
	header, chained := headerSums((*[20]byte)(b))
	binary.BigEndian.PutUint32(b[20:], header)
	binary.BigEndian.PutUint32(b[24:], bodySum(chained, b[28:]))
	return dst
}

var kindWord = [256]uint32{
	KindProducerFirst: bitFirst, KindProducerNext: bitNext, KindGenerationStart: bitGenStart, KindCommit: bitCommit,
}

// Record is a decoded record. Payload and Publisher are views of the bytes it was
// decoded from.
type Record struct {
	Offset       Offset
	Timestamp    Micros
	Kind         Kind
	HasPublisher bool
	Producer     ProducerTag // with KindProducerFirst
	Payload      []byte      // without tag and publisher trailer
	Publisher    []byte
	HeaderCRC    uint32
	Checksum     uint32
	Size         int // bytes on disk
}

// LeastVersion is the least segment version that can hold the record.
func (r *Record) LeastVersion() Version {
	if r.HasPublisher {
		return VersionPublisher
	}
	return r.Kind.LeastVersion()
}

// Visible is what a reader of the log sees: the payload; of a commit, its event; false
// for a record that only replication sees.
func (r *Record) Visible() ([]byte, bool) {
	switch r.Kind {
	case KindGenerationStart:
		return nil, false
	case KindCommit:
		n := binary.BigEndian.Uint32(r.Payload[1:])
		return r.Payload[5 : 5+n], true
	default:
		return r.Payload, true
	}
}

// Generation is the generation a KindGenerationStart begins, else zero.
func (r *Record) Generation() Generation {
	if r.Kind != KindGenerationStart {
		return 0
	}
	return Generation(binary.BigEndian.Uint64(r.Payload))
}

// DecodeRecord decodes the record at the start of buf, whose offset must be want, and
// returns the bytes it took. Any version's kinds are accepted. The error is a
// *Corruption whose Position is 0.
func DecodeRecord(buf []byte, want Offset) (Record, int, error) {
	var r Record
	n, c := decodeRecord(&r, buf, want, MaxVersion)
	if c != nil {
		return Record{}, 0, c
	}
	return r, n, nil
}

// recordHead is the verified header of a record.
type recordHead struct {
	word    uint32
	size    int // bytes on disk
	header  uint32
	chained uint32
}

// decodeHead verifies the record header at the start of buf. Nothing but the header is
// read, so size may exceed len(buf).
func decodeHead(buf []byte, want Offset, version Version) (recordHead, *Corruption) {
	if len(buf) < RecordHeaderSize {
		c := corrupt(Truncated, "%d bytes of a record header of %d", len(buf), RecordHeaderSize)
		c.Offset = want
		return recordHead{}, c
	}
	header, chained := headerSums((*[20]byte)(buf))
	word := binary.BigEndian.Uint32(buf)
	h := recordHead{word: word, header: header, chained: chained, size: RecordHeaderSize + int(word&bodyMask)}
	if word >= bitFirst {
		h.size += ProducerTagSize
	}
	if header != binary.BigEndian.Uint32(buf[20:]) ||
		Offset(binary.BigEndian.Uint64(buf[4:])) != want ||
		word > leastWord[version] && !wordAllowed(word, version) ||
		word&bodyMask > MaxBodySize {
		return recordHead{}, headDamage(buf, header, want, version)
	}
	return h, nil
}

// leastWord is, by version, the length word up to which nothing needs to be checked:
// no kind bit that the version could not hold, nor two of them.
var leastWord = [MaxVersion + 1]uint32{
	VersionPlain: bodyMask, VersionProducer: bodyMask, VersionGeneration: bodyMask, VersionCommit: bodyMask,
	VersionPublisher: bitPublisher | bodyMask,
}

func wordAllowed(word uint32, version Version) bool {
	if k := word & kindBits; k&(k-1) != 0 {
		return false
	}
	return wordVersion(word) <= version
}

func wordVersion(word uint32) Version {
	switch {
	case word&bitPublisher != 0:
		return VersionPublisher
	case word&bitCommit != 0:
		return VersionCommit
	case word&bitGenStart != 0:
		return VersionGeneration
	case word&(bitNext|bitFirst) != 0:
		return VersionProducer
	default:
		return VersionPlain
	}
}

func wordKind(word uint32) Kind {
	switch word & kindBits {
	case bitFirst:
		return KindProducerFirst
	case bitNext:
		return KindProducerNext
	case bitGenStart:
		return KindGenerationStart
	case bitCommit:
		return KindCommit
	default:
		return KindPlain
	}
}

// headDamage says what is wrong with a header, in the order in which its fields may be
// believed.
func headDamage(buf []byte, computed uint32, want Offset, version Version) *Corruption {
	var c *Corruption
	word := binary.BigEndian.Uint32(buf)
	stored := binary.BigEndian.Uint32(buf[20:])
	offset := Offset(binary.BigEndian.Uint64(buf[4:]))
	k := word & kindBits
	switch {
	case stored != computed:
		c = corrupt(RecordHeaderChecksum, "stored %08x, computed %08x", stored, computed)
	case k&(k-1) != 0:
		c = corrupt(RecordFlags, "two kinds at once: %08x", word&^bodyMask)
	case wordVersion(word) > version:
		c = corrupt(RecordFlags, "kind bits %08x need version %d, the segment is of version %d", word&^bodyMask, wordVersion(word), version)
	case word&bodyMask > MaxBodySize:
		c = corrupt(RecordTooLarge, "length %d exceeds the limit of %d", word&bodyMask, MaxBodySize)
	default:
		c = corrupt(OffsetOutOfOrder, "found offset %d", offset)
	}
	c.Offset = want
	return c
}

// decodeRecord is DecodeRecord into r, with the kinds that version can hold.
func decodeRecord(r *Record, buf []byte, want Offset, version Version) (int, *Corruption) {
	h, c := decodeHead(buf, want, version)
	if c != nil {
		return 0, c
	}
	if h.size > len(buf) {
		c := corrupt(Truncated, "%d bytes of a record of %d", len(buf), h.size)
		c.Offset = want
		return 0, c
	}
	if c := r.decodeVerified(buf[:h.size:h.size], h, want); c != nil {
		c.Offset = want
		return 0, c
	}
	return h.size, nil
}

// decodeBody takes apart a record that is more than plain; its checksum is verified.
func (r *Record) decodeBody(buf []byte, word uint32) *Corruption {
	r.Kind = wordKind(word)
	r.HasPublisher = word&bitPublisher != 0
	r.Producer = ProducerTag{}
	r.Publisher = nil
	body := buf[28:]
	if r.Kind == KindProducerFirst {
		r.Producer = ProducerTag{
			ID:       binary.BigEndian.Uint64(body[0:]),
			Sequence: binary.BigEndian.Uint64(body[8:]),
			Len:      binary.BigEndian.Uint32(body[16:]),
		}
		body = body[ProducerTagSize:]
	}
	if r.HasPublisher {
		if len(body) == 0 {
			return corrupt(RecordBody, "no publisher in an empty body")
		}
		n := int(body[len(body)-1])
		if n > len(body)-1 {
			return corrupt(RecordBody, "publisher of %d bytes in a body of %d", n, len(body))
		}
		end := len(body) - 1 - n
		r.Publisher = body[end : end+n : end+n]
		body = body[:end:end]
	}
	r.Payload = body
	switch r.Kind {
	case KindGenerationStart:
		if len(body) != 8 {
			return corrupt(RecordBody, "a generation start holds 8 bytes, not %d", len(body))
		}
	case KindCommit:
		return checkCommit(body)
	}
	return nil
}
