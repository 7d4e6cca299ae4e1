package projection

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// kv is a projection over a real log, written to as an owner does.
type kv struct {
	t       testing.TB
	dir     string
	log     *storage.Log
	proj    *Projection
	pending Pending
	work    *Compactor
}

func openKV(t testing.TB, dir string) *kv {
	k := &kv{t: t, dir: dir}
	var err error
	k.log, err = storage.Open(t.Context(), dir, storage.Options{
		Fsync: storage.None, SegmentBytes: 16 << 10,
		Hooks: storage.Hooks{Admit: k.admit, Stable: k.stable},
	})
	require.NoError(t, err)
	k.proj = New(EntrySetCodec{}, k.log.Head())
	require.NoError(t, k.proj.CatchUp(t.Context(), k.log, k.log.Next()))
	k.work = NewCompactor(k.log, Latest{Projection: k.proj, Copier: EntrySetCodec{}}, CompactOptions{MinBytes: 1})
	return k
}

func (k *kv) close() { require.NoError(k.t, k.log.Close(context.WithoutCancel(k.t.Context()))) }

func (k *kv) admit(b *storage.Batch, next storage.Offset) error {
	switch u := b.User.(type) {
	case *Copy:
		if u.Superseded(k.proj, &k.pending) {
			return ErrSuperseded
		}
	case Entry:
		k.pending.Set(u.Key, InFlight{Ref: Ref{Offset: next}, Deleted: u.Delete})
	}
	return nil
}

func (k *kv) stable(g *storage.Group) {
	at := g.First
	for b := g.Encoded; len(b) > 0; at++ {
		rec, n, err := segment.DecodeRecord(b, at)
		require.NoError(k.t, err)
		require.NoError(k.t, k.proj.Apply(&rec))
		k.pending.Settle(rec.Offset)
		b = b[n:]
	}
}

func (k *kv) write(e Entry) storage.Offset {
	b := &storage.Batch{Payloads: [][]byte{AppendEntrySet(nil, 0, []Entry{e})}, User: e}
	require.NoError(k.t, k.log.Append(k.t.Context(), b))
	return b.First
}

func (k *kv) put(key, value string) storage.Offset {
	return k.write(Entry{Key: []byte(key), Value: []byte(value)})
}

func (k *kv) get(key string) (string, bool) {
	ref, ok := k.proj.Get([]byte(key))
	if !ok {
		return "", false
	}
	var page storage.Page
	require.NoError(k.t, k.log.Read(k.t.Context(), &page, storage.ReadRange{From: ref.Offset, MaxRecords: 1}))
	require.NotEmpty(k.t, page.Records)
	value := ""
	_, err := ReadEntrySet(page.Records[0].Payload, func(e Entry) error {
		if string(e.Key) == key {
			value = string(e.Value)
		}
		return nil
	})
	require.NoError(k.t, err)
	return value, true
}

func TestTheIndexIsRebuiltFromTheLog(t *testing.T) {
	dir := t.TempDir()
	k := openKV(t, dir)
	k.put("a", "1")
	k.put("b", "2")
	k.write(Entry{Delete: true, Key: []byte("a")})
	k.close()
	k = openKV(t, dir)
	defer k.close()
	_, ok := k.get("a")
	require.False(t, ok)
	v, _ := k.get("b")
	require.Equal(t, "2", v)
}

func TestRecordsAppendedBehindTheIndexAreCaughtUpWith(t *testing.T) {
	k := openKV(t, t.TempDir())
	defer k.close()
	behind := New(EntrySetCodec{}, 0)
	for i := range 5000 {
		k.put(fmt.Sprint("k", i%700), fmt.Sprint(i))
	}
	require.NoError(t, behind.CatchUp(t.Context(), k.log, k.log.Next()))
	require.Equal(t, k.log.Next(), behind.Applied())
	for i := range 700 {
		want, _ := k.proj.Get(fmt.Appendf(nil, "k%d", i))
		got, _ := behind.Get(fmt.Appendf(nil, "k%d", i))
		require.Equal(t, want, got)
	}
	require.ErrorAs(t, behind.Apply(&segment.Record{Offset: behind.Applied() + 1}), new(*OrderError))
}

