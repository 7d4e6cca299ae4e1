//go:build race

package wire

// poolAllocs is what a message may allocate: under the race detector a
// sync.Pool drops some of what it is given.
const poolAllocs = 4
