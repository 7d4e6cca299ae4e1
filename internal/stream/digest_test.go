package stream

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/felixlog/felix/storage/segment"
)

func TestDigestIsTheOneOfTheLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		payloads := rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 0, 200)).Draw(t, "payloads")
		var want uint64
		for _, p := range payloads {
			want = segment.ExtendDigest(want, p)
		}
		require.Equal(t, want, Digest(payloads))
	})
}

func BenchmarkDigest(b *testing.B) {
	payloads := make([][]byte, 64)
	for i := range payloads {
		payloads[i] = make([]byte, 128)
	}
	b.SetBytes(64 * 128)
	for b.Loop() {
		Digest(payloads)
	}
}
