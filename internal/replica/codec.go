package replica

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/felixlog/felix/internal/meta"
)

// CodecVersion is the version of the messages between brokers that is written. Decoding
// refuses every other by number.
const CodecVersion = 1

// Limits of the codec.
const (
	// MaxMessageBytes bounds one encoded message: the records of one batch, of which the
	// first may be as large as the format allows, and the rest.
	MaxMessageBytes = MaxShipBytes + 66<<20
	// MaxForwardText bounds each text of a forward.
	MaxForwardText = 1024
)

// CodecError is a message that cannot be decoded.
type CodecError struct {
	Type   MessageType // zero when even that is not known
	Detail string
}

func (e *CodecError) Error() string {
	if e.Type == 0 {
		return "replica message: " + e.Detail
	}
	return "replica message " + e.Type.String() + ": " + e.Detail
}

// Flags of a message.
const (
	flagLease     = 1 << 0
	flagForgetful = 1 << 1
	flagForward   = 1 << 2
	flagsKnown    = flagLease | flagForgetful | flagForward
)

// fixedSize is the part every message has: version, type, flags, refusal, shard, term,
// opening, peer, log, counts.
const fixedSize = 4 + 12 + 24 + 16 + 8 + 4

// fieldsSize is the part of numbers that follows: prev, mark, head, tail, match, start,
// at, accepted, round, sentAt.
const fieldsSize = 20 + 6*8 + 24 + 8 + 8

// Append appends the encoded message. Records are copied once, as they are.
//
// All numbers are big-endian. Every message has the same fixed fields, so that a field
// a type does not use is zero bytes rather than a second layout; records, marks, votes
// and a forward follow, each counted.
func (m *Message) Append(dst []byte) []byte {
	var flags byte
	if m.Lease {
		flags |= flagLease
	}
	if m.Forgetful {
		flags |= flagForgetful
	}
	if m.Forward != nil {
		flags |= flagForward
	}
	be := binary.BigEndian
	dst = append(dst, CodecVersion, byte(m.Type), flags, byte(m.Refused))
	dst = be.AppendUint64(dst, m.Shard.Incarnation)
	dst = be.AppendUint32(dst, m.Shard.Shard)
	dst = appendTerm(dst, m.Term)
	dst = appendOpening(dst, m.Opening)
	dst = be.AppendUint64(dst, m.Peer)
	dst = append(dst, byte(m.Log), byte(len(m.Marks)), byte(len(m.Votes)), 0)

	dst = be.AppendUint64(dst, uint64(m.Prev.Next))
	dst = be.AppendUint64(dst, uint64(m.Prev.Generation))
	dst = be.AppendUint32(dst, m.Prev.Checksum)
	for _, v := range [...]uint64{uint64(m.Mark), uint64(m.Head), uint64(m.Tail), uint64(m.Match), uint64(m.Start), uint64(m.At)} {
		dst = be.AppendUint64(dst, v)
	}
	dst = appendTerm(dst, m.Accepted)
	dst = be.AppendUint64(dst, m.Round)
	dst = be.AppendUint64(dst, uint64(m.SentAt))

	for _, k := range m.Marks {
		dst = be.AppendUint64(dst, uint64(k.Mark))
		dst = be.AppendUint64(dst, uint64(k.Head))
		dst = be.AppendUint64(dst, uint64(k.Tail))
	}
	for _, v := range m.Votes {
		dst = be.AppendUint64(dst, uint64(v.Last))
		dst = be.AppendUint64(dst, uint64(v.Head))
		dst = be.AppendUint64(dst, uint64(v.Tail))
		dst = be.AppendUint64(dst, uint64(v.Mark))
		unknown := byte(0)
		if v.Unknown {
			unknown = 1
		}
		dst = append(dst, unknown)
	}
	if f := m.Forward; f != nil {
		dst = be.AppendUint64(dst, f.Sequence)
		dst = be.AppendUint64(dst, uint64(f.Offset))
		dst = append(dst, byte(f.Outcome))
		for _, s := range [...]string{string(f.Origin), f.Principal, f.Permission} {
			dst = be.AppendUint16(dst, uint16(len(s)))
			dst = append(dst, s...)
		}
	}
	dst = be.AppendUint32(dst, uint32(len(m.Bytes)))
	return append(dst, m.Bytes...)
}

// Size is the number of bytes Append adds.
func (m *Message) Size() int {
	n := fixedSize + fieldsSize + 24*len(m.Marks) + 33*len(m.Votes) + 4 + len(m.Bytes)
	if f := m.Forward; f != nil {
		n += 17 + 6 + len(f.Origin) + len(f.Principal) + len(f.Permission)
	}
	return n
}

func appendTerm(dst []byte, t Term) []byte {
	return appendOpening(binary.BigEndian.AppendUint64(dst, uint64(t.Generation)), t.By)
}

func appendOpening(dst []byte, o Opening) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(dst, uint64(o.Disk)), o.Count)
}

