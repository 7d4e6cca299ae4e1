package stream

import (
	"github.com/felixlog/felix/wire"
)

// Shape says which optional parts a subscriber can decode in an event frame, and which
// of them a frame has.
type Shape uint8

// The optional parts of an event frame.
const (
	ShapeOffsets    Shape = 1 << iota // the offset of the first event
	ShapeSkipped                      // how many offsets before it hold no event; only with ShapeOffsets
	ShapePublisher                    // the publisher of the events
	ShapeTimestamps                   // the time of each event
)

// ShapeOf is the shape a client asked for by the flags of its auth.
func ShapeOf(client wire.Flags) Shape {
	var s Shape
	if client.Has(wire.FlagEventBatchOffsets) {
		s |= ShapeOffsets
		if client.Has(wire.FlagEventBatchSkipped) {
			s |= ShapeSkipped
		}
	}
	if client.Has(wire.FlagEventBatchPublisher) {
		s |= ShapePublisher
	}
	if client.Has(wire.FlagEventBatchTimestamps) {
		s |= ShapeTimestamps
	}
	return s
}

// flags are the header flags of a frame that has exactly these parts.
func (s Shape) flags() wire.Flags {
	f := wire.FlagBinaryEventBatchShared
	if s&ShapeOffsets != 0 {
		f |= wire.FlagEventBatchOffsets
	}
	if s&ShapeSkipped != 0 {
		f |= wire.FlagEventBatchSkipped
	}
	if s&ShapePublisher != 0 {
		f |= wire.FlagEventBatchPublisher
	}
	if s&ShapeTimestamps != 0 {
		f |= wire.FlagEventBatchTimestamps
	}
	return f
}
