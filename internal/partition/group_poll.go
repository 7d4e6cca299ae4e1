package partition

import (
	"context"
	"errors"
	"time"

	"github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// PollCall asks for records of a group.
type PollCall struct {
	Group      string
	Max        int
	Wait       time.Duration // bounded by GroupsOptions.MaxWait
	Visibility time.Duration
	Member     string
	Conn       uint64
	Reclaim    bool
}

// GroupRecord is a record as handed out.
type GroupRecord struct {
	Offset    storage.Offset
	Payload   []byte
	Attempts  uint32
	Publisher []byte
	Timestamp storage.Micros
}

// Polled is what a poll handed out. It keeps its memory from poll to poll: what Records
// hold is good until the next poll into it. The zero value is ready.
type Polled struct {
	Records []GroupRecord
	room    []byte // what their bytes are copied to
}

// polledKept bounds the memory that a Polled keeps.
const polledKept = 16 << 10

// Reset forgets the records, and memory that was grown by many or large ones.
func (p *Polled) Reset() {
	if cap(p.room) > polledKept || cap(p.Records) > polledKept/64 {
		*p = Polled{}
	}
	clear(p.Records)
	p.Records, p.room = p.Records[:0], p.room[:0]
}

// grow makes room for n more bytes. What was copied before stays where it is.
func (p *Polled) grow(n int) {
	if cap(p.room)-len(p.room) < n {
		p.room = make([]byte, 0, n)
	}
}

func (p *Polled) copied(b []byte) []byte {
	from := len(p.room)
	p.room = append(p.room, b...)
	return p.room[from:len(p.room):len(p.room)]
}

// Defaults of GroupsOptions.
const (
	DefaultPollBytes = 4 << 20
	DefaultPollWait  = 30 * time.Second
)

// pollWait is a poll that waits for something to be ready.
type pollWait struct{ wake chan struct{} }

// Poll claims records and reads them into p, waiting up to c.Wait until there are some. None
// is no error, nor is an exclusive group that another consumer holds: there is nothing for
// this one. Once ctx has ended nothing stays claimed. Errors: queue.ErrInvalid,
// ErrGroupsReloading, the log's.
func (g *Groups) Poll(ctx context.Context, c PollCall, p *Polled) error {
	p.Reset()
	if c.Wait <= 0 {
		_, err := g.try(ctx, c, p)
		return err
	}
	deadline := time.Now().Add(min(c.Wait, g.o.MaxWait))
	w := &pollWait{wake: make(chan struct{}, 1)}
	for {
		// First among those that wait, then the look: nothing is missed between.
		g.enter(c.Group, w)
		next, err := g.try(ctx, c, p)
		if ctx.Err() != nil {
			g.leave(c.Group, w)
			back := g.GiveBack(c.Group, p.Records)
			p.Reset()
			if back != nil {
				return back
			}
			return err
		}
		if len(p.Records) > 0 || err != nil || !time.Now().Before(deadline) || g.serving() != nil {
			g.leave(c.Group, w)
			return err
		}
		c.Reclaim = false
		until := deadline
		if !next.IsZero() && next.Before(until) {
			until = next
		}
		timer := time.NewTimer(time.Until(until))
		select {
		case <-w.wake:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			g.leave(c.Group, w)
			return nil // nothing was claimed
		}
		timer.Stop()
	}
}

// claiming is one look of a poll.
type claiming struct {
	g      *Groups
	call   PollCall
	handed []queue.Handout
	next   time.Time // when a claim or a delay ends, zero if none stands

	// done is of size 1: whoever answers does not wait.
	done chan error
	// claim and answer, the methods, made once.
	op     GroupOp
	answer func(error)
}

func newClaiming() any {
	k := &claiming{done: make(chan error, 1)}
	k.op, k.answer = k.claim, func(err error) { k.done <- err }
	return k
}

// release lets a claiming that nobody will answer any more serve another look.
func (k *claiming) release() {
	g := k.g
	k.g, k.call, k.handed, k.next = nil, PollCall{}, k.handed[:0], time.Time{}
	g.claimings.Put(k)
}

func (k *claiming) claim(now segment.Micros, group *queue.Group, head, tail storage.Offset) (err error) {
	c := &k.call
	k.handed, err = group.Poll(now, queue.PollRequest{
		Max: c.Max, Visibility: c.Visibility, Member: c.Member, Conn: c.Conn, Reclaim: c.Reclaim, Head: head, Tail: tail,
	}, k.handed)
	if len(k.handed) < c.Max && group.Full(tail) {
		k.g.stream.counters.PollsCut.Add(1)
	}
	if at, ok := group.NextDeadline(); ok {
		k.next = time.UnixMicro(int64(at))
	}
	if errors.Is(err, queue.ErrHeld) {
		k.next = time.UnixMicro(int64(group.HeldUntil()))
		return nil
	}
	return err
}

// try polls once. next is when a claim or a delay ends, zero if none stands.
func (g *Groups) try(ctx context.Context, c PollCall, p *Polled) (next time.Time, err error) {
	k := g.claimings.Get().(*claiming)
	k.g, k.call = g, c
	// A poll that woke those that wait would wake itself. What a reclaim opens and does
	// not take is for the others.
	if err = g.submit(c.Group, true, c.Reclaim, k.op, k.answer); err != nil {
		next = k.next
		k.release()
		return next, err
	}
	g.Drive(true)
	select {
	case err = <-k.done:
	case <-ctx.Done():
		// What was claimed must not stay so for somebody who has gone. k is still to be
		// answered, so that it serves nobody else.
		next = k.next
		g.background.start(func() {
			if <-k.done == nil {
				g.giveBack(c.Group, k.handed)
				g.Drive(true)
			}
		})
		return next, errors.Join(storage.ErrUnknownOutcome, ctx.Err())
	}
	next = k.next
	defer k.release()
	if err != nil || len(k.handed) == 0 {
		return next, err
	}
	unread, err := g.read(ctx, c.Group, k.handed, p)
	g.giveBack(c.Group, unread)
	if err != nil && len(p.Records) > 0 {
		err = nil // what could be read leaves; the rest is met again
	}
	return next, err
}

// read reads the records handed out into p, up to PollBytes, and returns those that do not
// leave: unread ones, and ones that hold nothing for consumers.
func (g *Groups) read(ctx context.Context, group string, handed []queue.Handout, p *Polled) (unread []queue.Handout, err error) {
	bytes := 0
	page := g.pages.Get().(*storage.Page)
	defer g.pages.Put(page)
	for i := 0; i < len(handed); {
		run := i + 1
		for run < len(handed) && handed[run].Offset == handed[run-1].Offset+1 && !handed[run].Copied && !handed[i].Copied {
			run++
		}
		if bytes > 0 && bytes >= g.o.PollBytes {
			return append(unread, handed[i:]...), nil
		}
		if handed[i].Copied {
			payload, err := g.copied(ctx, group, handed[i].Offset)
			if err != nil {
				return append(unread, handed[i:]...), err
			}
			if bytes > 0 && bytes+len(payload) > g.o.PollBytes {
				return append(unread, handed[i:]...), nil
			}
			p.Records = append(p.Records, GroupRecord{Offset: handed[i].Offset, Attempts: handed[i].Attempts, Payload: payload})
			bytes += len(payload)
			i++
			continue
		}
		err := g.stream.log.Read(ctx, page, storage.ReadRange{
			From: handed[i].Offset, End: handed[run-1].Offset + 1, MaxBytes: min(g.expect(run-i), g.o.PollBytes-bytes),
		})
		if err != nil {
			if _, trimmed := errors.AsType[*storage.TrimmedError](err); trimmed {
				err = nil // counted as lost by the next request
			}
			return append(unread, handed[i:]...), err
		}
		if len(page.Records) == 0 {
			return append(unread, handed[i:]...), nil
		}
		payloads, publishers := bytesOf(page)
		g.recordBytes.Store(int64(payloads / len(page.Records)))
		p.grow(payloads + publishers)
		for k := range page.Records {
			rec := &page.Records[k]
			h := handed[i]
			payload, visible := rec.Visible()
			if bytes > 0 && bytes+len(payload) > g.o.PollBytes {
				return append(unread, handed[i:]...), nil
			}
			i++
			if !visible {
				unread = append(unread, h)
				continue
			}
			bytes += len(payload)
			p.Records = append(p.Records, GroupRecord{
				Offset: h.Offset, Attempts: h.Attempts, Timestamp: rec.Timestamp,
				Payload: p.copied(payload), Publisher: p.copied(rec.Publisher),
			})
		}
	}
	return unread, nil
}

// expect is how many bytes n records are taken to have, from those read last: a poll of
// one record must not read as far ahead as one of a thousand. Where they turn out to have
// more, the read goes on.
func (g *Groups) expect(n int) int {
	each := max(g.recordBytes.Load(), 128)
	return int(min(int64(n)*(each+each/4), int64(g.o.PollBytes)))
}

// bytesOf are the bytes of the payloads and of the publishers of a page.
func bytesOf(p *storage.Page) (payloads, publishers int) {
	for i := range p.Records {
		payloads += len(p.Records[i].Payload)
		publishers += len(p.Records[i].Publisher)
	}
	return payloads, publishers
}

// GiveBack undoes the claims of records that Poll returned and that did not reach their
// consumer: they are owed again, and the delivery is not counted. A claim that no longer
// stands is left alone.
func (g *Groups) GiveBack(group string, records []GroupRecord) error {
	if err := g.log.Health().Err; err != nil {
		return g.closedAs(err)
	}
	if err := g.serving(); err != nil {
		return err
	}
	handed := make([]queue.Handout, len(records))
	for i := range records {
		handed[i] = queue.Handout{Offset: records[i].Offset, Attempts: records[i].Attempts}
	}
	g.giveBack(group, handed)
	return nil
}

// undelivered are deliveries of a group that did not leave.
type undelivered struct {
	group  string
	handed []queue.Handout
}

// giveBack undoes the claims of records that did not leave. Those without anything for
// consumers are settled. While the state is read again that waits for it: the claims
// stand in it.
func (g *Groups) giveBack(name string, handed []queue.Handout) {
	if len(handed) == 0 {
		return
	}
	g.mu.Lock()
	switch {
	case g.serving() != nil:
	case g.mu.broken:
		g.mu.undelivered = append(g.mu.undelivered, undelivered{name, handed})
	default:
		g.giveBackLocked(undelivered{name, handed})
	}
	g.unlock()
	g.Drive(true)
}

func (g *Groups) giveBackLocked(u undelivered) {
	group, ok := g.mu.shard.Lookup(u.group)
	if !ok {
		return
	}
	starts := map[storage.Offset]bool{}
	for _, s := range g.stream.log.Generations() {
		starts[s.Start] = true
	}
	group.Tick(g.now())
	for _, h := range u.handed {
		if starts[h.Offset] {
			group.Skip(h.Offset)
		} else {
			group.Return(h.Offset, h.Attempts)
		}
	}
	g.joinLocked(group, nil, nil)
	g.wakeLocked(u.group)
}

func (g *Groups) enter(name string, w *pollWait) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.waits[name] == nil {
		g.mu.waits[name] = map[*pollWait]struct{}{}
	}
	g.mu.waits[name][w] = struct{}{}
	g.waiting.Store(true)
}

func (g *Groups) leave(name string, w *pollWait) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.mu.waits[name], w)
	if len(g.mu.waits[name]) == 0 {
		delete(g.mu.waits, name)
		g.waiting.Store(len(g.mu.waits) > 0)
		if group, ok := g.mu.shard.Lookup(name); ok {
			g.forgetLocked(group)
		}
	}
}

// Waiting is how many polls of a group wait for something to be ready.
func (g *Groups) Waiting(group string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.mu.waits[group])
}

func (g *Groups) wakeLocked(name string) {
	for w := range g.mu.waits[name] {
		select {
		case w.wake <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// wakeAll wakes every poll that waits: the stream has more, or the shard ends.
func (g *Groups) wakeAll() {
	if !g.waiting.Load() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for name := range g.mu.waits {
		g.wakeLocked(name)
	}
}
