package segment_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage/segment"
)

func TestNames(t *testing.T) {
	require.Equal(t, "00000000000000000042.log", segment.SegmentName(42))
	require.Equal(t, "00000000000000000042.index", segment.IndexName(42))
	for name, want := range map[string]segment.NameClass{
		"00000000000000000042.log":       segment.NameSegment,
		"18446744073709551615.log":       segment.NameSegment,
		"00000000000000000042.index":     segment.NameIndex,
		"00000000000000000042.index.tmp": segment.NameTemporary,
		"durable.mark":                   segment.NameMark,
		"replica":                        segment.NameReplica,
		"replica.tmp":                    segment.NameTemporary,
		"epochs":                         segment.NameEpochs,
		"producers":                      segment.NameProducers,
		"snapshot":                       segment.NameSnapshot,
		"lost":                           segment.NameLost,
		".DS_Store":                      segment.NameUnknown,
		"tmp~":                           segment.NameUnknown,
		"0001.segment.bak":               segment.NameUnknown,
		"42.log":                         segment.NameUnknown,
		"00000000000000000042.log.tmp":   segment.NameUnknown,
		"99999999999999999999.log":       segment.NameUnknown,
		"0000000000000000004x.log":       segment.NameUnknown,
		"00000000000000000042.logs":      segment.NameUnknown,
		"-0000000000000000042.log":       segment.NameUnknown,
		"":                               segment.NameUnknown,
		".tmp":                           segment.NameUnknown,
	} {
		class, _ := segment.ParseName(name)
		require.Equal(t, want, class, name)
	}
	_, id := segment.ParseName("00000000000000000042.index")
	require.Equal(t, segment.ID(42), id)
}

func TestShardDirName(t *testing.T) {
	// FNV-1a 64 over "acme", 0, "default", 0, "orders", 0, "3", computed by hand.
	require.Equal(t, "acme_default_orders_3-"+fnvHex("acme\x00default\x00orders\x003"), segment.ShardDirName("acme", "default", "orders", 3))
	long := strings.Repeat("ä/..", 40)
	name := segment.ShardDirName(long, "..", "a.b", 0)
	require.NotContains(t, name, ".")
	require.NotContains(t, name, "/")
	require.Less(t, len(name), 140)
	// Keys that read alike do not meet.
	require.NotEqual(t, segment.ShardDirName("a", "b_c", "d", 0), segment.ShardDirName("a_b", "c", "d", 0))
	require.NotEqual(t, segment.ShardDirName("a", "b", "c.d", 0), segment.ShardDirName("a", "b", "c_d", 0))
}

func fnvHex(s string) string {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	const digits = "0123456789abcdef"
	var out [16]byte
	for i := range out {
		out[15-i] = digits[h>>(4*i)&15]
	}
	return string(out[:])
}
