package meta

import (
	"bytes"
	"maps"
)

// SetFault puts every later call under rule; nil ends it. rule runs outside the
// store's lock and may be called from several goroutines.
func (m *Memory) SetFault(rule func(Call) Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.fault = rule
}

// SetOutage makes every call fail with ErrUnavailable and watchers hear nothing until
// it is switched off. Leases go on running out.
func (m *Memory) SetOutage(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.outage = on
	m.wakeLocked()
}

// Expire ends a lease now, with its keys.
func (m *Memory) Expire(id LeaseID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endLeaseLocked(id)
}

// Tick ends the leases that ran out on the store's clock and wakes watchers.
func (m *Memory) Tick() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expireLocked()
}

// Version is that of the last transaction.
func (m *Memory) Version() Version {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.version
}

// Compact forgets the history up to and including version.
func (m *Memory) Compact(version Version) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.mu.history) > 0 && m.mu.history[0].version <= version {
		m.mu.history = m.mu.history[1:]
	}
	m.mu.floor = max(m.mu.floor, min(version, m.mu.version))
	m.wakeLocked()
}

// Backup is the contents of a store at one version.
type Backup struct {
	keys    map[string]Entry
	version Version
}

// Backup copies the store's contents. Leases and the keys that hang on them are not in
// it.
func (m *Memory) Backup() *Backup {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := &Backup{keys: map[string]Entry{}, version: m.mu.version}
	for k, e := range m.mu.keys {
		if e.Lease == 0 {
			e.Value = bytes.Clone(e.Value)
			b.keys[k] = e
		}
	}
	return b
}

// Restore puts the store back to b: versions go back, all leases end, and watchers are
// told ErrCompacted.
func (m *Memory) Restore(b *Backup) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.keys = maps.Clone(b.keys)
	m.mu.version = b.version
	m.mu.history = nil
	m.mu.floor = b.version
	m.mu.leases = map[LeaseID]*memoryLease{}
	m.mu.epoch++
	m.wakeLocked()
}

// Close ends the store: calls and watchers report ErrClosed.
func (m *Memory) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.closed = true
	m.wakeLocked()
}
