package wire

import (
	"encoding/binary"
	"math"
	"unicode/utf8"
)

// PublishAck is the binary answer to an acked publish that is not idempotent.
type PublishAck struct {
	RequestID uint64
	// Failed: Failure says why. Code and retry class travel only with HasCode
	// (FlagBinaryPublishAckCode); reason and delay only with HasDetail
	// (FlagBinaryPublishAckDetail), which needs HasCode.
	Failed             bool
	Failure            Failure
	HasCode, HasDetail bool
	// Owner is the broker that a forwarded batch went to, if it was forwarded.
	// Addr is empty when it publishes none.
	HasOwner        bool
	OwnerNodeID     string
	OwnerAddr       string
	OwnerGeneration uint64
	// Offset is that of the first record, of an ack that did not fail.
	HasOffset bool
	Offset    uint64
}

// Flags returns the flag word of the frame.
func (a *PublishAck) Flags() Flags {
	flags := FlagBinaryPublishAck
	if a.Failed && a.HasCode {
		flags |= FlagBinaryPublishAckCode
		if a.HasDetail {
			flags |= FlagBinaryPublishAckDetail
		}
	}
	if a.HasOwner {
		flags |= FlagBinaryPublishAckOwner
	}
	if a.HasOffset && !a.Failed {
		flags |= FlagBinaryPublishAckOffset
	}
	return flags
}

// AppendPublishAck adds a whole frame to dst. Texts are cut at 65535 bytes.
func AppendPublishAck(dst []byte, a *PublishAck) []byte {
	start := len(dst)
	flags := a.Flags()
	dst = AppendHeader(dst, flags, 0)
	status, message := byte(0), ""
	if a.Failed {
		status, message = 1, a.Failure.Message
	}
	dst = append(dst, status)
	dst = binary.BigEndian.AppendUint64(dst, a.RequestID)
	dst = appendText16(dst, message)
	if flags.Has(FlagBinaryPublishAckCode) {
		dst = binary.BigEndian.AppendUint16(dst, uint16(a.Failure.Code))
		dst = append(dst, byte(a.Failure.Retry))
	}
	if flags.Has(FlagBinaryPublishAckDetail) {
		dst = appendText16(dst, a.Failure.Reason)
		dst = binary.BigEndian.AppendUint64(dst, millis(a.Failure.RetryAfter))
	}
	if flags.Has(FlagBinaryPublishAckOwner) {
		dst = appendText16(dst, a.OwnerNodeID)
		dst = appendText16(dst, a.OwnerAddr)
		dst = binary.BigEndian.AppendUint64(dst, a.OwnerGeneration)
	}
	if flags.Has(FlagBinaryPublishAckOffset) {
		dst = binary.BigEndian.AppendUint64(dst, a.Offset)
	}
	return FinishFrame(dst, start)
}

// appendText16 adds text with its length, cut to what the length can say.
func appendText16(dst []byte, s string) []byte {
	if len(s) > math.MaxUint16 {
		s = s[:math.MaxUint16]
		for len(s) > 0 && !utf8.ValidString(s) {
			s = s[:len(s)-1]
		}
	}
	return appendBytes16(dst, s)
}

// Decode reads the payload of a frame with LayoutAck. It copies what it keeps.
// Errors: *[MalformedError].
func (a *PublishAck) Decode(flags Flags, payload []byte) error {
	*a = PublishAck{}
	if flags.Layout() != LayoutAck {
		return &MalformedError{What: "publish ack", Detail: "flags " + flags.String() + " do not make an ack"}
	}
	c := cursor{b: payload}
	status := c.u8("status")
	a.RequestID = c.u64("request_id")
	message := c.text16("message")
	if c.bad == "" && status > 1 {
		c.bad = "status: is neither 0 nor 1"
	}
	if a.Failed = status == 1; a.Failed {
		a.Failure.Message = string(message)
	}
	if flags.Has(FlagBinaryPublishAckCode) {
		a.decodeCode(&c, flags)
	}
	if flags.Has(FlagBinaryPublishAckOwner) {
		a.HasOwner = true
		a.OwnerNodeID = string(c.text16("node_id"))
		a.OwnerAddr = string(c.text16("addr"))
		a.OwnerGeneration = c.u64("generation")
	}
	if flags.Has(FlagBinaryPublishAckOffset) {
		if a.Failed && c.bad == "" {
			c.bad = "offset: on a failed ack"
		}
		a.HasOffset = true
		a.Offset = c.u64("offset")
	}
	if c.bad != "" {
		return &MalformedError{What: "publish ack", Detail: c.bad, RequestID: a.RequestID, HasRequestID: len(payload) >= 9}
	}
	return nil
}

func (a *PublishAck) decodeCode(c *cursor, flags Flags) {
	if !a.Failed && c.bad == "" {
		c.bad = "code: on an ack that did not fail"
	}
	a.HasCode = true
	code := Code(c.u16("code"))
	if a.Failure.Retry = Retry(c.u8("retry")); a.Failure.Retry == 0 || a.Failure.Retry > RetryFatal {
		a.Failure.Retry = RetryFatal
	}
	a.Failure.Code = code
	if flags.Has(FlagBinaryPublishAckDetail) {
		a.HasDetail = true
		a.Failure.Reason = string(c.text16("reason"))
		a.Failure.RetryAfter = fromMillis(c.u64("retry_after_ms"))
	}
}
