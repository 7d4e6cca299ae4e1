package wire

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func fuzzBinary(f *testing.F, layout Layout, check func(t *testing.T, flags Flags, payload []byte)) {
	for _, v := range loadVectors(f) {
		if _, frame := v.frame(f); frame.Flags.Layout() == layout {
			f.Add(uint16(frame.Flags), bytes.Clone(frame.Payload))
		}
	}
	f.Fuzz(func(t *testing.T, flags uint16, payload []byte) { check(t, Flags(flags), payload) })
}

// What decodes encodes again to the same bytes, up to bytes behind the end; and
// no count makes the decoder hold more slots than there are bytes for.
func FuzzBinaryPublish(f *testing.F) {
	fuzzBinary(f, LayoutPublish, func(t *testing.T, flags Flags, payload []byte) {
		var p PublishBatchFrame
		if err := p.Decode(flags, payload, nil); err != nil {
			require.Empty(t, p.Payloads)
			return
		}
		require.LessOrEqual(t, cap(p.Payloads), len(payload)/4)
		require.Equal(t, flags, p.Flags())
		again := AppendPublishBatch(nil, &p)[HeaderBytes:]
		require.True(t, bytes.HasPrefix(payload, again))
	})
}

func FuzzPublishAck(f *testing.F) {
	fuzzBinary(f, LayoutAck, func(t *testing.T, flags Flags, payload []byte) {
		var a PublishAck
		if a.Decode(flags, payload) != nil {
			return
		}
		frame := AppendPublishAck(nil, &a)
		var b PublishAck
		require.NoError(t, b.Decode(a.Flags(), frame[HeaderBytes:]))
		require.Equal(t, a, b)
		require.Equal(t, flags, a.Flags())
	})
}

func FuzzEventBatch(f *testing.F) {
	fuzzBinary(f, LayoutEvents, func(t *testing.T, flags Flags, payload []byte) {
		var e EventBatch
		if e.Decode(flags, payload) != nil {
			require.Empty(t, e.Payloads)
			return
		}
		require.LessOrEqual(t, cap(e.Payloads), len(payload)/4)
		if e.HasTimestamps {
			require.Len(t, e.Timestamps, len(e.Payloads))
		}
		frame := AppendEventBatch(nil, &e)
		require.Len(t, e.Begin(nil), e.Bytes())
		if flags.Layout() == LayoutEvents && !flags.Has(FlagBinaryEventBatch|FlagBinaryEventBatchShared) {
			require.True(t, bytes.HasPrefix(payload, frame[HeaderBytes:]))
		}
	})
}

func publishPayload(t *testing.T, p PublishBatchFrame) []byte {
	t.Helper()
	p.Tenant, p.Namespace, p.Stream = "t", "n", "s"
	return AppendPublishBatch(nil, &p)[HeaderBytes:]
}

func TestPublishRefusals(t *testing.T) {
	acked := publishPayload(t, PublishBatchFrame{Acked: true, AckMode: AckPerBatch, RequestID: 7, Payloads: [][]byte{[]byte("x")}})
	var p PublishBatchFrame
	require.NoError(t, p.Decode(FlagBinaryPublishBatch|FlagBinaryPublishAcked, acked, nil))

	// Cut anywhere, it is refused; from the eighth byte on by its request id.
	for n := range acked {
		err := p.Decode(FlagBinaryPublishBatch|FlagBinaryPublishAcked, acked[:n], nil)
		var malformed *MalformedError
		require.ErrorAs(t, err, &malformed)
		require.Equal(t, n >= 8, malformed.HasRequestID, "cut at %d", n)
		if n >= 8 {
			require.Equal(t, uint64(7), malformed.RequestID)
		}
		require.Empty(t, p.Payloads)
	}
	mode := bytes.Clone(acked)
	for _, bad := range []byte{0, 3, 255} {
		mode[8] = bad
		require.ErrorContains(t, p.Decode(FlagBinaryPublishBatch|FlagBinaryPublishAcked, mode, nil), "ack_mode")
	}
	text := bytes.Clone(acked)
	text[11] = 0xff
	require.ErrorContains(t, p.Decode(FlagBinaryPublishBatch|FlagBinaryPublishAcked, text, nil), "tenant_id: text is not UTF-8")

	idempotent := publishPayload(t, PublishBatchFrame{Acked: true, AckMode: AckPerMessage, Idempotent: true})
	require.ErrorContains(t, p.Decode(FlagBinaryPublishBatch|FlagBinaryPublishAcked|FlagBinaryPublishIdempotent, idempotent, nil), "is not 2")

	for _, flags := range []Flags{0, FlagBinaryPublishAck, FlagBinaryPublishAcked, FlagBinaryPublishBatch | 0x8000,
		FlagBinaryPublishBatch | FlagBinaryPublishIdempotent, FlagBinaryPublishBatch | FlagEventBatchOffsets} {
		require.ErrorContains(t, p.Decode(flags, acked, nil), "flags", "%s", flags)
	}
	// An empty batch is well formed; what it means is for the server to say.
	require.NoError(t, p.Decode(FlagBinaryPublishBatch, publishPayload(t, PublishBatchFrame{}), nil))
	require.Empty(t, p.Payloads)
}

