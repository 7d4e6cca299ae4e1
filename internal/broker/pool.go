package broker

import "sync"

// pool runs tasks on at most a number of goroutines, none of which stays when there is
// nothing to do. Its queue is bounded by the shards there are.
type pool struct {
	limit int

	mu      sync.Mutex
	queue   []func()
	running int
	closed  bool
	done    sync.WaitGroup
}

// submit queues a task. False: the pool is closed and the task will not run.
func (p *pool) submit(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.queue = append(p.queue, f)
	if p.running < p.limit {
		p.running++
		p.done.Go(p.work)
	}
	return true
}

func (p *pool) work() {
	for {
		p.mu.Lock()
		if len(p.queue) == 0 {
			p.running--
			p.queue = nil
			p.mu.Unlock()
			return
		}
		f := p.queue[0]
		p.queue[0] = nil
		p.queue = p.queue[1:]
		p.mu.Unlock()
		f()
	}
}

// close refuses new tasks and waits for those queued.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.done.Wait()
}
