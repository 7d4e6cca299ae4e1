package projection

import (
	"bytes"
	"hash/maphash"
	"sync"

	"github.com/felixlog/felix/storage/segment"
)

// Pending is what has been given its place in the log but is not yet applied. A
// condition is checked against the newest write in flight of its key first and the index
// second, so that it sees the state its own record will find.
//
// The pen holder calls Set in offset order, and Revert when the log takes places back;
// whoever applies calls Settle after the index has taken the record. A key that Pending
// does not know is therefore in the index as it is. A write leaves by one of the two:
// what is below the offset of a Revert stays in flight, since its record still stands.
type Pending struct {
	mu struct {
		sync.Mutex
		flights []flight // ascending by offset; those before head have left
		head    int
		first   uint64 // number of flights[0]
		names   []byte // the keys of flights, in their order
		// buckets hold 1 + the number of the newest flight of the keys that share one, also
		// when it has left. Their count is a power of two, 0 before the first flight.
		buckets []uint64
		keys    int64 // sums over those in flight
		bytes   int64
	}
}

// InFlight is a write of a key that is not yet applied.
type InFlight struct {
	Ref     Ref
	Deleted bool
	// Keys and Bytes are what the write will add to the index's.
	Keys, Bytes int64
}

type flight struct {
	InFlight
	hash     uint64
	from, to int    // its key in names
	older    uint64 // what its bucket held before it
}

// An idle shard keeps room for so many flights, and for so many bytes of keys.
const (
	keepFlights = 64
	keepNames   = 4 << 10
)

// pendingSeed is that of the hashes of keys in flight, which are never stored.
var pendingSeed = maphash.MakeSeed()

// Set records a write of key that has been given the offset w.Ref.Offset.
func (p *Pending) Set(key []byte, w InFlight) {
	m := &p.mu
	m.Lock()
	defer m.Unlock()
	p.roomLocked()
	from := len(m.names)
	m.names = append(m.names, key...)
	m.flights = append(m.flights, flight{InFlight: w, hash: maphash.Bytes(pendingSeed, key), from: from, to: len(m.names)})
	p.linkLocked(len(m.flights) - 1)
	m.keys += w.Keys
	m.bytes += w.Bytes
}

// roomLocked makes room for one more flight.
func (p *Pending) roomLocked() {
	m := &p.mu
	if m.head > keepFlights && m.head > len(m.flights)/2 {
		// As many have left as move: each is moved once.
		gone := m.flights[m.head-1].to
		m.names = m.names[:copy(m.names, m.names[gone:])]
		m.flights, m.first, m.head = m.flights[:copy(m.flights, m.flights[m.head:])], m.first+uint64(m.head), 0
		for i := range m.flights {
			m.flights[i].from -= gone
			m.flights[i].to -= gone
		}
	}
	if len(m.flights) < len(m.buckets) {
		return
	}
	if m.flights == nil {
		m.flights = make([]flight, 0, keepFlights)
	}
	m.buckets = make([]uint64, max(2*len(m.buckets), keepFlights))
	for i := m.head; i < len(m.flights); i++ {
		p.linkLocked(i)
	}
}

// linkLocked makes flights[i] the newest of its bucket.
func (p *Pending) linkLocked(i int) {
	f := &p.mu.flights[i]
	b := p.bucketLocked(f.hash)
	f.older = *b
	*b = 1 + p.mu.first + uint64(i)
}

func (p *Pending) bucketLocked(hash uint64) *uint64 {
	return &p.mu.buckets[hash&uint64(len(p.mu.buckets)-1)]
}

// Get returns the newest write of key in flight.
func (p *Pending) Get(key []byte) (InFlight, bool) {
	m := &p.mu
	m.Lock()
	defer m.Unlock()
	if m.head == len(m.flights) {
		return InFlight{}, false
	}
	hash := maphash.Bytes(pendingSeed, key)
	// From the newest of the bucket to its older ones, until one has left: so have those
	// before it.
	for n := *p.bucketLocked(hash); n > m.first+uint64(m.head); {
		f := &m.flights[n-1-m.first]
		if f.hash == hash && bytes.Equal(m.names[f.from:f.to], key) {
			return f.InFlight, true
		}
		n = f.older
	}
	return InFlight{}, false
}

// Settle notes that the index has taken the record at offset, and with it everything
// before.
func (p *Pending) Settle(offset segment.Offset) {
	m := &p.mu
	m.Lock()
	defer m.Unlock()
	for m.head < len(m.flights) && m.flights[m.head].Ref.Offset <= offset {
		m.keys -= m.flights[m.head].Keys
		m.bytes -= m.flights[m.head].Bytes
		m.head++
	}
	p.restLocked()
}

// Revert forgets the writes that were given next or a later offset: the log took their
// places back.
func (p *Pending) Revert(next segment.Offset) {
	m := &p.mu
	m.Lock()
	defer m.Unlock()
	for n := len(m.flights) - 1; n >= m.head && m.flights[n].Ref.Offset >= next; n-- {
		f := &m.flights[n]
		*p.bucketLocked(f.hash) = f.older // nothing newer is left in it
		m.keys -= f.Keys
		m.bytes -= f.Bytes
		m.flights, m.names = m.flights[:n], m.names[:f.from]
	}
	p.restLocked()
}

// restLocked gives back what an idle shard needs not keep.
func (p *Pending) restLocked() {
	m := &p.mu
	if m.head < len(m.flights) {
		return
	}
	m.first += uint64(len(m.flights))
	m.flights, m.names, m.head = m.flights[:0], m.names[:0], 0
	if cap(m.flights) > keepFlights {
		m.flights, m.buckets = nil, nil
	}
	if cap(m.names) > keepNames {
		m.names = nil
	}
}

// Adds is what the writes in flight will add to the keys of the index and to their bytes.
func (p *Pending) Adds() (keys, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.keys, p.mu.bytes
}
