package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/felixlog/felix/wire"
)

// feed reads one shard of a subscription on a connection of its own, and makes
// another when that ends.
type feed struct {
	s     *Subscription
	shard int
	// start is where to begin, until next is known.
	start wire.Start
	// next is the first offset not yet read.
	next    uint64
	hasNext bool
	session *session
	back    resumption
	// first to last are deliveries that came together and are not handed on yet.
	first, last *delivery
	chained     int
}

// newFeed resolves where the shard begins.
func (s *Subscription) newFeed(ctx context.Context, c *Client, shard int) (*feed, error) {
	start, err := c.startOf(ctx, s.stream.stream, shard, &s.config)
	if err != nil {
		return nil, err
	}
	f := &feed{s: s, shard: shard, start: start}
	f.back = resumption{core: s.client, op: f.op(), most: s.config.resumeTimeout}
	return f, nil
}

// startOf is where the options say that a shard begins.
func (c *Client) startOf(ctx context.Context, stream string, shard int, s *subscribeConfig) (wire.Start, error) {
	if offset, ok := s.offsets[shard]; ok {
		return wire.Start{Kind: wire.StartOffset, Offset: offset}, nil
	}
	if s.at.IsZero() {
		return s.start, nil
	}
	offset, err := c.startAt(ctx, stream, shard, s.at)
	return wire.Start{Kind: wire.StartOffset, Offset: offset}, err
}

func (f *feed) op() string { return "subscribe " + f.s.stream.stream }

// begin subscribes for the first time.
func (f *feed) begin(ctx context.Context) error {
	b := f.s.client.config.retry.begin()
	for {
		err := f.subscribe(ctx)
		if err == nil {
			return nil
		}
		d, again := b.again(err, true)
		if !again || pause(ctx, d) != nil {
			return err
		}
	}
}

// subscribe makes a connection and asks for the records from next, or start, on.
func (f *feed) subscribe(ctx context.Context) error {
	session, err := f.s.client.connect(ctx, f.s.config.flags)
	if err != nil {
		return wrap(f.op(), err)
	}
	stop := context.AfterFunc(ctx, func() { ignore(session.conn.SetDeadline(longAgo)) })
	err = f.request(session)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		session.close()
		var e *Error
		if !errors.As(err, &e) {
			err = lost(f.op(), err, false)
		}
		return err
	}
	f.session = session
	return nil
}

func (f *feed) request(session *session) error {
	start := f.start
	if f.hasNext {
		start = wire.Start{Kind: wire.StartOffset, Offset: f.next}
	}
	if start.Kind > wire.StartLatest && !session.auth.ServerFlags.Has(wire.FlagEventBatchOffsets) {
		return &Error{Op: f.op(), Retry: wire.RetryFatal, Err: ErrUnsupported, Message: "the broker replays nothing"}
	}
	m := &wire.Subscribe{Tenant: f.s.client.config.tenant, Namespace: f.s.stream.namespace, Stream: f.s.stream.stream, Start: start, Shard: wireCount(f.shard)}
	if _, err := session.conn.Write(wire.AppendMessage(nil, m)); err != nil {
		return err
	}
	a, err := session.message()
	if err != nil {
		return err
	}
	switch a := a.(type) {
	case *wire.Subscribed:
		if a.HasStartOffset && !f.hasNext {
			f.next, f.hasNext = a.StartOffset, true
		}
		return nil
	case *wire.SubscribeCursorError:
		return cursorError(f.op(), f.shard, a)
	case *wire.NotLeader:
		return &Error{Op: f.op(), Code: wire.CodeNotLeader, Retry: wire.RetryRedirect, Message: "led by " + a.NodeID}
	case *wire.Error:
		return failed(f.op(), &a.Failure)
	}
	return &Error{Op: f.op(), Retry: wire.RetryFatal, Message: "was answered with " + a.Type()}
}

// run reads until the subscription ends.
func (f *feed) run() {
	ctx := f.s.ctx
	for {
		err := f.read(ctx)
		f.session.close()
		if e := f.s.client.config.events.OnDisconnect; e != nil {
			e(f.session.addr, err)
		}
		if err = f.resume(ctx, err); err == nil {
			continue
		}
		if ctx.Err() == nil {
			f.hand(ctx, &delivery{err: err})
		}
		return
	}
}

// resume subscribes again after the last record, until it is accepted or that
// cannot be any more.
func (f *feed) resume(ctx context.Context, cause error) error {
	if large := tooLarge(f.op(), cause); large == nil && !f.hasNext {
		return lost(f.op(), cause, false)
	}
	return f.back.run(ctx, cause, f.subscribe)
}

