package disk

import (
	"bytes"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage/vfs"
)

// outcomes crashes the disk that build makes under many seeds and counts what is
// found at name; "gone" where it is missing.
func outcomes(t *testing.T, name string, build func(t *testing.T, d *Strict)) map[string]int {
	t.Helper()
	base := NewStrict(1, Options{})
	build(t, base)
	seen := map[string]int{}
	for seed := range uint64(400) {
		found, ok := base.Fork(seed).Crash().Files()[strings.TrimPrefix(name, "/")]
		if !ok {
			found = "gone"
		}
		seen[found]++
	}
	return seen
}

// stable makes a file that survives a power cut as it is.
func stable(t *testing.T, d *Strict, name, content string) vfs.File {
	t.Helper()
	f := must(t, d, name, vfs.Create)
	write(t, f, content, 0)
	require.NoError(t, f.Sync())
	require.NoError(t, d.SyncDir("/"))
	return f
}

func TestFlushedSurvives(t *testing.T) {
	content := strings.Repeat("0123456789", 500)
	seen := outcomes(t, "f", func(t *testing.T, d *Strict) { stable(t, d, "f", content) })
	require.Equal(t, map[string]int{content: 400}, seen)
}

func TestUnflushedAppend(t *testing.T) {
	old, add := strings.Repeat("o", 100), strings.Repeat("n", 1500)
	seen := outcomes(t, "f", func(t *testing.T, d *Strict) {
		write(t, stable(t, d, "f", old), add, 100)
	})
	var lost, whole, zeros, garbage, torn bool
	for found := range seen {
		require.True(t, strings.HasPrefix(found, old), "flushed bytes changed: %q", found[:100])
		rest := found[100:]
		switch {
		case rest == "":
			lost = true
		case rest == add:
			whole = true
		case strings.Trim(rest, "\x00") == "":
			zeros = true
		case strings.Trim(rest, "\x00n") != "":
			garbage = true
		default:
			torn = true
		}
	}
	require.True(t, lost && whole && zeros && garbage && torn,
		"lost %v whole %v zeros %v garbage %v torn %v", lost, whole, zeros, garbage, torn)
}

// Appends that follow one another leave every length in between possible, and data
// of a later one with the length of an earlier one is gone.
func TestUnflushedLengths(t *testing.T) {
	seen := outcomes(t, "f", func(t *testing.T, d *Strict) {
		f := stable(t, d, "f", "")
		for i := range 4 {
			write(t, f, "abcd", int64(4*i))
		}
	})
	lengths := map[int]bool{}
	for found := range seen {
		lengths[len(found)] = true
	}
	require.Equal(t, map[int]bool{0: true, 4: true, 8: true, 12: true, 16: true}, lengths)
}

func TestRewriteInsideASector(t *testing.T) {
	seen := outcomes(t, "f", func(t *testing.T, d *Strict) {
		f := stable(t, d, "f", strings.Repeat("o", 32))
		write(t, f, strings.Repeat("n", 32), 0)
		write(t, f, strings.Repeat("m", 32), 0)
	})
	require.Len(t, seen, 3, "old, and either rewrite: %v", seen)
	for _, c := range "onm" {
		require.Positive(t, seen[strings.Repeat(string(c), 32)])
	}
}

func TestRewriteOverSectors(t *testing.T) {
	seen := outcomes(t, "f", func(t *testing.T, d *Strict) {
		write(t, stable(t, d, "f", strings.Repeat("o", 1024)), strings.Repeat("n", 1024), 0)
	})
	require.Len(t, seen, 4, "each sector by itself, nothing else")
	for found := range seen {
		for _, half := range []string{found[:512], found[512:]} {
			require.Empty(t, strings.Trim(half, half[:1]), "torn inside a sector")
		}
	}
}

// Flushed bytes hold even if they share their sector with what is being written.
func TestSharedSector(t *testing.T) {
	seen := outcomes(t, "f", func(t *testing.T, d *Strict) {
		f := stable(t, d, "f", strings.Repeat("o", 300))
		write(t, f, strings.Repeat("n", 100), 300)
	})
	for found := range seen {
		require.Equal(t, strings.Repeat("o", 300), found[:300])
	}
	require.Greater(t, len(seen), 10, "the rest is anything")
}

