package segment_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/heap"
	"github.com/felixlog/felix/storage/segment"
)

// Reading page by page from anywhere, with any budget, returns what a walk over the
// specs says, one record at least a page.
func TestReadInto(t *testing.T) {
	rng := rand.New(rand.NewPCG(41, 42))
	for _, maxPayload := range []int{0, 100, 3000, 40_000} {
		f := build(rng, 80, maxPayload)
		x := segment.NewIndex(f.base, 4096)
		scanAll(t, f.bytes, segment.ScanStart{Index: x})
		r := bytes.NewReader(f.bytes)
		for range 25 {
			from := rng.IntN(80)
			end := 0
			if rng.IntN(2) == 0 {
				end = from + rng.IntN(80-from) + 1
			}
			budget := rng.IntN(3*maxPayload + 10)
			count := rng.IntN(20)
			e, ok := x.Lookup(f.base + segment.Offset(from))
			require.True(t, ok)
			at := segment.ScanStart{Position: e.Position, Offset: e.Offset}
			limits := segment.ReadLimits{
				From: f.base + segment.Offset(from), EndPosition: int64(len(f.bytes)), MaxBytes: budget, MaxRecords: count,
			}
			last := 80
			if end > 0 {
				limits.End = f.base + segment.Offset(end)
				last = end
			}
			var page segment.ReadBuffer
			next := from
			for next < last {
				page.Reset()
				res, err := segment.ReadInto(t.Context(), r, at, limits, &page)
				require.NoError(t, err)
				n, bytesRead := 0, 0
				for next+n < last && (count == 0 || n < count) {
					body := len(f.specs[next+n].Payload)
					if p := len(f.specs[next+n].Publisher); p > 0 {
						body += p + 1
					}
					if n > 0 && bytesRead+body > budget {
						break
					}
					require.Equal(t, f.specs[next+n].Payload, append([]byte{}, page.Records[n].Payload...))
					require.Equal(t, f.base+segment.Offset(next+n), page.Records[n].Offset)
					bytesRead += len(f.specs[next+n].Payload)
					n++
				}
				require.Len(t, page.Records, n)
				require.Equal(t, bytesRead, page.Bytes)
				require.Equal(t, next+n < last, res.Full)
				next += n
				require.Equal(t, f.base+segment.Offset(next), res.Next)
				require.Equal(t, f.pos[next], res.Position)
				at.Position, at.Offset = res.Position, res.Next
			}
		}
	}
}

// One budget serves a read over two segments, and earlier records stay what they were.
func TestReadIntoOverSegments(t *testing.T) {
	rng := rand.New(rand.NewPCG(43, 44))
	var page segment.ReadBuffer
	for range 20 {
		page.Reset()
		var want []segment.RecordSpec
		for range 4 {
			f := build(rng, 20, 5000)
			want = append(want, f.specs...)
			at := segment.ScanStart{Position: segment.HeaderSize, Offset: f.base}
			_, err := segment.ReadInto(t.Context(), bytes.NewReader(f.bytes), at,
				segment.ReadLimits{EndPosition: int64(len(f.bytes)), MaxBytes: 1 << 20}, &page)
			require.NoError(t, err)
		}
		require.Len(t, page.Records, len(want))
		for i := range want {
			got := specOf(&page.Records[i])
			got.Payload = append([]byte{}, got.Payload...)
			require.Equal(t, want[i], got, "what a record before it left in its place")
		}
	}
}

func TestReadIntoVerifiesEveryRecord(t *testing.T) {
	f := build(rand.New(rand.NewPCG(45, 46)), 10, 60)
	for at := segment.HeaderSize; at < len(f.bytes); at++ {
		b := bytes.Clone(f.bytes)
		b[at] ^= 0x40
		i := f.recordAt(int64(at))
		var page segment.ReadBuffer
		_, err := segment.ReadInto(t.Context(), bytes.NewReader(b), segment.ScanStart{Position: 32, Offset: f.base, Shard: "s", Segment: 4},
			segment.ReadLimits{EndPosition: int64(len(b)), MaxBytes: 1 << 20}, &page)
		c := requireKind(t, err, err.(*segment.Corruption).Kind)
		require.Equal(t, f.pos[i], c.Position)
		require.Equal(t, segment.ID(4), c.Segment)
		require.Len(t, page.Records, i)
	}
}

// In a steady state a page takes no allocation, whatever its shape.
func TestReadIntoKeepsItsMemory(t *testing.T) {
	for _, payload := range []int{0, 16, 128, 5000} {
		file := benchFile(4_000_000/(payload+28), payload)
		r := bytes.NewReader(file)
		ctx := context.Background()
		var page segment.ReadBuffer
		at := segment.ScanStart{Position: segment.HeaderSize}
		read := func() {
			page.Reset()
			res, err := segment.ReadInto(ctx, r, at, segment.ReadLimits{EndPosition: int64(len(file)), MaxBytes: 64 << 10, MaxRecords: 5000}, &page)
			if err != nil || len(page.Records) == 0 {
				t.Error(err)
			}
			at.Position, at.Offset = res.Position, res.Next
		}
		for range 5 {
			read()
		}
		require.Zero(t, heap.Allocs(10, read), "payload of %d", payload)
	}
}

// What one large record took is given back.
func TestReadIntoGivesBackALargeBuffer(t *testing.T) {
	b := segment.AppendHeader(nil, segment.Header{Version: 2})
	b = segment.AppendRecord(b, &segment.RecordSpec{Payload: make([]byte, 8<<20)})
	var page segment.ReadBuffer
	_, err := segment.ReadInto(t.Context(), bytes.NewReader(b), segment.ScanStart{Position: 32}, segment.ReadLimits{EndPosition: int64(len(b)), MaxBytes: 1000}, &page)
	require.NoError(t, err)
	require.Len(t, page.Records, 1)
	page.Reset()
	require.Less(t, page.Retained(), 256<<10)
}
