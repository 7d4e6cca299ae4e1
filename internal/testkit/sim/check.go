package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/replica"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// checker watches a run. What it knows is by log: the committed records as the first
// replica said they are (the oracle), and what was acknowledged.
type checker struct {
	w     *world
	disks int

	logs         []oracle
	terms        map[generation]replica.Term // who started to lead each generation
	ops          []*operation
	refused      map[string]*operation // payloads that were answered "did not happen"
	lastValue    map[uint8]uint64
	groupAcked   offset // highest settled position, answered
	groupAckedAt time.Duration
	fences       []fenceVotes
	regiven      generation // that the metadata gave again
	handed       map[offset]bool
	members      int // of the set as last known

	progressFrom time.Duration
	lossy        bool // a loss the table allows has happened
	before       [][]string
	wiping       bool
}

// oracle is what is committed in one log.
type oracle struct {
	base offset
	recs []string
	// acked is by offset: the acknowledged payload, and where and when.
	acked map[offset]ackedRecord
	// lost is by offset: the nodes that lost the record to a power cut or a wiped disk.
	lost map[offset]map[loss]bool
	// seen is what readers were given beyond the oracle.
	seen map[offset]string
	// replaced is by offset: records that were committed, were lost as the table allows, and
	// are others now.
	replaced map[offset][]string
	// written is when an offset was first written by a leader, for the bound on what is
	// not committed.
	written map[offset]time.Duration
	group   int64 // bytes of the largest group a leader wrote
}

// loss is a record that a node held and lost.
type loss struct {
	node  meta.NodeID
	bytes string
}

type ackedRecord struct {
	payloads []string
	op       *operation
	node     *node
	term     replica.Term
	at       time.Duration
}

func (c *checker) init(w *world) {
	c.w = w
	c.reset()
	c.terms = map[generation]replica.Term{}
	c.lastValue = map[uint8]uint64{}
	c.members = w.shape.Factor
}

// reset forgets the shard's contents: the stream was deleted.
func (c *checker) reset() {
	c.logs = make([]oracle, c.w.logs())
	for i := range c.logs {
		c.logs[i] = oracle{acked: map[offset]ackedRecord{}, lost: map[offset]map[loss]bool{}, seen: map[offset]string{}, replaced: map[offset][]string{}, written: map[offset]time.Duration{}}
	}
	c.refused = map[string]*operation{}
	c.handed = map[offset]bool{}
	c.groupAcked = 0
	c.ops = nil
}

func (o *oracle) end() offset { return o.base + offset(len(o.recs)) }

func (o *oracle) at(i offset) (string, bool) {
	if i < o.base || i >= o.end() {
		return "", false
	}
	return o.recs[i-o.base], true
}

// bytesOf reads encoded records [from, to) one by one.
func bytesOf(p logPort, from, to offset, visit func(offset, string)) error {
	for at := from; at < to; {
		b, next, err := p.encoded(at, 64<<10)
		if err != nil {
			return err
		}
		if next <= at {
			return fmt.Errorf("record %d of %d cannot be read", at, to)
		}
		for ; at < min(next, to); at++ {
			_, n, err := segment.DecodeRecord(b, at)
			if err != nil {
				return err
			}
			visit(at, string(b[:n]))
			b = b[n:]
		}
		at = max(at, min(next, to))
	}
	return nil
}

// committed judges a replica's mark: what it covers is the same on every replica, with one
// exception outside of the set (keeps).
func (c *checker) committed(n *node, log replica.LogID, mark offset) {
	if n.shard.incarnation != c.w.shard.incarnation {
		return // of a stream that is deleted
	}
	o := &c.logs[log]
	p := n.shard.ports[log]
	if mark > p.next() {
		// The replica knows the mark of records it handed to its log a moment ago.
		c.w.after(5*time.Millisecond, func() {
			if n.shard != nil && int(log) < len(n.shard.ports) && n.shard.ports[log] == p && p.next() >= mark {
				c.committed(n, log, mark)
			}
		})
		return
	}
	from := max(p.head(), o.base)
	if len(o.recs) == 0 && o.end() < p.head() {
		o.base = p.head()
	}
	if k := n.shard.checked(log); k > from {
		from = k
	}
	err := bytesOf(p, from, mark, func(at offset, b string) {
		if have, ok := o.at(at); ok {
			if have != b {
				c.differs(n, log, at, b, mark)
			}
			return
		}
		if at == o.end() {
			o.recs = append(o.recs, b)
			if seen, ok := o.seen[at]; ok && seen != payloadOf(b, at) && !c.lossy {
				c.w.fail("readers", "record %d that a reader saw is another one now", at)
			}
		}
	})
	if err != nil {
		n.shard.unreadable(log, err)
		return
	}
	n.shard.setChecked(log, mark)
}

