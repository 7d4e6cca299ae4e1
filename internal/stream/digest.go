package stream

import (
	"encoding/binary"
	"hash/crc64"
	"math/bits"
	"unsafe"
)

// Digest is the fingerprint of a batch's payloads (docs/formats, producers), at a fraction of
// what its definition costs, because every idempotent publish pays for it.
func Digest(payloads [][]byte) uint64 {
	var d uint64
	for _, p := range payloads {
		d = extendDigest(d, p)
	}
	return d
}

// extendDigest chains one more payload to a batch's digest, which begins as 0.
func extendDigest(d uint64, payload []byte) uint64 {
	if !canFold {
		return extendByTables(d, payload)
	}
	blocks := len(payload) / 16
	// Zeros in front of the size change nothing, as nothing is in front of them.
	r := foldBlocks(0, sizeBytes(payload), unsafe.SliceData(payload), blocks, &folding)
	if rest := payload[blocks*16:]; len(rest) > 0 {
		r = update(r, rest)
	}
	return ^foldBlocks(^bits.ReverseBytes64(d), bits.ReverseBytes64(^r), nil, 0, &folding)
}

func extendByTables(d uint64, payload []byte) uint64 {
	r := update(eight(sizeBytes(payload)), payload)
	return ^sixteen(^bits.ReverseBytes64(d), bits.ReverseBytes64(^r))
}

// sizeBytes is the size of a payload as it is summed, behind the checksum of nothing.
func sizeBytes(payload []byte) uint64 { return ^bits.ReverseBytes64(uint64(len(payload))) }

// crcTables are the tables of CRC-64/XZ for sixteen bytes at a time: crcTables[k][b] is what
// the byte b does to the checksum with k bytes after it.
var crcTables = func() *[16][256]uint64 {
	t := new([16][256]uint64)
	t[0] = *crc64.MakeTable(crc64.ECMA)
	for b := range 256 {
		for k := 1; k < len(t); k++ {
			v := t[k-1][b]
			t[k][b] = t[0][byte(v)] ^ v>>8
		}
	}
	return t
}()

// update takes a checksum on by p. It is not inverted before and after, as crc64.Update
// does, so that checksums may be taken on piece by piece at no cost.
func update(crc uint64, p []byte) uint64 {
	for len(p) >= 16 {
		crc = sixteen(crc^binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:]))
		p = p[16:]
	}
	if len(p) >= 8 {
		crc = eight(crc ^ binary.LittleEndian.Uint64(p))
		p = p[8:]
	}
	for _, b := range p {
		crc = crcTables[0][byte(crc)^b] ^ crc>>8
	}
	return crc
}

// eight is the checksum of eight bytes, to which that of what was before them has been added.
func eight(a uint64) uint64 {
	t := crcTables
	return t[7][a&0xff] ^ t[6][a>>8&0xff] ^ t[5][a>>16&0xff] ^ t[4][a>>24&0xff] ^
		t[3][a>>32&0xff] ^ t[2][a>>40&0xff] ^ t[1][a>>48&0xff] ^ t[0][a>>56]
}

// sixteen is eight for sixteen bytes, the first eight in a.
func sixteen(a, b uint64) uint64 {
	t := crcTables
	return t[15][a&0xff] ^ t[14][a>>8&0xff] ^ t[13][a>>16&0xff] ^ t[12][a>>24&0xff] ^
		t[11][a>>32&0xff] ^ t[10][a>>40&0xff] ^ t[9][a>>48&0xff] ^ t[8][a>>56] ^
		t[7][b&0xff] ^ t[6][b>>8&0xff] ^ t[5][b>>16&0xff] ^ t[4][b>>24&0xff] ^
		t[3][b>>32&0xff] ^ t[2][b>>40&0xff] ^ t[1][b>>48&0xff] ^ t[0][b>>56]
}

// foldings are the factors of foldBlocks. All have their bits reversed, as the checksum
// has; a product of two such comes out divided by x, which they make up for.
type foldings struct {
	// by16 and by64 are what going on by so many bytes multiplies the first and the second
	// half of sixteen bytes by.
	by16, by64 [2]uint64
	// reciprocal is x^128 by the polynomial, without its lowest bit; polynomial is the
	// polynomial, without its lowest bit, which is 1, and its highest.
	reciprocal, polynomial uint64
}

var folding = foldings{
	by16:       [2]uint64{power(16*8 + 64 - 1), power(16*8 - 1)},
	by64:       [2]uint64{power(64*8 + 64 - 1), power(64*8 - 1)},
	reciprocal: reciprocal(),
	polynomial: crc64.ECMA << 1 & (1<<64 - 1),
}

// power is x to the n, modulo the polynomial.
func power(n int) uint64 {
	v := uint64(1) << 63
	for range n {
		v = v>>1 ^ crc64.ECMA&-(v&1)
	}
	return v
}

func reciprocal() uint64 {
	q, rest := uint64(1), uint64(crc64.ECMA)
	for k := range 63 {
		q |= (rest & 1) << (k + 1)
		rest = rest>>1 ^ crc64.ECMA&-(rest&1)
	}
	return q
}
