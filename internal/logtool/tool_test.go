package logtool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/dirlock"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// tool runs one command as a program would and returns what it printed.
func tool(t testing.TB, args ...string) (string, error) {
	t.Helper()
	root := &cobra.Command{Use: "tool", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(Commands()...)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(new(bytes.Buffer))
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

// segmentFile writes a segment of n records, of the given payload size, and returns the
// positions of the records and of the end.
func segmentFile(t testing.TB, dir string, id segment.ID, base segment.Offset, n, payload int) []int64 {
	t.Helper()
	b := segment.AppendHeader(nil, segment.Header{Version: segment.VersionPlain, BaseOffset: base, CreatedAt: 1})
	x := segment.NewIndex(base, 0)
	var pos []int64
	for i := range n {
		pos = append(pos, int64(len(b)))
		x.Add(base+segment.Offset(i), int64(len(b)))
		p := make([]byte, payload)
		pattern(p, uint64(i))
		b = segment.AppendRecord(b, &segment.RecordSpec{Offset: base + segment.Offset(i), Timestamp: segment.Micros(1000 + i), Payload: p})
	}
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, segment.SegmentName(id)), b, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, segment.IndexName(id)), x.AppendTo(nil), 0o600))
	return append(pos, int64(len(b)))
}

// edit changes a file.
func edit(t testing.TB, path string, change func(b []byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, change(b), 0o600))
}

func flip(at int64) func([]byte) []byte {
	return func(b []byte) []byte { b[at] ^= 0x20; return b }
}

func putMark(t testing.TB, dir string, m segment.Mark) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, segment.MarkName), segment.AppendMark(nil, m), 0o600))
}

func verifyJSON(t testing.TB, dir string, args ...string) (Report, error) {
	t.Helper()
	out, err := tool(t, append([]string{"verify", "--dir", dir, "--json"}, args...)...)
	var r Report
	if out != "" {
		require.NoError(t, json.Unmarshal([]byte(out), &r), out)
	}
	return r, err
}

func TestWriteVerifyDumpSeal(t *testing.T) {
	for _, fsync := range []string{"none", "periodic", "on_commit"} {
		t.Run(fsync, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "shard")
			out, err := tool(t, "write", "--dir", dir, "--records", "1003", "--batch", "10", "--concurrency", "4",
				"--payload-bytes", "50", "--segment-bytes", "20000", "--fsync", fsync, "--json")
			require.NoError(t, err)
			var w writeResult
			require.NoError(t, json.Unmarshal([]byte(out), &w))
			require.EqualValues(t, 1003, w.Records)
			require.EqualValues(t, 1003, w.Next)

			r, err := verifyJSON(t, dir, "--payload-bytes", "50")
			require.NoError(t, err)
			require.False(t, r.Damaged)
			require.EqualValues(t, 1003, r.Records)
			require.Greater(t, r.Segments, 3)
			require.Empty(t, r.Findings)
			_, err = verifyJSON(t, dir, "--payload-bytes", "51")
			require.ErrorIs(t, err, ErrDamaged)

			out, err = tool(t, "seal", "--dir", dir, "--json")
			require.NoError(t, err)
			var s sealResult
			require.NoError(t, json.Unmarshal([]byte(out), &s))
			require.EqualValues(t, 1003, s.Next)
			b, err := os.ReadFile(filepath.Join(dir, segment.SegmentName(s.ID)))
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("%08x", crc(b)), s.CRC32)
			require.EqualValues(t, len(b), s.Bytes)

			out, err = tool(t, "dump", "--dir", dir, "--json", "--from", "990", "--to", "1000")
			require.NoError(t, err)
			lines := strings.Split(strings.TrimSpace(out), "\n")
			require.Len(t, lines, 10)
			var line recordLine
			require.NoError(t, json.Unmarshal([]byte(lines[9]), &line))
			require.EqualValues(t, 999, line.Offset)
			require.True(t, isPattern(line.Payload, 50))
		})
	}
}

