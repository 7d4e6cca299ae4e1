package replica

import (
	"errors"
	"testing"
	"time"
)

// A thousand shards at rest cost one frame a second between two nodes, and no step.
func TestIdleShardsCostOneBeatAPair(t *testing.T) {
	shards := make([]*trio, 1000)
	for i := range shards {
		shards[i] = newTrio()
		shards[i].now = time.Second
		for _, r := range shards[i].nodes {
			r.Tick(time.Second)
		}
		shards[i].run()
	}
	steps := 0
	p := Pair{Peer: "b"}
	frames := 0
	for now := time.Second; now < 11*time.Second; now += 10 * time.Millisecond {
		for _, x := range shards {
			for _, r := range x.nodes {
				if !r.Settled() {
					steps++
				}
			}
		}
		if f := p.Flush(now); f != nil {
			frames++
			if err := DecodeFrame(f, func(*Message) { t.Error("a message in an idle frame") }); err != nil {
				t.Fatal(err)
			}
		}
	}
	if steps != 0 {
		t.Errorf("%d steps for shards at rest", steps)
	}
	if frames != 10 {
		t.Errorf("%d frames in 10 s, want 10", frames)
	}
}

// Beats of many shards travel in one frame.
func TestPairGathersBeats(t *testing.T) {
	p := Pair{Peer: "b"}
	for i := range 100 {
		if !p.Add(&Message{Type: Beat, Shard: ShardID{Shard: uint32(i)}, Marks: make([]LogMark, 2), Round: 7}) {
			t.Fatal("a beat was not taken")
		}
	}
	if p.Add(&Message{Type: Append}) {
		t.Fatal("records were taken")
	}
	n := 0
	if err := DecodeFrame(p.Flush(0), func(m *Message) {
		if m.Shard.Shard != uint32(n) || m.Round != 7 {
			t.Errorf("message %d: %+v", n, m)
		}
		n++
	}); err != nil || n != 100 {
		t.Fatalf("%d messages, %v", n, err)
	}
	if p.Flush(0) != nil {
		t.Fatal("nothing was added, and something is to be sent")
	}
}

func FuzzDecodeFrame(f *testing.F) {
	p := Pair{}
	p.Add(&Message{Type: Beat, Marks: make([]LogMark, 1)})
	f.Add(append([]byte(nil), p.Flush(0)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		if err := DecodeFrame(b, func(*Message) { n++ }); err != nil {
			var e *CodecError
			if !errors.As(err, &e) {
				t.Fatalf("%T", err)
			}
		}
		if n > len(b)/(fixedSize+fieldsSize) {
			t.Fatalf("%d messages in %d bytes", n, len(b))
		}
	})
}
