package replica

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// stage plays scripted dialogues: replicas with logs that do at once what they are
// asked, messages that wait to be delivered or dropped, and metadata that answers at
// once. It prints everything that is said and done.
type stage struct {
	out     strings.Builder
	now     time.Duration
	players []*player
	queue   []Message
	store   *meta.Assignment
	version meta.Version
	cut     map[string]bool // "a->b"
	logs    int
	leases  bool
	lazy    bool // what is written is stable and not on the disk: fsync mode none
	mode    meta.Consistency
	rules   Rules
	ship    int // bytes read at once for a follower that is behind; zero: the default
	backup  *meta.Assignment
	backed  meta.Version
	differ  bool // the last judge found a difference
	slow    bool // comparing takes longer than all messages that are under way
	work    []func()
	said    map[string]int64 // messages delivered, by "a->b"
}

type player struct {
	s         *stage
	id        meta.NodeID
	disk      meta.DiskID
	count     uint64
	rep       *Replica // nil: down
	logs      []*stageLog
	term      Term
	forgetful bool
	marks     []Offset
	known     []map[Offset]string // by log: what this disk has had below a mark
	holdFlush bool
	unsure    bool // its logs cannot say the generation of their records
	read      uint64
	lost      int
	deaf      bool // the answer to its next transaction is lost
	mute      bool // its next transaction is lost
	producers map[string]Offset
}

type stageLog struct {
	base    Offset
	recs    [][]byte
	gens    []Generation
	durable int
}

func (l *stageLog) next() Offset { return l.base + Offset(len(l.recs)) }

func (l *stageLog) place(at Offset) Place {
	if at <= l.base || at > l.next() {
		return Place{Next: at}
	}
	r, _, err := segment.DecodeRecord(l.recs[at-l.base-1], at-1)
	if err != nil {
		panic(err) // a stage's own records decode
	}
	return Place{Next: at, Generation: l.gens[at-l.base-1], Checksum: r.Checksum}
}

func (l *stageLog) append(encoded []byte) {
	for len(encoded) > 0 {
		r, n, err := segment.DecodeRecord(encoded, l.next())
		if err != nil {
			panic(err) // a stage's own records decode
		}
		gen := Generation(0)
		if len(l.gens) > 0 {
			gen = l.gens[len(l.gens)-1]
		}
		if r.Kind == storage.KindGenerationStart {
			gen = r.Generation()
		}
		l.recs, l.gens = append(l.recs, encoded[:n:n]), append(l.gens, gen)
		encoded = encoded[n:]
	}
}

func (l *stageLog) String() string {
	var out []string
	for i, b := range l.recs {
		r, _, err := segment.DecodeRecord(b, l.base+Offset(i))
		switch {
		case err != nil:
			out = append(out, "?")
		case r.Kind == storage.KindGenerationStart:
			out = append(out, fmt.Sprintf("[gen %d]", r.Generation()))
		default:
			out = append(out, string(r.Payload))
		}
	}
	s := strings.Join(out, " ")
	if l.base > 0 {
		s = fmt.Sprintf("(from %d) %s", l.base, s)
	}
	if s == "" {
		s = "(empty)"
	}
	return s
}

func (s *stage) say(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }

func (s *stage) player(id string) *player {
	for _, p := range s.players {
		if string(p.id) == id {
			return p
		}
	}
	return nil
}

func (s *stage) open(p *player) {
	p.count++
	o := Opened{Opening: Opening{p.disk, p.count}, Accepted: p.term, Forgetful: p.forgetful, Now: s.now}
	for i, l := range p.logs {
		var gens []storage.GenerationStart
		for j, b := range l.recs {
			if r, _, err := segment.DecodeRecord(b, l.base+Offset(j)); err == nil && r.Kind == storage.KindGenerationStart {
				gens = append(gens, storage.GenerationStart{Generation: r.Generation(), Start: r.Offset})
			}
		}
		l.durable = len(l.recs)
		opened := LogOpened{Head: l.base, Next: l.next(), Mark: p.marks[i], Last: l.place(l.next()), Generations: gens}
		if p.unsure {
			clear(l.gens)
			opened.Generations, opened.Last.Generation, opened.Unknown = nil, 0, true
		}
		o.Logs = append(o.Logs, opened)
	}
	p.rep = New(Config{Node: p.id, Shard: ShardID{Incarnation: 1}, Consistency: s.mode, Leases: s.leases, Rules: s.rules, ShipBytes: s.ship}, o)
	p.forgetful = p.rep.Forgetful()
	p.holdFlush = false
	p.rep.Assigned(s.now, s.store, s.version)
	s.drain(p)
}

