//go:build race

package server

// The race detector makes pools forget, so counts of allocations mean nothing.
const raceEnabled = true
