package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/felixlog/felix/storage/segment"
)

// RetentionPolicy bounds a log. Whole sealed segments go, the oldest first; the active
// one never does.
type RetentionPolicy struct {
	// Bytes bounds the size of the segments; 0: no bound.
	Bytes int64
	// Age bounds the time since a segment's newest record; 0: no bound. An active
	// segment that is older is rolled, so that it can go.
	Age time.Duration
	// Interval is how often the bounds are looked at: default a minute.
	Interval time.Duration
	// Limit, if set, gives an offset at or above which nothing may go, for example the
	// committed mark. Without it that is Stable.
	Limit func() Offset
}

// RetentionResult says what went.
type RetentionResult struct {
	Segments int
	Bytes    int64
	Head     Offset // the oldest offset now
}

// holds are the places above which nothing is reclaimed.
type holds struct {
	mu   sync.Mutex
	next int
	from map[int]Offset
}

// Hold keeps what is at or above from until release is called. It does not bring back
// what is gone already.
func (l *Log) Hold(from Offset) (release func()) {
	h := &l.holds
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.from == nil {
		h.from = make(map[int]Offset)
	}
	id := h.next
	h.next++
	h.from[id] = from
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.from, id)
	}
}

func (h *holds) lowest(limit Offset) Offset {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, from := range h.from {
		limit = min(limit, from)
	}
	return limit
}

// SetRetention replaces the policy. It is first looked at after its interval.
func (l *Log) SetRetention(p RetentionPolicy) {
	setDefault(&p.Interval, DefaultRetentionInterval)
	l.retention.Store(&p)
	l.agenda.clear(taskRetain)
	if p.Bytes > 0 || p.Age > 0 {
		l.schedule(taskRetain, p.Interval)
	}
}

// EnforceRetention applies the policy now. Nothing at or above limit goes; 0 is the
// policy's own limit.
func (l *Log) EnforceRetention(ctx context.Context, limit Offset) (RetentionResult, error) {
	if err := l.lockTending(); err != nil {
		return RetentionResult{}, err
	}
	defer l.unlockTending()
	return l.enforce(ctx, limit)
}

// TrimHead removes the sealed segments that end at or below to.
func (l *Log) TrimHead(ctx context.Context, to Offset) (RetentionResult, error) {
	if err := l.lockTending(); err != nil {
		return RetentionResult{}, err
	}
	defer l.unlockTending()
	to = l.holds.lowest(min(to, l.Stable()))
	n := 0
	sl := l.list.Load()
	for n < len(sl.all)-1 && sl.all[n].sealed.Load() && sl.all[n].next <= to {
		n++
	}
	return l.dropHead(n)
}

// lockTending takes the tending token.
func (l *Log) lockTending() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waitFree(func() bool {
		return l.mu.state == StateClosed || !l.mu.tending && !l.mu.exclusive && l.mu.exclusives == 0
	})
	if l.mu.state == StateClosed {
		return ErrClosed
	}
	if l.mu.spoilt {
		return l.mu.refusal()
	}
	l.mu.tending = true
	return nil
}

func (l *Log) unlockTending() {
	l.mu.Lock()
	l.mu.tending = false
	again := l.mu.tendAgain
	l.mu.tendAgain = false
	l.freed()
	l.mu.Unlock()
	if again {
		l.kick()
	}
}

// retainNow is the timer's pass. The tending token is held.
func (l *Log) retainNow() {
	p := l.retention.Load()
	if p.Bytes == 0 && p.Age == 0 {
		return
	}
	if _, err := l.enforce(context.Background(), 0); err != nil {
		l.backgroundError("retention", err)
	}
	l.schedule(taskRetain, p.Interval)
}

// enforce applies the policy. The tending token is held.
func (l *Log) enforce(ctx context.Context, limit Offset) (RetentionResult, error) {
	p := l.retention.Load()
	if limit == 0 {
		limit = l.Stable()
		if p.Limit != nil {
			limit = min(limit, p.Limit())
		}
	}
	limit = l.holds.lowest(min(limit, l.Stable()))
	if p.Age > 0 {
		if err := l.rollQuiet(ctx, p.Age); err != nil {
			return RetentionResult{Head: l.Head()}, err
		}
	}
	sl := l.list.Load()
	var total int64
	for _, s := range sl.all {
		total += s.size.Load()
	}
	n := 0
	for n < len(sl.all)-1 && sl.all[n].sealed.Load() && sl.all[n].next <= limit {
		over := p.Bytes > 0 && total > p.Bytes
		if !over && !(p.Age > 0 && l.older(sl, n, p.Age)) {
			break
		}
		total -= sl.all[n].size.Load()
		n++
	}
	return l.dropHead(n)
}

