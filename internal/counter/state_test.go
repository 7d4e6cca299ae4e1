package counter

import (
	"maps"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// shard is a counter shard whose log is a slice.
type shard struct {
	*State
	log     []segment.Record
	head    int
	applied int
}

func newShard(head int, log []segment.Record) *shard {
	return &shard{State: NewState(Offset(head)), log: log, head: head, applied: head}
}

func (s *shard) append(payload []byte) {
	s.log = append(s.log, segment.Record{Offset: Offset(len(s.log)), Payload: payload, Size: segment.RecordHeaderSize + len(payload)})
}

func (s *shard) add(key string, delta int64, tag *Tag) (int64, error) {
	a := &Add{Key: []byte(key), Delta: delta, Tag: tag}
	err := s.Admit(a, Offset(len(s.log)))
	if err == nil {
		s.append(AppendAdd(nil, a.Key, delta, tag))
	}
	return a.Sum, err
}

func (s *shard) settle(t require.TestingT) { s.settleTo(t, len(s.log)) }

func (s *shard) settleTo(t require.TestingT, to int) {
	for ; s.applied < to; s.applied++ {
		require.NoError(t, s.Apply(&s.log[s.applied]))
	}
}

// compact restates the records below to and trims them.
func (s *shard) compact(t require.TestingT, to int) {
	seen := map[string]bool{}
	for o := s.head; o < to; o++ {
		_, err := s.Restate(&s.log[o], func(key, payload []byte) error {
			if seen[string(key)] {
				return nil
			}
			seen[string(key)] = true
			b := &storage.Batch{Payloads: [][]byte{payload}}
			if err := s.AdmitCopy(b, &projection.Copy{Key: key, From: Offset(o)}); err != nil {
				require.ErrorIs(t, err, projection.ErrSuperseded)
				return nil
			}
			s.append(b.Payloads[0])
			return nil
		})
		require.NoError(t, err)
	}
	s.settle(t)
	s.head = to
}

func TestCountersAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newShard(0, nil)
		sums, stable := map[string]int64{}, map[string]int64{}
		seen := map[Tag]bool{}
		next := map[uint64]uint64{}
		// history[n] is the model after the log's first n records.
		type past struct {
			sums map[string]int64
			seen map[Tag]bool
		}
		history := []past{{}}
		remember := func() {
			for len(history) <= len(s.log) {
				history = append(history, past{maps.Clone(sums), maps.Clone(seen)})
			}
		}
		settle := func(to int) {
			s.settleTo(t, to)
			stable = history[to].sums
		}
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			k := rapid.SampledFrom([]string{"a", "b", "c", ""}).Draw(t, "key")
			delta := rapid.OneOf(rapid.Int64Range(-5, 5), rapid.SampledFrom([]int64{math.MaxInt64, math.MinInt64})).Draw(t, "delta")
			switch rapid.IntRange(0, 6).Draw(t, "op") {
			case 0, 1, 2:
				var tag *Tag
				if id := rapid.Uint64Range(0, 2).Draw(t, "producer"); id != 0 {
					tag = &Tag{id, next[id]}
					if next[id] > 0 && rapid.Bool().Draw(t, "again") {
						tag.Sequence -= rapid.Uint64Range(1, min(next[id], 3)).Draw(t, "back")
					}
				}
				got, err := s.add(k, delta, tag)
				want := sums[k] + delta
				overflows := delta > 0 && want < sums[k] || delta < 0 && want > sums[k]
				switch {
				case tag != nil && seen[*tag]:
					require.ErrorIs(t, err, ErrRepeated)
					require.Equal(t, sums[k], got)
				case overflows:
					require.ErrorIs(t, err, ErrOverflow)
				default:
					require.NoError(t, err)
					require.Equal(t, want, got)
					sums[k] = want
					if tag != nil {
						seen[*tag] = true
						next[tag.Producer] = max(next[tag.Producer], tag.Sequence+1)
					}
				}
			case 3:
				settle(rapid.IntRange(s.applied, len(s.log)).Draw(t, "settled"))
			case 4: // the log takes back some of what is not applied
				to := rapid.IntRange(s.applied, len(s.log)).Draw(t, "back to")
				s.log, history = s.log[:to], history[:to+1]
				s.Revert(Offset(to))
				sums, seen = map[string]int64{}, map[Tag]bool{}
				maps.Copy(sums, history[to].sums)
				maps.Copy(seen, history[to].seen)
			case 5:
				settle(len(s.log))
				s.compact(t, s.head+rapid.IntRange(0, len(s.log)-s.head).Draw(t, "to"))
			case 6: // restart
				settle(len(s.log))
				s = newShard(s.head, s.log)
				s.settle(t)
			}
			remember()
			for _, k := range []string{"a", "b", "c", ""} {
				want, known := stable[k]
				got, ok := s.Get([]byte(k))
				require.Equal(t, known, ok, "key %q", k)
				require.Equal(t, want, got, "key %q", k)
			}
		}
	})
}

func TestAnAdditionThatWouldWrapIsRefused(t *testing.T) {
	for _, c := range []struct{ sum, delta int64 }{
		{math.MaxInt64, 1}, {math.MinInt64, -1}, {-1, math.MinInt64}, {1, math.MaxInt64},
	} {
		s := newShard(0, nil)
		_, err := s.add("n", c.sum, nil)
		require.NoError(t, err)
		got, err := s.add("n", c.delta, nil)
		require.ErrorIs(t, err, ErrOverflow)
		require.Equal(t, c.sum, got)
		s.settle(t)
		got, _ = s.Get([]byte("n"))
		require.Equal(t, c.sum, got)
	}
}

func TestAHotCounterIsOneCheckpointAfterCompaction(t *testing.T) {
	s := newShard(0, nil)
	for i := range 10_000 {
		_, err := s.add("n", 1, &Tag{7, uint64(i)})
		require.NoError(t, err)
	}
	s.settle(t)
	s.compact(t, 10_000)
	require.Len(t, s.log, 10_002, "a checkpoint of the key and one of the producer")
	got, err := s.add("n", 1, &Tag{7, 9_999})
	require.ErrorIs(t, err, ErrRepeated)
	require.Equal(t, int64(10_000), got)
}

func FuzzDecode(f *testing.F) {
	f.Add(AppendAdd(nil, []byte("k"), -3, &Tag{1, 2}))
	f.Add(appendSum(nil, []byte("k"), 9))
	f.Add(appendProducer(nil, 4, window{5, 6}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decode(b)
		if err != nil {
			require.ErrorIs(t, err, ErrRecord)
			return
		}
		var again []byte
		switch {
		case r.op == opSum:
			again = appendSum(nil, r.key, r.value)
		case r.op == opProducer:
			again = appendProducer(nil, r.tag.Producer, window{r.tag.Sequence, r.seen})
		case r.tagged:
			again = AppendAdd(nil, r.key, r.value, &r.tag)
		default:
			again = AppendAdd(nil, r.key, r.value, nil)
		}
		require.Equal(t, b, again)
	})
}
