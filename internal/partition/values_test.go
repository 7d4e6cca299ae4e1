package partition

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/internal/testkit/heap"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/vfs"
)

// valueOf are n bytes that tell their place.
func valueOf(k valueKey, n int) []byte {
	b := bytes.Repeat([]byte{byte(k.at) ^ byte(k.log)<<4}, n)
	copy(b, fmt.Sprint(k.log, ".", k.at))
	return b
}

// What is kept comes back as it was put, the last value of a stripe is kept, and what
// the values are charged with stays within the bound, whatever their sizes.
func TestValuesStayWithinTheirBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bound := int64(rapid.SampledFrom([]int{1, 4 << 10, 100_000, 1 << 20, 3 << 19}).Draw(t, "bound"))
		v := NewValues(bound)
		for i := range v.stripes { // as if so much had been put and dropped
			m := &v.stripes[i].mu
			m.next = rapid.SampledFrom([]uint64{0, 1<<32 - 300, 1<<40 - 1}).Draw(t, "from")
			m.oldest = m.next
		}
		logs := []uint64{v.newLog(), v.newLog()}
		sizes := map[valueKey]int{}
		most := rapid.SampledFrom([]int{1, 40, 3000}).Draw(t, "size")
		for at := range storage.Offset(rapid.IntRange(1, 2000).Draw(t, "puts")) {
			k := valueKey{logs[int(at)%2], at}
			n := (int(at)*7919 + int(at)/3) % (most + 1)
			sizes[k] = n
			v.put(k, valueOf(k, n))
			got, ok := v.get(k, nil)
			if fits := (valueHead+n)*valueShare <= v.stripe(k.hash()).most; ok != fits {
				t.Fatalf("a value of %d bytes just put: in memory %t, fits %t", n, ok, fits)
			}
			if ok && !bytes.Equal(got, valueOf(k, n)) {
				t.Fatalf("%v: %q", k, got)
			}
		}
		kept := int64(0)
		for k, n := range sizes {
			got, ok := v.get(k, []byte("before"))
			if !ok {
				continue
			}
			kept++
			if want := append([]byte("before"), valueOf(k, n)...); !bytes.Equal(got, want) {
				t.Fatalf("%v: %q, want %q", k, got, want)
			}
		}
		f := v.Figures()
		if f.Count != kept || f.Bytes > max(bound, valueStripes) {
			t.Fatalf("%d values found, %+v, bound %d", kept, f, bound)
		}
		if _, ok := v.get(valueKey{v.newLog(), 0}, nil); ok {
			t.Fatal("a value of a log that has put none")
		}
		for i := range v.stripes {
			if s := &v.stripes[i]; len(s.mu.ring) > s.most {
				t.Fatalf("a ring of %d bytes, most %d", len(s.mu.ring), s.most)
			}
		}
	})
	require.Nil(t, NewValues(0))
	require.Nil(t, NewValues(-1))
}

// TestValuePlacesAgainstModel has few hashes, so that probes meet and pass over others.
func TestValuePlacesAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var places valuePlaces
		model := map[uint32]uint64{} // the hashes of places
		hash := rapid.Map(rapid.Uint64Range(0, 7), func(n uint64) uint64 { return n << 28 })
		for place := range uint32(rapid.IntRange(1, 300).Draw(t, "steps")) {
			if rapid.IntRange(0, 2).Draw(t, "op") < 2 {
				h := hash.Draw(t, "hash")
				places.add(h, uint64(place)+1<<33)
				model[place] = h
				continue
			}
			if place == 0 {
				continue
			}
			gone := rapid.Uint32Range(0, place-1).Draw(t, "gone")
			h, had := model[gone]
			at, ok := places.find(h, func(low uint32) bool { return low == gone })
			if ok != had {
				t.Fatalf("place %d: found %t, is there %t", gone, ok, had)
			}
			if ok {
				places.remove(at)
				delete(model, gone)
			}
		}
		if places.used != len(model) {
			t.Fatalf("%d places, want %d", places.used, len(model))
		}
		for place, h := range model {
			if _, ok := places.find(h, func(low uint32) bool { return low == place }); !ok {
				t.Fatalf("place %d is gone", place)
			}
		}
	})
}

