package partition

import (
	"sync"

	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/storage"
)

// Bounds of one delivery.
const (
	deliveryBytes = 256 << 10 // of frames from memory; at least one frame
	pageBytes     = 48 << 10  // of payload read from disk at once; at least one record
	pageRecords   = 256
	keepBytes     = 128 << 10 // larger buffers are not kept for the next page
	idleFrames    = 64        // slices kept while waiting
	idlePartial   = 4 << 10   // bytes kept while waiting
)

// Delivery is what [Subscription.Next] hands over. Its zero value is ready; use it
// again for the next call. One goroutine at a time.
type Delivery struct {
	// Frames are byte slices whose concatenation is whole event frames. They are shared
	// with other subscriptions: read them, do not change them. Valid until the next call
	// of Next with this Delivery, or Release.
	Frames [][]byte
	Events int
	Bytes  int // of Frames
	// First and Next are the positions covered, [First, Next).
	First, Next storage.Offset

	run       stream.Run
	envelopes []*stream.Envelope
	buffers   *diskBuffers
	partial   []byte // a frame that begins in the middle of a shared one
}

// diskBuffers are what reading a page takes. A subscription has them while it reads
// from the disk and gives them back when it waits.
type diskBuffers struct {
	page   storage.Page
	frames []byte
	used   int // of frames, by the last page
}

var diskBufferPool = sync.Pool{New: func() any { return new(diskBuffers) }}

func (d *Delivery) begin(first storage.Offset) {
	clear(d.Frames)
	clear(d.run.Chunks)
	clear(d.envelopes)
	d.Frames, d.run.Chunks, d.envelopes = d.Frames[:0], d.run.Chunks[:0], d.envelopes[:0]
	d.Events, d.Bytes, d.First, d.Next = 0, 0, first, first
	if cap(d.partial) > keepBytes {
		d.partial = nil
	}
}

func (d *Delivery) add(frame []byte, events int) {
	d.Frames = append(d.Frames, frame)
	d.Bytes += len(frame)
	d.Events += events
}

// idle gives back what only reading takes, before waiting: the page's buffers to the
// pool, the rest where a backlog has grown it.
func (d *Delivery) idle() {
	if b := d.buffers; b != nil {
		d.buffers = nil
		clear(d.Frames)
		d.Frames = d.Frames[:0]
		b.trim()
		diskBufferPool.Put(b)
	}
	if cap(d.Frames) > idleFrames {
		d.Frames, d.run.Chunks, d.envelopes = nil, nil, nil
	}
	if cap(d.partial) > idlePartial {
		d.partial = nil
	}
}

// trim drops buffers that a large record has grown.
func (b *diskBuffers) trim() {
	if b.used > keepBytes {
		*b = diskBuffers{}
	}
}

// Release gives the buffers back when the subscription has ended. The Delivery is
// empty afterwards.
func (d *Delivery) Release() {
	d.idle()
	*d = Delivery{}
}
