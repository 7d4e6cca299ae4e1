package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/felixlog/felix/storage/internal/rules"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// pen is what only the holder of the pen token touches.
type pen struct {
	active    *segmentFile
	pos       int64  // end of what is written to active
	next      Offset // to be given
	last      Micros // greatest time given
	sum       uint32 // checksum of the record before next
	indexNext int64  // a record that starts here or later gets an index entry
	zeroEnd   int64  // zeros are written up to here
	untold    int64  // bytes written that the watch over the disk's room has not been told of
	spec      segment.RecordSpec
	gens      []GenerationStart // of the group under way
}

// gatherYields is how often who has the pen lets others run before it writes, at most.
const gatherYields = 4

// roomStep is how much is written before the watch over the disk's room is told.
const roomStep = 4 << 10

// tooFarAhead is how far the newest record may be ahead of the wall clock before the
// log's clock follows the wall again.
const tooFarAhead = Micros(10 * time.Minute / time.Microsecond)

// writeGroup takes the pen, writes one group and passes it on. l.mu is held before and
// after, not meanwhile.
func (l *Log) writeGroup() {
	m := &l.mu
	m.pen = true
	l.gather()
	g := l.getGroup()
	g.Batches = m.queue.take(g.Batches)
	m.lastBatch = len(g.Batches)
	if m.lastBatch == 0 {
		l.putGroup(g)
		l.putDownPen()
		return
	}
	l.write(g)
}

// write writes g, publishes it and puts the pen down. l.mu is held before and after, not
// meanwhile.
func (l *Log) write(g *Group) {
	m := &l.mu
	m.Unlock()
	rest, tend := l.encodeAndWrite(g)
	if tend {
		l.kick()
	}
	m.Lock()
	for _, b := range g.Batches {
		g.bytes += b.charge
	}
	l.publish(g)
	m.queue.putBack(rest)
	l.putDownPen()
}

// gather lets those whose batches were completed together come back together, so that
// one write takes them all: once, and before a flush, which costs late ones more, again
// while more come and fewer are there than the last time. l.mu is held before and after,
// not meanwhile.
func (l *Log) gather() {
	m := &l.mu
	if m.lastBatch <= 1 || l.opt.Manual {
		return
	}
	yields := 1
	if l.opt.Fsync == OnCommit {
		yields = gatherYields
	}
	for range yields {
		n := m.queue.n
		m.Unlock()
		runtime.Gosched()
		m.Lock()
		if m.queue.n == n || m.queue.n >= m.lastBatch {
			return
		}
	}
}

// putDownPen gives the pen back. If the log was poisoned meanwhile, what is queued gets
// its outcome now, behind what the pen wrote. l.mu is held.
func (l *Log) putDownPen() {
	l.mu.pen = false
	if l.mu.state == StatePoisoned {
		l.failQueue(l.mu.poison)
	}
	l.freed()
}

// refusal is why nothing is taken. l.mu is held.
func (m *logMu) refusal() error {
	if m.poison != nil {
		return m.poison
	}
	return ErrClosed
}

// publish hands a written or failed group on. l.mu is held.
func (l *Log) publish(g *Group) {
	m, p := &l.mu, &l.pen
	m.active, m.activePos, m.activeSum, m.activeNext = p.active, p.pos, p.sum, p.next
	if m.state == StatePoisoned && g.Err == nil {
		g.fail(fmt.Errorf("%w: %w", ErrUnknownOutcome, m.poison))
	}
	if l.opt.Fsync == OnCommit && (m.unstable.head != nil || uint64(g.Next) > l.durable.Load()) && m.state == StateServing {
		m.unstable.push(g)
		return
	}
	l.settle(g)
}

// settle moves a group whose outcome is known to those who complete it. l.mu is held.
func (l *Log) settle(g *Group) {
	if g.Err == nil && uint64(g.Next) > l.stable.Load() {
		l.stable.Store(uint64(g.Next))
	}
	l.mu.apply.push(g)
}

// fail gives every batch of g the same error.
func (g *Group) fail(err error) {
	g.Err = err
	for _, b := range g.Batches {
		b.Err = err
	}
}

