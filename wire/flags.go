package wire

import "strings"

// Flags is the flag word of a frame header: which layout the payload has, and
// which optional parts are in it. Zero means a JSON message.
type Flags uint16

// The flag bits of version 1.
const (
	// FlagBinaryPublishBatch: the payload is a publish batch. Client to server.
	FlagBinaryPublishBatch Flags = 0x0001
	// FlagBinaryEventBatch: events with a subscription id (the older layout).
	FlagBinaryEventBatch Flags = 0x0002
	// FlagBinaryEventBatchShared: events without a subscription id.
	FlagBinaryEventBatchShared Flags = 0x0004
	// FlagBinaryPublishAcked adds a request id and an acknowledgement mode to a publish batch.
	FlagBinaryPublishAcked Flags = 0x0008
	// FlagBinaryPublishAck: the payload answers a publish batch.
	FlagBinaryPublishAck Flags = 0x0010
	// FlagEventBatchOffsets adds the offset of the first event.
	FlagEventBatchOffsets Flags = 0x0020
	// FlagBinaryPublishKeyed adds a key to a publish batch.
	FlagBinaryPublishKeyed Flags = 0x0040
	// FlagBinaryPublishAckOwner adds the shard's owner to an ack.
	FlagBinaryPublishAckOwner Flags = 0x0080
	// FlagBinaryPublishIdempotent adds producer id and sequence to an acked publish batch.
	FlagBinaryPublishIdempotent Flags = 0x0100
	// FlagBinaryPublishAckCode adds code and retry class to a failed ack.
	FlagBinaryPublishAckCode Flags = 0x0200
	// FlagBinaryPublishAckDetail adds reason and retry delay to an ack with a code.
	FlagBinaryPublishAckDetail Flags = 0x0400
	// FlagEventBatchSkipped adds the count of offsets without a record before the batch.
	FlagEventBatchSkipped Flags = 0x0800
	// FlagBinaryPublishAckOffset adds the offset to a successful ack; offering it
	// also asks for offset in publish_ok.
	FlagBinaryPublishAckOffset Flags = 0x1000
	// FlagEventBatchPublisher adds the publisher of the events.
	FlagEventBatchPublisher Flags = 0x2000
	// FlagEventBatchTimestamps adds a timestamp to each event.
	FlagEventBatchTimestamps Flags = 0x4000

	// FlagsOriginal is what a peer that negotiated nothing supports.
	FlagsOriginal Flags = 0x0007
	// FlagsKnown has every defined bit.
	FlagsKnown Flags = 0x7FFF
)

const (
	publishFlags = FlagBinaryPublishBatch | FlagBinaryPublishAcked | FlagBinaryPublishKeyed | FlagBinaryPublishIdempotent
	ackFlags     = FlagBinaryPublishAck | FlagBinaryPublishAckOwner | FlagBinaryPublishAckCode | FlagBinaryPublishAckDetail |
		FlagBinaryPublishAckOffset
	eventModifiers = FlagEventBatchOffsets | FlagEventBatchSkipped | FlagEventBatchPublisher | FlagEventBatchTimestamps
	layoutFlags    = FlagBinaryPublishBatch | FlagBinaryEventBatch | FlagBinaryEventBatchShared | FlagBinaryPublishAck
)

// Layout is the kind of payload that a flag word announces.
type Layout uint8

// The layouts of version 1.
const (
	// LayoutInvalid: the flags contradict one another or have an undefined bit.
	LayoutInvalid Layout = iota
	// LayoutMessage is a JSON message.
	LayoutMessage
	// LayoutPublish is read by PublishBatchFrame.
	LayoutPublish
	// LayoutAck is read by PublishAck.
	LayoutAck
	// LayoutEvents is read by EventBatch.
	LayoutEvents
)

// Has reports whether all bits of want are set.
func (f Flags) Has(want Flags) bool { return f&want == want }

// Layout tells what the payload is, or LayoutInvalid when a receiver must
// refuse the frame: an undefined bit, a modifier without its layout, two
// layouts at once.
func (f Flags) Layout() Layout {
	if f&^FlagsKnown != 0 {
		return LayoutInvalid
	}
	switch f & layoutFlags {
	case 0:
		if f == 0 {
			return LayoutMessage
		}
	case FlagBinaryPublishBatch:
		if f&^publishFlags == 0 && (!f.Has(FlagBinaryPublishIdempotent) || f.Has(FlagBinaryPublishAcked)) {
			return LayoutPublish
		}
	case FlagBinaryPublishAck:
		if f&^ackFlags == 0 && (!f.Has(FlagBinaryPublishAckDetail) || f.Has(FlagBinaryPublishAckCode)) {
			return LayoutAck
		}
	case FlagBinaryEventBatch, FlagBinaryEventBatchShared:
		if f&^(eventModifiers|FlagBinaryEventBatch|FlagBinaryEventBatchShared) == 0 &&
			(!f.Has(FlagEventBatchSkipped) || f.Has(FlagEventBatchOffsets)) {
			return LayoutEvents
		}
	}
	return LayoutInvalid
}

var flagNames = [...]string{
	"BINARY_PUBLISH_BATCH", "BINARY_EVENT_BATCH", "BINARY_EVENT_BATCH_SHARED", "BINARY_PUBLISH_ACKED", "BINARY_PUBLISH_ACK",
	"EVENT_BATCH_OFFSETS", "BINARY_PUBLISH_KEYED", "BINARY_PUBLISH_ACK_OWNER", "BINARY_PUBLISH_IDEMPOTENT",
	"BINARY_PUBLISH_ACK_CODE", "BINARY_PUBLISH_ACK_DETAIL", "EVENT_BATCH_SKIPPED", "BINARY_PUBLISH_ACK_OFFSET",
	"EVENT_BATCH_PUBLISHER", "EVENT_BATCH_TIMESTAMPS", "0x8000",
}

// String lists the bits by their protocol names, joined by a vertical bar.
func (f Flags) String() string {
	return bitNames(uint64(f), flagNames[:])
}

func bitNames(bits uint64, names []string) string {
	if bits == 0 {
		return "0"
	}
	var b strings.Builder
	for i, name := range names {
		if bits&(1<<i) == 0 {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('|')
		}
		b.WriteString(name)
	}
	return b.String()
}
