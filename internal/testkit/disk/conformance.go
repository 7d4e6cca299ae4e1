package disk

import (
	"errors"
	"io"
	"io/fs"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage/vfs"
)

// Conformance runs what every vfs.FS must do while nothing goes wrong. open returns
// a file system and an empty directory on it.
func Conformance(t *testing.T, open func(t *testing.T) (vfs.FS, string)) {
	for _, c := range conformance {
		t.Run(c.name, func(t *testing.T) {
			fsys, dir := open(t)
			c.run(t, fsys, dir)
		})
	}
}

// must opens name and closes it with the test.
func must(t *testing.T, fsys vfs.FS, name string, flag vfs.Flag) vfs.File {
	t.Helper()
	f, err := fsys.OpenFile(name, flag)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := f.Close(); err != nil && !errors.Is(err, fs.ErrClosed) && !errors.Is(err, ErrPowerOff) {
			t.Errorf("close %s: %v", name, err)
		}
	})
	return f
}

func put(t *testing.T, fsys vfs.FS, name, content string) {
	t.Helper()
	f := must(t, fsys, name, vfs.Create)
	write(t, f, content, 0)
	require.NoError(t, f.Close())
}

func write(t *testing.T, f vfs.File, content string, off int64) {
	t.Helper()
	n, err := f.WriteAt([]byte(content), off)
	require.NoError(t, err)
	require.Equal(t, len(content), n)
}

func get(t *testing.T, fsys vfs.FS, name string) string {
	t.Helper()
	f := must(t, fsys, name, vfs.ReadOnly)
	content := all(t, f)
	require.NoError(t, f.Close())
	return content
}

func all(t *testing.T, f vfs.File) string {
	t.Helper()
	size, err := f.Size()
	require.NoError(t, err)
	content := make([]byte, size)
	if size > 0 {
		n, err := f.ReadAt(content, 0)
		require.NoError(t, err)
		require.Equal(t, len(content), n)
	}
	return string(content)
}

