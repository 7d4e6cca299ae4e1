package server

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/felixlog/felix/internal/testkit/heap"
	"github.com/felixlog/felix/wire"
)

// memoryLink is a link whose client takes everything.
type memoryLink struct{ bytes.Buffer }

func (*memoryLink) finish() {}
func (*memoryLink) stop()   {}

func (*memoryLink) gone() context.Context { return nil }
func (*memoryLink) listens(error) bool    { return false }

// newTestSession is an authenticated session without a client.
func newTestSession(l link, pipeline bool) *session {
	s := &Server{limits: Limits{}.withDefaults()}
	s.draining, s.drain = context.WithCancel(context.Background())
	c := s.newConnection(context.Background(), transportTCP, nil)
	sess := &session{server: s, conn: c, link: l, flags: wire.FlagsKnown, features: everything, pipeline: pipeline}
	sess.ctx, sess.cancel = context.WithCancel(c.ctx)
	sess.request.s = sess
	sess.out.init(l, s.limits.UnreadBytes, c.run, func(error) {}, func() {})
	return sess
}

// Whatever order the shards finish in, a pipelining client is answered in the order it
// asked, others in the order of completion, each publish once, and requests in the order
// of the requests, whether they were answered at once or later.
func TestOrderOfAnswers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pipeline := rapid.Bool().Draw(t, "pipeline")
		var out memoryLink
		s := newTestSession(&out, pipeline)
		s.out.hold() // nothing is written until the end: no goroutines, one story

		type pending struct {
			id uint64
			p  *publication
			r  *Reply
		}
		var open []pending
		var publishes, requests, completed []uint64
		id := uint64(0)
		complete := func(i int) {
			q := open[i]
			open = append(open[:i], open[i+1:]...)
			if q.r != nil {
				q.r.Answer(&wire.CacheOK{RequestID: q.id})
				return
			}
			if q.p.answer != answerNone {
				completed = append(completed, q.id)
			}
			if q.id%5 == 0 {
				q.p.Err = errors.New("no")
			}
			s.settle(q.p)
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0, 1:
				id++
				answer := answerKind(rapid.IntRange(int(answerNone), int(answerJSON)).Draw(t, "answer"))
				if answer != answerNone {
					publishes = append(publishes, id)
				}
				open = append(open, pending{id: id, p: s.newPublication(answer, id)})
			case 2:
				id++
				requests = append(requests, id)
				open = append(open, pending{id: id, r: s.deferReply()})
			case 3:
				id++
				requests = append(requests, id)
				s.answer(&wire.CacheOK{RequestID: id})
			default:
				if len(open) > 0 {
					complete(rapid.IntRange(0, len(open)-1).Draw(t, "which"))
				}
			}
		}
		for len(open) > 0 {
			complete(rapid.IntRange(0, len(open)-1).Draw(t, "which"))
		}
		s.waitSettled()
		s.out.flush()

		var gotPublishes, gotRequests []uint64
		for r := wire.NewReader(&out.Buffer, 1<<20); ; {
			f, err := r.Next()
			if err != nil {
				break
			}
			if f.Flags.Layout() == wire.LayoutAck {
				var a wire.PublishAck
				if err := a.Decode(f.Flags, f.Payload); err != nil {
					t.Fatal(err)
				}
				gotPublishes = append(gotPublishes, a.RequestID)
				continue
			}
			m, err := wire.DecodeMessage(f.Payload)
			if err != nil {
				t.Fatal(err)
			}
			switch m := m.(type) {
			case *wire.CacheOK:
				gotRequests = append(gotRequests, m.RequestID)
			case *wire.PublishOK:
				gotPublishes = append(gotPublishes, m.RequestID)
			case *wire.PublishError:
				gotPublishes = append(gotPublishes, m.RequestID)
			}
		}
		if !pipeline {
			publishes = completed
		}
		if !equal(publishes, gotPublishes) || !equal(requests, gotRequests) {
			t.Fatalf("publishes %v, answered %v; requests %v, answered %v", publishes, gotPublishes, requests, gotRequests)
		}
	})
}

func equal(a, b []uint64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q queue[int]
		var model []int
		for i := range rapid.IntRange(0, 200).Draw(t, "n") {
			if rapid.Bool().Draw(t, "push") {
				q.push(&i)
				model = append(model, i)
				continue
			}
			if len(model) == 0 {
				if q.front() != nil || !q.empty() {
					t.Fatal("not empty")
				}
				continue
			}
			if *q.front() != model[0] {
				t.Fatalf("front %d, want %d", *q.front(), model[0])
			}
			q.pop()
			model = model[1:]
		}
	})
}

// A publish and its binary answer cost no allocation in the session.
func TestPublicationsCostNoAllocation(t *testing.T) {
	var out memoryLink
	s := newTestSession(&out, true)
	id := uint64(0)
	step := func() {
		s.out.hold()
		for range 64 {
			id++
			s.settle(s.newPublication(answerBinary, id))
		}
		s.out.flush()
		out.Reset()
	}
	step()
	if raceEnabled {
		return
	}
	require.LessOrEqual(t, heap.Allocs(200, step), 1.0, "a batch of 64")
}
