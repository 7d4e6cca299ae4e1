package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
)

// TestNacksAreCountedOverRestartsAndConnections nacks a record in three lives of the
// broker and the client: the third delivery is its last.
func TestNacksAreCountedOverRestartsAndConnections(t *testing.T) {
	p, c, g := queueFixture(t, 2)
	require.NoError(t, g.Configure(soon(t), 0, client.GroupConfig{MaxAttempts: 3}))
	for n := 1; n <= 3; n++ {
		m := poll(t, g, 1)
		require.Equal(t, []uint64{0}, offsetsOf(m))
		require.Equal(t, n, m[0].Attempts)
		require.NoError(t, g.Nack(soon(t), m[0]))
		switch n {
		case 1:
			p.restart(true)
		case 2:
			c = p.dial()
			g = c.Group("jobs", "workers")
		}
	}
	require.Equal(t, []uint64{1}, offsetsOf(poll(t, g, 10)))
	letters, _, err := g.DeadLetters(soon(t), 0, 0)
	require.NoError(t, err)
	require.Len(t, letters, 1)
	require.Equal(t, 3, letters[0].Attempts)
}

// TestARecordThatKillsTheBrokerIsGivenUpOn kills the broker ten times during deliveries of
// one record: each counts, and there is an end to them.
func TestARecordThatKillsTheBrokerIsGivenUpOn(t *testing.T) {
	p, _, g := queueFixture(t, 1)
	require.NoError(t, g.Configure(soon(t), 0, client.GroupConfig{MaxAttempts: 4}))
	deliveries := 0
	for range 10 {
		for _, m := range poll(t, g, 10) {
			deliveries++
			require.Equal(t, deliveries, m.Attempts)
		}
		p.restart(true)
	}
	require.Equal(t, 4, deliveries)
	info, err := g.Describe(soon(t), 0)
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 0, 0}, []uint64{info.Dead, info.Ready, info.Claimed})
	require.Equal(t, uint64(1), info.Position)
}

// TestADeletedGroupLeavesNothing deletes a group that two consumers had brought half-way:
// one of its name begins anew, also after a restart. Until then the position was the
// group's, not a consumer's.
func TestADeletedGroupLeavesNothing(t *testing.T) {
	p, c, g := queueFixture(t, 100)
	other := c.Group("jobs", "workers")
	for i := range 5 {
		consumer, name := g, "one"
		if i%2 == 1 {
			consumer, name = other, "two"
		}
		for _, m := range poll(t, consumer, 10, client.AsConsumer(name, false)) {
			require.NoError(t, consumer.Ack(soon(t), m))
		}
	}
	for _, k := range []*client.Group{g, other} {
		info, err := k.Describe(soon(t), 0)
		require.NoError(t, err)
		require.Equal(t, uint64(50), info.Position)
	}
	existed, err := g.Delete(soon(t), 0)
	require.NoError(t, err)
	require.True(t, existed)
	p.restart(true)
	names, err := c.Groups(soon(t), "jobs", 0)
	require.NoError(t, err)
	require.Empty(t, names)
	require.Equal(t, []uint64{0, 1, 2}, offsetsOf(poll(t, g, 3)))
}
