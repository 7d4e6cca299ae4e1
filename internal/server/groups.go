package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/partition"
	groups "github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/internal/strictjson"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/wire"
)

// groupHandlers serve consumer groups, on brokers that keep durable streams.
func groupHandlers() Handlers {
	return Handlers{
		Features: wire.FeatureConsumerGroup | wire.FeatureGroupDeadLetters | wire.FeatureGroupAdmin |
			wire.FeatureGroupClaimControl | wire.FeatureGroupConsumer | wire.FeatureGroupPublisher,
		Requests: map[string]Handler{
			"group_poll":         groupPoll,
			"group_ack":          groupAck,
			"group_nack":         groupNack,
			"group_extend":       groupExtend,
			"group_dead_letter":  groupGiveUp,
			"group_dead_letters": groupDeadLetters,
			"group_discard":      groupDiscard,
			"group_redrive":      groupRedrive,
			"group_seek":         groupSeek,
			"group_describe":     groupDescribe,
			"group_delete":       groupDelete,
		},
		Extensions: map[string]Handler{
			wire.ExtGroupAck:         groupAckAll,
			wire.ExtGroupConfigure:   groupConfigure,
			wire.ExtGroupDescribe:    groupDescribeAll,
			wire.ExtGroupList:        groupList,
			wire.ExtGroupDeadLetters: groupLetters,
		},
	}
}

// groupsOf finds the groups of a request's shard, and answers when the principal may not
// or there is no such shard.
func (r *Request) groupsOf(ctx context.Context, ref *wire.GroupRef, action auth.Action) (*partition.Groups, *partition.Partition) {
	if !r.Allow(action, auth.GroupObject(ref.Tenant, ref.Namespace, ref.Stream, ref.Group)) {
		return nil, nil
	}
	return r.groupsOfShard(ctx, ref)
}

func (r *Request) groupsOfShard(ctx context.Context, ref *wire.GroupRef) (*partition.Groups, *partition.Partition) {
	st, err := r.s.server.broker.Stream(ref.Tenant, ref.Namespace, ref.Stream)
	if err != nil {
		r.Fail(err)
		return nil, nil
	}
	p, err := st.Shard(int(ref.Shard))
	if err != nil {
		r.Fail(err)
		return nil, nil
	}
	g, err := p.Groups(ctx)
	if err != nil {
		r.Fail(err)
		return nil, nil
	}
	return g, p
}

// millis is a duration in milliseconds of the wire; what no duration can hold is the
// longest.
func millis(ms uint64) time.Duration {
	return time.Duration(min(ms, uint64(1<<63-1)/uint64(time.Millisecond))) * time.Millisecond
}

func groupPoll(ctx context.Context, r *Request) {
	m := r.Message.(*wire.GroupPoll)
	g, _ := r.groupsOf(ctx, &m.GroupRef, auth.GroupConsume)
	if g == nil {
		return
	}
	if m.HasConsumer && (m.Consumer == "" || len(m.Consumer) > groups.MaxConsumerName) {
		r.Fail(wire.NewFailure(wire.CodeInvalidRequest, fmt.Sprintf("consumer name of %d bytes, want 1 to %d", len(m.Consumer), groups.MaxConsumerName)))
		return
	}
	if groups.HasControl(m.Consumer) {
		r.Fail(wire.NewFailure(wire.CodeInvalidRequest, fmt.Sprintf("consumer name %q holds a control character", m.Consumer)))
		return
	}
	call := partition.PollCall{
		Group: m.Group, Max: int(min(m.MaxRecords, uint32(r.s.server.limits.PollRecords))), Wait: millis(m.WaitMillis),
		Visibility: min(millis(m.VisibilityMillis), groups.MaxVisibility), Conn: r.ConnectionID(), Reclaim: m.Reclaim,
	}
	if m.HasConsumer {
		call.Member = m.Consumer + "\x00" + r.Principal().Subject
	}
	h := handouts.Get().(*handout)
	h.s, h.g, h.group = r.s, g, m.Group
	if err := r.poll(ctx, g, call, h); err != nil {
		h.release()
		r.Fail(err)
		return
	}
	h.cut(r.Offers(wire.FeatureGroupPublisher))
	h.fill(m.RequestID, r.Offers(wire.FeatureRecordTimestamps), r.Offers(wire.FeatureGroupPublisher))
	r.s.answerOr(&h.answer, h)
}

