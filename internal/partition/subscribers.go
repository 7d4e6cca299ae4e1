package partition

import (
	"sync"
	"sync/atomic"

	"github.com/felixlog/felix/storage"
)

// subscribers are the subscriptions of a shard, and which of them wait.
type subscribers struct {
	waiting atomic.Int32 // length of waiters; read without the lock

	mu      sync.Mutex
	all     map[*Subscription]struct{}
	waiters []*Subscription // each once
	spare   []*Subscription // memory for the next waiters

	ended atomic.Pointer[error] // why nothing more becomes readable; nil while the shard is open
}

// add registers s; the first one starts the ring.
func (l *subscribers) add(p *Partition, s *Subscription) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.end(); err != nil {
		return err
	}
	if l.all == nil {
		l.all = make(map[*Subscription]struct{})
	}
	l.all[s] = struct{}{}
	if len(l.all) == 1 && p.ring != nil {
		p.ring.Start()
	}
	return nil
}

// remove forgets s; the last one stops the ring.
func (l *subscribers) remove(p *Partition, s *Subscription) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.all[s]; !ok {
		return
	}
	delete(l.all, s)
	if s.queued {
		for i, w := range l.waiters {
			if w == s {
				last := len(l.waiters) - 1
				l.waiters[i] = l.waiters[last]
				l.waiters[last] = nil
				l.waiters = l.waiters[:last]
				break
			}
		}
		s.queued = false
		l.waiting.Store(int32(len(l.waiters)))
	}
	if len(l.all) == 0 {
		if p.ring != nil {
			p.ring.Stop()
		}
		l.all, l.waiters, l.spare = nil, nil, nil
	}
}

// enter puts s among those that wait. It says whether all subscriptions wait now, so
// that nobody needs what the ring holds.
func (l *subscribers) enter(s *Subscription) (all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.all[s]; !ok {
		return false // it has ended, and was signalled
	}
	if !s.queued {
		s.queued = true
		l.waiters = append(l.waiters, s)
		l.waiting.Store(int32(len(l.waiters)))
	}
	return len(l.waiters) == len(l.all)
}

// wake wakes those that wait, and nobody else. A waiter enters before it looks at the
// bound for the last time, and the bound moves before the waiters are counted here: one
// of the two sees the other.
func (l *subscribers) wake() {
	if l.waiting.Load() == 0 {
		return
	}
	l.mu.Lock()
	waiters := l.waiters
	l.waiters, l.spare = l.spare[:0], nil
	for _, s := range waiters {
		s.queued = false
	}
	l.waiting.Store(0)
	l.mu.Unlock()
	for i, s := range waiters {
		waiters[i] = nil
		s.signal()
	}
	l.mu.Lock()
	if l.spare == nil && len(l.all) > 0 {
		l.spare = waiters[:0]
	}
	l.mu.Unlock()
}

// stop ends all subscriptions with why once they have read what is readable without
// the disk, and refuses new ones.
func (l *subscribers) stop(why error) {
	l.ended.Store(&why)
	for _, s := range l.list() {
		s.signal()
	}
}

// end is why nothing more becomes readable, nil while the shard is open.
func (l *subscribers) end() error {
	if err := l.ended.Load(); err != nil {
		return *err
	}
	return nil
}

// list gives all of them.
func (l *subscribers) list() []*Subscription {
	l.mu.Lock()
	defer l.mu.Unlock()
	subs := make([]*Subscription, 0, len(l.all))
	for s := range l.all {
		subs = append(subs, s)
	}
	return subs
}

// stats is how many there are and the position of the slowest.
func (l *subscribers) stats(readable storage.Offset) (count int, slowest storage.Offset) {
	l.mu.Lock()
	defer l.mu.Unlock()
	slowest = readable
	for s := range l.all {
		slowest = min(slowest, s.Position())
	}
	return len(l.all), slowest
}
