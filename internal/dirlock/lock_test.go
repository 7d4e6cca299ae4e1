package dirlock

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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

// A note replaces a note, and what a power cut left of one, and nothing that is not one. A
// lock alone changes nothing, and makes an empty file.
func TestNote(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, Name)
	lock, err := Lock(vfs.OS(), dir)
	require.NoError(t, err)
	require.NoError(t, lock.Close())
	own := strconv.Itoa(os.Getpid()) + "\n"
	for _, c := range []struct {
		text string
		says Content
	}{
		{"", Empty}, {"\x00\x00\x00\x00\x00", Empty}, {"1\n", Noted}, {"2147483647\n", Noted}, {"42", Noted}, {"42\n\x00", Noted},
		{"somebody\n", Foreign}, {"42 somebody\n", Foreign}, {"042\n", Foreign}, {"-1\n", Foreign}, {"0\n", Foreign}, {"\n", Foreign}, {" 42\n", Foreign},
		{"42\n\n", Foreign}, {strings.Repeat("1", 200), Foreign}, {strings.Repeat("\x00", 200), Foreign},
		{"1\n" + strings.Repeat("\x00", 200) + "database", Foreign},
	} {
		require.NoError(t, os.WriteFile(name, []byte(c.text), 0o600))
		lock, err := Lock(vfs.OS(), dir)
		require.NoError(t, err)
		raw, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, c.text, string(raw))
		says, err := Look(vfs.OS(), dir)
		require.NoError(t, err)
		require.Equal(t, c.says, says, "%q", c.text)
		require.NoError(t, Note(vfs.OS(), dir))
		require.NoError(t, lock.Close())
		raw, err = os.ReadFile(name)
		require.NoError(t, err)
		if c.says == Foreign {
			require.Equal(t, c.text, string(raw))
		} else {
			require.Equal(t, own, string(raw), "%q", c.text)
		}
	}
	_, err = Look(vfs.OS(), filepath.Join(dir, "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// Who had a lock before is not who has it: a process that is no more is not named.
func TestOneThatIsNoMoreIsNotNamed(t *testing.T) {
	dir := t.TempDir()
	lock, err := Lock(vfs.OS(), dir) // as a reader, which notes nothing
	require.NoError(t, err)
	for pid, named := range map[int]int{os.Getpid(): os.Getpid(), math.MaxInt32: 0} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, Name), []byte(strconv.Itoa(pid)), 0o600))
		_, err = Lock(vfs.OS(), dir)
		var held *HeldError
		require.ErrorAs(t, err, &held)
		require.Equal(t, named, held.Holder)
	}
	require.NoError(t, lock.Close())
}
