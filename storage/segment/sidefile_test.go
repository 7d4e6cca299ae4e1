package segment_test

import (
	"encoding/binary"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

var (
	someStarts    = []segment.GenerationStart{{Generation: 1, Start: 0}, {Generation: 4, Start: 900}, {Generation: 9, Start: 900}}
	someProducers = &segment.ProducerSnapshot{
		AsOf: 44,
		Open: &segment.OpenBatch{Tag: segment.ProducerTag{ID: 1, Sequence: 2, Len: 3}, First: 40, Held: 2, Digest: segment.Digest{Known: true, Value: 9}},
		Producers: []segment.ProducerEntry{
			{ID: 5, LastSequence: 6, Batches: []segment.ProducerBatch{{First: 1, Len: 2}, {First: 3, Len: 1, Digest: segment.Digest{Known: true, Value: 7}}}},
			{ID: 6, LastSequence: 0, Batches: []segment.ProducerBatch{}},
		},
	}
)

// sideFiles says of each side file how it is written and what reading finds: a value, or
// nil for absent.
var sideFiles = []struct {
	name          string
	write         func(vfs.FS, string) error
	read          func(vfs.FS, string) (any, error)
	want, absent  any
	authoritative bool
}{
	{
		name: segment.MarkName,
		write: func(fsys vfs.FS, dir string) error {
			f, err := fsys.OpenFile(filepath.Join(dir, segment.MarkName), vfs.Create)
			if err != nil {
				return err
			}
			if err := segment.WriteMark(f, segment.Mark{Segment: 1, SyncedBytes: 2}); err != nil {
				return err
			}
			if err := segment.WriteMark(f, segment.Mark{Segment: 3, SyncedBytes: 4}); err != nil {
				return err
			}
			return f.Close()
		},
		read: func(fsys vfs.FS, dir string) (any, error) {
			m, ok, err := segment.ReadMark(fsys, dir)
			if !ok {
				return nil, err
			}
			return m, err
		},
		want: segment.Mark{Segment: 3, SyncedBytes: 4},
	},
	{
		name: segment.ReplicaName,
		write: func(fsys vfs.FS, dir string) error {
			return segment.WriteReplica(fsys, dir, segment.ReplicaState{Generation: 7, Commit: 8})
		},
		read: func(fsys vfs.FS, dir string) (any, error) { return segment.ReadReplica(fsys, dir) },
		want: segment.ReplicaState{Generation: 7, Commit: 8}, absent: segment.ReplicaState{}, authoritative: true,
	},
	{
		name:  segment.EpochsName,
		write: func(fsys vfs.FS, dir string) error { return segment.WriteEpochs(fsys, dir, someStarts) },
		read:  func(fsys vfs.FS, dir string) (any, error) { return segment.ReadEpochs(fsys, dir) },
		want:  someStarts, absent: []segment.GenerationStart(nil),
	},
	{
		name:  segment.ProducersName,
		write: func(fsys vfs.FS, dir string) error { return segment.WriteProducers(fsys, dir, someProducers) },
		read:  func(fsys vfs.FS, dir string) (any, error) { return segment.ReadProducers(fsys, dir) },
		want:  someProducers, absent: (*segment.ProducerSnapshot)(nil),
	},
}

// Written it is read; missing it is absent; with any bit flipped, cut anywhere, emptied or
// padded it is absent too, but for the authoritative one, which refuses.
func TestSideFiles(t *testing.T) {
	for _, f := range sideFiles {
		t.Run(f.name, func(t *testing.T) {
			fsys, dir := vfs.OS(), t.TempDir()
			got, err := f.read(fsys, dir)
			require.NoError(t, err)
			require.Equal(t, f.absent, got)

			require.NoError(t, f.write(fsys, dir))
			require.NoError(t, f.write(fsys, dir))
			got, err = f.read(fsys, dir)
			require.NoError(t, err)
			require.Equal(t, f.want, got)
			entries, err := fsys.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, entries, 1, "a temporary is left behind")

			path := filepath.Join(dir, f.name)
			good, err := os.ReadFile(path)
			require.NoError(t, err)
			damaged := func(b []byte, what string, n int) {
				t.Helper()
				require.NoError(t, os.WriteFile(path, b, 0o600))
				got, err := f.read(fsys, dir)
				if f.authoritative {
					requireKind(t, err, segment.SideFileDamaged)
					require.ErrorContains(t, err, f.name)
					return
				}
				require.NoError(t, err, "%s %d", what, n)
				require.Equal(t, f.absent, got, "%s %d", what, n)
			}
			for n := range good {
				damaged(good[:n], "cut to", n)
				if reserved(f.name, n) {
					continue
				}
				b := append([]byte{}, good...)
				b[n] ^= 0x20
				damaged(b, "flipped byte", n)
			}
			padded := append(append([]byte{}, good...), 0)
			if f.name != segment.MarkName {
				damaged(padded, "padded", 1)
				return
			}
			// The mark is rewritten in place, and so a longer file stays one.
			require.NoError(t, os.WriteFile(path, padded, 0o600))
			got, err = f.read(fsys, dir)
			require.NoError(t, err)
			require.Equal(t, f.want, got)
			damaged(make([]byte, 5000), "much longer", 5000)
		})
	}
}