// TestCompactionKeepsTheNewestAndNeverRewinds overwrites and deletes at random beside
// compaction, and compares with a map after each pass and after a restart.
func TestCompactionKeepsTheNewestAndNeverRewinds(t *testing.T) {
	dir := t.TempDir()
	k := openKV(t, dir)
	model := map[string]string{}
	rnd := rand.New(rand.NewPCG(1, 2))
	next := k.log.Next()
	for round := range 12 {
		for i := range 300 {
			key := fmt.Sprint("k", rnd.IntN(60))
			if rnd.IntN(4) == 0 {
				k.write(Entry{Delete: true, Key: []byte(key)})
				delete(model, key)
			} else {
				model[key] = fmt.Sprint("value ", round, " ", i, " ", string(make([]byte, rnd.IntN(200))))
				k.put(key, model[key])
			}
		}
		require.Greater(t, k.log.Next(), next)
		next = k.log.Next()
		for k.work.Due() {
			before := k.log.Segments()[0]
			res, err := k.work.Segment(t.Context())
			require.NoError(t, err)
			require.Equal(t, before.Next, k.log.Head(), "the segment is gone")
			require.Positive(t, res.Bytes)
			require.GreaterOrEqual(t, k.log.Next(), next, "offsets go on")
			next = k.log.Next()
		}
		if round%4 == 3 {
			k.close()
			k = openKV(t, dir)
			require.Equal(t, next, k.log.Next())
		}
		for i := range 60 {
			key := fmt.Sprint("k", i)
			got, ok := k.get(key)
			want, has := model[key]
			require.Equal(t, has, ok, key)
			require.Equal(t, want, got, key)
		}
	}
	var total int64
	for _, s := range k.log.Segments() {
		total += s.Bytes
	}
	require.LessOrEqual(t, float64(total), 2.5*float64(Latest{Projection: k.proj}.LiveBytes())+16<<10)
	k.close()
}

// TestAnOvertakenCopyIsRefused writes a key between the moment compaction has read its
// record and the moment the copy would get its place.
func TestAnOvertakenCopyIsRefused(t *testing.T) {
	k := openKV(t, t.TempDir())
	defer k.close()
	from := k.put("k", "old")
	c := &storage.Batch{
		Payloads: [][]byte{AppendEntrySet(nil, 0, []Entry{{Key: []byte("k"), Value: []byte("old")}})},
		User:     &Copy{Key: []byte("k"), From: from},
	}
	newer := Entry{Key: []byte("k"), Value: []byte("new")}
	require.NoError(t, k.log.Enqueue(&storage.Batch{Payloads: [][]byte{AppendEntrySet(nil, 0, []Entry{newer})}, User: newer}))
	require.ErrorIs(t, k.log.Append(t.Context(), c), ErrSuperseded)
	v, _ := k.get("k")
	require.Equal(t, "new", v)
}

// TestADeleteInADecisionTakesNothingElseWithIt compacts a record that puts, deletes and
// puts.
func TestADeleteInADecisionTakesNothingElseWithIt(t *testing.T) {
	dir := t.TempDir()
	k := openKV(t, dir)
	k.put("k2", "old")
	set := []Entry{{Key: []byte("k1"), Value: []byte("v1")}, {Key: []byte("k2"), Delete: true}, {Key: []byte("k3"), Value: []byte("v3")}}
	require.NoError(t, k.log.Append(t.Context(), &storage.Batch{Payloads: [][]byte{AppendEntrySet(nil, 0, set)}}))
	res, err := k.work.Segment(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, res.Copied)
	for range 2 {
		for key, want := range map[string]string{"k1": "v1", "k2": "", "k3": "v3"} {
			got, ok := k.get(key)
			require.Equal(t, want != "", ok, key)
			require.Equal(t, want, got, key)
		}
		k.close()
		k = openKV(t, dir)
	}
	k.close()
}

func TestCompactionOfNothingEnds(t *testing.T) {
	for name, fill := range map[string]func(*kv){
		"empty":         func(*kv) {},
		"deletes":       func(k *kv) { k.put("a", "1"); k.write(Entry{Delete: true, Key: []byte("a")}) },
		"delete at end": func(k *kv) { k.put("a", "1"); k.put("b", "1"); k.write(Entry{Delete: true, Key: []byte("b")}) },
	} {
		t.Run(name, func(t *testing.T) {
			k := openKV(t, t.TempDir())
			defer k.close()
			fill(k)
			_, err := k.work.Segment(t.Context())
			require.NoError(t, err)
			_, hasA := k.get("a")
			require.Equal(t, name == "delete at end", hasA)
			_, hasB := k.get("b")
			require.False(t, hasB)
			k.put("c", "3")
			v, _ := k.get("c")
			require.Equal(t, "3", v)
		})
	}
}