// Decode reads one message, which must take all of b. Bytes are a view of b; Marks and
// Votes reuse m's. From and To are left alone: the connection knows them. The error is
// a *CodecError.
func (m *Message) Decode(b []byte) error {
	from, to, marks, votes := m.From, m.To, m.Marks[:0], m.Votes[:0]
	*m = Message{From: from, To: to}
	if len(b) > MaxMessageBytes {
		return &CodecError{Detail: fmt.Sprintf("%d bytes exceed the limit of %d", len(b), MaxMessageBytes)}
	}
	if len(b) < 2 {
		return &CodecError{Detail: fmt.Sprintf("%d bytes hold no version and type", len(b))}
	}
	if b[0] != CodecVersion {
		return &CodecError{Detail: fmt.Sprintf("version %d, this broker speaks %d", b[0], CodecVersion)}
	}
	t := MessageType(b[1])
	if t == 0 || t >= messageTypeCount {
		return &CodecError{Detail: fmt.Sprintf("unknown type %d", b[1])}
	}
	bad := func(format string, args ...any) error {
		*m = Message{From: from, To: to}
		return &CodecError{Type: t, Detail: fmt.Sprintf(format, args...)}
	}
	d := reader{b: b}
	if len(b) < fixedSize+fieldsSize {
		return bad("%d bytes of at least %d", len(b), fixedSize+fieldsSize)
	}
	d.skip(2)
	m.Type = t
	flags := d.u8()
	if flags&^flagsKnown != 0 {
		return bad("unknown flags %#x", flags)
	}
	m.Lease, m.Forgetful = flags&flagLease != 0, flags&flagForgetful != 0
	if m.Refused = Refusal(d.u8()); m.Refused >= refusalCount {
		return bad("unknown refusal %d", m.Refused)
	}
	m.Shard = ShardID{d.u64(), d.u32()}
	m.Term = d.term()
	m.Opening = d.opening()
	m.Peer = d.u64()
	m.Log = LogID(d.u8())
	nMarks, nVotes := int(d.u8()), int(d.u8())
	if m.Log >= MaxLogs || nMarks > MaxLogs || nVotes > MaxLogs {
		return bad("log %d, %d marks, %d votes: at most %d logs", m.Log, nMarks, nVotes, MaxLogs)
	}
	if d.u8() != 0 {
		return bad("reserved byte is not zero")
	}
	m.Prev = Place{Offset(d.u64()), Generation(d.u64()), d.u32()}
	m.Mark, m.Head, m.Tail = Offset(d.u64()), Offset(d.u64()), Offset(d.u64())
	m.Match, m.Start, m.At = Offset(d.u64()), Offset(d.u64()), Generation(d.u64())
	m.Accepted = d.term()
	m.Round = d.u64()
	m.SentAt = time.Duration(d.u64())
	for range nMarks {
		marks = append(marks, LogMark{Offset(d.u64()), Offset(d.u64()), Offset(d.u64())})
	}
	for range nVotes {
		v := LogVote{Last: Generation(d.u64()), Head: Offset(d.u64()), Tail: Offset(d.u64()), Mark: Offset(d.u64())}
		unknown := d.u8()
		if unknown > 1 {
			return bad("vote with unknown byte %d", unknown)
		}
		v.Unknown = unknown == 1
		votes = append(votes, v)
	}
	if nMarks > 0 {
		m.Marks = marks
	}
	if nVotes > 0 {
		m.Votes = votes
	}
	if flags&flagForward != 0 {
		f := &ForwardBody{Sequence: d.u64(), Offset: Offset(d.u64()), Outcome: Outcome(d.u8())}
		if f.Outcome >= outcomeCount {
			return bad("unknown outcome %d", f.Outcome)
		}
		var texts [3]string
		for i := range texts {
			n := int(d.u16())
			if n > MaxForwardText {
				return bad("text of %d bytes, at most %d", n, MaxForwardText)
			}
			texts[i] = string(d.take(n))
		}
		f.Origin, f.Principal, f.Permission = meta.NodeID(texts[0]), texts[1], texts[2]
		m.Forward = f
	}
	n := int(d.u32())
	if d.short || n != len(d.b) {
		return bad("%d bytes of records announced, %d left", n, len(d.b))
	}
	if n > 0 {
		m.Bytes = d.take(n)
	}
	return nil
}

// reader reads numbers until the bytes run out; then all it reads is zero and short is
// set.
type reader struct {
	b     []byte
	short bool
}

func (d *reader) take(n int) []byte {
	if n > len(d.b) {
		d.b, d.short = nil, true
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

func (d *reader) skip(n int) { d.take(n) }

func (d *reader) u8() byte {
	if v := d.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (d *reader) u16() uint16 {
	if v := d.take(2); v != nil {
		return binary.BigEndian.Uint16(v)
	}
	return 0
}

func (d *reader) u32() uint32 {
	if v := d.take(4); v != nil {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

func (d *reader) u64() uint64 {
	if v := d.take(8); v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func (d *reader) opening() Opening { return Opening{Disk: meta.DiskID(d.u64()), Count: d.u64()} }
func (d *reader) term() Term       { return Term{Generation: Generation(d.u64()), By: d.opening()} }
