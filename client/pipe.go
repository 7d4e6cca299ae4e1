package client

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"sync"
	"time"

	"github.com/felixlog/felix/wire"
)

// answer is what came back for one request.
type answer struct {
	// Of a publish: the offset, or a failure, or a refusal.
	offset    uint64
	hasOffset bool
	failure   *wire.Failure
	refused   *wire.PublishRefused
	// Of any other request.
	message wire.Message
	// Of a get or delete of a cache, beside valued.
	value    Value
	hasValue bool
	// Of a poll, beside handed: of no shard yet.
	records []Message
}

// call is a request that waits for its answer. answered copies what it keeps of the
// answer. At most one of answered and lost is called, once, outside the pipe's lock. lost is not called for the requests
// of a source, which hears by ended.
type call interface {
	answered(*answer)
	lost(cause error)
}

// source has frames to send when the pipe is ready for them.
type source interface {
	// take adds a frame to dst, if it is not longer than most, and its call with
	// p.expect. It is called by whoever writes; more says that there is more to take
	// at once.
	take(p *pipe, dst []byte, most int) (out []byte, more bool)
	// ended says that the pipe is gone, and with it the answers still due.
	ended(p *pipe, cause error)
}

// pipe carries requests and their answers over one connection. Frames gather
// while the writer is busy; sources are asked for theirs when it is free, so
// that a batch keeps growing until it can be sent.
type pipe struct {
	*session
	answerTimeout time.Duration
	onEnd         func(error)
	held          *wire.TLSHold // nil without TLS

	// The reader's, whoever that is (see reading).
	decoder  wire.Decoder
	ack      wire.PublishAck
	came     answer // what is handed to a call, which copies it
	together bool   // answers that came together are being handed out
	lone     int    // awaited requests that were alone, in a row

	mu sync.Mutex
	// out are whole frames to write; spare is the buffer that out had before.
	out, spare []byte
	ready      []source
	attached   map[source]struct{}
	// pending are the calls sent, in the order of their frames; the first is at
	// head. A call answered out of order leaves nil.
	pending []waiting
	head    int
	writing bool
	// answering: the reader hands out answers that came together. Those who get them may
	// ask again, and what they ask leaves in one write, when all have been handed out.
	answering bool
	reading   reading
	err       error

	wake     chan struct{}
	done     chan struct{}
	watchdog *time.Timer
	wg       sync.WaitGroup
}

type waiting struct {
	id   uint64
	call call
	// asked is when the answer was asked for; it may take the answer timeout from then.
	asked time.Time
	// awaited: somebody waits for just this, and would read for it.
	awaited bool
}

// inlineMost bounds what a caller writes itself on an idle connection, instead
// of waking the writer: what any socket takes in without waiting. A caller may be
// bound by its context, and the reader may be one; neither waits for the peer.
const inlineMost = 8 << 10

// newPipe starts the goroutines of a session.
func newPipe(s *session, answerTimeout time.Duration, onEnd func(error)) *pipe {
	p := &pipe{session: s, answerTimeout: answerTimeout, onEnd: onEnd, wake: make(chan struct{}, 1), done: make(chan struct{})}
	p.reading.told = make(chan struct{}, 1)
	if t, ok := s.conn.(*tls.Conn); ok {
		if s, ok := t.NetConn().(*socket); ok {
			s.held.HoldAlways()
			p.held = &s.held
		}
	}
	p.mu.Lock()
	p.watchdog = time.AfterFunc(answerTimeout, p.watch)
	p.mu.Unlock()
	p.wg.Go(p.read)
	p.wg.Go(p.write)
	return p
}

