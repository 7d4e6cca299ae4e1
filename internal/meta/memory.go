package meta

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
)

// MemoryOptions configures a Memory store.
type MemoryOptions struct {
	// Now is the clock leases are counted on; nil is time.Now. Leases end when the next
	// call or Tick notices, so a test moves its clock and then calls Tick.
	Now func() time.Time
	// History bounds the transactions kept for watchers; zero is 10,000.
	History int
}

// Memory is a Store in memory. It starts no goroutine and takes no decision by chance:
// the same calls in the same order give the same versions, leases and events. Its
// faults (Fault, Outage, Expire, Restore) belong to tests.
type Memory struct {
	opts MemoryOptions

	mu struct {
		sync.Mutex
		keys    map[string]Entry
		version Version
		history []revision // ascending; the changes after floor
		floor   Version    // changes up to here are forgotten
		leases  map[LeaseID]*memoryLease
		lastID  LeaseID
		epoch   uint64 // counts restores; a watcher of another epoch is over
		outage  bool
		fault   func(Call) Fault
		changed chan struct{} // closed and replaced at every change
		closed  bool
	}
}

type revision struct {
	version Version
	events  []Event
}

type memoryLease struct {
	ttl     time.Duration
	expires time.Time
	keys    map[string]struct{}
}

// Call is one request as a fault rule sees it.
type Call struct {
	Method string // get, list, txn, grant, keepalive, revoke, watch
	Key    string // the key or prefix, or the first key a transaction writes
}

// Fault is what happens to one call.
type Fault struct {
	// Delay passes before the call is handled; the context may end it.
	Delay time.Duration
	// Hold keeps the call until it is closed or the context ends.
	Hold <-chan struct{}
	// Refuse ends the call unhandled with ErrUnavailable.
	Refuse bool
	// LoseAnswer handles the call and reports ErrUnknownOutcome for a transaction or a
	// lease, ErrUnavailable for a read.
	LoseAnswer bool
}

// NewMemory makes an empty store.
func NewMemory(o MemoryOptions) *Memory {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.History == 0 {
		o.History = 10_000
	}
	m := &Memory{opts: o}
	m.mu.keys = map[string]Entry{}
	m.mu.leases = map[LeaseID]*memoryLease{}
	m.mu.changed = make(chan struct{})
	return m
}