func TestCutNotFlushed(t *testing.T) {
	old := strings.Repeat("o", 6000)
	seen := outcomes(t, "f", func(t *testing.T, d *Strict) {
		f := stable(t, d, "f", old)
		require.NoError(t, f.Truncate(1000))
		write(t, f, strings.Repeat("n", 1000), 1000)
	})
	lengths := map[int]bool{}
	for found := range seen {
		lengths[len(found)] = true
		require.Equal(t, old[:1000], found[:1000])
		switch len(found) {
		case 6000: // the cut did not happen; only its own block may show what followed
			require.Equal(t, old[4096:], found[4096:])
		case 2000: // it did: what it cut does not come back, except as garbage may
			require.NotContains(t, found[1000:], "oooo")
		}
	}
	require.Equal(t, map[int]bool{6000: true, 1000: true, 2000: true}, lengths)
}

func TestCutFlushed(t *testing.T) {
	seen := outcomes(t, "f", func(t *testing.T, d *Strict) {
		f := stable(t, d, "f", strings.Repeat("o", 6000))
		require.NoError(t, f.Truncate(1000))
		require.NoError(t, f.Datasync())
		require.NoError(t, f.Truncate(3000))
		require.NoError(t, f.Datasync())
	})
	require.Equal(t, map[string]int{strings.Repeat("o", 1000) + strings.Repeat("\x00", 2000): 400}, seen)
}

func TestDirectoryEntries(t *testing.T) {
	name := func(list ...string) string { return fmt.Sprint(list) }
	cases := map[string]struct {
		run  func(t *testing.T, d *Strict)
		want []string // every outcome that must be seen, and no other may
	}{
		"made, file flushed": {
			func(t *testing.T, d *Strict) { require.NoError(t, must(t, d, "a", vfs.Create).Sync()) },
			[]string{name(), name("a")},
		},
		"made, directory flushed": {
			func(t *testing.T, d *Strict) {
				must(t, d, "a", vfs.Create)
				require.NoError(t, d.SyncDir("/"))
			},
			[]string{name("a")},
		},
		"two made": {
			func(t *testing.T, d *Strict) { put(t, d, "a", ""); put(t, d, "b", "") },
			[]string{name(), name("a"), name("b"), name("a", "b")},
		},
		"removed": {
			func(t *testing.T, d *Strict) { stable(t, d, "a", ""); require.NoError(t, d.Remove("a")) },
			[]string{name(), name("a")},
		},
		"removed, directory flushed": {
			func(t *testing.T, d *Strict) {
				stable(t, d, "a", "")
				require.NoError(t, d.Remove("a"))
				require.NoError(t, d.SyncDir("/"))
			},
			[]string{name()},
		},
		"made and renamed": {
			// Both names, or neither file, cannot be: a rename goes whole and only
			// after what made the file.
			func(t *testing.T, d *Strict) { put(t, d, "a", ""); require.NoError(t, d.Rename("a", "b")) },
			[]string{name(), name("a"), name("b")},
		},
		"renamed across directories, one flushed": {
			func(t *testing.T, d *Strict) {
				require.NoError(t, d.MkdirAll("x"))
				stable(t, d, "a", "")
				require.NoError(t, d.Rename("a", "x/a"))
				require.NoError(t, d.SyncDir("/"))
			},
			[]string{name("a", "x/"), name("x/", "x/a")},
		},
		"renamed across directories, both flushed": {
			func(t *testing.T, d *Strict) {
				require.NoError(t, d.MkdirAll("x"))
				stable(t, d, "a", "")
				require.NoError(t, d.Rename("a", "x/a"))
				require.NoError(t, d.SyncDir("/"))
				require.NoError(t, d.SyncDir("x"))
			},
			[]string{name("x/", "x/a")},
		},
		"directory not flushed into its parent": {
			func(t *testing.T, d *Strict) {
				require.NoError(t, d.MkdirAll("x"))
				put(t, d, "x/a", "")
				require.NoError(t, d.SyncDir("x"))
			},
			[]string{name(), name("x/", "x/a")},
		},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			base := NewStrict(1, Options{})
			c.run(t, base)
			seen := map[string]bool{}
			for seed := range uint64(200) {
				var list []string
				files := base.Fork(seed).Crash().Files()
				for _, n := range []string{"a", "b", "x/", "x/a"} {
					if _, ok := files[n]; ok {
						list = append(list, n)
						delete(files, n)
					}
				}
				require.Empty(t, files)
				seen[name(list...)] = true
			}
			want := map[string]bool{}
			for _, w := range c.want {
				want[w] = true
			}
			require.Equal(t, want, seen)
		})
	}
}

