package projection

import (
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
		first   uint64            // number of flights[0]
		newest  map[string]uint64 // number of a key's newest flight
		keys    int64             // sums over those in flight
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
	key   string
	older uint64 // number of the key's flight before it
	hides bool   // there was one
}

// keepFlights is how many flights an idle shard keeps room for.
const keepFlights = 64

// Set records a write of key that has been given the offset w.Ref.Offset.
func (p *Pending) Set(key []byte, w InFlight) {
	m := &p.mu
	m.Lock()
	defer m.Unlock()
	if m.newest == nil {
		m.newest = map[string]uint64{}
	}
	if m.head > keepFlights && m.head > len(m.flights)/2 {
		// As many have left as move: each is moved once.
		n := copy(m.flights, m.flights[m.head:])
		clear(m.flights[n:])
		m.flights, m.first, m.head = m.flights[:n], m.first+uint64(m.head), 0
	}
	f := flight{InFlight: w}
	if f.older, f.hides = m.newest[string(key)]; f.hides && f.older >= m.first+uint64(m.head) {
		f.key = m.flights[f.older-m.first].key
	} else {
		f.key = string(key)
	}
	m.newest[f.key] = m.first + uint64(len(m.flights))
	m.flights = append(m.flights, f)
	m.keys += w.Keys
	m.bytes += w.Bytes
}

// Get returns the newest write of key in flight.
func (p *Pending) Get(key []byte) (InFlight, bool) {
	m := &p.mu
	m.Lock()
	defer m.Unlock()
	n, ok := m.newest[string(key)]
	if !ok {
		return InFlight{}, false
	}
	return m.flights[n-m.first].InFlight, true
}

// Settle notes that the index has taken the record at offset, and with it everything
// before.
func (p *Pending) Settle(offset segment.Offset) {
	m := &p.mu
	m.Lock()
	defer m.Unlock()
	for m.head < len(m.flights) && m.flights[m.head].Ref.Offset <= offset {
		f := &m.flights[m.head]
		if n := m.newest[f.key]; n == m.first+uint64(m.head) {
			delete(m.newest, f.key)
		}
		m.keys -= f.Keys
		m.bytes -= f.Bytes
		*f = flight{}
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
		if f.hides && f.older >= m.first+uint64(m.head) {
			m.newest[f.key] = f.older
		} else {
			delete(m.newest, f.key)
		}
		m.keys -= f.Keys
		m.bytes -= f.Bytes
		*f = flight{}
		m.flights = m.flights[:n]
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
	m.flights, m.head, m.newest = m.flights[:0], 0, nil
	if cap(m.flights) > keepFlights {
		m.flights = nil
	}
}

// Adds is what the writes in flight will add to the keys of the index and to their bytes.
func (p *Pending) Adds() (keys, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.keys, p.mu.bytes
}