// handout is what a poll handed out, on its way to the consumer. It is the poll's until
// answerOr has it, then the outbox's, which tells it its fate once: that ends with release.
type handout struct {
	s      *session
	g      *partition.Groups
	group  string
	polled partition.Polled
	answer wire.GroupRecords
}

var handouts = sync.Pool{New: func() any { return new(handout) }}

// handoutKept is how many records an answer keeps room for.
const handoutKept = 256

// release lets what has reached its consumer, or has been given back, serve another poll.
func (h *handout) release() {
	h.polled.Reset()
	if cap(h.answer.Records) > handoutKept {
		h.answer.Records = nil
	}
	clear(h.answer.Records)
	h.s, h.g, h.group = nil, nil, ""
	handouts.Put(h)
}

// cut gives back what does not fit the answer.
func (h *handout) cut(publishers bool) {
	records := h.polled.Records
	fit := h.s.server.fitting(len(records), func(i int) int {
		if !publishers {
			return costOf(records[i].Payload, nil)
		}
		return costOf(records[i].Payload, records[i].Publisher)
	})
	h.giveBack(records[fit:])
	clear(records[fit:])
	h.polled.Records = records[:fit]
}

// fill makes the answer.
func (h *handout) fill(id uint64, times, publishers bool) {
	answer := &h.answer
	answer.RequestID, answer.Records = id, slices.Grow(answer.Records[:0], len(h.polled.Records))
	for i := range h.polled.Records {
		rec := &h.polled.Records[i]
		w := wire.GroupRecord{Offset: uint64(rec.Offset), Payload: rec.Payload, Attempts: rec.Attempts}
		if times && rec.Timestamp > 0 {
			w.TimestampMicros, w.HasTimestampMicros = uint64(rec.Timestamp), true
		}
		if publishers {
			w.Publisher = string(rec.Publisher)
		}
		answer.Records = append(answer.Records, w)
	}
}

func (h *handout) giveBack(records []partition.GroupRecord) {
	if err := h.g.GiveBack(h.group, records); err != nil {
		h.s.server.log.Warn("claims of records that were not sent stay until they lapse", "group", h.group, "records", len(records), "error", err)
	}
}

// written implements fate.
func (h *handout) written() { h.release() }

// lost implements fate.
func (h *handout) lost() {
	h.giveBack(h.polled.Records)
	h.release()
}

// poll is Groups.Poll in its turn on the stream. What is ready is claimed in the burst
// that asked for it, with the acks before it as one decision: they leave in one write.
// Only a poll that finds nothing waits.
func (r *Request) poll(ctx context.Context, g *partition.Groups, call partition.PollCall, h *handout) error {
	s := r.s
	// Decisions of the shard's groups follow each other by themselves.
	s.waitLedger(func() bool { return s.ledger.acked+s.ledger.unacked == 0 }, PausedWrites)
	now := call
	now.Wait = 0
	if err := g.Poll(ctx, now, &h.polled); err != nil || len(h.polled.Records) > 0 || call.Wait == 0 {
		r.Behind(false) // answers leave in the order of the requests
		return err
	}
	call.Reclaim = false
	return r.pollWaiting(ctx, g, call, h)
}

func (r *Request) pollWaiting(ctx context.Context, g *partition.Groups, call partition.PollCall, h *handout) (err error) {
	h.polled, h.answer = partition.Polled{}, wire.GroupRecords{} // whoever waits keeps nothing
	r.Wait(ctx, func(ctx context.Context) { err = g.Poll(ctx, call, &h.polled) })
	return err
}

