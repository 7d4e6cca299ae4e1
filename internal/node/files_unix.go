//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package node

import "golang.org/x/sys/unix"

// mostOpenFiles is how many files this process may open at once, 0 if that is not known.
// Go has raised the soft limit to the hard one by now.
func mostOpenFiles() uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return uint64(limit.Cur) //nolint:unconvert // signed on some systems
}
