package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/client"
)

// errNoLetter: there is no such dead letter.
var errNoLetter = errors.New("no such dead letter")

// letterID is a dead letter of a group.
type letterID struct {
	shard  int
	offset uint64
}

func (c claimArg) letter() letterID { return letterID{c.shard, c.offset} }

// lettersAmong are the dead letters among some claims, and others. The lists are read once,
// in the order of offsets: what a page tells is not asked again, for each may have
// megabytes of payload.
func lettersAmong(ctx context.Context, claims []claimArg, list func(ctx context.Context, shard int, from uint64) ([]client.DeadLetter, bool, error)) (map[letterID]bool, error) {
	left := slices.SortedFunc(slices.Values(claims), func(a, b claimArg) int {
		return cmp.Or(cmp.Compare(a.shard, b.shard), cmp.Compare(a.offset, b.offset))
	})
	found := map[letterID]bool{}
	for len(left) > 0 {
		first := left[0]
		page, more, err := list(ctx, first.shard, first.offset)
		if err != nil {
			return nil, err
		}
		told := uint64(math.MaxUint64)
		for _, l := range page {
			found[letterID{l.Shard, l.Offset}] = true
		}
		if more && len(page) > 0 {
			told = page[len(page)-1].Offset
		}
		for len(left) > 0 && left[0].shard == first.shard && left[0].offset <= told {
			left = left[1:]
		}
	}
	return found, nil
}

// redriving looks, once the broker has refused a record, which of all of them are dead letters.
func redriving(ctx context.Context, g *client.Group, claims []claimArg) (func(claimArg) error, error) {
	var there map[letterID]bool
	return func(at claimArg) error {
		err := g.Redrive(ctx, at.shard, at.offset)
		if !errors.Is(err, client.ErrInvalidRequest) {
			return err
		}
		if there == nil {
			var failed error
			if there, failed = lettersAmong(ctx, claims, g.DeadLetters); failed != nil {
				return err
			}
		}
		if there[at.letter()] {
			return err
		}
		return errNoLetter
	}, nil
}

// discarding looks first: the broker's answer is the same for what is no dead letter.
func discarding(ctx context.Context, g *client.Group, claims []claimArg) (func(claimArg) error, error) {
	there, err := lettersAmong(ctx, claims, g.DeadLetters)
	forbidden := errors.Is(err, client.ErrForbidden) // to who may manage the group and not read it
	if err != nil && !forbidden {
		return nil, err
	}
	return func(at claimArg) error {
		if !forbidden && !there[at.letter()] {
			return errNoLetter
		}
		delete(there, at.letter())
		return g.Discard(ctx, at.shard, at.offset)
	}, nil
}

func (e *environment) letterCommand(use, short string, begin settling) *cobra.Command {
	return e.settleCommand(use+" STREAM GROUP SHARD:OFFSET...", short, use, begin)
}

// letterLine is a dead letter.
type letterLine struct {
	Shard    int       `json:"shard"`
	Offset   uint64    `json:"offset"`
	Attempts int       `json:"attempts"`
	Reason   string    `json:"reason"`
	At       time.Time `json:"at"`
	Payload  []byte    `json:"payload"` // base64
	Size     int       `json:"size"`
	Cut      bool      `json:"cut"` // the payload is not whole
}

func (e *environment) lettersList() *cobra.Command {
	var whole bool
	c := e.ofGroup("ls STREAM GROUP", "List dead letters", func(ctx context.Context, g *client.Group, shards []int) (exists bool, err error) {
		for _, shard := range shards {
			n, err := e.letters(ctx, g, shard, whole)
			if err != nil {
				return false, err
			}
			exists = exists || n > 0
		}
		for _, shard := range shards {
			if exists {
				break
			}
			// A list is empty for a group that is not there too.
			i, err := g.Describe(ctx, shard)
			if err != nil {
				return false, err
			}
			exists = i.Exists
		}
		return exists, nil
	})
	c.Long = fmt.Sprintf("List dead letters, one a line. A payload that cannot be printed is quoted. Of a payload the first %d bytes are shown;\n"+
		"--whole and --json show all of one that fits an answer, and say what of a larger one they show.", letterShown)
	c.Flags().BoolVar(&whole, "whole", false, "show payloads whole")
	return c
}

// letterShown is how much of a payload a listing shows.
const letterShown = 256

// letters prints the dead letters of a shard.
func (e *environment) letters(ctx context.Context, g *client.Group, shard int, whole bool) (n int, err error) {
	for from, more := uint64(0), true; more; {
		var letters []client.DeadLetter
		if letters, more, err = g.DeadLetters(ctx, shard, from); err != nil {
			return n, err
		}
		for _, l := range letters {
			cut, shown := "", l.Payload
			if !whole {
				shown = firstBytes(shown, letterShown)
			}
			if len(shown) < l.Size {
				cut = fmt.Sprintf(" (the first %d of %d bytes)", len(shown), l.Size)
			}
			err := e.show(letterLine{l.Shard, l.Offset, l.Attempts, l.Reason, l.At.UTC(), l.Payload, l.Size, l.Cut},
				"%d:%d %s after %d attempts at %s%s: %s", l.Shard, l.Offset, l.Reason, l.Attempts, l.At.UTC().Format(time.RFC3339), cut, plain(string(shown)))
			if err != nil {
				return n, err
			}
			from = l.Offset + 1
			n++
		}
		more = more && len(letters) > 0
	}
	return n, nil
}