// groupDecide runs op on a group and answers when what it decided is durable. Requests
// that arrive together are decided together.
func (r *Request) groupDecide(ctx context.Context, ref *wire.GroupRef, action auth.Action, create bool, op partition.GroupOp, answer func() wire.Message) {
	g, _ := r.groupsOf(ctx, ref, action)
	if g == nil {
		return
	}
	reply := r.Defer()
	r.decide(g, ref.Group, create, op, func(err error) {
		if err != nil {
			reply.Fail(err)
			return
		}
		reply.Answer(answer())
	})
}

// decide hands op to the groups of a shard. done hears its outcome once, a refusal too.
func (r *Request) decide(g *partition.Groups, group string, create bool, op partition.GroupOp, done func(error)) {
	if err := g.Submit(group, create, op, done); err != nil {
		done(err)
		return
	}
	r.Drive(g)
}

func done(id uint64) func() wire.Message {
	return func() wire.Message { return &wire.CacheOK{RequestID: id} }
}

// acking is a group_ack with what its answer needs, and is made of. It is the shard's from
// Submit until answer, which runs once and lets it serve another ack.
type acking struct {
	at    storage.Offset
	reply *Reply
	ok    wire.CacheOK
	// The methods, made once.
	op   partition.GroupOp
	done func(error)
}

var ackings = sync.Pool{New: func() any { return new(acking) }}

func (a *acking) ack(now segment.Micros, g *groups.Group, _, tail storage.Offset) error {
	return g.Ack(now, a.at, tail)
}

func (a *acking) answer(err error) {
	if err != nil {
		a.reply.Fail(err)
	} else {
		a.reply.Answer(&a.ok)
	}
	a.reply = nil
	ackings.Put(a)
}

func groupAck(ctx context.Context, r *Request) {
	m := r.Message.(*wire.GroupAck)
	g, _ := r.groupsOf(ctx, &m.GroupRef, auth.GroupConsume)
	if g == nil {
		return
	}
	a := ackings.Get().(*acking)
	if a.op == nil {
		a.op, a.done = a.ack, a.answer
	}
	a.at, a.ok.RequestID, a.reply = storage.Offset(m.Offset), m.RequestID, r.Defer()
	r.decide(g, m.Group, true, a.op, a.done)
}

// groupAckAll settles records as group_ack does each. Those that are refused do not keep
// the others from being settled; the answer is the first refusal.
func groupAckAll(ctx context.Context, r *Request) {
	asked, _, ref, ok := r.groupExtension()
	if !ok || !r.Allow(auth.GroupConsume, auth.GroupObject(ref.Tenant, ref.Namespace, ref.Stream, ref.Group)) {
		return
	}
	// Decoded once it is known that they may be made.
	var q wire.GroupAckBody
	if _, ok := r.body(&q); !ok {
		return
	}
	if len(q.Offsets) == 0 || len(q.Offsets) > groups.MaxPollRecords {
		r.Fail(wire.NewFailure(wire.CodeInvalidRequest, fmt.Sprintf("body of extension group.ack: %d offsets, want 1 to %d", len(q.Offsets), groups.MaxPollRecords)))
		return
	}
	r.groupDecide(ctx, ref, auth.GroupConsume, true, func(now segment.Micros, g *groups.Group, _, tail storage.Offset) error {
		var first error
		for _, at := range q.Offsets {
			if err := g.Ack(now, storage.Offset(at), tail); err != nil && first == nil {
				first = err
			}
		}
		return first
	}, func() wire.Message { return extended(asked, struct{}{}) })
}

func groupNack(ctx context.Context, r *Request) {
	m := r.Message.(*wire.GroupNack)
	n := groups.NackRequest{Offset: storage.Offset(m.Offset), Attempts: m.Attempts, Delay: millis(m.DelayMillis), HasDelay: m.HasDelay}
	named := m.Attempts != 0
	r.groupDecide(ctx, &m.GroupRef, auth.GroupConsume, true, func(now segment.Micros, g *groups.Group, _, tail storage.Offset) error {
		n.Tail = tail
		return fatalStale(g.Nack(now, n), named)
	}, done(m.RequestID))
}

