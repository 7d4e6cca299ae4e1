package felixtest

import (
	"sort"
	"time"

	"github.com/felixlog/felix/wire"
)

func (c *conn) message(m wire.Message) bool {
	r := Request{Type: m.Type()}
	switch m := m.(type) {
	case *wire.Subscribe:
		r.Stream, r.Shard = m.Stream, int(m.Shard)
	case *wire.StreamShards:
		r.Stream = m.Stream
	case *wire.StreamRead:
		r.Stream, r.Shard = m.Stream, int(m.Shard)
	case *wire.PublishIf:
		r.Type, r.Stream, r.Payloads = "publish", m.Stream, m.Payloads
	}
	act := c.act(r)
	if act.CutBefore {
		return false
	}
	if act.Refuse != nil {
		c.answer(&wire.Error{Failure: *act.Refuse})
		return true
	}
	if sub, ok := m.(*wire.Subscribe); ok {
		c.subscribe(sub)
		return !c.cut
	}
	answer := c.b.answer(m)
	if act.CutAfter {
		return false
	}
	c.answer(answer)
	return true
}

func (b *Broker) answer(m wire.Message) wire.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch m := m.(type) {
	case *wire.ProducerInit:
		b.nextID++
		return &wire.ProducerInitOK{RequestID: m.RequestID, ProducerID: b.nextID}
	case *wire.StreamShards:
		view := &wire.StreamShardsView{RequestID: m.RequestID}
		if s := b.streams[m.Stream]; s != nil {
			view.Shards, view.Routing, view.HasRouting = uint32(len(s.shards)), s.routing, true
		}
		return view
	case *wire.ShardOwners:
		view := &wire.ShardOwnersView{RequestID: m.RequestID}
		if s := b.streams[m.Name]; s != nil {
			for i := range s.shards {
				view.Owners = append(view.Owners, wire.ShardOwner{Shard: uint32(i)})
			}
		}
		return view
	case *wire.OffsetForTime:
		s := b.shard(m.Stream, m.Shard)
		if s == nil {
			return &wire.Error{Failure: *notFound(m.Stream)}
		}
		at := time.UnixMicro(int64(m.AtMicros))
		i := sort.Search(len(s.records), func(i int) bool { return !s.records[i].at.Truncate(time.Microsecond).Before(at) })
		return &wire.OffsetValue{RequestID: m.RequestID, Offset: s.head + uint64(i), HasOffset: i < len(s.records)}
	case *wire.StreamRead:
		return b.read(m)
	case *wire.PublishIf:
		return b.publishIf(m)
	}
	return &wire.Unsupported{RequestType: m.Type()}
}

func (b *Broker) shard(name string, i uint32) *shard {
	s := b.streams[name]
	if s == nil || int(i) >= len(s.shards) {
		return nil
	}
	return s.shards[i]
}

func (b *Broker) read(m *wire.StreamRead) wire.Message {
	s := b.shard(m.Stream, m.Shard)
	if s == nil {
		return &wire.Error{Failure: *notFound(m.Stream)}
	}
	tail := s.head + uint64(len(s.records))
	if m.From < s.head {
		return &wire.SubscribeCursorError{Requested: m.From, Available: s.head}
	}
	if m.From > tail {
		return &wire.SubscribeCursorError{InFuture: true, Requested: m.From, Available: tail}
	}
	page := &wire.StreamRecords{RequestID: m.RequestID, NextOffset: m.From}
	for page.NextOffset < tail && (!m.HasEnd || page.NextOffset < m.End) && (m.MaxRecords == 0 || len(page.Records) < int(m.MaxRecords)) {
		r := s.records[page.NextOffset-s.head]
		page.Records = append(page.Records, wire.StreamRecord{Offset: page.NextOffset, Payload: r.payload, TimestampMicros: uint64(r.at.UnixMicro())})
		page.NextOffset++
	}
	return page
}

func (b *Broker) publishIf(m *wire.PublishIf) wire.Message {
	s := b.streams[m.Stream]
	if s == nil {
		return &wire.Error{Failure: *notFound(m.Stream)}
	}
	at := 0
	if m.HasKey {
		at = wire.Shard(s.routing, m.Key, len(s.shards))
	}
	shard := s.shards[at]
	tail := shard.head + uint64(len(shard.records))
	if m.ExpectedOffset != tail {
		return &wire.PublishRefused{RequestID: m.RequestID, Reason: wire.RefusedOffsetMismatch, Tail: tail, Message: "the tail has moved"}
	}
	for _, p := range m.Payloads {
		shard.records = append(shard.records, stored{p, time.Now()})
	}
	b.grown.Broadcast()
	return &wire.PublishOK{RequestID: m.RequestID, Offset: tail, HasOffset: true}
}

// subscribe answers and, when accepted, delivers on this connection until it
// ends.
func (c *conn) subscribe(m *wire.Subscribe) {
	b := c.b
	b.mu.Lock()
	s := b.shard(m.Stream, m.Shard)
	if s == nil {
		b.mu.Unlock()
		c.answer(&wire.Error{Failure: *notFound(m.Stream)})
		return
	}
	tail := s.head + uint64(len(s.records))
	from := tail
	switch m.Start.Kind {
	case wire.StartEarliest:
		from = s.head
	case wire.StartOffset:
		from = m.Start.Offset
	}
	b.nextID++
	id := b.nextID
	head := s.head
	b.mu.Unlock()
	if from < head || from > tail {
		c.answer(&wire.SubscribeCursorError{InFuture: from > tail, Requested: from, Available: map[bool]uint64{true: tail, false: head}[from > tail]})
		return
	}
	c.answer(&wire.Subscribed{SubscriptionID: id, StartOffset: from, HasStartOffset: true, LiveOffset: max(from, tail), HasLiveOffset: true})
	c.answer(&wire.EventStreamHello{SubscriptionID: id})
	if !c.flush() {
		c.cut = true
		return
	}
	// The client says nothing any more: its end is all that can be read.
	b.wg.Go(func() {
		var one [1]byte
		_, err := c.tls.Read(one[:])
		ignore(err)
		b.mu.Lock()
		c.closed = true
		b.grown.Broadcast()
		b.mu.Unlock()
	})
	for c.deliver(s, &from) {
	}
	ignore(c.socket.Close())
	c.cut = true
}

// deliver waits for records at from and sends some.
func (c *conn) deliver(s *shard, from *uint64) bool {
	const most, mostBytes = 64, 64 << 10
	b := c.b
	b.mu.Lock()
	for !c.closed && *from >= s.head+uint64(len(s.records)) {
		b.grown.Wait()
	}
	if c.closed {
		b.mu.Unlock()
		return false
	}
	if *from < s.head {
		b.mu.Unlock()
		return false
	}
	records := s.records[*from-s.head:]
	records = records[:min(len(records), most)]
	h := wire.EventBatchHeader{Shape: wire.EventShape(c.flags, true, 0, nil, true), BaseOffset: *from}
	out := h.Begin(nil)
	var n uint32
	for _, r := range records {
		if n > 0 && len(out)+len(r.payload) > mostBytes {
			break
		}
		out = h.AppendEvent(out, uint64(r.at.UnixMicro()), r.payload)
		n++
	}
	*from += uint64(n)
	b.mu.Unlock()
	_, err := c.tls.Write(h.Finish(out, 0, n))
	return err == nil
}