// drain carries out what a replica asks for, at once.
func (s *stage) drain(p *player) {
	for p.rep != nil {
		out := p.rep.Take()
		if len(out.Messages) == 0 && len(out.Effects) == 0 {
			return
		}
		for i := range out.Messages {
			var m Message
			m.From, m.To = out.Messages[i].From, out.Messages[i].To
			if err := m.Decode(out.Messages[i].Append(nil)); err != nil {
				s.say("%v", err)
			}
			s.queue = append(s.queue, m)
		}
		for _, e := range slices.Clone(out.Effects) {
			e.Bytes = slices.Clone(e.Bytes)
			s.carryOut(p, &e)
		}
	}
}

func (s *stage) carryOut(p *player, e *Effect) {
	r := p.rep
	log := p.logs[e.Log]
	switch e.Type {
	case Persist:
		p.term, p.forgetful = e.Term, e.Forgetful
		s.say("  %s: accepts generation %d%s", p.id, e.Term.Generation, map[bool]string{true: " (forgetful)"}[e.Forgetful])
		r.Persisted(s.now, e.Term, e.Forgetful)
	case Write:
		// A log that began anew takes its first record at any place.
		if own := log.place(log.next()); e.Prev.Next != own.Next || e.Prev != own && log.next() > log.base {
			s.say("  %s: log %d refuses a record after %d/g%d: it ends at %d/g%d", p.id, e.Log, e.Prev.Next, e.Prev.Generation, own.Next, own.Generation)
			r.Failed(s.now, e.Log, "append of encoded records at another place")
			return
		}
		log.append(e.Bytes)
		s.say("  %s: writes log %d up to %d", p.id, e.Log, log.next())
		r.Written(s.now, e.Log, 0, log.next(), nil)
		s.flush(p)
	case AppendStart:
		s.append(p, e.Log, storage.KindGenerationStart, string(generationBytes(e.Term.Generation)))
	case Compare:
		if !s.slow {
			s.compare(r, log, e)
			return
		}
		s.work = append(s.work, func() {
			if p.rep == r {
				s.compare(r, log, e)
				s.drain(p)
			}
		})
	case Cut:
		n := int(log.next() - e.At)
		p.lost += n
		log.recs, log.gens = log.recs[:e.At-log.base], log.gens[:e.At-log.base]
		log.durable = min(log.durable, len(log.recs))
		s.say("  %s: cuts log %d to %d: %d to lost/", p.id, e.Log, e.At, n)
		r.WasCut(s.now, e.Log, log.place(e.At))
	case Rebase:
		log.recs, log.gens, log.base, log.durable = nil, nil, e.At, 0
		s.say("  %s: begins log %d anew at %d", p.id, e.Log, e.At)
		r.WasReset(s.now, e.Log, e.At)
	case Flush:
		for _, l := range p.logs {
			l.durable = len(l.recs)
		}
		r.Flushed(s.now)
	case Fetch:
		var b []byte
		next := e.At
		for i := e.At - log.base; i < Offset(len(log.recs)) && (len(b) == 0 || len(b)+len(log.recs[i]) <= e.Limit); i++ {
			b = append(b, log.recs[i]...)
			next++
		}
		r.Fetched(s.now, e.Log, e.Peer, log.place(e.At), b, next, e.At < log.base)
	case Propose:
		if e.Blind {
			a := s.store.Clone()
			a.Generation, a.Leader, a.LeaderDisk, a.LeaderOpening = e.Assignment.Generation, e.Assignment.Leader, e.Assignment.LeaderDisk, e.Assignment.LeaderOpening
			s.version++
			s.store = a
			s.say("  %s: takes generation %d, whatever the set is: done", p.id, a.Generation)
			r.Proposed(s.now, ProposalDone, s.version)
			return
		}
		if e.Version != s.version {
			s.say("  %s: asks for generation %d, set %s: conflict", p.id, e.Assignment.Generation, setText(e.Assignment.Members))
			r.Proposed(s.now, ProposalConflict, 0)
			return
		}
		if p.mute {
			p.mute = false
			s.say("  %s: asks for generation %d, set %s: LOST", p.id, e.Assignment.Generation, setText(e.Assignment.Members))
			r.Proposed(s.now, ProposalUnknown, 0)
			return
		}
		s.version++
		s.store = e.Assignment
		if p.deaf {
			p.deaf = false
			s.say("  %s: asks for generation %d, set %s: done, and the answer is LOST", p.id, e.Assignment.Generation, setText(e.Assignment.Members))
			r.Proposed(s.now, ProposalUnknown, 0)
			return
		}
		s.say("  %s: asks for generation %d, set %s: done", p.id, e.Assignment.Generation, setText(e.Assignment.Members))
		r.Proposed(s.now, ProposalDone, s.version)
	case ReadAssignment:
		r.Assigned(s.now, s.store, s.version)
	case Trim:
		n := e.At - log.base
		log.recs, log.gens, log.base = log.recs[n:], log.gens[n:], e.At
		log.durable = max(0, log.durable-int(n))
		s.say("  %s: trims log %d to %d", p.id, e.Log, e.At)
	case Committed:
		for at := max(log.base, p.marks[e.Log]); at < min(e.At, log.next()); at++ {
			p.known[e.Log][at] = string(log.recs[at-log.base])
		}
		p.marks[e.Log] = e.At
		s.say("  %s: mark of log %d is %d", p.id, e.Log, e.At)
	case Acknowledge:
		s.say("  %s: acknowledges log %d up to %d", p.id, e.Log, e.At)
	case Serve:
		s.say("  %s: SERVES generation %d, positions end at %d", p.id, e.Term.Generation, e.At)
	case Resigned:
		s.say("  %s: RESIGNS (%s); what waits is %v", p.id, e.Reason, e.Outcome)
	case ReadReady:
		s.say("  %s: read %d at %d", p.id, e.Read, e.At)
	case ReadFailed:
		s.say("  %s: read %d fails", p.id, e.Read)
	case Halted:
		s.say("  %s: HALTS: %s", p.id, e.Reason)
	case SetChanged:
		s.say("  %s: set is %s", p.id, setText(e.Assignment.Members))
	case Followed:
		s.say("  %s: follows %s in generation %d", p.id, e.Peer, e.Term.Generation)
	}
}

