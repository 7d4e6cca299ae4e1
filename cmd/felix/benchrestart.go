package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// benchRestart is the case that kills the broker, so it is the last of a mode.
const benchRestart = "restart"

// restart fills a stream, kills the broker and times how long the next one takes until
// it is ready. The row's median time is that; its rate the records a second of it.
func (b *bench) restart(ctx context.Context, dir string, broker *spawned) (row benchRow, again *spawned, err error) {
	row = benchRow{Name: benchRestart, Params: benchParams{Payload: b.f.payload, Fsync: b.fsync, Shards: int(b.f.shards), Records: b.f.records, Runs: 1}}
	b.stream = "bench-restart"
	if err := b.createStream(ctx, b.stream, b.f.shards, b.fsync); err != nil {
		return row, nil, err
	}
	c, _, err := b.dial(ctx)
	if err != nil {
		return row, nil, err
	}
	b.client = c
	records, _, err := b.send(ctx, 4*benchWindow, b.f.records, 0)
	if err := errors.Join(err, c.Close()); err != nil {
		return row, nil, err
	}
	if err := broker.Kill(); err != nil {
		return row, nil, err
	}
	began := time.Now()
	again, err = startChild(ctx, dir, broker, "--storage-min-free", "0", "--storage-fsync-mode", b.fsync)
	if err != nil {
		return row, nil, err
	}
	if err := b.awaitReady(ctx, again.HTTP); err != nil {
		return row, again, err
	}
	took := time.Since(began)
	// Recovery has cut what was written ahead of the records.
	size, err := logBytes(filepath.Join(dir, "data", "streams"), b.stream)
	if err != nil {
		return row, again, err
	}
	row.benchFigures = figures(records, took, []time.Duration{took})
	row.BytesPerRecord = float64(size) / float64(records+int(b.f.shards))
	row.ResidentMiB = residentMiB(again.Pid())
	return row, again, nil
}

// awaitReady asks /ready until it answers 200.
func (b *bench) awaitReady(ctx context.Context, base string) error {
	t := time.NewTicker(time.Millisecond)
	defer t.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/ready", nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		if err := resp.Body.Close(); err != nil {
			return err
		}
		if resp.StatusCode == http.StatusOK {
			return nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// logBytes is the size of a stream's segments.
func logBytes(root, stream string) (int64, error) {
	var sum int64
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".log") || !strings.Contains(filepath.Base(filepath.Dir(name)), stream) {
			return err
		}
		info, err := d.Info()
		if err == nil {
			sum += info.Size()
		}
		return err
	})
	return sum, err
}

// residentMiB is what a process has in memory, 0 where the system does not say.
func residentMiB(pid int) float64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			if kib, err := strconv.ParseFloat(strings.Fields(v)[0], 64); err == nil {
				return kib / 1024
			}
		}
	}
	return 0
}

// cpuTime is the processor time used so far by this process and by the one of pid,
// unless that is 0 or the system does not say.
func cpuTime(pid int) time.Duration {
	var own unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &own); err != nil {
		return 0
	}
	sum := time.Duration(own.Utime.Nano() + own.Stime.Nano())
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return sum
	}
	// The name, in parentheses, may hold anything; user and system time are the 12th and
	// 13th field behind it, in hundredths of a second.
	_, rest, _ := strings.Cut(string(raw[strings.LastIndexByte(string(raw), ')')+1:]), " ")
	if f := strings.Fields(rest); len(f) > 12 {
		for _, ticks := range f[11:13] {
			sum += time.Duration(atoi(ticks)) * 10 * time.Millisecond
		}
	}
	return sum
}
