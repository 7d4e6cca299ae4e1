package wire

import (
	"encoding/binary"
	"math"
)

// MaxPublisherBytes bounds the publisher of events: the length has 8 bits.
const MaxPublisherBytes = math.MaxUint8

// EventBatchHeader is everything before the events of an event frame. A server
// builds one with Begin, any count of AppendEvent, and Finish.
type EventBatchHeader struct {
	// Shape is the flag word: FlagBinaryEventBatchShared or, older,
	// FlagBinaryEventBatch, and the parts that follow.
	Shape Flags
	// SubscriptionID goes into the older layout only.
	SubscriptionID uint64
	// BaseOffset is the offset of the first event (FlagEventBatchOffsets). The
	// others follow it without a gap.
	BaseOffset uint64
	// SkippedBefore counts the offsets directly below BaseOffset that hold no
	// event (FlagEventBatchSkipped).
	SkippedBefore uint64
	// Publisher of all events (FlagEventBatchPublisher), at most
	// MaxPublisherBytes; more is cut.
	Publisher []byte
}

// EventShape returns the flags for a batch to a peer that offered offered: the
// shared layout with each part that the peer reads and that says something.
// Frames without such a part stay byte-identical to the plain form.
func EventShape(offered Flags, offsets bool, skippedBefore uint64, publisher []byte, timestamps bool) Flags {
	shape := FlagBinaryEventBatchShared
	if offsets {
		shape |= offered & FlagEventBatchOffsets
	}
	if skippedBefore > 0 && shape.Has(FlagEventBatchOffsets) {
		shape |= offered & FlagEventBatchSkipped
	}
	if len(publisher) > 0 {
		shape |= offered & FlagEventBatchPublisher
	}
	if timestamps {
		shape |= offered & FlagEventBatchTimestamps
	}
	return shape
}

// Bytes returns how much Begin adds: the header of the frame, and everything up
// to and with the count.
func (h *EventBatchHeader) Bytes() int {
	n := HeaderBytes + 4
	if h.Shape.Has(FlagBinaryEventBatch) {
		n += 8
	}
	if h.Shape.Has(FlagEventBatchOffsets) {
		n += 8
	}
	if h.Shape.Has(FlagEventBatchSkipped) {
		n += 8
	}
	if h.Shape.Has(FlagEventBatchPublisher) {
		n += 1 + min(len(h.Publisher), MaxPublisherBytes)
	}
	return n
}

// EventBytes returns how much AppendEvent adds for a payload of size bytes.
func (h *EventBatchHeader) EventBytes(size int) int {
	if h.Shape.Has(FlagEventBatchTimestamps) {
		return 12 + size
	}
	return 4 + size
}

// Begin adds the header of the frame and the parts before the events.
func (h *EventBatchHeader) Begin(dst []byte) []byte {
	dst = AppendHeader(dst, h.Shape, 0)
	if h.Shape.Has(FlagBinaryEventBatch) {
		dst = binary.BigEndian.AppendUint64(dst, h.SubscriptionID)
	}
	if h.Shape.Has(FlagEventBatchOffsets) {
		dst = binary.BigEndian.AppendUint64(dst, h.BaseOffset)
	}
	if h.Shape.Has(FlagEventBatchSkipped) {
		dst = binary.BigEndian.AppendUint64(dst, h.SkippedBefore)
	}
	if h.Shape.Has(FlagEventBatchPublisher) {
		p := h.Publisher[:min(len(h.Publisher), MaxPublisherBytes)]
		dst = append(dst, byte(len(p)))
		dst = append(dst, p...)
	}
	return append(dst, 0, 0, 0, 0)
}

// AppendEvent adds one event. The timestamp is written only in a shape with
// FlagEventBatchTimestamps.
func (h *EventBatchHeader) AppendEvent(dst []byte, timestampMicros uint64, payload []byte) []byte {
	if h.Shape.Has(FlagEventBatchTimestamps) {
		dst = binary.BigEndian.AppendUint64(dst, timestampMicros)
	}
	return AppendBlob(dst, payload)
}

// Finish completes the frame that begins at start with the count of its events.
func (h *EventBatchHeader) Finish(dst []byte, start int, count uint32) []byte {
	binary.BigEndian.PutUint32(dst[start+h.Bytes()-4:], count)
	return FinishFrame(dst, start)
}

// EventBatch is the binary layout of events as a client reads it.
type EventBatch struct {
	EventBatchHeader
	// HasOffsets: BaseOffset is set. HasTimestamps: Timestamps are.
	HasOffsets, HasTimestamps bool
	Payloads                  [][]byte
	// Timestamps, in microseconds since 1970, are one for each payload, or none.
	Timestamps []uint64
}

// Decode reads the payload of a frame with LayoutEvents. Publisher and Payloads
// are views of the payload; the slices themselves are used again by the next
// Decode. Errors: *[MalformedError].
func (e *EventBatch) Decode(flags Flags, payload []byte) error {
	e.EventBatchHeader = EventBatchHeader{Shape: flags}
	e.HasOffsets, e.HasTimestamps = false, false
	e.Payloads, e.Timestamps = e.Payloads[:0], e.Timestamps[:0]
	if flags.Layout() != LayoutEvents {
		return &MalformedError{What: "event batch", Detail: "flags " + flags.String() + " do not make an event batch"}
	}
	c := cursor{b: payload}
	if flags.Has(FlagBinaryEventBatch) {
		e.SubscriptionID = c.u64("subscription_id")
	}
	if flags.Has(FlagEventBatchOffsets) {
		e.HasOffsets = true
		e.BaseOffset = c.u64("base_offset")
	}
	if flags.Has(FlagEventBatchSkipped) {
		e.SkippedBefore = c.u64("skipped_before")
	}
	if flags.Has(FlagEventBatchPublisher) {
		e.Publisher = c.take(int(c.u8("publisher")), "publisher")
	}
	if flags.Has(FlagEventBatchTimestamps) {
		e.HasTimestamps = true
		e.stampedEvents(&c)
	} else if n := c.count(4, "count"); c.bad == "" {
		e.Payloads = c.blobs(fit(e.Payloads, n), n, "payload")
	}
	if n := uint64(len(e.Payloads)); c.bad == "" && e.HasOffsets && n > 0 && e.BaseOffset > math.MaxUint64-n {
		c.bad = "base_offset: the offsets of the batch do not fit 64 bits"
	}
	if c.bad != "" {
		e.Payloads, e.Timestamps = e.Payloads[:0], e.Timestamps[:0]
		return &MalformedError{What: "event batch", Detail: c.bad}
	}
	return nil
}

func (e *EventBatch) stampedEvents(c *cursor) {
	n := c.count(12, "count")
	if c.bad != "" {
		return
	}
	e.Payloads, e.Timestamps = fit(e.Payloads, n), fit(e.Timestamps, n)
	for range n {
		e.Timestamps = append(e.Timestamps, c.u64("timestamp_micros"))
		e.Payloads = append(e.Payloads, c.take(int(c.u32("payload")), "payload"))
		if c.bad != "" {
			return
		}
	}
}

// AppendEventBatch adds a whole frame to dst. Shape says which parts are
// written.
func AppendEventBatch(dst []byte, e *EventBatch) []byte {
	start := len(dst)
	dst = e.Begin(dst)
	for i, p := range e.Payloads {
		var at uint64
		if i < len(e.Timestamps) {
			at = e.Timestamps[i]
		}
		dst = e.AppendEvent(dst, at, p)
	}
	return e.Finish(dst, start, uint32(len(e.Payloads)))
}