// differs judges record b of a replica, below its mark, where another is known to be
// committed. In the set it is the one that counts from now on, if the other one could be
// lost; outside of the set nobody's word but the set's counts.
func (c *checker) differs(n *node, log replica.LogID, at offset, b string, mark offset) {
	have, _ := c.logs[log].at(at)
	switch listed := c.listed(n); {
	case listed && c.allowed(log, at, payloadOf(have, at)):
		c.forget(log, at)
		c.logs[log].recs = append(c.logs[log].recs, b)
	case listed:
		c.w.fail("byte-equality", "%s log %d: record %d below its mark %d differs from another replica's committed record", n.id, log, at, mark)
	case !c.keeps(log, at, b):
		c.w.fail("byte-equality", "%s, outside of the set, log %d: record %d below its mark %d was never committed", n.id, log, at, mark)
	}
}

// keeps says whether a replica outside of the set may hold b below its mark where the set
// has another record: b was committed and the set lost it, so that this is a last copy. The
// replica may even hear only afterwards that b is committed.
func (c *checker) keeps(log replica.LogID, at offset, b string) bool {
	return slices.Contains(c.logs[log].replaced[at], b) || c.allowed(log, at, payloadOf(b, at))
}

// settingAside judges that the replica on n is set aside for what the set lost and for
// nothing else.
func (c *checker) settingAside(n *node) {
	for i, p := range n.shard.ports {
		log := replica.LogID(i)
		theirs := contents(p)
		mark := min(n.shard.rep.Log(log).Mark, offset(len(theirs)))
		for at := p.head(); at < mark; at++ {
			if have, ok := c.logs[i].at(at); ok && have != theirs[at] && !c.keeps(log, at, theirs[at]) {
				c.w.fail("byte-equality", "%s, outside of the set, log %d: set aside with record %d below its mark %d, which was never committed", n.id, log, at, mark)
				return
			}
		}
	}
}

// listed says whether a replica's word on what is committed is the set's: the metadata
// lists its disk, or it leads.
func (c *checker) listed(n *node) bool {
	if n.shard.rep.Serving() {
		return true
	}
	a, _ := c.w.meta.assignment()
	if a == nil {
		return false
	}
	m, ok := a.Lookup(n.id)
	return ok && m.Disk == n.disk.id
}

// allowed says whether the table of acknowledgements allows the record with payload p at
// offset at to be gone: a majority lost it.
func (c *checker) allowed(log replica.LogID, at offset, p string) bool {
	n := 0
	for l := range c.logs[log].lost[at] {
		if payloadOf(l.bytes, at) == p {
			n++
		}
	}
	return n >= c.members/2+1
}

// forget drops what is known of a log from at on: a loss that the table allows.
func (c *checker) forget(log replica.LogID, at offset) {
	o := &c.logs[log]
	c.w.stats.AllowedLosses++
	c.lossy = true
	c.w.trace(nil, "allowed loss", func() string { return fmt.Sprintf("log %d from %d", log, at) }, uint64(at))
	for i := max(at, o.base); i < o.end(); i++ {
		o.replaced[i] = append(o.replaced[i], o.recs[i-o.base])
	}
	if at >= o.base && at < o.end() {
		o.recs = o.recs[:at-o.base]
	}
	for k := range o.acked {
		if k >= at {
			delete(o.acked, k)
		}
	}
	for k := range o.seen {
		if k >= at {
			delete(o.seen, k)
		}
	}
}

func (s *shard) checked(log replica.LogID) offset {
	if s.check == nil {
		return 0
	}
	return s.check[log]
}

func (s *shard) setChecked(log replica.LogID, at offset) {
	if s.check == nil {
		s.check = make([]offset, len(s.ports))
	}
	s.check[log] = max(s.check[log], at)
}

// starting judges that a generation has one leader, as votes make it one.
func (c *checker) starting(t replica.Term, votes []meta.DiskID) {
	if have, ok := c.terms[t.Generation]; ok && have != t && !c.regivenTo(t, votes) {
		c.w.fail("one leader per generation", "generation %d was begun by opening %+v and by %+v", t.Generation, have.By, t.By)
	}
	c.terms[t.Generation] = t
}

