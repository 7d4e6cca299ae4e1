package server

import (
	"io"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// What arrives while the link is watched is read afterwards, in its order and with the
// link's end behind it, and the end is told at once.
func TestLookahead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		var a lookahead
		a.init(r, func(f func()) { go f() })
		write := func(text string) {
			_, err := w.Write([]byte(text))
			require.NoError(t, err)
		}
		read := func(want string) {
			b := make([]byte, len(want))
			_, err := io.ReadFull(&a, b)
			require.NoError(t, err)
			require.Equal(t, want, string(b))
		}
		go write("before")
		read("before")

		a.watch(func(error) { t.Error("the link has not ended") })
		write("mean")
		write("while")
		a.unwatch()
		read("meanwhile")
		// The read ahead that was under way gets what comes next.
		go func() {
			write("after")
			write("wards")
		}()
		read("afterwards")

		var ended error
		a.watch(func(err error) { ended = err })
		write("last")
		require.NoError(t, ended)
		require.NoError(t, w.CloseWithError(io.ErrUnexpectedEOF))
		synctest.Wait()
		require.ErrorIs(t, ended, io.ErrUnexpectedEOF)
		a.unwatch()
		// An end that was met is told to whoever watches next.
		ended = nil
		a.watch(func(err error) { ended = err })
		require.ErrorIs(t, ended, io.ErrUnexpectedEOF)
		a.unwatch()
		read("last")
		_, err := a.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	})
}

// No more is read ahead than the bound.
func TestLookaheadIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		var a lookahead
		a.init(r, func(f func()) { go f() })
		a.watch(func(error) {})
		took := 0
		go func() {
			for {
				n, err := w.Write(make([]byte, aheadPiece))
				if err != nil {
					return
				}
				took += n
			}
		}()
		synctest.Wait()
		require.Equal(t, aheadMost, took)
		a.unwatch()
		_, err := io.ReadFull(&a, make([]byte, 2*aheadMost))
		require.NoError(t, err)
		require.NoError(t, r.Close())
	})
}
