package sim

import (
	"fmt"
	"time"

	"github.com/felixlog/felix/internal/replica"
)

type role uint8

const (
	idempotentPublisher role = iota
	plainPublisher
	conditionalPublisher
	reader
	consumer
	registerClient
	registerReader // and stays where it is answered
	registerWriter // and asks any node
)

// client is one caller. It has one request under way at a time.
type client struct {
	world   *world
	id      int
	role    role
	target  int
	seq     uint64
	attempt uint64
	stopped bool

	op      *operation
	from    offset // reader
	tail    offset // conditional publisher: what it believes is next
	claimed offset
	unsure  bool // an attempt of this operation may have been carried out
}

// operation is one call with its answer, as histories keep it.
type operation struct {
	client   int
	kind     opKind
	key      uint8
	seq      uint64
	value    uint64
	expected uint64
	payloads []string
	call     time.Duration
	ret      time.Duration // zero: not answered
	outcome  replica.Outcome
	mismatch bool
	offset   offset
	tail     offset
	got      uint64
	term     replica.Term
	position offset
}

const clientTimeout = 1500 * time.Millisecond

func (w *world) startClients() {
	var roles []role
	if w.shape.Workload == StreamWorkload {
		roles = []role{idempotentPublisher, idempotentPublisher, idempotentPublisher, plainPublisher, conditionalPublisher, conditionalPublisher, reader, reader, consumer, consumer}
	} else {
		roles = []role{registerClient, registerClient, registerClient, registerClient, registerClient}
	}
	if w.shape.Usurped {
		roles = []role{registerReader, registerReader, registerReader, registerWriter, registerWriter, registerWriter, registerWriter}
	}
	if w.shape.Same {
		roles = []role{plainPublisher, plainPublisher, plainPublisher, plainPublisher}
	}
	if w.shape.Retention {
		// Who published what is read from the log here: without its head, a retry could not
		// be told from a new publish.
		for i, r := range roles {
			if r == idempotentPublisher {
				roles[i] = plainPublisher
			}
		}
	}
	for i, r := range roles {
		c := &client{world: w, id: i, role: r, target: w.rng.IntN(len(w.nodes))}
		w.clients = append(w.clients, c)
		w.after(w.between(0, 2*time.Second), c.next)
	}
}

func (w *world) stopClients() {
	for _, c := range w.clients {
		c.stopped = true
	}
}

func (w *world) resumeClients() {
	for _, c := range w.clients {
		if c.stopped {
			c.stopped = false
			if c.op == nil {
				w.after(w.between(0, 100*time.Millisecond), c.next)
			}
		}
	}
}

// next begins the client's next operation.
func (c *client) next() {
	w := c.world
	if c.stopped || c.op != nil {
		return
	}
	c.unsure = false
	c.op = &operation{client: c.id, call: w.now}
	op := c.op
	switch c.role {
	case idempotentPublisher:
		c.seq++
		op.kind, op.seq = opPublish, c.seq
		op.payloads = []string{string(payload(opPublish, c.id, c.seq, 0, 0, 0))}
	case plainPublisher:
		c.seq++
		op.kind, op.seq = opPlain, c.seq
		for i := range 1 + w.rng.IntN(3) {
			op.payloads = append(op.payloads, string(payload(opPlain, c.id, c.seq, 0, 0, i)))
		}
	case conditionalPublisher:
		c.seq++
		op.kind, op.seq, op.expected = opPublishIf, c.seq, uint64(c.tail)
		op.payloads = []string{string(payload(opPublishIf, c.id, c.seq, 0, 0, 0))}
	case reader:
		op.kind = opRead
		c.target = w.rng.IntN(len(w.nodes))
	case consumer:
		op.kind = opClaim
		if c.claimed != ^offset(0) && c.claimed > 0 {
			op.kind, op.position = opAck, c.claimed-1
			c.seq++
			op.payloads = []string{string(payload(opAck, c.id, c.seq, 0, uint64(c.claimed), 0))}
		}
	case registerClient, registerReader, registerWriter:
		op.key = uint8(w.rng.IntN(2))
		draw := w.rng.IntN(4)
		switch c.role {
		case registerReader:
			draw = 2
		case registerWriter:
			draw %= 2
			c.target = w.rng.IntN(len(w.nodes))
		}
		switch draw {
		case 0:
			c.seq++
			op.kind, op.seq = opPut, c.seq
			op.value = uint64(c.id)<<32 | c.seq
		case 1:
			c.seq++
			op.kind, op.seq, op.expected = opCAS, c.seq, w.check.lastValue[op.key]
			op.value = uint64(c.id)<<32 | c.seq
		default:
			op.kind = opGet
		}
		if op.kind != opGet {
			op.payloads = []string{string(payload(op.kind, c.id, op.seq, op.key, op.value, 0))}
		}
	}
	c.send()
}

