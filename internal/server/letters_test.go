package server

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

// The protocol's list of dead letters has no pages: it holds the lowest offsets, as many as
// it may, and the others when those are gone. How many there are is told apart.
func TestDeadLettersOfTheProtocolAreBounded(t *testing.T) {
	require.Equal(t, 100_000, Limits{}.withDefaults().ListedLetters)
	w := newWorld(t, func(o *Options) { o.Limits.ListedLetters = 3 })
	w.stream("jobs", w.durable(1))
	p := w.dial(transportTCP).login()
	p.publish(acked(1, batch("jobs", "a", "b", "c", "d", "e")))
	require.False(t, p.ack().Failed)
	ref := wire.GroupRef{Tenant: "t1", Namespace: "ns", Stream: "jobs", Group: "g"}
	p.send(&wire.GroupPoll{GroupRef: ref, MaxRecords: 5, RequestID: 2})
	for _, r := range p.recv().(*wire.GroupRecords).Records {
		p.send(&wire.GroupDeadLetter{GroupRef: ref, Offset: r.Offset, RequestID: 3})
		require.Equal(t, &wire.CacheOK{RequestID: 3}, p.recv())
	}
	list := func() []uint64 {
		p.send(&wire.GroupDeadLetters{GroupRef: ref, RequestID: 4})
		return p.recv().(*wire.GroupDeadLetterList).Offsets
	}
	require.Equal(t, []uint64{0, 1, 2}, list())
	p.send(&wire.GroupDescribe{GroupRef: ref, RequestID: 5})
	require.EqualValues(t, 5, p.recv().(*wire.GroupInfo).DeadLetters)
	p.send(&wire.GroupDiscard{GroupRef: ref, Offset: 1, RequestID: 6})
	require.Equal(t, &wire.CacheOK{RequestID: 6}, p.recv())
	require.Equal(t, []uint64{0, 2, 3}, list())
}

// What is kept of a letter's payload is all that its answer has room for.
func TestALetterFillsItsFrame(t *testing.T) {
	for _, frame := range []int{4 << 10, 128 << 10, 16 << 20} {
		s := &Server{limits: Limits{FrameBytes: frame}}
		most := s.largestLetter()
		require.LessOrEqual(t, letterCost(make([]byte, most)), frame-answerCost, "%d", frame)
		require.Greater(t, letterCost(make([]byte, most+12)), frame-answerCost, "%d", frame)
	}
}