// A count that the payload cannot hold is refused before anything is allocated.
func TestCountsAreChecked(t *testing.T) {
	bare := publishPayload(t, PublishBatchFrame{})
	bare = append(bare, make([]byte, 40)...)
	for _, count := range []uint32{11, 1 << 20, 1<<31 - 1, math.MaxUint32} {
		payload := bytes.Clone(bare)
		binary.BigEndian.PutUint32(payload[len(payload)-44:], count)
		var p PublishBatchFrame
		require.ErrorContains(t, p.Decode(FlagBinaryPublishBatch, payload, nil), "count: more elements")
		require.Zero(t, cap(p.Payloads))
		var e EventBatch
		events := append(binary.BigEndian.AppendUint32(nil, count), make([]byte, 40)...)
		require.ErrorContains(t, e.Decode(FlagBinaryEventBatchShared, events), "count: more elements")
		require.ErrorContains(t, e.Decode(FlagBinaryEventBatchShared|FlagEventBatchTimestamps, events), "count: more elements")
		require.Zero(t, cap(e.Payloads))
	}
	ten := bytes.Clone(bare)
	binary.BigEndian.PutUint32(ten[len(ten)-44:], 10)
	var p PublishBatchFrame
	require.NoError(t, p.Decode(FlagBinaryPublishBatch, ten, nil))
	require.Len(t, p.Payloads, 10)
}

func TestAckRefusals(t *testing.T) {
	ok := AppendPublishAck(nil, &PublishAck{RequestID: 1, HasOffset: true, Offset: 9})[HeaderBytes:]
	var a PublishAck
	for n := range ok {
		require.Error(t, a.Decode(FlagBinaryPublishAck|FlagBinaryPublishAckOffset, ok[:n]))
	}
	status := bytes.Clone(ok)
	status[0] = 2
	require.ErrorContains(t, a.Decode(FlagBinaryPublishAck|FlagBinaryPublishAckOffset, status), "status")
	require.ErrorContains(t, a.Decode(FlagBinaryPublishAck|FlagBinaryPublishAckDetail, ok), "flags")
	require.ErrorContains(t, a.Decode(FlagBinaryPublishAck|FlagBinaryPublishAckCode, ok), "code: on an ack that did not fail")

	// An unknown class reads as fatal, an unknown code is kept.
	failed := AppendPublishAck(nil, &PublishAck{RequestID: 1, Failed: true, HasCode: true, Failure: Failure{Code: 999, Retry: 77}})
	require.NoError(t, a.Decode(FlagBinaryPublishAck|FlagBinaryPublishAckCode, failed[HeaderBytes:]))
	require.Equal(t, Code(999), a.Failure.Code)
	require.Equal(t, RetryFatal, a.Failure.Retry)

	// A message too long for its length is cut between characters.
	long := AppendPublishAck(nil, &PublishAck{Failed: true, Failure: Failure{Message: strings.Repeat("é", 40000)}})
	require.NoError(t, a.Decode(FlagBinaryPublishAck, long[HeaderBytes:]))
	require.Equal(t, strings.Repeat("é", 32767), a.Failure.Message)
}

