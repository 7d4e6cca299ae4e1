package client

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// waits counts how often somebody begins to wait for its end.
type waits struct {
	context.Context
	n *atomic.Int64
}

func (w waits) Done() <-chan struct{} {
	w.n.Add(1)
	return w.Context.Done()
}

func TestGuardAdditionsThatWaitAreWokenInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &additions{id: 7}
		for n := range uint64(additionWindow) {
			producer, sequence, err := a.begin(t.Context(), nil)
			require.NoError(t, err)
			require.EqualValues(t, 7, producer)
			require.Equal(t, n, sequence)
		}

		const more = 3 * additionWindow
		var looks atomic.Int64
		begun := make(chan uint64, more)
		for range more {
			go func() {
				_, sequence, err := a.begin(waits{t.Context(), &looks}, nil)
				if err == nil {
					begun <- sequence
				}
			}()
		}
		synctest.Wait()
		require.Empty(t, begun)

		a.end(1)
		synctest.Wait()
		require.Empty(t, begun, "number 0 is in flight: the window begins there")
		a.end(0)
		synctest.Wait()
		require.Len(t, begun, 2)
		for n := uint64(2); n < more; n++ {
			a.end(n)
			synctest.Wait()
		}
		require.Len(t, begun, more)
		require.EqualValues(t, more, looks.Load(), "each waits once, whoever else ends")
	})
}

func TestAdditionsThatAreGivenUpOnLeaveNoGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &additions{id: 7}
		for range additionWindow {
			_, _, err := a.begin(t.Context(), nil)
			require.NoError(t, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		refused := make(chan error, 1)
		go func() {
			_, _, err := a.begin(ctx, nil)
			refused <- err
		}()
		synctest.Wait()
		begun := make(chan uint64, 1)
		go func() {
			_, sequence, err := a.begin(t.Context(), nil)
			if err == nil {
				begun <- sequence
			}
		}()
		synctest.Wait()
		cancel()
		err := <-refused
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, errors.Is(err, ErrOutcomeUnknown), "nothing was sent")

		for n := range uint64(additionWindow) {
			a.end(n)
		}
		require.EqualValues(t, additionWindow, <-begun, "who gave up took none")
		a.end(additionWindow)
		_, sequence, err := a.begin(t.Context(), nil)
		require.NoError(t, err)
		require.EqualValues(t, additionWindow+1, sequence)
	})
}
