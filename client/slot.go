package client

import (
	"context"
	"strings"
	"sync"

	"github.com/felixlog/felix/wire"
)

// slot holds one connection, made on demand and again after it was lost. Those
// who want it meanwhile share one attempt.
type slot struct {
	core *core
	// lent: it carries the requests of one at a time, who borrowed it.
	lent bool

	mu      sync.Mutex
	pipe    *pipe
	attempt *attempt
	closed  bool
	// old are pipes that ended and whose goroutines may still be at it.
	old []*pipe
}

type attempt struct {
	done chan struct{}
	pipe *pipe
	err  error
}

// get returns the connection, made if need be. The attempt goes on when ctx
// ends.
func (s *slot) get(ctx context.Context) (*pipe, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	if s.pipe != nil && s.pipe.ended() == nil {
		p := s.pipe
		s.mu.Unlock()
		return p, nil
	}
	if ctx.Err() != nil {
		s.mu.Unlock()
		return nil, s.notConnected(ctx)
	}
	a := s.attempt
	if a == nil {
		if s.pipe != nil {
			s.old = append(s.old, s.pipe)
			s.pipe = nil
		}
		a = &attempt{done: make(chan struct{})}
		s.attempt = a
		s.core.wg.Go(func() { s.make(a) })
	}
	s.mu.Unlock()
	select {
	case <-a.done:
		return a.pipe, a.err
	case <-ctx.Done():
		return nil, s.notConnected(ctx)
	}
}

func (s *slot) notConnected(ctx context.Context) error {
	return &Error{Op: "connect to " + strings.Join(s.core.endpoints.list(), ", "), Retry: wire.RetryNow, Err: context.Cause(ctx)}
}

func (s *slot) make(a *attempt) {
	s.mu.Lock()
	old := s.old
	s.old = nil
	s.mu.Unlock()
	for _, p := range old {
		p.wg.Wait()
	}
	session, err := s.core.connect(s.core.ctx, 0)
	if err == nil {
		addr := session.addr
		a.pipe = newPipe(session, s.core.config.answerTimeout, func(err error) {
			if f := s.core.config.events.OnDisconnect; f != nil {
				f(addr, err)
			}
		})
	}
	a.err = err
	s.mu.Lock()
	s.pipe = a.pipe
	s.attempt = nil
	closed := s.closed
	s.mu.Unlock()
	close(a.done)
	if closed && a.pipe != nil {
		a.pipe.shutdown()
	}
}

// close ends the connection. An attempt under way ends with the core's context.
func (s *slot) close() {
	s.mu.Lock()
	s.closed = true
	pipes := s.old
	if s.pipe != nil {
		pipes = append(pipes, s.pipe)
	}
	s.mu.Unlock()
	for _, p := range pipes {
		p.shutdown()
	}
}
