package stream

import (
	"encoding/binary"
	"hash/crc64"
)

// Digest is the fingerprint of a batch's payloads (docs/formats, producers): what
// segment.ExtendDigest chains, at little more than half its cost for small records, because every
// idempotent publish pays for it.
func Digest(payloads [][]byte) uint64 {
	var d uint64
	var head [8]byte
	for _, p := range payloads {
		binary.BigEndian.PutUint64(head[:], uint64(len(p)))
		r := sliced(sliced(0, head[:]), p)
		var pair [16]byte
		binary.BigEndian.PutUint64(pair[:8], d)
		binary.BigEndian.PutUint64(pair[8:], r)
		d = sliced(0, pair[:])
	}
	return d
}

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

// sliced is crc64.Update, which takes eight bytes at a time, and only from 64 on.
func sliced(crc uint64, p []byte) uint64 {
	t := crcTables
	crc = ^crc
	for len(p) >= 16 {
		a, b := crc^binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
		crc = t[15][a&0xff] ^ t[14][a>>8&0xff] ^ t[13][a>>16&0xff] ^ t[12][a>>24&0xff] ^
			t[11][a>>32&0xff] ^ t[10][a>>40&0xff] ^ t[9][a>>48&0xff] ^ t[8][a>>56] ^
			t[7][b&0xff] ^ t[6][b>>8&0xff] ^ t[5][b>>16&0xff] ^ t[4][b>>24&0xff] ^
			t[3][b>>32&0xff] ^ t[2][b>>40&0xff] ^ t[1][b>>48&0xff] ^ t[0][b>>56]
		p = p[16:]
	}
	if len(p) >= 8 {
		a := crc ^ binary.LittleEndian.Uint64(p)
		crc = t[7][a&0xff] ^ t[6][a>>8&0xff] ^ t[5][a>>16&0xff] ^ t[4][a>>24&0xff] ^
			t[3][a>>32&0xff] ^ t[2][a>>40&0xff] ^ t[1][a>>48&0xff] ^ t[0][a>>56]
		p = p[8:]
	}
	for _, b := range p {
		crc = t[0][byte(crc)^b] ^ crc>>8
	}
	return ^crc
}
