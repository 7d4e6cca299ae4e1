package leak

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"
)

// Patience is how long goroutines whose end has been asked for may take to get there. On
// a busy machine none of them may run for seconds; what has leaked is still there later.
const Patience = 30 * time.Second

// Main runs the tests of a package and fails them if goroutines are left once they have
// passed. It is the body of a TestMain.
func Main(m interface{ Run() int }) { os.Exit(run(m, Patience)) }

func run(m interface{ Run() int }, patience time.Duration) int {
	code := m.Run()
	if code != 0 {
		return code
	}
	if err := Find(patience); err != nil {
		fmt.Fprintf(os.Stderr, "goroutines are left by tests that passed: %v\n", err)
		return 1
	}
	return 0
}

// Find waits until only the caller's goroutine and those of the testing package are left,
// and says after patience which others are.
func Find(patience time.Duration) error {
	return until(patience, func() error { return goleak.Find() }) // which tries for half a second
}

// until looks again and again until there is nothing, or patience is over.
func until(patience time.Duration, look func() error) error {
	for end := time.Now().Add(patience); ; {
		if err := look(); err == nil || time.Now().After(end) {
			return err
		}
	}
}
