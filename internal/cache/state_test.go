package cache

import (
	"maps"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/storage/segment"
)

// shard is a cache shard whose log is a slice: records enter at admission and are
// applied later, as those of a real log are.
type shard struct {
	*State
	log     []segment.Record
	applied int
}

func newShard(l Limits) *shard {
	return &shard{State: NewState(projection.New(Codec{}, 0), l)}
}

func (s *shard) append(e Entry) segment.Record {
	payload := AppendEntry(nil, e)
	r := segment.Record{Offset: Offset(len(s.log)), Payload: payload, Size: segment.RecordHeaderSize + len(payload)}
	s.log = append(s.log, r)
	return r
}

func (s *shard) do(op *Op, value string) error {
	e := Entry{Delete: op.Kind != Put, Expires: op.Expires, Key: op.Key, Value: []byte(value)}
	op.Size = segment.RecordHeaderSize + EntrySize(len(op.Key), len(value))
	if err := s.Admit(op, Offset(len(s.log))); err != nil {
		return err
	}
	s.append(e)
	return nil
}

func (s *shard) settle(t require.TestingT) { s.settleTo(t, len(s.log)) }

func (s *shard) settleTo(t require.TestingT, to int) {
	for ; s.applied < to; s.applied++ {
		require.NoError(t, s.Apply(&s.log[s.applied]))
	}
}

func (s *shard) get(key string, now Millis) (string, bool) {
	ref, ok := s.Lookup([]byte(key), now)
	if !ok {
		return "", false
	}
	e, err := DecodeEntry(s.log[ref.Offset].Payload)
	if err != nil || string(e.Key) != key {
		return "broken", true
	}
	return string(e.Value), true
}

// modelKey is one key of the model: the newest state, in flight included.
type modelKey struct {
	value   string
	expires Millis
	version Offset
}

func TestCacheAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{MaxKeys: rapid.IntRange(0, 6).Draw(t, "max keys"), Evict: rapid.Bool().Draw(t, "evict")}
		s := newShard(limits)
		model, stable := map[string]modelKey{}, map[string]modelKey{}
		// history[n] is the model after the log's first n records.
		history := []map[string]modelKey{{}}
		remember := func() {
			for len(history) <= len(s.log) {
				history = append(history, maps.Clone(model))
			}
		}
		now := Millis(1000)
		live := func(m map[string]modelKey, k string) (modelKey, bool) {
			v, ok := m[k]
			return v, ok && (v.expires == 0 || v.expires > now)
		}
		settle := func(to int) {
			s.settleTo(t, to)
			stable = history[to]
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			now += Millis(rapid.IntRange(0, 30).Draw(t, "pause"))
			k := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h"}).Draw(t, "key")
			was, lives := live(model, k)
			next := Offset(len(s.log))
			switch rapid.IntRange(0, 7).Draw(t, "op") {
			case 0, 1: // put
				v := modelKey{value: strings.Repeat(k, rapid.IntRange(0, 40).Draw(t, "len")), version: next}
				op := &Op{Kind: Put, Key: []byte(k), Now: now}
				if rapid.Bool().Draw(t, "ttl") {
					d, err := Deadline(now, 20)
					require.NoError(t, err)
					op.Expires, v.expires = d, d
				}
				switch op.Condition = Condition(rapid.IntRange(0, 2).Draw(t, "condition")); op.Condition {
				case AtVersion:
					op.Version = Offset(rapid.IntRange(0, len(s.log)).Draw(t, "version"))
				}
				holds := op.Condition == Always || op.Condition == Absent && !lives ||
					op.Condition == AtVersion && lives && was.version == op.Version
				err := s.do(op, v.value)
				_, held := model[k]
				switch {
				case !holds:
					require.ErrorIs(t, err, ErrCondition)
					require.Equal(t, lives, op.Live)
					if lives {
						require.Equal(t, was.version, op.Old.Version)
					}
				case !held && limits.MaxKeys > 0 && len(model) >= limits.MaxKeys:
					require.ErrorIs(t, err, ErrFull)
				default:
					require.NoError(t, err)
					model[k] = v
				}
			case 2: // delete
				err := s.do(&Op{Kind: Delete, Key: []byte(k), Now: now}, "")
				if _, held := model[k]; held {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, ErrNothing)
				}
				delete(model, k)
			case 3:
				settle(rapid.IntRange(s.applied, len(s.log)).Draw(t, "settled"))
			case 4: // sweep
				for _, v := range s.Expired(now, 10) {
					if s.do(&Op{Kind: Expire, Key: v.Key, Version: v.Version, Now: now}, "") == nil {
						_, lives := live(model, string(v.Key))
						require.False(t, lives, "a live value was expired")
						delete(model, string(v.Key))
						remember()
					}
				}
			case 5: // make room as a put would
				for _, v := range s.Victims([]byte(k), 40) {
					if s.do(&Op{Kind: Evict, Key: v.Key, Version: v.Version, Now: now}, "") == nil {
						delete(model, string(v.Key))
						remember()
					}
				}
			case 6: // the log takes back some of what is not applied
				to := rapid.IntRange(s.applied, len(s.log)).Draw(t, "back to")
				s.log, history = s.log[:to], history[:to+1]
				s.Revert(Offset(to))
				model = maps.Clone(history[to])
			case 7: // compaction copies a key
				if ref, ok := s.Proj.Get([]byte(k)); ok {
					rec := s.log[ref.Offset]
					if s.AdmitCopy(&projection.Copy{Key: []byte(k), From: ref.Offset}) == nil {
						payload, err := (Codec{}).Copy(&rec, projection.Change{Key: []byte(k)}, ref)
						require.NoError(t, err)
						s.log = append(s.log, segment.Record{Offset: next, Payload: payload, Size: segment.RecordHeaderSize + len(payload)})
					}
				}
			}
			remember()
			keys, _ := s.Sums()
			require.Equal(t, int64(len(model)), keys, "keys, in flight included")
			if limits.MaxKeys > 0 {
				require.LessOrEqual(t, len(model), limits.MaxKeys)
			}
			for _, k := range []string{"a", "b", "c", "d"} {
				want, ok := live(stable, k)
				got, has := s.get(k, now)
				require.Equal(t, ok, has, k)
				if ok {
					require.Equal(t, want.value, got)
					ref, _ := s.Lookup([]byte(k), now)
					require.Equal(t, want.version, ref.Version, "the version survives every copy")
				}
			}
		}
		// A restart reads the log and finds the same.
		settle(len(s.log))
		again := newShard(limits)
		again.log = s.log
		again.settle(t)
		for k := range model {
			want, ok := live(model, k)
			got, has := again.get(k, now)
			require.Equal(t, ok, has)
			if ok {
				require.Equal(t, want.value, got)
			}
		}
	})
}

