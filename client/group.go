package client

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/felixlog/felix/wire"
)

// Group is a consumer group of a stream: one position shared by its consumers. It is a
// name: making one asks nobody, and a group needs no creation.
type Group struct {
	c            *Client
	stream, name string
}

// Group returns the group of a name on a stream.
func (c *Client) Group(stream, name string) *Group { return &Group{c: c, stream: stream, name: name} }

// Message is a record as a group hands it out.
type Message struct {
	Shard     int
	Offset    uint64
	Payload   []byte
	Attempts  int // deliveries so far, this one included
	Publisher string
	Timestamp time.Time
}

// PollOption changes a poll.
type PollOption func(*pollConfig)

type pollConfig struct {
	wait, visibility time.Duration
	consumer         string
	reclaim          bool
}

// WithWait lets an empty poll wait for records. The broker bounds it, at 30 s unless
// set otherwise there. When the poll's context ends first, its connection is closed, so
// that the broker claims nothing for it any more; what it claimed just before comes again
// when the claims lapse.
func WithWait(d time.Duration) PollOption { return func(c *pollConfig) { c.wait = d } }

// WithVisibility is how long the claims stand; the group's own if it is not said. At
// most 12 h.
func WithVisibility(d time.Duration) PollOption { return func(c *pollConfig) { c.visibility = d } }

// AsConsumer names the consumer, 1 to 128 bytes. With reclaim, claims that this consumer
// holds from other connections are handed to it first.
func AsConsumer(name string, reclaim bool) PollOption {
	return func(c *pollConfig) { c.consumer, c.reclaim = name, reclaim }
}

func (g *Group) op(what string) string { return what + " " + g.stream + "/" + g.name }

func (g *Group) ref(shard int) wire.GroupRef {
	return wire.GroupRef{Tenant: g.c.config.tenant, Namespace: g.c.namespace, Stream: g.stream, Shard: wireCount(shard), Group: g.name}
}

// wireCount is a shard or a count on the wire. One that does not fit there becomes the
// greatest that does, which is refused, and never a small one that means another.
func wireCount(n int) uint32 { return uint32(min(uint(n), math.MaxUint32)) }

// Poll claims up to most records of a shard, 1 to 1,000. None is no error. A poll whose
// answer was lost is not repeated: what it claimed comes again when the claims lapse.
func (g *Group) Poll(ctx context.Context, shard, most int, opts ...PollOption) ([]Message, error) {
	var p pollConfig
	for _, o := range opts {
		o(&p)
	}
	on := g.c.keySlot(g.stream, g.name)
	if p.wait > 0 {
		// What waits on a connection holds up what comes behind it.
		on = g.c.borrow()
		defer g.c.giveBack(on)
	}
	r := g.pollRequest(shard, most, &p, on)
	a, err := g.c.do(ctx, &r.request)
	if err != nil {
		return nil, err
	}
	return polled(&r.request, shard, a)
}

// pollRequest is a poll with its message.
type pollRequest struct {
	request
	poll wire.GroupPoll
}

func (g *Group) pollRequest(shard, most int, p *pollConfig, on *slot) *pollRequest {
	r := new(pollRequest)
	r.request = request{op: "poll", group: g, needs: wire.FeatureConsumerGroup, on: on, message: &r.poll}
	r.poll = wire.GroupPoll{
		GroupRef: g.ref(shard), VisibilityMillis: uint64(p.visibility / time.Millisecond), Consumer: p.consumer, HasConsumer: p.consumer != "",
	}
	r.again(most, p)
	return r
}

// again makes it a new request, for up to most records. What p says besides how long it
// waits and whether it reclaims stays as it was.
func (r *pollRequest) again(most int, p *pollConfig) {
	r.id, r.wait, r.got = r.group.c.requestID(), p.wait, answer{}
	r.poll.RequestID, r.poll.MaxRecords = r.id, uint32(max(most, 0))
	r.poll.WaitMillis, r.poll.Reclaim = uint64(p.wait/time.Millisecond), p.reclaim
}

// polled are the records of an answer.
func polled(r *request, shard int, a *answer) ([]Message, error) {
	if _, ok := a.message.(*wire.GroupRecords); !ok {
		return nil, unexpected(r.name(), a)
	}
	for i := range a.records {
		a.records[i].Shard = shard
	}
	return a.records, nil
}

// sharedMost is how long an answer may be whose records share their memory: who keeps one
// record keeps no more than that of the others.
const sharedMost = 64 << 10

