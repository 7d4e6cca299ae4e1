package wire

import (
	"encoding/binary"
	"math"
)

const (
	// HeaderBytes is the size of a frame header.
	HeaderBytes = 12
	// Magic begins every frame: FLX1.
	Magic uint32 = 0x464C5831
	// Version is the only version of the framing.
	Version uint16 = 1

	// DefaultMaxFrame is the usual limit of a payload after auth, in bytes.
	DefaultMaxFrame = 16 << 20
	// PreAuthMaxFrame is the usual limit of a payload before auth, in bytes.
	PreAuthMaxFrame = 64 << 10
)

// Header is the fixed part of a frame.
type Header struct {
	Flags Flags
	// Length is the bytes of payload, without the header.
	Length uint32
}

// AppendHeader adds a header to dst.
func AppendHeader(dst []byte, flags Flags, length uint32) []byte {
	dst = binary.BigEndian.AppendUint32(dst, Magic)
	dst = binary.BigEndian.AppendUint16(dst, Version)
	dst = binary.BigEndian.AppendUint16(dst, uint16(flags))
	return binary.BigEndian.AppendUint32(dst, length)
}

// FinishFrame sets the length of the frame that begins at start and reaches the
// end of dst. A frame is written by AppendHeader with any length, its payload,
// and FinishFrame. A payload of more than 4 GiB cannot be framed; it gets the
// largest length, which every receiver refuses.
func FinishFrame(dst []byte, start int) []byte {
	n := min(len(dst)-start-HeaderBytes, math.MaxUint32)
	binary.BigEndian.PutUint32(dst[start+8:], uint32(n))
	return dst
}

// ParseHeader reads a header from the first HeaderBytes of b, which must be
// there, and refuses what no receiver may accept: ErrBadMagic, ErrBadVersion,
// ErrEmptyFrame, *FrameTooLargeError for a payload above max. Flags are not
// judged here; see Flags.Layout.
func ParseHeader(b []byte, max uint32) (Header, error) {
	b = b[:HeaderBytes]
	if binary.BigEndian.Uint32(b) != Magic {
		return Header{}, ErrBadMagic
	}
	if binary.BigEndian.Uint16(b[4:]) != Version {
		return Header{}, ErrBadVersion
	}
	h := Header{Flags: Flags(binary.BigEndian.Uint16(b[6:])), Length: binary.BigEndian.Uint32(b[8:])}
	if h.Length == 0 {
		return h, ErrEmptyFrame
	}
	if h.Length > max {
		return h, &FrameTooLargeError{Length: h.Length, Max: max}
	}
	return h, nil
}
