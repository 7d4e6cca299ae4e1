package sim

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/felixlog/felix/internal/replica"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

var (
	errTrimmed = errors.New("sim: trimmed")
	errBeyond  = errors.New("sim: beyond the tail")
	errNoSpace = errors.New("sim: no space")
	errUnknown = errors.New("sim: outcome unknown")
	errIO      = fmt.Errorf("sim: %w", syscall.EIO)
)

// memData is what a log in memory leaves behind on its disk.
type memData struct {
	base    offset
	recs    []memRecord
	durable int // records flushed
	lost    int // records copied to lost/
	torn    bool
}

type memRecord struct {
	bytes []byte
	gen   generation // in force at the record
	start bool
}

// memLog is a log in memory over memData.
type memLog struct {
	data   *memData
	node   *node
	fsync  storage.FsyncMode
	hooks  hooks
	queue  []*batch
	state  int // 0 idle, 1 written and not flushed or answered
	failed bool
}

func (l *memLog) head() offset { return l.data.base }
func (l *memLog) next() offset { return l.data.base + offset(len(l.data.recs)) }

func (l *memLog) submit(b *batch) { l.queue = append(l.queue, b) }

func (l *memLog) pending() bool { return !l.failed && (l.state == 1 || len(l.queue) > 0) }

func (l *memLog) step() bool {
	switch {
	case l.failed:
		return false
	case l.state == 1:
		l.state = 0
		if l.fsync == storage.OnCommit {
			if l.node.disk.failFlush > 0 {
				l.node.disk.failFlush--
				l.failed = true
				l.data.torn = true
				l.hooks.failed("flush: input/output error")
				return true
			}
			l.data.durable = len(l.data.recs)
		}
		l.hooks.stable(l.next())
		return true
	case len(l.queue) > 0:
		l.write()
		return true
	}
	return false
}

func (l *memLog) write() {
	queue := l.queue
	l.queue = nil
	if l.node.disk.failWrite > 0 {
		l.node.disk.failWrite--
		l.writeFailed(queue)
		return
	}
	// An encoded batch names its place, so it never follows an own one: the group is
	// what was handed over, then the own appends.
	first := l.next()
	handed := first
	var encoded []byte
	type placed struct {
		b     *batch
		first offset
	}
	var done []placed
	for _, b := range queue {
		if l.node.disk.full && b.kind == storage.KindPlain {
			if b.encoded != nil {
				l.failed = true
				l.hooks.failed("write: no space left on device")
				return
			}
			if b.done != nil {
				b.done(0, errNoSpace)
			}
			continue
		}
		at := l.next()
		if b.encoded != nil {
			p, err := l.place(at)
			if err != nil || b.prev.Next != at || b.prev != p && at != l.data.base {
				l.failed = true
				l.hooks.failed("append of encoded records at another place")
				return
			}
			l.appendEncoded(b.encoded)
			handed = l.next()
			continue
		}
		if b.admit != nil && !b.admit(at) {
			continue
		}
		var enc []byte
		for i, p := range b.payloads {
			enc = segment.AppendRecord(enc, &segment.RecordSpec{Offset: at + offset(i), Timestamp: l.node.wall(), Kind: b.kind, Payload: p})
		}
		l.appendEncoded(enc)
		encoded = append(encoded, enc...)
		done = append(done, placed{b, at})
	}
	if l.next() == first {
		return
	}
	l.state = 1
	if handed > first {
		l.hooks.written(first, handed, nil)
	}
	if l.next() > handed {
		l.hooks.written(handed, l.next(), encoded)
	}
	for _, d := range done {
		if d.b.done != nil {
			d.b.done(d.first, nil)
		}
	}
}

// writeFailed gives up a group whose write failed: none of it is in the log.
func (l *memLog) writeFailed(queue []*batch) {
	for _, b := range queue {
		switch {
		case b.encoded != nil || b.kind == storage.KindGenerationStart:
			l.failed = true
			l.hooks.failed("write: input/output error")
			return
		case b.done != nil:
			b.done(0, errIO)
		}
	}
}

func (l *memLog) appendEncoded(enc []byte) {
	for len(enc) > 0 {
		r, n, err := segment.DecodeRecord(enc, l.next())
		if err != nil {
			l.failed = true
			l.hooks.failed("append of encoded records: " + err.Error())
			return
		}
		m := memRecord{bytes: append([]byte(nil), enc[:n]...), gen: l.lastGen()}
		if r.Kind == storage.KindGenerationStart {
			m.gen, m.start = r.Generation(), true
		}
		l.data.recs = append(l.data.recs, m)
		enc = enc[n:]
	}
}