func (s *stage) compare(r *Replica, log *stageLog, e *Effect) {
	own, differ := log.place(e.Prev.Next), e.Prev.Next
	b := e.Bytes
	for len(b) > 0 && differ < log.next() {
		mine := log.recs[differ-log.base]
		if len(mine) > len(b) || string(mine) != string(b[:len(mine)]) {
			break
		}
		b = b[len(mine):]
		differ++
	}
	if len(b) == 0 || differ >= log.next() {
		differ = ^Offset(0)
	}
	r.Compared(s.now, e.Log, own, differ)
}

func generationBytes(g Generation) []byte {
	b := make([]byte, 8)
	b[7] = byte(g)
	return b
}

func setText(members []meta.Member) string {
	var out []string
	for _, m := range members {
		out = append(out, fmt.Sprintf("%s/%d", m.Node, m.Disk))
	}
	return "{" + strings.Join(out, " ") + "}"
}

// append is the leader's log taking a record.
func (s *stage) append(p *player, id LogID, kind storage.Kind, payload string) {
	log := p.logs[id]
	first := log.next()
	b := segment.AppendRecord(nil, &segment.RecordSpec{Offset: first, Timestamp: 1, Kind: kind, Payload: []byte(payload)})
	log.append(b)
	p.rep.Written(s.now, id, first, log.next(), b)
	s.flush(p)
}

func (s *stage) flush(p *player) {
	if p.holdFlush {
		return
	}
	for i, l := range p.logs {
		if !s.lazy {
			l.durable = len(l.recs)
		}
		p.rep.Stable(s.now, LogID(i), l.next())
	}
}

