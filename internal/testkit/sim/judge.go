package sim

import (
	"slices"

	"github.com/felixlog/felix/internal/replica"
	"github.com/felixlog/felix/storage"
)

// judge looks at the whole once everything has settled.
func (w *world) judge() {
	n := w.leader()
	if n == nil {
		w.fail("progress", "no leader at the end: %s", w.describe())
		return
	}
	w.check.judgeLogs(n)
	if w.violation == nil {
		w.check.judgeHistory(n)
	}
}

// judgeLogs compares the logs of all members with the leader's, byte by byte, and looks
// for what was acknowledged and what was refused.
func (c *checker) judgeLogs(n *node) {
	w := c.w
	set, _ := n.shard.rep.Set()
	for i, p := range n.shard.ports {
		log := replica.LogID(i)
		o := &c.logs[i]
		own := contents(p)
		for _, m := range set {
			f := w.node(m.Node)
			if f == n {
				continue
			}
			q := f.shard.ports[i]
			theirs := contents(q)
			for at := max(p.head(), q.head()); at < max(offset(len(own)), offset(len(theirs))); at++ {
				if at >= offset(len(own)) || at >= offset(len(theirs)) || own[at] != theirs[at] {
					w.fail("byte-equality", "log %d: record %d differs between %s and %s at the end", i, at, n.id, f.id)
					return
				}
			}
		}
		if c.judgeOutside(n, log, own); w.violation != nil {
			return
		}
		for _, a := range sortedAcked(o.acked) {
			if a.at < p.head() {
				continue
			}
			have := ""
			if a.at < offset(len(own)) {
				have = payloadOf(own[a.at], a.at)
			}
			if have != a.rec.payloads[0] && !c.allowed(log, a.at, a.rec.payloads[0]) && !c.leaderLoss(log, a.at, a.rec) {
				w.fail("acknowledged", "log %d: record %d, acknowledged at %v by %s in generation %d, is gone (lost by %d of %d replicas)", i, a.at, a.rec.at, a.rec.node.id, a.rec.term.Generation, len(o.lost[a.at]), c.members)
				return
			}
		}
		for at := range o.seen {
			if at >= offset(len(own)) && !c.lossy && !c.allowed(log, at, o.seen[at]) {
				w.fail("readers", "record %d that a reader saw is absent", at)
				return
			}
			if at >= p.head() && at < offset(len(own)) && payloadOf(own[at], at) != o.seen[at] && !c.allowed(log, at, o.seen[at]) && !c.lossy {
				w.fail("readers", "record %d that a reader saw is another one", at)
				return
			}
		}
		c.judgeRecords(n, i, own, p.head())
		if w.violation != nil {
			return
		}
	}
}

// judgeOutside compares the logs of the replicas that are not in the set, below their marks,
// with the leader's records own: those that left the set, and learners. What is above their
// marks was never said to be committed, and nobody cuts it while they are not fed.
func (c *checker) judgeOutside(n *node, log replica.LogID, own []string) {
	for _, f := range c.w.nodes {
		if f.shard == nil || f.shard.incarnation != c.w.shard.incarnation || c.listed(f) {
			continue
		}
		theirs := contents(f.shard.ports[log])
		mark := min(f.shard.rep.Log(log).Mark, offset(len(theirs)))
		for at := max(n.shard.ports[log].head(), f.shard.ports[log].head()); at < mark; at++ {
			if (at >= offset(len(own)) || own[at] != theirs[at]) && !c.keeps(log, at, theirs[at]) {
				c.w.fail("byte-equality", "log %d: record %d, below the mark %d of %s, outside of the set, is not the one of %s at the end", log, at, mark, f.id, n.id)
				return
			}
		}
	}
}

type ackedAt struct {
	at  offset
	rec ackedRecord
}

func sortedAcked(m map[offset]ackedRecord) []ackedAt {
	out := make([]ackedAt, 0, len(m))
	for at, r := range m {
		out = append(out, ackedAt{at, r})
	}
	slices.SortFunc(out, func(a, b ackedAt) int {
		if a.at < b.at {
			return -1
		}
		return 1
	})
	return out
}

// judgeRecords looks at the leader's records: none was refused, none is there twice,
// and every record below the group's position was handed out.
func (c *checker) judgeRecords(n *node, log int, own []string, head offset) {
	w := c.w
	if w.shape.Same {
		return
	}
	count := map[string]offset{}
	for at := head; at < offset(len(own)); at++ {
		r, err := decodeRecord(own[at], at)
		if err != nil {
			w.fail("log", "record %d at the end: %v", at, err)
			return
		}
		if r.Kind == storage.KindGenerationStart {
			continue
		}
		p := string(r.Payload)
		if op, ok := c.refused[p]; ok {
			w.fail("refused", "log %d: record %d was answered %v (operation of client %d, mismatch %t) and is there", log, at, op.outcome, op.client, op.mismatch)
			return
		}
		if log == 0 {
			if first, twice := count[p]; twice {
				w.fail("duplicates", "records %d and %d are the same publish", first, at)
				return
			}
			count[p] = at
		}
	}
	if log == 1 && !w.shape.Retention && !c.lossy && n.shard.app.built {
		stream := n.shard.ports[0]
		position := n.shard.app.position
		err := stream.records(stream.head(), min(position, stream.next()), func(r *storage.Record) {
			if r.Kind != storage.KindGenerationStart && !c.handed[r.Offset] && w.violation == nil {
				w.fail("queue", "record %d is below the group's position %d and was never handed out", r.Offset, position)
			}
		})
		if err != nil {
			w.fail("log", "read at the end: %v", err)
		}
	}
}