func (c *checker) serving(n *node, t replica.Term) {
	if have, ok := c.terms[t.Generation]; ok && have != t {
		c.w.fail("one leader per generation", "generation %d is led by %+v and by %+v", t.Generation, have.By, t.By)
	}
	if t.By.Disk != n.disk.id || t.By.Count != n.disk.openings {
		c.w.fail("one leader per generation", "%s serves generation %d, which was given to opening %+v, in its opening %d", n.id, t.Generation, t.By, n.disk.openings)
	}
}

func (c *checker) setChanged(a *meta.Assignment) {
	if a != nil {
		c.members = len(a.Members)
	}
}

// stored notes when a leader wrote an offset.
func (c *checker) stored(n *node, log replica.LogID, first, next offset) {
	if n.shard.incarnation != c.w.shard.incarnation {
		return // of a stream that is deleted
	}
	for at := first; at < next; at++ {
		if m := c.logs[log].lost[at]; m != nil {
			if b, _, err := n.shard.ports[log].encoded(at, 1); err == nil {
				delete(m, loss{n.id, string(b)}) // it holds the record again
			}
		}
	}
	if !n.shard.rep.Serving() {
		return
	}
	o := &c.logs[log]
	for at := first; at < next; at++ {
		o.written[at] = c.w.now
	}
	if c.w.shape.Consistency == meta.ConsistencyLeader {
		if size, err := sizeOf(n.shard.ports[log], first, next); err == nil {
			o.group = max(o.group, size)
		}
	}
}

// sizeOf is the bytes of the records [from, to).
func sizeOf(p logPort, from, to offset) (size int64, err error) {
	err = bytesOf(p, from, to, func(_ offset, b string) { size += int64(len(b)) })
	return size, err
}

// unshippedSlack is what the bound on uncommitted acknowledgements may be passed by: a
// tick, the difference of clocks, and the flush.
const unshippedSlack = 300 * time.Millisecond

// acknowledged judges how far a leader lets writes be answered.
func (c *checker) acknowledged(n *node, log replica.LogID, at offset) {
	if n.shard.incarnation != c.w.shard.incarnation {
		return // of a stream that is deleted
	}
	st := n.shard.rep.Log(log)
	if c.w.shape.Consistency == meta.ConsistencyQuorum {
		if at > st.Mark {
			c.w.fail("acknowledgement", "%s log %d: quorum writes answered up to %d with the mark at %d", n.id, log, at, st.Mark)
		}
		return
	}
	set, _ := n.shard.rep.Set()
	if len(set) > 1 && at > st.Mark {
		if t, ok := c.logs[log].written[st.Mark]; ok && c.w.now-t > replica.UnshippedTime+unshippedSlack+n.slow*4 {
			c.w.fail("unshipped", "%s log %d: answered up to %d although record %d, written %v ago, is not committed", n.id, log, at, st.Mark, c.w.now-t)
			return
		}
		size, err := sizeOf(n.shard.ports[log], st.Mark, at)
		if limit := c.w.unshippedBytes() + c.logs[log].group; err == nil && size > limit {
			c.w.fail("unshipped", "%s log %d: answered up to %d: %d bytes from %d on are not committed; at most %d may be", n.id, log, at, size, st.Mark, limit)
		}
	}
}

// answering takes note of a success as it leaves the leader.
func (c *checker) answering(n *node, p pend) {
	if n.shard.incarnation != c.w.shard.incarnation {
		return // of a stream that is deleted
	}
	r, res := p.req, p.res
	if res.outcome != replica.OutcomeDone || res.mismatch {
		return
	}
	log := replica.LogID(0)
	if r.kind == opAck {
		log = 1
	}
	if r.kind == opGet || r.kind == opRead || r.kind == opClaim {
		return
	}
	o := &c.logs[log]
	for i, b := range r.payloads {
		at := res.offset + offset(i)
		if have, ok := o.acked[at]; ok && have.payloads[0] != string(b) {
			switch mine := (ackedRecord{payloads: []string{string(b)}, node: n, term: n.shard.rep.Term()}); {
			case mine.term.Generation < have.term.Generation && c.leaderLoss(log, at, mine):
				continue // acknowledged by a leader that is deposed and does not know
			case c.allowed(log, at, have.payloads[0]) || c.leaderLoss(log, at, have):
				c.forget(log, at)
			default:
				c.w.fail("offsets", "log %d: offset %d was acknowledged for two records", log, at)
				return
			}
		}
		o.acked[at] = ackedRecord{payloads: []string{string(b)}, node: n, term: n.shard.rep.Term(), at: c.w.now}
	}
}

