package partition

import (
	"encoding/binary"
	"math"
	"sync"
	"sync/atomic"

	"github.com/felixlog/felix/storage"
)

// Values keeps values of caches that were put or read lately in memory, for all shards of
// a node, so that a get of one costs no reading of the log. It is asked by the place that
// the index names, and a record that was applied never changes: what is kept can be old
// and unused, but not wrong, and nothing has to be told of a newer value.
//
// What came first goes first. The memory is taken as it is needed, up to the bound, and
// kept; it holds no pointers for each value. A nil *Values keeps nothing.
type Values struct {
	stripes [valueStripes]valueStripe
	logs    atomic.Uint64
}

const (
	// valueStripes have a lock and a share of the memory each.
	valueStripes = 16
	// valueShare is the part of a stripe that a single value may take.
	valueShare = 8
	// valueCost is what a value is charged with beside its bytes: its head in the ring,
	// and its slot in the table, which is at times not half full.
	valueCost = valueHead + 22

	valueHead  = 8 + 8 + 4 // log, offset, length
	firstValue = 4 << 10   // the first memory of a stripe
)

// valueKey is where a value stands: a log, as Values numbers them, and a record.
type valueKey struct {
	log uint64
	at  storage.Offset
}

type valueStripe struct {
	mu struct {
		sync.Mutex
		// places say where in ring a value's head is. Places only grow: place p is at
		// p modulo the length of ring.
		places valuePlaces
		ring   []byte
		// oldest and next bound what is kept: the first head, and the end of the last
		// value.
		oldest, next uint64
		hits, misses uint64
	}
	bound int64 // on what values are charged with
	most  int   // bytes of ring; fewer than 4 GiB, so that a slot tells a place
}

// ValueFigures are Values at one moment; hits and misses only rise.
type ValueFigures struct {
	Count, Bytes int64 // kept, and the memory that is charged for them
	Hits, Misses uint64
}

// NewValues keeps values in about so many bytes; nil when that is nothing.
func NewValues(bound int64) *Values {
	if bound <= 0 {
		return nil
	}
	v := new(Values)
	each := max(bound/valueStripes, 1)
	for i := range v.stripes {
		s := &v.stripes[i]
		s.bound = each
		s.most = int(min(each, math.MaxUint32)) // the ring never needs more than the charges
	}
	return v
}

// newLog is a number for the values of a log. Whoever cannot be sure of what was kept of
// a log takes another number.
func (v *Values) newLog() uint64 {
	if v == nil {
		return 0
	}
	return v.logs.Add(1)
}

func (k valueKey) hash() uint64 {
	return (uint64(k.at) + k.log*0x9e3779b97f4a7c15) * 0xff51afd7ed558ccd
}

func (v *Values) stripe(h uint64) *valueStripe { return &v.stripes[h>>(64-4)] }

// find looks for the value of k, whose hash is h.
func (s *valueStripe) find(k valueKey, h uint64) (place uint64, n int, ok bool) {
	m := &s.mu
	_, ok = m.places.find(h, func(low uint32) bool {
		place = m.next - uint64(uint32(m.next)-low)
		var at valueKey
		at, n = s.head(place)
		return at == k
	})
	return place, n, ok
}

// head reads what stands before the value at a place.
func (s *valueStripe) head(place uint64) (k valueKey, n int) {
	var head [valueHead]byte
	s.read(head[:], place)
	return valueKey{binary.LittleEndian.Uint64(head[:]), storage.Offset(binary.LittleEndian.Uint64(head[8:]))},
		int(binary.LittleEndian.Uint32(head[16:]))
}

// get appends the value to dst.
func (v *Values) get(k valueKey, dst []byte) ([]byte, bool) {
	if v == nil {
		return dst, false
	}
	h := k.hash()
	s := v.stripe(h)
	m := &s.mu
	m.Lock()
	defer m.Unlock()
	p, n, ok := s.find(k, h)
	if !ok {
		m.misses++
		return dst, false
	}
	m.hits++
	from := int((p + valueHead) % uint64(len(m.ring)))
	first := min(n, len(m.ring)-from)
	dst = append(dst, m.ring[from:from+first]...)
	return append(dst, m.ring[:n-first]...), true
}

// put keeps a copy of the value.
func (v *Values) put(k valueKey, value []byte) {
	if v == nil {
		return
	}
	h := k.hash()
	s := v.stripe(h)
	size := valueHead + len(value)
	if int64(size)*valueShare > int64(s.most) {
		return
	}
	m := &s.mu
	m.Lock()
	defer m.Unlock()
	if _, _, has := s.find(k, h); has {
		return
	}
	for s.charged()+int64(len(value))+valueCost > s.bound || m.next-m.oldest+uint64(size) > uint64(s.most) {
		s.dropOldest()
	}
	s.grow(int(m.next-m.oldest) + size)
	var head [valueHead]byte
	binary.LittleEndian.PutUint64(head[:], k.log)
	binary.LittleEndian.PutUint64(head[8:], uint64(k.at))
	binary.LittleEndian.PutUint32(head[16:], uint32(len(value)))
	s.write(head[:], m.next)
	s.write(value, m.next+valueHead)
	m.places.add(h, m.next)
	m.next += uint64(size)
}

// charged is what the values kept are charged with.
func (s *valueStripe) charged() int64 {
	m := &s.mu
	return int64(m.next-m.oldest) + int64(m.places.used)*(valueCost-valueHead)
}

func (s *valueStripe) dropOldest() {
	m := &s.mu
	k, n := s.head(m.oldest)
	if at, ok := m.places.find(k.hash(), func(low uint32) bool { return low == uint32(m.oldest) }); ok {
		m.places.remove(at)
	}
	m.oldest += valueHead + uint64(n)
}

// grow makes the ring hold n bytes.
func (s *valueStripe) grow(n int) {
	m := &s.mu
	if n <= len(m.ring) {
		return
	}
	size := max(len(m.ring), min(firstValue, s.most))
	for size < n { // which is at most s.most
		size = min(2*size, s.most)
	}
	wider := make([]byte, size)
	for p := m.oldest; p < m.next; {
		from, to := int(p%uint64(len(m.ring))), int(p%uint64(size))
		p += uint64(copy(wider[to:], m.ring[from:min(len(m.ring), from+int(m.next-p))]))
	}
	m.ring = wider
}

// read and write move bytes at a place, which may go on at the ring's beginning.
func (s *valueStripe) read(b []byte, place uint64) {
	ring := s.mu.ring
	n := copy(b, ring[place%uint64(len(ring)):])
	copy(b[n:], ring)
}

func (s *valueStripe) write(b []byte, place uint64) {
	ring := s.mu.ring
	n := copy(ring[place%uint64(len(ring)):], b)
	copy(ring, b[n:])
}

// Figures are those of now.
func (v *Values) Figures() (f ValueFigures) {
	if v == nil {
		return f
	}
	for i := range v.stripes {
		s := &v.stripes[i]
		s.mu.Lock()
		f.Count += int64(s.mu.places.used)
		f.Bytes += s.charged()
		f.Hits += s.mu.hits
		f.Misses += s.mu.misses
		s.mu.Unlock()
	}
	return f
}