func messageText(m *Message) string {
	head := fmt.Sprintf("%s->%s %v gen %d", m.From, m.To, m.Type, m.Term.Generation)
	switch m.Type {
	case Append:
		n := 0
		for b := m.Bytes; len(b) > 0; n++ {
			b = skip(b, m.Prev.Next+Offset(n)+1)
		}
		head += fmt.Sprintf(" log %d after %d/g%d: %d records, mark %d", m.Log, m.Prev.Next, m.Prev.Generation, n, m.Mark)
	case Appended:
		head += fmt.Sprintf(" log %d after %d: ", m.Log, m.Prev.Next)
		if m.Refused == NotRefused {
			head += fmt.Sprintf("holds %d", m.Match)
		} else {
			head += fmt.Sprintf("%v, tail %d, generation %d since %d", m.Refused, m.Tail, m.At, m.Start)
		}
		if m.Refused == RefusedOlder {
			head += fmt.Sprintf(", accepted %d", m.Accepted.Generation)
		}
	case FenceAnswer:
		head += fmt.Sprintf(" (disk %d)", m.Opening.Disk)
		if m.Refused != NotRefused {
			head += fmt.Sprintf(": %v, accepted %d", m.Refused, m.Accepted.Generation)
			break
		}
		for i, v := range m.Votes {
			head += fmt.Sprintf(" log %d: generation %d, length %d", i, v.Last, v.Tail)
			if v.Unknown {
				head += " unknown"
			}
		}
		if m.Forgetful {
			head += " forgetful"
		}
	case Pull:
		head += fmt.Sprintf(" log %d from %d", m.Log, m.Match)
	case Pulled:
		head += fmt.Sprintf(" log %d after %d/g%d up to %d %v", m.Log, m.Prev.Next, m.Prev.Generation, m.Match, m.Refused)
	case Beat:
		head += fmt.Sprintf(" round %d mark %d", m.Round, m.Marks[0].Mark)
	case BeatAnswer:
		head += fmt.Sprintf(" round %d %v", m.Round, m.Refused)
	case Reset:
		head += fmt.Sprintf(" log %d to %d", m.Log, m.Match)
	}
	return head
}

// deliver hands over waiting messages, in order: all of them until none is left, or
// those that fit only.
func (s *stage) deliver(only string, limit int, drop bool) {
	for n := 0; n < 500; n++ {
		i := slices.IndexFunc(s.queue, func(m Message) bool {
			way := string(m.From) + "->" + string(m.To)
			return only == "" || only == way || only == m.Type.String()
		})
		if i < 0 && only == "" && len(s.work) > 0 {
			work := s.work[0]
			s.work = s.work[1:]
			work()
			continue
		}
		if i < 0 || limit == 0 {
			return
		}
		limit--
		m := s.queue[i]
		s.queue = slices.Delete(s.queue, i, i+1)
		p := s.player(string(m.To))
		switch {
		case drop || s.cut[string(m.From)+"->"+string(m.To)]:
			s.say("%s LOST", messageText(&m))
		case p.rep == nil:
			s.say("%s (down)", messageText(&m))
		default:
			s.say("%s", messageText(&m))
			s.said[string(m.From)+"->"+string(m.To)]++
			p.rep.Receive(s.now, &m)
			s.drain(p)
		}
	}
	s.say("... and so on: the dialogue does not end")
}

