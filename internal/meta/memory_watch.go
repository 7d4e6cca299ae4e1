package meta

import (
	"bytes"
	"context"
	"fmt"
	"sort"
	"strings"
	"sync/atomic"
)

// Watch implements Store.
func (m *Memory) Watch(ctx context.Context, prefix string, after Version) (Watcher, error) {
	if _, err := m.begin(ctx, Call{"watch", prefix}); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if after < m.mu.floor || after > m.mu.version {
		return nil, fmt.Errorf("watch %q after version %d (known: %d to %d): %w", prefix, after, m.mu.floor, m.mu.version, ErrCompacted)
	}
	return &memoryWatcher{store: m, prefix: prefix, after: after, epoch: m.mu.epoch, done: make(chan struct{})}, nil
}

type memoryWatcher struct {
	store  *Memory
	prefix string
	after  Version // every change up to here was handed out
	epoch  uint64
	closed atomic.Bool
	done   chan struct{}
}

// Next implements Watcher.
func (w *memoryWatcher) Next(ctx context.Context) ([]Event, error) {
	for {
		if w.closed.Load() {
			return nil, ErrClosed
		}
		events, wait, err := w.poll()
		if err != nil || len(events) > 0 {
			return events, err
		}
		select {
		case <-wait:
		case <-w.done:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (w *memoryWatcher) poll() ([]Event, <-chan struct{}, error) {
	m := w.store
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.mu.closed:
		return nil, nil, ErrClosed
	case w.epoch != m.mu.epoch || w.after < m.mu.floor:
		return nil, nil, fmt.Errorf("watch %q after version %d: %w", w.prefix, w.after, ErrCompacted)
	case m.mu.outage:
		return nil, m.mu.changed, nil
	}
	m.expireLocked()
	i := sort.Search(len(m.mu.history), func(i int) bool { return m.mu.history[i].version > w.after })
	for _, r := range m.mu.history[i:] {
		w.after = r.version
		var out []Event
		for _, e := range r.events {
			if strings.HasPrefix(e.Key, w.prefix) {
				e.Value = bytes.Clone(e.Value)
				out = append(out, e)
			}
		}
		if len(out) > 0 {
			return out, nil, nil
		}
	}
	return nil, m.mu.changed, nil
}

// Close implements Watcher.
func (w *memoryWatcher) Close() {
	if !w.closed.Swap(true) {
		close(w.done)
	}
}
