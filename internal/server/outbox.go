package server

import (
	"errors"
	"io"
	"sync"
	"time"
)

// errOutboxClosed is what a session meets that is ending.
var errOutboxClosed = errors.New("session ended")

// outbox gathers the frames a session sends and writes them in as few writes as it
// can. Whoever has a frame appends it under the lock; one goroutine at a time writes,
// with the lock released, and what is appended meanwhile leaves in its next write.
//
// The writer is the session's reader when it is at work anyway: it announces with hold
// that it will write at the end of its burst, so that a publish and its answer need no
// second goroutine. Otherwise a goroutine is started, and ends when nothing is left.
//
// The bytes that wait are bounded by whoever appends: the reader waits for room before
// it takes on more work, completions of admitted publishes are bounded by the window,
// and a subscription waits in writeThrough. Answers that wait for their turn, behind one
// that is not there yet, count as the buffer's do.
type outbox struct {
	w io.Writer
	// limit is how many bytes may wait before the reader waits for room.
	limit int
	// spawn starts the writer; it runs write on a goroutine the connection owns.
	spawn func(func())
	// fail is told that a write failed, without the lock. It must not block.
	fail func(error)
	// stalled is told, without the lock, when a write of the reader's takes longer than
	// stallTime: the client does not read, and so is not read.
	stalled func()
	stall   *time.Timer

	mu struct {
		sync.Mutex
		buf    []byte
		spare  []byte
		parked int // bytes of answers that wait for their turn
		// fates are told what becomes of what is in buf.
		fates   []fate
		writing bool
		held    bool
		err     error
	}
	// changed is signalled when a write ended, and when the outbox fails.
	changed *sync.Cond
}

// fate hears, once, what became of an answer that must not get lost. written must not block;
// lost is called on a goroutine of its own. Neither has the lock.
type fate interface {
	written()
	lost()
}

// fatesKept is the longest list of them that an outbox keeps.
const fatesKept = 16

// outboxKept is the largest buffer an idle outbox keeps: forty authenticated streams
// that answer little must cost little.
const outboxKept = 4 << 10

// stallTime is how long a write may take before it counts as a stall.
const stallTime = 500 * time.Millisecond

func (o *outbox) init(w io.Writer, limit int, spawn func(func()), fail func(error), stalled func()) {
	o.w, o.limit, o.spawn, o.fail, o.stalled = w, limit, spawn, fail, stalled
	o.changed = sync.NewCond(&o.mu)
}

// append adds what encode appends to the buffer, and sees that it is written.
func (o *outbox) append(encode func(dst []byte) []byte) {
	o.mu.Lock()
	if o.mu.err == nil {
		o.mu.buf = encode(o.mu.buf)
	}
	o.kickUnlock()
}

// kickUnlock needs the lock, and releases it: it starts a writer unless one is active
// or the reader is about to write.
func (o *outbox) kickUnlock() {
	start := len(o.mu.buf) > 0 && !o.mu.writing && !o.mu.held && o.mu.err == nil
	if start {
		o.mu.writing = true
	}
	o.mu.Unlock()
	if start {
		o.spawn(o.write)
	}
}

// hold says that the caller will call flush soon.
func (o *outbox) hold() {
	o.mu.Lock()
	o.mu.held = true
	if o.mu.buf == nil && o.mu.err == nil {
		o.mu.buf = outboxBuffers.Get().([]byte)
	}
	o.mu.Unlock()
}

// outboxBuffers are those that outboxes gave up after a burst, for the next burst of any:
// one that is busy need not grow its buffer anew each time, and one that is idle has none.
var outboxBuffers = sync.Pool{New: func() any { return []byte(nil) }}

// giveUp hands a buffer with nothing in it to the others, or to the collector.
func (o *outbox) giveUp(buf []byte) {
	if cap(buf) > 0 && cap(buf) <= o.limit {
		outboxBuffers.Put(buf[:0]) //nolint:staticcheck // a slice header is small beside what it saves
	}
}

