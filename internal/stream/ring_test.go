package stream

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/felixlog/felix/storage/segment"
)

// put appends records as one group.
func put(r *Ring, records []segment.Record, apart bool) bool {
	size := 0
	for i := range records {
		size += len(records[i].Payload)
	}
	a, ok := r.Append(records[0].Offset, size, apart)
	if !ok {
		return false
	}
	defer a.Close()
	for i := range records {
		if payload, visible := records[i].Visible(); visible {
			a.Add(records[i].Offset, records[i].Timestamp, records[i].Publisher, payload)
		} else {
			a.Skip(records[i].Offset)
		}
	}
	return true
}

func TestTheRingHoldsWhatWasAppended(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := drawShape(t)
		records := drawRecords(t)
		limit := rapid.SampledFrom([]int{1, 2 << 10, 1 << 20}).Draw(t, "limit")
		apart := rapid.Bool().Draw(t, "apart")
		ring := NewRing(limit, nil)
		ring.Start()
		// One reader follows at its own pace; what it misses in the ring it takes from
		// the log, as a subscription does.
		pos := segment.Offset(1)
		var frames []byte
		written := 0
		read := func(end segment.Offset) {
			var run Run
			if !ring.Collect(pos, end, rapid.SampledFrom([]int{1, 1 << 20}).Draw(t, "bytes"), &run) {
				page := records[pos-1 : end-1]
				page = page[:min(len(page), 5)]
				var f Framed
				frames, f = AppendFrames(frames, shape, pos, page)
				pos = f.Next
				if f.Events == 0 && pos+segment.Offset(len(page)) < end {
					pos += segment.Offset(len(page))
				}
				return
			}
			for i, c := range run.Chunks {
				if i == 0 && pos > c.Base() {
					frames = c.FrameFrom(frames, shape, pos)
				} else {
					frames = append(frames, c.Frame(shape)...)
				}
			}
			require.GreaterOrEqual(t, run.Next, pos)
			require.LessOrEqual(t, run.Next, end)
			pos = run.Next
		}
		for written < len(records) {
			n := rapid.IntRange(1, len(records)-written).Draw(t, "group")
			require.True(t, put(ring, records[written:written+n], apart))
			written += n
			for range rapid.IntRange(0, 3).Draw(t, "reads") {
				if end := segment.Offset(written + 1); pos < end {
					read(end)
				}
			}
			if rapid.IntRange(0, 9).Draw(t, "drop") == 0 {
				ring.DropBelow(segment.Offset(written + 1))
			}
		}
		end := segment.Offset(len(records) + 1)
		for range 10 * len(records) {
			if pos < end {
				read(end)
			}
		}
		require.Equal(t, visibleEvents(records, shape), readFrames(t, frames, nil))
		if shape&ShapeSkipped == 0 || limit > 1<<10 {
			return
		}
		checkSkipped(t, shape, frames)
	})
}

func TestAJoinInTheMiddleOfAChunkGetsTheRest(t *testing.T) {
	ring := NewRing(1<<20, nil)
	ring.Start()
	var records []segment.Record
	for i := range 10 {
		records = append(records, segment.Record{Offset: segment.Offset(i), Timestamp: segment.Micros(i), Payload: fmt.Appendf(nil, "%d", i), Publisher: []byte("p")})
	}
	put(ring, records, false)
	for shape := range Shape(16) {
		if shape&ShapeSkipped != 0 && shape&ShapeOffsets == 0 {
			continue
		}
		var run Run
		require.True(t, ring.Collect(4, 10, 1<<20, &run))
		require.Len(t, run.Chunks, 1)
		require.Equal(t, visibleEvents(records[4:], shape), readFrames(t, run.Chunks[0].FrameFrom(nil, shape, 4), nil))
	}
}

