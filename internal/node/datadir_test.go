package node

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/internal/testkit/leak"
	"github.com/felixlog/felix/storage/vfs"
)

func TestMain(m *testing.M) { leak.Main(m) }

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
}

func open(t *testing.T, dir, boot string) *DataDir {
	t.Helper()
	d, err := OpenDataDir(vfs.OS(), dir, boot)
	require.NoError(t, err)
	return d
}

func refused(t *testing.T, fsys vfs.FS, dir string) *DirError {
	t.Helper()
	d, err := OpenDataDir(fsys, dir, "boot")
	if err == nil {
		require.NoError(t, d.Close(false))
	}
	var e *DirError
	require.ErrorAs(t, err, &e)
	require.Contains(t, err.Error(), dir)
	return e
}

func TestDataDirLifeCycle(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "data")
	d := open(t, dir, "boot-1")
	require.True(t, d.Fresh)
	require.False(t, d.Restarted)
	id := d.DiskID
	require.Len(t, id, 16)
	require.NoError(t, d.Close(true))

	d = open(t, dir, "boot-1")
	require.Equal(t, id, d.DiskID)
	require.True(t, d.Clean)
	require.False(t, d.Fresh || d.Restarted || d.Rebuilt)
	require.NoError(t, d.Close(false))

	d = open(t, dir, "boot-1")
	require.False(t, d.Clean, "the last stop was not graceful")
	require.NoError(t, d.Close(true))
}

// A start that ends before all logs are recovered must be judged the same way
// again: the boot id of node.json moves only then.
func TestRestartIsRememberedUntilRecovered(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, open(t, dir, "boot-1").Close(true))
	d := open(t, dir, "boot-2")
	require.True(t, d.Restarted)
	require.NoError(t, d.Close(false))
	d = open(t, dir, "boot-2")
	require.True(t, d.Restarted, "nothing was recovered in between")
	require.NoError(t, d.Recovered())
	require.NoError(t, d.Close(false))
	d = open(t, dir, "boot-2")
	require.False(t, d.Restarted)
	require.NoError(t, d.Close(true))
}

func TestDataDirInUse(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir, "boot")
	before, err := os.ReadFile(filepath.Join(dir, nodeName))
	require.NoError(t, err)
	e := refused(t, vfs.OS(), dir)
	require.ErrorIs(t, e, ErrInUse)
	require.ErrorContains(t, e, strconv.Itoa(os.Getpid()), "the holder is named")
	after, err := os.ReadFile(filepath.Join(dir, nodeName))
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.NoError(t, d.Close(true))
	require.NoError(t, open(t, dir, "boot").Close(true), "free again")
}

func TestDataDirOfNewerVersion(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, nodeName, `{"format":2,"disk_id":"00","boot_id":"b","something":"new"}`)
	e := refused(t, vfs.OS(), dir)
	require.ErrorIs(t, e, ErrNewer)
	require.ErrorContains(t, e, "format 2, this one reads up to 1")
	raw, err := os.ReadFile(filepath.Join(dir, nodeName))
	require.NoError(t, err)
	require.Contains(t, string(raw), "something", "the refused file is left as it was")
}

func TestDataDirWithForeignFiles(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "thesis.tex", "x")
	e := refused(t, vfs.OS(), dir)
	require.ErrorIs(t, e, ErrForeign)
	require.ErrorContains(t, e, "thesis.tex")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "nothing was written into it")
}

func TestDataDirWithStrayFiles(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, ".DS_Store", "x")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "lost+found"), 0o700))
	d := open(t, dir, "boot")
	require.True(t, d.Fresh)
	require.Equal(t, []string{".DS_Store", "lost+found"}, d.Stray)
	require.NoError(t, d.Close(true))
	put(t, dir, "tmp~", "x")
	put(t, dir, "0001.segment.bak", "x")
	d = open(t, dir, "boot")
	require.Equal(t, []string{".DS_Store", "0001.segment.bak", "lost+found", "tmp~"}, d.Stray)
	require.NoError(t, d.Close(true))
	for _, name := range d.Stray {
		_, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err, "a stray file is left alone")
	}
}