// reserved says which bytes no checksum covers and no reader looks at.
func reserved(name string, n int) bool {
	switch name {
	case segment.MarkName:
		return n >= 28
	case segment.ProducersName:
		// Version 2 sums the body alone: a flip in as_of is caught by its owner, who
		// compares it with the log, and the reserved field is not looked at.
		return n >= 6 && n < 16
	}
	return false
}

func TestReadFileRefusesALargeFileUnread(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "x"), nil, 0o600))
	require.NoError(t, os.Truncate(filepath.Join(dir, "x"), 1<<40))
	before := allocated()
	_, err := segment.ReadFile(vfs.OS(), dir, "x", 100)
	requireKind(t, err, segment.SideFileDamaged)
	require.Less(t, allocated()-before, uint64(1<<20))
	_, err = segment.ReadFile(vfs.OS(), dir, "y", 100)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestMarkOrder(t *testing.T) {
	m := segment.Mark{Segment: 3, SyncedBytes: 100}
	require.True(t, m.Covers(2, 1<<40))
	require.True(t, m.Covers(3, 99))
	require.False(t, m.Covers(3, 100))
	require.False(t, m.Covers(4, 0))
	require.True(t, m.Before(segment.Mark{Segment: 3, SyncedBytes: 101}))
	require.True(t, m.Before(segment.Mark{Segment: 4}))
	require.False(t, m.Before(m))
}

func TestEpochsKeepTheNewest(t *testing.T) {
	starts := make([]segment.GenerationStart, segment.MaxEpochs+2)
	for i := range starts {
		starts[i] = segment.GenerationStart{Generation: segment.Generation(i + 1), Start: segment.Offset(i)}
	}
	got, err := segment.DecodeEpochs(segment.AppendEpochs(nil, starts))
	require.NoError(t, err)
	require.Equal(t, starts[2:], got)
	_, err = segment.DecodeEpochs(segment.AppendEpochs(nil, []segment.GenerationStart{{Generation: 2}, {Generation: 2}}))
	requireKind(t, err, segment.SideFileDamaged)
}

func TestProducersBounds(t *testing.T) {
	s := &segment.ProducerSnapshot{Producers: make([]segment.ProducerEntry, segment.MaxProducers+1)}
	_, err := segment.DecodeProducers(segment.AppendProducers(nil, s))
	requireKind(t, err, segment.SideFileDamaged)
	s = &segment.ProducerSnapshot{Producers: []segment.ProducerEntry{{Batches: make([]segment.ProducerBatch, segment.MaxProducerBatches+1)}}}
	_, err = segment.DecodeProducers(segment.AppendProducers(nil, s))
	requireKind(t, err, segment.SideFileDamaged)
}

func TestProducersDigestFlags(t *testing.T) {
	good := segment.AppendProducers(nil, someProducers)
	open := 24 + 32 // the flag of the open batch's digest
	require.EqualValues(t, 1, good[open+1])
	for _, flag := range []byte{0, 2} { // a value that is not there, a flag that is none
		b := append([]byte{}, good...)
		b[open+1] = flag
		binary.BigEndian.PutUint32(b[20:], crc32.ChecksumIEEE(b[24:]))
		_, err := segment.DecodeProducers(b)
		requireKind(t, err, segment.SideFileDamaged)
	}
}