// fatalStale makes a stale claim fatal where the request named its delivery: asking
// again cannot help.
func fatalStale(err error, named bool) error {
	if named && errors.Is(err, groups.ErrStale) {
		return wire.NewFailure(wire.CodeStaleClaim, err.Error()).WithRetry(wire.RetryFatal)
	}
	return err
}

func groupExtend(ctx context.Context, r *Request) {
	m := r.Message.(*wire.GroupExtend)
	at, attempts, by, id := storage.Offset(m.Offset), m.Attempts, millis(m.ExtendMillis), m.RequestID
	var stands time.Duration
	r.groupDecide(ctx, &m.GroupRef, auth.GroupConsume, true, func(now segment.Micros, g *groups.Group, _, tail storage.Offset) (err error) {
		stands, err = g.Extend(now, at, attempts, by, tail)
		return fatalStale(err, true)
	}, func() wire.Message {
		return &wire.GroupExtended{VisibleMillis: uint64(stands / time.Millisecond), RequestID: id}
	})
}

func groupGiveUp(ctx context.Context, r *Request) {
	m := r.Message.(*wire.GroupDeadLetter)
	at := storage.Offset(m.Offset)
	r.groupDecide(ctx, &m.GroupRef, auth.GroupConsume, true, func(now segment.Micros, g *groups.Group, _, tail storage.Offset) error {
		return g.GiveUp(now, at, tail)
	}, done(m.RequestID))
}

func groupDeadLetters(ctx context.Context, r *Request) {
	m := r.Message.(*wire.GroupDeadLetters)
	// In a small frame fewer fit: of each offset its digits and a comma.
	limit := min(r.s.server.limits.ListedLetters, (r.s.server.limits.FrameBytes-answerCost)/21)
	answer := &wire.GroupDeadLetterList{RequestID: m.RequestID, Offsets: []uint64{}}
	r.groupDecide(ctx, &m.GroupRef, auth.GroupConsume, false, func(now segment.Micros, g *groups.Group, _, _ storage.Offset) error {
		if g != nil {
			g.Tick(now)
			offsets, _ := g.DeadLetters(0, limit)
			for _, o := range offsets {
				answer.Offsets = append(answer.Offsets, uint64(o))
			}
		}
		return nil
	}, func() wire.Message { return answer })
}

func groupDiscard(ctx context.Context, r *Request) {
	m := r.Message.(*wire.GroupDiscard)
	at := storage.Offset(m.Offset)
	r.groupDecide(ctx, &m.GroupRef, auth.GroupManage, false, func(_ segment.Micros, g *groups.Group, _, _ storage.Offset) error {
		if g != nil {
			g.Discard(at)
		}
		return nil
	}, done(m.RequestID))
}

func groupRedrive(ctx context.Context, r *Request) {
	m := r.Message.(*wire.GroupRedrive)
	at := storage.Offset(m.Offset)
	r.groupDecide(ctx, &m.GroupRef, auth.GroupManage, false, func(_ segment.Micros, g *groups.Group, _, _ storage.Offset) error {
		if g == nil {
			return fmt.Errorf("%w: %d", groups.ErrNotDead, at)
		}
		return g.Redrive(at)
	}, done(m.RequestID))
}

func groupSeek(ctx context.Context, r *Request) {
	m := r.Message.(*wire.GroupSeek)
	start, ifNew := m.Start, m.IfNew
	answer := &wire.GroupPosition{RequestID: m.RequestID}
	r.groupDecide(ctx, &m.GroupRef, auth.GroupManage, true, func(_ segment.Micros, g *groups.Group, head, tail storage.Offset) (err error) {
		to := tail
		switch start.Kind {
		case wire.StartEarliest:
			to = head
		case wire.StartOffset:
			to = storage.Offset(start.Offset)
		}
		answer.Moved, err = g.Seek(to, head, tail, ifNew)
		answer.Offset = uint64(g.Position())
		return err
	}, func() wire.Message { return answer })
}

