package sim

import (
	"encoding/binary"
	"errors"
	"syscall"
	"time"

	"github.com/felixlog/felix/internal/replica"
	"github.com/felixlog/felix/storage"
)

// opKind is what a client asks for.
type opKind uint8

const (
	opPublish   opKind = iota + 1 // idempotent: producer and sequence
	opPlain                       // published once, never sent again when the outcome is unknown
	opPublishIf                   // conditional on the next offset
	opRead                        // committed records from an offset, at any replica
	opClaim                       // the record at the group's position
	opAck                         // settle it
	opPut                         // register
	opCAS                         // register, if it has the expected value
	opGet                         // register, linearizable
)

type request struct {
	client   *client
	attempt  uint64
	kind     opKind
	key      uint8
	seq      uint64
	payloads [][]byte
	expected uint64    // publish-if: offset; cas: value
	value    uint64    // put, cas
	from     offset    // read
	position offset    // ack
	refusal  *response // what to answer once a round confirms it
}

type response struct {
	outcome  replica.Outcome
	leader   int // hint, -1 for none
	offset   offset
	mismatch bool   // publish-if, cas: the condition did not hold
	tail     offset // publish-if refused: the next offset
	value    uint64 // get
	records  []readRecord
	served   time.Duration
	term     replica.Term
	of       uint64 // the stream's incarnation
}

type readRecord struct {
	offset  offset
	payload string
	start   bool
}

// payload of a record: kind, client, sequence, key and value.
func payload(kind opKind, client int, seq uint64, key uint8, value uint64, part int) []byte {
	b := []byte{byte(kind), byte(client), key, byte(part)}
	b = binary.BigEndian.AppendUint64(b, seq)
	return binary.BigEndian.AppendUint64(b, value)
}

type entry struct {
	kind   opKind
	client int
	key    uint8
	part   int
	seq    uint64
	value  uint64
}

func parse(b []byte) entry {
	if len(b) < 20 {
		return entry{}
	}
	return entry{opKind(b[0]), int(b[1]), b[2], int(b[3]), binary.BigEndian.Uint64(b[4:]), binary.BigEndian.Uint64(b[12:])}
}

func generationPayload(g generation) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(g))
}

// pend is an answer that waits for a log to be acknowledged up to need.
type pend struct {
	need offset
	req  *request
	res  response
}

type produced struct {
	seq   uint64
	first offset
	end   offset
}

// app reads the shard's logs: who published what, registers, the group's position; it
// answers clients when the replica says they may be.
type app struct {
	s         *shard
	waiting   [][]pend
	acked     []offset
	producers map[int]produced
	registers map[uint8]uint64 // as written, what is in flight included
	built     bool
	position  offset // of the group

	// reg is the committed state of the registers, applied up to regAt.
	reg   map[uint8]uint64
	regAt offset

	reads  []*request
	readID uint64
	first  uint64 // the id of reads[0]
}

func newApp(s *shard) *app {
	n := len(s.ports)
	return &app{s: s, waiting: make([][]pend, n), acked: make([]offset, n), reg: map[uint8]uint64{}, first: 1}
}

func (a *app) respond(r *request, res response) {
	w := a.s.node.world
	res.served = w.now
	res.term, res.of = a.s.rep.Term(), a.s.incarnation
	w.trace(a.s.node, "respond", nil, uint64(r.client.id), r.attempt, uint64(res.outcome), uint64(res.offset))
	w.after(w.between(100*time.Microsecond, 3*time.Millisecond), func() { r.client.answered(r, res) })
}

func (a *app) refuse(r *request) {
	hint := -1
	if l := a.s.node.world.node(a.s.rep.Leader()); l != nil {
		hint = l.index
	}
	a.respond(r, response{outcome: replica.OutcomeNotLeader, leader: hint})
}

// handle takes a request at this node.
func (a *app) handle(r *request) {
	s := a.s
	if r.kind == opRead {
		a.readRecords(r)
		return
	}
	if !s.rep.Serving() || !a.built {
		a.refuse(r)
		return
	}
	switch r.kind {
	case opGet, opClaim: // only whom a majority still follows knows the group's position
		a.readID++
		a.reads = append(a.reads, r)
		id := a.readID
		s.do(func(rep *replica.Replica, now time.Duration) { rep.Read(now, id) })
	case opAck:
		a.submit(r, 1)
	default:
		a.submit(r, 0)
	}
}