func (s *stage) run(t *testing.T, d *datadriven.TestData) string {
	s.out.Reset()
	node := func() *player {
		if len(d.CmdArgs) == 0 || s.player(d.CmdArgs[0].Key) == nil {
			d.Fatalf(t, "which node?")
		}
		return s.player(d.CmdArgs[0].Key)
	}
	var nodes string
	switch d.Cmd {
	case "cluster":
		*s = stage{cut: map[string]bool{}, said: map[string]int64{}, logs: 1, mode: meta.ConsistencyQuorum}
		d.ScanArgs(t, "nodes", &nodes)
		d.MaybeScanArgs(t, "logs", &s.logs)
		s.leases, s.lazy, s.slow = d.HasArg("leases"), d.HasArg("lazy"), d.HasArg("slow-compare")
		d.MaybeScanArgs(t, "ship-bytes", &s.ship)
		var set, off string
		if d.MaybeScanArgs(t, "off", &off) {
			rule, ok := ParseRule(off)
			if !ok {
				d.Fatalf(t, "unknown clause %q", off)
			}
			s.rules = s.rules.Without(rule)
		}
		d.ScanArgs(t, "set", &set)
		s.store, s.version = &meta.Assignment{Incarnation: 1}, 1
		for i, id := range strings.Split(nodes, "+") {
			p := &player{s: s, id: meta.NodeID(id), disk: meta.DiskID(i + 1), marks: make([]Offset, s.logs), known: make([]map[Offset]string, s.logs), producers: map[string]Offset{}}
			for i := range s.logs {
				p.logs = append(p.logs, &stageLog{})
				p.known[i] = map[Offset]string{}
			}
			s.players = append(s.players, p)
			if slices.Contains(strings.Split(set, "+"), id) {
				s.store.Members = append(s.store.Members, meta.Member{Node: p.id, Disk: p.disk})
			}
		}
		for _, p := range s.players {
			s.open(p)
		}
	case "campaign":
		p := node()
		if !d.HasArg("stale") {
			p.rep.Assigned(s.now, s.store, s.version)
		}
		p.rep.Campaign(s.now)
		s.drain(p)
	case "publish":
		p := node()
		for _, a := range d.CmdArgs[1:] {
			if !p.rep.Serving() {
				s.say("%s does not serve: %s is refused, it had no place", p.id, a.Key)
				continue
			}
			log := LogID(0)
			if len(a.Vals) > 0 {
				n, err := strconv.Atoi(a.Vals[0])
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				log = LogID(n)
			}
			s.append(p, log, storage.KindPlain, a.Key)
		}
		s.drain(p)
	case "produce":
		// An idempotent publish: what is in the log, in flight included, is not appended
		// again.
		p := node()
		for _, a := range d.CmdArgs[1:] {
			switch at := p.find(a.Key); {
			case !p.rep.Serving():
				s.say("%s does not serve: %s is refused, it had no place", p.id, a.Key)
			case at >= 0:
				s.say("%s has %s at %d already", p.id, a.Key, at)
			default:
				s.append(p, 0, storage.KindPlain, a.Key)
			}
		}
		s.drain(p)
	case "deliver", "drop":
		only, limit := "", -1
		for _, a := range d.CmdArgs {
			if a.Key == "n" {
				n, err := strconv.Atoi(a.Vals[0])
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				limit = n
			} else {
				only = a.Key
			}
		}
		s.deliver(only, limit, d.Cmd == "drop")
	case "isolate", "heal":
		id := string(node().id)
		for _, p := range s.players {
			s.cut[id+"->"+string(p.id)] = d.Cmd == "isolate"
			s.cut[string(p.id)+"->"+id] = d.Cmd == "isolate"
		}
	case "hold-flush":
		node().holdFlush = true
	case "lose-answer":
		node().deaf = true
	case "lose-request":
		node().mute = true
	case "flush":
		p := node()
		p.holdFlush = false
		s.flush(p)
		s.drain(p)
	case "kill", "power-cut":
		p := node()
		p.rep = nil
		if d.Cmd == "power-cut" {
			keeps := 0
			d.MaybeScanArgs(t, "keeps", &keeps)
			for _, l := range p.logs {
				n := min(l.durable+keeps, len(l.recs))
				l.recs, l.gens = l.recs[:n], l.gens[:n]
			}
			p.forgetful = p.forgetful || s.lazy && !d.HasArg("unnoticed")
		}
	case "sync":
		p := node()
		var id int
		d.ScanArgs(t, "log", &id)
		p.logs[id].durable = len(p.logs[id].recs)
	case "restart":
		p := node()
		p.unsure = d.HasArg("unsure")
		if d.HasArg("wiped") {
			p.disk, p.count, p.term, p.forgetful = p.disk+100, 0, Term{}, false
			for i := range p.logs {
				p.logs[i] = &stageLog{}
				p.marks[i] = 0
				clear(p.known[i])
			}
		}
		s.open(p)
		s.say("%s is up: disk %d, log 0: %v", p.id, p.disk, p.logs[0])
	case "tick":
		step := time.Duration(0)
		for _, a := range d.CmdArgs {
			v, err := time.ParseDuration(a.Key)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			step = v
		}
		s.now += step
		for _, p := range s.players {
			if p.rep != nil {
				p.rep.Tick(s.now)
				s.drain(p)
			}
		}
	case "learn":
		p := node()
		p.rep.Learn(s.now, meta.NodeID(d.CmdArgs[1].Key))
		s.drain(p)
	case "change":
		p := node()
		var set string
		d.ScanArgs(t, "set", &set)
		var next []meta.Member
		for _, id := range strings.Split(set, "+") {
			next = append(next, meta.Member{Node: meta.NodeID(id), Disk: s.player(id).disk})
		}
		if err := p.rep.ChangeSet(s.now, next); err != nil {
			s.say("refused: %v", err)
		}
		s.drain(p)
	case "read":
		p := node()
		if p.rep.ReadLimit(0) == 0 {
			s.say("nothing is committed")
		}
		l := *p.logs[0]
		n := min(int(p.rep.ReadLimit(0)-l.base), len(l.recs))
		l.recs = l.recs[:n]
		s.say("readers at %s see: %v", p.id, &l)
	case "linearizable-read":
		p := node()
		p.read++
		p.rep.Read(s.now, p.read)
		s.drain(p)
	case "trim":
		p := node()
		var to uint64
		d.ScanArgs(t, "to", &to)
		p.rep.TrimTo(s.now, 0, Offset(to))
		s.drain(p)
	case "backup":
		s.backup, s.backed = s.store.Clone(), s.version
	case "restore":
		s.store, s.version = s.backup.Clone(), s.backed
		s.say("the metadata says generation %d, set %s", s.store.Generation, setText(s.store.Members))
	case "judge":
		if d.HasArg("kept") {
			s.judgeKept()
		} else {
			s.judge()
		}
	case "logs":
		for _, p := range s.players {
			role := "down"
			if p.rep != nil {
				role = p.rep.Role().String()
			}
			for i, l := range p.logs {
				s.say("%s %-9s log %d: %v  (mark %d)", p.id, role, i, l, p.marks[i])
			}
		}
	default:
		d.Fatalf(t, "unknown command %q", d.Cmd)
	}
	if s.out.Len() == 0 {
		return "ok\n"
	}
	return s.out.String()
}

