package broker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/felixlog/felix/internal/partition"
)

// openers are the openings under way of a resource; none begins once it is deleted.
type openers struct {
	mu     sync.Mutex
	closed bool
	group  sync.WaitGroup
}

func (o *openers) enter() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false
	}
	o.group.Add(1)
	return true
}

func (o *openers) leave() { o.group.Done() }

// close refuses more and waits for those under way.
func (o *openers) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.group.Wait()
}

// ReopenShard tries a damaged or poisoned shard again, as an operator asks for once
// the reason is gone.
func (b *Broker) ReopenShard(ctx context.Context, s *Stream, i int) error {
	return b.reopen(ctx, &s.resource, i)
}

func (b *Broker) reopen(ctx context.Context, r *resource, i int) error {
	u, err := r.unit(i)
	if err == nil {
		if st := u.State(); st != partition.Poisoned && st != partition.Damaged {
			return nil
		}
		if err := u.Reopen(ctx); !errors.Is(err, partition.ErrOpenAnew) {
			return err
		}
	}
	if uint(i) >= uint(len(r.shards)) {
		return err
	}
	sh := &r.shards[i]
	st := sh.status.Load()
	if st.state != partition.Damaged && (st.unit == nil || st.unit.State() != partition.Damaged) {
		return sh.unavailable(st)
	}
	done := make(chan error, 1)
	if !b.openAgain(sh, st, func(err error) { done <- err }) {
		return sh.unavailable(sh.status.Load())
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// openAgain has a shard opened whose status is st, that of a failed opening or of a unit
// that has failed. False when it has another status by now, is deleted, or the broker
// closes: done is not called.
func (b *Broker) openAgain(sh *shard, st *status, done func(error)) bool {
	r := sh.owner
	if r.Deleted() || !r.openers.enter() {
		return false
	}
	if !sh.status.CompareAndSwap(st, &status{state: partition.Opening}) {
		r.openers.leave()
		return false
	}
	ok := b.opening.submit(func() {
		defer r.openers.leave()
		if st.unit != nil {
			b.progress.failed()
			b.closeFailed(sh, st.unit)
		}
		u, err := b.openLog(b.life, sh)
		b.reopened(sh, u, err, st.tries+1)
		done(err)
	})
	if !ok {
		if st.unit != nil {
			b.closeFailed(sh, st.unit)
		}
		sh.set(&status{state: partition.Closed})
		r.openers.leave()
	}
	return ok
}

// closeFailed closes a unit that is to be opened anew: it gives back its log.
func (b *Broker) closeFailed(sh *shard, u unit) {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	if err := u.Close(ctx); err != nil {
		b.o.Log.Warn("failed shard closed with an error", "shard", sh.name, "error", err)
	}
}

func (b *Broker) reopened(sh *shard, u unit, err error, tries int) {
	if err != nil {
		st := &status{state: partition.Damaged, err: err, tries: tries}
		sh.set(st)
		b.retryLater(sh, st)
		return
	}
	b.o.Log.Info("shard serves again", "shard", sh.name)
	b.progress.healed()
	sh.set(&status{state: partition.Active, unit: u})
	sh.owner.def.opened(u)
}

const mostRetryOpen = 30 * time.Second

// retryLater tries a shard again by itself if its opening failed for another reason
// than its bytes: no descriptors, no room, a device that does not answer. Damage waits
// for an operator.
func (b *Broker) retryLater(sh *shard, st *status) {
	if !st.unjudged() {
		return
	}
	wait := min(b.o.Limits.RetryOpen<<min(st.tries, 10), mostRetryOpen)
	b.retries.after(wait, func() {
		b.openAgain(sh, st, func(error) {})
	})
}

// retries are functions to be called later, none of them after stop.
type retries struct {
	mu      sync.Mutex
	stopped bool
	timers  map[*time.Timer]struct{}
	running sync.WaitGroup
}

func (r *retries) after(wait time.Duration, f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return
	}
	if r.timers == nil {
		r.timers = make(map[*time.Timer]struct{})
	}
	r.running.Add(1)
	var t *time.Timer
	t = time.AfterFunc(wait, func() {
		defer r.running.Done()
		r.mu.Lock()
		stopped := r.stopped
		delete(r.timers, t)
		r.mu.Unlock()
		if !stopped {
			f()
		}
	})
	r.timers[t] = struct{}{}
}

func (r *retries) stop() {
	r.mu.Lock()
	r.stopped = true
	for t := range r.timers {
		if t.Stop() {
			r.running.Done()
		}
	}
	r.timers = nil
	r.mu.Unlock()
	r.running.Wait()
}
