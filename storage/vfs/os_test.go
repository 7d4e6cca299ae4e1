package vfs_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/internal/testkit/heap"
	"github.com/felixlog/felix/internal/testkit/leak"
	"github.com/felixlog/felix/storage/vfs"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		return
	}
	dir := filepath.Join(t.TempDir(), "a", "b")
	require.NoError(t, vfs.OS().MkdirAll(dir))
	f, err := vfs.OS().OpenFile(filepath.Join(dir, "f"), vfs.CreateNew)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	for name, want := range map[string]fs.FileMode{dir: 0o700, filepath.Dir(dir): 0o700, filepath.Join(dir, "f"): 0o600} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Equal(t, want, info.Mode().Perm(), name)
	}
}

// A rename's error is a PathError like every other one, though the os package
// makes a LinkError of it.
func TestRenameErrorIsPathError(t *testing.T) {
	dir := t.TempDir()
	err := vfs.OS().Rename(filepath.Join(dir, "none"), filepath.Join(dir, "new"))
	var path *fs.PathError
	require.True(t, errors.As(err, &path), "%v", err)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "new")
}

// System calls on a closed file are refused before they reach a descriptor
// number that may belong to another file by then.
func TestClosedFile(t *testing.T) {
	f, err := vfs.OS().OpenFile(filepath.Join(t.TempDir(), "f"), vfs.Create)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	for name, call := range map[string]func() error{
		"sync":      f.Sync,
		"datasync":  f.Datasync,
		"allocate":  func() error { return f.Allocate(0, 4096, true) },
		"writeback": func() error { return f.StartWriteback(0, 0) },
		"truncate":  func() error { return f.Truncate(0) },
		"write":     func() error { _, err := f.WriteAt([]byte("x"), 0); return err },
		"close":     f.Close,
	} {
		require.ErrorIs(t, call(), fs.ErrClosed, name)
	}
	require.Equal(t, ^uintptr(0), f.Fd())
}

func TestFlushAllocatesNothing(t *testing.T) {
	f, err := vfs.OS().OpenFile(filepath.Join(t.TempDir(), "f"), vfs.Create)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	buf := make([]byte, 128)

	allocs := heap.Allocs(100, func() {
		if _, err := f.WriteAt(buf, 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Datasync(); err != nil {
			t.Fatal(err)
		}
	})
	require.Zero(t, allocs)
}

func TestConformance(t *testing.T) {
	disk.Conformance(t, func(t *testing.T) (vfs.FS, string) { return vfs.OS(), t.TempDir() })
}
