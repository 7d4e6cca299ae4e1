package storage

import (
	"runtime"
	"strings"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/vfs"
)

// nullFS takes writes of segments and keeps nothing of them but the length.
type nullFS struct{ *disk.Strict }

type nullFile struct {
	vfs.File
	size int64
}

func (n nullFS) OpenFile(name string, flag vfs.Flag) (vfs.File, error) {
	f, err := n.Strict.OpenFile(name, flag)
	if err != nil || !strings.HasSuffix(name, ".log") || flag == vfs.ReadOnly {
		return f, err
	}
	return &nullFile{File: f}, nil
}

func (f *nullFile) WriteAt(b []byte, off int64) (int, error) {
	f.size = max(f.size, off+int64(len(b)))
	return len(b), nil
}

func (f *nullFile) Datasync() error { return nil }

func allocations() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}
