package wire

import (
	"encoding/binary"
	"math"
)

// MaxKeyBytes bounds the key of a publish and the names in a binary frame: the
// length has 16 bits.
const MaxKeyBytes = math.MaxUint16

// PublishBatchFrame is the binary layout of a publish: records that go to one
// shard as a unit.
type PublishBatchFrame struct {
	// Acked: the batch is answered. RequestID and AckMode are set only then.
	Acked     bool
	AckMode   AckMode
	RequestID uint64
	// Idempotent needs Acked, and AckMode is then AckPerBatch. ProducerID and
	// Sequence are set only then.
	Idempotent           bool
	ProducerID, Sequence uint64
	// Key chooses the shard. Without one the batch goes to shard 0.
	HasKey bool
	Key    []byte

	Tenant, Namespace, Stream string
	Payloads                  [][]byte
}

// Flags returns the flag word of the frame.
func (f *PublishBatchFrame) Flags() Flags {
	flags := FlagBinaryPublishBatch
	if f.Acked {
		flags |= FlagBinaryPublishAcked
	}
	if f.Idempotent {
		flags |= FlagBinaryPublishIdempotent
	}
	if f.HasKey {
		flags |= FlagBinaryPublishKeyed
	}
	return flags
}

// Decode reads the payload of a frame with LayoutPublish. Key and Payloads are
// views of the payload; the slice Payloads itself is used again by the next
// Decode. names, which may be nil, spares the allocation of the names.
//
// After an error, *[MalformedError], Acked, RequestID and Idempotent are still
// right when the error has a request id, so that the refusal can be sent.
func (f *PublishBatchFrame) Decode(flags Flags, payload []byte, names *Names) error {
	f.Acked, f.Idempotent, f.HasKey = false, false, false
	f.RequestID, f.AckMode, f.ProducerID, f.Sequence, f.Key = 0, AckNone, 0, 0, nil
	f.Payloads = f.Payloads[:0]
	if flags.Layout() != LayoutPublish {
		return &MalformedError{What: "publish batch", Detail: "flags " + flags.String() + " do not make a publish"}
	}
	c := cursor{b: payload}
	if flags.Has(FlagBinaryPublishAcked) {
		f.Acked = true
		f.RequestID = c.u64("request_id")
		if c.bad != "" {
			f.Acked = false
			return &MalformedError{What: "publish batch", Detail: c.bad}
		}
		f.AckMode = AckMode(c.u8("ack_mode"))
		if c.bad == "" && f.AckMode != AckPerMessage && f.AckMode != AckPerBatch {
			c.bad = "ack_mode: is neither 1 nor 2"
		}
	}
	if flags.Has(FlagBinaryPublishIdempotent) {
		f.Idempotent = true
		f.ProducerID = c.u64("producer_id")
		f.Sequence = c.u64("sequence")
		if c.bad == "" && f.AckMode != AckPerBatch {
			c.bad = "ack_mode: is not 2 in an idempotent publish"
		}
	}
	if flags.Has(FlagBinaryPublishKeyed) {
		f.HasKey = true
		f.Key = c.bytes16("key")
	}
	setName(&f.Tenant, c.text16("tenant_id"), names)
	setName(&f.Namespace, c.text16("namespace"), names)
	setName(&f.Stream, c.text16("stream"), names)
	n := c.count(4, "count")
	many := n > MaxElements
	if many {
		c.bad = "payloads: " + tooManyElements
	}
	if c.bad == "" {
		f.Payloads = c.blobs(fit(f.Payloads, n), n, "payload")
	}
	if c.bad != "" {
		f.Payloads = f.Payloads[:0]
		return &MalformedError{What: "publish batch", Detail: c.bad, RequestID: f.RequestID, HasRequestID: f.Acked, Limit: many}
	}
	return nil
}

func setName(p *string, b []byte, names *Names) {
	switch {
	case *p == string(b):
	case names == nil:
		*p = string(b)
	default:
		*p = names.Get(b)
	}
}

// AppendPublishPrefix adds the header and everything up to the count of
// payloads, which is left 0. The caller adds the payloads with AppendBlob and
// ends with FinishPublish. f.Payloads is not looked at. Key and names must not
// be longer than MaxKeyBytes.
func AppendPublishPrefix(dst []byte, f *PublishBatchFrame) []byte {
	dst = AppendHeader(dst, f.Flags(), 0)
	if f.Acked {
		dst = binary.BigEndian.AppendUint64(dst, f.RequestID)
		dst = append(dst, byte(f.AckMode))
	}
	if f.Idempotent {
		dst = binary.BigEndian.AppendUint64(dst, f.ProducerID)
		dst = binary.BigEndian.AppendUint64(dst, f.Sequence)
	}
	if f.HasKey {
		dst = appendBytes16(dst, f.Key)
	}
	dst = appendBytes16(dst, f.Tenant)
	dst = appendBytes16(dst, f.Namespace)
	dst = appendBytes16(dst, f.Stream)
	return append(dst, 0, 0, 0, 0)
}

// AppendBlob adds a payload with its length.
func AppendBlob(dst, payload []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(payload)))
	return append(dst, payload...)
}

// FinishPublish completes a frame that begins at start and whose prefix,
// header included, has prefixBytes.
func FinishPublish(dst []byte, start, prefixBytes int, count uint32) []byte {
	binary.BigEndian.PutUint32(dst[start+prefixBytes-4:], count)
	return FinishFrame(dst, start)
}

// NumberPublish sets the request id of an acked publish frame, and the producer
// id and sequence of an idempotent one, in place: the frame can be built before
// they are known, and numbered anew. frame begins with its header.
func NumberPublish(frame []byte, requestID, producerID, sequence uint64) {
	flags := Flags(binary.BigEndian.Uint16(frame[6:]))
	if flags.Has(FlagBinaryPublishAcked) {
		binary.BigEndian.PutUint64(frame[HeaderBytes:], requestID)
	}
	if flags.Has(FlagBinaryPublishIdempotent) {
		binary.BigEndian.PutUint64(frame[HeaderBytes+9:], producerID)
		binary.BigEndian.PutUint64(frame[HeaderBytes+17:], sequence)
	}
}

// AppendPublishBatch adds a whole frame to dst.
func AppendPublishBatch(dst []byte, f *PublishBatchFrame) []byte {
	start := len(dst)
	dst = AppendPublishPrefix(dst, f)
	prefix := len(dst) - start
	for _, p := range f.Payloads {
		dst = AppendBlob(dst, p)
	}
	return FinishPublish(dst, start, prefix, uint32(len(f.Payloads)))
}
