package replica

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/felixlog/felix/internal/meta"
)

func drawMessage(t *rapid.T) *Message {
	u := func(name string) uint64 { return rapid.Uint64().Draw(t, name) }
	opening := func() Opening { return Opening{Disk: meta.DiskID(u("disk")), Count: u("count")} }
	m := &Message{
		Type:    MessageType(rapid.IntRange(1, int(messageTypeCount)-1).Draw(t, "type")),
		Shard:   ShardID{u("incarnation"), uint32(u("shard"))},
		Term:    Term{Generation(u("generation")), opening()},
		Opening: opening(), Peer: u("peer"),
		Log:  LogID(rapid.IntRange(0, MaxLogs-1).Draw(t, "log")),
		Prev: Place{Offset(u("next")), Generation(u("gen")), uint32(u("sum"))},
		Mark: Offset(u("mark")), Head: Offset(u("head")), Tail: Offset(u("tail")), Match: Offset(u("match")), Start: Offset(u("start")), At: Generation(u("at")),
		Refused:  Refusal(rapid.IntRange(0, int(refusalCount)-1).Draw(t, "refused")),
		Accepted: Term{Generation(u("accepted")), opening()},
		Round:    u("round"), Lease: rapid.Bool().Draw(t, "lease"), Forgetful: rapid.Bool().Draw(t, "forgetful"),
	}
	if b := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "bytes"); len(b) > 0 {
		m.Bytes = b
	}
	for range rapid.IntRange(0, MaxLogs).Draw(t, "marks") {
		m.Marks = append(m.Marks, LogMark{Offset(u("m")), Offset(u("h")), Offset(u("t"))})
	}
	for range rapid.IntRange(0, MaxLogs).Draw(t, "votes") {
		m.Votes = append(m.Votes, LogVote{Generation(u("l")), Offset(u("h")), Offset(u("t")), Offset(u("m")), rapid.Bool().Draw(t, "unknown")})
	}
	if rapid.Bool().Draw(t, "forward") {
		text := rapid.StringN(0, 20, MaxForwardText)
		m.Forward = &ForwardBody{
			Origin: meta.NodeID(text.Draw(t, "origin")), Sequence: u("sequence"), Principal: text.Draw(t, "principal"), Permission: text.Draw(t, "permission"),
			Outcome: Outcome(rapid.IntRange(0, int(outcomeCount)-1).Draw(t, "outcome")), Offset: Offset(u("offset")),
		}
	}
	return m
}

func TestCodecRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMessage(t)
		b := m.Append(nil)
		if len(b) != m.Size() {
			t.Fatalf("%d bytes, Size says %d", len(b), m.Size())
		}
		var got Message
		if err := got.Decode(b); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(m, &got); d != "" {
			t.Fatal(d)
		}
		// Every shorter message is refused, and so is a longer one.
		cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut")
		var e *CodecError
		if err := got.Decode(b[:cut]); !errors.As(err, &e) {
			t.Fatalf("%d of %d bytes: %v", cut, len(b), err)
		}
		if err := got.Decode(append(b, 0)); !errors.As(err, &e) {
			t.Fatalf("one byte more: %v", err)
		}
	})
}

func TestCodecRefusesByName(t *testing.T) {
	b := (&Message{Type: Append, Bytes: []byte("x")}).Append(nil)
	for _, c := range []struct {
		name string
		at   int
		v    byte
		want string
	}{
		{"version", 0, 2, "replica message: version 2, this broker speaks 1"},
		{"type", 1, 99, "replica message: unknown type 99"},
		{"flags", 2, 0x80, "replica message append: unknown flags 0x80"},
		{"refusal", 3, 99, "replica message append: unknown refusal 99"},
		{"reserved", fixedSize - 1, 1, "replica message append: reserved byte is not zero"},
		{"log", fixedSize - 4, 9, "replica message append: log 9, 0 marks, 0 votes: at most 4 logs"},
		{"length", len(b) - 2, 9, "replica message append: 9 bytes of records announced, 1 left"},
	} {
		bad := append([]byte(nil), b...)
		bad[c.at] = c.v
		var m Message
		if err := m.Decode(bad); err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// FuzzDecode: whatever comes from the wire is either refused or is exactly one message;
// no length of it sizes an allocation.
func FuzzDecode(f *testing.F) {
	f.Add((&Message{Type: Append, Bytes: []byte("records")}).Append(nil))
	f.Add((&Message{Type: FenceAnswer, Votes: make([]LogVote, 2), Forgetful: true}).Append(nil))
	f.Add((&Message{Type: Beat, Marks: make([]LogMark, 2), Lease: true}).Append(nil))
	f.Add((&Message{Type: Forward, Forward: &ForwardBody{Origin: "n1", Principal: "p"}}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m Message
		if err := m.Decode(b); err != nil {
			var e *CodecError
			if !errors.As(err, &e) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		if again := m.Append(nil); string(again) != string(b) {
			t.Fatalf("decoded and encoded again: %x, was %x", again, b)
		}
	})
}

// FuzzWalk: the header walk takes any bytes; what it accepts is whole records.
func FuzzWalk(f *testing.F) {
	f.Add(encodeBatch(7, 3, 10), uint64(7), uint64(2))
	f.Fuzz(func(t *testing.T, b []byte, first, gen uint64) {
		p, err := walk(b, Offset(first), Generation(gen), nil)
		if err == nil && uint64(p.Next)-first > uint64(len(b))/28 {
			t.Fatalf("%d records in %d bytes", uint64(p.Next)-first, len(b))
		}
		if rest := skip(b, Offset(first)+1); len(rest) > len(b) {
			t.Fatal("skip made it longer")
		}
	})
}

// FuzzReceive: no message, from anybody, in any role, makes a replica panic.
func FuzzReceive(f *testing.F) {
	f.Add((&Message{Type: Append, Shard: ShardID{Incarnation: 1}, Bytes: encodeBatch(0, 1, 4)}).Append(nil), uint8(0))
	f.Add((&Message{Type: Fence, Shard: ShardID{Incarnation: 1}, Term: Term{Generation: 9}}).Append(nil), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, who uint8) {
		var m Message
		if m.Decode(b) != nil {
			return
		}
		x := newTrio()
		x.append(0, encodeBatch(1, 4, 16), 4)
		x.run()
		to := int(who) % 3
		m.Shard = ShardID{Incarnation: 1}
		m.From, m.To = trioNode((to+1)%3), trioNode(to)
		x.nodes[to].Receive(x.now, &m)
		x.nodes[to].Take()
		x.nodes[to].Tick(x.now + ResendAfter)
		x.nodes[to].Take()
		if mark := x.nodes[to].Log(0).Mark; mark < 5 && to == 0 {
			t.Fatalf("a leader's mark went back to %d", mark)
		}
	})
}
