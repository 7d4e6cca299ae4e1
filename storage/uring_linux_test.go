package storage

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

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

// TestWithoutIOUring: where the system refuses a ring, the disk says so and why, and
// appends are flushed the blocking way before they are acknowledged.
func TestWithoutIOUring(t *testing.T) {
	before := theRing
	defer func() { theRing = before }()
	theRing = func() (*ring, error) { return nil, fmt.Errorf("storage: io_uring setup: %w", unix.EPERM) }
	require.ErrorIs(t, IOUringAvailable(), unix.EPERM)

	counting := disk.NewCounting(vfs.OS())
	var told []error
	d, err := NewDisk(DiskOptions{FS: counting, IOUring: true, Events: DiskEvents{OnNoIOUring: func(err error) { told = append(told, err) }}})
	require.NoError(t, err)
	require.Len(t, told, 1)
	require.ErrorIs(t, told[0], unix.EPERM)
	l, err := Open(ctx, t.TempDir(), Options{Disk: d, Fsync: OnCommit})
	require.NoError(t, err)
	for n := range 5 {
		flushes := counting.Path("*.log").Flushes()
		require.NoError(t, l.Append(ctx, &Batch{Payloads: [][]byte{payload(n)}}))
		require.EqualValues(t, 1, counting.Path("*.log").Flushes()-flushes)
		require.EqualValues(t, n+1, l.Durable())
	}
	require.NoError(t, l.Close(ctx))
	require.NoError(t, d.Close())

	// Without the wish nothing is told.
	told = nil
	d, err = NewDisk(DiskOptions{Events: DiskEvents{OnNoIOUring: func(err error) { told = append(told, err) }}})
	require.NoError(t, err)
	require.Empty(t, told)
	require.NoError(t, d.Close())
}

// TestRingErrors: a flush that the kernel refuses is an error, a file without a descriptor
// is flushed by itself.
func TestRingErrors(t *testing.T) {
	fl, err := newFlusher(true)
	if err != nil {
		t.Logf("falls back: %v", err)
	}
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
