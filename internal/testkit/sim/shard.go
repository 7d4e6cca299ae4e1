package sim

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/replica"
	"github.com/felixlog/felix/storage"
)

// shard is one opening of the shard on a node: logs, replica, readings.
type shard struct {
	node        *node
	incarnation uint64
	rep         *replica.Replica
	ports       []logPort
	ops         [][]func() // by log: work in order
	stepping    []bool
	state       *replicaState
	app         *app
	reopening   bool
	over        bool
	check       []offset // by log: compared with the oracle up to here
}

func (w *world) logs() int {
	if w.shape.Workload == StreamWorkload {
		return 2
	}
	return 1
}

func (w *world) shipBytes() int {
	if w.shape.SmallShips {
		return 1
	}
	return 0
}

// unshippedBytes is what a leader may acknowledge beyond its mark.
func (w *world) unshippedBytes() int64 {
	if w.shape.FewBytes {
		return 512
	}
	return replica.UnshippedBytes
}

func openShard(n *node, incarnation uint64) *shard {
	w := n.world
	d := n.disk
	d.openings++
	s := &shard{node: n, incarnation: incarnation}
	logs := w.logs()
	s.ports = make([]logPort, logs)
	s.ops = make([][]func(), logs)
	s.stepping = make([]bool, logs)
	s.state = d.stateOf(incarnation, logs)
	torn := d.torn()
	if torn {
		w.check.beforeLoss(n)
	}
	if d.unclean() {
		s.state.forgetful = true
	}
	opened := replica.Opened{
		Opening:  replica.Opening{Disk: d.id, Count: d.openings},
		Accepted: s.state.term,
		Now:      n.boot(),
	}
	for i := range logs {
		id := replica.LogID(i)
		p, err := d.open(incarnation, id, s.hooks(id))
		if err != nil {
			w.trace(n, "open refused", func() string { return err.Error() })
			return nil
		}
		s.ports[i] = p
		if l, ok := p.(*realLog); ok && l.anew {
			s.state.forgetful = true
		}
		last, err := p.place(p.next())
		if errors.Is(err, syscall.EIO) {
			w.trace(n, "open refused", func() string { return err.Error() })
			s.close()
			return nil
		}
		if err != nil {
			w.fail("log", "%s log %d: place of the tail: %v", n.id, i, err)
		}
		opened.Logs = append(opened.Logs, replica.LogOpened{
			Head: p.head(), Next: p.next(), Mark: s.state.marks[i], Last: last, Generations: p.generations(),
			Unknown: unsaid(p),
		})
	}
	d.dirtyBoot = false
	if torn {
		w.check.afterLoss(n)
	}
	if d.real != nil {
		d.real.reopened()
	}
	opened.Forgetful = s.state.forgetful
	s.rep = replica.New(replica.Config{
		Node: n.id, Shard: replica.ShardID{Incarnation: incarnation}, Key: shardKey,
		Consistency: w.shape.Consistency, Leases: w.shape.Leases, Rules: w.opts.Rules, ShipBytes: w.shipBytes(),
		UnshippedBytes: w.unshippedBytes(),
	}, opened)
	s.state.forgetful = s.rep.Forgetful() // it may have found that a log is too short
	if s.state.forgetful {
		w.stats.Forgetful++
	}
	s.app = newApp(s)
	w.trace(n, "open", func() string {
		return fmt.Sprintf("incarnation %d accepted %d forgetful %t logs %+v", incarnation, s.state.term.Generation, s.state.forgetful, opened.Logs)
	})
	return s
}

// close ends the shard; the process goes on.
func (s *shard) close() {
	s.abandon()
	for _, p := range s.ports {
		p.close()
	}
}

// abandon ends the shard with its process.
func (s *shard) abandon() {
	s.over = true
	s.app.abandon()
}

func (s *shard) hooks(id replica.LogID) hooks {
	return hooks{
		written: func(first, next offset, enc []byte) { s.written(id, first, next, enc) },
		stable:  func(next offset) { s.stable(id, next) },
		failed:  func(reason string) { s.failed(id, reason) },
		reverted: func() {
			if s.app != nil && s.app.built && !s.over {
				s.app.reload()
			}
		},
	}
}

// do runs one step of the replica and carries out what it asks for.
func (s *shard) do(step func(r *replica.Replica, now time.Duration)) {
	if s.over || s.node.world.violation != nil {
		return
	}
	step(s.rep, s.node.boot())
	s.drain()
}

