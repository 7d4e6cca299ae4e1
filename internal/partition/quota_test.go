package partition

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func quotaError(t require.TestingT, err error) *QuotaError {
	var q *QuotaError
	require.True(t, errors.As(err, &q), "%v", err)
	return q
}

func TestQuotaTakesASecondAtOnceAndThenItsRate(t *testing.T) {
	now := time.Unix(1000, 0)
	q := NewQuota("acme", 1000, 10)
	for range 10 {
		require.NoError(t, q.take(now, 10, 1))
	}
	e := quotaError(t, q.take(now, 10, 1))
	require.Equal(t, "records", e.What)
	require.Equal(t, time.Millisecond, e.RetryAfter)
	require.ErrorContains(t, e, "tenant acme has written its 10 records a second")
	now = now.Add(100 * time.Millisecond)
	require.NoError(t, q.take(now, 10, 1), "one of its ten")

	// One that is larger than a second's worth is taken, and paid for.
	now = now.Add(time.Minute)
	require.NoError(t, q.take(now, 5000, 1))
	e = quotaError(t, q.take(now, 1, 1))
	require.Equal(t, "bytes", e.What)
	require.Equal(t, 4001*time.Millisecond, e.RetryAfter)
	require.Error(t, q.take(now.Add(e.RetryAfter-2*time.Millisecond), 1, 1))
	require.NoError(t, q.take(now.Add(e.RetryAfter), 1, 1), "after as long as was told")
}

func TestQuotaRefusalCostsNothing(t *testing.T) {
	now := time.Unix(1000, 0)
	q := NewQuota("acme", 1000, 10)
	require.NoError(t, q.take(now, 3000, 1))
	for range 1000 {
		wait := quotaError(t, q.take(now, 1<<20, 100)).RetryAfter
		require.GreaterOrEqual(t, wait, 2001*time.Millisecond)
		require.LessOrEqual(t, wait, 2001*time.Millisecond+mostLine)
	}
	now = now.Add(2001 * time.Millisecond)
	for range 9 {
		require.NoError(t, q.take(now, 0, 1), "the records were not charged either")
	}
}

// Those refused come back one after another and find their share.
func TestQuotaSpreadsThoseItRefuses(t *testing.T) {
	now := time.Unix(1000, 0)
	q := NewQuota("acme", 0, 100)
	require.NoError(t, q.take(now, 0, 100))
	var waits []time.Duration
	for range 200 {
		waits = append(waits, quotaError(t, q.take(now, 0, 1)).RetryAfter)
	}
	require.Less(t, waits[0], 10*time.Millisecond)
	require.InDelta(t, 1990*time.Millisecond, waits[199], float64(2*time.Millisecond))
	for i, wait := range waits {
		require.NoError(t, q.take(now.Add(wait), 0, 1), "the %dth", i)
	}
}

func TestQuotaBounds(t *testing.T) {
	require.Nil(t, NewQuota("t", 0, 0))
	require.NoError(t, (*Quota)(nil).take(time.Now(), 1<<40, 1<<30))
	require.True(t, (*Quota)(nil).Same(0, 0))
	require.False(t, (*Quota)(nil).Same(1, 0))
	require.True(t, NewQuota("t", 7, 0).Same(7, 0))
	require.False(t, NewQuota("t", 7, 0).Same(7, 1))

	// What a quota refuses is given back to the budget.
	node := NewBudget(0, ScopeNode, nil)
	b := NewBudget(1000, ScopeTenant, node)
	b.SetQuota(NewQuota("t", 1, 0))
	require.NoError(t, b.Admit(100, 50, 1))
	quotaError(t, b.Admit(100, 50, 1))
	require.Equal(t, int64(100), b.Used())
	require.Equal(t, int64(100), node.Used())
	require.ErrorIs(t, b.Admit(1000, 50, 1), error(overloads[ScopeTenant]), "room is asked for first")
	b.SetQuota(nil)
	require.NoError(t, b.Admit(100, 50, 1))
	require.NoError(t, (*Budget)(nil).Admit(1, 1, 1))
}

// Whatever comes when: no more is taken than a second's worth, the rate, and the one
// write that went into debt.
func TestQuotaHoldsOverAnyTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, 100_000).Draw(t, "limit")
		q := NewQuota("acme", limit, 0)
		begin := time.Unix(1000, 0)
		now, taken, largest := begin, int64(0), int64(0)
		for range rapid.IntRange(1, 200).Draw(t, "writes") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "later")))
			n := rapid.Int64Range(0, 3*limit).Draw(t, "bytes")
			err := q.take(now, n, 1)
			if err != nil {
				wait := quotaError(t, err).RetryAfter
				require.Positive(t, wait)
				now = now.Add(wait)
				require.NoError(t, q.take(now, n, 1), "after as long as was told")
			}
			taken, largest = taken+n, max(largest, n)
			most := float64(limit)*(1+now.Sub(begin).Seconds()) + float64(largest)
			require.LessOrEqual(t, float64(taken), most+1)
		}
	})
}