func TestVerifyNamesWhatItFinds(t *testing.T) {
	type want struct {
		severity Severity
		kind     string
		position int64
		offset   int64 // -1: none
		advice   string
	}
	// Two segments: offsets 0 to 9 and 10 to 14.
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, dir string, sealed, newest []int64)
		file   string
		want   func(sealed, newest []int64) want
	}{
		{"flip in the last payload", func(t *testing.T, dir string, _, newest []int64) {
			edit(t, filepath.Join(dir, segment.SegmentName(1)), flip(newest[5]-1))
		}, segment.SegmentName(1), func(_, n []int64) want {
			return want{Damage, "RecordChecksum", n[4], 14, "repair_checksum_tail"}
		}},
		{"flip in a middle record", func(t *testing.T, dir string, _, newest []int64) {
			edit(t, filepath.Join(dir, segment.SegmentName(1)), flip(newest[1]+40))
		}, segment.SegmentName(1), func(_, n []int64) want { return want{Damage, "RecordChecksum", n[1], 11, "restore"} }},
		{"flip in a sealed segment's last record", func(t *testing.T, dir string, sealed, _ []int64) {
			edit(t, filepath.Join(dir, segment.SegmentName(0)), flip(sealed[9]))
		}, segment.SegmentName(0), func(s, _ []int64) want { return want{Damage, "RecordHeaderChecksum", s[9], 9, "restore"} }},
		{"torn tail", func(t *testing.T, dir string, _, newest []int64) {
			edit(t, filepath.Join(dir, segment.SegmentName(1)), func(b []byte) []byte { return b[:newest[5]-1] })
		}, segment.SegmentName(1), func(_, n []int64) want { return want{Warning, "Truncated", n[4], 14, "cuts"} }},
		{"torn tail below the mark", func(t *testing.T, dir string, _, newest []int64) {
			edit(t, filepath.Join(dir, segment.SegmentName(1)), func(b []byte) []byte { return b[:newest[5]-1] })
			putMark(t, dir, segment.Mark{Segment: 1, SyncedBytes: newest[5]})
		}, segment.SegmentName(1), func(_, n []int64) want { return want{Damage, "Truncated", n[4], 14, "acknowledged"} }},
		{"whole records missing below the mark", func(t *testing.T, dir string, _, newest []int64) {
			edit(t, filepath.Join(dir, segment.SegmentName(1)), func(b []byte) []byte { return b[:newest[4]] })
			putMark(t, dir, segment.Mark{Segment: 1, SyncedBytes: newest[5]})
		}, segment.SegmentName(1), func(_, n []int64) want { return want{Damage, "Truncated", n[5], 14, "acknowledged"} }},
		{"zero tail", func(t *testing.T, dir string, _, newest []int64) {
			edit(t, filepath.Join(dir, segment.SegmentName(1)), func(b []byte) []byte { return append(b, make([]byte, 4096)...) })
		}, segment.SegmentName(1), func(_, n []int64) want { return want{Warning, "RecordHeaderChecksum", n[5], 15, "cuts"} }},
		{"zero tail of a sealed segment", func(t *testing.T, dir string, _, _ []int64) {
			edit(t, filepath.Join(dir, segment.SegmentName(0)), func(b []byte) []byte { return append(b, make([]byte, 4096)...) })
		}, segment.SegmentName(0), func(s, _ []int64) want { return want{Note, "RecordHeaderChecksum", s[10], 10, "trims"} }},
		{"gap", func(t *testing.T, dir string, _, _ []int64) {
			segmentFile(t, dir, 1, 11, 5, 100)
		}, segment.SegmentName(1), func(_, _ []int64) want { return want{Damage, "OffsetOutOfOrder", 8, 10, "restore"} }},
		{"version 1", func(t *testing.T, dir string, _, _ []int64) {
			edit(t, filepath.Join(dir, segment.SegmentName(1)), func(b []byte) []byte { b[5] = 1; return b })
		}, segment.SegmentName(1), func(_, _ []int64) want { return want{Damage, "HeaderVersion", 0, -1, "restore"} }},
		{"unfinished roll", func(t *testing.T, dir string, _, _ []int64) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, segment.SegmentName(2)), make([]byte, 7), 0o600))
		}, segment.SegmentName(2), func(_, _ []int64) want { return want{Note, "HeaderTruncated", 0, -1, "unfinished roll"} }},
		{"unfinished roll below the mark", func(t *testing.T, dir string, _, _ []int64) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, segment.SegmentName(2)), make([]byte, 64), 0o600))
			putMark(t, dir, segment.Mark{Segment: 2, SyncedBytes: 64})
		}, segment.SegmentName(2), func(_, _ []int64) want { return want{Damage, "HeaderTruncated", 0, -1, "restore"} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "acme_default_orders_0-0123456789abcdef")
			sealed := segmentFile(t, dir, 0, 0, 10, 100)
			newest := segmentFile(t, dir, 1, 10, 5, 100)
			putMark(t, dir, segment.Mark{SyncedBytes: sealed[1]})
			r, err := verifyJSON(t, dir)
			require.NoError(t, err)
			require.Empty(t, r.Findings)

			c.damage(t, dir, sealed, newest)
			r, err = verifyJSON(t, dir)
			w := c.want(sealed, newest)
			require.Equal(t, w.severity == Damage, err != nil)
			if err != nil {
				require.ErrorIs(t, err, ErrDamaged)
			}
			require.Len(t, r.Findings, 1, "%v", r.Findings)
			f := r.Findings[0]
			require.Equal(t, w.severity, f.Severity)
			require.Equal(t, w.kind, f.Kind)
			require.Equal(t, c.file, f.File)
			require.Equal(t, filepath.Base(dir), f.Shard)
			require.Equal(t, w.position, *f.Position)
			if w.offset < 0 {
				require.Nil(t, f.Offset)
			} else {
				require.EqualValues(t, w.offset, *f.Offset)
			}
			require.Contains(t, f.Advice, w.advice)

			out, _ := tool(t, "verify", "--dir", dir)
			require.Contains(t, out, fmt.Sprintf("%s: shard %s: %s: position %d", w.severity, filepath.Base(dir), c.file, w.position))
		})
	}
}

