package wire

import (
	"encoding/binary"
	"unicode/utf8"
)

// cursor reads a binary payload. After the first part that does not fit, bad
// names it and everything further reads as zero. Bytes after the last part are
// passed over, as other implementations do.
type cursor struct {
	b   []byte
	bad string
}

func (c *cursor) take(n int, part string) []byte {
	if c.bad != "" {
		return nil
	}
	if n > len(c.b) {
		c.bad = part + ": length reaches past the end of the payload"
		return nil
	}
	v := c.b[:n:n]
	c.b = c.b[n:]
	return v
}

func (c *cursor) u8(part string) uint8 {
	if v := c.take(1, part); v != nil {
		return v[0]
	}
	return 0
}

func (c *cursor) u16(part string) uint16 {
	if v := c.take(2, part); v != nil {
		return binary.BigEndian.Uint16(v)
	}
	return 0
}

func (c *cursor) u32(part string) uint32 {
	if v := c.take(4, part); v != nil {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

func (c *cursor) u64(part string) uint64 {
	if v := c.take(8, part); v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

// bytes16 reads a length of 16 bits and that many bytes.
func (c *cursor) bytes16(part string) []byte {
	return c.take(int(c.u16(part)), part)
}

// text16 is bytes16 that must be UTF-8.
func (c *cursor) text16(part string) []byte {
	v := c.bytes16(part)
	if c.bad == "" && !utf8.Valid(v) {
		c.bad = part + ": text is not UTF-8"
	}
	return v
}

// count reads a count of elements of at least least bytes each and refuses one
// that the rest of the payload cannot hold.
func (c *cursor) count(least int, part string) int {
	n := c.u32(part)
	if c.bad == "" && uint64(n) > uint64(len(c.b)/least) {
		c.bad = part + ": more elements than the payload can hold"
		return 0
	}
	return int(n)
}

// blobs reads n blobs into dst, as views.
func (c *cursor) blobs(dst [][]byte, n int, part string) [][]byte {
	b := c.b
	for range n {
		if len(b) < 4 {
			c.bad = part + ": length reaches past the end of the payload"
			return dst
		}
		size := binary.BigEndian.Uint32(b)
		b = b[4:]
		if uint64(size) > uint64(len(b)) {
			c.bad = part + ": length reaches past the end of the payload"
			return dst
		}
		dst = append(dst, b[:size:size])
		b = b[size:]
	}
	c.b = b
	return dst
}

// fit returns s empty with room for n elements. Room that a far larger batch
// left behind is given up.
func fit[T any](s []T, n int) []T {
	const kept = 1 << 14
	if cap(s) < n || (cap(s) > kept && n < cap(s)/4) {
		return make([]T, 0, n)
	}
	return s[:0]
}

func appendBytes16[T string | []byte](dst []byte, v T) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(v)))
	return append(dst, v...)
}
