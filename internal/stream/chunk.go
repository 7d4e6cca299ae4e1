package stream

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/felixlog/felix/storage/segment"
)

// Chunk is one event frame to be: up to [FrameEvents] contiguous records of one
// publisher, copied once, with the frames made of them. While it is open, its owner
// adds records under a lock of its own; sealed, it never changes, and any goroutine may
// ask for frames.
//
// It covers the positions [from, next): those below base hold no event.
type Chunk struct {
	from, base, next segment.Offset
	count            int
	publisher        []byte
	has              Shape // parts it can fill
	native           Shape // the shape in which buf is a frame
	sealed           bool

	// buf is the head of the native frame, its values set when it is sealed, and then
	// the events without times.
	buf    []byte
	stamps []stamp
	inline [1]stamp

	mu     sync.Mutex // serialises building
	built  atomic.Pointer[builtFrame]
	builds *atomic.Int64 // frames encoded; may be nil
}

// stamp is the time of a run of events.
type stamp struct {
	at    segment.Micros
	count int
}

// builtFrame is a list of the frames in shapes other than the native one.
type builtFrame struct {
	shape Shape
	bytes []byte
	next  *builtFrame
}

const eventHead = 4 // a payload's length

// newChunk begins a chunk with room for size bytes of events. offsets says whether the
// records have offsets and times that clients may see, as those of a log have.
func newChunk(offsets bool, from, base segment.Offset, publisher []byte, size int) *Chunk {
	c := new(Chunk)
	c.init(offsets, from, base, publisher, size)
	return c
}

func (c *Chunk) init(offsets bool, from, base segment.Offset, publisher []byte, size int) {
	c.from, c.base, c.next = from, base, base
	if offsets {
		c.has = ShapeOffsets | ShapeTimestamps
		c.native = ShapeOffsets
		if base > from {
			c.has |= ShapeSkipped
		}
	}
	if len(publisher) > 0 {
		c.has |= ShapePublisher
		c.publisher = append([]byte(nil), publisher...)
	}
	head := headSize(c.native, nil)
	c.buf = make([]byte, head, head+size)
	c.stamps = c.inline[:0]
}

// room says whether a record of the publisher and payload length may be added.
func (c *Chunk) room(publisher []byte, payload int) bool {
	return !c.sealed && c.count < FrameEvents && len(c.buf)+eventHead+payload <= FrameBytes &&
		string(c.publisher) == string(publisher)
}

func (c *Chunk) add(at segment.Micros, payload []byte) {
	c.buf = binary.BigEndian.AppendUint32(c.buf, uint32(len(payload)))
	c.buf = append(c.buf, payload...)
	if n := len(c.stamps); n > 0 && c.stamps[n-1].at == at {
		c.stamps[n-1].count++
	} else {
		c.stamps = append(c.stamps, stamp{at: at, count: 1})
	}
	c.count++
	c.next++
}

// seal ends the chunk: from now on it does not change.
func (c *Chunk) seal() {
	if c.sealed {
		return
	}
	c.sealed = true
	// The room was reserved: the head is written in place, before the events.
	_, f := beginFrame(c.buf[:0], c.native, c.base, 0, nil)
	f.count = c.count
	f.end(c.buf)
	if c.builds != nil {
		c.builds.Add(1)
	}
}

// Events is the number of events in it.
func (c *Chunk) Events() int { return c.count }

// Base is the offset of the first event.
func (c *Chunk) Base() segment.Offset { return c.base }

// Next is one past the last position it covers.
func (c *Chunk) Next() segment.Offset { return c.next }

// Frame is the frame of all its events with the parts of shape that apply. The bytes
// are shared: nobody may change them.
func (c *Chunk) Frame(shape Shape) []byte {
	shape &= c.has
	if shape == c.native {
		return c.buf
	}
	if b := c.find(shape); b != nil {
		return b
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.find(shape); b != nil {
		return b
	}
	b := c.encode(nil, shape, c.base)
	c.built.Store(&builtFrame{shape: shape, bytes: b, next: c.built.Load()})
	if c.builds != nil {
		c.builds.Add(1)
	}
	return b
}

func (c *Chunk) find(shape Shape) []byte {
	for f := c.built.Load(); f != nil; f = f.next {
		if f.shape == shape {
			return f.bytes
		}
	}
	return nil
}

// FrameFrom appends to dst a frame of its events from the offset first on, which is
// inside the chunk. It is for a subscriber that joins in the middle.
func (c *Chunk) FrameFrom(dst []byte, shape Shape, first segment.Offset) []byte {
	return c.encode(dst, shape&c.has&^ShapeSkipped, first)
}

func (c *Chunk) encode(dst []byte, shape Shape, first segment.Offset) []byte {
	body := c.buf[headSize(c.native, nil):]
	for range first - c.base {
		body = body[eventHead+binary.BigEndian.Uint32(body):]
	}
	if dst == nil {
		n := headSize(shape, c.publisher) + len(body)
		if shape&ShapeTimestamps != 0 {
			n += 8 * c.count
		}
		dst = make([]byte, 0, n)
	}
	dst, f := beginFrame(dst, shape, first, uint64(c.base-c.from), c.publisher)
	f.count = c.count - int(first-c.base)
	if shape&ShapeTimestamps == 0 {
		dst = append(dst, body...)
		f.end(dst)
		return dst
	}
	index := 0
	skip := int(first - c.base)
	for _, s := range c.stamps {
		for range s.count {
			if index++; index <= skip {
				continue
			}
			n := eventHead + binary.BigEndian.Uint32(body)
			dst = binary.BigEndian.AppendUint64(dst, uint64(s.at))
			dst = append(dst, body[:n]...)
			body = body[n:]
		}
	}
	f.end(dst)
	return dst
}

// chunkOverhead is about what a chunk takes beside its events.
const chunkOverhead = 256
