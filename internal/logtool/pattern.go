package logtool

import "encoding/binary"

// pattern fills b so that it can be told from other bytes: a number, then bytes that
// follow from it. Shorter payloads hold the beginning of it.
func pattern(b []byte, n uint64) {
	var head [8]byte
	binary.BigEndian.PutUint64(head[:], n)
	x := n
	for i := copy(b, head[:]); i < len(b); i++ {
		if i%8 == 0 {
			x = mix(x)
		}
		b[i] = byte(x >> (8 * (i % 8)))
	}
}

// mix is one step of a generator whose outputs do not repeat within 2^64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// isPattern says whether b is a payload of size bytes made by pattern. Of one shorter
// than 8 bytes only the size can be checked.
func isPattern(b []byte, size int) bool {
	if len(b) != size {
		return false
	}
	if size < 8 {
		return true
	}
	n := binary.BigEndian.Uint64(b)
	x := n
	for i := 8; i < size; i++ {
		if i%8 == 0 {
			x = mix(x)
		}
		if b[i] != byte(x>>(8*(i%8))) {
			return false
		}
	}
	return true
}
