package vfs_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage/vfs"
)

func TestReservingBlocks(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	f, err := vfs.OS().OpenFile(name, vfs.CreateNew)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()

	switch err := f.Allocate(0, 1<<20, true); {
	case errors.Is(err, vfs.ErrUnsupported):
		var path *fs.PathError
		require.True(t, errors.As(err, &path))
		return
	default:
		require.NoError(t, err)
	}
	size, err := f.Size()
	require.NoError(t, err)
	require.Zero(t, size)
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.GreaterOrEqual(t, info.Sys().(*syscall.Stat_t).Blocks*512, int64(1<<20))
}
