package broker

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/vfs"
)

// A single shard is not at 0 % until it is open: what was read of its log counts.
func TestRecoveryIsToldByBytes(t *testing.T) {
	w := newWorld(t)
	b := w.open()
	p := shardOf(t, create(t, b, durableStream("large")), 0)
	value := strings.Repeat("x", 256<<10)
	for range 16 {
		_, err := put(p, value)
		require.NoError(t, err)
	}
	require.NoError(t, b.Close(context.Background()))

	faulty := disk.NewFaulty(vfs.OS())
	half, late := disk.NewGate(), disk.NewGate()
	faulty.Add(disk.Rule{Op: disk.OpRead, Path: "*.log", Nth: 8, Action: disk.Hold(half)})
	faulty.Add(disk.Rule{Op: disk.OpRead, Path: "*.log", Nth: 14, Action: disk.Hold(late)})
	b, err := Open(deadline(t), Options{Catalog: w.catalog, Root: w.root, FS: faulty, Defaults: Defaults{VerifyAllOnOpen: true}})
	require.NoError(t, err)
	defer func() {
		half.Open()
		late.Open()
		require.NoError(t, b.Close(context.Background()))
	}()

	require.NoError(t, half.Await(deadline(t), 1))
	first := b.Progress()
	require.Equal(t, 0, first.Opened)
	require.GreaterOrEqual(t, first.Bytes, int64(16*len(value)))
	require.Positive(t, first.Percent())
	half.Open()
	require.NoError(t, late.Await(deadline(t), 1))
	second := b.Progress()
	require.Greater(t, second.Read, first.Read)
	require.Greater(t, second.Percent(), first.Percent())
	require.Less(t, second.Percent(), 100)
	late.Open()
	require.NoError(t, b.WaitReady(deadline(t)))
	require.Equal(t, Progress{Total: 1, Opened: 1}, b.Progress())
	require.Equal(t, 100, b.Progress().Percent())

	// A log that is read again, as when a failed shard is reopened, is nobody's progress.
	b.progress.read("large", 1, 2)
	require.Equal(t, Progress{Total: 1, Opened: 1}, b.Progress())
}

// Nothing is called done before it is, and what is looked at twice does not go backwards.
func TestProgressPercent(t *testing.T) {
	var g progress
	require.Equal(t, 100, g.now().Percent())
	g.add(2)
	g.begin("a")
	g.read("a", 90, 100)
	require.Equal(t, 45, g.now().Percent())
	g.read("a", 250, 100)
	require.Equal(t, Progress{Total: 2, Read: 100, Bytes: 100, part: 1}, g.now())
	g.read("a", 1, 1000)
	require.Equal(t, 50, g.now().Percent())
	g.done("a", false, func() {})
	g.begin("b")
	g.read("b", 10, 10)
	require.Equal(t, 99, g.now().Percent())
	g.done("b", true, func() {})
	require.Equal(t, 100, g.now().Percent())
}
