package dirlock

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/leak"
	"github.com/felixlog/felix/storage/vfs"
)

func TestMain(m *testing.M) { leak.Main(m) }

// A directory is one process's by whichever path; the file says whose, if it says.
func TestTake(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	lock, err := Take(vfs.OS(), dir)
	require.NoError(t, err)
	for _, at := range []string{dir, link} {
		_, err = Take(vfs.OS(), at)
		var held *HeldError
		require.ErrorAs(t, err, &held)
		require.ErrorIs(t, err, vfs.ErrLocked)
		require.Equal(t, filepath.Join(at, Name), held.Path)
		require.Equal(t, os.Getpid(), held.Holder)
	}
	for _, text := range []string{"", "somebody\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, Name), []byte(text), 0o600))
		_, err = Take(vfs.OS(), dir)
		var held *HeldError
		require.ErrorAs(t, err, &held)
		require.Zero(t, held.Holder)
	}
	require.NoError(t, lock.Close())
	lock, err = Take(vfs.OS(), link)
	require.NoError(t, err)
	require.NoError(t, lock.Close())
	_, err = Take(vfs.OS(), filepath.Join(dir, "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
