package client

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

// What may have been done and would be refused a second time is not asked for twice: its
// outcome is unknown.
func TestWhatIsRefusedTwiceIsNotRepeated(t *testing.T) {
	for name, ask := range map[string]func(context.Context, *Group) error{
		"redrive": func(ctx context.Context, g *Group) error { return g.Redrive(ctx, 0, 5) },
		"give up": func(ctx context.Context, g *Group) error { return g.GiveUp(ctx, Message{Offset: 5}) },
		"seek of a new group": func(ctx context.Context, g *Group) error {
			_, _, err := g.Seek(ctx, 0, true, FromEarliest())
			return err
		},
		"delete": func(ctx context.Context, g *Group) error {
			_, err := g.Delete(ctx, 0)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan wire.Message, 10)
			s := newScript(t, func(p *peer) {
				m := p.next()
				if m == nil {
					return
				}
				if asked <- m; len(asked) > 1 {
					p.send(&wire.Error{Failure: *wire.NewFailure(wire.CodeInvalidRequest, "it is no more what it was")})
					p.next()
				}
			})
			err := ask(soon(t), s.dial().Group("s", "g"))
			require.ErrorIs(t, err, ErrOutcomeUnknown)
			require.Len(t, asked, 1)
		})
	}
}

// A seek that sets where the group is, wherever it was, may be repeated.
func TestASeekIsRepeated(t *testing.T) {
	asked := make(chan wire.Message, 10)
	s := newScript(t, func(p *peer) {
		for m := p.next(); m != nil; m = p.next() {
			if asked <- m; len(asked) == 1 {
				return
			}
			p.send(&wire.GroupPosition{RequestID: m.(*wire.GroupSeek).RequestID, Offset: 3, Moved: true})
		}
	})
	position, moved, err := s.dial().Group("s", "g").Seek(soon(t), 0, false, FromOffset(3))
	require.NoError(t, err)
	require.True(t, moved)
	require.Equal(t, uint64(3), position)
	require.Len(t, asked, 2)
}
