package cache

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"unicode/utf8"

	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/storage/segment"
)

// Errors of a write. None of them has changed anything.
var (
	// ErrKey: empty, over MaxKeyBytes or not UTF-8.
	ErrKey = errors.New("cache: invalid key")
	// ErrTTL: zero, negative or past the end of time.
	ErrTTL = errors.New("cache: invalid ttl")
	// ErrFull: the cache is at its bound and evicts nothing that would make room.
	ErrFull = errors.New("cache: full")
	// ErrCondition: the key is not as the write demands. The Op says what it is.
	ErrCondition = errors.New("cache: condition does not hold")
	// ErrNothing: there is nothing to write: a delete of an absent key, an eviction or
	// an expiry that was overtaken.
	ErrNothing = errors.New("cache: nothing to do")
)

// CheckKey refuses a key no cache takes.
func CheckKey(key []byte) error {
	switch {
	case len(key) == 0:
		return fmt.Errorf("%w: empty", ErrKey)
	case len(key) > MaxKeyBytes:
		return fmt.Errorf("%w: %d bytes, at most %d", ErrKey, len(key), MaxKeyBytes)
	case !utf8.Valid(key):
		return fmt.Errorf("%w: not UTF-8", ErrKey)
	}
	return nil
}

// Deadline is when a value with a TTL, in milliseconds, expires that arrives at now.
func Deadline(now Millis, ttl uint64) (Millis, error) {
	if ttl == 0 {
		return 0, fmt.Errorf("%w: 0 ms; leave it out to keep the value for ever", ErrTTL)
	}
	if ttl > math.MaxInt64-uint64(now) {
		return 0, fmt.Errorf("%w: %d ms is past the end of time", ErrTTL, ttl)
	}
	return now + Millis(ttl), nil
}

// Limits bound a cache shard; zero is no bound.
type Limits struct {
	MaxKeys  int
	MaxBytes int64 // of records, as the log stores them
	// Evict makes room by the nearest expiry; else a put that finds none is ErrFull.
	Evict bool
}

// Kind is what an Op does.
type Kind uint8

// The kinds of Op.
const (
	Put    Kind = iota + 1
	Delete      // by a client
	Expire      // by the leader, once the deadline has passed
	Evict       // by the leader, to make room
)

// Condition is what a key must be for a write to go ahead.
type Condition uint8

// The conditions.
const (
	Always Condition = iota
	Absent
	AtVersion
)

// Op is one write on its way. The caller sets the first group.
type Op struct {
	Kind      Kind
	Key       []byte
	Expires   Millis
	Size      int // bytes the record will take in the log
	Condition Condition
	Version   Offset // with AtVersion, and for Expire and Evict
	Now       Millis // when it arrived

	// Live, Old: whether the key had a live value when the Op got its place, and where.
	// Set by Admit, also when it refuses.
	Live bool
	Old  projection.Ref
}

// State is one cache shard: the index and what is in flight above it.
type State struct {
	Proj    *projection.Projection
	pending projection.Pending
	limits  atomic.Pointer[Limits]
}

// NewState returns a state over proj.
func NewState(proj *projection.Projection, l Limits) *State {
	s := &State{Proj: proj}
	s.limits.Store(&l)
	return s
}

// SetLimits changes the bounds; what is above a lowered one stays until it expires, is
// evicted or deleted.
func (s *State) SetLimits(l Limits) { s.limits.Store(&l) }

// Lookup returns where the live value of a key is, for readers of applied state.
func (s *State) Lookup(key []byte, now Millis) (projection.Ref, bool) {
	ref, ok := s.Proj.Get(key)
	if !ok || ref.Expires != 0 && ref.Expires <= now {
		return projection.Ref{}, false
	}
	return ref, true
}

// newest is the state of a key that a record written next will find: ok false when it
// holds no value, expired ones included among those that do.
func (s *State) newest(key []byte) (projection.Ref, bool) {
	if w, ok := s.pending.Get(key); ok {
		return w.Ref, !w.Deleted
	}
	return s.Proj.Get(key)
}

// Admit decides op, which is about to get the offset next. nil: it gets its place, and
// Apply or Revert follows. An error: it is not written. The caller holds the pen.
func (s *State) Admit(op *Op, next Offset) error {
	old, had := s.newest(op.Key)
	op.Old, op.Live = old, had && (old.Expires == 0 || old.Expires > op.Now)
	switch op.Kind {
	case Put:
		if err := op.check(); err != nil {
			return err
		}
		if err := s.room(op, had); err != nil {
			return err
		}
	case Delete:
		if err := op.check(); err != nil {
			return err
		}
		if !had {
			return ErrNothing
		}
	default:
		overtaken := !had || old.Version != op.Version
		if overtaken || op.Kind == Expire && (old.Expires == 0 || old.Expires > op.Now) {
			return ErrNothing
		}
	}
	s.enter(op, next, old, had)
	return nil
}

