package stream

import (
	"sort"
	"sync"
	"sync/atomic"

	"github.com/felixlog/felix/storage/segment"
)

// Ring keeps the most recent groups of a shard's log as chunks ready to be sent. It
// holds something only while it is started, which is while the shard has subscribers.
// It is bounded in bytes: the oldest chunks go first, and a position that is no longer
// in it is read from the disk. The bound counts the frames with offsets alone; each
// further shape in use takes as much again. Safe for concurrent use; no lock is held while a frame
// is encoded.
type Ring struct {
	limit  int
	shared *RingBudget
	builds atomic.Int64

	mu     sync.Mutex
	on     bool
	primed bool // first and end hold
	// The ring covers the positions [first, end); those after the last chunk hold no
	// event.
	first, end segment.Offset
	chunks     fifo[*Chunk]
	bytes      int
}

// RingBudget bounds the rings of all shards of a node together.
type RingBudget struct {
	limit int64
	used  atomic.Int64
}

// NewRingBudget bounds rings to limit bytes together.
func NewRingBudget(limit int64) *RingBudget { return &RingBudget{limit: limit} }

// Used is how many bytes the rings hold.
func (b *RingBudget) Used() int64 { return b.used.Load() }

// NewRing makes a ring of at most limit bytes that also keeps to shared, if it is not
// nil. It is not started.
func NewRing(limit int, shared *RingBudget) *Ring { return &Ring{limit: limit, shared: shared} }

// Start makes the ring keep what is appended from now on.
func (r *Ring) Start() {
	r.mu.Lock()
	r.on = true
	r.mu.Unlock()
}

// Stop empties the ring and keeps nothing more.
func (r *Ring) Stop() {
	r.mu.Lock()
	r.on = false
	r.drop()
	r.mu.Unlock()
}

// DropBelow empties the ring if all it holds is below pos: its subscribers are past it.
func (r *Ring) DropBelow(pos segment.Offset) {
	r.mu.Lock()
	if r.primed && r.end <= pos {
		r.drop()
	}
	r.mu.Unlock()
}

// TruncateTo forgets what is at next and after it, when the log was cut there.
func (r *Ring) TruncateTo(next segment.Offset) {
	r.mu.Lock()
	if r.primed && r.end > next {
		r.drop()
	}
	r.mu.Unlock()
}

func (r *Ring) drop() {
	r.account(-r.bytes)
	r.chunks = fifo[*Chunk]{}
	r.primed = false
}

func (r *Ring) account(n int) {
	r.bytes += n
	if r.shared != nil {
		r.shared.used.Add(int64(n))
	}
}

// Appender adds the records of one group.
type Appender struct {
	r    *Ring
	left int // bytes of events to come
}

// Append locks the ring for the records of a group that begins at first and has about
// size bytes of payload. It returns false, and locks nothing, when the ring is not
// started. The caller adds the records and then calls [Appender.Close].
// With apart the group shares no chunk with the one before it, so that a reader may see
// the one and not yet the other.
func (r *Ring) Append(first segment.Offset, size int, apart bool) (Appender, bool) {
	r.mu.Lock()
	if !r.on {
		r.mu.Unlock()
		return Appender{}, false
	}
	if r.primed && r.end != first {
		r.drop()
	}
	if !r.primed {
		r.first, r.end, r.primed = first, first, true
	}
	if n := r.chunks.len(); apart && n > 0 {
		(*r.chunks.at(n - 1)).seal()
	}
	return Appender{r: r, left: size}, true
}

// Add appends a record that readers see.
func (a *Appender) Add(offset segment.Offset, at segment.Micros, publisher, payload []byte) {
	r := a.r
	var c *Chunk
	if n := r.chunks.len(); n > 0 {
		c = *r.chunks.at(n - 1)
	}
	if c == nil || c.next != offset || !c.room(publisher, len(payload)) {
		from := r.first
		if c != nil {
			c.seal()
			from = c.next
		}
		c = newChunk(true, from, offset, publisher, max(eventHead+len(payload), min(a.left, firstChunkRoom)))
		c.builds = &r.builds
		r.chunks.push(c)
		r.account(chunkOverhead + cap(c.buf))
	}
	before := cap(c.buf)
	c.add(at, payload)
	r.account(cap(c.buf) - before)
	a.left -= eventHead + len(payload)
	r.end = offset + 1
}

const firstChunkRoom = 16 << 10

// Skip appends a record that no reader sees.
func (a *Appender) Skip(offset segment.Offset) { a.r.end = offset + 1 }

// Close ends the group and unlocks the ring.
func (a *Appender) Close() {
	r := a.r
	for r.chunks.len() > 1 && (r.bytes > r.limit || r.shared != nil && r.shared.used.Load() > r.shared.limit) {
		c := r.chunks.pop()
		c.seal()
		r.account(-(chunkOverhead + cap(c.buf)))
		r.first = c.next
	}
	r.mu.Unlock()
}

// Run is what a subscriber reads from the ring in one go.
type Run struct {
	Chunks []*Chunk
	Next   segment.Offset // the position after it
}

// Collect gives the chunks that hold the position pos and what follows, at least one
// and then up to limit bytes, and none that reaches past end. It seals the newest when
// it gives it. False when pos is not in the ring. A run without chunks says that no
// event from pos on may be read yet: Next stays before positions that hold none, so
// that the frame of the event after them counts them.
func (r *Ring) Collect(pos, end segment.Offset, limit int, run *Run) bool {
	run.Chunks, run.Next = run.Chunks[:0], pos
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.primed || pos < r.first || pos >= r.end {
		return false
	}
	n := r.chunks.len()
	i := sort.Search(n, func(i int) bool { return (*r.chunks.at(i)).next > pos })
	for bytes := 0; i < n; i++ {
		c := *r.chunks.at(i)
		if c.next > end || len(run.Chunks) > 0 && bytes+len(c.buf) > limit {
			return true
		}
		c.seal()
		bytes += len(c.buf)
		run.Chunks = append(run.Chunks, c)
		run.Next = c.next
	}
	return true
}

// Builds counts the frames encoded.
func (r *Ring) Builds() int64 { return r.builds.Load() }

// Bytes is the memory the ring holds.
func (r *Ring) Bytes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes
}
