package storage

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// writeCopy puts a copy into a directory of its own.
func writeCopy(t *testing.T, c *Copy) string {
	t.Helper()
	dir := t.TempDir()
	for i, s := range c.Segments {
		var b bytes.Buffer
		require.NoError(t, c.WriteSegment(ctx, i, &b))
		require.EqualValues(t, s.Bytes, b.Len(), "segment %d", s.ID)
		require.NoError(t, os.WriteFile(filepath.Join(dir, segment.SegmentName(s.ID)), b.Bytes(), 0o600))
	}
	return dir
}

// openCopy opens what writeCopy wrote: nothing of it may need repair.
func openCopy(t *testing.T, dir string) *Log {
	t.Helper()
	var report RecoveryReport
	o := Options{FS: vfs.OS(), Shard: "copy", VerifyAllOnOpen: true}
	o.Events.OnRecovery = func(_ string, r RecoveryReport) { report = r }
	l := openClosed(t, dir, o)
	require.Zero(t, report.TruncatedBytes)
	return l
}

func TestCopyIsThePrefixToItsCut(t *testing.T) {
	l := openClosed(t, t.TempDir(), Options{FS: vfs.OS(), Shard: "s", SegmentBytes: 1 << 10})
	c, err := l.Copy(ctx, 7)
	require.NoError(t, err)
	require.Len(t, c.Segments, 1, "a log without records")
	empty := openCopy(t, writeCopy(t, c))
	require.Zero(t, empty.Next())
	c.Release()

	const all = 200
	appendN(t, l, 0, all)
	require.Greater(t, len(l.Segments()), 5)
	boundary := l.Segments()[2].Base
	for _, end := range []Offset{0, 1, boundary - 1, boundary, boundary + 1, all - 1, all, 1000} {
		c, err := l.Copy(ctx, end)
		require.NoError(t, err)
		want := min(end, all)
		require.Equal(t, want, c.End)
		restored := openCopy(t, writeCopy(t, c))
		require.Equal(t, want, restored.Next(), "cut at %d", end)
		require.Equal(t, wantPayloads(0, int(want)), readAll(t, restored))
		c.Release()
	}

	// What is trimmed is not in it, and the copy begins where the log does.
	waitUntil(t, func() bool { // segments are sealed in the background
		_, err := l.TrimHead(ctx, 60)
		return err != nil || l.Head() > 0
	})
	head := l.Head()
	require.Positive(t, head)
	c, err = l.Copy(ctx, all)
	require.NoError(t, err)
	defer c.Release()
	restored := openCopy(t, writeCopy(t, c))
	require.Equal(t, head, restored.Head())
	require.Equal(t, wantPayloads(int(head), all), readAll(t, restored))
	_, err = l.Copy(ctx, head-1)
	require.ErrorAs(t, err, new(*TrimmedError))
}

// While a copy is written the log is appended to, rolls, and retention wants the segments.
func TestCopyHoldsWhatItIsOf(t *testing.T) {
	l := openClosed(t, t.TempDir(), Options{FS: vfs.OS(), Shard: "s", SegmentBytes: 4 << 10})
	appendN(t, l, 0, 500)
	l.SetRetention(RetentionPolicy{Bytes: 1})
	c, err := l.Copy(ctx, l.Stable())
	require.NoError(t, err)
	stop := make(chan struct{})
	var busy sync.WaitGroup
	busy.Go(func() {
		for i := 500; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			b := &Batch{Payloads: [][]byte{payload(i)}}
			if err := l.Append(ctx, b); err != nil {
				t.Error(err)
				return
			}
			if _, err := l.EnforceRetention(ctx, 0); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 5 {
		restored := openCopy(t, writeCopy(t, c))
		require.Equal(t, wantPayloads(0, 500), readAll(t, restored))
	}
	close(stop)
	busy.Wait()
	require.Zero(t, l.Head(), "a segment of the copy was removed")
	c.Release()
	waitUntil(t, func() bool { // the copy was released
		_, err := l.EnforceRetention(ctx, 0)
		return err != nil || l.Head() > 0
	})
}

// Damage is found while it is copied, and not put into a backup.
func TestCopyOfADamagedSegmentFails(t *testing.T) {
	dir := t.TempDir()
	l := openClosed(t, dir, Options{FS: vfs.OS(), Shard: "s", SegmentBytes: 4 << 10})
	appendN(t, l, 0, 500)
	c, err := l.Copy(ctx, l.Stable())
	require.NoError(t, err)
	defer c.Release()
	name := filepath.Join(dir, segment.SegmentName(c.Segments[1].ID))
	raw, err := os.ReadFile(name)
	require.NoError(t, err)
	raw[2000] ^= 1
	require.NoError(t, os.WriteFile(name, raw, 0o600))
	require.NoError(t, c.WriteSegment(ctx, 0, new(bytes.Buffer)))
	err = c.WriteSegment(ctx, 1, new(bytes.Buffer))
	require.ErrorAs(t, err, new(*DamagedError))

	require.NoError(t, l.Close(ctx))
	require.ErrorIs(t, c.WriteSegment(ctx, 0, new(bytes.Buffer)), ErrClosed)
	_, err = l.Copy(ctx, 1)
	require.ErrorIs(t, err, ErrClosed)
}
