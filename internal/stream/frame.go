package stream

import (
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/wire"
)

// Bounds of one event frame. A record larger than FrameBytes goes alone.
const (
	FrameEvents = 64
	FrameBytes  = 256 << 10
)

// frame is an event frame under construction at the end of a buffer.
type frame struct {
	head  wire.EventBatchHeader
	at    int // of the frame's first byte
	count int
}

// headSize is the length of everything before the first event.
func headSize(s Shape, publisher []byte) int {
	h := wire.EventBatchHeader{Shape: s.flags(), Publisher: publisher}
	return h.Bytes()
}

// beginFrame appends the head of a frame that has exactly the parts of s. Length and
// count are set by end.
func beginFrame(dst []byte, s Shape, base segment.Offset, skipped uint64, publisher []byte) ([]byte, frame) {
	f := frame{
		head: wire.EventBatchHeader{Shape: s.flags(), BaseOffset: uint64(base), SkippedBefore: skipped, Publisher: publisher},
		at:   len(dst),
	}
	return f.head.Begin(dst), f
}

func (f *frame) add(dst []byte, at segment.Micros, payload []byte) []byte {
	f.count++
	return f.head.AppendEvent(dst, uint64(at), payload)
}

// end sets the length and the count of the frame that reaches to the end of dst.
func (f *frame) end(dst []byte) { f.head.Finish(dst, f.at, uint32(f.count)) }

// Framed is what [AppendFrames] took in.
type Framed struct {
	Next   segment.Offset // one past the last event; the position asked for when there is none
	Events int
}

// AppendFrames appends the event frames of records, which follow one another from the
// position pos on, in the shape a subscriber asked for. A record that no reader sees is
// counted as skipped by the frame after it; trailing ones are not taken in, so that they
// are counted when an event follows.
// A new frame begins where events are not contiguous, where the publisher changes, and
// at the bounds of a frame.
func AppendFrames(dst []byte, shape Shape, pos segment.Offset, records []segment.Record) ([]byte, Framed) {
	out := Framed{Next: pos}
	var f frame
	var publisher []byte
	open := false
	var skipped uint64
	for i := range records {
		r := &records[i]
		payload, visible := r.Visible()
		if !visible {
			if open {
				f.end(dst)
				open = false
			}
			skipped++
			continue
		}
		if open && (f.count == FrameEvents || len(dst)-f.at+len(payload) > FrameBytes ||
			shape&ShapePublisher != 0 && string(publisher) != string(r.Publisher)) {
			f.end(dst)
			open = false
		}
		if !open {
			has := shape & (ShapeOffsets | ShapeTimestamps)
			if skipped > 0 {
				has |= shape & ShapeSkipped
			}
			if publisher = r.Publisher; len(publisher) > 0 {
				has |= shape & ShapePublisher
			}
			dst, f = beginFrame(dst, has, r.Offset, skipped, publisher)
			open, skipped = true, 0
		}
		dst = f.add(dst, r.Timestamp, payload)
		out.Events++
		out.Next = r.Offset + 1
	}
	if open {
		f.end(dst)
	}
	return dst, out
}