// read delivers events until the connection ends, and returns why.
func (f *feed) read(ctx context.Context) error {
	stop := context.AfterFunc(ctx, f.session.close)
	defer stop()
	err := f.frames(ctx)
	// next is behind what was chained, which nobody asks for again.
	if left := f.flush(ctx); left != nil {
		return left
	}
	return err
}

// chainMost bounds the frames that are handed on together.
const chainMost = 64

// frames reads frames. Those that came together are handed on together, before it waits
// for more.
func (f *feed) frames(ctx context.Context) error {
	reader := f.session.reader
	for {
		if f.chained == chainMost || f.chained > 0 && !reader.Buffered() {
			if err := f.flush(ctx); err != nil {
				return err
			}
		}
		frame, err := reader.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return ErrConnectionLost
			}
			return err
		}
		switch frame.Flags.Layout() {
		case wire.LayoutEvents:
			err = f.events(frame)
		case wire.LayoutMessage:
			if err = f.flush(ctx); err == nil {
				err = f.message(ctx, frame)
			}
		default:
			err = fmt.Errorf("unexpected frame with flags %s", frame.Flags)
		}
		if err != nil {
			return err
		}
	}
}

// events chains what is new in a frame.
func (f *feed) events(frame wire.Frame) error {
	d := deliveries.Get().(*delivery)
	d.shard, d.from, d.lost, d.err = f.shard, 0, 0, nil
	if err := d.batch.Decode(frame.Flags, frame.Payload); err != nil {
		return err
	}
	if !f.fit(d) {
		d.putBack()
		return nil
	}
	// The records keep the memory of the frame from now on.
	frame.Retain()
	d.frame, d.framed = frame, true
	if f.first == nil {
		f.first = d
	} else {
		f.last.next = d
	}
	f.last = d
	f.chained++
	return nil
}

// flush hands on what was chained.
func (f *feed) flush(ctx context.Context) error {
	first := f.first
	if first == nil {
		return nil
	}
	f.first, f.last, f.chained = nil, nil, 0
	return f.hand(ctx, first)
}

// deliver hands on what is new in a batch that came alone.
func (f *feed) deliver(ctx context.Context, d *delivery) error {
	if !f.fit(d) {
		return nil
	}
	return f.hand(ctx, d)
}

// fit says whether something is new in a batch, and leaves out of it what is not.
func (f *feed) fit(d *delivery) bool {
	n := uint64(len(d.batch.Payloads))
	if n == 0 {
		return false
	}
	f.back.progress()
	if base := d.batch.BaseOffset; d.batch.HasOffsets {
		end := base + n
		if f.hasNext {
			switch {
			case end <= f.next:
				return false
			case base < f.next:
				d.from = int(f.next - base)
			default:
				if missing := base - f.next; missing > d.batch.SkippedBefore {
					d.lost = missing - d.batch.SkippedBefore
				}
			}
		}
		f.next, f.hasNext = end, true
	} else {
		// A stream in memory: after these there is nothing to resume from.
		f.hasNext = false
	}
	return true
}

func (f *feed) hand(ctx context.Context, d *delivery) error {
	select {
	case f.s.items <- d:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// errMoved ends a connection whose shard is to be read elsewhere or again.
var errMoved = errors.New("asked to subscribe again")

func (f *feed) message(ctx context.Context, frame wire.Frame) error {
	m, err := wire.DecodeMessage(frame.Payload)
	if err != nil {
		return err
	}
	switch m := m.(type) {
	case *wire.EventStreamHello:
		return nil
	case *wire.Event:
		d := &delivery{shard: f.shard}
		d.batch.Payloads, d.batch.BaseOffset, d.batch.HasOffsets = [][]byte{m.Payload}, m.Offset, m.HasOffset
		return f.deliver(ctx, d)
	case *wire.EventBatchMessage:
		d := &delivery{shard: f.shard}
		d.batch.Payloads, d.batch.BaseOffset, d.batch.HasOffsets = m.Payloads, m.BaseOffset, m.HasBaseOffset
		return f.deliver(ctx, d)
	case *wire.ShardMoved:
		if m.HasResumeFrom && (!f.hasNext || m.ResumeFrom > f.next) {
			f.next, f.hasNext = m.ResumeFrom, true
		}
		return errMoved
	case *wire.SubscriptionLagged:
		if !f.hasNext {
			f.next, f.hasNext = m.ResumeFrom, true
		}
		return errMoved
	case *wire.Error:
		return failed(f.op(), &m.Failure)
	}
	return fmt.Errorf("unexpected message %s", m.Type())
}