func names(t *testing.T, fsys vfs.FS, dir string) []string {
	t.Helper()
	list, err := fsys.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// isPathError checks the form every error of an FS has.
func isPathError(t *testing.T, err, target error) {
	t.Helper()
	require.ErrorIs(t, err, target)
	var path *fs.PathError
	require.True(t, errors.As(err, &path), "%v is no path error", err)
	require.NotEmpty(t, path.Path)
}

var conformance = []struct {
	name string
	run  func(t *testing.T, fsys vfs.FS, dir string)
}{
	{"open flags", func(t *testing.T, fsys vfs.FS, dir string) {
		name := dir + "/f"
		for _, flag := range []vfs.Flag{vfs.ReadOnly, vfs.ReadWrite} {
			_, err := fsys.OpenFile(name, flag)
			isPathError(t, err, fs.ErrNotExist)
		}
		f := must(t, fsys, name, vfs.CreateNew)
		write(t, f, "abc", 0)
		_, err := fsys.OpenFile(name, vfs.CreateNew)
		isPathError(t, err, fs.ErrExist)
		// Create keeps what is there.
		require.Equal(t, "abc", all(t, must(t, fsys, name, vfs.Create)))
		require.Equal(t, "abc", all(t, must(t, fsys, name, vfs.ReadWrite)))
		_, err = must(t, fsys, name, vfs.ReadOnly).WriteAt([]byte("x"), 0)
		isPathError(t, err, syscall.EBADF)
		_, err = fsys.OpenFile(dir+"/none/f", vfs.Create)
		isPathError(t, err, fs.ErrNotExist)
	}},
	{"positioned reads and writes", func(t *testing.T, fsys vfs.FS, dir string) {
		f := must(t, fsys, dir+"/f", vfs.Create)
		write(t, f, "tail", 5000)
		write(t, f, "head", 0)
		write(t, f, "across", 510)
		content := all(t, f)
		require.Len(t, content, 5004)
		require.Equal(t, "head\x00", content[:5])
		require.Equal(t, "\x00across\x00", content[509:517])
		require.Equal(t, "\x00tail", content[4999:])

		buf := make([]byte, 8)
		n, err := f.ReadAt(buf, 5000)
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, "tail", string(buf[:n]))
		n, err = f.ReadAt(buf, 5004)
		require.ErrorIs(t, err, io.EOF)
		require.Zero(t, n)
		n, err = f.ReadAt(buf, 9000)
		require.ErrorIs(t, err, io.EOF)
		require.Zero(t, n)
		n, err = f.WriteAt(nil, 0)
		require.NoError(t, err)
		require.Zero(t, n)
	}},
	{"truncate", func(t *testing.T, fsys vfs.FS, dir string) {
		f := must(t, fsys, dir+"/f", vfs.Create)
		write(t, f, "0123456789", 0)
		require.NoError(t, f.Truncate(4))
		require.Equal(t, "0123", all(t, f))
		// What was cut does not come back when the file grows.
		require.NoError(t, f.Truncate(8))
		require.Equal(t, "0123\x00\x00\x00\x00", all(t, f))
		require.NoError(t, f.Truncate(0))
		write(t, f, "z", 2)
		require.Equal(t, "\x00\x00z", all(t, f))
	}},
	{"handles share one file", func(t *testing.T, fsys vfs.FS, dir string) {
		a := must(t, fsys, dir+"/f", vfs.Create)
		b := must(t, fsys, dir+"/f", vfs.ReadWrite)
		write(t, a, "one", 0)
		require.Equal(t, "one", all(t, b))
		require.NoError(t, b.Truncate(1))
		require.Equal(t, "o", all(t, a))
	}},
	{"flush", func(t *testing.T, fsys vfs.FS, dir string) {
		f := must(t, fsys, dir+"/f", vfs.Create)
		write(t, f, "x", 0)
		require.NoError(t, f.Datasync())
		require.NoError(t, f.Sync())
		require.NoError(t, fsys.SyncDir(dir))
		require.NoError(t, must(t, fsys, dir+"/f", vfs.ReadOnly).Sync())
		isPathError(t, fsys.SyncDir(dir+"/none"), fs.ErrNotExist)
		if err := f.StartWriteback(0, 1); err != nil {
			isPathError(t, err, vfs.ErrUnsupported)
		}
		require.Error(t, f.StartWriteback(-1, 1))
	}},
	{"allocate", func(t *testing.T, fsys vfs.FS, dir string) {
		f := must(t, fsys, dir+"/f", vfs.Create)
		write(t, f, "abc", 0)
		err := f.Allocate(0, 64<<10, true)
		if errors.Is(err, vfs.ErrUnsupported) {
			isPathError(t, err, vfs.ErrUnsupported)
			return
		}
		require.NoError(t, err)
		require.Equal(t, "abc", all(t, f))
		require.NoError(t, f.Allocate(0, 8, false))
		require.Equal(t, "abc\x00\x00\x00\x00\x00", all(t, f))
		require.NoError(t, f.Allocate(0, 4, false))
		require.Len(t, all(t, f), 8)
		require.Error(t, f.Allocate(-1, 4, true))
		require.Error(t, f.Allocate(0, 0, true))
	}},
	{"rename", func(t *testing.T, fsys vfs.FS, dir string) {
		put(t, fsys, dir+"/a", "new")
		put(t, fsys, dir+"/b", "old")
		open := must(t, fsys, dir+"/b", vfs.ReadOnly)
		require.NoError(t, fsys.Rename(dir+"/a", dir+"/b"))
		require.Equal(t, []string{"b"}, names(t, fsys, dir))
		require.Equal(t, "new", get(t, fsys, dir+"/b"))
		// The replaced file lives on for who has it open.
		require.Equal(t, "old", all(t, open))
		isPathError(t, fsys.Rename(dir+"/a", dir+"/c"), fs.ErrNotExist)

		require.NoError(t, fsys.MkdirAll(dir+"/d/e"))
		require.NoError(t, fsys.Rename(dir+"/b", dir+"/d/e/b"))
		require.NoError(t, fsys.Rename(dir+"/d", dir+"/x"))
		require.Equal(t, "new", get(t, fsys, dir+"/x/e/b"))
		require.Error(t, fsys.Rename(dir+"/x", dir+"/x/e/y"))
	}},
	{"remove", func(t *testing.T, fsys vfs.FS, dir string) {
		put(t, fsys, dir+"/f", "x")
		open := must(t, fsys, dir+"/f", vfs.ReadWrite)
		require.NoError(t, fsys.Remove(dir+"/f"))
		isPathError(t, fsys.Remove(dir+"/f"), fs.ErrNotExist)
		require.Equal(t, "x", all(t, open))
		write(t, open, "y", 1)
		put(t, fsys, dir+"/f", "other")
		require.Equal(t, "xy", all(t, open))

		require.NoError(t, fsys.MkdirAll(dir+"/p/q"))
		put(t, fsys, dir+"/p/q/f", "")
		require.Error(t, fsys.Remove(dir+"/p/q"))
		require.NoError(t, fsys.RemoveAll(dir+"/p"))
		require.NoError(t, fsys.RemoveAll(dir+"/p"))
		require.Equal(t, []string{"f"}, names(t, fsys, dir))
		require.NoError(t, fsys.Remove(dir+"/f"))
		require.Empty(t, names(t, fsys, dir))
	}},
	{"directories", func(t *testing.T, fsys vfs.FS, dir string) {
		require.NoError(t, fsys.MkdirAll(dir+"/a/b"))
		require.NoError(t, fsys.MkdirAll(dir+"/a/b"))
		for _, n := range []string{"z", "m", "b0"} {
			put(t, fsys, dir+"/a/"+n, n)
		}
		require.Equal(t, []string{"b", "b0", "m", "z"}, names(t, fsys, dir+"/a"))
		list, err := fsys.ReadDir(dir + "/a")
		require.NoError(t, err)
		require.True(t, list[0].IsDir())
		require.False(t, list[1].IsDir())
		info, err := list[1].Info()
		require.NoError(t, err)
		require.EqualValues(t, 2, info.Size())

		info, err = fsys.Stat(dir + "/a/b")
		require.NoError(t, err)
		require.True(t, info.IsDir())
		require.Equal(t, "b", info.Name())
		_, err = fsys.Stat(dir + "/none")
		isPathError(t, err, fs.ErrNotExist)
		_, err = fsys.ReadDir(dir + "/none")
		isPathError(t, err, fs.ErrNotExist)
		isPathError(t, fsys.MkdirAll(dir+"/a/z/c"), syscall.ENOTDIR)
	}},
	{"lock", func(t *testing.T, fsys vfs.FS, dir string) {
		lock, err := fsys.Lock(dir + "/LOCK")
		if errors.Is(err, vfs.ErrUnsupported) {
			return
		}
		require.NoError(t, err)
		_, err = fsys.Lock(dir + "/LOCK")
		isPathError(t, err, vfs.ErrLocked)
		other, err := fsys.Lock(dir + "/OTHER")
		require.NoError(t, err)
		require.NoError(t, other.Close())
		require.NoError(t, lock.Close())
		lock, err = fsys.Lock(dir + "/LOCK")
		require.NoError(t, err)
		require.NoError(t, lock.Close())
		require.Equal(t, []string{"LOCK", "OTHER"}, names(t, fsys, dir))
	}},
	{"usage", func(t *testing.T, fsys vfs.FS, dir string) {
		u, err := fsys.Usage(dir)
		if errors.Is(err, vfs.ErrUnsupported) {
			return
		}
		require.NoError(t, err)
		require.Positive(t, u.Total)
		require.GreaterOrEqual(t, u.Total, u.Free)
		_, err = fsys.Usage(dir + "/none")
		isPathError(t, err, fs.ErrNotExist)
	}},
	{"closed", func(t *testing.T, fsys vfs.FS, dir string) {
		f := must(t, fsys, dir+"/f", vfs.Create)
		require.NoError(t, f.Close())
		for _, call := range []func() error{
			f.Close, f.Sync, f.Datasync,
			func() error { return f.Truncate(0) },
			func() error { return f.Allocate(0, 1, true) },
			func() error { _, err := f.WriteAt([]byte("x"), 0); return err },
			func() error { _, err := f.ReadAt(make([]byte, 1), 0); return err },
		} {
			isPathError(t, call(), fs.ErrClosed)
		}
		_, err := f.Size()
		isPathError(t, err, fs.ErrClosed)
	}},
}
