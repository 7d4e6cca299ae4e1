package partition

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/internal/counter"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
)

// A life is what is asked of a shard between two crashes: the effects of its writes, in
// the order of the log. What a crash leaves is what the first of them made, however many
// those are; least says how many it must be.
type life[S any] struct {
	base    S
	effects []func(S)
	least   int
	clone   func(S) S
}

// settled notes that everything written so far has to last.
func (l *life[S]) settled() { l.least = len(l.effects) }

// find says how many of the writes a crash has left: the least number that explains what
// is found. It ends with the state after them.
func (l *life[S]) find(found func(S) bool) (n int, state S, ok bool) {
	state = l.clone(l.base)
	for i := 0; ; i++ {
		if i >= l.least && found(state) {
			return i, state, true
		}
		if i == len(l.effects) {
			return 0, state, false
		}
		l.effects[i](state)
	}
}

// crashes runs one history of a shard: three lives that end at any operation of the disk,
// in every fsync mode, by a power cut or a kill. Strict says that what was answered lasts.
func crashes(t *testing.T, n int, history func(label string, rnd *rand.Rand, strict bool, mode storage.FsyncMode, d *disk.Strict, end func(*disk.Strict) *disk.Strict)) {
	for seed := range seeds(n) {
		power := seed%2 == 0
		mode := []storage.FsyncMode{storage.OnCommit, storage.None, storage.Periodic}[seed/2%3]
		label := fmt.Sprintf("seed %d, %v, power %v", seed, mode, power)
		d := disk.NewStrict(uint64(seed), disk.Options{})
		require.NoError(t, d.MkdirAll("/shard"))
		require.NoError(t, d.SyncDir("/"))
		history(label, rand.New(rand.NewPCG(uint64(seed), 11)), !power || mode == storage.OnCommit, mode, d, func(d *disk.Strict) *disk.Strict {
			if power {
				return d.Crash()
			}
			return d.Kill()
		})
	}
}

// entry is a key as a client of the cache knows it.
type cacheEntry struct {
	value   string
	expires int64
	version storage.Offset
	known   bool // the version
}

type cacheModel map[string]cacheEntry

func (m cacheModel) live(key string, now int64) (cacheEntry, bool) {
	e, ok := m[key]
	return e, ok && (e.expires == 0 || e.expires > now)
}

// cacheHistory asks a cache for things and knows what it must answer.
type cacheHistory struct {
	t     *testing.T
	label string
	rnd   *rand.Rand
	c     *Cache
	clock *cacheClock
	model cacheModel // after all that was asked
	life  life[cacheModel]
	count int
	wait  sync.WaitGroup
}

// ask submits a write and notes what it does if it takes place.
func (h *cacheHistory) ask() *CacheWrite {
	now := h.clock.ms.Load()
	key := fmt.Sprint("key", h.rnd.IntN(12))
	was, lives := h.model.live(key, now)
	h.wait.Add(1)
	w := &CacheWrite{Done: func(*CacheWrite) { h.wait.Done() }}
	var effect func(cacheModel)
	if h.rnd.IntN(4) == 0 {
		require.NoError(h.t, w.Delete([]byte(key), cache.Always, 0, h.c.Now()))
		effect = func(m cacheModel) { delete(m, key) }
	} else {
		e := cacheEntry{value: fmt.Sprint(h.count, strings.Repeat("x", h.rnd.IntN(150)))}
		h.count++
		ttl := uint64(h.rnd.IntN(3) * 400)
		if ttl > 0 {
			e.expires = now + int64(ttl)
		}
		cond, version, holds := cache.Always, storage.Offset(0), true
		switch h.rnd.IntN(4) {
		case 0:
			cond, holds = cache.Absent, !lives
		case 1:
			if lives && was.known {
				cond, version = cache.AtVersion, was.version
			}
		}
		require.NoError(h.t, w.Put([]byte(key), []byte(e.value), ttl, ttl > 0, cond, version, h.c.Now()))
		effect = func(m cacheModel) {
			if holds {
				e.version, e.known = w.Version, w.Applied
				m[key] = e
			}
		}
	}
	effect(h.model)
	h.life.effects = append(h.life.effects, effect)
	if err := h.c.Submit(w); err != nil {
		w.Err = err
		h.wait.Done()
	}
	return w
}

