package projection

import (
	"encoding/binary"
	"fmt"
)

// MaxKeyBytes bounds the length of a key in the index.
const MaxKeyBytes = 16 << 10

// keyRef names a key in a slab: chunk number (24 bits), position (24), length (16).
type keyRef uint64

func (r keyRef) chunk() int { return int(r >> 40) }
func (r keyRef) pos() int   { return int(r>>16) & (1<<24 - 1) }
func (r keyRef) len() int   { return int(r & 0xffff) }

func makeKeyRef(chunk, pos, n int) keyRef {
	return keyRef(uint64(chunk)<<40 | uint64(pos)<<16 | uint64(n))
}

// Chunks start small, so that an idle index costs little, and grow to a size at
// which their slice headers no longer count.
const (
	firstChunk = 512
	fullChunk  = 256 << 10
	noRef      = ^uint64(0)
)

// keySlab stores keys in chunks of bytes, rounded up to size classes; a freed
// place is reused by the next key of its class.
type keySlab struct {
	chunks [][]byte
	tail   int // free from here in the last chunk
	free   [classes]uint64
	bytes  int64 // reserved by chunks
}

func newKeySlab() keySlab {
	var s keySlab
	for i := range s.free {
		s.free[i] = noRef
	}
	return s
}

// classes: every 8 bytes up to 128, then four steps to each doubling up to MaxKeyBytes.
const classes = 16 + 4*7

// classOf returns the class that holds n bytes, and that class's size.
func classOf(n int) (class, size int) {
	if n <= 128 {
		c := (n + 7) / 8
		if c == 0 {
			c = 1
		}
		return c - 1, c * 8
	}
	base, class := 128, 16
	for n > base*2 {
		base *= 2
		class += 4
	}
	step := base / 4
	k := (n - base + step - 1) / step // 1..4
	return class + k - 1, base + k*step
}

// add stores key and returns its place.
func (s *keySlab) add(key []byte) (keyRef, error) {
	if len(key) > MaxKeyBytes {
		return 0, fmt.Errorf("projection: key of %d bytes, at most %d", len(key), MaxKeyBytes)
	}
	class, size := classOf(len(key))
	if f := s.free[class]; f != noRef {
		r := keyRef(f)
		place := s.chunks[r.chunk()][r.pos():]
		s.free[class] = binary.LittleEndian.Uint64(place)
		copy(place, key)
		return makeKeyRef(r.chunk(), r.pos(), len(key)), nil
	}
	if len(s.chunks) == 0 || s.tail+size > len(s.chunks[len(s.chunks)-1]) {
		next := firstChunk
		if n := len(s.chunks); n > 0 {
			next = min(len(s.chunks[n-1])*4, fullChunk)
		}
		next = max(next, size)
		if len(s.chunks) >= 1<<24 {
			return 0, fmt.Errorf("projection: the key slab is full at %d bytes", s.bytes)
		}
		s.chunks = append(s.chunks, make([]byte, next))
		s.bytes += int64(next)
		s.tail = 0
	}
	c := len(s.chunks) - 1
	r := makeKeyRef(c, s.tail, len(key))
	copy(s.chunks[c][s.tail:], key)
	s.tail += size
	return r, nil
}

// get returns the bytes of r; they are valid until r is removed.
func (s *keySlab) get(r keyRef) []byte {
	p := r.pos()
	return s.chunks[r.chunk()][p : p+r.len() : p+r.len()]
}

// remove gives r's place back to its class.
func (s *keySlab) remove(r keyRef) {
	class, _ := classOf(r.len())
	binary.LittleEndian.PutUint64(s.chunks[r.chunk()][r.pos():], s.free[class])
	s.free[class] = uint64(makeKeyRef(r.chunk(), r.pos(), 0))
}
