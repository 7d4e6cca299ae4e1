package replica

import (
	"testing"
	"time"

	"github.com/felixlog/felix/internal/meta"
)

// A fence was admitted, since no grant was in force, and its term is on its way to the
// disk. The old leader's beat that comes meanwhile is answered, but grants nothing: the
// fence is answered as soon as the term is stored.
func TestNoLeaseIsGrantedUnderAFence(t *testing.T) {
	old := Term{Generation: 1, By: Opening{Disk: 1, Count: 1}}
	next := Term{Generation: 2, By: Opening{Disk: 3, Count: 1}}
	shard := ShardID{Incarnation: 1}
	b := New(Config{Node: "b", Shard: shard, Consistency: meta.ConsistencyQuorum, Leases: true},
		Opened{Opening: Opening{Disk: 2, Count: 1}, Accepted: old, Logs: make([]LogOpened, 1)})
	beat := Message{Type: Beat, From: "a", To: "b", Shard: shard, Term: old, Round: 1, Lease: true, Marks: make([]LogMark, 1)}
	now := LeaseTime + time.Second // an earlier opening's grants are over
	answer := func() *Message {
		out := b.Take()
		for i := range out.Messages {
			if m := &out.Messages[i]; m.Type == BeatAnswer {
				return m
			}
		}
		t.Fatal("the beat was not answered")
		return nil
	}
	b.Receive(now, &beat)
	if !answer().Lease {
		t.Fatal("a follower at rest grants no lease")
	}
	now += LeaseTime + time.Second
	b.Receive(now, &Message{Type: Fence, From: "c", To: "b", Shard: shard, Term: next, Round: 1})
	beat.Round = 2
	b.Receive(now, &beat)
	if m := answer(); m.Lease || m.Refused != NotRefused {
		t.Errorf("granted %t, %v; want an answer that grants nothing", m.Lease, m.Refused)
	}
}