// messages are the records of an answer, of no shard yet: copies, unless it owns its memory.
func messages(m *wire.GroupRecords, owned bool) []Message {
	var room []byte
	if !owned {
		size := 0
		for i := range m.Records {
			size += len(m.Records[i].Payload)
		}
		room = make([]byte, 0, size)
	}
	out := make([]Message, len(m.Records))
	for i := range m.Records {
		rec := &m.Records[i]
		payload := rec.Payload
		if !owned {
			from := len(room)
			room = append(room, payload...)
			payload = room[from:len(room):len(room)]
		}
		out[i] = Message{Offset: rec.Offset, Payload: payload, Attempts: int(rec.Attempts), Publisher: rec.Publisher}
		if rec.HasTimestampMicros {
			out[i].Timestamp = time.UnixMicro(int64(rec.TimestampMicros))
		}
	}
	return out
}

// settling is a request that is answered with no more than that it was done.
func (g *Group) settling(what string, repeatable bool, needs wire.Features, id uint64, m wire.Message) *request {
	r := new(request)
	g.makeSettling(r, what, repeatable, needs, id, m)
	return r
}

func (g *Group) makeSettling(r *request, what string, repeatable bool, needs wire.Features, id uint64, m wire.Message) {
	*r = request{op: what, group: g, id: id, message: m, needs: needs, repeatable: repeatable, on: g.c.keySlot(g.stream, g.name)}
}

func (g *Group) settle(ctx context.Context, r *request) error {
	a, err := g.c.do(ctx, r)
	return settledBy(r, a, err)
}

// settledBy is what became of a settling request.
func settledBy(r *request, a *answer, err error) error {
	if err != nil {
		return err
	}
	if _, ok := a.message.(*wire.CacheOK); !ok {
		return unexpected(r.name(), a)
	}
	return nil
}

// Ack says that a record is done. It is repeated when its outcome is unknown.
func (g *Group) Ack(ctx context.Context, m Message) error { return g.settle(ctx, g.ack(m)) }

func (g *Group) ack(m Message) *request {
	id := g.c.requestID()
	r := new(struct {
		request
		ack wire.GroupAck
	})
	r.ack = wire.GroupAck{GroupRef: g.ref(m.Shard), Offset: m.Offset, RequestID: id}
	g.makeSettling(&r.request, "ack", true, wire.FeatureConsumerGroup, id, &r.ack)
	return &r.request
}

// AckAll says that records are done, of any shards, with one request for a shard. It is
// repeated when its outcome is unknown. An error is the first of any record; the others
// are acked where they can be, and acking one again does no harm.
func (g *Group) AckAll(ctx context.Context, ms []Message) error {
	shards := make(map[int][]uint64, 1)
	for _, m := range ms {
		shards[m.Shard] = append(shards[m.Shard], m.Offset)
	}
	var first error
	for shard, offsets := range shards {
		for part := range slices.Chunk(offsets, maxAcks) {
			if err := g.ackShard(ctx, shard, part); err != nil && first == nil {
				first = err
			}
		}
	}
	return first
}

// maxAcks bounds the records of one request, as the broker does.
const maxAcks = 1000

func (g *Group) ackShard(ctx context.Context, shard int, offsets []uint64) error {
	if len(offsets) > 1 {
		ref := g.ref(shard)
		body := wire.GroupAckBody{Tenant: ref.Tenant, Namespace: ref.Namespace, Stream: ref.Stream, Shard: ref.Shard, Group: ref.Group, Offsets: offsets}
		var acked struct{}
		err := g.c.extendOn(ctx, g.c.keySlot(g.stream, g.name), g.op("ack"), wire.ExtGroupAck, true, &body, &acked)
		if !errors.Is(err, ErrUnsupported) {
			return err
		}
		// A broker that knows acks of single records only.
	}
	var err error
	for _, offset := range offsets {
		if failed := g.Ack(ctx, Message{Shard: shard, Offset: offset}); failed != nil && err == nil {
			err = failed
		}
	}
	return err
}

// Nack gives a record back, to be handed out again after the group's backoff.
// ErrStaleClaim when the claim no longer stands.
func (g *Group) Nack(ctx context.Context, m Message) error { return g.settle(ctx, g.nack(m, 0, false)) }

// NackAfter gives a record back, to be handed out again after a delay; 0 is at once.
func (g *Group) NackAfter(ctx context.Context, m Message, delay time.Duration) error {
	return g.settle(ctx, g.nack(m, delay, true))
}

func (g *Group) nack(m Message, delay time.Duration, has bool) *request {
	id := g.c.requestID()
	return g.settling("nack", false, wire.FeatureGroupClaimControl, id, &wire.GroupNack{
		GroupRef: g.ref(m.Shard), Offset: m.Offset, Attempts: wireCount(m.Attempts),
		DelayMillis: uint64(max(delay, 0) / time.Millisecond), HasDelay: has, RequestID: id,
	})
}

