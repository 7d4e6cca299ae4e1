package storage

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
)

// goroutineDump groups the goroutines that are in this package by their calls of it,
// innermost first. The test's own is left out.
func goroutineDump() string {
	buf := make([]byte, 4<<20)
	buf = buf[:runtime.Stack(buf, true)]
	groups := make(map[string]int)
	for _, g := range strings.Split(string(buf), "\n\n") {
		lines := strings.Split(strings.TrimSpace(g), "\n")
		var calls []string
		own := false
		for _, line := range lines[1:] {
			name, _, _ := strings.Cut(line, "(0x")
			name, _, _ = strings.Cut(name, "({0x")
			name = strings.TrimPrefix(name, "created by ")
			name, _, _ = strings.Cut(name, " in goroutine")
			_, name, ok := strings.Cut(name, "felix/storage.")
			if !ok || strings.HasPrefix(line, "\t") {
				continue
			}
			own = own || strings.Contains(name, "goroutineDump")
			if !strings.Contains(name, "Test") {
				calls = append(calls, strings.TrimSuffix(name, "(...)"))
			}
		}
		if len(calls) == 0 || own {
			continue
		}
		_, state, _ := strings.Cut(lines[0], "[")
		state, _, _ = strings.Cut(state, "]")
		state, _, _ = strings.Cut(state, ",")
		state, _, _ = strings.Cut(state, " (durable)")
		groups[state+": "+strings.Join(calls, " < ")]++
	}
	var out []string
	for calls, n := range groups {
		out = append(out, fmt.Sprintf("%3d %s", n, calls))
	}
	slices.Sort(out)
	if len(out) == 0 {
		return "none\n"
	}
	return strings.Join(out, "\n") + "\n"
}

// TestGuardNothingRunsForAnIdleLog takes the two dumps of docs/goroutines.md: a hundred
// idle logs on one disk, and one log with a flush under way and 64 appenders behind it.
func TestGuardNothingRunsForAnIdleLog(t *testing.T) {
	doc, err := os.ReadFile("../docs/goroutines.md")
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		faulty := disk.NewFaulty(disk.NewStrict(1, disk.Options{}))
		d, err := NewDisk(DiskOptions{FS: faulty, Dir: "/"})
		require.NoError(t, err)
		var logs []*Log
		for i := range 100 {
			l, err := Open(ctx, fmt.Sprintf("/log%d", i), Options{Disk: d, Fsync: OnCommit})
			require.NoError(t, err)
			require.NoError(t, l.Append(ctx, &Batch{Payloads: [][]byte{payload(i)}}))
			logs = append(logs, l)
		}
		synctest.Wait()
		idle := goroutineDump()

		gate := disk.NewGate()
		rule := faulty.Add(disk.Rule{Op: disk.OpDatasync, Path: "*.log", Count: disk.Forever, Action: disk.Hold(gate)})
		var wg sync.WaitGroup
		appendOne := func() {
			if err := logs[0].Append(ctx, &Batch{Payloads: [][]byte{payload(0)}}); err != nil {
				t.Error(err)
			}
		}
		wg.Go(appendOne)
		synctest.Wait()
		for range 64 {
			wg.Go(appendOne)
		}
		synctest.Wait()
		busy := goroutineDump()
		rule.Remove()
		gate.Open()
		wg.Wait()
		for _, l := range logs {
			require.NoError(t, l.Close(ctx))
		}
		require.NoError(t, d.Close())
		require.Contains(t, string(doc), "\n"+idle+"```", "a hundred idle logs:\n%s", idle)
		require.Contains(t, string(doc), "\n"+busy+"```", "one under load:\n%s", busy)
	})
}
