package client

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

// A request that is repeated after a lost answer, and refused then, may have been applied.
func TestARefusalAfterALostAnswer(t *testing.T) {
	asked := make(chan wire.Message, 10)
	s := newScript(t, func(p *peer) {
		for m := p.next(); m != nil; m = p.next() {
			switch asked <- m; len(asked) {
			case 1:
				return
			case 2:
				p.send(&wire.Error{Failure: *wire.NewFailure(wire.CodeOverloaded, "later")})
			default:
				p.send(&wire.Error{Failure: *wire.NewFailure(wire.CodeForbidden, "permission taken away")})
			}
		}
	})
	k := s.dial().Cache("k")
	err := k.Put(soon(t), "a", []byte("1"))
	require.ErrorIs(t, err, ErrOutcomeUnknown)
	require.ErrorIs(t, err, ErrForbidden)
	require.Len(t, asked, 3)
	err = k.Put(soon(t), "a", []byte("1"))
	require.ErrorIs(t, err, ErrForbidden)
	require.NotErrorIs(t, err, ErrOutcomeUnknown)
}
