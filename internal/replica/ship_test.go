package replica

import (
	"context"
	"fmt"
	"testing"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
)

// shipped is three replicas over real logs, single-stepped, on disks that count.
type shipped struct {
	t     *testing.T
	nodes [3]*Replica
	logs  [3]*storage.Log
	disks [3]*disk.Counting
	// group is the leader's last group, while its bytes are valid; aliased counts the
	// messages that carry its very bytes.
	group   []byte
	aliased int
	carried int
	fetches int
}

func newShipped(t *testing.T) *shipped {
	x := &shipped{t: t}
	a := &meta.Assignment{Incarnation: 1}
	for i := range x.nodes {
		a.Members = append(a.Members, meta.Member{Node: trioNode(i), Disk: meta.DiskID(i + 1)})
		x.disks[i] = disk.NewCounting(disk.NewStrict(uint64(i), disk.Options{}))
		log, err := storage.Open(context.Background(), "/log", storage.Options{
			FS: x.disks[i], Shard: "s", Fsync: storage.OnCommit, Manual: true, Clock: func() storage.Micros { return 1 },
			Hooks: storage.Hooks{
				Written: func(g *storage.Group) {
					x.group = g.Encoded
					encoded := g.Encoded
					if g.Batches[0].Encoded != nil {
						encoded = nil // what Write handed over
					}
					x.nodes[i].Written(0, 0, g.First, g.Next, encoded)
					x.drain(i) // while the group's bytes are valid
					x.group = nil
				},
				Stable: func(g *storage.Group) { x.nodes[i].Stable(0, 0, g.Next) },
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		x.logs[i] = log
		x.nodes[i] = New(Config{Node: trioNode(i), Shard: ShardID{Incarnation: 1}, Consistency: meta.ConsistencyQuorum},
			Opened{Opening: Opening{Disk: meta.DiskID(i + 1), Count: 1}, Logs: make([]LogOpened, 1)})
	}
	t.Cleanup(func() {
		for _, l := range x.logs {
			if err := l.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	x.nodes[0].Assigned(0, a, 1)
	x.nodes[0].Campaign(0)
	x.run()
	return x
}

func (x *shipped) run() {
	for busy := true; busy; {
		busy = false
		for i := range x.nodes {
			if x.drain(i) {
				busy = true
			}
			for x.logs[i].Step() {
				busy = true
			}
		}
	}
}

// drain delivers and carries out. A transport would copy a message's bytes at once; here
// they are copied on delivery, once, into what the follower's log writes from.
func (x *shipped) drain(i int) bool {
	out := x.nodes[i].Take()
	for j := range out.Messages {
		m := out.Messages[j]
		if len(m.Bytes) > 0 {
			x.carried++
			if x.group != nil && &m.Bytes[0] == &x.group[0] && len(m.Bytes) == len(x.group) {
				x.aliased++
			}
			m.Bytes = append([]byte(nil), m.Bytes...)
		}
		x.nodes[m.To[0]-'a'].Receive(0, &m)
	}
	effects := append([]Effect(nil), out.Effects...)
	for j := range effects {
		x.carryOut(i, &effects[j])
	}
	return len(out.Messages)+len(effects) > 0
}

func (x *shipped) carryOut(i int, e *Effect) {
	r := x.nodes[i]
	switch e.Type {
	case Persist:
		r.Persisted(0, e.Term, e.Forgetful)
	case Flush:
		r.Flushed(0)
	case Propose:
		r.Proposed(0, ProposalDone, 2)
	case AppendStart:
		x.enqueue(i, &storage.Batch{Payloads: [][]byte{generationBytes(e.Term.Generation)}, Kind: storage.KindGenerationStart})
	case Write:
		prev := storage.RecordID{}
		if e.Prev.Next > 0 {
			prev = storage.RecordID{Offset: e.Prev.Next - 1, Generation: e.Prev.Generation, Checksum: e.Prev.Checksum}
		}
		x.enqueue(i, &storage.Batch{Encoded: e.Bytes, Prev: prev})
	case Fetch:
		x.fetches++
	}
}

func (x *shipped) enqueue(i int, b *storage.Batch) {
	b.Done = func(b *storage.Batch) {
		if b.Err != nil {
			x.t.Errorf("replica %d: %v", i, b.Err)
		}
	}
	if err := x.logs[i].Enqueue(b); err != nil {
		x.t.Fatal(err)
	}
}

// A leader ships the bytes its log wrote and a follower writes the bytes that came: no
// record is encoded twice, and nothing that was just written is read back.
func TestShipsWhatWasWritten(t *testing.T) {
	x := newShipped(t)
	for i := range x.disks {
		x.disks[i].Reset()
	}
	x.aliased, x.carried = 0, 0
	const batches = 200
	for i := range batches {
		x.enqueue(0, &storage.Batch{Payloads: [][]byte{fmt.Appendf(nil, "record %d", i), make([]byte, 100)}})
		x.run()
	}
	if mark := x.nodes[0].Log(0).Mark; mark != 1+2*batches {
		t.Fatalf("committed %d, want %d", mark, 1+2*batches)
	}
	if x.carried != 2*batches || x.aliased != x.carried {
		t.Errorf("%d messages carried records, %d of them the very bytes the leader's log wrote; want %d", x.carried, x.aliased, 2*batches)
	}
	if x.fetches != 0 {
		t.Errorf("%d reads asked for by the leader", x.fetches)
	}
	want := x.disks[0].Path("*.log")
	for i := range x.disks {
		c := x.disks[i].Path("*.log")
		if n := c.Of(disk.OpRead); n != 0 {
			t.Errorf("replica %d read its log %d times", i, n)
		}
		if c.Writes() != batches || c.Flushes() != batches {
			t.Errorf("replica %d: %d writes and %d flushes, want %d of each", i, c.Writes(), c.Flushes(), batches)
		}
		if c != want {
			t.Errorf("replica %d did %+v, the leader %+v", i, c, want)
		}
	}
	if l := x.logs[0]; l.Durable() != 1+2*batches {
		t.Errorf("the leader's log is durable up to %d", l.Durable())
	}
}
