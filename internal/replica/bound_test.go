package replica

import (
	"errors"
	"testing"

	"github.com/felixlog/felix/internal/meta"
)

// A leader whose followers are silent acknowledges 4 MiB beyond the first batch, and goes on
// when they answer.
func TestUnshippedBytes(t *testing.T) {
	x := newTrio()
	a := x.nodes[0]
	a.cfg.Consistency = meta.ConsistencyLeader
	batch := encodeBatch(1, 1, 512<<10) // a record of half a MiB
	acked := func() Offset {
		to := a.logs[0].acked
		for _, e := range a.Take().Effects {
			if e.Type == Acknowledge {
				to = e.At
			}
		}
		return to
	}
	start := a.Log(0).Tail
	for range 12 {
		at := a.Log(0).Tail
		batch = encodeBatch(at, 1, 512<<10)
		a.Written(0, 0, at, at+1, batch)
		a.Stable(0, 0, at+1)
	}
	want := start + 1 + Offset(UnshippedBytes/len(batch))
	if got := acked(); got != want {
		t.Errorf("12 records of %d bytes: acknowledged up to %d, want %d", len(batch), got, want)
	}
	b := a.peer("b")
	a.Receive(0, &Message{Type: Appended, From: "b", To: "a", Shard: ShardID{Incarnation: 1}, Term: a.Term(), Opening: b.opening, Prev: Place{Next: start}, Match: start + 12})
	if got := acked(); got != start+12 {
		t.Errorf("all committed: acknowledged up to %d, want %d", got, start+12)
	}
}

// Retention does not take away what a follower is being fed: it would have to begin anew.
func TestTrimWaitsForTheCopy(t *testing.T) {
	x := newTrio()
	a := x.nodes[0]
	x.append(0, encodeBatch(1, 9, 10), 9)
	x.run()
	a.TrimTo(0, 0, 8)
	x.run() // the generation is stated again
	pr := &a.peer("b").logs[0]
	*pr = progress{match: 3, next: 3, state: streaming}
	a.pump(a.peer("b"), &a.logs[0])
	a.Take()
	a.TrimTo(0, 0, 8)
	if head := a.Log(0).Head; head != 3 {
		t.Fatalf("head %d while records from 3 on are read for a follower; want 3", head)
	}
	a.Take()
	a.Fetched(0, 0, "b", Place{Next: 3, Generation: 1}, encodeBatch(3, 8, 10), 11, false)
	for _, m := range a.Take().Messages {
		if m.Type == Reset {
			t.Error("the follower is told to begin anew")
		}
	}
	a.TrimTo(0, 0, 8)
	if head := a.Log(0).Head; head != 8 {
		t.Errorf("head %d after the copy; want 8", head)
	}
}

// A fence is answered when the logs are flushed, so that the votes say what a power cut
// leaves: a candidate that finds less has to ask everybody again.
func TestFenceIsAnsweredAfterTheFlush(t *testing.T) {
	x := newTrio()
	b := x.nodes[1]
	next := Term{Generation: 2, By: Opening{Disk: 3, Count: 1}}
	b.Receive(0, &Message{Type: Fence, From: "c", To: "b", Shard: ShardID{Incarnation: 1}, Term: next, Round: 1})
	out := b.Take()
	if len(out.Messages) != 0 || len(out.Effects) != 1 || out.Effects[0].Type != Persist {
		t.Fatalf("at the fence: %+v; want the generation to be stored", out)
	}
	b.Persisted(0, next, false)
	out = b.Take()
	if len(out.Messages) != 0 || len(out.Effects) != 1 || out.Effects[0].Type != Flush {
		t.Fatalf("stored: %+v; want a flush", out)
	}
	b.Flushed(0)
	if out = b.Take(); len(out.Messages) != 1 || out.Messages[0].Type != FenceAnswer || out.Messages[0].Refused != NotRefused {
		t.Errorf("flushed: %+v; want the answer", out)
	}
}

// A replica that may have forgotten records does not say from its own disk what is
// committed: other records may have taken their places since. One that has not does.
func TestForgetfulKnowsNoMark(t *testing.T) {
	for _, forgetful := range []bool{false, true} {
		gens := make([]LogOpened, 1)
		gens[0] = LogOpened{Head: 2, Next: 9, Mark: 7, Last: Place{Next: 9, Generation: 1}}
		r := New(Config{Node: "a", Shard: ShardID{Incarnation: 1}}, Opened{Opening: Opening{Disk: 1, Count: 1}, Forgetful: forgetful, Logs: gens})
		want := Offset(7)
		if forgetful {
			want = 2
		}
		if got := r.Log(0).Mark; got != want {
			t.Errorf("forgetful %t: mark %d, want %d", forgetful, got, want)
		}
	}
}

// A change of the set adds, removes or replaces one member, and keeps the leader.
func TestOneMemberAtATime(t *testing.T) {
	a := newTrio().nodes[0]
	m := func(n meta.NodeID) meta.Member { return meta.Member{Node: n, Disk: meta.DiskID(n[0]-'a') + 1} }
	for _, next := range [][]meta.Member{
		{m("a"), m("d"), m("e")},                 // two replaced
		{m("a")},                                 // two removed
		{m("a"), m("b"), m("c"), m("d"), m("e")}, // two added
		{m("b"), m("c"), m("d")},                 // the leader replaced
		{m("a"), m("b"), m("c")},                 // nothing
	} {
		if err := a.ChangeSet(0, next); !errors.Is(err, ErrBadSet) {
			t.Errorf("%v: %v, want %v", next, err, ErrBadSet)
		}
	}
	if err := a.ChangeSet(0, []meta.Member{m("a"), m("b")}); err != nil {
		t.Errorf("one removed: %v", err)
	}
}

// A follower that is told to begin anew, and holds records above its new base, says on its
// disk that it may forget them before it does.
func TestBeginAnewIsForgetfulFirst(t *testing.T) {
	x := newTrio()
	a, b := x.nodes[0], x.nodes[1]
	x.append(0, encodeBatch(1, 9, 10), 9)
	x.run()
	b.logs[0].mark = 3 // as if it had not heard of the mark
	b.Receive(0, &Message{Type: Reset, From: "a", To: "b", Shard: ShardID{Incarnation: 1}, Term: a.Term(), Match: 5, Mark: 10, Head: 5, Tail: 10})
	out := b.Take()
	if len(out.Effects) != 1 || out.Effects[0].Type != Persist || !out.Effects[0].Forgetful {
		t.Fatalf("%+v; want the flag to be stored and nothing else", out.Effects)
	}
	b.Persisted(0, out.Effects[0].Term, true)
	out = b.Take()
	if len(out.Effects) != 1 || out.Effects[0].Type != Rebase || out.Effects[0].At != 5 {
		t.Errorf("%+v; want the log to begin anew at 5", out.Effects)
	}
}
