package stream

import (
	"encoding/binary"

	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/wire"
)

// Bounds of one event frame. A record larger than FrameBytes goes alone.
const (
	FrameEvents = 64
	FrameBytes  = 256 << 10
)

// frameStart is a frame under construction at the end of a buffer.
type frameStart struct {
	at      int // of the frame header
	countAt int
	count   int
}

// headSize is the length of everything before the first event.
func headSize(s Shape, publisher int) int {
	n := wire.HeaderBytes + 4
	if s&ShapeOffsets != 0 {
		n += 8
	}
	if s&ShapeSkipped != 0 {
		n += 8
	}
	if s&ShapePublisher != 0 {
		n += 1 + publisher
	}
	return n
}

// beginFrame appends the head of a frame that has exactly the parts of s. Length and
// count are set by end.
func beginFrame(dst []byte, s Shape, base segment.Offset, skipped uint64, publisher []byte) ([]byte, frameStart) {
	f := frameStart{at: len(dst)}
	dst = wire.AppendHeader(dst, s.flags(), 0)
	if s&ShapeOffsets != 0 {
		dst = binary.BigEndian.AppendUint64(dst, uint64(base))
	}
	if s&ShapeSkipped != 0 {
		dst = binary.BigEndian.AppendUint64(dst, skipped)
	}
	if s&ShapePublisher != 0 {
		dst = append(dst, byte(len(publisher)))
		dst = append(dst, publisher...)
	}
	f.countAt = len(dst)
	return append(dst, 0, 0, 0, 0), f
}

// end sets the length and the count of the frame that reaches to the end of dst.
func (f *frameStart) end(dst []byte) {
	wire.FinishFrame(dst, f.at)
	binary.BigEndian.PutUint32(dst[f.countAt:], uint32(f.count))
}

func appendEvent(dst []byte, s Shape, at segment.Micros, payload []byte) []byte {
	if s&ShapeTimestamps != 0 {
		dst = binary.BigEndian.AppendUint64(dst, uint64(at))
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(payload)))
	return append(dst, payload...)
}

// Framed is what [AppendFrames] took in.
type Framed struct {
	Next   segment.Offset // one past the last record taken in, visible or not
	Events int
}

// AppendFrames appends the event frames of records, which follow one another from the
// position pos on, in the shape a subscriber asked for. A record that no reader sees is
// counted as skipped by the frame after it; trailing ones are taken in without a frame.
// A new frame begins where events are not contiguous, where the publisher changes, and
// at the bounds of a frame.
func AppendFrames(dst []byte, shape Shape, pos segment.Offset, records []segment.Record) ([]byte, Framed) {
	out := Framed{Next: pos}
	var f frameStart
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
			out.Next = r.Offset + 1
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
		dst = appendEvent(dst, shape, r.Timestamp, payload)
		f.count++
		out.Events++
		out.Next = r.Offset + 1
	}
	if open {
		f.end(dst)
	}
	return dst, out
}