func TestEventOffsetsCannotWrap(t *testing.T) {
	e := EventBatch{EventBatchHeader: EventBatchHeader{Shape: FlagBinaryEventBatchShared | FlagEventBatchOffsets, BaseOffset: math.MaxUint64}, Payloads: [][]byte{nil}}
	frame := AppendEventBatch(nil, &e)
	require.ErrorContains(t, e.Decode(e.Shape, frame[HeaderBytes:]), "base_offset")
}

func TestEventShape(t *testing.T) {
	all := FlagsKnown
	require.Equal(t, FlagBinaryEventBatchShared, EventShape(FlagsOriginal, true, 3, []byte("p"), true))
	require.Equal(t, FlagBinaryEventBatchShared, EventShape(all, false, 3, nil, false))
	require.Equal(t, FlagBinaryEventBatchShared|FlagEventBatchOffsets, EventShape(all, true, 0, nil, false))
	require.Equal(t, FlagBinaryEventBatchShared|FlagEventBatchOffsets|FlagEventBatchSkipped|FlagEventBatchPublisher|FlagEventBatchTimestamps,
		EventShape(all, true, 1, []byte("p"), true))
	require.Equal(t, FlagBinaryEventBatchShared|FlagEventBatchPublisher, EventShape(all, false, 0, []byte("p"), false))
	for f := range uint32(1 << 15) {
		require.Equal(t, LayoutEvents, EventShape(Flags(f), f&1 == 0, uint64(f&2), []byte("p"), f&4 == 0).Layout())
	}
}

// The incremental builder of servers gives the bytes of the whole encoder.
func TestEventBuilder(t *testing.T) {
	for _, v := range loadVectors(t) {
		raw, frame := v.frame(t)
		if frame.Flags.Layout() != LayoutEvents {
			continue
		}
		var e EventBatch
		require.NoError(t, e.Decode(frame.Flags, frame.Payload))
		size := e.Bytes()
		built := e.Begin([]byte("before"))
		for i, p := range e.Payloads {
			var at uint64
			if e.HasTimestamps {
				at = e.Timestamps[i]
			}
			built = e.AppendEvent(built, at, p)
			size += e.EventBytes(len(p))
		}
		built = e.Finish(built, len("before"), uint32(len(e.Payloads)))
		require.Equal(t, raw, built[len("before"):])
		require.Equal(t, len(raw), size)
	}
}

// Room left by a huge batch is not kept for small ones.
func TestDecodeGivesRoomBack(t *testing.T) {
	huge := publishPayload(t, PublishBatchFrame{Payloads: make([][]byte, 1<<19)})
	small := publishPayload(t, PublishBatchFrame{Payloads: make([][]byte, 10)})
	var p PublishBatchFrame
	require.NoError(t, p.Decode(FlagBinaryPublishBatch, huge, nil))
	require.GreaterOrEqual(t, cap(p.Payloads), 1<<19)
	require.NoError(t, p.Decode(FlagBinaryPublishBatch, small, nil))
	require.LessOrEqual(t, cap(p.Payloads), 1<<14)
}

func TestNumberPublish(t *testing.T) {
	for _, f := range []PublishBatchFrame{{}, {Acked: true, AckMode: AckPerBatch}, {Acked: true, AckMode: AckPerBatch, Idempotent: true}, {Acked: true, AckMode: AckPerBatch, Idempotent: true, HasKey: true, Key: []byte("k")}} {
		f.Tenant, f.Namespace, f.Stream, f.Payloads = "t", "n", "s", [][]byte{[]byte("x")}
		frame := AppendPublishBatch(nil, &f)
		NumberPublish(frame, 1<<40, 1<<41, 1<<42)
		if f.Acked {
			f.RequestID = 1 << 40
		}
		if f.Idempotent {
			f.ProducerID, f.Sequence = 1<<41, 1<<42
		}
		require.Equal(t, AppendPublishBatch(nil, &f), frame)
	}
}
