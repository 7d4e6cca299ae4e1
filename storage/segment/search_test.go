package segment_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage/segment"
)

// Behind damage of any size, over the borders of what is read at once, the next whole record
// is found, at its byte and with its offset; nothing is found where there is none.
func TestSearchFindsTheNextWholeRecord(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	noise := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return b
	}
	record := func(o segment.Offset, payload []byte) []byte {
		return segment.AppendRecord(nil, &segment.RecordSpec{Offset: o, Timestamp: 1, Payload: payload, Publisher: []byte("p")})
	}
	for _, gap := range []int{0, 1, 27, 28, 1000, 256<<10 - 28, 256<<10 - 27, 256<<10 - 1, 256 << 10, 700_001} {
		for name, junk := range map[string][]byte{"noise": noise(gap), "zeros": make([]byte, gap)} {
			rec := record(77, noise(3000))
			file := append(append(bytes.Clone(junk), rec...), noise(40)...)
			found, ok, err := segment.Search(context.Background(), bytes.NewReader(file), int64(len(file)), 0, nil)
			require.NoError(t, err)
			require.True(t, ok, "%s of %d bytes", name, gap)
			require.Equal(t, segment.Found{Position: int64(gap), Offset: 77}, found)

			// One whose body was changed, or is cut short, is none.
			file[gap+len(rec)-1] ^= 1
			_, ok, err = segment.Search(context.Background(), bytes.NewReader(file), int64(len(file)), 0, nil)
			require.NoError(t, err)
			require.False(t, ok)
			_, ok, err = segment.Search(context.Background(), bytes.NewReader(file[:gap+len(rec)-1]), int64(gap+len(rec)-1), 0, nil)
			require.NoError(t, err)
			require.False(t, ok)
		}
	}

	// A record in the payload of a damaged one is passed over where its offset does not fit.
	file := append(record(5, record(900, []byte("inner"))), record(6, []byte("outer"))...)
	file[20] ^= 1
	found, ok, err := segment.Search(context.Background(), bytes.NewReader(file), int64(len(file)), 0, func(f segment.Found) bool { return f.Offset < 10 })
	require.NoError(t, err)
	require.True(t, ok)
	require.EqualValues(t, 6, found.Offset)

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, _, err = segment.Search(ctx, bytes.NewReader(file), int64(len(file)), 0, nil)
	require.ErrorIs(t, err, context.Canceled)
}