func (op *Op) check() error {
	switch {
	case op.Condition == Absent && op.Live:
	case op.Condition == AtVersion && (!op.Live || op.Old.Version != op.Version):
	default:
		return nil
	}
	return ErrCondition
}

// Sums are keys and bytes, in flight included.
func (s *State) Sums() (keys, bytes int64) {
	s.Proj.View(func(x *projection.Index) { keys, bytes = int64(x.Len()), x.LiveBytes() })
	k, b := s.pending.Adds()
	return keys + k, bytes + b
}

func (s *State) room(op *Op, had bool) error {
	l := s.limits.Load()
	if l.MaxKeys == 0 && l.MaxBytes == 0 {
		return nil
	}
	keys, bytes := s.Sums()
	bytes += int64(op.Size)
	if had {
		bytes -= int64(op.Old.Size)
	} else {
		keys++
	}
	// A write that makes the cache smaller is let in however full it is.
	if grows := !had || op.Size > int(op.Old.Size); !grows {
		return nil
	}
	if l.MaxKeys > 0 && keys > int64(l.MaxKeys) {
		return fmt.Errorf("%w: %d keys, at most %d", ErrFull, keys-1, l.MaxKeys)
	}
	if l.MaxBytes > 0 && bytes > l.MaxBytes {
		return fmt.Errorf("%w: %d bytes with this value, at most %d", ErrFull, bytes, l.MaxBytes)
	}
	return nil
}

// enter puts op in flight.
func (s *State) enter(op *Op, next Offset, old projection.Ref, had bool) {
	w := projection.InFlight{
		Ref:   projection.Ref{Offset: next, Version: next, Expires: op.Expires, Size: uint32(op.Size)},
		Bytes: int64(op.Size),
	}
	if had {
		w.Bytes -= int64(old.Size)
	} else {
		w.Keys = 1
	}
	if op.Kind != Put {
		w = projection.InFlight{Ref: projection.Ref{Offset: next}, Deleted: true, Keys: -1, Bytes: -int64(old.Size)}
	}
	s.pending.Set(op.Key, w)
}

// AdmitCopy decides a compaction copy.
func (s *State) AdmitCopy(c *projection.Copy) error {
	if c.Superseded(s.Proj, &s.pending) {
		return projection.ErrSuperseded
	}
	return nil
}

// Apply takes the next record of the log into the index; it was admitted here, copied,
// or came from elsewhere. A record this package cannot read is an error, and nothing at
// or after it is applied.
func (s *State) Apply(rec *segment.Record) error {
	if err := s.Proj.Apply(rec); err != nil {
		return err
	}
	// What the record adds is in the index now, and no longer in flight.
	s.pending.Settle(rec.Offset)
	return nil
}

// Revert forgets what was admitted at next or after it: the log took it back. What was
// admitted below is written, and stays in flight until it is applied.
func (s *State) Revert(next Offset) { s.pending.Revert(next) }

// Victim is a key that could go.
type Victim struct {
	Key     []byte
	Version Offset
}

// Expired returns up to limit keys whose deadline has passed at now, to be written as
// Expire.
func (s *State) Expired(now Millis, limit int) []Victim {
	var out []Victim
	s.Proj.View(func(x *projection.Index) {
		x.Expired(now, limit, func(key []byte, ref projection.Ref) {
			out = append(out, Victim{append([]byte(nil), key...), ref.Version})
		})
	})
	return out
}

// NextExpiry is the nearest deadline of any key.
func (s *State) NextExpiry() (at Millis, ok bool) {
	s.Proj.View(func(x *projection.Index) { at, ok = x.NextExpiry() })
	return at, ok
}

// maxVictims bounds what one put evicts; a put that needs more finds the cache full.
const maxVictims = 64

// Victims returns the keys nearest to their expiry whose going makes room for a put of
// size bytes under key; nil if there is room, if the cache does not evict, or if no set
// of keys with a deadline would do.
func (s *State) Victims(key []byte, size int) []Victim {
	l := s.limits.Load()
	if !l.Evict || l.MaxKeys == 0 && l.MaxBytes == 0 {
		return nil
	}
	keys, bytes := s.Sums()
	bytes += int64(size)
	if old, had := s.newest(key); had {
		bytes -= int64(old.Size)
	} else {
		keys++
	}
	over := func() bool {
		return l.MaxKeys > 0 && keys > int64(l.MaxKeys) || l.MaxBytes > 0 && bytes > l.MaxBytes
	}
	if !over() {
		return nil
	}
	var out []Victim
	s.Proj.View(func(x *projection.Index) {
		x.Nearest(maxVictims, func(k []byte, ref projection.Ref) bool {
			if string(k) == string(key) {
				return true
			}
			if _, flying := s.pending.Get(k); flying {
				return true
			}
			out = append(out, Victim{append([]byte(nil), k...), ref.Version})
			keys--
			bytes -= int64(ref.Size)
			return over()
		})
	})
	if over() {
		return nil
	}
	return out
}