// Replacing a file by rename without flushing the new one first can leave neither.
func TestReplaceWithoutFlush(t *testing.T) {
	seen := outcomes(t, "f", func(t *testing.T, d *Strict) {
		stable(t, d, "f", "old")
		put(t, d, "tmp", "new")
		require.NoError(t, d.Rename("tmp", "f"))
		require.NoError(t, d.SyncDir("/"))
	})
	require.Positive(t, seen[""])
	require.Positive(t, seen["new"])
	require.Zero(t, seen["old"])
}

// failFlush makes one flush fail and drop.
func failFlush(t *testing.T, f vfs.File) {
	t.Helper()
	require.ErrorIs(t, f.(flushFailer).failFlush(OpDatasync, syscall.EIO), syscall.EIO)
}

// After a flush that failed, one that succeeds says nothing about the bytes of the
// first; writing them again and flushing does.
func TestFailedFlush(t *testing.T) {
	seen := outcomes(t, "f", func(t *testing.T, d *Strict) {
		f := stable(t, d, "f", strings.Repeat("o", 512))
		write(t, f, strings.Repeat("n", 512), 512)
		failFlush(t, f)
		require.NoError(t, f.Datasync())
	})
	require.Positive(t, seen[strings.Repeat("o", 512)+strings.Repeat("\x00", 512)], "the length came, the bytes did not")
	for found := range seen {
		require.Len(t, found, 1024)
	}

	whole := strings.Repeat("o", 512) + strings.Repeat("n", 512)
	seen = outcomes(t, "f", func(t *testing.T, d *Strict) {
		f := stable(t, d, "f", strings.Repeat("o", 512))
		write(t, f, strings.Repeat("n", 512), 512)
		failFlush(t, f)
		write(t, f, strings.Repeat("n", 512), 512)
		require.NoError(t, f.Datasync())
	})
	require.Equal(t, map[string]int{whole: 400}, seen)
}

// The bytes of a failed flush may change back under a later process without any
// power cut, and stay readable in another run.
func TestFailedFlushThenKill(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(100) {
		d := NewStrict(seed, Options{})
		f := stable(t, d, "f", strings.Repeat("o", 512))
		write(t, f, strings.Repeat("n", 512), 0)
		failFlush(t, f)
		seen[d.Kill().Files()["f"]] = true
	}
	require.Equal(t, map[string]bool{strings.Repeat("o", 512): true, strings.Repeat("n", 512): true}, seen)
}

func TestKillKeepsTheCache(t *testing.T) {
	d := NewStrict(1, Options{MaxOpen: 2})
	require.NoError(t, d.MkdirAll("x"))
	put(t, d, "x/a", "abc")
	require.NoError(t, d.Rename("x/a", "x/b"))
	lock, err := d.Lock("LOCK")
	require.NoError(t, err)
	open := must(t, d, "x/b", vfs.ReadWrite)
	before := d.Files()

	next := d.Kill()
	require.Equal(t, before, next.Files())
	_, err = open.WriteAt([]byte("late"), 0)
	isPathError(t, err, ErrPowerOff)
	require.ErrorIs(t, open.Close(), ErrPowerOff)
	require.ErrorIs(t, lock.Close(), ErrPowerOff)
	_, err = d.Stat("x")
	isPathError(t, err, ErrPowerOff)
	require.Equal(t, before, next.Files())

	// Locks and descriptors are free again, and nothing was flushed by dying.
	_, err = next.Lock("LOCK")
	require.NoError(t, err)
	must(t, next, "x/b", vfs.ReadWrite)
	lost := false
	for seed := range uint64(50) {
		_, ok := next.Fork(seed).Crash().Files()["x/b"]
		lost = lost || !ok
	}
	require.True(t, lost)
}