func groupDescribe(ctx context.Context, r *Request) {
	m := r.Message.(*wire.GroupDescribe)
	answer := &wire.GroupInfo{RequestID: m.RequestID}
	r.groupDecide(ctx, &m.GroupRef, auth.GroupConsume, false, func(now segment.Micros, g *groups.Group, head, tail storage.Offset) error {
		answer.Tail = uint64(tail)
		if g == nil {
			return nil
		}
		s := g.Stats(now, head, tail)
		answer.Committed, answer.HasCommitted = uint64(s.Position), s.Exists
		answer.InFlight, answer.Owed, answer.DeadLetters = s.Claimed+s.Delayed, s.Owed, s.Dead
		return nil
	}, func() wire.Message { return answer })
}

func groupDelete(ctx context.Context, r *Request) {
	m := r.Message.(*wire.GroupDelete)
	g, _ := r.groupsOf(ctx, &m.GroupRef, auth.GroupManage)
	if g == nil {
		return
	}
	r.Behind(false)
	existed, err := g.DeleteGroup(ctx, m.Group)
	if err != nil {
		r.Fail(err)
		return
	}
	r.Answer(&wire.GroupDeleted{Existed: existed, RequestID: m.RequestID})
}

func configOf(c groups.Config) wire.GroupConfig {
	return wire.GroupConfig{
		VisibilityMillis: uint64(c.Visibility / time.Millisecond), MaxAttempts: c.MaxAttempts,
		BackoffMillis: uint64(c.Backoff / time.Millisecond), BackoffMaxMillis: uint64(c.BackoffMax / time.Millisecond),
		BackoffFactor: c.Factor, MaxInFlight: c.MaxInFlight, Exclusive: c.Exclusive,
	}
}

// maxExtension bounds the body of an extension request: far more than two of the longest
// keys, and a thousand offsets, take. What decodes to many times its size is bounded by it
// too, whoever asks.
const maxExtension = 1 << 20

// body decodes the body of an extension request, and answers when it is not as it should
// be. Fields that nobody knows are passed over.
func (r *Request) body(v any) (*wire.Extension, bool) {
	m := r.Message.(*wire.Extension)
	if len(m.Body) > maxExtension {
		r.Fail(wire.NewFailure(wire.CodeInvalidRequest, fmt.Sprintf("body of extension %s: %d bytes, at most %d", m.Name, len(m.Body), maxExtension)))
		return nil, false
	}
	if err := json.Unmarshal(m.Body, v); err != nil {
		r.Fail(wire.NewFailure(wire.CodeInvalidRequest, "body of extension "+m.Name+": "+err.Error()))
		return nil, false
	}
	if err := strictjson.Fields(m.Body); err != nil {
		r.Fail(wire.NewFailure(wire.CodeInvalidRequest, "body of extension "+m.Name+": "+err.Error()))
		return nil, false
	}
	return m, true
}

// pageOf is how many a page holds when limit is asked for, at most most of them, and answers
// when that is below 0.
func (r *Request) pageOf(m *wire.Extension, limit, most int) (int, bool) {
	if limit < 0 {
		r.Fail(wire.NewFailure(wire.CodeInvalidRequest, fmt.Sprintf("body of extension %s: limit %d, want 1 to %d, or 0 for %d", m.Name, limit, most, most)))
		return 0, false
	}
	if limit == 0 || limit > most {
		limit = most
	}
	return limit, true
}

// extended is the answer to an extension request.
func extended(m *wire.Extension, body any) wire.Message {
	b, err := json.Marshal(body)
	if err != nil {
		return &wire.Error{Failure: *wire.NewFailure(wire.CodeInternal, "answer of extension "+m.Name+": "+err.Error())}
	}
	return &wire.ExtensionOK{Name: m.Name, RequestID: m.RequestID, HasRequestID: m.HasRequestID, Body: b}
}

func (r *Request) groupExtension() (m *wire.Extension, q wire.GroupBody, ref *wire.GroupRef, ok bool) {
	if m, ok = r.body(&q); !ok {
		return nil, q, nil, false
	}
	// The message's memory is the handler's; what outlives it is copied.
	copied := *m
	return &copied, q, &wire.GroupRef{Tenant: q.Tenant, Namespace: q.Namespace, Stream: q.Stream, Shard: q.Shard, Group: q.Group}, true
}