// trimming judges a head: it does not pass what is committed.
func (c *checker) trimming(n *node, log replica.LogID, to offset) {
	if n.shard.incarnation != c.w.shard.incarnation {
		return // of a stream that is deleted
	}
	if st := n.shard.rep.Log(log); to > st.Mark {
		c.w.fail("retention", "%s log %d: trimmed up to %d with the mark at %d", n.id, log, to, st.Mark)
	}
}

// cutting judges a cut: what is committed, by anybody's word, stays.
func (c *checker) cutting(n *node, log replica.LogID, to offset, p logPort) {
	if n.shard.incarnation != c.w.shard.incarnation {
		return // of a stream that is deleted
	}
	o := &c.logs[log]
	n.lostBefore = p.lostRecords()
	n.cutRecords = int(max(p.next(), to) - to)
	if st := n.shard.rep.Log(log); to < st.Mark {
		c.w.fail("committed", "%s log %d: cut to %d with its mark at %d", n.id, log, to, st.Mark)
		return
	}
	err := bytesOf(p, max(to, p.head()), p.next(), func(at offset, b string) {
		if have, ok := o.at(at); ok && have == b && n.shard.rep.Log(log).Matched >= at && !c.allowed(log, at, payloadOf(b, at)) {
			c.w.fail("committed", "%s log %d: a cut to %d removes the committed record %d", n.id, log, to, at)
		}
	})
	if err != nil {
		n.shard.unreadable(log, err)
	}
}

// cut judges that what was cut was copied to lost/.
func (c *checker) cut(n *node, log replica.LogID, p logPort) {
	if n.shard.incarnation != c.w.shard.incarnation {
		return // of a stream that is deleted
	}
	if got := p.lostRecords() - n.lostBefore; got < n.cutRecords {
		c.w.fail("lost", "%s log %d: %d records were cut and %d copied to lost/", n.id, log, n.cutRecords, got)
	}
	if n.shard.check != nil {
		n.shard.check[log] = min(n.shard.check[log], p.next())
	}
}

func (c *checker) rebased(n *node, log replica.LogID, base offset) {
	if n.shard.incarnation != c.w.shard.incarnation {
		return // of a stream that is deleted
	}
	if n.shard.check != nil {
		n.shard.check[log] = 0
	}
}

// beforeLoss notes what a node holds as its disk is about to lose some of it.
func (c *checker) beforeLoss(n *node) {
	if d := n.disk.real; d != nil && d.poison && d.held != nil {
		c.before, d.held = d.held, nil // a part of it is lost since
		return
	}
	c.before = c.holding(n)
}

// holding is what a node's logs hold.
func (c *checker) holding(n *node) [][]string {
	n.disk.pauseReadFaults()
	defer n.disk.resumeReadFaults()
	held := make([][]string, len(c.logs))
	if n.shard == nil {
		// The process is down; what its disk holds is read the next time it opens.
		for i := range c.logs {
			if p := n.peek(replica.LogID(i)); p != nil {
				held[i] = contents(p)
			}
		}
		return held
	}
	for i, p := range n.shard.ports {
		held[i] = contents(p)
	}
	return held
}

// contents is a log's records by offset from zero; what is trimmed is empty.
func contents(p logPort) []string {
	out := make([]string, p.next())
	if err := bytesOf(p, p.head(), p.next(), func(at offset, b string) { out[at] = b }); err != nil {
		return nil
	}
	return out
}

// afterLoss compares: each record that is gone was lost by this node.
func (c *checker) afterLoss(n *node) {
	for i := range c.logs {
		o := &c.logs[i]
		var now []string
		if p := n.peek(replica.LogID(i)); p != nil {
			now = contents(p)
		}
		if c.w.shape.Fsync == storage.OnCommit && !c.wiping {
			continue // nothing it acknowledged can be gone
		}
		for at, b := range c.before[i] {
			if b == "" || at < len(now) && now[at] == b {
				continue
			}
			m := o.lost[offset(at)]
			if m == nil {
				m = map[loss]bool{}
				o.lost[offset(at)] = m
			}
			m[loss{n.id, b}] = true
		}
	}
}

// damaged notes that a node's copy of a log is lost.
func (c *checker) damaged(n *node, log replica.LogID) {
	o := &c.logs[log]
	for i, b := range o.recs {
		at := o.base + offset(i)
		if o.lost[at] == nil {
			o.lost[at] = map[loss]bool{}
		}
		o.lost[at][loss{n.id, b}] = true
	}
}

