package soak

import (
	"time"

	"golang.org/x/sys/unix"
)

// nap sleeps by the system's own call, so that the runtime's timers are not what is
// measured. A signal may end it early, which is not late.
func nap(d time.Duration) error {
	pause := unix.NsecToTimespec(int64(d))
	if err := unix.Nanosleep(&pause, nil); err != nil && err != unix.EINTR {
		return err
	}
	return nil
}
