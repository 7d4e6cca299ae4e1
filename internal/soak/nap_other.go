//go:build !linux

package soak

import "time"

// nap sleeps by the runtime's timers: not every system has a call for it.
func nap(d time.Duration) error {
	time.Sleep(d)
	return nil
}
