package storage

import (
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/vfs"
)

// TestFlushThroughIOUring appends with flushes through the ring where the machine has one,
// and the blocking way where it has not; both must do.
func TestFlushThroughIOUring(t *testing.T) {
	if err := IOUringAvailable(); err != nil {
		t.Logf("falls back: %v", err)
	}
	dir := t.TempDir()
	d, err := NewDisk(DiskOptions{Dir: dir, IOUring: true})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			l, err := Open(ctx, filepath.Join(dir, string(rune('a'+i))), Options{Disk: d, Fsync: OnCommit})
			if err != nil {
				t.Error(err)
				return
			}
			for n := range 25 {
				if err := l.Append(ctx, &Batch{Payloads: [][]byte{payload(n)}}); err != nil {
					t.Error(err)
				}
			}
			if l.Durable() != 25 {
				t.Errorf("durable is %d", l.Durable())
			}
			if err := l.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, d.Close())
}

// TestRingErrors: a flush that the kernel refuses is an error, a file without a descriptor
// is flushed by itself.
func TestRingErrors(t *testing.T) {
	fl := newFlusher(true)
	strict := disk.NewStrict(1, disk.Options{})
	f, err := strict.OpenFile("/f", vfs.Create)
	require.NoError(t, err)
	require.NoError(t, fl.datasync(f))
	require.NoError(t, f.Close())
	require.Error(t, fl.datasync(f))

	g, err := vfs.OS().OpenFile(filepath.Join(t.TempDir(), "g"), vfs.Create)
	require.NoError(t, err)
	require.NoError(t, fl.datasync(g))
	fd := g.Fd()
	require.NoError(t, g.Close())
	require.Error(t, fl.datasync(closedFile{g, fd}), "the descriptor is closed")
}

type closedFile struct {
	vfs.File
	fd uintptr
}

func (f closedFile) Fd() uintptr { return f.fd }
