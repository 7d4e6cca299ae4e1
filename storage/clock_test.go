package storage

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWallClockFollowsTheWall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c wallClock
		for range 50 {
			require.EqualValues(t, time.Now().UnixMicro(), c.now())
			time.Sleep(170 * time.Millisecond)
		}
		c.anchor.Load().wall += 5_000_000 // the wall was stepped back since
		time.Sleep(anchorAge)
		require.EqualValues(t, time.Now().UnixMicro(), c.now())
	})
}
