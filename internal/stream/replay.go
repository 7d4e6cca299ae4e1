package stream

import (
	"github.com/felixlog/felix/storage/segment"
)

// Replay keeps the newest batches of an in-memory stream, so that a subscriber may
// begin at the earliest of them or at an offset among them. It is bounded in batches
// and in bytes. The caller serialises calls.
type Replay struct {
	maxBatches, maxBytes int

	next      segment.Offset
	envelopes fifo[*Envelope]
	bytes     int
}

// NewReplay keeps at most batches batches and bytes bytes; zero of either keeps
// nothing.
func NewReplay(batches, bytes int) *Replay { return &Replay{maxBatches: batches, maxBytes: bytes} }

// Next is the offset of the next record.
func (r *Replay) Next() segment.Offset { return r.next }

// Oldest is the offset of the oldest record kept; Next when none is.
func (r *Replay) Oldest() segment.Offset {
	if r.envelopes.len() == 0 {
		return r.next
	}
	return (*r.envelopes.at(0)).First
}

// Bytes is the memory it holds.
func (r *Replay) Bytes() int { return r.bytes }

// Add takes in the next batch and drops the oldest ones past the bounds.
func (r *Replay) Add(e *Envelope) {
	r.next = e.End()
	if e.Count == 0 {
		return
	}
	r.envelopes.push(e)
	r.bytes += e.Memory()
	for n := r.envelopes.len(); n > 0 && (n > r.maxBatches || r.bytes > r.maxBytes); n-- {
		r.bytes -= r.envelopes.pop().Memory()
	}
}

// From appends the batches that hold the offset first and what follows to dst. first
// is between Oldest and Next.
func (r *Replay) From(dst []*Envelope, first segment.Offset) []*Envelope {
	for i := range r.envelopes.len() {
		if e := *r.envelopes.at(i); e.End() > first {
			dst = append(dst, e)
		}
	}
	return dst
}
