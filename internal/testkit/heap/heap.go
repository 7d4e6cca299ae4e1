package heap

import "testing"

// tries bounds how often Allocs measures: what f allocates shows in every try, what
// the runtime or a goroutine of another test allocates meanwhile does not.
const tries = 5

// Allocs returns the smallest mean number of heap allocations of a call of f over
// several series of runs calls, stopping at a series without any. The count is the
// process's, as [testing.AllocsPerRun]'s is: during a slow system call the scheduler
// may start a thread, which allocates, and one series may hold dozens of those.
func Allocs(runs int, f func()) float64 {
	least := testing.AllocsPerRun(runs, f)
	for n := 1; n < tries && least > 0; n++ {
		least = min(least, testing.AllocsPerRun(runs, f))
	}
	return least
}
