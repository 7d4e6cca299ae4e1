package replica

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/testkit/heap"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

const (
	benchRecords = 64
	benchPayload = 128
	benchBatches = 2000
)

// trio is a leader with two followers whose logs are perfect and take no time: what is
// written is stable at once.
type trio struct {
	nodes     [3]*Replica
	now       time.Duration
	tails     [3]Offset
	committed Offset
	messages  int
	fetched   int // reads of what was written
	bytes     int
}

func trioNode(i int) meta.NodeID { return meta.NodeID([]string{"a", "b", "c"}[i]) }

func newTrio() *trio {
	x := &trio{}
	a := &meta.Assignment{Incarnation: 1}
	for i := range x.nodes {
		a.Members = append(a.Members, meta.Member{Node: trioNode(i), Disk: meta.DiskID(i + 1)})
	}
	for i := range x.nodes {
		x.nodes[i] = New(Config{Node: trioNode(i), Shard: ShardID{Incarnation: 1}, Consistency: meta.ConsistencyQuorum},
			Opened{Opening: Opening{Disk: meta.DiskID(i + 1), Count: 1}, Logs: make([]LogOpened, 1)})
	}
	x.nodes[0].Assigned(0, a, 1)
	x.nodes[0].Campaign(0)
	x.run()
	return x
}

// run carries messages and effects until there are none.
func (x *trio) run() {
	for busy := true; busy; {
		busy = false
		for i, r := range x.nodes {
			out := r.Take()
			for j := range out.Messages {
				busy = true
				m := &out.Messages[j]
				x.messages++
				x.bytes += len(m.Bytes)
				x.nodes[m.To[0]-'a'].Receive(x.now, m)
			}
			for j := range out.Effects {
				busy = true
				x.carryOut(i, &out.Effects[j])
			}
		}
	}
}

func (x *trio) carryOut(i int, e *Effect) {
	r := x.nodes[i]
	switch e.Type {
	case Persist:
		r.Persisted(x.now, e.Term, e.Forgetful)
	case Flush:
		r.Flushed(x.now)
	case Propose:
		r.Proposed(x.now, ProposalDone, 2)
	case AppendStart:
		var payload [8]byte
		payload[7] = byte(e.Term.Generation)
		b := segment.AppendRecord(nil, &segment.RecordSpec{Offset: x.tails[i], Kind: storage.KindGenerationStart, Payload: payload[:]})
		x.append(i, b, 1)
	case Write:
		x.tails[i] = e.At
		r.Written(x.now, 0, e.Prev.Next, e.At, nil)
		r.Stable(x.now, 0, e.At)
	case Fetch:
		x.fetched++
	case Committed:
		if i == 0 {
			x.committed = e.At
		}
	}
}

// append is the leader's log writing encoded records.
func (x *trio) append(i int, encoded []byte, n int) {
	first := x.tails[i]
	x.tails[i] += Offset(n)
	x.nodes[i].Written(x.now, 0, first, x.tails[i], encoded)
	x.nodes[i].Stable(x.now, 0, x.tails[i])
}

func encodeBatch(first Offset, records, payload int) []byte {
	var b []byte
	p := make([]byte, payload)
	for i := range records {
		b = segment.AppendRecord(b, &segment.RecordSpec{Offset: first + Offset(i), Timestamp: 1, Payload: p})
	}
	return b
}

func benchBatch() [][]byte {
	batches := make([][]byte, benchBatches)
	for i := range batches {
		batches[i] = encodeBatch(Offset(1+i*benchRecords), benchRecords, benchPayload)
	}
	return batches
}

// BenchmarkCommit is the step function alone: batches of 64 records of 128 bytes through
// a leader and two followers in memory, to the committed mark, on one core.
func BenchmarkCommit(b *testing.B) {
	batches := benchBatch()
	x := newTrio()
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		k := i % benchBatches
		if k == 0 && i > 0 {
			b.StopTimer()
			x = newTrio()
			b.StartTimer()
		}
		x.append(0, batches[k], benchRecords)
		x.run()
		if want := Offset(1 + (k+1)*benchRecords); x.committed != want {
			b.Fatalf("batch %d: committed %d, want %d", i, x.committed, want)
		}
	}
	b.ReportMetric(float64(b.N)*benchRecords/b.Elapsed().Seconds(), "records/s")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "batches/s")
}

// BenchmarkCommitOverBare is BenchmarkCommit beside a loop that does only what each of the
// three replicas cannot leave out: to read the headers of the records it is about to store
// or to ship. (The step function copies no record and computes no checksum; the log that
// stores them does.) It reports how many times as long a commit takes, by the quickest
// blocks of both, since a busy machine only adds. Both go over batches that are not in a
// cache.
func BenchmarkCommitOverBare(b *testing.B) {
	batches, others := benchBatch(), benchBatch()
	x := newTrio()
	const block = 50 // batches between two looks at the clock
	commit, bare := time.Hour, time.Hour
	b.ResetTimer()
	for i := range b.N {
		if i*block%benchBatches == 0 {
			x = newTrio()
		}
		part, other := batches[i*block%benchBatches:][:block], others[i*block%benchBatches:][:block]
		start := time.Now()
		for _, batch := range part {
			x.append(0, batch, benchRecords)
			x.run()
		}
		middle := time.Now()
		for _, batch := range other {
			first := Offset(binary.BigEndian.Uint64(batch[4:]))
			for range x.nodes {
				if _, err := walk(batch, first, 1, nil); err != nil {
					b.Fatal(err)
				}
			}
		}
		end := time.Now()
		commit, bare = min(commit, middle.Sub(start)), min(bare, end.Sub(middle))
	}
	if x.committed != x.tails[0] {
		b.Fatalf("committed %d, want %d", x.committed, x.tails[0])
	}
	b.ReportMetric(float64(commit)/float64(bare), "x-bare")
	b.ReportMetric(block*benchRecords/commit.Seconds(), "records/s")
}

// A batch takes at most two allocations through leader and two followers (it takes none
// once the queues have grown).
func TestCommitAllocations(t *testing.T) {
	batches := benchBatch()
	x := newTrio()
	next := 0
	step := func() {
		x.append(0, batches[next], benchRecords)
		x.run()
		next++
	}
	for range 100 {
		step()
	}
	if n := heap.Allocs(1000, step); n > 2 {
		t.Errorf("%.1f allocations a batch, at most 2", n)
	}
	if x.fetched > 0 {
		t.Errorf("%d reads of what was just written", x.fetched)
	}
	if want := x.tails[0]; x.committed != want {
		t.Fatalf("committed %d, want %d", x.committed, want)
	}
}

// A shard at rest has nothing to do: no message, no effect, and Tick is not needed.
func TestIdleShardIsSettled(t *testing.T) {
	x := newTrio()
	x.append(0, encodeBatch(1, 4, 16), 4)
	x.run()
	x.now += time.Second
	for _, r := range x.nodes {
		r.Tick(x.now)
	}
	x.run()
	before := x.messages
	for i, r := range x.nodes {
		if !r.Settled() {
			t.Errorf("replica %d is not settled", i)
		}
	}
	for range 1000 {
		x.now += 50 * time.Millisecond
		for _, r := range x.nodes {
			r.Tick(x.now)
		}
		x.run()
	}
	if x.messages != before {
		t.Errorf("%d messages from a shard at rest", x.messages-before)
	}
}
