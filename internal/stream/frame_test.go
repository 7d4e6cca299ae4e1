package stream

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/wire"
)

// event is one event as a client has it.
type event struct {
	offset    segment.Offset // 0 without offsets
	at        segment.Micros
	publisher string
	payload   string
}

// readFrames reads frames as a client does, and the offsets that each says it skipped.
func readFrames(t require.TestingT, b []byte, each func(wire.Flags, *wire.EventBatch)) (events []event) {
	for len(b) > 0 {
		h, err := wire.ParseHeader(b, wire.DefaultMaxFrame)
		require.NoError(t, err)
		var e wire.EventBatch
		require.NoError(t, e.Decode(h.Flags, b[wire.HeaderBytes:wire.HeaderBytes+int(h.Length)]))
		b = b[wire.HeaderBytes+int(h.Length):]
		require.LessOrEqual(t, len(e.Payloads), FrameEvents)
		require.NotEmpty(t, e.Payloads)
		if each != nil {
			each(h.Flags, &e)
		}
		for i, p := range e.Payloads {
			ev := event{publisher: string(e.Publisher), payload: string(p)}
			if e.HasOffsets {
				ev.offset = segment.Offset(e.BaseOffset) + segment.Offset(i)
			}
			if e.HasTimestamps {
				ev.at = segment.Micros(e.Timestamps[i])
			}
			events = append(events, ev)
		}
	}
	return events
}

// drawRecords draws a log of records from offset 1 on, generation starts among them.
func drawRecords(t *rapid.T) []segment.Record {
	var records []segment.Record
	for i := range rapid.IntRange(1, 300).Draw(t, "records") {
		r := segment.Record{Offset: segment.Offset(i + 1), Timestamp: segment.Micros(100 + i/3), Payload: fmt.Appendf(nil, "p%d", i)}
		switch rapid.IntRange(0, 15).Draw(t, "kind") {
		case 0:
			r.Kind, r.Payload = segment.KindGenerationStart, make([]byte, 8)
		case 1:
			r.Publisher = []byte("alice")
		case 2:
			r.Kind = segment.KindCommit
			r.Payload = segment.AppendCommit(nil, &segment.Commit{Event: fmt.Appendf(nil, "e%d", i)})
		case 3:
			r.Payload = nil
		}
		records = append(records, r)
	}
	return records
}

func visibleEvents(records []segment.Record, shape Shape) (events []event) {
	for i := range records {
		r := &records[i]
		payload, ok := r.Visible()
		if !ok {
			continue
		}
		e := event{payload: string(payload)}
		if shape&ShapeOffsets != 0 {
			e.offset = r.Offset
		}
		if shape&ShapeTimestamps != 0 {
			e.at = r.Timestamp
		}
		if shape&ShapePublisher != 0 {
			e.publisher = string(r.Publisher)
		}
		events = append(events, e)
	}
	return events
}

func drawShape(t *rapid.T) Shape {
	s := Shape(rapid.IntRange(0, 15).Draw(t, "shape"))
	if s&ShapeOffsets == 0 {
		s &^= ShapeSkipped
	}
	return s
}

// checkSkipped checks a client's count of lost events: offset - previous - 1 - skipped.
func checkSkipped(t require.TestingT, shape Shape, frames []byte) {
	previous := uint64(0)
	readFrames(t, frames, func(f wire.Flags, e *wire.EventBatch) {
		require.Equal(t, e.SkippedBefore > 0, f.Has(wire.FlagEventBatchSkipped), "only where there is something to count")
		if shape&ShapeSkipped != 0 {
			require.Zero(t, e.BaseOffset-previous-1-e.SkippedBefore, "events lost before %d", e.BaseOffset)
			previous = e.BaseOffset + uint64(len(e.Payloads)) - 1
		}
	})
}

func TestFramesOfAPageHoldItsEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := drawShape(t)
		records := drawRecords(t)
		// Read in pages, each from where the one before it ended.
		var frames []byte
		pos := segment.Offset(1)
		for int(pos) <= len(records) {
			page := records[pos-1:]
			page = page[:rapid.IntRange(1, len(page)).Draw(t, "page")]
			var f Framed
			before := len(frames)
			frames, f = AppendFrames(frames, shape, pos, page)
			if f.Events == 0 {
				require.Len(t, frames, before)
				if len(page) == len(records)-int(pos)+1 {
					break
				}
				continue
			}
			pos = f.Next
		}
		require.Equal(t, visibleEvents(records, shape), readFrames(t, frames, nil))
		checkSkipped(t, shape, frames)
	})
}

func TestALargeEventGoesAlone(t *testing.T) {
	big := make([]byte, FrameBytes)
	records := []segment.Record{{Offset: 0, Payload: []byte("a")}, {Offset: 1, Payload: big}, {Offset: 2, Payload: []byte("b")}}
	frames, f := AppendFrames(nil, ShapeOffsets, 0, records)
	require.Equal(t, 3, f.Events)
	var sizes []int
	readFrames(t, frames, func(_ wire.Flags, e *wire.EventBatch) { sizes = append(sizes, len(e.Payloads)) })
	require.Equal(t, []int{1, 1, 1}, sizes)
}

func TestShapeOfAClient(t *testing.T) {
	require.Equal(t, Shape(0), ShapeOf(wire.FlagsOriginal))
	require.Equal(t, Shape(0), ShapeOf(wire.FlagEventBatchSkipped), "skipped needs offsets")
	require.Equal(t, ShapeOffsets|ShapeSkipped|ShapePublisher|ShapeTimestamps, ShapeOf(wire.FlagsKnown))
	for s := range Shape(16) {
		if s&ShapeOffsets != 0 || s&ShapeSkipped == 0 {
			require.Equal(t, wire.LayoutEvents, s.flags().Layout())
			require.Equal(t, s, ShapeOf(s.flags()))
		}
	}
}