func (s *shard) drain() {
	for !s.over && s.node.world.violation == nil {
		out := s.rep.Take()
		if len(out.Messages) == 0 && len(out.Effects) == 0 {
			break
		}
		for i := range out.Messages {
			s.node.world.net.send(s.node, &out.Messages[i])
		}
		// Carrying out an effect may step the replica, which then must not write over the
		// effects still to come.
		effects := append([]replica.Effect(nil), out.Effects...)
		for i := range effects {
			effects[i].Bytes = append([]byte(nil), effects[i].Bytes...)
			s.carryOut(&effects[i])
		}
	}
	for i := range s.ports {
		s.kick(replica.LogID(i))
	}
}

// op queues work on a log behind all that was queued before.
func (s *shard) op(id replica.LogID, f func()) {
	s.ops[id] = append(s.ops[id], f)
	s.kick(id)
}

// kick keeps the log's work going, one unit at a time.
func (s *shard) kick(id replica.LogID) {
	if s.stepping[id] || s.over || len(s.ops[id]) == 0 && !s.ports[id].pending() {
		return
	}
	s.stepping[id] = true
	n := s.node
	n.after(n.world.between(20*time.Microsecond, 300*time.Microsecond)+n.slow, func() {
		s.stepping[id] = false
		if s.over {
			return
		}
		if !s.ports[id].step() && len(s.ops[id]) > 0 {
			f := s.ops[id][0]
			s.ops[id] = s.ops[id][1:]
			f()
		}
		s.drain()
	})
}

func (s *shard) carryOut(e *replica.Effect) {
	n, w := s.node, s.node.world
	w.trace(n, e.Type.String(), func() string {
		return fmt.Sprintf("log %d at %d term %d prev %d bytes %d %s", e.Log, e.At, e.Term.Generation, e.Prev.Next, len(e.Bytes), e.Reason)
	}, uint64(e.Log), uint64(e.At), uint64(e.Term.Generation))
	switch e.Type {
	case replica.Persist:
		e := *e
		n.after(w.between(100*time.Microsecond, 5*time.Millisecond)+n.slow, func() {
			if s.over {
				return
			}
			s.state.term, s.state.forgetful = e.Term, e.Forgetful
			s.do(func(r *replica.Replica, now time.Duration) { r.Persisted(now, e.Term, e.Forgetful) })
		})
	case replica.Write:
		e := *e
		s.op(e.Log, func() {
			s.ports[e.Log].submit(&batch{encoded: e.Bytes, prev: e.Prev})
		})
	case replica.AppendStart:
		payload := generationPayload(e.Term.Generation)
		log := e.Log
		s.op(log, func() {
			s.ports[log].submit(&batch{payloads: [][]byte{payload}, kind: storage.KindGenerationStart, admit: func(offset) bool { return s.rep.Term() == e.Term }})
		})
		w.check.starting(e.Term, s.rep.Voters())
		w.check.fenced(e.Term, s.rep.Voters())
	case replica.Compare:
		e := *e
		s.op(e.Log, func() { s.compare(&e) })
	case replica.Cut:
		e := *e
		s.op(e.Log, func() {
			p := s.ports[e.Log]
			w.check.cutting(n, e.Log, e.At, p)
			at, err := p.cut(e.At, w.opts.Rules.Hold(replica.CopyCut))
			if err != nil {
				s.do(func(r *replica.Replica, now time.Duration) { r.Failed(now, e.Log, err.Error()) })
				return
			}
			w.stats.Cuts++
			w.check.cut(n, e.Log, p)
			s.app.cut(e.Log, e.At)
			s.do(func(r *replica.Replica, now time.Duration) { r.WasCut(now, e.Log, at) })
		})
	case replica.Rebase:
		e := *e
		s.op(e.Log, func() {
			if err := s.ports[e.Log].rebase(e.At); err != nil {
				s.do(func(r *replica.Replica, now time.Duration) { r.Failed(now, e.Log, err.Error()) })
				return
			}
			w.stats.Rebases++
			w.check.rebased(n, e.Log, e.At)
			s.app.cut(e.Log, 0)
			s.do(func(r *replica.Replica, now time.Duration) { r.WasReset(now, e.Log, e.At) })
		})
	case replica.Flush:
		s.flushAll(0)
	case replica.Fetch:
		e := *e
		s.op(e.Log, func() {
			p := s.ports[e.Log]
			at, err := p.place(e.At)
			var enc []byte
			var next offset
			if err == nil {
				enc, next, err = p.encoded(e.At, e.Limit)
			}
			if n.disk.readFails() {
				err = errIO
			}
			s.do(func(r *replica.Replica, now time.Duration) { r.Fetched(now, e.Log, e.Peer, at, enc, next, err != nil) })
		})
	case replica.Propose:
		w.meta.propose(n, e.Assignment, e.Version, e.Blind)
	case replica.ReadAssignment:
		w.meta.readAssignment(n)
	case replica.Trim:
		w.check.trimming(n, e.Log, e.At)
		e := *e
		s.op(e.Log, func() {
			if err := s.ports[e.Log].flush(); err != nil {
				s.do(func(r *replica.Replica, now time.Duration) { r.Failed(now, e.Log, err.Error()) })
				return
			}
			s.ports[e.Log].trim(e.At)
		})
	case replica.Committed:
		w.check.committed(n, e.Log, e.At)
		s.app.committed(e.Log, e.At)
	case replica.Acknowledge:
		w.check.acknowledged(n, e.Log, e.At)
		s.app.acknowledge(e.Log, e.At)
	case replica.Serve:
		w.stats.Elections++
		w.check.serving(n, e.Term)
		s.app.serve(e.At)
	case replica.Resigned:
		s.app.resign(e.Outcome)
	case replica.ReadReady:
		s.app.readReady(e.Read, e.At)
	case replica.ReadFailed:
		s.app.readFailed(e.Read)
	case replica.Halted:
		w.stats.Halts++
		s.app.resign(replica.OutcomeUnknown)
		n.reopenSoon()
		w.setAside(n, e.Reason)
	case replica.SetChanged:
		w.stats.SetChanges++
		w.check.setChanged(e.Assignment)
	}
}

