package client

import (
	"container/list"
	"context"
	"sync"

	"github.com/felixlog/felix/wire"
)

// additions numbers the additions to counters, so that the broker can tell a repeated
// one. The broker tells a window of numbers apart; no number is given out that is further
// above the lowest in flight. Who has to wait is served in turn, and an addition that ends
// wakes those alone whom it makes room for: waking all would have each of them look at every
// addition of the others.
type additions struct {
	mu sync.Mutex
	id uint64
	// next is the next number, lowest the first that has not ended. All between them are
	// within a window, and ended says of each, at its rest by the window, whether it has.
	next, lowest uint64
	ended        [additionWindow]bool
	waiting      list.List // of chan uint64, with room for the number
}

// additionWindow is how many numbers of a producer a broker tells apart.
const additionWindow = 64

// begin gives the number of one more addition, which end takes back.
func (a *additions) begin(ctx context.Context, c *Client) (producer, sequence uint64, err error) {
	if producer, err = a.producer(ctx, c); err != nil {
		return 0, 0, err
	}
	turn, place := a.queue()
	select {
	case sequence = <-turn:
		return producer, sequence, nil
	case <-ctx.Done():
		a.leave(turn, place)
		return 0, 0, &Error{Op: "add to counter", Retry: wire.RetryNow, Err: context.Cause(ctx)}
	}
}

// queue gives what a number will come from, at once if there is room.
func (a *additions) queue() (turn chan uint64, place *list.Element) {
	turn = make(chan uint64, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	place = a.waiting.PushBack(turn)
	a.serve()
	return turn, place
}

// leave is for who does not wait for its turn any more, which may have come meanwhile.
func (a *additions) leave(turn chan uint64, place *list.Element) {
	a.mu.Lock()
	a.waiting.Remove(place) // without effect on one that was served
	a.mu.Unlock()
	select {
	case sequence := <-turn:
		a.end(sequence)
	default:
	}
}

// end takes a number back, whether it was used or not.
func (a *additions) end(sequence uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended[sequence%additionWindow] = true
	for a.ended[a.lowest%additionWindow] {
		a.ended[a.lowest%additionWindow] = false
		a.lowest++
	}
	a.serve()
}

// serve gives out what numbers the window has room for. The lock is held.
func (a *additions) serve() {
	for a.next-a.lowest < additionWindow {
		first := a.waiting.Front()
		if first == nil {
			return
		}
		a.waiting.Remove(first).(chan uint64) <- a.next // it has room
		a.next++
	}
}

// producer is whose numbers they are. The first to ask has the broker name it.
func (a *additions) producer(ctx context.Context, c *Client) (uint64, error) {
	a.mu.Lock()
	id := a.id
	a.mu.Unlock()
	if id != 0 {
		return id, nil
	}
	return a.register(ctx, c)
}

func (a *additions) register(ctx context.Context, c *Client) (uint64, error) {
	id := c.requestID()
	op := "producer for counters"
	ans, err := c.do(ctx, &request{op: op, id: id, needs: wire.FeatureIdempotentProducer, repeatable: true, message: &wire.ProducerInit{RequestID: id}})
	if err != nil {
		return 0, err
	}
	m, ok := ans.message.(*wire.ProducerInitOK)
	if !ok {
		return 0, unexpected(op, ans)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.id == 0 {
		a.id = m.ProducerID
	}
	return a.id, nil
}
