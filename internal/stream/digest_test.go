package stream

import (
	"encoding/binary"
	"hash/crc64"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// chained is the digest as docs/formats has it, word for word.
func chained(digest uint64, payload []byte) uint64 {
	table := crc64.MakeTable(crc64.ECMA)
	r := crc64.Checksum(append(binary.BigEndian.AppendUint64(nil, uint64(len(payload))), payload...), table)
	return crc64.Checksum(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, digest), r), table)
}

func TestDigestIsTheOneOfTheLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		payloads := rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 0, 200)).Draw(t, "payloads")
		var want, tables uint64
		for _, p := range payloads {
			want = chained(want, p)
			tables = extendByTables(tables, p)
		}
		require.Equal(t, want, Digest(payloads))
		require.Equal(t, want, tables)
	})
}

// Every number of blocks up to several rounds of each loop, with every rest.
func TestDigestOfEverySize(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	memory := make([]byte, 700)
	for i := range memory {
		memory[i] = byte(random.Uint32())
	}
	for size := range 640 {
		p := memory[size%16:][:size]
		d := random.Uint64()
		require.Equal(t, chained(d, p), extendDigest(d, p), "%d bytes", size)
	}
}

func BenchmarkDigest(b *testing.B) {
	for _, size := range []int{16, 128, 1024} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			payloads := make([][]byte, 64)
			for i := range payloads {
				payloads[i] = make([]byte, size)
			}
			b.SetBytes(int64(64 * size))
			for b.Loop() {
				Digest(payloads)
			}
		})
	}
}