// judge compares what lies below the marks of any two replicas.
func (s *stage) judge() {
	s.differ = false
	for i := range s.logs {
		same := true
		for j, p := range s.players {
			for _, q := range s.players[j+1:] {
				a, b := p.logs[i], q.logs[i]
				for at := max(a.base, b.base); at < min(p.marks[i], q.marks[i], a.next(), b.next()); at++ {
					if string(a.recs[at-a.base]) != string(b.recs[at-b.base]) {
						s.say("log %d: record %d differs between %s and %s, below their marks", i, at, p.id, q.id)
						s.differ, same = true, false
						break
					}
				}
			}
		}
		if same {
			s.say("log %d: the same on all below their marks", i)
		}
	}
}

// judgeKept looks, on each disk, for what has been below a mark there.
func (s *stage) judgeKept() {
	s.differ = false
	for _, p := range s.players {
		for i, l := range p.logs {
			for _, at := range slices.Sorted(maps.Keys(p.known[i])) {
				if at >= l.base && (at >= l.next() || string(l.recs[at-l.base]) != p.known[i][at]) {
					s.say("log %d: record %d, which %s knew to be committed, is gone there", i, at, p.id)
					s.differ = true
				}
			}
		}
	}
	if !s.differ {
		s.say("each has what it knew to be committed")
	}
}

func (p *player) find(payload string) int {
	for i, b := range p.logs[0].recs {
		if r, _, err := segment.DecodeRecord(b, p.logs[0].base+Offset(i)); err == nil && string(r.Payload) == payload {
			return int(p.logs[0].base) + i
		}
	}
	return -1
}

// TestDialogues plays the scripts of testdata/dialogues and compares every word.
func TestDialogues(t *testing.T) {
	datadriven.Walk(t, "testdata/dialogues", func(t *testing.T, path string) {
		s := &stage{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.run(t, d) })
	})
}

// TestMutations plays the scripts of testdata/mutations: dialogues named as the clause
// that is switched off in them, so that replicas differ at the end. The same script is
// among the dialogues, with every clause on, and ends well.
func TestMutations(t *testing.T) {
	play := func(t *testing.T, path string) (commands []string, differ bool) {
		s := &stage{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var args []string
			for _, a := range d.CmdArgs {
				if a.Key != "off" {
					args = append(args, a.String())
				}
			}
			commands = append(commands, d.Cmd+" "+strings.Join(args, " "))
			return s.run(t, d)
		})
		return commands, s.differ
	}
	files, err := os.ReadDir("testdata/mutations")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		t.Run(f.Name(), func(t *testing.T) {
			if _, ok := ParseRule(f.Name()); !ok {
				t.Fatal("no clause of this name")
			}
			off, differ := play(t, "testdata/mutations/"+f.Name())
			if !differ {
				t.Error("nothing differs without the clause")
			}
			on, differ := play(t, "testdata/dialogues/clause_"+strings.ReplaceAll(f.Name(), "-", "_"))
			if differ {
				t.Error("something differs with every clause")
			}
			if !slices.Equal(off, on) {
				t.Errorf("the scripts are not the same:\n%q\n%q", off, on)
			}
		})
	}
}
