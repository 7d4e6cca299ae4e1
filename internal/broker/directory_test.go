package broker

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

func TestIncarnationFile(t *testing.T) {
	b := appendIncarnation(nil, 0x0123456789abcdef)
	require.Len(t, b, incarnationSize)
	require.Equal(t, uint64(0x0123456789abcdef), decodeIncarnation(b))
	for i := range b {
		bad := append([]byte(nil), b...)
		bad[i] ^= 1
		require.Zero(t, decodeIncarnation(bad), "byte %d", i)
		require.Zero(t, decodeIncarnation(b[:i]))
	}
}

func TestADirectoryIsClaimed(t *testing.T) {
	fsys := vfs.OS()
	root := t.TempDir()
	dir, c, err := claim(fsys, root, "", "s", 1)
	require.NoError(t, err)
	require.Equal(t, claimed{}, c)
	again, c, err := claim(fsys, root, "", "s", 1)
	require.NoError(t, err)
	require.Equal(t, dir, again)
	require.Equal(t, claimed{found: 1}, c)

	// Another incarnation: the old one is set aside, with all that is in it.
	require.NoError(t, os.WriteFile(filepath.Join(dir, segment.SegmentName(0)), []byte("old"), 0o600))
	_, c, err = claim(fsys, root, "", "s", 2)
	require.NoError(t, err)
	require.Equal(t, uint64(1), c.found)
	kept, err := os.ReadFile(filepath.Join(c.setAside, segment.SegmentName(0)))
	require.NoError(t, err)
	require.Equal(t, "old", string(kept))

	// The same incarnation set aside twice does not overwrite the first.
	require.NoError(t, os.WriteFile(filepath.Join(dir, incarnationName), appendIncarnation(nil, 1), 0o600))
	_, c2, err := claim(fsys, root, "", "s", 3)
	require.NoError(t, err)
	require.NotEqual(t, c.setAside, c2.setAside)

	// The file is lost: the records are the shard's.
	require.NoError(t, os.WriteFile(filepath.Join(dir, segment.SegmentName(0)), []byte("mine"), 0o600))
	require.NoError(t, os.Truncate(filepath.Join(dir, incarnationName), 0))
	_, c, err = claim(fsys, root, "", "s", 3)
	require.NoError(t, err)
	require.True(t, c.adopted)
	found, err := readIncarnation(fsys, dir)
	require.NoError(t, err)
	require.Equal(t, uint64(3), found)
}

// A directory that was restored is marked when it is claimed, and missed from then on.
func TestARestoredDirectoryIsMissedToo(t *testing.T) {
	fsys, root := vfs.OS(), t.TempDir()
	dir := filepath.Join(root, "s")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, RestoreIncarnation(fsys, dir, 1))
	_, _, err := claim(fsys, root, "", "s", 1)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(dir))
	_, _, err = claim(fsys, root, "", "s", 1)
	require.Equal(t, &MissingError{Dir: dir, Mark: madeMark(root, "", "s", 1)}, err)
}

// A claim that is killed, and one after it that a power cut ends, leave no mark of a
// directory that they did not make for good.
func TestPowerCutsInAClaim(t *testing.T) {
	for seed := range uint64(8) {
		for n := 0; ; n++ {
			r := rand.New(rand.NewPCG(seed, uint64(n)))
			d := disk.NewStrict(seed*1000+uint64(n), disk.Options{})
			require.NoError(t, d.MkdirAll("/root"))
			require.NoError(t, d.SyncDir("/"))
			d.StopAfter(n)
			_, _, err := claim(d, "/root", cachesDir, "s", 1)
			whole := err == nil
			d = d.Kill()
			d.StopAfter(r.IntN(8))
			_, _, _ = claim(d, "/root", cachesDir, "s", 1)
			d = d.Crash()
			_, _, err = claim(d, "/root", cachesDir, "s", 1)
			require.NoError(t, err, "seed %d, stopped after %d", seed, n)
			if whole {
				break
			}
		}
	}
}

func TestATreeIsRemovedInSteps(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "x")
	for _, name := range []string{"a", "b", "lost/c", "lost/deep/d"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	steps := 0
	done, err := removeTree(vfs.OS(), dir, func() bool { steps++; return steps > 2 })
	require.NoError(t, err)
	require.False(t, done)
	done, err = removeTree(vfs.OS(), dir, func() bool { return false })
	require.NoError(t, err)
	require.True(t, done)
	_, err = os.Stat(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
	done, err = removeTree(vfs.OS(), dir, func() bool { return false })
	require.NoError(t, err)
	require.True(t, done)
}
