package sim

import (
	"math/rand/v2"
	"testing"

	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// holds makes the log of a node end with records of these payloads, the last of them below
// its mark, and opens it.
func (n *node) holds(payloads ...string) {
	inc := n.world.shard.incarnation
	l := n.shard.ports[0].(*memLog)
	l.appendEncoded(segment.AppendRecord(nil, &segment.RecordSpec{Kind: storage.KindGenerationStart, Payload: generationPayload(1)}))
	for i, p := range payloads {
		l.appendEncoded(segment.AppendRecord(nil, &segment.RecordSpec{Offset: offset(i + 1), Payload: []byte(p)}))
	}
	l.data.durable = len(l.data.recs)
	n.disk.state[inc].marks[0] = l.next()
	n.closeShard()
	n.openShard(inc)
}

// TestOutsideOfTheSet: n1 is the set, n2 left it. Below its mark n2 holds what was committed,
// the record of n1 or one that n1 lost; it may say so before n1 speaks of another, or after.
func TestOutsideOfTheSet(t *testing.T) {
	const set, outside = 0, 1
	for _, c := range []struct {
		name  string
		holds [2]string
		was   string // committed before
		lost  bool   // and lost by n1
		says  []int  // who says what is committed, in this order
		fails bool
	}{
		{name: "the same", holds: [2]string{"a", "a"}, says: []int{set, outside}},
		{name: "another", holds: [2]string{"a", "b"}, says: []int{set, outside}, fails: true},
		{name: "what was lost", holds: [2]string{"a", "b"}, was: "b", lost: true, says: []int{set, outside}},
		{name: "what was lost, said first", holds: [2]string{"a", "b"}, was: "b", lost: true, says: []int{outside, set}},
		{name: "other than what was lost", holds: [2]string{"a", "c"}, was: "b", lost: true, says: []int{set, outside}, fails: true},
		{name: "other than what was lost, said first", holds: [2]string{"a", "c"}, was: "b", lost: true, says: []int{outside, set}, fails: true},
		{name: "the same, silent", holds: [2]string{"a", "a"}, says: []int{set}},
		{name: "another, silent", holds: [2]string{"a", "b"}, says: []int{set}, fails: true},
		{name: "what was lost, silent", holds: [2]string{"a", "b"}, was: "b", lost: true, says: []int{set}},
		{name: "what was not lost", holds: [2]string{"a", "b"}, was: "b", says: []int{set}, fails: true},
	} {
		for when, judge := range map[string]func(*checker, *node, *node){
			"at the end":         func(c *checker, set, outside *node) { c.judgeOutside(set, 0, contents(set.shard.ports[0])) },
			"as it is set aside": func(c *checker, _, outside *node) { c.settingAside(outside) },
		} {
			t.Run(c.name+", "+when, func(t *testing.T) {
				shape := drawShape(1, "outside")
				shape.Nodes = 2
				w := &world{opts: Options{Memory: true}, shape: shape, rng: rand.New(rand.NewPCG(1, 2))}
				w.setup()
				defer w.close()
				for i, p := range c.holds {
					w.nodes[i].holds(p)
				}
				if c.was != "" {
					o := &w.check.logs[0]
					start := contents(w.nodes[set].shard.ports[0])[0]
					was := string(segment.AppendRecord(nil, &segment.RecordSpec{Offset: 1, Payload: []byte(c.was)}))
					o.recs = []string{start, was}
					if c.lost {
						o.lost[1] = map[loss]bool{{w.nodes[set].id, was}: true}
					}
				}
				for _, i := range c.says {
					w.check.committed(w.nodes[i], 0, 2)
				}
				judge(&w.check, w.nodes[set], w.nodes[outside])
				if failed := w.violation != nil; failed != c.fails {
					t.Errorf("violation %v; want one: %t", w.violation, c.fails)
				}
			})
		}
	}
}
