//go:build race

package partition

// raceEnabled: the race detector makes pools forget, so that allocations mean nothing.
const raceEnabled = true