// A state file cut to nothing is made anew; one that cannot be understood is
// never guessed at.
func TestNodeFileEmptyOrDamaged(t *testing.T) {
	for _, name := range []string{nodeName, lockName, resetKey} {
		dir := t.TempDir()
		require.NoError(t, open(t, dir, "boot").Close(true))
		put(t, dir, name, "")
		d := open(t, dir, "boot")
		require.Equal(t, name == nodeName, d.Rebuilt, name)
		key, err := ensureResetKey(d)
		require.NoError(t, err)
		require.NotZero(t, key)
		again, err := ensureResetKey(d)
		require.NoError(t, err)
		require.Equal(t, key, again)
		require.NoError(t, d.Close(true))
	}
	dir := t.TempDir()
	put(t, dir, "streams/x/0.log", "")
	d := open(t, dir, "boot")
	require.True(t, d.Rebuilt, "data of ours without its node.json")
	require.NoError(t, d.Close(true))
	for _, text := range []string{"not json", `{"format":1`, `{"format":0,"disk_id":"x"}`, `{"format":1}`} {
		dir := t.TempDir()
		put(t, dir, nodeName, text)
		e := refused(t, vfs.OS(), dir)
		require.ErrorIs(t, e, ErrDamaged, text)
		require.ErrorContains(t, e, nodeName)
	}
	dir = t.TempDir()
	put(t, dir, nodeName, string(make([]byte, maxNodeFile+1)))
	require.ErrorIs(t, refused(t, vfs.OS(), dir), ErrDamaged)
}

func TestDataDirIsAFile(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "f", "x")
	require.ErrorIs(t, refused(t, vfs.OS(), filepath.Join(dir, "f")), ErrNotDir)
	e := refused(t, vfs.OS(), filepath.Join(dir, "f", "data"))
	require.ErrorIs(t, e, syscall.ENOTDIR)
}

// What the system refuses is named with the path and with what to do, whichever
// call it refuses, and the lock is let go. A full disk keeps nobody from a directory that
// can be read: what could not be written is remembered.
func TestDataDirSystemRefusals(t *testing.T) {
	for _, c := range []struct {
		err  error
		hint string
	}{
		{syscall.EROFS, "mounted read-only"},
		{syscall.EACCES, "needs read, write and search permission"},
		{syscall.ENOSPC, "make room"},
	} {
		for _, op := range []disk.Op{disk.OpOpen, disk.OpWrite, disk.OpSync, disk.OpRename, disk.OpSyncDir} {
			dir := t.TempDir()
			require.NoError(t, open(t, dir, "boot").Close(true))
			before, err := os.ReadFile(filepath.Join(dir, nodeName))
			require.NoError(t, err)
			faulty := disk.NewFaulty(vfs.OS())
			faulty.Add(disk.Rule{Op: op, Count: disk.Forever, Action: disk.Fail(&fs.PathError{Op: op.String(), Path: dir, Err: c.err})})
			if c.err == syscall.ENOSPC && op != disk.OpOpen {
				d, err := OpenDataDir(faulty, dir, "boot")
				require.NoError(t, err, op)
				require.ErrorIs(t, d.Unsaved(), c.err, op)
				require.NoError(t, d.Close(false))
			} else {
				e := refused(t, faulty, dir)
				require.ErrorIs(t, e, c.err, op)
				require.ErrorContains(t, e, c.hint, op)
			}
			if op != disk.OpSyncDir {
				after, err := os.ReadFile(filepath.Join(dir, nodeName))
				require.NoError(t, err)
				require.Equal(t, before, after)
			}
			require.NoError(t, open(t, dir, "boot").Close(true), "the lock was kept")
		}
	}
}

// A crash at any point of a store leaves the old node.json or the new one.
func TestNodeFileSurvivesPowerCut(t *testing.T) {
	for seed := range uint64(64) {
		d := disk.NewStrict(seed, disk.Options{})
		first, err := OpenDataDir(d, "data", "boot-1")
		require.NoError(t, err)
		id := first.DiskID
		require.NoError(t, first.Close(true))
		second, err := OpenDataDir(d, "data", "boot-1")
		require.NoError(t, err)
		crashed := d.Crash()
		third, err := OpenDataDir(crashed, "data", "boot-2")
		require.NoError(t, err)
		require.Equal(t, id, third.DiskID)
		require.True(t, third.Restarted)
		require.NoError(t, third.Close(true))
		require.Error(t, second.Close(true), "its disk lost power")
	}
}

func TestNodeFileIsJSON(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, open(t, dir, "boot").Close(true))
	raw, err := os.ReadFile(filepath.Join(dir, nodeName))
	require.NoError(t, err)
	var n nodeFile
	require.NoError(t, json.Unmarshal(raw, &n))
	require.Equal(t, dataFormat, n.Format)
	require.True(t, n.Clean)
	_, err = os.Stat(filepath.Join(dir, nodeName+".tmp"))
	require.True(t, errors.Is(err, fs.ErrNotExist))
}
