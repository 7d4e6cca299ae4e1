package partition

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/vfs"
)

// TestADamagedRecordIsSaidToReaders flips a byte in the middle of a sealed segment: what
// is before it is delivered, then the reader is told, and so is one that resumes there.
func TestADamagedRecordIsSaidToReaders(t *testing.T) {
	dir := t.TempDir()
	so := storage.Options{SegmentBytes: 64 << 10}
	told := 0
	open := func() *Partition {
		p, err := Open(deadline(t), dir, Options{Name: "t/n/s/0", Storage: so, Events: Events{OnDamagedRead: func(string, error) { told++ }}})
		require.NoError(t, err)
		return p
	}
	p := open()
	for p.Log().Next() < 300 {
		publish(t, p, string(make([]byte, 500)))
	}
	segs := p.Log().Segments()
	require.Greater(t, len(segs), 1)
	require.NoError(t, p.Close(deadline(t)))

	f, err := vfs.OS().OpenFile(filepath.Join(dir, "00000000000000000000.log"), vfs.ReadWrite)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{1}, segs[0].Bytes/2)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	p = open()
	defer func() { require.NoError(t, p.Close(deadline(t))) }()
	s := subscribe(t, p, StartEarliest())
	r := &reader{sub: s}
	var damaged *storage.DamagedError
	for err = r.next(deadline(t)); err == nil; {
		err = r.next(deadline(t))
	}
	require.ErrorAs(t, err, &damaged)
	at := s.Position()
	require.Equal(t, int(at), len(r.events), "all before the damage is delivered")
	require.Positive(t, at)
	_, err = p.Subscribe(deadline(t), SubscribeOptions{Start: StartAt(at)})
	require.ErrorAs(t, err, &damaged)
	require.NoError(t, p.Read(deadline(t), ReadRequest{From: segs[0].Next}, new(ReadPage)), "what follows is readable")
	require.Equal(t, 1, told)
}