// encodeAndWrite gives g's batches their offsets, encodes and writes them. It returns
// the batches that have to wait for the next segment, and whether background work is
// due. The pen is held.
func (l *Log) encodeAndWrite(g *Group) (rest []*Batch, tend bool) {
	p := &l.pen
	g.First, g.Next = p.next, p.next
	buf := g.buf[:0]
	sum := p.sum
	now, descends := l.stamp()
	p.gens = p.gens[:0]
	count := 0
	for i := 0; i < len(g.Batches); i++ {
		b := g.Batches[i]
		b.First = g.Next
		if b.Err = l.continues(b, g.Next); b.Err != nil {
			continue
		}
		roll := b.size > 0 && l.mustRoll(b, len(buf), descends)
		if roll && len(buf) > 0 {
			rest = append(rest, g.Batches[i:]...)
			g.Batches = g.Batches[:i]
			break
		}
		if b.Err = l.admit(b, g.Next); b.Err != nil || b.size == 0 {
			continue
		}
		if roll {
			if err := l.roll(segment.Version(b.version), g.Next); err != nil {
				l.failWrite(g, 0, err)
				return nil, false
			}
			tend, descends = true, false
		}
		b.admitted = true
		if len(b.Encoded) > 0 {
			buf, sum = l.encodeVerbatim(buf, b)
			g.Timestamp = max(g.Timestamp, b.enc.lastTime)
			now = max(now, g.Timestamp)
			g.Next = b.enc.next
		} else {
			b.Timestamp = now
			g.Timestamp = now
			buf, sum = l.encode(buf, b, now)
			g.Next += Offset(len(b.Payloads))
		}
		count++
	}
	g.buf = buf
	if len(buf) == 0 {
		return rest, tend
	}
	h := &p.active.handle
	f, err := h.acquire()
	if err != nil {
		// The file was not touched: there is nothing to cut, and the log is as it was.
		l.failWrite(g, 0, fmt.Errorf("storage: open segment %d: %w", p.active.id, err))
		return rest, tend
	}
	// The file stays open until a write that failed is cut: for that no descriptor must be
	// lacking.
	defer h.release()
	if err := l.writeAt(f, buf); err != nil {
		l.failWrite(g, len(buf), err)
		return rest, tend
	}
	g.Encoded = buf
	l.advance(g, sum)
	if h := l.opt.Hooks.Written; h != nil {
		h(g)
	}
	if l.opt.Events.OnAppend != nil {
		l.opt.Events.OnAppend(AppendEvent{Shard: l.shard, Records: int(g.Next - g.First), Batches: count, Bytes: len(buf)})
	}
	l.watchRoom(len(buf))
	return rest, tend || p.pos >= l.tendAt.Load()
}

// watchRoom tells who watches the disk's room of what was written, a page at a time: the
// count is shared by all logs of the disk.
func (l *Log) watchRoom(n int) {
	p := &l.pen
	if p.untold += int64(n); p.untold >= roomStep {
		l.disk.space.wrote(p.untold)
		p.untold = 0
	}
}

// continues says whether b may come at next by what it says of its place, and leaves of
// shipped records those that are not there. It may be asked again.
func (l *Log) continues(b *Batch, next Offset) error {
	if b.HasExpected && b.Expected != next {
		return &OffsetMismatchError{Expected: b.Expected, Tail: next}
	}
	if len(b.Encoded) > 0 {
		return l.admitEncoded(b, next)
	}
	return nil
}

// admit asks the owner about b, about to get next. Of shipped records that are all there
// nothing is asked.
func (l *Log) admit(b *Batch, next Offset) error {
	if h := l.opt.Hooks.Admit; h != nil && (b.size > 0 || b.Barrier) {
		return h(b, next)
	}
	return nil
}

// stamp is the time of the records about to be written. Times never descend, unless the
// log's last time is so far ahead of the wall that it must have been wrong; then the next
// record opens a segment, so that times descend between segments only.
func (l *Log) stamp() (now Micros, descends bool) {
	p := &l.pen
	now = l.opt.Clock()
	if now >= p.last {
		return now, false
	}
	if p.last-now <= tooFarAhead {
		return p.last, false
	}
	if f := l.opt.Events.OnClockAhead; f != nil {
		f(l.shard, p.last, now)
	}
	return now, true
}

// mustRoll says whether b needs a new segment behind buffered bytes of this group.
func (l *Log) mustRoll(b *Batch, buffered int, descends bool) bool {
	p := &l.pen
	end := p.pos + int64(buffered)
	if end <= segment.HeaderSize {
		return segment.Version(b.version) > p.active.version()
	}
	if len(b.Encoded) > 0 {
		descends = b.enc.firstTime < p.last
	}
	return end+b.size > l.opt.SegmentBytes || segment.Version(b.version) > p.active.version() || descends
}

// encode appends b's records to buf and tells the index of them.
func (l *Log) encode(buf []byte, b *Batch, now Micros) ([]byte, uint32) {
	p := &l.pen
	s := &p.spec
	s.Offset = b.First
	s.Timestamp = now
	s.Publisher = b.Publisher
	s.Kind = b.Kind
	if b.HasProducer {
		s.Kind = KindProducerFirst
		s.Producer = b.Producer
	}
	last := len(buf)
	for i, payload := range b.Payloads {
		if i == 1 && b.HasProducer {
			s.Kind = KindProducerNext
		}
		s.Payload = payload
		last = len(buf)
		l.indexRecord(s.Offset, p.pos+int64(last))
		if s.Kind == KindGenerationStart {
			p.gens = append(p.gens, GenerationStart{Generation: Generation(binary.BigEndian.Uint64(payload)), Start: s.Offset})
		}
		buf = segment.AppendRecord(buf, s)
		s.Offset++
	}
	s.Payload, s.Publisher = nil, nil
	return buf, binary.BigEndian.Uint32(buf[last+24:])
}

