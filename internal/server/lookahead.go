package server

import (
	"io"
	"sync"
)

// How much of a link is read ahead, and in what pieces. A client that has sent more than
// that behind a request that waits is not watched any further.
const (
	aheadPiece = 2 << 10
	aheadMost  = 64 << 10
)

// lookahead is a session's link as its reader sees it. While a handler waits it reads on,
// to notice the end of the link, and keeps what came for the reader. At other times it is
// not in the way.
//
// Read, watch and unwatch are the session's; the reading ahead has a goroutine, of which
// there is at most one, and which ends with its present read once nobody watches.
type lookahead struct {
	src io.Reader
	run func(func())
	// used: something may be under way or kept. It is the session's alone.
	used bool

	mu struct {
		sync.Mutex
		kept    []byte
		err     error // met behind kept
		reading bool
		ended   func(error) // set while somebody watches
	}
	// changed is signalled when a read ahead has ended.
	changed *sync.Cond
}

func (a *lookahead) init(src io.Reader, run func(func())) {
	a.src, a.run = src, run
	a.changed = sync.NewCond(&a.mu)
}

// Read implements io.Reader.
func (a *lookahead) Read(p []byte) (int, error) {
	if !a.used {
		return a.src.Read(p)
	}
	a.mu.Lock()
	for len(a.mu.kept) == 0 && a.mu.err == nil && a.mu.reading {
		a.changed.Wait()
	}
	n, err := copy(p, a.mu.kept), a.mu.err
	a.mu.kept = a.mu.kept[n:]
	if n == 0 && err == nil {
		a.mu.kept, a.used = nil, false
	}
	a.mu.Unlock()
	switch {
	case n > 0:
		return n, nil
	case err != nil:
		return 0, err
	}
	return a.src.Read(p)
}

// watch has ended called when the link ends, with the error of the read that found it, at
// once if it has already. It may be called until the next watch.
func (a *lookahead) watch(ended func(error)) {
	a.used = true
	a.mu.Lock()
	err := a.mu.err
	start := err == nil && !a.mu.reading
	a.mu.ended = ended
	a.mu.reading = a.mu.reading || start
	a.mu.Unlock()
	if err != nil {
		ended(err)
	}
	if start {
		a.run(a.readAhead)
	}
}

func (a *lookahead) unwatch() {
	a.mu.Lock()
	a.mu.ended = nil
	a.mu.Unlock()
}

func (a *lookahead) readAhead() {
	piece := make([]byte, aheadPiece)
	a.mu.Lock()
	for a.mu.ended != nil && a.mu.err == nil && len(a.mu.kept) < aheadMost {
		a.mu.Unlock()
		n, err := a.src.Read(piece)
		a.mu.Lock()
		a.mu.kept = append(a.mu.kept, piece[:n]...)
		a.mu.err = err
		a.changed.Broadcast()
	}
	ended, err := a.mu.ended, a.mu.err
	a.mu.reading = false
	a.changed.Broadcast()
	a.mu.Unlock()
	if ended != nil && err != nil {
		ended(err)
	}
}