// send queues a frame and its call; wait is how long the broker was asked to hold back the
// answer. An error means that the pipe has ended and the call will not hear of it. Who sends
// waits for the answer, and with reads must call readFor first.
func (p *pipe) send(id uint64, c call, wait time.Duration, frame func(dst []byte) []byte) (reads bool, err error) {
	p.mu.Lock()
	if p.err != nil {
		p.mu.Unlock()
		return false, p.err
	}
	idle := p.idle()
	reads = p.claim()
	p.out = frame(p.out)
	p.due(waiting{id: id, call: c, asked: time.Now().Add(wait), awaited: true})
	p.start(idle && len(p.out) <= inlineMost)
	return reads, nil
}

// due adds a request whose answer will come. The lock is held. Somebody reads from here on.
func (p *pipe) due(w waiting) {
	p.pending = append(p.pending, w)
	if p.reading.by == byNobody {
		p.recall()
	}
}

// sendAll is send of requests that leave in one write, those that are not unsent already.
// Those that cannot be sent become so.
func (p *pipe) sendAll(rs []*request) {
	p.mu.Lock()
	err := p.err
	idle := p.idle()
	for _, r := range rs {
		switch {
		case r.unsent != nil:
		case err != nil:
			r.unsent = lost(r.name(), err, false)
		default:
			p.out = wire.AppendMessage(p.out, r.message)
			p.due(waiting{id: r.id, call: r.sent, asked: time.Now().Add(r.wait)})
		}
	}
	if err != nil {
		p.mu.Unlock()
		return
	}
	p.start(idle && len(p.out) <= inlineMost)
}

// attach makes s hear of the pipe's end. It is false when that has come already.
func (p *pipe) attach(s source) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return false
	}
	if p.attached == nil {
		p.attached = make(map[source]struct{})
	}
	p.attached[s] = struct{}{}
	return true
}

// detach undoes attach.
func (p *pipe) detach(s source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.attached, s)
}

// offer says that s has frames. It may be called with s's own lock free only.
func (p *pipe) offer(s source) {
	p.mu.Lock()
	if p.err != nil {
		p.mu.Unlock()
		return
	}
	idle := p.idle()
	p.ready = append(p.ready, s)
	p.start(idle)
}

// idle: nothing is being written and nothing unanswered, so that the socket's
// buffer is empty.
func (p *pipe) idle() bool { return !p.writing && !p.answersDue() }

func (p *pipe) answersDue() bool { return p.head < len(p.pending) }

