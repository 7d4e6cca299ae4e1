package partition

import (
	"context"
	"errors"
	"fmt"

	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// Letter is a dead letter as an operator sees it.
type Letter struct {
	Offset storage.Offset
	queue.DeadLetter
	Payload []byte
}

// maxLetterBytes bounds the payloads of one page of letters; one is listed in any case.
const maxLetterBytes = 4 << 20

// Letters lists a group's dead letters from an offset on, at most limit and no more than
// 4 MiB of payload, but one in any case; more says that there are others. A group that
// does not exist has none.
func (g *Groups) Letters(ctx context.Context, group string, from storage.Offset, limit int) (letters []Letter, more bool, err error) {
	err = g.Do(ctx, group, false, func(_ segment.Micros, group *queue.Group, _, _ storage.Offset) error {
		if group == nil {
			return nil
		}
		var offsets []storage.Offset
		offsets, more = group.DeadLetters(from, limit)
		for _, o := range offsets {
			d, _ := group.DeadLetter(o)
			letters = append(letters, Letter{Offset: o, DeadLetter: d})
		}
		return nil
	})
	if err != nil {
		return nil, false, err
	}
	bytes := 0
	for i := range letters {
		l := &letters[i]
		if l.Copied {
			l.Payload, err = g.copied(ctx, group, l.Offset)
		} else if l.Payload, err = g.original(ctx, l.Offset); isTrimmed(err) {
			// The copy was made, or the record lost, since the list was taken.
			if l.Payload, err = g.copied(ctx, group, l.Offset); errors.Is(err, errNoCopy) {
				err = nil
			}
		}
		if err != nil {
			return nil, false, err
		}
		if bytes += len(l.Payload); i > 0 && bytes > maxLetterBytes {
			return letters[:i], true, nil
		}
	}
	return letters, more, nil
}

func isTrimmed(err error) bool {
	_, ok := errors.AsType[*storage.TrimmedError](err)
	return ok
}

// original reads a record's payload from the stream's log.
func (g *Groups) original(ctx context.Context, at storage.Offset) ([]byte, error) {
	var page storage.Page
	if err := g.stream.log.Read(ctx, &page, storage.ReadRange{From: at, End: at + 1, MaxRecords: 1}); err != nil {
		return nil, err
	}
	if len(page.Records) == 0 {
		return nil, fmt.Errorf("record %d is not in the log", at)
	}
	payload, _ := page.Records[0].Visible()
	return payload, nil
}

var errNoCopy = errors.New("partition: no copy of the record")

// copied reads the copy of a payload from the groups' log.
func (g *Groups) copied(ctx context.Context, group string, at storage.Offset) ([]byte, error) {
	key := queue.Key(group, queue.KindPayload, uint64(at))
	for {
		ref, ok := g.proj.Get(key)
		if !ok {
			return nil, fmt.Errorf("%w %d of group %q", errNoCopy, at, group)
		}
		var page storage.Page
		err := g.log.Read(ctx, &page, storage.ReadRange{From: ref.Offset, End: ref.Offset + 1, MaxRecords: 1})
		if isTrimmed(err) {
			continue // compaction moved it
		}
		if err != nil {
			return nil, err
		}
		if len(page.Records) == 0 {
			return nil, fmt.Errorf("%w %d of group %q", errNoCopy, at, group)
		}
		var payload []byte
		_, err = projection.ReadEntrySet(page.Records[0].Payload, func(e projection.Entry) error {
			if !e.Delete && string(e.Key) == string(key) {
				payload = append([]byte{}, e.Value...)
			}
			return nil
		})
		return payload, err
	}
}

// CopyLetters copies the payloads of dead letters and redriven records below limit into
// the groups' log and makes the copies durable, so that the stream's segments below it
// can go.
func (g *Groups) CopyLetters(ctx context.Context, limit storage.Offset) error {
	g.copying.Add(1)
	defer g.copying.Add(-1)
	for _, name := range g.Names() {
		var wanted []storage.Offset
		err := g.Do(ctx, name, false, func(_ segment.Micros, group *queue.Group, _, _ storage.Offset) error {
			if group != nil {
				wanted = group.Uncopied(limit)
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, at := range wanted {
			if err := g.copyLetter(ctx, name, at); err != nil {
				return fmt.Errorf("copy record %d for group %q: %w", at, name, err)
			}
			g.copies.Store(uint64(g.log.Stable()))
		}
	}
	return g.log.Sync(ctx)
}

// copiesStand reports whether all copies are on the device. It is asked after Uncopied,
// which counts a copy as made before it is.
func (g *Groups) copiesStand() bool {
	return g.copying.Load() == 0 && uint64(g.log.Durable()) >= g.copies.Load()
}

// letterRoom is what a copy of a payload takes beside it: a stream with groups takes no
// record that leaves the format less.
const letterRoom = 1 << 10

func (g *Groups) copyLetter(ctx context.Context, name string, at storage.Offset) error {
	payload, err := g.original(ctx, at)
	if isTrimmed(err) {
		return nil // lost already: Trim counts it
	}
	if err != nil {
		return err
	}
	return g.Do(ctx, name, false, func(_ segment.Micros, group *queue.Group, _, _ storage.Offset) error {
		if group == nil || !group.Copied(at) {
			return nil // no longer wanted
		}
		// Before what the group says of it, in a record of its own if it is large.
		g.openLocked().add([]projection.Entry{{Key: queue.Key(name, queue.KindPayload, uint64(at)), Value: payload}})
		return nil
	})
}

// Needs is the lowest offset of the stream that some group has not settled; ok is false
// without groups.
func (g *Groups) Needs() (low storage.Offset, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.shard.Lowest()
}

// Uncopied is the lowest offset below limit whose payload must be copied before its
// segment may go; limit if there is none.
func (g *Groups) Uncopied(limit storage.Offset) storage.Offset {
	g.mu.Lock()
	defer g.mu.Unlock()
	low := limit
	g.mu.shard.Each(func(group *queue.Group) {
		if u := group.Uncopied(low); len(u) > 0 {
			low = u[0]
		}
	})
	return low
}