// send sends the operation to the node the client believes in.
func (c *client) send() {
	w := c.world
	c.attempt++
	op := c.op
	r := &request{client: c, attempt: c.attempt, kind: op.kind, key: op.key, seq: op.seq, expected: op.expected, value: op.value, from: c.from, position: op.position}
	for _, p := range op.payloads {
		if w.shape.Same {
			p = "alike"
		}
		r.payloads = append(r.payloads, []byte(p))
	}
	n := w.nodes[c.target]
	attempt := c.attempt
	w.after(w.between(100*time.Microsecond, 3*time.Millisecond), func() { n.request(r) })
	w.after(clientTimeout, func() {
		if c.op == op && c.attempt == attempt {
			c.target = w.rng.IntN(len(w.nodes))
			c.missing()
		}
	})
}

// again sends the operation once more, after d.
func (c *client) again(d time.Duration) {
	op, attempt := c.op, c.attempt
	c.world.after(d, func() {
		if c.op == op && c.attempt == attempt {
			c.send()
		}
	})
}

// request takes a client's request at the machine.
func (n *node) request(r *request) {
	w := n.world
	if !n.alive {
		return
	}
	if w.now < n.suspended {
		n.after(0, func() { n.request(r) })
		return
	}
	if n.shard == nil {
		return
	}
	n.shard.app.handle(r)
}

// missing is an attempt without an answer, or with an unknown outcome.
func (c *client) missing() {
	w := c.world
	switch c.op.kind {
	case opPublish:
		w.stats.Unknown++
		c.unsure = true
		c.again(w.between(0, 50*time.Millisecond)) // the same sequence again
	case opRead, opClaim, opGet, opAck:
		c.finish(replica.OutcomeUnknown, nil)
	default:
		w.stats.Unknown++
		c.finish(replica.OutcomeUnknown, nil)
	}
}

// answered takes an answer.
func (c *client) answered(r *request, res response) {
	w := c.world
	if c.op == nil || r.attempt != c.attempt || c.op.ret != 0 {
		return
	}
	if res.of != w.shard.incarnation {
		res = response{outcome: replica.OutcomeNotLeader, leader: -1} // the stream it was is deleted
	}
	switch res.outcome {
	case replica.OutcomeNotLeader:
		c.target = w.rng.IntN(len(w.nodes))
		if res.leader >= 0 && !w.chance(0.2) {
			c.target = res.leader
		}
		c.again(w.between(10*time.Millisecond, 200*time.Millisecond))
	case replica.OutcomeUnknown:
		c.missing()
	case replica.OutcomeNotDone:
		if c.op.kind == opPublish {
			c.again(w.between(100*time.Millisecond, 500*time.Millisecond))
			return
		}
		c.finish(replica.OutcomeNotDone, &res)
	default:
		c.finish(replica.OutcomeDone, &res)
	}
}

func (c *client) finish(outcome replica.Outcome, res *response) {
	w := c.world
	op := c.op
	c.op = nil
	op.outcome, op.ret = outcome, w.now
	if res != nil {
		op.offset, op.mismatch, op.tail, op.got, op.term = res.offset, res.mismatch, res.tail, res.value, res.term
	}
	w.trace(nil, "answer", func() string {
		return fmt.Sprintf("client %d op %d seq %d %v offset %d mismatch %t value %d", c.id, op.kind, op.seq, outcome, op.offset, op.mismatch, op.got)
	}, uint64(c.id), uint64(outcome), uint64(op.offset))
	switch c.role {
	case conditionalPublisher:
		if outcome == replica.OutcomeDone {
			c.tail = op.offset + 1
			if op.mismatch {
				c.tail = op.tail
			}
		}
	case reader:
		if outcome == replica.OutcomeDone {
			w.check.read(res.records)
			if n := len(res.records); n > 0 {
				c.from = res.records[n-1].offset + 1
			}
			if w.chance(0.02) {
				c.from = 0
			}
		}
	case consumer:
		switch {
		case op.kind == opClaim && outcome == replica.OutcomeDone && op.offset != ^offset(0):
			c.claimed = op.offset + 1
			w.check.delivered(op)
		default:
			c.claimed = 0
		}
		if op.kind == opAck && outcome == replica.OutcomeDone && !op.mismatch {
			w.check.settled(op)
		}
	}
	w.check.finished(op)
	think := w.between(5*time.Millisecond, 120*time.Millisecond)
	if w.shape.Caught {
		think *= 10
		if c.role == consumer {
			think /= 50
		}
	}
	w.after(think, c.next)
}

// forget gives up what is under way: the stream is another one.
func (c *client) forget() {
	c.op = nil
	c.attempt++
	c.from, c.tail, c.claimed = 0, 0, 0
	c.world.after(c.world.between(10*time.Millisecond, time.Second), c.next)
}
