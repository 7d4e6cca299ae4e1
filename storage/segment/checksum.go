package segment

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
)

// slicing holds CRC-32 IEEE lookup tables: slicing[k][b] is the contribution of byte b
// followed by k more bytes. Sixteen of them let the fixed 20 bytes of a record header be
// summed with independent loads, where the library's general loop pays for its dispatch.
var slicing = makeSlicing()

func makeSlicing() *[16][256]uint32 {
	var t [16][256]uint32
	for i := range t[0] {
		t[0][i] = crc32.IEEETable[i]
	}
	for k := 1; k < len(t); k++ {
		for i := range t[k] {
			prev := t[k-1][i]
			t[k][i] = t[0][byte(prev)] ^ prev>>8
		}
	}
	return &t
}

// headerSums returns the checksum of a record header's first 20 bytes, and the checksum
// of those followed by the first one in its stored (big-endian) form: the state from
// which the record's checksum goes on over tag and payload. So each byte of a record is
// summed once, and the four bytes between cost four loads.
func headerSums(h *[20]byte) (header, chained uint32) {
	t := slicing
	a := ^binary.LittleEndian.Uint32(h[0:4])
	b := binary.LittleEndian.Uint32(h[4:8])
	c := binary.LittleEndian.Uint32(h[8:12])
	d := binary.LittleEndian.Uint32(h[12:16])
	s := t[15][byte(a)] ^ t[14][byte(a>>8)] ^ t[13][byte(a>>16)] ^ t[12][a>>24] ^
		t[11][byte(b)] ^ t[10][byte(b>>8)] ^ t[9][byte(b>>16)] ^ t[8][b>>24] ^
		t[7][byte(c)] ^ t[6][byte(c>>8)] ^ t[5][byte(c>>16)] ^ t[4][c>>24] ^
		t[3][byte(d)] ^ t[2][byte(d>>8)] ^ t[1][byte(d>>16)] ^ t[0][d>>24]
	s ^= binary.LittleEndian.Uint32(h[16:20])
	s = t[3][byte(s)] ^ t[2][byte(s>>8)] ^ t[1][byte(s>>16)] ^ t[0][s>>24]
	header = ^s
	s ^= bits.ReverseBytes32(header)
	s = t[3][byte(s)] ^ t[2][byte(s>>8)] ^ t[1][byte(s>>16)] ^ t[0][s>>24]
	return header, ^s
}

// shortBody is the length below which bodySum's own loop beats the library's, which takes
// to carry-less multiplication there.
const shortBody = 64

// bodySum continues a checksum over b.
func bodySum(sum uint32, b []byte) uint32 {
	if len(b) >= shortBody {
		return crc32.Update(sum, crc32.IEEETable, b)
	}
	t := slicing
	s := ^sum
	for len(b) >= 8 {
		x := s ^ binary.LittleEndian.Uint32(b)
		y := binary.LittleEndian.Uint32(b[4:])
		s = t[7][byte(x)] ^ t[6][byte(x>>8)] ^ t[5][byte(x>>16)] ^ t[4][x>>24] ^
			t[3][byte(y)] ^ t[2][byte(y>>8)] ^ t[1][byte(y>>16)] ^ t[0][y>>24]
		b = b[8:]
	}
	for _, c := range b {
		s = t[0][byte(s)^c] ^ s>>8
	}
	return ^s
}
