package stream

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/felixlog/felix/storage/segment"
)

func envelope(first segment.Offset, sizes ...int) *Envelope {
	var payloads [][]byte
	for _, n := range sizes {
		payloads = append(payloads, make([]byte, n))
	}
	return NewEnvelope(first, nil, payloads)
}

func TestAnEnvelopeHoldsItsBatchInFrames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := drawShape(t)
		publisher := rapid.SampledFrom([]string{"", "alice"}).Draw(t, "publisher")
		var payloads [][]byte
		var want []event
		for range rapid.IntRange(0, 200).Draw(t, "n") {
			p := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "payload")
			payloads = append(payloads, p)
			e := event{payload: string(p)}
			if shape&ShapePublisher != 0 {
				e.publisher = publisher
			}
			want = append(want, e)
		}
		e := NewEnvelope(5, []byte(publisher), payloads)
		require.Equal(t, segment.Offset(5+len(payloads)), e.End())
		var frames []byte
		for _, c := range e.Chunks {
			frames = append(frames, c.Frame(shape)...)
		}
		require.Equal(t, want, readFrames(t, frames, nil), "no offsets and no times in frames of an in-memory stream")
	})
}

// The queue against a slice with the rules written out.
func TestQueueAgainstTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		overflow := Overflow(rapid.IntRange(0, 2).Draw(t, "overflow"))
		capacity := rapid.IntRange(1, 5).Draw(t, "capacity")
		maxBytes := rapid.IntRange(1, 100).Draw(t, "max_bytes")
		q := NewQueue(overflow, capacity, maxBytes)
		var model []*Envelope
		bytes := func() (n int) {
			for _, e := range model {
				n += e.Bytes
			}
			return n
		}
		t.Repeat(map[string]func(*rapid.T){
			"offer": func(t *rapid.T) {
				if q.Blocks() {
					return // never offered anything
				}
				e := envelope(0, rapid.IntRange(0, 60).Draw(t, "bytes"))
				queued, dropped := q.Offer(e)
				over := func() bool { return len(model) >= capacity || bytes()+e.Bytes > maxBytes }
				switch overflow {
				case Block:
					require.True(t, queued)
					require.Zero(t, dropped)
					model = append(model, e)
				case DropNew:
					if len(model) > 0 && over() {
						require.False(t, queued)
						require.Equal(t, 1, dropped)
						return
					}
					require.True(t, queued)
					model = append(model, e)
				case DropOld:
					n := 0
					for len(model) > 0 && over() {
						model = model[1:]
						n++
					}
					require.True(t, queued)
					require.Equal(t, n, dropped)
					model = append(model, e)
				}
			},
			"take": func(t *rapid.T) {
				got := q.Take()
				if len(model) == 0 {
					require.Nil(t, got)
					return
				}
				require.Same(t, model[0], got)
				model = model[1:]
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(model), q.Len())
				require.LessOrEqual(t, q.Len(), capacity)
				require.Equal(t, overflow == Block && (len(model) >= capacity || bytes() >= maxBytes), q.Blocks())
				if overflow != Block && len(model) > 1 {
					require.LessOrEqual(t, bytes(), maxBytes)
				}
			},
		})
	})
}

func TestReplayKeepsTheNewestWithinItsBounds(t *testing.T) {
	one := envelope(0, 10).Memory()
	r := NewReplay(3, 1<<20)
	next := segment.Offset(0)
	for range 5 {
		r.Add(envelope(next, 10, 10))
		next += 2
	}
	require.Equal(t, segment.Offset(4), r.Oldest())
	require.Equal(t, next, r.Next())
	require.Len(t, r.From(nil, 4), 3)
	require.Len(t, r.From(nil, 7), 2, "from the middle of a batch")
	require.Empty(t, r.From(nil, next))

	r = NewReplay(100, 2*one)
	for i := range 5 {
		r.Add(envelope(segment.Offset(i), 10))
	}
	require.Equal(t, segment.Offset(3), r.Oldest())
	require.LessOrEqual(t, r.Bytes(), 2*one)

	r = NewReplay(0, 0)
	r.Add(envelope(0, 10))
	require.Equal(t, r.Next(), r.Oldest(), "keeps nothing")
}
