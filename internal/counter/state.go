package counter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// Errors of an addition. None of them has changed anything.
var (
	// ErrOverflow: the sum would not fit an int64.
	ErrOverflow = errors.New("counter: out of range")
	// ErrRepeated: the producer's addition was counted before. The Add holds the
	// present sum.
	ErrRepeated = errors.New("counter: addition already counted")
	// ErrFull: no key can be added.
	ErrFull = errors.New("counter: too many keys")
)

// MaxKeys bounds the counters of one shard.
const MaxKeys = 10_000_000

// Add is one addition on its way. Sum is set by Admit: the sum with it, or for one
// that is refused the sum that stands.
type Add struct {
	Key   []byte
	Delta int64
	Tag   *Tag
	Sum   int64
}

// State is one counter shard: sums as applied, and what is in flight above them. It may
// be used by several goroutines; Admit calls come one at a time, from the pen.
type State struct {
	mu struct {
		sync.Mutex
		// In the index a key's Version is its sum (as bits) and its Offset the oldest
		// record the sum is still made of.
		sums      *projection.Index
		producers map[uint64]*producer
		applied   Offset
		// flights are the additions that have their place and are not applied, ascending
		// by offset; those of a key and of a producer are summed up beside it.
		flights   []flight
		flying    map[string]flyingSum
		flyingIDs map[uint64]flyingWindow
	}
}

// flight is an addition in flight.
type flight struct {
	offset Offset
	key    string
	delta  int64
	tagged bool
	tag    Tag
}

// flyingSum and flyingWindow are what a key and a producer come to with all that is in
// flight, count of them.
type (
	flyingSum struct {
		sum   int64
		count int
	}
	flyingWindow struct {
		window
		count int
	}
)

type producer struct {
	window
	from Offset // oldest record the window is made of
	last Offset // newest
}

// NewState returns the state of a log whose first record is at from.
func NewState(from Offset) *State {
	s := &State{}
	s.mu.sums = projection.NewIndex()
	s.mu.producers = map[uint64]*producer{}
	s.mu.applied = from
	s.mu.flying = map[string]flyingSum{}
	s.mu.flyingIDs = map[uint64]flyingWindow{}
	return s
}

// Get returns the sum of a key; ok is false if it was never added to.
func (s *State) Get(key []byte) (sum int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sumLocked(key)
}

func (s *State) sumLocked(key []byte) (int64, bool) {
	ref, ok := s.mu.sums.Get(key)
	return int64(ref.Version), ok
}

func (s *State) newestLocked(key []byte) (int64, bool) {
	if f, ok := s.mu.flying[string(key)]; ok {
		return f.sum, true
	}
	return s.sumLocked(key)
}

func (s *State) windowLocked(id uint64) window {
	if w, ok := s.mu.flyingIDs[id]; ok {
		return w.window
	}
	if p := s.mu.producers[id]; p != nil {
		return p.window
	}
	return window{}
}

// Admit decides an addition that is about to get the offset next. nil: it gets it, and
// Apply or Revert follows.
func (s *State) Admit(a *Add, next Offset) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum, known := s.newestLocked(a.Key)
	a.Sum = sum
	if a.Tag != nil && s.windowLocked(a.Tag.Producer).has(a.Tag.Sequence) {
		return ErrRepeated
	}
	if !known && s.mu.sums.Len() >= MaxKeys {
		return fmt.Errorf("%w: at most %d", ErrFull, MaxKeys)
	}
	if a.Delta > 0 && sum > math.MaxInt64-a.Delta || a.Delta < 0 && sum < math.MinInt64-a.Delta {
		return fmt.Errorf("%w: %d%+d", ErrOverflow, sum, a.Delta)
	}
	a.Sum = sum + a.Delta
	f := flight{offset: next, key: string(a.Key), delta: a.Delta, tagged: a.Tag != nil}
	if f.tagged {
		f.tag = *a.Tag
	}
	s.mu.flights = append(s.mu.flights, f)
	s.takeOffLocked(&f, a.Key)
	return nil
}

// takeOffLocked counts f, whose key is key, among what is in flight.
func (s *State) takeOffLocked(f *flight, key []byte) {
	sum, _ := s.newestLocked(key)
	s.mu.flying[f.key] = flyingSum{sum + f.delta, s.mu.flying[f.key].count + 1}
	if f.tagged {
		id := f.tag.Producer
		s.mu.flyingIDs[id] = flyingWindow{s.windowLocked(id).with(f.tag.Sequence), s.mu.flyingIDs[id].count + 1}
	}
}

// landLocked takes the flights up to offset out: they are applied.
func (s *State) landLocked(offset Offset) {
	n := 0
	for ; n < len(s.mu.flights) && s.mu.flights[n].offset <= offset; n++ {
		f := &s.mu.flights[n]
		if sum := s.mu.flying[f.key]; sum.count > 1 {
			s.mu.flying[f.key] = flyingSum{sum.sum, sum.count - 1}
		} else {
			delete(s.mu.flying, f.key)
		}
		if !f.tagged {
			continue
		}
		if w := s.mu.flyingIDs[f.tag.Producer]; w.count > 1 {
			s.mu.flyingIDs[f.tag.Producer] = flyingWindow{w.window, w.count - 1}
		} else {
			delete(s.mu.flyingIDs, f.tag.Producer)
		}
	}
	clear(s.mu.flights[:n])
	if s.mu.flights = s.mu.flights[n:]; len(s.mu.flights) == 0 {
		s.mu.flights = nil // an idle shard keeps no list
	}
}