func TestVerifyFilesBesideSegments(t *testing.T) {
	for _, c := range []struct {
		name     string
		file     string
		put      string
		severity Severity
		kind     string
	}{
		{"damaged mark", segment.MarkName, "x", Note, "SideFileDamaged"},
		{"empty replica", segment.ReplicaName, "", Damage, "SideFileDamaged"},
		{"empty epochs", segment.EpochsName, "", "", ""},
		{"other epochs", segment.EpochsName, string(segment.AppendEpochs(nil, []segment.GenerationStart{{Generation: 1, Start: 500}})), "", ""},
		{"empty producers", segment.ProducersName, "", Note, "SideFileDamaged"},
		{"producers past the tail", segment.ProducersName, string(segment.AppendProducers(nil, &segment.ProducerSnapshot{AsOf: 99})), Note, "SideFileDamaged"},
		{"index of nothing", segment.IndexName(7), "x", Note, "IndexWithoutSegment"},
		{"empty index", segment.IndexName(0), "", Note, "IndexDamaged"},
		{"temporary", segment.TempName(segment.ReplicaName), "x", Note, "Temporary"},
		{"stray", ".DS_Store", "x", Note, "Stray"},
		{"stray segment", "0001.segment.bak", "x", Note, "Stray"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			segmentFile(t, dir, 0, 0, 10, 100)
			segmentFile(t, dir, 1, 10, 5, 100)
			putMark(t, dir, segment.Mark{SyncedBytes: 100})
			require.NoError(t, os.WriteFile(filepath.Join(dir, c.file), []byte(c.put), 0o600))
			r, err := verifyJSON(t, dir)
			require.Equal(t, c.severity == Damage, err != nil)
			if c.severity == "" {
				require.Empty(t, r.Findings)
				return
			}
			require.Len(t, r.Findings, 1)
			require.Equal(t, c.file, r.Findings[0].File)
			require.Equal(t, c.severity, r.Findings[0].Severity)
			require.Equal(t, c.kind, r.Findings[0].Kind)
		})
	}
	dir := t.TempDir()
	segmentFile(t, dir, 0, 0, 10, 100)
	segmentFile(t, dir, 1, 10, 5, 100)
	require.NoError(t, os.Remove(filepath.Join(dir, segment.IndexName(0))))
	r, err := verifyJSON(t, dir)
	require.NoError(t, err)
	require.Len(t, r.Findings, 2)
	require.Equal(t, "MarkMissing", r.Findings[0].Kind)
	require.Equal(t, Note, r.Findings[0].Severity)
	require.Equal(t, "IndexMissing", r.Findings[1].Kind)
}

