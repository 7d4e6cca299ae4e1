package stream

import (
	"github.com/felixlog/felix/storage/segment"
)

// Envelope is one published batch of an in-memory stream: its frames, shared by the
// replay ring and every subscriber's queue. It never changes.
type Envelope struct {
	First  segment.Offset
	Count  int // records
	Bytes  int // payload bytes
	Chunks []*Chunk

	inline [1]*Chunk
	chunk  Chunk
}

// NewEnvelope copies a batch that gets the offset first.
func NewEnvelope(first segment.Offset, publisher []byte, payloads [][]byte) *Envelope {
	e := &Envelope{First: first, Count: len(payloads)}
	for _, p := range payloads {
		e.Bytes += len(p)
	}
	e.Chunks = e.inline[:0]
	left := e.Bytes + eventHead*len(payloads)
	var c *Chunk
	for i, p := range payloads {
		if c == nil || !c.room(publisher, len(p)) {
			at := first + segment.Offset(i)
			room := max(eventHead+len(p), min(left, FrameBytes))
			if c == nil {
				c = &e.chunk
			} else {
				c.seal()
				c = new(Chunk)
			}
			c.init(false, at, at, publisher, room)
			e.Chunks = append(e.Chunks, c)
		}
		c.add(0, p)
		left -= eventHead + len(p)
	}
	if c != nil {
		c.seal()
	}
	return e
}

// End is one past its last record.
func (e *Envelope) End() segment.Offset { return e.First + segment.Offset(e.Count) }

// Memory is about what it holds, in bytes.
func (e *Envelope) Memory() int {
	n := envelopeOverhead
	for _, c := range e.Chunks {
		n += chunkOverhead + cap(c.buf)
	}
	return n
}

const envelopeOverhead = 128
