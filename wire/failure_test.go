package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The table of codes is frozen: other implementations have it too.
func TestFailureTable(t *testing.T) {
	var b strings.Builder
	for c := Code(1); int(c) < len(codeTable); c++ {
		fmt.Fprintf(&b, "%d %s %s %d\n", c, c, c.DefaultRetry(), c.HTTPStatus())
		parsed, ok := ParseCode(c.String())
		require.True(t, ok)
		require.Equal(t, c, parsed)
	}
	want, err := os.ReadFile("testdata/codes.golden")
	require.NoError(t, err)
	require.Equal(t, string(want), b.String())

	for r := RetryNow; r <= RetryFatal; r++ {
		require.Equal(t, r, ParseRetry(r.String()))
	}
	require.Equal(t, RetryFatal, ParseRetry("someday"))
	_, ok := ParseCode("")
	require.False(t, ok)
	require.Equal(t, "unknown", Code(999).String())
	require.Equal(t, RetryFatal, Code(999).DefaultRetry())
	require.Equal(t, "fatal", Retry(99).String())
	require.Equal(t, 500, Code(999).HTTPStatus())
}

func TestFailureIsAnError(t *testing.T) {
	var err error = fmt.Errorf("publish: %w", NewFailure(CodeShardUnavailable, "shard 3 is moving").WithReason(ReasonMoving).After(time.Second))
	require.ErrorIs(t, err, &Failure{Code: CodeShardUnavailable})
	require.ErrorIs(t, err, &Failure{Code: CodeShardUnavailable, Reason: ReasonMoving})
	require.False(t, errors.Is(err, &Failure{Code: CodeShardUnavailable, Reason: ReasonStale}))
	require.False(t, errors.Is(err, &Failure{Code: CodeStorage}))
	require.False(t, errors.Is(err, &Failure{}))
	require.EqualError(t, err, "publish: shard_unavailable (moving): shard 3 is moving")
	require.EqualError(t, &Failure{Message: "m"}, "m")
	require.EqualError(t, &Failure{CodeName: "new", Message: "m"}, "new: m")
	require.Equal(t, RetryFatal, NewFailure(CodeStaleClaim, "").WithRetry(RetryFatal).Retry)
}

func TestMillis(t *testing.T) {
	require.Equal(t, uint64(0), millis(-time.Second))
	require.Equal(t, uint64(1), millis(time.Nanosecond), "a wait must not be rounded to none")
	require.Equal(t, uint64(250), millis(250*time.Millisecond))
	require.Equal(t, 250*time.Millisecond, fromMillis(250))
	require.Positive(t, fromMillis(1<<64-1))
}

func TestFeatures(t *testing.T) {
	lo, hi := (FeatureStreamShards | FeatureExplicitShard).Words()
	require.Equal(t, uint32(FeatureStreamShards|FeatureExtended), lo)
	require.Equal(t, uint32(8), hi)
	require.Equal(t, FeatureStreamShards|FeatureExplicitShard|FeatureExtended, JoinFeatures(lo, hi))
	require.Equal(t, FeatureStreamShards, JoinFeatures(uint32(FeatureStreamShards), 8))
	require.Equal(t, FeatureExtended, JoinFeatures(1<<31, 0), "the marker alone is kept")
	require.Equal(t, "STREAM_SHARDS|EXTENDED|EXPLICIT_SHARD", (FeatureStreamShards | FeatureExplicitShard | FeatureExtended).String())
	require.True(t, FeatureStreamShards.Has(FeatureStreamShards))
	require.Equal(t, "BINARY_PUBLISH_BATCH|EVENT_BATCH_TIMESTAMPS|0x8000", Flags(0xC001).String())
	require.Equal(t, "0", Flags(0).String())
}

func TestRouting(t *testing.T) {
	data, err := os.ReadFile("testdata/routing.json")
	require.NoError(t, err)
	var v struct {
		Published []struct {
			Routing, Key  string
			Shards, Shard int
		}
		Computed []struct {
			Key, HashHex         string
			Hash                 string `json:"hash_hex"`
			Shards, Modulo, Jump int
			JumpHash             int `json:"jump_hash"`
		}
	}
	require.NoError(t, json.Unmarshal(data, &v))
	require.Len(t, v.Published, 15)
	require.Len(t, v.Computed, 25)
	for _, p := range v.Published {
		r, ok := ParseRouting(p.Routing)
		require.True(t, ok)
		require.Equal(t, p.Routing, r.String())
		require.Equal(t, p.Shard, Shard(r, []byte(p.Key), p.Shards), "%+v", p)
	}
	for _, c := range v.Computed {
		require.Equal(t, c.Hash, fmt.Sprintf("%016x", hashKey([]byte(c.Key))))
		require.Equal(t, c.Modulo, Shard(RoutingModulo, []byte(c.Key), c.Shards), "%+v", c)
		require.Equal(t, c.JumpHash, Shard(RoutingJump, []byte(c.Key), c.Shards), "%+v", c)
	}
	for _, shards := range []int{-1, 0, 1} {
		require.Zero(t, Shard(RoutingModulo, []byte("a"), shards))
		require.Zero(t, Shard(RoutingJump, []byte("a"), shards))
	}
	_, ok := ParseRouting("random")
	require.False(t, ok)
}

func TestValidName(t *testing.T) {
	for _, good := range []string{"a", "0", "A-b_c.d", strings.Repeat("x", 128), "a..b"} {
		require.NoError(t, ValidName(good), good)
	}
	for bad, why := range map[string]string{
		"": "empty", ".": "begin with", "..": "begin with", "-a": "begin with", "_a": "begin with", "a/../b": "byte 1", "a\x00b": "byte 1",
		"é": "begin with", "aé": "byte 1", "a\xff": "byte 1", "a b": "byte 1", "a:b": "byte 1", "a*": "byte 1",
		strings.Repeat("x", 129): "too long", strings.Repeat("x", 10<<10): "too long",
	} {
		err := ValidName(bad)
		require.ErrorContains(t, err, why, "%q", bad)
		require.Less(t, len(err.Error()), 300)
	}
}
