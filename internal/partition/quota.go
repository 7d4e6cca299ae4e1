package partition

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Quota bounds how fast a tenant writes: payload bytes and records a second, over all its
// streams, caches and counters on this node. A second's worth may come at once.
//
// What is written is charged in full, a batch that is larger than what is left included:
// the quota is then in debt, and nothing more is taken until that is paid. So a batch of
// any size can be written, none waits behind smaller ones for ever, and over time no more
// than the quota is taken. What is refused costs nothing; what is taken and then not
// written, by a full disk say, is not given back.
//
// Those refused are told to come back one after another, each when the ones before it
// could have been taken, for otherwise all would come at once and all but one be refused
// again. They hold no place: who comes first is taken.
type Quota struct {
	tenant string
	mu     sync.Mutex
	bytes  bucket
	record bucket
}

// mostLine bounds how far into the future those refused are spread, so that a client
// that asks again and again without waiting does not send the others away for long.
const mostLine = 5 * time.Second

// NewQuota makes the quota of a tenant; zero or less is no bound, and nil none at all.
func NewQuota(tenant string, bytesPerSecond, recordsPerSecond int64) *Quota {
	if bytesPerSecond <= 0 && recordsPerSecond <= 0 {
		return nil
	}
	return &Quota{tenant: tenant, bytes: newBucket(bytesPerSecond), record: newBucket(recordsPerSecond)}
}

// Same reports whether the quota has these bounds.
func (q *Quota) Same(bytesPerSecond, recordsPerSecond int64) bool {
	if q == nil {
		return bytesPerSecond <= 0 && recordsPerSecond <= 0
	}
	return q.bytes.limit() == max(0, bytesPerSecond) && q.record.limit() == max(0, recordsPerSecond)
}

// take charges a write, or refuses it with a *QuotaError. A nil quota has no bound.
func (q *Quota) take(now time.Time, bytes int64, records int) error {
	if q == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if debt := q.bytes.debt(now); debt > 0 {
		return &QuotaError{Tenant: q.tenant, What: "bytes", PerSecond: q.bytes.limit(), RetryAfter: q.bytes.later(now, debt, bytes)}
	}
	if debt := q.record.debt(now); debt > 0 {
		return &QuotaError{Tenant: q.tenant, What: "records", PerSecond: q.record.limit(), RetryAfter: q.record.later(now, debt, int64(records))}
	}
	q.bytes.charge(now, bytes)
	q.record.charge(now, int64(records))
	return nil
}

// bucket is one of a quota's bounds; without a limiter it is none.
type bucket struct {
	*rate.Limiter
	line time.Time // when the last that was refused could have been taken
}

func newBucket(n int64) bucket {
	if n <= 0 {
		return bucket{}
	}
	return bucket{Limiter: rate.NewLimiter(rate.Limit(n), int(n))}
}

func (b *bucket) limit() int64 {
	if b.Limiter == nil {
		return 0
	}
	return int64(b.Limit())
}

// debt is how long until there is anything left; 0 when there is.
func (b *bucket) debt(now time.Time) time.Duration {
	if b.Limiter == nil {
		return 0
	}
	left := b.TokensAt(now)
	if left > 0 {
		return 0
	}
	return b.span(-left) + 1
}

// span is how long n takes at the limit.
func (b *bucket) span(n float64) time.Duration {
	return time.Duration(n / float64(b.Limit()) * float64(time.Second))
}

// later is when a write of n that was refused should come back: in whole milliseconds,
// as clients are told.
func (b *bucket) later(now time.Time, debt time.Duration, n int64) time.Duration {
	at := now.Add(debt)
	if b.line.After(at) {
		at = b.line
	}
	b.line = at.Add(b.span(float64(n)))
	if most := now.Add(debt + mostLine); b.line.After(most) {
		b.line = most
	}
	return at.Sub(now).Truncate(time.Millisecond) + time.Millisecond
}

// charge takes n, in pieces that the limiter allows.
func (b *bucket) charge(now time.Time, n int64) {
	if b.Limiter == nil {
		return
	}
	for burst := int64(b.Burst()); n > 0; n -= burst {
		b.ReserveN(now, int(min(n, burst)))
	}
}

// QuotaError refuses a write of a tenant that has written as fast as it may. Nothing was
// done.
type QuotaError struct {
	Tenant     string
	What       string // bytes or records
	PerSecond  int64
	RetryAfter time.Duration // when to come back, in whole milliseconds
}

func (e *QuotaError) Error() string {
	return fmt.Sprintf("partition: tenant %s has written its %d %s a second; write again after %v", e.Tenant, e.PerSecond, e.What, e.RetryAfter)
}