// burst submits some writes together. It reports whether the shard goes on.
func (h *cacheHistory) burst(strict bool) bool {
	var ws []*CacheWrite
	for range 1 + h.rnd.IntN(6) {
		ws = append(ws, h.ask())
	}
	h.c.Drive(true)
	h.wait.Wait()
	for i, w := range ws {
		if w.Err != nil {
			return false
		}
		if strict {
			h.life.least = max(h.life.least, len(h.life.effects)-len(ws)+i+1)
		}
	}
	// Versions are known by now.
	_, h.model, _ = h.life.find(func(cacheModel) bool { return false })
	return true
}

func (h *cacheHistory) matches(m cacheModel) bool {
	for i := range 12 {
		key := fmt.Sprint("key", i)
		v, ok, err := h.c.Get(deadline(h.t), []byte(key))
		require.NoError(h.t, err, h.label)
		want, lives := m.live(key, h.clock.ms.Load())
		if ok != lives || ok && (string(v.Value) != want.value || want.known && v.Version != want.version) {
			return false
		}
	}
	return true
}

// TestCachesAcrossCrashes puts, deletes, compares versions, lets values expire and
// compacts; then the power goes or the process dies. What is found is what the first so
// many writes made, in the order they were asked: all that were answered where the mode
// says that they last, all that were flushed in any mode. Each value has its version.
func TestCachesAcrossCrashes(t *testing.T) {
	crashes(t, 60, func(label string, rnd *rand.Rand, strict bool, mode storage.FsyncMode, d *disk.Strict, end func(*disk.Strict) *disk.Strict) {
		h := &cacheHistory{t: t, label: label, rnd: rnd, clock: new(cacheClock), model: cacheModel{}}
		h.clock.ms.Store(1_000_000)
		open := func() {
			var err error
			h.c, err = OpenCache(deadline(t), "/shard", CacheOptions{Now: h.clock.now, Values: NewValues(64 << 10), CompactAbove: 1, CompactPace: 1 << 30, Storage: storage.Options{
				FS: d, Fsync: mode, SegmentBytes: storage.MinSegmentBytes, Restarted: strings.HasSuffix(label, "true"),
			}})
			require.NoError(t, err, label)
			h.life = life[cacheModel]{base: maps.Clone(h.model), clone: maps.Clone[cacheModel]}
		}
		open()
		for range 4 {
			d.StopAfter(rnd.IntN(200))
			for goes := true; goes && !d.Off(); {
				switch rnd.IntN(12) {
				case 0:
					h.clock.ms.Add(rnd.Int64N(500))
				case 1:
					if _, err := h.c.Compact(deadline(t)); err != nil && !errors.Is(err, ErrCompacting) {
						require.True(t, d.Off(), "%s: %v", label, err)
						goes = false
					}
				case 2:
					if h.c.Log().Sync(deadline(t)) == nil {
						h.life.settled()
					}
				case 3: // an end in its own way: the next life begins with a snapshot
					if h.c.Close(deadline(t)) == nil {
						h.life.settled()
					}
					goes = false
				default:
					goes = h.burst(strict)
				}
			}
			dying := d
			d = end(d)
			if err := h.c.Close(deadline(t)); err == nil && !dying.Off() {
				t.Fatal("closed a shard whose disk should be off")
			}
			before := h.life
			open()
			_, state, ok := before.find(h.matches)
			require.True(t, ok, "%s: what is found is not what any number of the %d writes from %d on made", label, len(before.effects), before.least)
			h.model = state
			h.life.base = maps.Clone(state)
		}
		require.NoError(t, h.c.Close(deadline(t)))
		open()
		require.True(t, h.matches(h.model), "%s: opened again, it is another", label)
		require.NoError(t, h.c.Close(deadline(t)))
	})
}

// counterModel is what was added, and which additions of the one producer were.
type counterModel struct {
	sums map[string]int64
	seen map[uint64]bool
}

