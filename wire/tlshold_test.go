package wire

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/heap"
)

// socketOf keeps the writes to a socket; beside runs while one is under way.
type socketOf struct {
	writes []string
	beside func()
	fail   error
}

func (s *socketOf) Write(p []byte) (int, error) {
	if f := s.beside; f != nil {
		s.beside = nil
		f()
	}
	if s.fail != nil {
		return 0, s.fail
	}
	s.writes = append(s.writes, string(p))
	return len(p), nil
}

func holdWrite(t *testing.T, h *TLSHold, text string) {
	t.Helper()
	n, err := h.Write([]byte(text))
	require.NoError(t, err)
	require.Equal(t, len(text), n)
}

// What is written while a page is kept back, or being written, comes behind it, with the same
// Flush; what comes afterwards is not kept.
func TestWritesBesideAPageStayInOrder(t *testing.T) {
	s := &socketOf{}
	h := &TLSHold{Socket: s}
	holdWrite(t, h, "before,")
	room := make([]byte, 8)
	for range 2 {
		h.Hold(room)
		holdWrite(t, h, "page,")
		holdWrite(t, h, "longer than the room,")
		require.Len(t, s.writes, 1)
		s.beside = func() { holdWrite(t, h, "late,"); holdWrite(t, h, "later,") }
		require.NoError(t, h.Flush())
		holdWrite(t, h, "after")
		require.Equal(t, []string{"before,", "page,longer than the room,", "late,later,", "after"}, s.writes)
		s.writes = s.writes[:1]
	}
	h.Hold(room)
	require.NoError(t, h.Flush())
	require.Len(t, s.writes, 1, "nothing was held")
}

// Under HoldAlways what is written beside a Flush waits for the next.
func TestWritesBesideAFlushWaitForTheNext(t *testing.T) {
	s := &socketOf{}
	h := &TLSHold{Socket: s}
	holdWrite(t, h, "before,")
	h.HoldAlways()
	var want []string
	for _, round := range []string{"a", "b", "c"} {
		want = append(want, "late,"+round+"1,"+round+"2")
		if round == "a" {
			want[0] = "a1,a2"
		}
		holdWrite(t, h, round+"1,")
		holdWrite(t, h, round+"2")
		s.beside = func() { holdWrite(t, h, "late,") }
		require.NoError(t, h.Flush())
		require.Equal(t, want, s.writes[1:])
	}
	require.NoError(t, h.Flush())
	require.NoError(t, h.Flush())
	require.Equal(t, append(want, "late,"), s.writes[1:])
}

// A write that failed ends a hold, with what was kept back.
func TestAFailedFlushEndsAHold(t *testing.T) {
	broken := errors.New("this socket fails")
	s := &socketOf{fail: broken}
	h := &TLSHold{Socket: s}
	h.Hold(make([]byte, 64))
	holdWrite(t, h, "lost")
	s.beside = func() { holdWrite(t, h, "lost too") }
	require.ErrorIs(t, h.Flush(), broken)
	_, err := h.Write([]byte("not kept"))
	require.ErrorIs(t, err, broken)
	s.fail = nil
	holdWrite(t, h, "on")
	require.NoError(t, h.Flush())
	require.Equal(t, []string{"on"}, s.writes)

	h.HoldAlways()
	s.fail = broken
	holdWrite(t, h, "lost")
	require.ErrorIs(t, h.Flush(), broken)
	holdWrite(t, h, "kept")
	require.Equal(t, []string{"on"}, s.writes)
}

// discarding is a socket that takes everything.
type discarding struct{}

func (discarding) Write(p []byte) (int, error) { return len(p), nil }

func TestGuardHoldsAllocateNothing(t *testing.T) {
	page := make([]byte, 16<<10)
	room := make([]byte, 4*len(page))
	passing := func(h *TLSHold, before func()) func() {
		return func() {
			before()
			for range 4 {
				if _, err := h.Write(page); err != nil {
					t.Error(err)
				}
			}
			if err := h.Flush(); err != nil {
				t.Error(err)
			}
		}
	}
	once, always := &TLSHold{Socket: discarding{}}, &TLSHold{Socket: discarding{}}
	always.HoldAlways()
	require.Zero(t, heap.Allocs(100, passing(once, func() { once.Hold(room) })))
	turn := passing(always, func() {})
	turn() // both buffers have their size from then on
	turn()
	require.Zero(t, heap.Allocs(100, turn))
}