func TestVerifyEveryShardBelow(t *testing.T) {
	root := t.TempDir()
	segmentFile(t, filepath.Join(root, "a_b_c_0-1"), 0, 0, 3, 10)
	segmentFile(t, filepath.Join(root, "a_b_c_0-1", groupsDir), 0, 0, 3, 10)
	segmentFile(t, filepath.Join(root, trashDir, "a_b_c_0-1"), 0, 5, 3, 10)
	require.NoError(t, os.WriteFile(filepath.Join(root, "a_b_c_0-1", incarnationName), []byte("x"), 0o600))
	pos := segmentFile(t, filepath.Join(root, "caches", "a_b_d_0-2"), 0, 0, 3, 10)
	out, err := tool(t, "verify", "--dir", root)
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(out, "intact"))
	require.NotContains(t, out, "Stray")
	edit(t, filepath.Join(root, "caches", "a_b_d_0-2", segment.SegmentName(0)), flip(pos[1]))
	out, err = tool(t, "verify", "--dir", root)
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "1 of 3 shards")
	require.Equal(t, 2, strings.Count(out, "intact"))
	_, err = tool(t, "verify", "--dir", t.TempDir())
	require.ErrorContains(t, err, "no log in")
	_, err = tool(t, "verify", "--dir", filepath.Join(root, "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestLockedDirectory(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "streams", "a_b_c_0-1")
	segmentFile(t, dir, 0, 0, 3, 10)
	lock, err := vfs.OS().Lock(filepath.Join(root, lockName))
	require.NoError(t, err)
	for _, args := range [][]string{
		{"verify"}, {"dump"}, {"seal"}, {"write", "--records", "1"},
	} {
		out, err := tool(t, append(args, "--dir", dir)...)
		require.ErrorIs(t, err, vfs.ErrLocked, "%v", args)
		require.ErrorContains(t, err, "--read-only")
		require.Empty(t, out)
	}
	for _, name := range []string{"verify", "dump"} {
		out, err := tool(t, name, "--dir", dir, "--read-only")
		require.NoError(t, err)
		require.NotEmpty(t, out)
	}
	// What the broker may be writing just now is no damage.
	edit(t, filepath.Join(dir, segment.SegmentName(0)), func(b []byte) []byte { return append(b, 1, 2, 3) })
	r, err := verifyJSON(t, dir, "--read-only")
	require.NoError(t, err)
	require.Equal(t, Note, r.Findings[0].Severity)

	require.NoError(t, lock.Close())
	_, err = tool(t, "verify", "--dir", dir)
	require.NoError(t, err)
}

// TestUsageIsToldApart: a wrong command line is told apart from a log that is wrong, and
// nothing is made.
func TestUsageIsToldApart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "shard")
	for _, args := range [][]string{
		{"write", "--records", "-1"}, {"write", "--batch", "0"}, {"write", "--concurrency", "5000"}, {"write", "--payload-bytes", "-1"},
		{"write", "--fsync", "sometimes"}, {"bench", "--rounds", "0"}, {"bench", "--rows", "x"}, {"dump", "--payload", "colour"},
	} {
		_, err := tool(t, append(args, "--dir", dir)...)
		var usage *UsageError
		require.ErrorAs(t, err, &usage, "%q", args)
		require.ErrorContains(t, err, args[1])
	}
	require.NoDirExists(t, dir)
	_, err := tool(t, "verify", "--dir", dir)
	require.Error(t, err)
	var usage *UsageError
	require.NotErrorAs(t, err, &usage)
}

