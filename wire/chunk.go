package wire

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// A chunk is the memory of one or more frames. It is counted: one reference
// for the Reader that fills it, one for each Frame.Retain. The last Release
// gives it back to its pool.
//
// A Reader writes only at and past what it has read so far, and retained frames
// lie before, so that both may be used at once.
type chunk struct {
	buf  []byte
	refs atomic.Int32
}

const (
	// minChunk is what an idle Reader holds.
	minChunk = 2 << 10
	// maxChunk is what a busy Reader grows to.
	maxChunk = 64 << 10
	// maxPooled is the largest chunk that is kept for others.
	maxPooled = 1 << 20
)

// chunkPools are for sizes from minChunk to maxPooled, doubling.
var chunkPools [10]sync.Pool

func chunkClass(size int) int {
	return bits.Len(uint(size-1)) - bits.Len(uint(minChunk-1))
}

// newChunk returns a chunk of at least size bytes with one reference.
func newChunk(size int) *chunk {
	size = max(size, minChunk)
	if size > maxPooled {
		c := &chunk{buf: make([]byte, size)}
		c.refs.Store(1)
		return c
	}
	class := chunkClass(size)
	c, _ := chunkPools[class].Get().(*chunk)
	if c == nil {
		c = &chunk{buf: make([]byte, minChunk<<class)}
	}
	c.refs.Store(1)
	return c
}

func (c *chunk) release() {
	if c.refs.Add(-1) != 0 {
		return
	}
	if n := len(c.buf); n <= maxPooled {
		chunkPools[chunkClass(n)].Put(c)
	}
}
