package replica

import (
	"testing"

	"github.com/felixlog/felix/storage"
)

// A follower that trimmed further than its leader is offered records below its head. It
// says where its head is, so that it is asked there, and does not take what it no longer
// has for different.
func TestRecordsBelowTheHead(t *testing.T) {
	x := newTrio()
	a, b := x.nodes[0], x.nodes[1]
	x.append(0, encodeBatch(1, 9, 10), 9)
	x.run()
	a.TrimTo(0, 0, 5)
	x.run() // the generation is stated again
	a.TrimTo(0, 0, 5)
	x.append(0, encodeBatch(x.tails[0], 1, 10), 1)
	x.run()
	head, tail := b.Log(0).Head, b.Log(0).Tail
	if head != 5 {
		t.Fatalf("head %d, want 5", head)
	}
	old := encodeBatch(1, 9, 10)
	b.Receive(0, &Message{Type: Append, From: "a", To: "b", Shard: ShardID{Incarnation: 1}, Term: a.Term(), Prev: Place{Next: 1}, Bytes: old, Mark: tail, Tail: tail})
	out := b.Take()
	if len(out.Effects) != 0 || len(out.Messages) != 1 {
		t.Fatalf("%+v", out)
	}
	if m := out.Messages[0]; m.Refused != RefusedPlace || m.Head != 5 || m.Tail != tail {
		t.Errorf("answered %v, head %d, tail %d; want %v, 5, %d", m.Refused, m.Head, m.Tail, RefusedPlace, tail)
	}

	// The leader that hears it asks at that head.
	l, pr := &a.logs[0], &a.peer("b").logs[0]
	pr.match, pr.state, pr.next, pr.asked, pr.probeAt = 0, probing, 1, true, 1
	a.stepBack(l, pr, &Message{Type: Appended, Refused: RefusedPlace, Prev: Place{Next: 1}, Tail: tail, Head: 5, At: 1, Start: 5})
	if pr.next != 5 {
		t.Errorf("asks at %d next, want 5", pr.next)
	}
}

// A follower began anew at the leader's head, was opened again before a record came, and
// cannot say its generation. It is asked at that head, not told to begin anew once more.
func TestIntroducedAtTheHead(t *testing.T) {
	x := newTrio()
	a := x.nodes[0]
	x.append(0, encodeBatch(1, 9, 10), 9)
	x.run()
	a.TrimTo(0, 0, 5)
	x.run() // the generation is stated again
	a.TrimTo(0, 0, 5)
	x.run()
	l, pr := &a.logs[0], &a.peer("b").logs[0]
	if l.head != 5 {
		t.Fatalf("head %d, want 5", l.head)
	}
	*pr = progress{state: probing, asked: true}
	a.Take()
	a.Receive(0, &Message{Type: Appended, From: "b", To: "a", Shard: ShardID{Incarnation: 1}, Term: a.Term(), Opening: a.peer("b").opening,
		Prev: Place{Next: 5}, Refused: Introduced, Tail: 5, Head: 5, Start: 5})
	out := a.Take()
	if len(out.Messages) != 0 || len(out.Effects) != 1 || out.Effects[0].Type != Fetch || out.Effects[0].At != 5 {
		t.Errorf("%+v; want a fetch at 5", out)
	}
}

// A leader whose log began anew cannot name the generation of its records before the first
// statement, so a follower that has them refuses their places. It is asked at the leader's
// head, where nothing need be named, before it is told to begin anew.
func TestRefusedAboveTheHead(t *testing.T) {
	a := newTrio().nodes[0]
	l, pr := &a.logs[0], &a.peer("b").logs[0]
	l.head, l.mark, l.tail, l.written, l.gens = 5, 11, 11, 11, []storage.GenerationStart{{Generation: 1, Start: 9}}
	refused := Message{Type: Appended, Refused: RefusedPlace, Prev: Place{Next: 8}, Tail: 8, Head: 2, At: 1, Start: 2}
	*pr = progress{state: probing, asked: true, next: 8, probeAt: 8}
	a.stepBack(l, pr, &refused)
	if pr.next != 5 {
		t.Errorf("refused at 8: asks at %d next, want 5", pr.next)
	}
	refused.Prev.Next, pr.asked, pr.probeAt = 5, true, 5
	a.stepBack(l, pr, &refused)
	if pr.next >= 5 {
		t.Errorf("refused at the head: asks at %d next, want below it, to begin anew", pr.next)
	}
}