func (m *counterModel) clone() *counterModel {
	return &counterModel{maps.Clone(m.sums), maps.Clone(m.seen)}
}

// TestCountersAcrossCrashes adds, retries and compacts; then the power goes or the process
// dies. The sums found are those of the first so many additions, all that were answered
// where the mode says that they last. The producer then sends all that it has not heard
// of again, and some that it has: each is counted once.
func TestCountersAcrossCrashes(t *testing.T) {
	crashes(t, 60, func(label string, rnd *rand.Rand, strict bool, mode storage.FsyncMode, d *disk.Strict, end func(*disk.Strict) *disk.Strict) {
		const producer = 9
		var c *Counter
		model := &counterModel{sums: map[string]int64{}, seen: map[uint64]bool{}}
		var l life[*counterModel]
		open := func() {
			var err error
			c, err = OpenCounter(deadline(t), "/shard", CacheOptions{CompactAbove: 1, CompactPace: 1 << 30, Storage: storage.Options{
				FS: d, Fsync: mode, SegmentBytes: storage.MinSegmentBytes, Restarted: strings.HasSuffix(label, "true"),
			}})
			require.NoError(t, err, label)
			l = life[*counterModel]{base: model.clone(), clone: (*counterModel).clone}
		}
		// What each sequence adds: a retry is the same addition.
		addition := func(seq uint64) (string, int64) {
			r := rand.New(rand.NewPCG(seq, 3))
			return fmt.Sprint("n", r.IntN(4)), r.Int64N(2_000_000) - 500_000
		}
		add := func(seq uint64) error {
			key, delta := addition(seq)
			a := &CounterAdd{Key: []byte(key), Delta: delta, Tag: &counter.Tag{Producer: producer, Sequence: seq}}
			repeated := model.seen[seq]
			effect := func(m *counterModel) {
				if !m.seen[seq] {
					m.sums[key] += delta
					m.seen[seq] = true
				}
			}
			l.effects = append(l.effects, effect)
			err := c.Add(deadline(t), a)
			if errors.Is(err, counter.ErrRepeated) {
				require.True(t, repeated, "%s: addition %d was not counted before", label, seq)
				err = nil
			} else if err == nil {
				require.False(t, repeated, "%s: addition %d is counted twice", label, seq)
			}
			effect(model)
			if err == nil {
				require.Equal(t, model.sums[key], a.Sum, "%s: sum after addition %d", label, seq)
				if strict {
					l.settled()
				}
			}
			return err
		}
		open()
		next := uint64(0)
		for range 4 {
			d.StopAfter(rnd.IntN(200))
			for goes := true; goes; {
				var err error
				switch n := rnd.IntN(12); {
				case n == 0:
					if _, err = c.Compact(deadline(t)); errors.Is(err, ErrCompacting) {
						err = nil
					}
				case n == 1:
					if err = c.Log().Sync(deadline(t)); err == nil {
						l.settled()
					}
				case n == 2 && next > 0: // within what is remembered of a producer
					err = add(next - 1 - rnd.Uint64N(min(next, 30)))
				default:
					err = add(next)
					next++
				}
				if err != nil {
					require.True(t, d.Off(), "%s: %v", label, err)
				}
				goes = err == nil
			}
			dying := d
			d = end(d)
			if err := c.Close(deadline(t)); err == nil && !dying.Off() {
				t.Fatal("closed a shard whose disk should be off")
			}
			before := l
			open()
			_, state, ok := before.find(func(m *counterModel) bool {
				for i := range 4 {
					key := fmt.Sprint("n", i)
					sum, known, err := c.Get([]byte(key))
					require.NoError(t, err)
					want, has := m.sums[key]
					if known != has || sum != want {
						return false
					}
				}
				return true
			})
			require.True(t, ok, "%s: the sums are not those of any number of the %d additions from %d on", label, len(before.effects), before.least)
			model = state
			l.base = state.clone()
			for seq := range next {
				if next-seq <= 30 || !model.seen[seq] {
					if next-seq <= 60 {
						require.NoError(t, add(seq), label)
					}
				}
			}
		}
		require.NoError(t, c.Close(deadline(t)))
	})
}