// older says whether everything in segment i is older than age. A time that cannot be
// right, because a later segment began before it or because it is yet to come, gives way
// to what the wall clock said: when the next segment began, or when this one was sealed
// or found.
func (l *Log) older(sl *segmentList, i int, age time.Duration) bool {
	now := l.opt.Clock()
	last := Micros(sl.all[i].last.Load())
	for _, s := range sl.all[i+1:] {
		if first := Micros(s.first.Load()); first != 0 {
			last = min(last, first)
		}
	}
	if last > now {
		last = min(last, Micros(sl.all[i].seenAt.Load()))
	}
	return last <= now && now-last > Micros(age/time.Microsecond)
}

// rollQuiet rolls and seals an active segment whose newest record is older than age. The
// tending token is held.
func (l *Log) rollQuiet(ctx context.Context, age time.Duration) error {
	s := l.list.Load().active()
	last, now := Micros(s.last.Load()), l.opt.Clock()
	if last == 0 || s.size.Load() <= segment.HeaderSize {
		return nil
	}
	if last > now {
		last = min(last, Micros(s.seenAt.Load()))
	}
	if last > now || now-last <= Micros(age/time.Microsecond) {
		return nil
	}
	return l.rollAndSeal(ctx)
}

// rollAndSeal ends the active segment, if it has records, and seals it.
func (l *Log) rollAndSeal(context.Context) error {
	if err := l.rollActive(); err != nil {
		return err
	}
	return l.syncNow()
}

// rollActive takes the pen and rolls, if the active segment has records.
func (l *Log) rollActive() error {
	m := &l.mu
	m.Lock()
	l.waitFree(func() bool { return !m.pen && !m.exclusive || m.state != StateServing })
	if m.state != StateServing {
		err := m.refusal()
		m.Unlock()
		return err
	}
	m.pen = true
	m.Unlock()
	var err error
	if l.pen.pos > segment.HeaderSize {
		err = l.roll(segment.MinVersion, l.pen.next)
	}
	m.Lock()
	l.putDownPen()
	l.resume()
	m.Unlock()
	return err
}

// dropHead removes the n oldest segments. The tending token is held, so that only the pen
// changes the list meanwhile.
func (l *Log) dropHead(n int) (RetentionResult, error) {
	// What becomes the oldest segment must be on the device, its header at least: where
	// the log begins is written nowhere else.
	l.mu.Lock()
	flushed := l.mu.durablePos.seg
	l.mu.Unlock()
	for sl := l.list.Load(); n > 0 && sl.all[n].id > flushed; {
		n--
	}
	if err := l.removeUndropped(); n == 0 || err != nil {
		return RetentionResult{Head: l.Head()}, err
	}
	old := l.list.Load().all[:n]
	// A generation whose start goes is known from epochs alone afterwards.
	if gens := *l.gens.Load(); len(gens) > 0 {
		if err := segment.WriteEpochs(l.fs, l.dir, gens); err != nil {
			return RetentionResult{Head: l.Head()}, err
		}
	}
	l.mu.Lock()
	sl := l.list.Load().without(n)
	l.list.Store(sl)
	l.mu.Unlock()
	res := RetentionResult{Head: sl.head()}
	for _, s := range old {
		l.disk.indexes.drop(s)
		s.handle.retire()
		l.undropped = append(l.undropped, s.id)
		res.Bytes += s.size.Load()
	}
	before := len(l.undropped)
	err := l.removeUndropped()
	res.Segments = before - len(l.undropped)
	if f := l.opt.Events.OnTrim; f != nil && res.Segments > 0 {
		f(l.shard, res)
	}
	return res, err
}

// removeUndropped removes the files of segments that are no longer in the list, the
// oldest first and each for good before the next: what is left after a stop anywhere is
// a log without a gap. What could not be removed is tried again before anything else is,
// for the same reason. The tending token or all are held.
func (l *Log) removeUndropped() error {
	for len(l.undropped) > 0 {
		id := l.undropped[0]
		for _, name := range []string{segment.SegmentName(id), segment.IndexName(id)} {
			if err := l.fs.Remove(filepath.Join(l.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("storage: remove segment: %w", err)
			}
		}
		if err := l.fs.SyncDir(l.dir); err != nil {
			return fmt.Errorf("storage: remove segment: %w", err)
		}
		l.undropped = l.undropped[1:]
	}
	l.undropped = nil
	return nil
}
