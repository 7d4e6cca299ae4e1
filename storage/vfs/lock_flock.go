//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package vfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// lockFile takes flock, which belongs to the open file and not to the process:
// two Locks of one name in one process exclude each other too, and closing some
// other descriptor of the file does not drop it.
func lockFile(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch err {
		case unix.EINTR:
			continue
		case unix.EWOULDBLOCK:
			return ErrLocked
		}
		return err
	}
}