func (l *memLog) lastGen() generation {
	if n := len(l.data.recs); n > 0 {
		return l.data.recs[n-1].gen
	}
	return 0
}

func (l *memLog) sweep() {
	if l.fsync == storage.Periodic && !l.failed {
		if l.node.disk.failFlush > 0 {
			l.node.disk.failFlush--
			l.failed = true
			l.data.torn = true
			l.hooks.failed("flush: input/output error")
			return
		}
		l.data.durable = len(l.data.recs)
	}
}

func (l *memLog) place(at offset) (replica.Place, error) {
	d := l.data
	switch {
	case at < d.base:
		return replica.Place{}, errTrimmed
	case at > l.next():
		return replica.Place{}, errBeyond
	case at == d.base:
		return replica.Place{Next: at}, nil
	}
	m := &d.recs[at-d.base-1]
	r, _, err := segment.DecodeRecord(m.bytes, at-1)
	return replica.Place{Next: at, Generation: m.gen, Checksum: r.Checksum}, err
}

func (l *memLog) encoded(from offset, max int) ([]byte, offset, error) {
	if from < l.data.base {
		return nil, 0, errTrimmed
	}
	var out []byte
	for from < l.next() {
		b := l.data.recs[from-l.data.base].bytes
		if len(out) > 0 && len(out)+len(b) > max {
			break
		}
		out = append(out, b...)
		from++
	}
	return out, from, nil
}

func (l *memLog) records(from, to offset, visit func(*storage.Record)) error {
	if from < l.data.base {
		return errTrimmed
	}
	for at := from; at < min(to, l.next()); at++ {
		r, _, err := segment.DecodeRecord(l.data.recs[at-l.data.base].bytes, at)
		if err != nil {
			return err
		}
		visit(&r)
	}
	return nil
}

func (l *memLog) cut(to offset, keepCopy bool) (replica.Place, error) {
	d := l.data
	if to < d.base {
		return replica.Place{}, errTrimmed
	}
	if l.dirFails() {
		return replica.Place{}, errIO
	}
	if to < l.next() {
		if keepCopy {
			d.lost += int(l.next() - to)
		}
		d.recs = d.recs[:to-d.base]
		d.durable = len(d.recs)
	}
	return l.place(to)
}

func (l *memLog) rebase(base offset) error {
	if l.dirFails() {
		return errIO
	}
	l.data.recs, l.data.base, l.data.durable = nil, base, 0
	return nil
}

// dirFails says that the operation on the directory fails that a cut, or beginning anew,
// takes.
func (l *memLog) dirFails() bool {
	if l.node.disk.failDir == 0 {
		return false
	}
	l.node.disk.failDir--
	l.failed = true
	return true
}

func (l *memLog) flush() error {
	if l.failed {
		return errors.New("sim: log failed")
	}
	if l.node.disk.failFlush > 0 {
		l.node.disk.failFlush--
		l.failed = true
		l.data.torn = true
		return errors.New("sim: flush: input/output error")
	}
	l.data.durable = len(l.data.recs)
	return nil
}

func (l *memLog) trim(to offset) {
	d := l.data
	if to <= d.base {
		return
	}
	n := min(int(to-d.base), len(d.recs))
	d.recs = append([]memRecord(nil), d.recs[n:]...)
	d.base += offset(n)
	d.durable = max(0, d.durable-n)
}

func (l *memLog) generations() []storage.GenerationStart {
	var out []storage.GenerationStart
	for i := range l.data.recs {
		if l.data.recs[i].start {
			out = append(out, storage.GenerationStart{Generation: l.data.recs[i].gen, Start: l.data.base + offset(i)})
		}
	}
	return out
}

func (l *memLog) lostRecords() int { return l.data.lost }
func (l *memLog) close()           { l.failed = true }

// powerCut drops a random part of what was not flushed.
func (d *memData) powerCut(keep func(n int) int) {
	if unsynced := len(d.recs) - d.durable; unsynced > 0 {
		d.recs = d.recs[:d.durable+keep(unsynced+1)]
	}
	d.durable = len(d.recs)
	d.torn = false
}
