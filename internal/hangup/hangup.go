package hangup

import (
	"os"
	"os/signal"
	"syscall"
)

// early holds a hang-up until somebody takes it; those that come while one waits ask for
// the same.
var early = take()

func take() chan os.Signal {
	c := make(chan os.Signal, 1)
	// Who started the process with hang-ups ignored wants them to be, unless it is a broker.
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(c, syscall.SIGHUP)
	}
	return c
}

// Take is for a broker: it hands out hang-ups, one that came since the process began
// included, until stop is called.
func Take() (hangups <-chan os.Signal, stop func()) {
	signal.Notify(early, syscall.SIGHUP)
	return early, func() { signal.Stop(early) }
}

// Release is for everybody else: from now on a hang-up does what it does to a program that
// knows nothing of them, and so does one that came before.
func Release() {
	signal.Stop(early)
	select {
	case <-early:
	default:
		return
	}
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Signal(syscall.SIGHUP)
	}
	if err != nil {
		return // it cannot be raised on this system, and so it did not come either
	}
	select {} // it ends the process, but not before Signal has returned
}