func TestCapacity(t *testing.T) {
	d := NewStrict(1, Options{Capacity: 3 * blockSize})
	f := must(t, d, "f", vfs.Create)
	write(t, f, strings.Repeat("x", blockSize), 0)
	u, err := d.Usage("/")
	require.NoError(t, err)
	require.Equal(t, vfs.Usage{Total: 3 * blockSize, Free: 2 * blockSize}, u)

	n, err := f.WriteAt(make([]byte, 3*blockSize), blockSize)
	isPathError(t, err, syscall.ENOSPC)
	require.Equal(t, 2*blockSize, n, "a full disk takes what it can")
	size, err := f.Size()
	require.NoError(t, err)
	require.EqualValues(t, 3*blockSize, size)
	_, err = must(t, d, "g", vfs.Create).WriteAt([]byte("x"), 0)
	isPathError(t, err, syscall.ENOSPC)
	write(t, f, "rewriting needs no room", 0)

	require.NoError(t, f.Truncate(blockSize))
	require.NoError(t, f.Allocate(0, 3*blockSize, true))
	isPathError(t, must(t, d, "g", vfs.Create).Allocate(0, 1, true), syscall.ENOSPC)
	write(t, f, strings.Repeat("x", 2*blockSize), blockSize)

	d.SetCapacity(4 * blockSize)
	write(t, must(t, d, "g", vfs.Create), "x", 0)
	d.SetCapacity(blockSize)
	u, err = d.Usage("/")
	require.NoError(t, err)
	require.Zero(t, u.Free)

	// A removed file gives its room back when nobody has it open any more.
	d.SetCapacity(4 * blockSize)
	require.NoError(t, d.Remove("f"))
	u, err = d.Usage("/")
	require.NoError(t, err)
	require.Zero(t, u.Free)
	require.NoError(t, f.Close())
	u, err = d.Usage("/")
	require.NoError(t, err)
	require.EqualValues(t, 3*blockSize, u.Free)
}

func TestDescriptorLimit(t *testing.T) {
	d := NewStrict(1, Options{MaxOpen: 2})
	a := must(t, d, "a", vfs.Create)
	lock, err := d.Lock("LOCK")
	require.NoError(t, err)
	_, err = d.OpenFile("a", vfs.ReadOnly)
	isPathError(t, err, syscall.EMFILE)
	require.NoError(t, lock.Close())
	must(t, d, "a", vfs.ReadOnly)
	require.NoError(t, a.Close())
	isPathError(t, a.Close(), fs.ErrClosed)
	must(t, d, "a", vfs.ReadOnly)
	_, err = d.OpenFile("a", vfs.ReadOnly)
	isPathError(t, err, syscall.EMFILE)
}