// What is read of a log counts in full as long as it is not larger than what makes
// compaction due, and the less the larger it is; and no pause is saved up.
func TestCompactionKeepsPaceWithWriters(t *testing.T) {
	require.Equal(t, compactPage, NewPace(1<<30).Burst())
	charged := func(times int64) float64 {
		k := openKV(t, t.TempDir())
		defer k.close()
		for i := 0; len(k.log.Segments()) < 4; i++ {
			k.put(fmt.Sprint(i), "value")
		}
		var total int64
		for _, s := range k.log.Segments() {
			total += s.Bytes
		}
		pace := NewPace(1) // as good as nothing comes back during the test
		c := NewCompactor(k.log, Latest{Projection: k.proj, Copier: EntrySetCodec{}}, CompactOptions{MinBytes: total / times, Ratio: 1e-9, Pace: pace})
		res, err := c.Segment(t.Context())
		require.NoError(t, err)
		require.NotZero(t, res.Bytes)
		return compactPage - pace.Tokens()
	}
	full := charged(1)
	require.Greater(t, full, 15e3, "of a segment of 16 KiB")
	require.InDelta(t, full/4, charged(4), full/20)
}

func TestSnapshotIsBelievedOnlyWhole(t *testing.T) {
	dir := t.TempDir()
	k := openKV(t, dir)
	defer k.close()
	for i := range 500 {
		k.put(fmt.Sprint("k", i), "v")
	}
	osfs := vfs.OS()
	require.NoError(t, k.proj.SaveSnapshot(t.Context(), osfs, dir, 1, k.log))
	k.put("k1", "newer")
	load := func(codec uint16, head, end storage.Offset) (*Projection, error) {
		p := New(EntrySetCodec{}, head)
		return p, p.LoadSnapshot(t.Context(), osfs, dir, codec, head, end, k.log)
	}
	p, err := load(1, 0, k.log.Next())
	require.NoError(t, err)
	require.Equal(t, storage.Offset(500), p.Applied())
	require.NoError(t, p.CatchUp(t.Context(), k.log, k.log.Next()))
	for i := range 500 {
		want, _ := k.proj.Get(fmt.Appendf(nil, "k%d", i))
		got, ok := p.Get(fmt.Appendf(nil, "k%d", i))
		require.True(t, ok)
		require.Equal(t, want, got)
		require.True(t, p.names(got.Offset))
	}
	require.False(t, p.names(1), "k1 has a newer record")

	for name, f := range map[string]func() error{
		"another owner's": func() error { _, err := load(2, 0, k.log.Next()); return err },
		"of a longer log": func() error { _, err := load(1, 0, 499); return err },
		"of an older log": func() error { _, err := load(1, 501, k.log.Next()); return err },
		"of a log that differs": func() error {
			return New(EntrySetCodec{}, 0).LoadSnapshot(t.Context(), osfs, dir, 1, 0, 501, otherLog{})
		},
	} {
		t.Run(name, func(t *testing.T) { require.ErrorIs(t, f(), ErrSnapshot) })
	}

	t.Run("damaged", func(t *testing.T) {
		f, err := osfs.OpenFile(dir+"/"+SnapshotName, vfs.ReadWrite)
		require.NoError(t, err)
		size, err := f.Size()
		require.NoError(t, err)
		for pos := int64(0); pos < size; pos += 1 + pos/16 {
			var b [1]byte
			_, err := f.ReadAt(b[:], pos)
			require.NoError(t, err)
			_, err = f.WriteAt([]byte{b[0] ^ 0x40}, pos)
			require.NoError(t, err)
			p, err := load(1, 0, k.log.Next())
			require.ErrorIs(t, err, ErrSnapshot, "byte %d", pos)
			require.Zero(t, p.Applied())
			_, err = f.WriteAt(b[:], pos)
			require.NoError(t, err)
		}
		for cut := size - 1; cut >= 0; cut = cut*7/8 - 1 {
			require.NoError(t, f.Truncate(cut))
			_, err := load(1, 0, k.log.Next())
			require.ErrorIs(t, err, ErrSnapshot, "cut at %d", cut)
		}
		require.NoError(t, f.Close())
		require.NoError(t, osfs.Remove(dir+"/"+SnapshotName))
		_, err = load(1, 0, k.log.Next())
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.False(t, errors.Is(err, ErrSnapshot))
	})
}

type otherLog struct{}

func (otherLog) RecordID(context.Context, storage.Offset) (storage.RecordID, error) {
	return storage.RecordID{Checksum: 7}, nil
}

func FuzzReadEntrySet(f *testing.F) {
	f.Add(AppendEntrySet(nil, 9, []Entry{{Key: []byte("k"), Value: []byte("v")}, {Delete: true, Key: []byte("l")}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var all []Entry
		stamp, err := ReadEntrySet(b, func(e Entry) error { all = append(all, e); return nil })
		if err != nil {
			return
		}
		for i := range all {
			if all[i].Delete && len(all[i].Value) > 0 {
				return // a delete's value is dropped
			}
		}
		require.Equal(t, b, AppendEntrySet(nil, stamp, all))
	})
}
