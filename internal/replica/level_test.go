package replica

import (
	"errors"
	"fmt"
	"testing"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// levelCase is a follower that comes back to its leader: what it holds, what it can say of
// it, and how it is fed.
type levelCase struct {
	leaderHead Offset
	head       Offset // the follower's
	common     Offset // how far its log is the leader's
	suffix     string // what it holds beyond that, as in levelHistory
	mark       Offset
	unsure     bool // it cannot say its generations
	forgetful  bool
	behind     bool // one record a batch, and comparing takes longer than all messages under way
	fenced     bool // it takes part in the fence; else it comes back when the leader serves
	level      bool // and then it accepted the leader's term, and holds its statement, already
}

// levelHistory is the log of those that elect the leader, all of it committed: a letter is
// a record, a digit the statement of ten times that generation.
const levelHistory = "1aa2aa3aa"

// maxLevelMessages bounds what a follower and its leader say until they are level: there
// and back for each record in turn, and a few to find where to begin.
const maxLevelMessages = 2*int64(len(levelHistory)+1) + 8

func levelLog(base Offset, history string) *stageLog {
	l := &stageLog{}
	for i, c := range []byte(history) {
		spec := &segment.RecordSpec{Offset: Offset(i), Timestamp: 1, Kind: storage.KindPlain, Payload: []byte{c}}
		switch {
		case c >= '1' && c <= '9':
			spec.Kind, spec.Payload = storage.KindGenerationStart, generationBytes(Generation(c-'0')*10)
		case c == '+': // of a leader between two of those in levelHistory
			spec.Kind, spec.Payload = storage.KindGenerationStart, generationBytes(l.gens[i-1]+5)
		}
		l.append(segment.AppendRecord(nil, spec))
	}
	l.recs, l.gens, l.base = l.recs[base:], l.gens[base:], base
	l.durable = len(l.recs)
	return l
}

// levelSuffixes are what a follower may hold instead of the records from common on: more of
// the generation before, where the history has another statement; or of a leader that
// committed nothing, though never one that overlooked what was committed.
func levelSuffixes(common Offset) []string {
	suffixes := []string{""}
	if common > 0 && common%3 == 0 {
		suffixes = append(suffixes, "b", "bbb")
	}
	if common > 0 && (common <= 6 || common == Offset(len(levelHistory))) {
		suffixes = append(suffixes, "+b")
	}
	return suffixes
}

func levelCases() (cases []levelCase) {
	for _, leaderHead := range []Offset{0, 1, 3, 4, 6} {
		for _, head := range []Offset{0, 2, 4} {
			for common := head; common <= Offset(len(levelHistory)); common++ {
				for _, suffix := range levelSuffixes(common) {
					for _, mark := range []Offset{head, common} {
						for bits := range 16 {
							c := levelCase{leaderHead: leaderHead, head: head, common: common, suffix: suffix, mark: mark,
								unsure: bits&1 != 0, forgetful: bits&2 != 0, behind: bits&4 != 0, fenced: bits&8 != 0}
							cases = append(cases, c)
							if c.level = true; !c.fenced && suffix == "" && common == Offset(len(levelHistory)) {
								cases = append(cases, c)
							}
						}
					}
				}
			}
		}
	}
	return cases
}

// run plays the case: no time passes once the two have met.
func (c levelCase) run() (*stage, error) {
	s := &stage{cut: map[string]bool{}, said: map[string]int64{}, logs: 1, mode: meta.ConsistencyQuorum, slow: c.behind}
	if c.behind {
		s.ship = 1
	}
	s.store, s.version = &meta.Assignment{Incarnation: 1, Generation: 35}, 1
	for i, id := range []meta.NodeID{"a", "b", "c"} {
		p := &player{s: s, id: id, disk: meta.DiskID(i + 1), term: Term{Generation: 35}, marks: []Offset{Offset(len(levelHistory))}, known: []map[Offset]string{{}}}
		p.logs = []*stageLog{levelLog(c.leaderHead, levelHistory)}
		s.players = append(s.players, p)
		s.store.Members = append(s.store.Members, meta.Member{Node: id, Disk: p.disk})
	}
	a, b := s.players[0], s.players[1]
	b.logs[0] = levelLog(c.head, levelHistory[:c.common]+c.suffix)
	b.marks[0], b.unsure, b.forgetful = c.mark, c.unsure, c.forgetful
	for _, p := range s.players {
		if p != b || c.fenced {
			s.open(p)
		}
	}
	a.rep.Campaign(s.now)
	s.drain(a)
	s.deliver("", -1, false)
	switch {
	case c.level: // the leader has nothing to say
		b.logs[0].append(a.logs[0].recs[len(a.logs[0].recs)-1])
		b.marks[0], b.term = min(b.marks[0]+1, b.logs[0].next()), a.rep.Term()
		s.open(b)
	case !c.fenced:
		s.open(b)
		s.now += ResendAfter
		a.rep.Tick(s.now)
		s.drain(a)
	}
	s.deliver("", -1, false)
	if !a.rep.Serving() {
		return s, errors.New("a does not serve")
	}
	have, want, st := b.logs[0], a.logs[0], b.rep.Log(0)
	switch {
	case b.rep.Role() != Follower || have.next() != want.next() || st.Matched != want.next():
		return s, fmt.Errorf("b, a %v, ends at %d and is compared up to %d; want %d", b.rep.Role(), have.next(), st.Matched, want.next())
	case st.Unknown || b.rep.Forgetful():
		return s, fmt.Errorf("b is level, and has no vote: its generation is unknown: %t, forgetful: %t", st.Unknown, b.rep.Forgetful())
	}
	for at := max(have.base, want.base); at < want.next(); at++ {
		if string(have.recs[at-have.base]) != string(want.recs[at-want.base]) {
			return s, fmt.Errorf("record %d differs", at)
		}
	}
	if n := s.said["a->b"] + s.said["b->a"]; n > maxLevelMessages {
		return s, fmt.Errorf("level after %d messages, want at most %d", n, maxLevelMessages)
	}
	return s, nil
}

// TestLevelByMessages: whatever a follower holds of a log, and whether it can say of which
// generations that is, the leader asks until it is level and has its vote: each answer
// leads to the next question, none waits for the clock.
func TestLevelByMessages(t *testing.T) {
	failed := 0
	cases := levelCases()
	for _, c := range cases {
		if s, err := c.run(); err != nil {
			t.Errorf("%+v: %v", c, err)
			if failed++; failed == 3 {
				t.Fatalf("the last of them:\n%s", s.out.String())
			}
		}
	}
	t.Logf("%d followers", len(cases))
}

// A log that could say its generation only by the statement that is cut off again cannot
// say it any more, and has no vote: it may hold records of any generation.
func TestCutTakesTheStatement(t *testing.T) {
	l := shardLog{head: 5, tail: 9, written: 9, durable: 9, matched: 9, mark: 5, gens: []storage.GenerationStart{{Generation: 3, Start: 8}}}
	l.cutTo(Place{Next: 9})
	if l.unknown {
		t.Error("unknown with its statement there")
	}
	l.cutTo(Place{Next: 7})
	if !l.unknown {
		t.Error("known without a statement")
	}
	l = shardLog{tail: 9, gens: []storage.GenerationStart{{Generation: 3, Start: 0}}}
	l.cutTo(Place{})
	if l.unknown {
		t.Error("an empty log is of no generation, and says so")
	}
}