// flushAll flushes one log after another, each behind the work queued before.
func (s *shard) flushAll(i int) {
	if i == len(s.ports) {
		s.do(func(r *replica.Replica, now time.Duration) { r.Flushed(now) })
		return
	}
	s.op(replica.LogID(i), func() {
		if err := s.ports[i].flush(); err != nil {
			s.do(func(r *replica.Replica, now time.Duration) { r.Failed(now, replica.LogID(i), err.Error()) })
		}
		s.flushAll(i + 1)
	})
}

// compare carries out Compare: the own place, and the first difference.
func (s *shard) compare(e *replica.Effect) {
	p := s.ports[e.Log]
	at, err := p.place(e.Prev.Next)
	if err != nil {
		at = replica.Place{Next: e.Prev.Next}
		if e.Prev.Next >= p.head() {
			s.do(func(r *replica.Replica, now time.Duration) { r.Failed(now, e.Log, err.Error()) })
			return
		}
	}
	differ := e.Prev.Next
	theirs := e.Bytes
	if s.node.disk.readFails() {
		s.do(func(r *replica.Replica, now time.Duration) { r.Failed(now, e.Log, errIO.Error()) })
		return
	}
	for len(theirs) > 0 && differ < p.next() {
		own, next, err := p.encoded(differ, 1)
		if err != nil && differ >= p.head() {
			// What cannot be read is not different.
			s.do(func(r *replica.Replica, now time.Duration) { r.Failed(now, e.Log, err.Error()) })
			return
		}
		if err != nil || len(own) == 0 || len(own) > len(theirs) || string(own) != string(theirs[:len(own)]) {
			break
		}
		theirs = theirs[len(own):]
		differ = next
	}
	if len(theirs) > 0 && differ >= p.next() {
		differ = ^offset(0) // all that both have is the same
	}
	if len(theirs) == 0 {
		differ = ^offset(0)
	}
	s.do(func(r *replica.Replica, now time.Duration) { r.Compared(now, e.Log, at, differ) })
}