func TestNothingPastTheReadableEndIsGiven(t *testing.T) {
	ring := NewRing(1<<20, nil)
	ring.Start()
	put(ring, []segment.Record{{Offset: 0, Payload: []byte("a")}}, true)
	put(ring, []segment.Record{{Offset: 1, Payload: []byte("b")}}, true)
	var run Run
	require.True(t, ring.Collect(0, 1, 1<<20, &run))
	require.Equal(t, segment.Offset(1), run.Next)
	require.True(t, ring.Collect(1, 1, 1<<20, &run))
	require.Empty(t, run.Chunks)
	require.True(t, ring.Collect(1, 2, 1<<20, &run))
	require.Equal(t, segment.Offset(2), run.Next)
}

func TestAStoppedRingKeepsNothing(t *testing.T) {
	budget := NewRingBudget(1 << 20)
	ring := NewRing(1<<20, budget)
	require.False(t, put(ring, []segment.Record{{Offset: 0, Payload: []byte("a")}}, false))
	ring.Start()
	require.True(t, put(ring, []segment.Record{{Offset: 1, Payload: []byte("a")}}, false))
	require.Positive(t, budget.Used())
	require.Equal(t, int64(ring.Bytes()), budget.Used())
	ring.Stop()
	require.Zero(t, budget.Used())
	require.Zero(t, ring.Bytes())
}

func TestTheRingKeepsToItsBounds(t *testing.T) {
	for name, ring := range map[string]*Ring{
		"own":    NewRing(64<<10, nil),
		"shared": NewRing(1<<30, NewRingBudget(64<<10)),
	} {
		t.Run(name, func(t *testing.T) {
			ring.Start()
			payload := make([]byte, 1<<10)
			for i := range 1000 {
				put(ring, []segment.Record{{Offset: segment.Offset(i), Payload: payload}}, false)
				require.LessOrEqual(t, ring.Bytes(), 64<<10+FrameEvents*(2<<10), "one chunk over the bound at most")
			}
			var run Run
			require.False(t, ring.Collect(0, 1000, 1<<20, &run))
			require.True(t, ring.Collect(999, 1000, 1<<20, &run))
		})
	}
}

// Sixty-four subscribers of one shape cost one encoding, not sixty-four.
func TestGuardFramesAreEncodedOncePerShape(t *testing.T) {
	ring := NewRing(1<<20, nil)
	ring.Start()
	const groups = 50
	next := segment.Offset(0)
	shapes := []Shape{ShapeOffsets, ShapeOffsets | ShapeTimestamps}
	for range groups {
		put(ring, []segment.Record{{Offset: next, Payload: []byte("x")}}, true)
		next++
	}
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			var run Run
			ring.Collect(0, next, 1<<20, &run)
			for _, c := range run.Chunks {
				c.Frame(shapes[i%2])
			}
		})
	}
	wg.Wait()
	require.Equal(t, int64(len(shapes)*groups), ring.Builds())
}

// Groups that come while nobody reads share frames; a reader that is there gets each at
// once.
func TestSmallGroupsShareAFrameUntilSomebodyReads(t *testing.T) {
	ring := NewRing(1<<20, nil)
	ring.Start()
	var run Run
	for i := range 10 {
		put(ring, []segment.Record{{Offset: segment.Offset(i), Payload: []byte("x")}}, false)
	}
	require.True(t, ring.Collect(0, 10, 1<<20, &run))
	require.Len(t, run.Chunks, 1)
	require.Equal(t, 10, run.Chunks[0].Events())
	put(ring, []segment.Record{{Offset: 10, Payload: []byte("x")}}, false)
	require.True(t, ring.Collect(10, 11, 1<<20, &run))
	require.Equal(t, 1, run.Chunks[0].Events())
}

func BenchmarkRingAppendAndCollect(b *testing.B) {
	ring := NewRing(4<<20, nil)
	ring.Start()
	payload := make([]byte, 128)
	next := segment.Offset(0)
	var run Run
	b.ReportAllocs()
	for b.Loop() {
		a, _ := ring.Append(next, 64*(4+len(payload)), false)
		for range 64 {
			a.Add(next, 1, nil, payload)
			next++
		}
		a.Close()
		ring.Collect(next-64, next, 1<<20, &run)
		for _, c := range run.Chunks {
			c.Frame(ShapeOffsets)
		}
	}
}