// submit queues a write in a log.
func (a *app) submit(r *request, log replica.LogID) {
	b := &batch{payloads: r.payloads}
	var refused *response
	b.admit = func(next offset) bool {
		if !a.s.rep.Serving() {
			a.refuse(r)
			return false
		}
		refused = a.admit(r, next)
		return refused == nil
	}
	b.done = func(first offset, err error) {
		if err == errUnknown {
			a.respond(r, response{outcome: replica.OutcomeUnknown})
			return
		}
		if err != nil {
			a.respond(r, response{outcome: replica.OutcomeNotDone})
			return
		}
		a.wait(log, pend{need: first + offset(len(r.payloads)), req: r, res: response{outcome: replica.OutcomeDone, offset: first}})
	}
	a.s.ports[log].submit(b)
	a.s.kick(log)
}

// admit judges a write as it is about to get next, by what is written, in flight
// included. A refusal that depends on earlier records waits until they are acknowledged.
func (a *app) admit(r *request, next offset) *response {
	end := next + offset(len(r.payloads))
	switch r.kind {
	case opPublish:
		if p, ok := a.producers[r.client.id]; ok && r.seq <= p.seq {
			res := response{outcome: replica.OutcomeDone, offset: p.first}
			a.wait(0, pend{need: p.end, req: r, res: res})
			return &res
		}
		a.producers[r.client.id] = produced{r.seq, next, end}
	case opPublishIf:
		if offset(r.expected) != next {
			res := response{outcome: replica.OutcomeDone, mismatch: true, tail: next}
			a.wait(0, pend{need: next, req: r, res: res})
			return &res
		}
	case opPut:
		a.registers[r.key] = r.value
	case opCAS:
		if a.registers[r.key] != r.expected {
			res := response{outcome: replica.OutcomeDone, mismatch: true, value: a.registers[r.key]}
			a.wait(0, pend{need: next, req: r, res: res})
			return &res
		}
		a.registers[r.key] = r.value
	case opAck:
		if r.position < a.position {
			res := response{outcome: replica.OutcomeDone, mismatch: true}
			a.wait(1, pend{need: next, req: r, res: res})
			return &res
		}
		a.position = r.position + 1
	}
	return nil
}

func (a *app) wait(log replica.LogID, p pend) {
	if p.need <= a.acked[log] {
		a.answer(p)
		return
	}
	a.waiting[log] = append(a.waiting[log], p)
}

func (a *app) answer(p pend) {
	if p.res.mismatch && a.s.node.world.opts.Rules.Hold(replica.ConfirmRefusal) {
		a.confirm(p)
		return
	}
	a.s.node.world.check.answering(a.s.node, p)
	a.respond(p.req, p.res)
}

// confirm answers a refused condition after a read round: it tells what is there, as a
// read does, and a leader that is deposed does not know.
func (a *app) confirm(p pend) {
	p.req.refusal = &p.res
	a.s.node.after(0, func() {
		if a.s.over {
			return
		}
		if !a.s.rep.Serving() {
			a.refuse(p.req)
			return
		}
		a.readID++
		a.reads = append(a.reads, p.req)
		id := a.readID
		a.s.do(func(rep *replica.Replica, now time.Duration) { rep.Read(now, id) })
	})
}

// acknowledge answers the writes below at.
func (a *app) acknowledge(log replica.LogID, at offset) {
	a.acked[log] = max(a.acked[log], at)
	rest := a.waiting[log][:0]
	var ready []pend
	for _, p := range a.waiting[log] {
		if p.need <= at {
			ready = append(ready, p)
		} else {
			rest = append(rest, p)
		}
	}
	a.waiting[log] = rest
	for _, p := range ready {
		a.answer(p)
	}
}

// serve reads the logs as they are and begins to take requests.
func (a *app) serve(clamp offset) {
	for i := range a.acked {
		a.acked[i] = 0
	}
	a.reload()
	if len(a.s.ports) > 1 {
		if a.position > clamp {
			a.position = clamp
		}
		a.s.node.world.check.clamped(a.s.node, a.position)
	}
	a.built = true
}

// reload reads what is written.
func (a *app) reload() {
	a.producers, a.registers, a.position = map[int]produced{}, map[uint8]uint64{}, 0
	p := a.s.ports[0]
	err := p.records(p.head(), p.next(), func(r *storage.Record) {
		if r.Kind == storage.KindGenerationStart {
			return
		}
		e := parse(r.Payload)
		switch e.kind {
		case opPublish:
			a.producers[e.client] = produced{e.seq, r.Offset, r.Offset + 1}
		case opPut, opCAS:
			a.registers[e.key] = e.value
		}
	})
	if len(a.s.ports) > 1 && err == nil {
		g := a.s.ports[1]
		err = g.records(g.head(), g.next(), func(r *storage.Record) {
			if r.Kind != storage.KindGenerationStart {
				a.position = max(a.position, offset(parse(r.Payload).value))
			}
		})
	}
	if err != nil {
		a.s.unreadable(0, err)
	}
}

