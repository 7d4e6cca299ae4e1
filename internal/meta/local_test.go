package meta

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/vfs"
)

func openLocal(t *testing.T, dir string, o LocalOptions) *Local {
	t.Helper()
	l, err := OpenLocal(t.Context(), dir, o)
	require.NoError(t, err)
	return l
}

func closeLocal(t *testing.T, l *Local) {
	t.Helper()
	require.NoError(t, l.Close(context.WithoutCancel(t.Context())))
}

func TestLocalKeepsWhatWasAcknowledged(t *testing.T) {
	dir := t.TempDir()
	l := openLocal(t, dir, LocalOptions{})
	v1, err := l.Txn(t.Context(), []Compare{{Key: "a"}}, []Op{Put("a", []byte("1")), Put("b", []byte{})})
	require.NoError(t, err)
	v2, err := l.Txn(t.Context(), []Compare{{Key: "a", Version: v1}}, []Op{Put("a", []byte("2")), Delete("b")})
	require.NoError(t, err)
	require.Greater(t, v2, v1)
	_, err = l.Txn(t.Context(), []Compare{{Key: "a", Version: v1}}, []Op{Put("a", []byte("3"))})
	require.ErrorIs(t, err, ErrConflict)
	closeLocal(t, l)

	l = openLocal(t, dir, LocalOptions{})
	defer closeLocal(t, l)
	e, err := l.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, Entry{Key: "a", Value: []byte("2"), Version: v2}, e)
	_, err = l.Get(t.Context(), "b")
	require.ErrorIs(t, err, ErrNotFound)
	v3, err := l.Txn(t.Context(), []Compare{{Key: "a", Version: v2}}, []Op{Put("a", []byte("4"))})
	require.NoError(t, err)
	require.Greater(t, v3, v2, "versions only rise, over a restart too")
}

func TestLocalLeasedKeysEndWithTheBroker(t *testing.T) {
	dir := t.TempDir()
	l := openLocal(t, dir, LocalOptions{})
	_, err := l.Txn(t.Context(), nil, []Op{Put("node", []byte("before"))})
	require.NoError(t, err)
	lease, err := l.Grant(t.Context(), time.Hour)
	require.NoError(t, err)
	_, err = l.Txn(t.Context(), nil, []Op{PutLeased("node", []byte("alive"), lease)})
	require.NoError(t, err)
	e, err := l.Get(t.Context(), "node")
	require.NoError(t, err)
	require.Equal(t, "alive", string(e.Value))
	closeLocal(t, l)
	l = openLocal(t, dir, LocalOptions{})
	defer closeLocal(t, l)
	_, err = l.Get(t.Context(), "node")
	require.ErrorIs(t, err, ErrNotFound)
}

func TestLocalIsCompacted(t *testing.T) {
	dir := t.TempDir()
	l := openLocal(t, dir, LocalOptions{CompactAbove: 64 << 10})
	last := map[string]Version{}
	for i := range 400 {
		key := fmt.Sprint("k", i%7)
		v, err := l.Txn(t.Context(), []Compare{{Key: key, Version: last[key]}}, []Op{Put(key, make([]byte, 1000))})
		require.NoError(t, err)
		last[key] = v
	}
	closeLocal(t, l)
	var total int64
	require.NoError(t, filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && filepath.Ext(info.Name()) == ".log" {
			total += info.Size()
		}
		return err
	}))
	require.LessOrEqual(t, total, int64(140<<10))
	l = openLocal(t, dir, LocalOptions{})
	defer closeLocal(t, l)
	p, err := l.List(t.Context(), "k", "", 0)
	require.NoError(t, err)
	require.Len(t, p.Entries, 7)
	for _, e := range p.Entries {
		require.Equal(t, last[e.Key], e.Version, "compaction keeps the version of %s", e.Key)
	}
}

// TestLocalDoesNotGuess makes the flush of a transaction fail: the answer is that the
// outcome is unknown, and nothing more is written until the store is opened again.
func TestLocalDoesNotGuess(t *testing.T) {
	dir := t.TempDir()
	faulty := disk.NewFaulty(vfs.OS())
	l := openLocal(t, dir, LocalOptions{Log: storage.Options{FS: faulty}})
	_, err := l.Txn(t.Context(), nil, []Op{Put("a", []byte("1"))})
	require.NoError(t, err)
	boom := errors.New("device error")
	faulty.Add(disk.Rule{Op: disk.OpFlush, Path: "*.log", Action: disk.Fail(boom)})
	_, err = l.Txn(t.Context(), nil, []Op{Put("a", []byte("2"))})
	require.ErrorIs(t, err, ErrUnknownOutcome)
	_, err = l.Txn(t.Context(), nil, []Op{Put("a", []byte("3"))})
	require.ErrorIs(t, err, ErrUnavailable)
	e, err := l.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, "1", string(e.Value), "what is not known to be written is not shown")
	require.ErrorIs(t, l.Close(t.Context()), boom)
}

// A kill while a creation of several is written leaves all of them or none, wherever the
// writing ended.
func TestLocalCreatesAllOrNone(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	l := openLocal(t, dir, LocalOptions{})
	defer closeLocal(t, l)
	c := NewCatalog(l)
	_, err := c.CreateTenant(ctx, Tenant{ID: "t"})
	require.NoError(t, err)
	_, err = c.CreateNamespace(ctx, Namespace{Tenant: "t", Name: "ns"})
	require.NoError(t, err)
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	require.NoError(t, err)
	require.Len(t, logs, 1)
	size := func() int64 {
		info, err := os.Stat(logs[0])
		require.NoError(t, err)
		return info.Size()
	}
	before := size()
	_, err = c.CreateAll(ctx, []Definition{
		{Stream: &Stream{Tenant: "t", Namespace: "ns", Name: "a"}},
		{Stream: &Stream{Tenant: "t", Namespace: "ns", Name: "b"}},
		{Stream: &Stream{Tenant: "t", Namespace: "ns", Name: "c"}},
	})
	require.NoError(t, err)
	after := size()
	for _, c := range []struct {
		end  int64
		want int
	}{{before, 0}, {before + 1, 0}, {(before + after) / 2, 0}, {after - 1, 0}, {after, 3}} {
		killed := filepath.Join(t.TempDir(), "metadata")
		require.NoError(t, os.CopyFS(killed, os.DirFS(dir)))
		require.NoError(t, os.Truncate(filepath.Join(killed, filepath.Base(logs[0])), c.end))
		l := openLocal(t, killed, LocalOptions{})
		there, _, err := NewCatalog(l).ListStreams(ctx, "t", "ns", "", 0)
		require.NoError(t, err)
		require.Len(t, there, c.want, "%d of %d to %d bytes", c.end, before, after)
		closeLocal(t, l)
	}
}
