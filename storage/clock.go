package storage

import (
	"sync/atomic"
	"time"
)

// wallClock is the system's clock, read at half the cost: the wall once in a while, what
// has passed since then in between. A step of the wall is followed within anchorAge.
type wallClock struct {
	anchor atomic.Pointer[clockAnchor]
}

type clockAnchor struct {
	at   time.Time
	wall Micros
}

// anchorAge is how old the last look at the wall may be.
const anchorAge = time.Second

func (c *wallClock) now() Micros {
	if a := c.anchor.Load(); a != nil {
		if d := time.Since(a.at); d < anchorAge {
			return a.wall + Micros(d/time.Microsecond)
		}
	}
	at := time.Now()
	a := &clockAnchor{at: at, wall: Micros(at.UnixMicro())}
	c.anchor.Store(a)
	return a.wall
}
