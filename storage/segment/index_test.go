package segment_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage/segment"
)

func TestIndexAppendedAndRebuiltAreTheSameBytes(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 32))
	for _, spacing := range []int64{1, 64, 100, 4096} {
		for _, records := range []int{0, 1, 200} {
			f := build(rng, records, 300)
			appended := segment.NewIndex(f.base, spacing)
			for i := range f.specs {
				appended.Add(f.base+segment.Offset(i), f.pos[i])
			}
			require.Equal(t, f.index(spacing), append([]segment.IndexEntry(nil), appended.Entries()...))
			rebuilt := segment.NewIndex(f.base, spacing)
			scanAll(t, f.bytes, segment.ScanStart{Index: rebuilt})
			file := appended.AppendTo(nil)
			require.Equal(t, file, rebuilt.AppendTo(nil))

			loaded, err := segment.DecodeIndex(file, f.base, spacing, int64(len(f.bytes)))
			require.NoError(t, err)
			require.Equal(t, file, loaded.AppendTo(nil))
			for range 50 {
				offset := f.base + segment.Offset(rng.IntN(records+1))
				var want segment.IndexEntry
				found := false
				for _, e := range f.index(spacing) {
					if e.Offset <= offset {
						want, found = e, true
					}
				}
				got, ok := loaded.Lookup(offset)
				require.Equal(t, found, ok)
				require.Equal(t, want, got)
			}
			if f.base > 0 {
				_, ok := loaded.Lookup(f.base - 1)
				require.False(t, ok)
			}
		}
	}
}

// An index short of its last entries is completed by the scan from its last one.
func TestShortIndexIsCompletedByAScan(t *testing.T) {
	f := build(rand.New(rand.NewPCG(33, 34)), 300, 200)
	full := segment.NewIndex(f.base, 500)
	scanAll(t, f.bytes, segment.ScanStart{Index: full})
	for n := 1; n <= full.Len(); n++ {
		x, err := segment.DecodeIndex(full.AppendTo(nil)[:24+16*n], f.base, 500, int64(len(f.bytes)))
		require.NoError(t, err)
		last, _ := x.Last()
		_, res := scanAll(t, f.bytes, segment.ScanStart{Position: last.Position, Offset: last.Offset, Index: x})
		require.Nil(t, res.Damage)
		require.Equal(t, full.AppendTo(nil), x.AppendTo(nil))
	}
}

func TestIndexTruncate(t *testing.T) {
	rng := rand.New(rand.NewPCG(35, 36))
	f := build(rng, 100, 200)
	for i := range f.pos {
		x := segment.NewIndex(f.base, 300)
		scanAll(t, f.bytes, segment.ScanStart{Index: x})
		x.Truncate(f.pos[i])
		want := segment.NewIndex(f.base, 300)
		scanAll(t, f.bytes[:f.pos[i]], segment.ScanStart{Index: want})
		require.Equal(t, want.AppendTo(nil), x.AppendTo(nil))
		for j := i; j < 100; j++ {
			x.Add(f.base+segment.Offset(j), f.pos[j])
		}
		require.Equal(t, f.index(300), x.Entries())
	}
}

func TestIndexIsDistrusted(t *testing.T) {
	f := build(rand.New(rand.NewPCG(37, 38)), 100, 200)
	x := segment.NewIndex(f.base, 500)
	scanAll(t, f.bytes, segment.ScanStart{Index: x})
	good := x.AppendTo(nil)
	size := int64(len(f.bytes))
	entry := func(b []byte, i int, offset segment.Offset, pos int64) []byte {
		binary.BigEndian.PutUint64(b[24+16*i:], uint64(offset))
		binary.BigEndian.PutUint64(b[32+16*i:], uint64(pos))
		return b
	}
	e := x.Entries()
	for name, edit := range map[string]func(b []byte) []byte{
		"empty":           func(b []byte) []byte { return nil },
		"short header":    func(b []byte) []byte { return b[:23] },
		"half an entry":   func(b []byte) []byte { return b[:len(b)-8] },
		"magic":           func(b []byte) []byte { b[0] = 'X'; return b },
		"version 1":       func(b []byte) []byte { b[5] = 1; return b },
		"version 5":       func(b []byte) []byte { b[5] = 5; return b },
		"flags":           func(b []byte) []byte { b[7] = 1; return b },
		"another base":    func(b []byte) []byte { b[15]++; return b },
		"zero-padded":     func(b []byte) []byte { return append(b, make([]byte, 32)...) },
		"all zeros":       func(b []byte) []byte { return make([]byte, len(b)) },
		"first offset":    func(b []byte) []byte { return entry(b, 0, f.base+1, 32) },
		"first position":  func(b []byte) []byte { return entry(b, 0, f.base, 33) },
		"same offset":     func(b []byte) []byte { return entry(b, 2, e[1].Offset, e[2].Position) },
		"same position":   func(b []byte) []byte { return entry(b, 2, e[2].Offset, e[1].Position) },
		"too close":       func(b []byte) []byte { return entry(b, 2, e[2].Offset, e[1].Position+499) },
		"too many":        func(b []byte) []byte { return entry(b, 2, e[1].Offset+segment.Offset(e[2].Position), e[2].Position) },
		"past the file":   func(b []byte) []byte { return entry(b, len(e)-1, e[len(e)-1].Offset, size) },
		"negative":        func(b []byte) []byte { return entry(b, len(e)-1, e[len(e)-1].Offset, -1) },
		"of a longer one": func(b []byte) []byte { return entry(b, 1, e[1].Offset, size-27) },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := segment.DecodeIndex(edit(bytes.Clone(good)), f.base, 500, size)
			requireKind(t, err, segment.IndexDamaged)
		})
	}
	for v := byte(2); v <= 4; v++ {
		b := bytes.Clone(good)
		b[5] = v
		_, err := segment.DecodeIndex(b, f.base, 500, size)
		require.NoError(t, err)
	}
}
