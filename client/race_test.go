//go:build race

package client

// pooledBytes is what a record read in a batch may allocate: under the race detector a
// sync.Pool drops some of what it is given.
const pooledBytes = 64

// raced: sync.Pool drops some of what it is given.
const raced = true