func TestDeadlineRefusesWhatCannotBeMeant(t *testing.T) {
	for _, ttl := range []uint64{0, math.MaxUint64, math.MaxInt64} {
		_, err := Deadline(1_700_000_000_000, ttl)
		require.ErrorIs(t, err, ErrTTL, ttl)
	}
	d, err := Deadline(1000, math.MaxInt64-1000)
	require.NoError(t, err)
	require.Equal(t, Millis(math.MaxInt64), d)
}

func TestMaxBytesRefusesGrowthAndLetsShrinkingIn(t *testing.T) {
	s := newShard(Limits{MaxBytes: 200})
	require.NoError(t, s.do(&Op{Kind: Put, Key: []byte("k")}, strings.Repeat("v", 100)))
	require.ErrorIs(t, s.do(&Op{Kind: Put, Key: []byte("l")}, strings.Repeat("v", 100)), ErrFull)
	require.ErrorIs(t, s.do(&Op{Kind: Put, Key: []byte("k")}, strings.Repeat("v", 200)), ErrFull)
	s.settle(t)
	v, ok := s.get("k", 1)
	require.True(t, ok)
	require.Len(t, v, 100, "a refused put leaves the old value")
	s.SetLimits(Limits{MaxBytes: 50})
	require.NoError(t, s.do(&Op{Kind: Put, Key: []byte("k")}, "v"))
}

func TestEvictionTakesTheNearestExpiry(t *testing.T) {
	s := newShard(Limits{MaxKeys: 3, Evict: true})
	for k, expires := range map[string]Millis{"a": 300, "b": 100, "c": 0} {
		require.NoError(t, s.do(&Op{Kind: Put, Key: []byte(k), Expires: expires}, "v"))
	}
	s.settle(t)
	require.Equal(t, []Victim{{Key: []byte("b"), Version: mustVersion(t, s, "b")}}, s.Victims([]byte("d"), 10))
	s.SetLimits(Limits{MaxKeys: 1, Evict: true})
	require.Nil(t, s.Victims([]byte("d"), 10), "keys without a deadline are not evicted: no set of victims would do")
}

func mustVersion(t *testing.T, s *shard, k string) Offset {
	ref, ok := s.Proj.Get([]byte(k))
	require.True(t, ok)
	return ref.Version
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add(AppendEntry(nil, Entry{Key: []byte("k"), Value: []byte("v"), Expires: 5}))
	f.Add(AppendEntry(nil, Entry{Key: []byte("k"), Delete: true, Copied: true, Origin: 9}))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := DecodeEntry(b)
		if err != nil {
			require.ErrorIs(t, err, ErrEntry)
			return
		}
		require.Equal(t, b, AppendEntry(nil, e))
	})
}

// TestACopyIsLargerThanItsPut holds what a value must leave room for.
func TestACopyIsLargerThanItsPut(t *testing.T) {
	e := Entry{Key: make([]byte, MaxKeyBytes), Value: []byte("value"), Copied: true, Origin: 1}
	require.Len(t, AppendEntry(nil, e), MaxOverhead+len(e.Value))
}
