package main

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
)

// TestLettersAreListedOnce: what many claims name is asked for in the order of offsets, a page
// once, and nothing that no claim needs.
func TestLettersAreListedOnce(t *testing.T) {
	var asked []letterID
	list := func(_ context.Context, shard int, from uint64) (page []client.DeadLetter, more bool, err error) {
		asked = append(asked, letterID{shard, from})
		for o := (from + 1) / 2 * 2; o < 500; o += 2 { // the even ones
			if len(page) == 100 {
				return page, true, nil
			}
			page = append(page, client.DeadLetter{Shard: shard, Offset: o})
		}
		return page, false, nil
	}
	there := func(claims ...claimArg) (is []bool) {
		asked = nil
		found, err := lettersAmong(t.Context(), claims, list)
		require.NoError(t, err)
		for _, c := range claims {
			is = append(is, found[c.letter()])
		}
		return is
	}
	at := func(shard int, offset uint64) claimArg { return claimArg{shard: shard, offset: offset} }
	require.Equal(t, []bool{true, false, true, true, false}, there(at(0, 198), at(0, 7), at(0, 6), at(1, 6), at(1, 600)))
	require.Equal(t, []letterID{{0, 6}, {1, 6}, {1, 600}}, asked)
	var all []claimArg
	for o := uint64(500); o > 0; o-- {
		all = append(all, at(0, o-1))
	}
	there(all...)
	require.Equal(t, []letterID{{0, 0}, {0, 199}, {0, 399}}, asked)
	require.Empty(t, there())

	refused := errors.New("refused")
	_, err := lettersAmong(t.Context(), all, func(context.Context, int, uint64) ([]client.DeadLetter, bool, error) {
		return nil, false, refused
	})
	require.ErrorIs(t, err, refused)
}