// indexRecord tells the active segment's index of a record. Apart from addToIndex it is
// inlined: few records are due.
func (l *Log) indexRecord(off Offset, pos int64) {
	if pos >= l.pen.indexNext {
		l.addToIndex(off, pos)
	}
}

func (l *Log) addToIndex(off Offset, pos int64) {
	p := &l.pen
	x := &p.active.idx
	x.Lock()
	x.index.Add(off, pos)
	x.Unlock()
	p.indexNext = pos + l.opt.IndexSpacing
}

// writeAt writes buf to f, the active segment's file, at the pen's position.
func (l *Log) writeAt(f vfs.File, buf []byte) error {
	p := &l.pen
	if l.opt.Fsync != None && l.durable.Load() == l.written.Load() {
		l.pin(p.active)
	}
	n, err := f.WriteAt(buf, p.pos)
	if err == nil && n < len(buf) {
		err = io.ErrShortWrite
	}
	if err == nil && l.opt.ZeroAhead && l.opt.Fsync == OnCommit {
		l.zeroAhead(f, p.pos+int64(len(buf)), len(buf))
	}
	return err
}

// advance moves the log's end behind what was written. Readers load the offset first and
// the size after it.
func (l *Log) advance(g *Group, sum uint32) {
	p := &l.pen
	s := p.active
	if p.pos <= segment.HeaderSize {
		s.first.Store(uint64(l.firstTime(g)))
	}
	p.pos += int64(len(g.buf))
	before := p.next
	p.next = g.Next
	p.sum = sum
	p.last = g.Timestamp
	if g.Timestamp > Micros(s.last.Load()) {
		s.last.Store(uint64(g.Timestamp))
	}
	s.size.Store(p.pos)
	if len(p.gens) > 0 {
		l.addGenerations(p.gens)
	}
	l.written.Store(uint64(g.Next))
	// A flush that ends meanwhile has moved durable and then looks for what is left: one of
	// the two sees the other.
	if Offset(l.durable.Load()) == before {
		l.dirtySince.Store(time.Now().UnixNano())
		if l.opt.Fsync == Periodic {
			l.schedule(taskFlush, l.opt.FsyncInterval)
		}
	}
}

// firstTime is the time of the first record of g's buffer.
func (l *Log) firstTime(g *Group) Micros {
	return Micros(binary.BigEndian.Uint64(g.buf[12:]))
}

// failWrite takes back what a failed write of n bytes may have left, and gives g's
// batches their outcome: not written once the cut is on the device, else unknown and the
// log is poisoned.
func (l *Log) failWrite(g *Group, n int, cause error) {
	p := &l.pen
	err := l.cutTail(n)
	if err != nil {
		l.maybe.Store(uint64(g.Next))
		l.poison("cut", errors.Join(err, cause))
		g.fail(fmt.Errorf("%w: %w", ErrUnknownOutcome, errors.Join(cause, err)))
		return
	}
	g.Next, g.First = p.next, p.next
	notWritten := fmt.Errorf("%w: %w", ErrNotWritten, cause)
	if vfs.OutOfSpace(cause) {
		notWritten = fmt.Errorf("%w: %w", ErrNotWritten, &DiskFullError{Shard: l.shard, Dir: l.dir, Cause: cause})
		l.disk.space.exhausted()
	}
	if h := l.opt.Hooks.Reverted; h != nil {
		h(p.next)
	}
	g.fail(notWritten)
	if f := l.opt.Events.OnCut; f != nil && n > 0 {
		f(l.shard, CutEvent{Segment: p.active.id, From: p.pos, To: p.pos + int64(n), Next: p.next, Reason: "write failed: " + cause.Error()})
	}
}

// cutTail cuts the active segment back to the pen's position and flushes the cut. No
// flush may be under way meanwhile: its success would say nothing about the cut.
func (l *Log) cutTail(n int) error {
	p := &l.pen
	x := &p.active.idx
	x.Lock()
	x.index.Truncate(p.pos)
	x.Unlock()
	p.indexNext = l.indexNext(p.active)
	if n == 0 {
		return nil
	}
	l.mu.Lock()
	l.waitFree(func() bool { return !l.mu.flushing })
	l.mu.flushing = true
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.mu.flushing = false
		l.freed()
		l.mu.Unlock()
	}()
	f, err := p.active.handle.acquire()
	if err != nil {
		return err
	}
	defer p.active.handle.release()
	if err := f.Truncate(p.pos); err != nil {
		return err
	}
	p.zeroEnd = p.pos
	l.allocated.Store(p.pos)
	if !rules.FlushCutBeforeNotWritten.Holds() {
		return nil
	}
	return l.disk.flush(f)
}

// indexNext is where the next index entry of s is due.
func (l *Log) indexNext(s *segmentFile) int64 {
	s.idx.Lock()
	defer s.idx.Unlock()
	if e, ok := s.idx.index.Last(); ok {
		return e.Position + l.opt.IndexSpacing
	}
	return 0
}