// TestWritersOfABareDirectory: outside of any data root a writer locks the directory
// itself, whichever path leads to it; a reader changes nothing.
func TestWritersOfABareDirectory(t *testing.T) {
	root := t.TempDir()
	dir, link := filepath.Join(root, "shard"), filepath.Join(root, "link")
	require.NoError(t, os.Symlink(dir, link))
	segmentFile(t, dir, 0, 0, 3, 10)
	for _, name := range []string{"verify", "dump"} {
		_, err := tool(t, name, "--dir", dir)
		require.NoError(t, err)
	}
	require.NoFileExists(t, filepath.Join(dir, lockName), "readers write nothing")

	_, err := tool(t, "write", "--dir", link, "--records", "1")
	require.NoError(t, err)
	lock, err := lockRoot(vfs.OS(), dir, true) // what a write holds while it runs
	require.NoError(t, err)
	require.NoError(t, lock.note())
	for _, args := range [][]string{{"write", "--records", "1"}, {"seal"}, {"verify"}, {"dump"}} {
		for _, at := range []string{dir, link} {
			_, err := tool(t, append(args, "--dir", at)...)
			require.ErrorIs(t, err, vfs.ErrLocked, "%v %s", args, at)
			require.ErrorContains(t, err, filepath.Join(dir, lockName))
			require.ErrorContains(t, err, strconv.Itoa(os.Getpid()), "who has it")
			require.ErrorContains(t, err, "--read-only")
		}
	}
	require.NoError(t, lock.Close())
	r, err := verifyJSON(t, dir)
	require.NoError(t, err)
	require.EqualValues(t, 4, r.Records)
	require.Empty(t, r.Findings, "the lock is no stray")

	fresh := filepath.Join(root, "new", "shard")
	lock, err = lockRoot(vfs.OS(), fresh, true)
	require.NoError(t, err)
	_, err = tool(t, "write", "--dir", fresh, "--records", "1")
	require.ErrorIs(t, err, vfs.ErrLocked, "two that begin at once")
	require.NoError(t, lock.Close())
	_, err = tool(t, "seal", "--dir", filepath.Join(root, "nothing"))
	require.Error(t, err)
	require.NoDirExists(t, filepath.Join(root, "nothing"))
}

// TestLocksOnTheWayUp: a lock left in a shard does not hide that of the root around it,
// and a root behind a link is found from either side.
func TestLocksOnTheWayUp(t *testing.T) {
	root, elsewhere := t.TempDir(), t.TempDir()
	shard := filepath.Join(elsewhere, "a_b_c_0-1")
	segmentFile(t, shard, 0, 0, 3, 10)
	link := filepath.Join(root, "streams")
	require.NoError(t, os.Symlink(elsewhere, link))
	require.NoError(t, os.WriteFile(filepath.Join(shard, lockName), nil, 0o600))
	lock, err := vfs.OS().Lock(filepath.Join(link, lockName)) // as a broker does
	require.NoError(t, err)
	for _, dir := range []string{shard, filepath.Join(link, filepath.Base(shard))} {
		for _, args := range [][]string{{"verify"}, {"dump"}, {"seal"}, {"write", "--records", "1"}} {
			_, err := tool(t, append(args, "--dir", dir)...)
			require.ErrorIs(t, err, vfs.ErrLocked, "%v %s", args, dir)
			require.ErrorContains(t, err, filepath.Join(elsewhere, lockName))
		}
	}
	require.NoError(t, lock.Close())
	_, err = tool(t, "verify", "--dir", shard)
	require.NoError(t, err)
}

