package partition

import (
	"sync/atomic"
	"time"
)

// Budget bounds the payload bytes of publishes that are accepted and not answered. One
// that is larger than the whole is let through alone. Budgets form a chain: a publish
// needs room in each.
type Budget struct {
	limit  int64
	scope  Scope
	parent *Budget
	used   atomic.Int64
	quota  atomic.Pointer[Quota] // nil: no bound on the rate
}

// NewBudget makes a budget of limit bytes, 0 or less for none, below parent, which may
// be nil.
func NewBudget(limit int64, scope Scope, parent *Budget) *Budget {
	return &Budget{limit: limit, scope: scope, parent: parent}
}

// SetQuota bounds the rate of what is taken in from now on; nil is no bound.
func (b *Budget) SetQuota(q *Quota) { b.quota.Store(q) }

// Quota is the bound on the rate; nil for none.
func (b *Budget) Quota() *Quota { return b.quota.Load() }

// Admit is Acquire of cost bytes for a write of so many payload bytes and records, which
// is charged to the quota too. What it refuses takes nothing, in neither.
func (b *Budget) Admit(cost, bytes int64, records int) error {
	if err := b.Acquire(cost); err != nil || b == nil {
		return err
	}
	q := b.quota.Load()
	if q == nil {
		return nil
	}
	if err := q.take(time.Now(), bytes, records); err != nil {
		b.Release(cost)
		return err
	}
	return nil
}

// Used is how many bytes are taken.
func (b *Budget) Used() int64 { return b.used.Load() }

// Acquire takes n bytes from b and those above it, or from none of them. A nil budget
// has no bound.
func (b *Budget) Acquire(n int64) error {
	for c := b; c != nil; c = c.parent {
		used := c.used.Add(n)
		if c.limit <= 0 || used <= c.limit || used == n {
			continue
		}
		for d := b; ; d = d.parent {
			d.used.Add(-n)
			if d == c {
				return overloads[c.scope]
			}
		}
	}
	return nil
}

// Release gives n bytes back.
func (b *Budget) Release(n int64) {
	for c := b; c != nil; c = c.parent {
		c.used.Add(-n)
	}
}
