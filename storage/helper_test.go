package storage

import (
	"fmt"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

const testDir = "/log"

// testClock is a wall clock that a test sets; it moves by one microsecond a look.
type testClock struct {
	mu  sync.Mutex
	now Micros
}

func newTestClock() *testClock { return &testClock{now: 1_000_000_000} }

func (c *testClock) Now() Micros {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now++
	return c.now
}

func (c *testClock) Set(m Micros) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = m
}

func (c *testClock) Advance(d Micros) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += d
}

// manual are options of a log in Manual mode.
func manual(fsys vfs.FS, mode FsyncMode) Options {
	return Options{FS: fsys, Fsync: mode, Manual: true, Clock: newTestClock().Now, Shard: "s"}
}

func mustOpen(t testing.TB, dir string, o Options) *Log {
	t.Helper()
	l, err := Open(ctx, dir, o)
	require.NoError(t, err)
	return l
}

// openClosed opens a log that the test's end closes.
func openClosed(t testing.TB, dir string, o Options) *Log {
	t.Helper()
	l := mustOpen(t, dir, o)
	t.Cleanup(func() {
		if l.Health().State != StateClosed {
			require.NoError(t, l.Close(ctx))
		}
	})
	return l
}

func settleAll(l *Log) {
	for l.Step() {
	}
}

func payload(i int) []byte { return fmt.Appendf(nil, "payload-%06d", i) }

// appendN appends n records one by one, the payload saying its number.
func appendN(t testing.TB, l *Log, from, n int) {
	t.Helper()
	for i := from; i < from+n; i++ {
		b := &Batch{Payloads: [][]byte{payload(i)}}
		require.NoError(t, l.Append(ctx, b), "append %d", i)
	}
}

// readAll reads every record and checks that offsets are dense.
func readAll(t testing.TB, l *Log) []string {
	t.Helper()
	out, err := tryReadAll(l)
	require.NoError(t, err)
	return out
}

func tryReadAll(l *Log) ([]string, error) {
	var out []string
	var p Page
	for off := l.Head(); ; {
		if err := l.Read(ctx, &p, ReadRange{From: off, MaxRecords: 7}); err != nil {
			return out, err
		}
		if len(p.Records) == 0 {
			if off != l.Stable() {
				return out, fmt.Errorf("reading ended at %d, stable is %d", off, l.Stable())
			}
			return out, nil
		}
		for _, r := range p.Records {
			if r.Offset != off {
				return out, fmt.Errorf("offset %d where %d should be", r.Offset, off)
			}
			out = append(out, string(r.Payload))
			off++
		}
	}
}

// wantPayloads are the payloads [from, to).
func wantPayloads(from, to int) []string {
	var out []string
	for i := from; i < to; i++ {
		out = append(out, string(payload(i)))
	}
	return out
}

// writeSegment puts a segment file with n records of the test's payloads.
func segmentBytes(base Offset, n int) []byte {
	b := segment.AppendHeader(nil, segment.Header{Version: segment.VersionPlain, BaseOffset: base, CreatedAt: 1})
	for i := range n {
		b = segment.AppendRecord(b, &segment.RecordSpec{Offset: base + Offset(i), Timestamp: 1000 + Micros(base) + Micros(i), Payload: payload(int(base) + i)})
	}
	return b
}

func logPath(id SegmentID) string   { return filepath.Join(testDir, segment.SegmentName(id)) }
func indexPath(id SegmentID) string { return filepath.Join(testDir, segment.IndexName(id)) }

// readFile is a file's bytes on a strict disk.
func fileOn(d *disk.Strict, name string) (string, bool) {
	s, ok := d.Files()[strings.TrimPrefix(name, "/")]
	return s, ok
}

// sameFiles compares two listings but for the names that fit.
func requireSameFiles(t testing.TB, want, got map[string]string) {
	t.Helper()
	names := func(m map[string]string) []string {
		var out []string
		for n := range m {
			out = append(out, n)
		}
		sort.Strings(out)
		return out
	}
	require.Equal(t, names(want), names(got))
	for n := range want {
		require.Equal(t, want[n], got[n], n)
	}
}

// waitUntil lets the bubble's time pass until ok, for a minute of it at most.
func waitUntil(t testing.TB, ok func() bool) {
	t.Helper()
	for range 600 {
		if ok() {
			return
		}
		<-time.After(100 * time.Millisecond)
	}
	t.Fatal("nothing happened for a minute")
}

func benchPayloads(n int) [][]byte {
	ps := make([][]byte, n)
	for i := range ps {
		ps[i] = make([]byte, 128)
		for j := range ps[i] {
			ps[i][j] = byte(j*31 + i)
		}
	}
	return ps
}