// TestLocksOfOtherPrograms: a file called LOCK may be anybody's. What is neither empty nor
// a note of ours is left alone on the way up, whoever has it; none is written by a reader
// nor by a writer that is refused, and an empty one above the directory by nobody.
func TestLocksOfOtherPrograms(t *testing.T) {
	const note = "2147483647\n" // of a process that is no more
	root := t.TempDir()
	above, ours := filepath.Join(root, "above"), filepath.Join(root, "above", "ours")
	empty := filepath.Join(ours, "empty")
	dir := filepath.Join(empty, "shard")
	segmentFile(t, dir, 0, 0, 3, 10)
	texts := map[string]string{root: "held by somebody\n", above: strings.Repeat("1", 100), ours: note, empty: "", dir: ""}
	put := func() {
		for at, text := range texts {
			require.NoError(t, os.WriteFile(filepath.Join(at, lockName), []byte(text), 0o600))
		}
	}
	requireTexts := func(what any) {
		t.Helper()
		for at, text := range texts {
			raw, err := os.ReadFile(filepath.Join(at, lockName))
			require.NoError(t, err)
			require.Equal(t, text, string(raw), "%v: %s", what, at)
		}
	}
	put()
	for _, at := range []string{root, above} {
		lock, err := vfs.OS().Lock(filepath.Join(at, lockName))
		require.NoError(t, err)
		defer lock.Close()
	}
	for _, name := range []string{"verify", "dump"} {
		_, err := tool(t, name, "--dir", dir)
		require.NoError(t, err, name)
		requireTexts(name)
	}
	src, err := OpenSource(t.Context(), dir, nil)
	require.NoError(t, err)
	requireTexts("import")
	for _, at := range []string{ours, empty, dir} {
		_, err := dirlock.Lock(vfs.OS(), at)
		require.ErrorIs(t, err, vfs.ErrLocked, "a reader has it")
		require.NotContains(t, err.Error(), "2147483647", "who had it before is not who has it")
	}
	require.NoError(t, src.Close())

	// A writer that is refused, by a segment's header that is of no version.
	log := filepath.Join(dir, segment.SegmentName(0))
	whole, err := os.ReadFile(log)
	require.NoError(t, err)
	edit(t, log, func(b []byte) []byte { b[4] = 0xff; return b })
	for _, args := range [][]string{{"seal"}, {"write", "--records", "1"}} {
		_, err := tool(t, append(args, "--dir", dir)...)
		require.Error(t, err, args)
		require.NotErrorIs(t, err, vfs.ErrLocked, args)
		requireTexts(args)
	}
	require.NoError(t, os.WriteFile(log, whole, 0o600))

	// One that is not says who it is where that may be said.
	texts[ours], texts[dir] = strconv.Itoa(os.Getpid())+"\n", strconv.Itoa(os.Getpid())+"\n"
	for _, args := range [][]string{{"write", "--records", "1"}, {"seal"}} {
		_, err := tool(t, append(args, "--dir", dir)...)
		require.NoError(t, err, args)
		requireTexts(args)
		require.NoError(t, os.WriteFile(filepath.Join(dir, lockName), nil, 0o600))
	}

	// Another program's in the directory itself is locked, and says what it said.
	texts[dir] = "somebody's\n"
	put()
	texts[ours] = strconv.Itoa(os.Getpid()) + "\n"
	_, err = tool(t, "write", "--dir", dir, "--records", "1")
	require.NoError(t, err)
	requireTexts("write")
	lock, err := vfs.OS().Lock(filepath.Join(dir, lockName))
	require.NoError(t, err)
	_, err = tool(t, "verify", "--dir", dir)
	require.ErrorIs(t, err, vfs.ErrLocked)
	require.NoError(t, lock.Close())
}

// unlockable is a file system with a lock that may not be taken.
type unlockable struct {
	vfs.FS
	name string
}

func (u unlockable) Lock(name string) (io.Closer, error) {
	if name == u.name {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return u.FS.Lock(name)
}

// TestALockThatCannotBeTakenKeepsNobodyOut: a writer makes one of its own instead, and
// says who it is in that alone.
func TestALockThatCannotBeTakenKeepsNobodyOut(t *testing.T) {
	root := t.TempDir()
	above, dir := filepath.Join(root, lockName), filepath.Join(root, "shard")
	require.NoError(t, os.WriteFile(above, []byte("2147483647\n"), 0o600))
	lock, err := lockRoot(unlockable{vfs.OS(), above}, dir, true)
	require.NoError(t, err)
	require.NoError(t, lock.note())
	raw, err := os.ReadFile(above)
	require.NoError(t, err)
	require.Equal(t, "2147483647\n", string(raw))
	_, err = tool(t, "write", "--dir", dir, "--records", "1")
	require.ErrorIs(t, err, vfs.ErrLocked)
	require.ErrorContains(t, err, strconv.Itoa(os.Getpid()))
	require.NoError(t, lock.Close())
}