// needs is how far retention may go in a log: a group's log keeps the record that states
// its committed position, as one that is compacted does.
func (a *app) needs(log replica.LogID) offset {
	all := ^offset(0)
	if log == 0 {
		return all
	}
	need, position := all, offset(0)
	g := a.s.ports[log]
	err := g.records(g.head(), min(a.s.rep.Log(log).Mark, g.next()), func(r *storage.Record) {
		if r.Kind == storage.KindGenerationStart {
			return
		}
		if at := offset(parse(r.Payload).value); at >= position {
			need, position = r.Offset, at
		}
	})
	if err != nil {
		a.s.unreadable(log, err)
		return 0
	}
	return need
}

// resign answers everything that waits.
func (a *app) resign(outcome replica.Outcome) {
	a.built = false
	for i := range a.waiting {
		for _, p := range a.waiting[i] {
			a.respond(p.req, response{outcome: outcome})
		}
		a.waiting[i] = nil
	}
	for _, r := range a.reads {
		a.refuse(r)
	}
	a.first += uint64(len(a.reads))
	a.reads = nil
}

// abandon is the process ending: nobody is answered.
func (a *app) abandon() {
	for i := range a.waiting {
		a.waiting[i] = nil
	}
	a.reads = nil
}

func (a *app) committed(log replica.LogID, at offset) {}

// cut forgets what was read from at on.
func (a *app) cut(log replica.LogID, at offset) {
	if log == 0 && at < a.regAt {
		a.reg, a.regAt = map[uint8]uint64{}, 0
	}
}

func (a *app) readReady(upTo uint64, at offset) {
	if a.s.node.world.shape.Workload == CacheWorkload && !a.apply(at) {
		a.readFailed(upTo)
		return
	}
	for len(a.reads) > 0 && a.first <= upTo {
		r := a.reads[0]
		a.reads = a.reads[1:]
		a.first++
		if r.refusal != nil {
			a.respond(r, *r.refusal)
			continue
		}
		if r.kind == opClaim {
			a.claim(r)
			continue
		}
		a.respond(r, response{outcome: replica.OutcomeDone, value: a.reg[r.key]})
	}
}

func (a *app) readFailed(upTo uint64) {
	for len(a.reads) > 0 && a.first <= upTo {
		r := a.reads[0]
		a.reads = a.reads[1:]
		a.first++
		a.refuse(r)
	}
}

// apply brings the registers to the records below at. It reports false when these cannot
// be read.
func (a *app) apply(at offset) bool {
	at = max(at, a.s.rep.ReadLimit(0))
	if at <= a.regAt {
		return true
	}
	err := a.s.ports[0].records(a.regAt, at, func(r *storage.Record) {
		if e := parse(r.Payload); r.Kind != storage.KindGenerationStart && (e.kind == opPut || e.kind == opCAS) {
			a.reg[e.key] = e.value
		}
	})
	if err != nil {
		a.s.unreadable(0, err)
		return false
	}
	a.regAt = at
	return true
}

// readRecords serves a reader at any replica, up to where readers stop.
func (a *app) readRecords(r *request) {
	p := a.s.ports[0]
	if a.s.node.disk.readFails() {
		a.refuse(r) // that read fails, the log does not
		return
	}
	from := max(r.from, p.head())
	to := min(a.s.rep.ReadLimit(0), from+50)
	res := response{outcome: replica.OutcomeDone, offset: from}
	err := p.records(from, to, func(rec *storage.Record) {
		res.records = append(res.records, readRecord{rec.Offset, string(rec.Payload), rec.Kind == storage.KindGenerationStart})
	})
	if errors.Is(err, syscall.EIO) {
		a.refuse(r) // that read fails, the log does not
		return
	}
	if err != nil {
		a.s.unreadable(0, err)
		return
	}
	a.respond(r, res)
}

// claim hands out the record at the group's position.
func (a *app) claim(r *request) {
	p := a.s.ports[0]
	res := response{outcome: replica.OutcomeDone, offset: ^offset(0)}
	from := max(a.position, p.head())
	err := p.records(from, min(a.s.rep.ReadLimit(0), from+20), func(rec *storage.Record) {
		if rec.Kind != storage.KindGenerationStart && res.offset == ^offset(0) {
			res.offset = rec.Offset
		}
	})
	if err != nil {
		a.s.unreadable(0, err)
		return
	}
	a.respond(r, res)
}