// start makes sure that somebody writes, and unlocks. On an idle connection the
// caller does it.
func (p *pipe) start(inline bool) {
	if p.writing || p.answering {
		p.mu.Unlock()
		return
	}
	p.writing = true
	alone := p.reading.by == byCaller
	p.mu.Unlock()
	if inline {
		// Those who were woken together with us come first: their frames go
		// into the same write.
		if !alone {
			runtime.Gosched()
		}
		if !p.step(inlineMost, inlineMost) {
			return
		}
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// expect adds the call of a frame that a source is giving. id is echoed by the
// answer. awaited says that somebody waits for just this. It is false when the pipe has ended.
func (p *pipe) expect(id uint64, c call, awaited bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return false
	}
	p.due(waiting{id: id, call: c, asked: time.Now(), awaited: awaited})
	return true
}

// write is the writer.
func (p *pipe) write() {
	for {
		select {
		case <-p.wake:
		case <-p.done:
			return
		}
		for runtime.Gosched(); p.step(gatherStep, math.MaxInt); runtime.Gosched() {
			select {
			case <-p.done:
				return
			default:
			}
		}
	}
}

// step writes what there is, up to about enough bytes and never more than most, and
// reports whether there is more. Only who set writing may call it; false has given that
// up.
func (p *pipe) step(enough, most int) bool {
	p.mu.Lock()
	if len(p.out) > most {
		p.mu.Unlock()
		return true
	}
	out := p.out
	p.out = p.spare[:0]
	p.spare = nil
	sources := p.ready
	p.ready = nil
	p.mu.Unlock()

	again := sources[:0]
	for i, s := range sources {
		if len(out) >= enough {
			again = append(again, sources[i:]...)
			break
		}
		var more bool
		if out, more = s.take(p, out, most-len(out)); more {
			again = append(again, s)
		}
	}
	err := p.transmit(out)
	if err != nil {
		p.fail(err)
	}
	if cap(out) > 4*gatherStep {
		out = nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spare = out[:0]
	if len(again) > 0 {
		p.ready = append(again, p.ready...)
	}
	if p.err != nil || p.answering || p.atRest() {
		p.writing = false
		return false
	}
	return true
}

// atRest: there is nothing to write.
func (p *pipe) atRest() bool { return len(p.out) == 0 && len(p.ready) == 0 }

// gathering begins or ends that answers are handed out together.
func (p *pipe) gathering(more bool) {
	p.mu.Lock()
	p.answering = more
	if more || p.err != nil || p.atRest() {
		p.mu.Unlock()
		return
	}
	p.start(false)
}

func (p *pipe) transmit(out []byte) error {
	for len(out) > 0 {
		n := min(len(out), gatherStep)
		if _, err := p.conn.Write(out[:n]); err != nil {
			return err
		}
		if p.held != nil {
			if err := p.held.Flush(); err != nil {
				return err
			}
		}
		out = out[n:]
	}
	return nil
}

// read is the reader.
func (p *pipe) read() {
	defer p.reader.Close()
	for {
		if err := p.readFrame(); err != nil {
			p.fail(err)
			return
		}
		if p.lone >= loneRun && p.lend() {
			<-p.reading.told
		}
	}
}

// readFrame reads one frame and hands it on. It is the reader's.
func (p *pipe) readFrame() error {
	f, err := p.reader.Next()
	if err != nil {
		if errors.Is(err, io.EOF) {
			return ErrConnectionLost
		}
		return err
	}
	if more := p.reader.Buffered(); more != p.together {
		p.together = more
		p.gathering(more)
	}
	return p.dispatch(f)
}

func (p *pipe) dispatch(f wire.Frame) error {
	switch f.Flags.Layout() {
	case wire.LayoutAck:
		ack := &p.ack
		if err := ack.Decode(f.Flags, f.Payload); err != nil {
			return err
		}
		a := answer{offset: ack.Offset, hasOffset: ack.HasOffset}
		if ack.Failed {
			failure := ack.Failure
			a.failure = &failure
		}
		return p.deliver(ack.RequestID, true, a)
	case wire.LayoutMessage:
		return p.dispatchMessage(f.Payload)
	}
	return fmt.Errorf("unexpected frame with flags %s", f.Flags)
}

// The beginnings of the usual answers.
var (
	publishOKPrefix  = []byte(`{"type":"publish_ok"`)
	cacheOKPrefix    = []byte(`{"type":"cache_ok"`)
	cacheValuePrefix = []byte(`{"type":"cache_value"`)
	recordsPrefix    = []byte(`{"type":"group_records"`)
)

func usual(payload []byte) bool {
	return bytes.HasPrefix(payload, publishOKPrefix) || bytes.HasPrefix(payload, cacheOKPrefix) ||
		bytes.HasPrefix(payload, cacheValuePrefix) || bytes.HasPrefix(payload, recordsPrefix)
}

// settled is the answer that says no more than that; it is shared.
var settled = &wire.CacheOK{}

// valued stands for a value, which the answer holds beside it; it is shared.
var valued = &wire.CacheValue{}

// handed stands for records of a group, which the answer holds beside it; it is shared.
var handed = &wire.GroupRecords{}

func (p *pipe) dispatchMessage(payload []byte) error {
	// The usual answers are read into memory of the decoder's, and what is needed of them is
	// copied. Of the others, and of large ones, the memory is handed on.
	owned := len(payload) > sharedMost || !usual(payload)
	decode := p.decoder.Decode
	if owned {
		decode = wire.DecodeMessage
	}
	m, err := decode(payload)
	if err != nil {
		return err
	}
	switch m := m.(type) {
	case *wire.CacheOK:
		return p.deliver(0, false, answer{message: settled})
	case *wire.CacheValue:
		v := Value{Data: m.Value, Version: m.Version} // the asker knows the key
		if !owned {
			v.Data = bytes.Clone(v.Data)
		}
		return p.deliver(0, false, answer{message: valued, value: v, hasValue: m.HasValue})
	case *wire.GroupRecords:
		return p.deliver(0, false, answer{message: handed, records: messages(m, owned)})
	case *wire.PublishOK:
		return p.deliver(m.RequestID, true, answer{offset: m.Offset, hasOffset: m.HasOffset})
	case *wire.PublishError:
		return p.deliver(m.RequestID, true, answer{failure: &m.Failure})
	case *wire.PublishRefused:
		return p.deliver(m.RequestID, true, answer{refused: m})
	case *wire.Error:
		if p.nobodyWaits() {
			return &Error{Op: "connection", Code: m.Failure.Code, Retry: m.Failure.Retry, Message: m.Failure.Message}
		}
		return p.deliver(0, false, answer{failure: &m.Failure})
	}
	return p.deliver(0, false, answer{message: m})
}

func (p *pipe) nobodyWaits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.head == len(p.pending)
}

// deliver hands an answer to its call: the one with the id, or the oldest.
func (p *pipe) deliver(id uint64, named bool, a answer) error {
	p.mu.Lock()
	at := p.head
	for named && at < len(p.pending) && (p.pending[at].id != id || p.pending[at].call == nil) {
		at++
	}
	if at == len(p.pending) {
		p.mu.Unlock()
		return fmt.Errorf("an answer to request %d, which nobody made", id)
	}
	c := p.pending[at].call
	if p.pending[at].awaited && len(p.pending) == 1 {
		p.lone++
	} else {
		p.lone = 0
	}
	p.pending[at].call = nil
	for p.head < len(p.pending) && p.pending[p.head].call == nil {
		p.head++
	}
	if p.head == len(p.pending) {
		p.pending, p.head = p.pending[:0], 0
	} else if p.head >= 1024 && p.head*2 > len(p.pending) {
		n := copy(p.pending, p.pending[p.head:])
		clear(p.pending[n:])
		p.pending, p.head = p.pending[:n], 0
	}
	p.mu.Unlock()
	p.came = a
	c.answered(&p.came)
	p.came = answer{}
	return nil
}

// watch ends a connection whose oldest request is overdue.
func (p *pipe) watch() {
	p.mu.Lock()
	overdue := p.head < len(p.pending) && time.Since(p.pending[p.head].asked) > p.answerTimeout
	ended := p.err != nil
	if !ended && !overdue {
		p.watchdog.Reset(p.answerTimeout / 2)
	}
	p.mu.Unlock()
	if overdue {
		p.fail(fmt.Errorf("no answer for %s", p.answerTimeout))
	}
}

// fail ends the pipe and tells everyone who waits. It may be called often.
func (p *pipe) fail(err error) {
	p.mu.Lock()
	if p.err != nil {
		p.mu.Unlock()
		return
	}
	p.err = err
	pending := p.pending[p.head:]
	attached := p.attached
	p.pending, p.head, p.ready, p.attached = nil, 0, nil, nil
	if p.reading.by == byNobody {
		p.recall()
	}
	p.mu.Unlock()
	p.watchdog.Stop()
	close(p.done)
	p.close()
	for _, w := range pending {
		if w.call != nil {
			w.call.lost(err)
		}
	}
	for s := range attached {
		s.ended(p, err)
	}
	if p.onEnd != nil {
		p.onEnd(err)
	}
}

// ended returns why the pipe ended, or nil.
func (p *pipe) ended() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// shutdown ends the pipe and waits for its goroutines.
func (p *pipe) shutdown() {
	p.fail(ErrClosed)
	p.wg.Wait()
}