// Extend lets the claim on a record stand for d from now, and returns how long it does.
// ErrStaleClaim when it no longer stands.
func (g *Group) Extend(ctx context.Context, m Message, d time.Duration) (time.Duration, error) {
	op, id := g.op("extend"), g.c.requestID()
	a, err := g.c.do(ctx, &request{op: op, id: id, needs: wire.FeatureGroupClaimControl, repeatable: true, on: g.c.keySlot(g.stream, g.name),
		message: &wire.GroupExtend{GroupRef: g.ref(m.Shard), Offset: m.Offset, Attempts: wireCount(m.Attempts), ExtendMillis: uint64(max(d, 0) / time.Millisecond), RequestID: id}})
	if err != nil {
		return 0, err
	}
	r, ok := a.message.(*wire.GroupExtended)
	if !ok {
		return 0, unexpected(op, a)
	}
	return time.Duration(r.VisibleMillis) * time.Millisecond, nil
}

// GiveUp makes a record a dead letter. It is not repeated when its outcome is unknown, for
// a second one is refused as stale.
func (g *Group) GiveUp(ctx context.Context, m Message) error { return g.settle(ctx, g.giveUp(m)) }

func (g *Group) giveUp(m Message) *request {
	id := g.c.requestID()
	return g.settling("give up", false, wire.FeatureGroupClaimControl, id, &wire.GroupDeadLetter{GroupRef: g.ref(m.Shard), Offset: m.Offset, RequestID: id})
}

// DeadLetter is a record the group has given up on.
type DeadLetter struct {
	Shard    int
	Offset   uint64
	Attempts int
	Reason   string // "attempts_exhausted", "given_up"
	At       time.Time
	Payload  []byte
	Size     int  // of the whole payload, in bytes
	Cut      bool // Payload is its beginning: the whole does not fit an answer
}

// DeadLetters lists dead letters of a shard from an offset on, at most 100 and 4 MiB a call,
// one in any case; more says that there are others. Of a payload that does not fit an answer
// the beginning is there.
func (g *Group) DeadLetters(ctx context.Context, shard int, from uint64) (letters []DeadLetter, more bool, err error) {
	body := g.body(shard)
	body.From = from
	var page wire.GroupLetters
	err = g.c.extend(ctx, g.op("dead letters"), wire.ExtGroupDeadLetters, true, body, &page)
	for _, l := range page.Letters {
		letters = append(letters, DeadLetter{
			Shard: shard, Offset: l.Offset, Attempts: int(l.Attempts), Reason: l.Reason, At: time.UnixMicro(l.AtMicros),
			Payload: l.Payload, Size: max(l.Size, len(l.Payload)), Cut: l.Cut,
		})
	}
	return letters, page.More, err
}

func (g *Group) body(shard int) *wire.GroupBody {
	ref := g.ref(shard)
	return &wire.GroupBody{Tenant: ref.Tenant, Namespace: ref.Namespace, Stream: ref.Stream, Shard: ref.Shard, Group: ref.Group}
}

// Discard forgets a dead letter.
func (g *Group) Discard(ctx context.Context, shard int, offset uint64) error {
	id := g.c.requestID()
	return g.settle(ctx, g.settling("discard", true, wire.FeatureGroupDeadLetters, id, &wire.GroupDiscard{GroupRef: g.ref(shard), Offset: offset, RequestID: id}))
}

// Redrive has a dead letter handed out again, its attempts forgotten. ErrInvalidRequest
// when it is none. It is not repeated when its outcome is unknown: the record may have been
// handed out and settled meanwhile, and be none any more.
func (g *Group) Redrive(ctx context.Context, shard int, offset uint64) error {
	id := g.c.requestID()
	return g.settle(ctx, g.settling("redrive", false, wire.FeatureGroupDeadLetters, id, &wire.GroupRedrive{GroupRef: g.ref(shard), Offset: offset, RequestID: id}))
}

// Seek moves the group on a shard: claims are void, dead letters from there on are
// forgotten. Of the options only those that say where to start count. With ifNew only a
// group that was never used moves; that is not repeated when its outcome is unknown, for
// the group it moved is used.
func (g *Group) Seek(ctx context.Context, shard int, ifNew bool, start SubscribeOption) (position uint64, moved bool, err error) {
	var s subscribeConfig
	start(&s)
	from, err := g.c.startOf(ctx, g.stream, shard, &s)
	if err != nil {
		return 0, false, err
	}
	op, id := g.op("seek"), g.c.requestID()
	a, err := g.c.do(ctx, &request{op: op, id: id, needs: wire.FeatureGroupAdmin, repeatable: !ifNew, on: g.c.keySlot(g.stream, g.name),
		message: &wire.GroupSeek{GroupRef: g.ref(shard), Start: from, IfNew: ifNew, RequestID: id}})
	if err != nil {
		return 0, false, err
	}
	r, ok := a.message.(*wire.GroupPosition)
	if !ok {
		return 0, false, unexpected(op, a)
	}
	return r.Offset, r.Moved, nil
}