// read judges what a reader was given.
func (c *checker) read(records []readRecord) {
	o := &c.logs[0]
	for _, r := range records {
		have, ok := o.at(r.offset)
		switch {
		case ok && payloadOf(have, r.offset) != r.payload:
			if c.allowed(0, r.offset, payloadOf(have, r.offset)) || c.lossy {
				continue
			}
			c.w.fail("readers", "a reader saw another record %d than is committed", r.offset)
			return
		case !ok && r.offset >= o.end():
			if seen, ok := o.seen[r.offset]; ok && seen != r.payload && !c.lossy {
				c.w.fail("readers", "two readers saw different records %d", r.offset)
				return
			}
			o.seen[r.offset] = r.payload
		}
	}
}

// delivered judges a group's delivery.
func (c *checker) delivered(op *operation) {
	if op.offset < c.groupAcked && op.call > c.groupAckedAt && !c.lossy && c.w.shape.Consistency == meta.ConsistencyQuorum {
		c.w.fail("queue", "record %d was handed out after its acknowledgement was answered (position %d)", op.offset, c.groupAcked)
	}
	c.handed[op.offset] = true
}

// settled notes a settlement that was answered.
func (c *checker) settled(op *operation) {
	if op.position+1 > c.groupAcked {
		c.groupAcked, c.groupAckedAt = op.position+1, c.w.now
	}
}

// clamped judges a group's position as a leader begins to serve: it is not past the
// stream's tail, and (but for losses the table allows) does not go back.
func (c *checker) clamped(n *node, position offset) {
	if n.shard.incarnation != c.w.shard.incarnation {
		return // of a stream that is deleted
	}
	if tail := n.shard.ports[0].next(); position > tail {
		c.w.fail("group position", "%s serves with position %d past the stream's tail %d", n.id, position, tail)
	}
	if position < c.groupAcked {
		if c.lossy || c.w.shape.Consistency != meta.ConsistencyQuorum || c.anyAllowed() {
			c.groupAcked = position
			return
		}
		c.w.fail("group position", "%s serves with position %d; %d was settled", n.id, position, c.groupAcked)
	}
}

// anyAllowed says whether any loss the table allows could have happened.
func (c *checker) anyAllowed() bool {
	for i := range c.logs {
		for _, m := range c.logs[i].lost {
			if len(m) >= c.members/2+1 {
				return true
			}
		}
	}
	return false
}

// finished takes an operation into the history.
func (c *checker) finished(op *operation) {
	w := c.w
	switch {
	case op.kind == opRead || op.kind == opClaim:
		return
	case op.outcome == replica.OutcomeDone && !op.mismatch:
		w.stats.Acked++
	case op.outcome == replica.OutcomeNotDone, op.mismatch:
		w.stats.Refused++
	}
	if op.kind == opGet && op.outcome == replica.OutcomeDone {
		w.stats.Reads++
		c.lastValue[op.key] = op.got
	}
	if op.kind == opGet && op.outcome != replica.OutcomeDone {
		return
	}
	for _, p := range op.payloads {
		if op.outcome == replica.OutcomeNotDone || op.mismatch && op.kind != opAck {
			c.refused[p] = op
		}
	}
	c.ops = append(c.ops, op)
}

// progressed says that a write that began after healing was answered as done.
func (c *checker) progressed() bool {
	for i := len(c.ops) - 1; i >= 0; i-- {
		if op := c.ops[i]; op.ret > c.progressFrom && op.call > c.progressFrom && op.outcome == replica.OutcomeDone && op.kind != opGet {
			return true
		}
	}
	return false
}

// leaderLoss says whether an acknowledged record of a leader-consistency shard may be
// gone: another opening led since without the vote of the disk that held it, or that
// disk lost it.
func (c *checker) leaderLoss(log replica.LogID, at offset, a ackedRecord) bool {
	if c.w.shape.Consistency != meta.ConsistencyLeader {
		return false
	}
	for l := range c.logs[log].lost[at] {
		if l.node == a.node.id && payloadOf(l.bytes, at) == a.payloads[0] {
			return true
		}
	}
	for _, f := range c.fences {
		if f.term.Generation > a.term.Generation && !slices.Contains(f.votes, a.term.By.Disk) {
			return true
		}
	}
	return false
}

// fenced notes whose votes a new leader counted.
func (c *checker) fenced(t replica.Term, votes []meta.DiskID) {
	c.fences = append(c.fences, fenceVotes{t, votes})
}

type fenceVotes struct {
	term  replica.Term
	votes []meta.DiskID
}

func payloadOf(encoded string, at offset) string {
	r, err := decodeRecord(encoded, at)
	if err != nil {
		return ""
	}
	return string(r.Payload)
}
