package stream

// Overflow is what an in-memory stream does with a subscriber whose queue is full.
type Overflow uint8

// The overflow policies.
const (
	// Block holds publishes back until there is room.
	Block Overflow = iota
	// DropNew leaves out the new batch.
	DropNew
	// DropOld leaves out the oldest batch in the queue.
	DropOld
)

// String is the policy's name in settings.
func (o Overflow) String() string {
	switch o {
	case Block:
		return "block"
	case DropNew:
		return "drop_new"
	case DropOld:
		return "drop_old"
	}
	return "unknown"
}

// Queue is what one subscriber of an in-memory stream has yet to read: published
// batches, at most its capacity, and at most its bytes; a queue that drops may hold a
// single batch that is larger, one that blocks may be over by its newest. The caller
// serialises calls.
type Queue struct {
	overflow           Overflow
	capacity, maxBytes int

	items fifo[*Envelope]
	bytes int
}

// NewQueue makes a queue of at least one batch.
func NewQueue(o Overflow, capacity, maxBytes int) *Queue {
	return &Queue{overflow: o, capacity: max(capacity, 1), maxBytes: maxBytes}
}

// Len is the number of batches in it.
func (q *Queue) Len() int { return q.items.len() }

// Full says whether a queue that blocks has no room for another batch. How large the
// batch is does not matter: it may exceed the bytes by one batch.
func (q *Queue) Full() bool {
	return q.items.len() >= q.capacity || q.bytes >= q.maxBytes
}

// Blocks says whether publishes must be held back for this queue now.
func (q *Queue) Blocks() bool { return q.overflow == Block && q.Full() }

// Offer puts e into the queue by its policy. dropped is how many batches were left out
// for want of room, queued whether e is in it. A queue that blocks is offered nothing
// while it is full; should it be, e is left out.
func (q *Queue) Offer(e *Envelope) (queued bool, dropped int) {
	switch q.overflow {
	case DropOld:
		for q.crowded(e) {
			q.take()
			dropped++
		}
	case DropNew:
		if q.crowded(e) {
			return false, 1
		}
	default:
		if q.Full() {
			return false, 1
		}
	}
	q.items.push(e)
	q.bytes += e.Bytes
	return true, dropped
}

// crowded says that e does not fit beside what is there. An empty queue takes anything.
func (q *Queue) crowded(e *Envelope) bool {
	return q.items.len() > 0 && (q.items.len() >= q.capacity || q.bytes+e.Bytes > q.maxBytes)
}

// Take removes the oldest batch; nil when it is empty.
func (q *Queue) Take() *Envelope {
	if q.items.len() == 0 {
		return nil
	}
	return q.take()
}

func (q *Queue) take() *Envelope {
	e := q.items.pop()
	q.bytes -= e.Bytes
	return e
}

// Clear empties it.
func (q *Queue) Clear() {
	q.items.clear()
	q.bytes = 0
}