// Delete forgets the group on a shard: it begins anew.
func (g *Group) Delete(ctx context.Context, shard int) (existed bool, err error) {
	op, id := g.op("delete"), g.c.requestID()
	a, err := g.c.do(ctx, &request{op: op, id: id, needs: wire.FeatureGroupAdmin, on: g.c.keySlot(g.stream, g.name),
		message: &wire.GroupDelete{GroupRef: g.ref(shard), RequestID: id}})
	if err != nil {
		return false, err
	}
	r, ok := a.message.(*wire.GroupDeleted)
	if !ok {
		return false, unexpected(op, a)
	}
	return r.Existed, nil
}

// GroupConfig is what a group is set to. Zero fields are the broker's defaults: 30 s, 5
// attempts, no backoff, 10,000 in flight.
type GroupConfig struct {
	Visibility          time.Duration
	MaxAttempts         int
	Backoff, BackoffMax time.Duration
	BackoffFactor       float64
	MaxInFlight         int
	Exclusive           bool
}

func configOf(b *wire.GroupConfig) GroupConfig {
	ms := func(n uint64) time.Duration { return time.Duration(n) * time.Millisecond }
	return GroupConfig{
		Visibility: ms(b.VisibilityMillis), MaxAttempts: b.MaxAttempts, Backoff: ms(b.BackoffMillis), BackoffMax: ms(b.BackoffMaxMillis),
		BackoffFactor: b.BackoffFactor, MaxInFlight: b.MaxInFlight, Exclusive: b.Exclusive,
	}
}

// Configure sets the group on a shard.
func (g *Group) Configure(ctx context.Context, shard int, c GroupConfig) error {
	ms := func(d time.Duration) uint64 { return uint64(d / time.Millisecond) }
	body := g.body(shard)
	body.Config = &wire.GroupConfig{
		VisibilityMillis: ms(c.Visibility), MaxAttempts: c.MaxAttempts, BackoffMillis: ms(c.Backoff), BackoffMaxMillis: ms(c.BackoffMax),
		BackoffFactor: c.BackoffFactor, MaxInFlight: c.MaxInFlight, Exclusive: c.Exclusive,
	}
	var got wire.GroupConfig
	return g.c.extend(ctx, g.op("configure"), wire.ExtGroupConfigure, true, body, &got)
}

// GroupInfo is a group's books on one shard. All but the offsets are records.
type GroupInfo struct {
	Shard                             int
	Exists                            bool
	Start, Position, Tail             uint64
	Ready, Owed, Delayed, Claimed     uint64
	Acked, Dead, Discarded, Lost, Lag uint64
	Config                            GroupConfig
}

// Describe returns the group's books on a shard.
func (g *Group) Describe(ctx context.Context, shard int) (GroupInfo, error) {
	var b wire.GroupBooks
	err := g.c.extend(ctx, g.op("describe"), wire.ExtGroupDescribe, true, g.body(shard), &b)
	return GroupInfo{
		Shard: shard, Exists: b.Exists, Start: b.Start, Position: b.Position, Tail: b.Tail, Ready: b.Ready, Owed: b.Owed,
		Delayed: b.Delayed, Claimed: b.Claimed, Acked: b.Acked, Dead: b.Dead, Discarded: b.Discarded, Lost: b.Lost, Lag: b.Lag,
		Config: configOf(&b.Config),
	}, err
}

// Groups lists the groups of a stream's shard.
func (c *Client) Groups(ctx context.Context, stream string, shard int) ([]string, error) {
	var page wire.GroupNames
	err := c.extend(ctx, "groups of "+stream, wire.ExtGroupList, true, c.Group(stream, "-").body(shard), &page)
	return page.Groups, err
}

// borrow takes a connection for requests that wait; giveBack keeps it for the next. It has
// no request under way then: one whose context ended has ended the connection.
func (c *core) borrow() *slot {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.idle); n > 0 {
		s := c.idle[n-1]
		c.idle = c.idle[:n-1]
		return s
	}
	s := &slot{core: c, lent: true}
	c.lent = append(c.lent, s)
	return s
}

func (c *core) giveBack(s *slot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, s)
}