// begin applies the fault rule to a call. It reports whether the answer is to be lost.
func (m *Memory) begin(ctx context.Context, c Call) (lose bool, err error) {
	m.mu.Lock()
	rule, outage, closed := m.mu.fault, m.mu.outage, m.mu.closed
	m.mu.Unlock()
	if closed {
		return false, ErrClosed
	}
	if outage {
		return false, fmt.Errorf("%s %q: %w", c.Method, c.Key, ErrUnavailable)
	}
	if rule == nil {
		return false, ctx.Err()
	}
	f := rule(c)
	if f.Refuse {
		return false, fmt.Errorf("%s %q: %w", c.Method, c.Key, ErrUnavailable)
	}
	if f.Delay > 0 {
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	if f.Hold != nil {
		select {
		case <-f.Hold:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	return f.LoseAnswer, ctx.Err()
}

func lost(c Call, err error) error {
	return fmt.Errorf("%s %q: answer lost: %w", c.Method, c.Key, err)
}

// Get implements Store.
func (m *Memory) Get(ctx context.Context, key string) (Entry, error) {
	c := Call{"get", key}
	lose, err := m.begin(ctx, c)
	if err != nil {
		return Entry{}, err
	}
	if lose {
		return Entry{}, lost(c, ErrUnavailable)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expireLocked()
	e, ok := m.mu.keys[key]
	if !ok {
		return Entry{}, fmt.Errorf("key %q: %w", key, ErrNotFound)
	}
	e.Value = bytes.Clone(e.Value)
	return e, nil
}

// List implements Store.
func (m *Memory) List(ctx context.Context, prefix, after string, limit int) (Page, error) {
	c := Call{"list", prefix}
	lose, err := m.begin(ctx, c)
	if err != nil {
		return Page{}, err
	}
	if lose {
		return Page{}, lost(c, ErrUnavailable)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expireLocked()
	var names []string
	for k := range m.mu.keys {
		if strings.HasPrefix(k, prefix) && k > after {
			names = append(names, k)
		}
	}
	sort.Strings(names)
	p := Page{Version: m.mu.version}
	if limit > 0 && len(names) > limit {
		names, p.More = names[:limit], true
	}
	for _, k := range names {
		e := m.mu.keys[k]
		e.Value = bytes.Clone(e.Value)
		p.Entries = append(p.Entries, e)
	}
	return p, nil
}

// Txn implements Store.
func (m *Memory) Txn(ctx context.Context, compares []Compare, ops []Op) (Version, error) {
	if err := CheckTxn(compares, ops); err != nil {
		return 0, err
	}
	c := Call{Method: "txn"}
	if len(ops) > 0 {
		c.Key = ops[0].Key
	}
	lose, err := m.begin(ctx, c)
	if err != nil {
		// Nothing reached the store, but a caller of a real one could not know: it gave
		// up while the request was on its way.
		if ctx.Err() != nil {
			return 0, errors.Join(ErrUnknownOutcome, err)
		}
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expireLocked()
	v, err := m.txnLocked(compares, ops)
	if lose {
		return 0, lost(c, ErrUnknownOutcome)
	}
	return v, err
}

// admitLocked says whether a transaction's compares hold and its leases live.
func (m *Memory) admitLocked(compares []Compare, ops []Op) error {
	for _, c := range compares {
		if have := m.mu.keys[c.Key].Version; have != c.Version {
			return &ConflictError{Key: c.Key, Want: c.Version, Have: have}
		}
	}
	for _, op := range ops {
		if op.Lease != 0 && m.mu.leases[op.Lease] == nil {
			return fmt.Errorf("key %q: lease %d: %w", op.Key, op.Lease, ErrLeaseExpired)
		}
	}
	return nil
}

func (m *Memory) txnLocked(compares []Compare, ops []Op) (Version, error) {
	if err := m.admitLocked(compares, ops); err != nil {
		return 0, err
	}
	if len(ops) == 0 {
		return m.mu.version, nil
	}
	m.mu.version++
	r := revision{version: m.mu.version}
	for _, op := range ops {
		old, had := m.mu.keys[op.Key]
		if had && old.Lease != 0 && m.mu.leases[old.Lease] != nil {
			delete(m.mu.leases[old.Lease].keys, op.Key)
		}
		if op.Delete {
			if had {
				delete(m.mu.keys, op.Key)
				r.events = append(r.events, Event{Deleted: true, Key: op.Key, Version: r.version})
			}
			continue
		}
		e := Entry{Key: op.Key, Value: bytes.Clone(op.Value), Version: r.version, Lease: op.Lease}
		if e.Value == nil {
			e.Value = []byte{}
		}
		m.mu.keys[op.Key] = e
		if op.Lease != 0 {
			m.mu.leases[op.Lease].keys[op.Key] = struct{}{}
		}
		r.events = append(r.events, Event{Key: op.Key, Value: e.Value, Version: r.version})
	}
	m.recordLocked(r)
	return r.version, nil
}

func (m *Memory) recordLocked(r revision) {
	m.mu.history = append(m.mu.history, r)
	if n := len(m.mu.history) - m.opts.History; n > 0 {
		m.mu.floor = m.mu.history[n-1].version
		m.mu.history = slices.Clone(m.mu.history[n:])
	}
	m.wakeLocked()
}

func (m *Memory) wakeLocked() {
	close(m.mu.changed)
	m.mu.changed = make(chan struct{})
}

// Grant implements Store.
func (m *Memory) Grant(ctx context.Context, ttl time.Duration) (LeaseID, error) {
	c := Call{Method: "grant"}
	lose, err := m.begin(ctx, c)
	if err != nil {
		return 0, err
	}
	if ttl <= 0 {
		return 0, &InvalidError{Object: "lease", Field: "ttl", Detail: "is not positive"}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.lastID++
	m.mu.leases[m.mu.lastID] = &memoryLease{ttl: ttl, expires: m.opts.Now().Add(ttl), keys: map[string]struct{}{}}
	if lose {
		return 0, lost(c, ErrUnknownOutcome)
	}
	return m.mu.lastID, nil
}

// KeepAlive implements Store.
func (m *Memory) KeepAlive(ctx context.Context, id LeaseID) (time.Duration, error) {
	c := Call{Method: "keepalive"}
	lose, err := m.begin(ctx, c)
	if err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expireLocked()
	l := m.mu.leases[id]
	if l == nil {
		return 0, fmt.Errorf("lease %d: %w", id, ErrLeaseExpired)
	}
	l.expires = m.opts.Now().Add(l.ttl)
	if lose {
		return 0, lost(c, ErrUnknownOutcome)
	}
	return l.ttl, nil
}

// Revoke implements Store.
func (m *Memory) Revoke(ctx context.Context, id LeaseID) error {
	c := Call{Method: "revoke"}
	lose, err := m.begin(ctx, c)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endLeaseLocked(id)
	if lose {
		return lost(c, ErrUnknownOutcome)
	}
	return nil
}

func (m *Memory) endLeaseLocked(id LeaseID) {
	l := m.mu.leases[id]
	if l == nil {
		return
	}
	delete(m.mu.leases, id)
	if len(l.keys) == 0 {
		return
	}
	names := make([]string, 0, len(l.keys))
	for k := range l.keys {
		names = append(names, k)
	}
	sort.Strings(names)
	m.mu.version++
	r := revision{version: m.mu.version}
	for _, k := range names {
		delete(m.mu.keys, k)
		r.events = append(r.events, Event{Deleted: true, Key: k, Version: r.version})
	}
	m.recordLocked(r)
}

func (m *Memory) expireLocked() {
	now := m.opts.Now()
	var over []LeaseID
	for id, l := range m.mu.leases {
		if !now.Before(l.expires) {
			over = append(over, id)
		}
	}
	slices.Sort(over)
	for _, id := range over {
		m.endLeaseLocked(id)
	}
}
