package storage

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// descriptorsEnv makes this test's process the one that is limited: its value is the
// directory of the logs.
const descriptorsEnv = "FELIX_DESCRIPTORS_CHILD"

// TestLogsShareFewDescriptors opens many logs of one disk in a process that may have four
// descriptors for ten logs: FELIX_SHARDS=10000 are 10,000 logs and 4,096 descriptors. All
// of them take records, are closed, opened again and read.
func TestLogsShareFewDescriptors(t *testing.T) {
	logs := 200
	if n, err := strconv.Atoi(os.Getenv("FELIX_SHARDS")); err == nil {
		logs = n
	}
	if dir := os.Getenv(descriptorsEnv); dir != "" {
		require.NoError(t, openLimited(dir, logs))
		return
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe, "-test.run", "^TestLogsShareFewDescriptors$", "-test.v")
	cmd.Env = append(os.Environ(), descriptorsEnv+"="+t.TempDir())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
}

func openLimited(dir string, n int) error {
	limit := unix.Rlimit{Cur: uint64(n) * 4096 / 10_000, Max: uint64(n) * 4096 / 10_000}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	d, err := NewDisk(DiskOptions{Dir: dir, MaxOpenFiles: n * DefaultMaxOpenFiles / 10_000})
	if err != nil {
		return err
	}
	logs := make([]*Log, n)
	for life := range 2 {
		var opening errgroup.Group
		opening.SetLimit(8)
		for i := range logs {
			opening.Go(func() (err error) {
				logs[i], err = Open(ctx, filepath.Join(dir, fmt.Sprint(i%100), fmt.Sprint(i)), Options{Disk: d, Fsync: None})
				return err
			})
		}
		if err := opening.Wait(); err != nil {
			return err
		}
		for i, l := range logs {
			if err := l.Append(ctx, &Batch{Payloads: [][]byte{payload(i)}}); err != nil {
				return fmt.Errorf("append to log %d: %w", i, err)
			}
			var p Page
			if err := l.Read(ctx, &p, ReadRange{}); err != nil || len(p.Records) != life+1 {
				return fmt.Errorf("read log %d: %d records, %w", i, len(p.Records), err)
			}
		}
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return err
		}
		fmt.Printf("%d logs, %d descriptors of %d\n", n, len(open), limit.Cur)
		var errs []error
		for _, l := range logs {
			errs = append(errs, l.Close(ctx))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return d.Close()
}