// AdmitCopy decides a checkpoint that compaction appends, and gives it the value it has
// at this place in the log. The caller holds the pen and has b in hand.
func (s *State) AdmitCopy(b *storage.Batch, c *projection.Copy) error {
	r, err := decode(b.Payloads[0])
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.op == opProducer {
		p := s.mu.producers[r.tag.Producer]
		if p == nil || p.from > c.From {
			return projection.ErrSuperseded
		}
		b.Payloads[0] = appendProducer(b.Payloads[0][:0], r.tag.Producer, s.windowLocked(r.tag.Producer))
		return nil
	}
	ref, ok := s.mu.sums.Get(r.key)
	if !ok || ref.Offset > c.From {
		return projection.ErrSuperseded
	}
	sum, _ := s.newestLocked(r.key)
	// The key is a view of the payload; the new one has the same length.
	b.Payloads[0] = appendSum(b.Payloads[0][:0], r.key, sum)
	return nil
}

// Apply takes the next record of the log.
func (s *State) Apply(rec *segment.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rec.Offset < s.mu.applied {
		return nil
	}
	if rec.Offset > s.mu.applied {
		return &projection.OrderError{Offset: rec.Offset, Want: s.mu.applied}
	}
	if rec.Kind != segment.KindGenerationStart {
		r, err := decode(rec.Payload)
		if err == nil {
			err = s.applyLocked(rec, r)
		}
		if err != nil {
			return &projection.UnreadableError{Offset: rec.Offset, Err: err}
		}
	}
	s.mu.applied++
	s.landLocked(rec.Offset)
	return nil
}

func (s *State) applyLocked(rec *segment.Record, r record) error {
	if r.op == opProducer {
		s.rememberLocked(r.tag.Producer, window{next: r.tag.Sequence, seen: r.seen}, rec.Offset, true)
		return nil
	}
	ref := projection.Ref{Offset: rec.Offset, Version: Offset(r.value), Size: uint32(segment.RecordHeaderSize + sumSize + len(r.key))}
	if r.op == opAdd {
		if old, ok := s.mu.sums.Get(r.key); ok {
			ref.Offset = old.Offset
			ref.Version = Offset(int64(old.Version) + r.value)
		}
		if r.tagged {
			w := window{}
			if p := s.mu.producers[r.tag.Producer]; p != nil {
				w = p.window
			}
			s.rememberLocked(r.tag.Producer, w.with(r.tag.Sequence), rec.Offset, false)
		}
	}
	_, _, err := s.mu.sums.Put(r.key, ref)
	return err
}

// rememberLocked takes what is now known of a producer; fresh says that the record at
// says all of it.
func (s *State) rememberLocked(id uint64, w window, at Offset, fresh bool) {
	p := s.mu.producers[id]
	if p == nil {
		if len(s.mu.producers) >= MaxProducers {
			s.forgetLocked()
		}
		p = &producer{from: at}
		s.mu.producers[id] = p
	}
	if fresh {
		p.from = at
	} else {
		p.last = at // a checkpoint is not a sign of life
	}
	p.window = w
}

func (s *State) forgetLocked() {
	var oldest uint64
	at := Offset(math.MaxUint64)
	for id, p := range s.mu.producers {
		if p.last < at {
			oldest, at = id, p.last
		}
	}
	delete(s.mu.producers, oldest)
}

// Revert forgets what was admitted at next or after it: the log took it back. What was
// admitted below is written, and stays in flight until it is applied.
func (s *State) Revert(next Offset) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.mu.flights)
	for n > 0 && s.mu.flights[n-1].offset >= next {
		n--
	}
	clear(s.mu.flights[n:])
	s.mu.flights = s.mu.flights[:n]
	clear(s.mu.flying)
	clear(s.mu.flyingIDs)
	for i := range s.mu.flights {
		f := &s.mu.flights[i]
		s.takeOffLocked(f, []byte(f.key))
	}
}

// Applied implements projection.Reading.
func (s *State) Applied() Offset {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.applied
}

// LiveBytes implements projection.Reading.
func (s *State) LiveBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.sums.LiveBytes() + int64(len(s.mu.producers))*(segment.RecordHeaderSize+producerSize)
}

// Len is the number of counters.
func (s *State) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.sums.Len()
}

// Restate implements projection.Reading: a record that a sum or a window is still made
// of is replaced by a checkpoint, whose value AdmitCopy gives.
func (s *State) Restate(rec *segment.Record, f func(key, payload []byte) error) (dropped int, err error) {
	if rec.Kind == segment.KindGenerationStart {
		return 1, nil
	}
	r, err := decode(rec.Payload)
	if err != nil {
		return 0, err
	}
	if r.op != opProducer {
		s.mu.Lock()
		ref, ok := s.mu.sums.Get(r.key)
		s.mu.Unlock()
		if ok && ref.Offset <= rec.Offset {
			err = f(append([]byte{'k'}, r.key...), appendSum(nil, r.key, 0))
		} else {
			dropped++
		}
	}
	if err == nil && (r.tagged || r.op == opProducer) {
		s.mu.Lock()
		p := s.mu.producers[r.tag.Producer]
		needed := p != nil && p.from <= rec.Offset
		s.mu.Unlock()
		if needed {
			err = f(binary.BigEndian.AppendUint64([]byte{'p'}, r.tag.Producer), appendProducer(nil, r.tag.Producer, window{}))
		} else {
			dropped++
		}
	}
	return dropped, err
}
