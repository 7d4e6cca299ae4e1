//go:build !race

package wire

// poolAllocs is what a message may allocate.
const poolAllocs = 0
