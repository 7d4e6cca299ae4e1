package segment

import (
	"encoding/binary"
	"hash/crc32"
)

const (
	segmentMagic = 0x464C5347 // "FLSG"
	indexMagic   = 0x464C5349 // "FLSI"
)

// Header opens a segment file. It is written and flushed before any record claims to
// be in the segment.
type Header struct {
	Version    Version
	BaseOffset Offset // offset of the first record
	CreatedAt  Micros // informational
}

// AppendHeader appends the HeaderSize bytes of h.
func AppendHeader(dst []byte, h Header) []byte {
	at := len(dst)
	dst = binary.BigEndian.AppendUint32(dst, segmentMagic)
	dst = binary.BigEndian.AppendUint16(dst, uint16(h.Version))
	dst = binary.BigEndian.AppendUint16(dst, 0)
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.BaseOffset))
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.CreatedAt))
	dst = binary.BigEndian.AppendUint32(dst, crc32.ChecksumIEEE(dst[at:at+24]))
	return binary.BigEndian.AppendUint32(dst, 0)
}

// DecodeHeader reads the first HeaderSize bytes of a segment file. The version is
// looked at before the checksum, so that a file of another version is refused by name.
func DecodeHeader(b []byte) (Header, error) {
	if c := checkHeader(b); c != nil {
		return Header{}, c
	}
	return Header{
		Version:    Version(binary.BigEndian.Uint16(b[4:])),
		BaseOffset: Offset(binary.BigEndian.Uint64(b[8:])),
		CreatedAt:  Micros(binary.BigEndian.Uint64(b[16:])),
	}, nil
}

func checkHeader(b []byte) *Corruption {
	if len(b) < HeaderSize {
		return corrupt(HeaderTruncated, "%d bytes of %d", len(b), HeaderSize)
	}
	if m := binary.BigEndian.Uint32(b); m != segmentMagic {
		return corrupt(HeaderMagic, "not a segment: it begins with %08x, a segment with %08x", m, uint32(segmentMagic))
	}
	if v := Version(binary.BigEndian.Uint16(b[4:])); v < MinVersion || v > MaxVersion {
		return corrupt(HeaderVersion, "segment version %d is not supported; versions %d to %d are", v, MinVersion, MaxVersion)
	}
	if got, want := crc32.ChecksumIEEE(b[:24]), binary.BigEndian.Uint32(b[24:]); got != want {
		return corrupt(HeaderChecksum, "stored %08x, computed %08x", want, got)
	}
	if f := binary.BigEndian.Uint16(b[6:]); f != 0 {
		return corrupt(HeaderFlags, "unknown flags %04x", f)
	}
	return nil
}