// script is a few operations of every kind.
func script(d *Strict) error {
	if err := d.MkdirAll("x/y"); err != nil {
		return err
	}
	f, err := d.OpenFile("x/a", vfs.Create)
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { _, err := f.WriteAt(bytes.Repeat([]byte("w"), 2000), 0); return err },
		f.Sync,
		func() error { return f.Truncate(100) },
		func() error { return f.Allocate(0, 5000, false) },
		f.Datasync,
		func() error { return d.Rename("x/a", "x/y/b") },
		func() error { return d.SyncDir("x") },
		func() error { return d.SyncDir("x/y") },
		f.Close,
		func() error { return d.RemoveAll("x") },
		func() error { return d.SyncDir("/") },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func TestStopAfterEveryOperation(t *testing.T) {
	whole := NewStrict(1, Options{})
	require.NoError(t, script(whole))
	total := whole.Ops()
	require.Equal(t, 15, total)

	happened := map[bool]int{}
	for n := range total + 1 {
		for seed := range uint64(20) {
			d := NewStrict(seed, Options{})
			d.StopAfter(n)
			err := script(d)
			if n == total {
				require.NoError(t, err)
				require.False(t, d.Off())
				continue
			}
			require.ErrorIs(t, err, ErrPowerOff)
			require.True(t, d.Off())
			_, err = d.ReadDir("/")
			isPathError(t, err, ErrPowerOff)
			require.ErrorIs(t, d.MkdirAll("late"), ErrPowerOff)
			require.Equal(t, n+1, d.Ops())
			last := d.Trace()[n]
			happened[strings.Contains(last.Path, "(done)")]++
			require.NotContains(t, d.Crash().Files(), "late/")
		}
	}
	require.Greater(t, happened[true], 50)
	require.Greater(t, happened[false], 50)
}

func TestSameSeedSameDisk(t *testing.T) {
	run := func(seed uint64, extra string) (uint64, map[string]string) {
		d := NewStrict(seed, Options{})
		require.NoError(t, script(d))
		d = d.Kill()
		put(t, d, "f", strings.Repeat("f", 3000)+extra)
		d = d.Crash()
		put(t, d, "g", "g")
		return d.TraceHash(), d.Files()
	}
	hash, files := run(7, "")
	hash2, files2 := run(7, "")
	require.Equal(t, hash, hash2)
	require.Equal(t, files, files2)
	other, _ := run(7, "x")
	require.NotEqual(t, hash, other)
	differs := false
	for seed := range uint64(20) {
		_, f := run(seed, "")
		differs = differs || fmt.Sprint(f) != fmt.Sprint(files)
	}
	require.True(t, differs)
}

func TestForkLeavesTheOriginal(t *testing.T) {
	d := NewStrict(1, Options{})
	f := stable(t, d, "f", "old")
	write(t, f, "new", 0)
	put(t, d, "g", "g")
	before := d.Files()
	fork := d.Fork(2)
	require.Equal(t, before, fork.Files())
	put(t, fork, "f", "changed")
	require.NoError(t, fork.Remove("g"))
	fork.Crash()
	require.Equal(t, before, d.Files())
	write(t, f, "x", 0)
	require.Equal(t, "xew", d.Files()["f"])
}

func TestPut(t *testing.T) {
	d := NewStrict(1, Options{Capacity: 1})
	d.Put("/a/b/f", []byte("abc"))
	require.Zero(t, d.Ops())
	require.Equal(t, map[string]string{"a/": "", "a/b/": "", "a/b/f": "abc"}, d.Crash().Files())
}

func TestTraceReads(t *testing.T) {
	d := NewStrict(1, Options{})
	require.NoError(t, script(d))
	d = d.Crash()
	var lines []string
	for _, e := range d.Trace() {
		lines = append(lines, strings.Join(strings.Fields(e.String()), " "))
	}
	require.Contains(t, lines, "4 write x/a [0, +2000)")
	require.Contains(t, lines, "6 truncate x/a to 100")
	require.Contains(t, lines, "9 rename x/a -> x/y/b")
	require.Equal(t, "0 -- power cut", lines[len(lines)-1])
}

// A write that is interrupted is there up to a block boundary.
func TestInterruptedWrite(t *testing.T) {
	lengths := map[int]bool{}
	for seed := range uint64(100) {
		d := NewStrict(seed, Options{})
		f := must(t, d, "f", vfs.Create)
		d.StopAfter(d.Ops())
		_, err := f.WriteAt(make([]byte, 10_000), 100)
		isPathError(t, err, ErrPowerOff)
		lengths[len(d.Kill().Files()["f"])] = true
	}
	require.Equal(t, map[int]bool{0: true, 4096: true, 8192: true, 10_100: true}, lengths)
}
