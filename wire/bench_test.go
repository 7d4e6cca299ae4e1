package wire

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/heap"
)

// hotMessages are those that a busy stream carries.
func hotMessages() []Message {
	ref := GroupRef{Tenant: "t1", Namespace: "default", Stream: "jobs", Shard: 3, Group: "workers"}
	records := make([]GroupRecord, 10)
	for i := range records {
		records[i] = GroupRecord{Offset: uint64(i), Payload: make([]byte, 128), Attempts: 1}
	}
	return []Message{
		&Auth{Tenant: "t1", Token: "eyJhbGciOiJFZERTQSJ9.e30.c2ln", ClientFlags: 0x1fff, HasClientFlags: true, Features: 0x7fffffff},
		&AuthOK{ServerFlags: 0x1fff, Features: 196132, PublishWindow: 256, HasPublishWindow: true},
		&CachePut{Tenant: "t1", Namespace: "default", Cache: "sessions", Key: "user:42", Value: make([]byte, 128), RequestID: 7, HasRequestID: true},
		&CacheGet{Tenant: "t1", Namespace: "default", Cache: "sessions", Key: "user:42", RequestID: 7, HasRequestID: true},
		&CacheValue{Tenant: "t1", Namespace: "default", Cache: "sessions", Key: "user:42", Value: make([]byte, 128), HasValue: true, RequestID: 7, HasRequestID: true},
		&CacheOK{RequestID: 7},
		&PublishOK{RequestID: 7, Offset: 1 << 40, HasOffset: true},
		&GroupPoll{GroupRef: ref, MaxRecords: 10, WaitMillis: 5000, RequestID: 9},
		&GroupAck{GroupRef: ref, Offset: 5, RequestID: 9},
		&GroupRecords{Records: records, RequestID: 9},
		&CounterAdd{Tenant: "t1", Namespace: "default", Cache: "hits", Key: "home", Delta: -3, RequestID: 1},
		&CounterGet{Tenant: "t1", Namespace: "default", Cache: "hits", Key: "home", RequestID: 1},
		&CounterValue{Value: 12, HasValue: true, RequestID: 1},
		&EventStreamHello{SubscriptionID: 4},
	}
}

// A hot message costs no allocation to write, nor to read with a Decoder.
func TestHotMessagesAllocateNothing(t *testing.T) {
	var d Decoder
	buf := make([]byte, 0, 64<<10)
	for _, m := range hotMessages() {
		require.LessOrEqual(t, heap.Allocs(100, func() { buf = AppendMessage(buf[:0], m) }), float64(poolAllocs), "writing %s", m.Type())
		payload := bytes.Clone(buf[HeaderBytes:])
		require.LessOrEqual(t, heap.Allocs(100, func() {
			if _, err := d.Decode(payload); err != nil {
				panic(err)
			}
		}), float64(poolAllocs), "reading %s", m.Type())
	}
}

// Neither do events and acks.
func TestBinaryAllocatesNothing(t *testing.T) {
	buf := make([]byte, 0, 64<<10)
	e := EventBatch{EventBatchHeader: EventBatchHeader{Shape: FlagBinaryEventBatchShared | FlagEventBatchOffsets, BaseOffset: 9}, Payloads: make([][]byte, 64)}
	a := PublishAck{RequestID: 9, HasOffset: true, Offset: 5}
	require.Zero(t, heap.Allocs(100, func() {
		buf = AppendEventBatch(buf[:0], &e)
		if err := e.Decode(e.Shape, buf[HeaderBytes:]); err != nil {
			panic(err)
		}
		buf = AppendPublishAck(buf[:0], &a)
		if err := a.Decode(a.Flags(), buf[HeaderBytes:]); err != nil {
			panic(err)
		}
	}))
}

func BenchmarkMessage(b *testing.B) {
	for _, m := range hotMessages() {
		frame := AppendMessage(nil, m)
		b.Run(m.Type()+"/write", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				frame = AppendMessage(frame[:0], m)
			}
		})
		b.Run(m.Type()+"/read", func(b *testing.B) {
			b.ReportAllocs()
			var d Decoder
			for b.Loop() {
				if _, err := d.Decode(frame[HeaderBytes:]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkReader(b *testing.B) {
	p := PublishBatchFrame{Acked: true, AckMode: AckPerBatch, Tenant: "t1", Namespace: "default", Stream: "orders"}
	for range 64 {
		p.Payloads = append(p.Payloads, make([]byte, 128))
	}
	var stream []byte
	for range 100 {
		stream = AppendPublishBatch(stream, &p)
	}
	b.SetBytes(int64(len(stream)))
	b.ReportAllocs()
	src := bytes.NewReader(nil)
	r := NewReader(src, DefaultMaxFrame)
	names := new(Names)
	for b.Loop() {
		src.Reset(stream)
		for range 100 {
			f, err := r.Next()
			if err != nil {
				b.Fatal(err)
			}
			if err := p.Decode(f.Flags, f.Payload, names); err != nil {
				b.Fatal(err)
			}
		}
	}
}
