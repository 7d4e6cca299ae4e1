//go:build !race

package client

// pooledBytes is what a record read in a batch may allocate.
const pooledBytes = 8

// raced: sync.Pool drops some of what it is given.
const raced = false
