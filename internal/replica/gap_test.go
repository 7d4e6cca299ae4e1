package replica

import "testing"

// A batch is lost while the leader feeds a follower that is behind: the answers of those
// that came after it arrive while the next records are read. The leader goes back at once,
// and what was read meanwhile is not shipped.
func TestGapWhileFetching(t *testing.T) {
	x := newTrio()
	a := x.nodes[0]
	l, p := &a.logs[0], a.peer("b")
	pr := &p.logs[0]
	x.append(0, encodeBatch(1, 9, 10), 9)
	x.run()
	if l.tail != 10 || pr.match != 10 {
		t.Fatalf("tail %d, b holds %d; want 10", l.tail, pr.match)
	}
	// As if b had answered for 3 records, and those up to 6 were under way.
	*pr = progress{match: 3, next: 3, state: streaming}
	for end := Offset(4); end <= 6; end++ {
		pr.shipped(end, a.now)
	}
	a.pump(p, l)
	if out := a.Take(); len(out.Effects) != 1 || out.Effects[0].Type != Fetch || out.Effects[0].At != 6 {
		t.Fatalf("%+v; want a fetch at 6", out.Effects)
	}
	gap := Message{Type: Appended, From: "b", To: "a", Shard: ShardID{Incarnation: 1}, Term: a.Term(), Opening: p.opening,
		Prev: Place{Next: 4}, Refused: RefusedGap, Match: 3, Tail: 3, At: 1, Start: 0}
	a.Receive(0, &gap)
	gap.Prev.Next = 5
	a.Receive(0, &gap)
	if out := a.Take(); len(out.Messages) != 0 || len(out.Effects) != 0 {
		t.Fatalf("while a fetch is under way: %+v", out)
	}
	a.Fetched(0, 0, "b", Place{Next: 6, Generation: 1}, encodeBatch(6, 1, 10), 7, false)
	out := a.Take()
	if len(out.Messages) != 0 || len(out.Effects) != 1 || out.Effects[0].Type != Fetch || out.Effects[0].At != 3 {
		t.Fatalf("after a gap at 3: %+v; want a fetch at 3 and nothing shipped", out)
	}
	a.Fetched(0, 0, "b", Place{Next: 3, Generation: 1}, encodeBatch(3, 1, 10), 4, false)
	if out := a.Take(); len(out.Messages) != 1 || out.Messages[0].Prev.Next != 3 {
		t.Fatalf("%+v; want the records after 3", out.Messages)
	}
}
