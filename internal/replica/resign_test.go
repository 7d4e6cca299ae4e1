package replica

import (
	"testing"

	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// A leader's append was admitted, and is being written, when a fence deposes it. The next
// leader's first record is handed over for the same place. What the log then reports is
// the old append: it must not pass for the record that was handed over.
func TestAppendUnderWayAtResigning(t *testing.T) {
	x := newTrio()
	a := x.nodes[0]
	tail := a.Log(0).Tail
	own := encodeBatch(tail, 1, 10)

	next := Term{Generation: a.Term().Generation + 1, By: Opening{Disk: 2, Count: 1}}
	a.Receive(0, &Message{Type: Fence, From: "b", To: "a", Shard: ShardID{Incarnation: 1}, Term: next, Round: 1})
	a.Take()
	a.Persisted(0, next, false)
	a.Take()
	a.Flushed(0)
	if a.Term() != (Term{}) {
		t.Errorf("a deposed leader's term is %+v", a.Term())
	}
	start := segment.AppendRecord(nil, &segment.RecordSpec{Offset: tail, Kind: storage.KindGenerationStart, Payload: generationBytes(next.Generation)})
	prev := a.logs[0].last
	a.Receive(0, &Message{Type: Append, From: "b", To: "a", Shard: ShardID{Incarnation: 1}, Term: next, Prev: prev, Bytes: start, Mark: tail + 1, Tail: tail + 1})
	if got := a.Log(0).Tail; got != tail+1 {
		t.Fatalf("tail %d after the leader's record, want %d", got, tail+1)
	}
	a.Take()

	a.Written(0, 0, tail, tail+1, own)
	a.Stable(0, 0, tail+1)
	out := a.Take()
	for _, m := range out.Messages {
		if m.Type == Appended && m.Match > tail {
			t.Errorf("answers that it holds up to %d", m.Match)
		}
	}
	if a.Role() != Stopped {
		t.Errorf("%v, want stopped: the log must be opened again", a.Role())
	}
}

// The same append when nothing was handed over yet is a suffix nobody was sent.
func TestAppendUnderWayIsASuffix(t *testing.T) {
	x := newTrio()
	a := x.nodes[0]
	tail := a.Log(0).Tail
	next := Term{Generation: a.Term().Generation + 1, By: Opening{Disk: 2, Count: 1}}
	a.Receive(0, &Message{Type: Fence, From: "b", To: "a", Shard: ShardID{Incarnation: 1}, Term: next, Round: 1})
	a.Take()
	a.Written(0, 0, tail, tail+1, encodeBatch(tail, 1, 10))
	if st := a.Log(0); st.Tail != tail+1 || st.Written != tail+1 || a.Role() != Follower {
		t.Errorf("%v, %+v; want a follower with tail %d", a.Role(), st, tail+1)
	}
}
