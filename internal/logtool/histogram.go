package logtool

import (
	"math/bits"
	"time"
)

// histogram counts durations in buckets that are at most 1/32 wide of their value.
type histogram struct {
	counts [64 * subBuckets]uint32
	total  uint64
}

const (
	subBits    = 5
	subBuckets = 1 << subBits
)

func bucketOf(d time.Duration) int {
	n := uint64(max(d, 0))
	if n < subBuckets {
		return int(n)
	}
	exp := bits.Len64(n) - 1 - subBits
	return (exp+1)*subBuckets + int(n>>exp) - subBuckets
}

// bucketTop is the greatest duration of a bucket.
func bucketTop(i int) time.Duration {
	if i < subBuckets {
		return time.Duration(i)
	}
	exp := i/subBuckets - 1
	return time.Duration((uint64(i%subBuckets+subBuckets)+1)<<exp - 1)
}

func (h *histogram) add(d time.Duration) {
	h.counts[bucketOf(d)]++
	h.total++
}

func (h *histogram) merge(o *histogram) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.total += o.total
}

// quantile is a duration that a share q of all did not exceed, in microseconds.
func (h *histogram) quantile(q float64) float64 {
	if h.total == 0 {
		return 0
	}
	rank := uint64(q*float64(h.total-1)) + 1
	var seen uint64
	for i, n := range h.counts {
		if seen += uint64(n); seen >= rank {
			return float64(bucketTop(i)) / 1e3
		}
	}
	return 0
}
