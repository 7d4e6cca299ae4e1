package client

import (
	"context"
	"sync"

	"github.com/felixlog/felix/wire"
)

// additions numbers the additions to counters, so that the broker can tell a repeated
// one. The broker tells a window of numbers apart; no number is given out that is further
// above the lowest in flight.
type additions struct {
	mu     sync.Mutex
	id     uint64
	next   uint64
	flying map[uint64]struct{}
	freed  chan struct{} // closed and replaced when one ends
}

// additionWindow is how many numbers of a producer a broker tells apart.
const additionWindow = 64

// begin gives the number of one more addition, which end takes back.
func (a *additions) begin(ctx context.Context, c *Client) (producer, sequence uint64, err error) {
	for {
		a.mu.Lock()
		if a.flying == nil {
			a.flying, a.freed = map[uint64]struct{}{}, make(chan struct{})
		}
		lowest := a.next
		for n := range a.flying {
			lowest = min(lowest, n)
		}
		id, freed := a.id, a.freed
		if id != 0 && a.next-lowest < additionWindow {
			producer, sequence = id, a.next
			a.next++
			a.flying[sequence] = struct{}{}
			a.mu.Unlock()
			return producer, sequence, nil
		}
		a.mu.Unlock()
		if id == 0 {
			if err := a.register(ctx, c); err != nil {
				return 0, 0, err
			}
			continue
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return 0, 0, &Error{Op: "add to counter", Retry: wire.RetryNow, Err: context.Cause(ctx)}
		}
	}
}

func (a *additions) end(sequence uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.flying, sequence)
	close(a.freed)
	a.freed = make(chan struct{})
}

func (a *additions) register(ctx context.Context, c *Client) error {
	id := c.requestID()
	op := "producer for counters"
	ans, err := c.do(ctx, &request{op: op, id: id, needs: wire.FeatureIdempotentProducer, repeatable: true, message: &wire.ProducerInit{RequestID: id}})
	if err != nil {
		return err
	}
	m, ok := ans.message.(*wire.ProducerInitOK)
	if !ok {
		return unexpected(op, ans)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.id == 0 {
		a.id = m.ProducerID
	}
	return nil
}
