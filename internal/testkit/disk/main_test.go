package disk

import (
	"testing"

	"github.com/felixlog/felix/internal/testkit/leak"
	"github.com/felixlog/felix/storage/vfs"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestConformance(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) (vfs.FS, string){
		"os":       func(t *testing.T) (vfs.FS, string) { return vfs.OS(), t.TempDir() },
		"strict":   func(t *testing.T) (vfs.FS, string) { return strictWithDir(t), "/d" },
		"faulty":   func(t *testing.T) (vfs.FS, string) { return NewFaulty(strictWithDir(t)), "/d" },
		"counting": func(t *testing.T) (vfs.FS, string) { return NewCounting(strictWithDir(t)), "/d" },
		"stacked":  func(t *testing.T) (vfs.FS, string) { return NewFaulty(NewCounting(vfs.OS())), t.TempDir() },
		"relative": func(t *testing.T) (vfs.FS, string) { return strictWithDir(t), "d" },
		"no blocks": func(t *testing.T) (vfs.FS, string) {
			d := NewStrict(1, Options{NoAllocate: true, Capacity: 1 << 30, MaxOpen: 16})
			return d, "/"
		},
	} {
		t.Run(name, func(t *testing.T) { Conformance(t, open) })
	}
}

func strictWithDir(t *testing.T) *Strict {
	t.Helper()
	d := NewStrict(1, Options{})
	if err := d.MkdirAll("/d"); err != nil {
		t.Fatal(err)
	}
	return d
}