func groupConfigure(ctx context.Context, r *Request) {
	m, q, ref, ok := r.groupExtension()
	if !ok {
		return
	}
	if q.Config == nil {
		r.Fail(wire.NewFailure(wire.CodeInvalidRequest, "body of extension group.configure: config is missing"))
		return
	}
	c := groups.Config{
		Visibility: millis(q.Config.VisibilityMillis), MaxAttempts: q.Config.MaxAttempts, Backoff: millis(q.Config.BackoffMillis),
		BackoffMax: millis(q.Config.BackoffMaxMillis), Factor: q.Config.BackoffFactor, MaxInFlight: q.Config.MaxInFlight,
		Exclusive: q.Config.Exclusive,
	}
	r.groupDecide(ctx, ref, auth.GroupManage, true, func(_ segment.Micros, g *groups.Group, _, _ storage.Offset) error {
		return g.Configure(c)
	}, func() wire.Message { return extended(m, configOf(c)) })
}

func statsOf(name string, s groups.Stats, c groups.Config) wire.GroupBooks {
	return wire.GroupBooks{
		Group: name, Exists: s.Exists, Start: uint64(s.Start), Position: uint64(s.Position), Tail: uint64(s.Tail), Ready: s.Ready, Owed: s.Owed,
		Delayed: s.Delayed, Claimed: s.Claimed, Acked: s.Acked, Dead: s.Dead, Discarded: s.Discarded, Lost: s.Lost, Lag: s.Lag,
		Config: configOf(c),
	}
}

func groupDescribeAll(ctx context.Context, r *Request) {
	m, q, ref, ok := r.groupExtension()
	if !ok {
		return
	}
	var answer wire.GroupBooks
	r.groupDecide(ctx, ref, auth.GroupConsume, false, func(now segment.Micros, g *groups.Group, head, tail storage.Offset) error {
		if g != nil {
			answer = statsOf(q.Group, g.Stats(now, head, tail), g.Config())
		} else {
			answer = statsOf(q.Group, groups.StatsOfNone(head, tail), groups.Config{})
		}
		return nil
	}, func() wire.Message { return extended(m, answer) })
}

func groupList(ctx context.Context, r *Request) {
	m, q, ref, ok := r.groupExtension()
	if !ok || !r.Allow(auth.StreamSubscribe, auth.StreamObject(q.Tenant, q.Namespace, q.Stream)) {
		return
	}
	g, _ := r.groupsOfShard(ctx, ref)
	if g == nil {
		return
	}
	r.Behind(false)
	names := g.Names()
	if names == nil {
		names = []string{}
	}
	r.Answer(extended(m, wire.GroupNames{Groups: names}))
}

// maxLetters bounds one page of dead letters with their payloads.
const maxLetters = 100

func groupLetters(ctx context.Context, r *Request) {
	m, q, ref, ok := r.groupExtension()
	if !ok {
		return
	}
	limit, ok := r.pageOf(m, q.Limit, maxLetters)
	if !ok {
		return
	}
	g, _ := r.groupsOf(ctx, ref, auth.GroupConsume)
	if g == nil {
		return
	}
	r.Behind(false)
	letters, more, err := g.Letters(ctx, q.Group, storage.Offset(q.From), limit)
	if err != nil {
		r.Fail(err)
		return
	}
	most := r.s.server.largestLetter()
	page := make([]wire.GroupLetter, len(letters))
	for i, l := range letters {
		payload := l.Payload[:min(len(l.Payload), most)]
		page[i] = wire.GroupLetter{
			Offset: uint64(l.Offset), Attempts: l.Attempts, Reason: l.Reason.String(), AtMicros: int64(l.At),
			Payload: payload, Size: len(l.Payload), Cut: len(payload) < len(l.Payload),
		}
	}
	fit := r.s.server.fitting(len(page), func(i int) int { return letterCost(page[i].Payload) })
	page, more = page[:fit], more || fit < len(page)
	r.Answer(extended(m, wire.GroupLetters{Letters: page, More: more}))
}
