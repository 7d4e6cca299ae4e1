package soak

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// usage is what the machine's processors have done up to a moment, in seconds of one.
type usage struct{ all, idle, ours float64 }

// ticks is the unit of /proc/stat: a hundredth of a second, whatever the kernel counts in.
const ticks = 100

// usageNow reads the machine's times; broker is the broker's own.
func usageNow(broker float64) (*usage, error) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	line, _, _ := bytes.Cut(raw, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) < 9 || string(fields[0]) != "cpu" {
		return nil, fmt.Errorf("probe: /proc/stat begins with %q", line)
	}
	u := &usage{}
	// user, nice, system, idle, iowait, irq, softirq, steal; guests count in the first two.
	for i, f := range fields[1:9] {
		n, err := strconv.ParseFloat(string(f), 64)
		if err != nil {
			return nil, fmt.Errorf("probe: /proc/stat: %w", err)
		}
		u.all += n / ticks
		if i == 3 || i == 4 {
			u.idle += n / ticks
		}
	}
	var own unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &own); err != nil {
		return nil, fmt.Errorf("probe: usage of this process: %w", err)
	}
	u.ours = broker + float64(own.Utime.Nano()+own.Stime.Nano())/1e9
	return u, nil
}

// others is the share of the machine that other processes used since before, and what
// its host gave to other machines; 0 without a before.
func (u *usage) others(before *usage) float64 {
	if before == nil || u.all <= before.all {
		return 0
	}
	all := u.all - before.all
	busy := all - (u.idle - before.idle)
	return min(1, max(0, (busy-(u.ours-before.ours))/all))
}