// flush ends a hold and writes what has gathered, once: what is appended while it
// writes is left to a writer of its own, so that the reader goes back to reading.
func (o *outbox) flush() {
	o.mu.Lock()
	o.mu.held = false
	if len(o.mu.buf) == 0 || o.mu.writing || o.mu.err != nil {
		if len(o.mu.buf) == 0 && cap(o.mu.buf) > outboxKept {
			o.giveUp(o.mu.buf)
			o.mu.buf = nil
		}
		o.mu.Unlock()
		return
	}
	o.mu.writing = true
	if o.stall == nil {
		o.stall = time.AfterFunc(stallTime, o.stalled)
	} else {
		o.stall.Reset(stallTime)
	}
	o.writeOnce(nil)
	o.stall.Stop()
	o.mu.writing = false
	o.changed.Broadcast()
	o.kickUnlock()
}

// write is the writer's goroutine.
func (o *outbox) write() {
	o.mu.Lock()
	for len(o.mu.buf) > 0 && o.mu.err == nil {
		o.writeOnce(nil)
		o.changed.Broadcast()
	}
	o.mu.writing = false
	o.changed.Broadcast()
	o.mu.Unlock()
}

// writeOnce needs the lock and the writing mark; it releases the lock while it writes
// the buffer, then tail.
func (o *outbox) writeOnce(tail []byte) {
	buf, fates := o.mu.buf, o.mu.fates
	o.mu.buf, o.mu.spare, o.mu.fates = o.mu.spare[:0], nil, nil
	o.mu.Unlock()
	var err error
	if len(buf) > 0 {
		_, err = o.w.Write(buf)
	}
	if err == nil && len(tail) > 0 {
		_, err = o.w.Write(tail)
	}
	if err != nil {
		o.fail(err)
	} else {
		for _, f := range fates {
			f.written()
		}
	}
	o.mu.Lock()
	if cap(buf) <= outboxKept || cap(buf) <= o.limit && len(o.mu.buf) > 0 {
		o.mu.spare = buf[:0]
	} else {
		o.giveUp(buf)
	}
	if err != nil {
		o.failLocked(err)
		o.loseLocked(fates)
	} else if o.mu.fates == nil && cap(fates) <= fatesKept {
		clear(fates)
		o.mu.fates = fates[:0]
	}
	if len(o.mu.buf) == 0 && cap(o.mu.buf) > outboxKept {
		o.giveUp(o.mu.buf)
		o.mu.buf = nil
	}
}

func (o *outbox) failLocked(err error) {
	if o.mu.err != nil {
		return
	}
	o.mu.err = err
	o.mu.buf, o.mu.spare = nil, nil
	o.loseLocked(o.mu.fates)
	o.mu.fates = nil
	o.changed.Broadcast()
}

// loseLocked tells those whose answers were not written, without the lock.
func (o *outbox) loseLocked(fates []fate) {
	if len(fates) == 0 {
		return
	}
	o.spawn(func() {
		for _, f := range fates {
			f.lost()
		}
	})
}

// close makes every further append vanish and wakes who waits.
func (o *outbox) close(err error) {
	o.mu.Lock()
	o.failLocked(err)
	o.mu.Unlock()
}

// full reports whether more than the limit waits to be written or for its turn.
func (o *outbox) full() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.fullLocked()
}

func (o *outbox) fullLocked() bool { return len(o.mu.buf)+o.mu.parked > o.limit }

// drained waits until everything appended has been written.
func (o *outbox) drained() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for (len(o.mu.buf) > 0 || o.mu.writing) && o.mu.err == nil {
		o.changed.Wait()
	}
	return o.mu.err
}

// writeThrough writes what has gathered and then frames, without copying frames, on
// the caller's goroutine.
func (o *outbox) writeThrough(frames []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.mu.writing && o.mu.err == nil {
		o.changed.Wait()
	}
	if o.mu.err != nil {
		return o.mu.err
	}
	o.mu.writing = true
	o.writeOnce(frames)
	o.mu.writing = false
	o.changed.Broadcast()
	// What came in meanwhile and is not the reader's to write needs a writer.
	if len(o.mu.buf) > 0 && !o.mu.held && o.mu.err == nil {
		o.mu.writing = true
		o.spawn(o.write)
	}
	return o.mu.err
}
