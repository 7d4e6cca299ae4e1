package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

var units = []struct {
	suffix string
	bytes  int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1},
}

// ParseBytes reads a size: digits, alone or with B, kB, MB, GB, TB or the binary
// KiB, MiB, GiB, TiB. A negative size and one over 2^63-1 are refused.
func ParseBytes(s string) (int64, error) {
	digits, unit := strings.TrimSpace(s), int64(1)
	for _, u := range units {
		if rest, ok := strings.CutSuffix(digits, u.suffix); ok {
			digits, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	n, err := parseCount(digits)
	if err != nil {
		return 0, fmt.Errorf("%q is no size: use bytes, or a unit as in 256MiB", s)
	}
	if n > math.MaxInt64/unit {
		return 0, fmt.Errorf("%q is larger than any file", s)
	}
	return n * unit, nil
}

// FormatBytes writes n so that ParseBytes gives n back.
func FormatBytes(n int64) string {
	for _, u := range units[:4] {
		if n != 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}

// ParseDuration reads a Go duration, "7d", or bare digits, which are milliseconds
// as in the variables whose name ends in _MS.
func ParseDuration(s string) (time.Duration, error) {
	s = strings.TrimSpace(s)
	if n, err := parseCount(s); err == nil {
		if n > int64(math.MaxInt64/time.Millisecond) {
			return 0, fmt.Errorf("%q milliseconds is too long", s)
		}
		return time.Duration(n) * time.Millisecond, nil
	}
	if rest, ok := strings.CutSuffix(s, "d"); ok {
		n, err := parseCount(rest)
		if err == nil && n <= int64(math.MaxInt64/(24*time.Hour)) {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is no duration: use a unit as in 250ms, 10s, 24h or 7d", s)
	}
	return d, nil
}

func parseCount(s string) (int64, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%q is no whole number", s)
	}
	return int64(n), nil
}

func formatCount(n int64) string { return strconv.FormatInt(n, 10) }
