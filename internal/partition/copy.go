package partition

import (
	"context"

	"github.com/felixlog/felix/storage"
)

// StreamCopy is a stream shard at one moment: its records as far as readers see them, and
// what its groups had settled. Groups is nil for a shard without groups.
type StreamCopy struct {
	Records *storage.Copy
	Groups  *storage.Copy
}

// Copy cuts the shard. Three steps, in this order:
//
//  1. hold the records, so that none goes that step 2 still counts on: a dead letter's
//     payload is in the records until it was copied into the groups' log, and a copy that
//     is written after step 2 is not in the cut;
//  2. cut the groups' log;
//  3. cut the records, at what readers see by then.
//
// A group settles what it was handed, and it is handed what readers see, which only
// rises: every position of the cut of step 2 is at or below that of step 3. What was
// acknowledged between the two is in the records and not settled, so it is handed out
// again: at least once, as ever.
//
// Release of the copy has to be called. Errors: ErrMemoryStream, ErrClosed, ErrDeleted,
// those of storage.Log.Copy.
func (p *Partition) Copy(ctx context.Context) (_ *StreamCopy, err error) {
	if p.log == nil {
		return nil, ErrMemoryStream
	}
	if err := p.serving(); err != nil {
		return nil, err
	}
	defer p.log.Hold(0)()
	c := new(StreamCopy)
	if g := p.groups.Load(); g != nil {
		if c.Groups, err = g.log.Copy(ctx, g.log.Stable()); err != nil {
			return nil, p.closedAs(err)
		}
	}
	if c.Records, err = p.log.Copy(ctx, p.readableNow()); err != nil {
		c.Release()
		return nil, p.closedAs(err)
	}
	return c, nil
}

// Release lets retention and compaction go on.
func (c *StreamCopy) Release() {
	for _, log := range []*storage.Copy{c.Groups, c.Records} {
		if log != nil {
			log.Release()
		}
	}
}

// Copy cuts the log of a cache shard's values, or counters. Errors: ErrClosed,
// ErrDeleted, those of storage.Log.Copy.
func (k *keyed) Copy(ctx context.Context) (*storage.Copy, error) {
	if err := k.serving(); err != nil {
		return nil, err
	}
	c, err := k.log.Copy(ctx, k.log.Stable())
	return c, k.closedAs(err)
}