// unreadable is a log whose stored bytes cannot be read: on a disk that lost them the
// shard is opened again, elsewhere it is a fault of the simulator.
func (s *shard) unreadable(id replica.LogID, err error) {
	n := s.node
	var damaged *storage.Corruption
	var poisoned *storage.PoisonedError
	if s.over {
		return
	}
	// A cut that failed half-way poisons the log, and what was to be cut is not there.
	if !errors.Is(err, syscall.EIO) && !errors.As(err, &poisoned) && (!errors.As(err, &damaged) || !n.disk.suspect) {
		n.world.fail("log", "%s log %d: %v", n.id, id, err)
		return
	}
	n.world.trace(n, "unreadable", func() string { return err.Error() })
	n.after(0, func() {
		if !s.over {
			s.do(func(r *replica.Replica, now time.Duration) { r.Failed(now, id, err.Error()) })
		}
	})
}

func (s *shard) written(id replica.LogID, first, next offset, enc []byte) {
	s.rep.Written(s.node.boot(), id, first, next, enc)
	s.node.world.check.stored(s.node, id, first, next)
}

func (s *shard) stable(id replica.LogID, next offset) {
	s.rep.Stable(s.node.boot(), id, next)
}

func (s *shard) failed(id replica.LogID, reason string) {
	w := s.node.world
	w.trace(s.node, "log failed", func() string { return reason })
	s.rep.Failed(s.node.boot(), id, reason)
	if w.opts.Rules.Hold(replica.ResignOnFailure) || s.rep.Role() == replica.Stopped {
		return
	}
	// Without the clause the leader opens its log again and goes on.
	s.node.after(time.Millisecond, func() {
		if s.over {
			return
		}
		s.ports[id].close()
		p, err := s.node.disk.open(s.incarnation, id, s.hooks(id))
		if err != nil {
			return
		}
		s.ports[id] = p
		last, err := p.place(p.next())
		if err != nil {
			return
		}
		s.app.cut(id, p.next())
		s.do(func(r *replica.Replica, now time.Duration) {
			r.Reopened(now, id, replica.LogOpened{Head: p.head(), Next: p.next(), Last: last, Generations: p.generations()})
		})
	})
}

// saveMarks stores the committed marks, lazily, as far as they are durable: a log that
// ends below its stored mark when it is opened has lost what it answered for.
func (s *shard) saveMarks() {
	for i := range s.ports {
		st := s.rep.Log(replica.LogID(i))
		s.state.marks[i] = min(st.Mark, st.Durable)
	}
}

// manage moves the set towards what the world wants, as placement would.
func (s *shard) manage() {
	w := s.node.world
	if !s.rep.Serving() || s.over {
		return
	}
	now := s.node.boot()
	set, pending := s.rep.Set()
	if pending != nil && w.opts.Rules.Hold(replica.OneAtATime) {
		return
	}
	wanted := func(id meta.NodeID) bool {
		for _, i := range w.shard.desired {
			if w.nodes[i].id == id {
				return true
			}
		}
		return false
	}
	member := func(id meta.NodeID) bool {
		for _, m := range set {
			if m.Node == id {
				return true
			}
		}
		return false
	}
	change := func(next []meta.Member) {
		err := s.rep.ChangeSet(now, next)
		w.trace(s.node, "change set", func() string { return fmt.Sprintf("%v -> %v: %v", set, next, err) }, uint64(len(next)))
		s.drain()
	}
	without := func(drop meta.NodeID) []meta.Member {
		var out []meta.Member
		for _, m := range set {
			if m.Node != drop {
				out = append(out, m)
			}
		}
		return out
	}
	if away := s.rep.Away(now); len(away) > 0 && len(set) > 1 {
		change(without(away[0].Node))
		return
	}
	levelFirst := w.opts.Rules.Hold(replica.LevelFirst)
	for _, st := range s.rep.Strangers() {
		if !st.Level && levelFirst {
			continue
		}
		switch {
		case member(st.Member.Node): // another disk than the listed one
			change(append(without(st.Member.Node), st.Member))
			return
		case wanted(st.Member.Node):
			for _, m := range set {
				if !wanted(m.Node) && m.Node != s.node.id {
					change(append(without(m.Node), st.Member)) // swap
					return
				}
			}
			if len(set) < len(w.shard.desired)+1 {
				change(append(without(""), st.Member))
				return
			}
		}
	}
	missing := false
	for _, i := range w.shard.desired {
		if id := w.nodes[i].id; !member(id) {
			missing = true
			s.rep.Learn(now, id)
			s.drain()
		}
	}
	if !missing && len(set) > len(w.shard.desired) {
		for _, m := range set {
			if !wanted(m.Node) && m.Node != s.node.id {
				change(without(m.Node))
				return
			}
		}
	}
}
