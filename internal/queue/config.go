package queue

import (
	"fmt"
	"time"
)

// Limits and defaults, from the wire protocol.
const (
	DefaultVisibility  = 30 * time.Second
	MaxVisibility      = 12 * time.Hour
	DefaultMaxAttempts = 5
	MaxMaxAttempts     = 1000
	DefaultMaxInFlight = 10_000
	MostInFlight       = 10 * DefaultMaxInFlight
	MaxPollRecords     = 1000
	MaxGroupName       = 128 // bytes
	MaxConsumerName    = 128 // bytes
	MaxDelay           = 12 * time.Hour
)

// Config is what a group is set to. The zero value of a field means its default.
type Config struct {
	// Visibility is how long a claim stands when the poll does not say; at most MaxVisibility.
	Visibility time.Duration
	// MaxAttempts is how many deliveries a record gets before it is a dead letter, 1 to
	// MaxMaxAttempts.
	MaxAttempts int
	// Backoff is the delay after the first nack that names none; it grows by Factor with
	// each attempt up to BackoffMax. Zero: such a nack makes the record ready at once.
	Backoff, BackoffMax time.Duration
	// Factor of the backoff's growth, 1 to 10; default 2.
	Factor float64
	// MaxInFlight bounds claimed and delayed records; default DefaultMaxInFlight.
	MaxInFlight int
	// Exclusive lets one named consumer at a time poll.
	Exclusive bool
}

// Validate refuses a configuration that cannot be meant.
func (c Config) Validate() error {
	switch {
	case c.Visibility < 0 || c.Visibility > MaxVisibility:
		return fmt.Errorf("%w: visibility %v, want more than 0 and at most %v", ErrInvalid, c.Visibility, MaxVisibility)
	case c.MaxAttempts < 0 || c.MaxAttempts > MaxMaxAttempts:
		return fmt.Errorf("%w: max attempts %d, want 1 to %d", ErrInvalid, c.MaxAttempts, MaxMaxAttempts)
	case c.Backoff < 0 || c.Backoff > MaxDelay || c.BackoffMax < 0 || c.BackoffMax > MaxDelay:
		return fmt.Errorf("%w: backoff %v up to %v, want 0 to %v", ErrInvalid, c.Backoff, c.BackoffMax, MaxDelay)
	case c.BackoffMax != 0 && c.BackoffMax < c.Backoff:
		return fmt.Errorf("%w: backoff %v is above its bound %v", ErrInvalid, c.Backoff, c.BackoffMax)
	case c.Factor != 0 && !(c.Factor >= 1 && c.Factor <= 10):
		return fmt.Errorf("%w: backoff factor %v, want 1 to 10", ErrInvalid, c.Factor)
	case c.MaxInFlight < 0 || c.MaxInFlight > MostInFlight:
		return fmt.Errorf("%w: max in flight %d, want 1 to %d", ErrInvalid, c.MaxInFlight, MostInFlight)
	}
	return nil
}

func (c Config) visibility() time.Duration {
	if c.Visibility == 0 {
		return DefaultVisibility
	}
	return c.Visibility
}

func (c Config) maxAttempts() uint32 {
	if c.MaxAttempts == 0 {
		return DefaultMaxAttempts
	}
	return uint32(c.MaxAttempts)
}

func (c Config) maxInFlight() int {
	if c.MaxInFlight == 0 {
		return DefaultMaxInFlight
	}
	return c.MaxInFlight
}

// delay is how long a record waits after the nack of its attempt number attempts. The
// jitter, up to a tenth either way, comes from the offset, so that records nacked
// together do not return together and a run can be repeated.
func (c Config) delay(offset uint64, attempts uint32) time.Duration {
	if c.Backoff == 0 {
		return 0
	}
	factor, limit := c.Factor, c.BackoffMax
	if factor == 0 {
		factor = 2
	}
	if limit == 0 {
		limit = MaxDelay
	}
	d := float64(c.Backoff)
	for i := uint32(1); i < attempts && d < float64(limit); i++ {
		d *= factor
	}
	d = min(d, float64(limit))
	h := (offset+1)*0x9e3779b97f4a7c15 ^ uint64(attempts)*0xbf58476d1ce4e5b9
	h ^= h >> 31
	return time.Duration(d * (0.9 + 0.2*float64(h%1024)/1023))
}
