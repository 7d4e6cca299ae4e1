//go:build race

package broker

// raceEnabled: the race detector makes pools forget, so that allocations mean nothing.
const raceEnabled = true
