package client

import (
	"bytes"
	"math"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

// A caller writes small frames itself on an idle connection; what the socket might not
// take in without waiting is the writer's, so that a Send never waits for the peer.
func TestSendDoesNotWaitForThePeer(t *testing.T) {
	s := newScript(t, func(p *peer) {
		f, err := p.r.Next()
		if err != nil {
			return
		}
		if f.Flags.Layout() != wire.LayoutPublish { // the control connection
			t.Errorf("a frame with flags %s", f.Flags)
			return
		}
		var b wire.PublishBatchFrame
		if err := b.Decode(f.Flags, f.Payload, nil); err != nil {
			t.Error(err)
			return
		}
		_, err = p.conn.Write(wire.AppendPublishAck(nil, &wire.PublishAck{RequestID: b.RequestID, HasOffset: true}))
		ignore(err)
		<-p.s.done // and reads nothing more
	})
	c := s.dial()
	p, err := c.Producer("s", WithDelivery(AtLeastOnce))
	require.NoError(t, err)
	_, err = p.Publish(soon(t), []byte("the connection is there, and idle"))
	require.NoError(t, err)
	sent := make(chan error, 1)
	go func() {
		_, err := p.Send(soon(t), make([]byte, 15<<20))
		sent <- err
	}()
	require.NoError(t, wait(t, sent, "the return of Send"))
	require.NoError(t, c.Close()) // and the record's batch with it
}

// While answers that came together are handed out, what is asked meanwhile gathers, and
// leaves when the last has been; and callers who ask again at each answer go on, however
// their answers come together.
func TestRequestsGatherWhileAnswersAreHandedOut(t *testing.T) {
	s := newScript(t, func(p *peer) {
		var out []byte
		for m := p.next(); m != nil; m = p.next() {
			get := m.(*wire.CacheGet)
			out = wire.AppendMessage(out, &wire.CacheValue{Tenant: get.Tenant, Namespace: get.Namespace, Cache: get.Cache, Key: get.Key, RequestID: get.RequestID, HasRequestID: true})
			if p.r.Buffered() {
				continue
			}
			_, err := p.conn.Write(out)
			ignore(err)
			out = out[:0]
		}
	})
	c := s.dial()
	p, err := c.keySlot("k", "key").get(soon(t))
	require.NoError(t, err)
	p.gathering(true)
	const n = 10
	var asked []*exchange
	for id := range uint64(n) {
		e := exchanges.Get().(*exchange)
		asked = append(asked, e)
		_, err := p.send(id, e, 0, func(dst []byte) []byte {
			return wire.AppendMessage(dst, &wire.CacheGet{Cache: "k", Key: "key", RequestID: id, HasRequestID: true})
		})
		require.NoError(t, err)
	}
	p.mu.Lock()
	out, writing, pending := len(p.out), p.writing, len(p.pending)
	p.mu.Unlock()
	require.False(t, writing)
	require.Equal(t, n, pending)
	require.Greater(t, out, n*50, "all of them are there")
	p.gathering(false)
	for _, e := range asked {
		wait(t, e.done, "an answer")
		require.NoError(t, e.err)
	}

	k := c.Cache("k")
	var callers sync.WaitGroup
	for range 64 {
		callers.Go(func() {
			for range 100 {
				if _, _, err := k.Get(soon(t), "key"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
}

// keptAnswer is a call that keeps its answer.
type keptAnswer struct{ answer }

func (k *keptAnswer) answered(a *answer) { k.answer = *a }
func (k *keptAnswer) lost(error)         {}

// An answer is the caller's, however many come behind it. A small one is copied from memory
// that the next is read into; a large one is read into its own, and not copied again.
func TestAnswersAreTheCallers(t *testing.T) {
	for _, size := range []int{1, 100, 20 << 10, 300 << 10} {
		p := new(pipe)
		answer := func(m wire.Message) answer {
			var k keptAnswer
			p.due(waiting{call: &k})
			require.NoError(t, p.dispatchMessage(wire.AppendMessage(nil, m)[wire.HeaderBytes:]))
			return k.answer
		}
		filled := func(c byte) []byte { return bytes.Repeat([]byte{c}, size) }
		records := func(c byte) *wire.GroupRecords {
			return &wire.GroupRecords{Records: []wire.GroupRecord{{Offset: 1, Payload: filled(c)}, {Offset: 2, Payload: filled(c + 1)}}}
		}
		value := func(c byte) *wire.CacheValue { return &wire.CacheValue{Value: filled(c), HasValue: true} }

		polled, got := answer(records('a')), answer(value('c'))
		answer(records('x'))
		answer(value('z'))
		require.Equal(t, []Message{{Offset: 1, Payload: filled('a')}, {Offset: 2, Payload: filled('b')}}, polled.records)
		require.Equal(t, filled('c'), got.value.Data)

		if size > sharedMost && !raced {
			for _, m := range []wire.Message{records('a'), value('c')} {
				frame := wire.AppendMessage(nil, m)[wire.HeaderBytes:]
				var k keptAnswer
				read := bytesAllocated(func() {
					p.due(waiting{call: &k})
					require.NoError(t, p.dispatchMessage(frame))
				})
				require.Less(t, read, len(frame), "%s, which is four thirds of its payloads", m.Type())
			}
		}
	}
}

// bytesAllocated is how many bytes f allocates; the least of several runs, for others allocate
// too.
func bytesAllocated(f func()) int {
	least := math.MaxInt
	for range 5 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		least = min(least, int(after.TotalAlloc-before.TotalAlloc))
	}
	return least
}