// A value that was put or read is there without a reading of the log, its newer version
// and its going are seen at once, and after a restart the log is read once.
func TestAGetOfAValueInMemoryReadsNothing(t *testing.T) {
	fs := disk.NewFaulty(vfs.OS())
	clock := new(cacheClock)
	clock.ms.Store(1_000_000)
	o := CacheOptions{Now: clock.now, Values: NewValues(1 << 20), Storage: storage.Options{FS: fs}}
	dir := t.TempDir()
	c := openCache(t, dir, o)
	reads := fs.Add(disk.Rule{Op: disk.OpRead, Count: disk.Forever, Action: disk.Call(func() {})})
	expect := func(want string, had bool, read int) {
		t.Helper()
		before := reads.Hits()
		got, ok := get(t, c, "k")
		require.Equal(t, had, ok)
		require.Equal(t, want, got)
		require.Equal(t, read, reads.Hits()-before, "readings of the log")
	}
	put(t, c, "k", "first")
	expect("first", true, 0)
	put(t, c, "k", "")
	expect("", true, 0)
	v, _, err := c.Get(deadline(t), []byte("k"))
	require.NoError(t, err)
	require.NotNil(t, v.Value, "there and empty is not absent")
	w := new(CacheWrite)
	require.NoError(t, w.Put([]byte("k"), []byte("short"), 10, true, cache.Always, 0, c.Now()))
	require.NoError(t, c.Write(deadline(t), w))
	expect("short", true, 0)
	clock.ms.Add(10)
	expect("", false, 0)
	put(t, c, "k", "again")
	was, had := remove(t, c, "k")
	require.True(t, had)
	require.Equal(t, "again", was)
	expect("", false, 0)
	large := strings.Repeat("x", 64<<10)
	put(t, c, "k", large)
	expect(large, true, 2) // its head, then the rest
	expect(large, true, 2) // its head, then the rest
	put(t, c, "k", "last")
	closeCache(t, c)

	c = openCache(t, dir, o)
	defer func() { closeCache(t, c) }()
	expect("last", true, 1)
	expect("last", true, 0)
}

// What the documents say of what is kept: values up to 1/128 of the bound, nearly all of the
// bound whatever its length, what was overwritten and what a removed cache had until it is
// pushed out, and of what compaction copied nothing before it is read.
func TestWhatValuesKeep(t *testing.T) {
	const bound = 24 << 20
	v := NewValues(bound)
	v.put(valueKey{1, 0}, make([]byte, bound/128-valueHead+1))
	require.Zero(t, v.Figures().Count, "one byte too many")
	v.put(valueKey{1, 1}, make([]byte, bound/128-valueHead))
	require.Equal(t, int64(1), v.Figures().Count)
	small := make([]byte, 16<<10)
	for at := range storage.Offset(2 * bound / len(small)) {
		v.put(valueKey{2, at}, small)
	}
	require.LessOrEqual(t, v.Figures().Bytes, int64(bound))
	require.Greater(t, v.Figures().Bytes, int64(bound)*9/10)

	fs := disk.NewFaulty(vfs.OS())
	v = NewValues(1 << 20)
	c := openCache(t, t.TempDir(), CacheOptions{Values: v, Storage: storage.Options{FS: fs}})
	reads := fs.Add(disk.Rule{Op: disk.OpRead, Count: disk.Forever, Action: disk.Call(func() {})})
	put(t, c, "k", "first")
	put(t, c, "k", "second")
	require.Equal(t, int64(2), v.Figures().Count, "what was overwritten stays")
	compactAll(t, c)
	require.Equal(t, int64(2), v.Figures().Count, "the copy is not kept")
	for _, read := range []bool{true, false} {
		before := reads.Hits()
		got, ok := get(t, c, "k")
		require.True(t, ok)
		require.Equal(t, "second", got)
		require.Equal(t, read, reads.Hits() > before)
	}
	require.NoError(t, c.Delete(deadline(t)))
	require.Equal(t, int64(3), v.Figures().Count, "what a removed cache had stays")
}

// A get whose value is in memory costs the shard no allocation.
func TestGuardGetsAllocateNothing(t *testing.T) {
	c := openCache(t, t.TempDir(), CacheOptions{})
	defer closeCache(t, c)
	put(t, c, "user:1234567890", strings.Repeat("x", 128))
	key, room := []byte("user:1234567890"), make([]byte, 0, 256)
	ctx := context.Background()
	require.Zero(t, heap.Allocs(100, func() {
		v, ok, err := c.AppendGet(ctx, room, key)
		if err != nil || !ok || len(v.Value) != 128 {
			t.Errorf("%v %t %v", v, ok, err)
		}
	}))
}
