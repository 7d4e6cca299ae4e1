package projection

import (
	"sync"

	"github.com/felixlog/felix/storage/segment"
)

// Pending is what has been given its place in the log but is not yet applied: the
// newest write in flight of each key. A condition is checked against it first and
// the index second, so that it sees the state its own record will find.
//
// The pen holder calls Set in offset order; whoever applies calls Settle after the
// index has taken the record. A key that Pending no longer knows is therefore in the
// index as it is.
type Pending struct {
	mu struct {
		sync.Mutex
		keys map[string]InFlight
	}
}

// InFlight is the newest write of a key that is not yet applied.
type InFlight struct {
	Ref     Ref
	Deleted bool
	// Value is what the owner wants to remember of the write (a counter's sum).
	Value int64
}

// Set records a write of key that has been given the offset w.Ref.Offset.
func (p *Pending) Set(key []byte, w InFlight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.keys == nil {
		p.mu.keys = map[string]InFlight{}
	}
	p.mu.keys[string(key)] = w
}

// Get returns the newest write of key in flight.
func (p *Pending) Get(key []byte) (InFlight, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, ok := p.mu.keys[string(key)]
	return w, ok
}

// Settle notes that the write of key at offset is applied, and reports whether any write
// of the key was in flight. A newer one stays in flight.
func (p *Pending) Settle(key []byte, offset segment.Offset) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, ok := p.mu.keys[string(key)]
	if ok && w.Ref.Offset <= offset {
		delete(p.mu.keys, string(key))
		if len(p.mu.keys) == 0 {
			p.mu.keys = nil // an idle shard keeps no map
		}
	}
	return ok
}

// Reset forgets everything in flight: the log took it back.
func (p *Pending) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.keys = nil
}

// Len is the number of keys with a write in flight.
func (p *Pending) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.keys)
}
