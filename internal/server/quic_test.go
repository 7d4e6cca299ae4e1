package server

import (
	"crypto/rand"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// initial is the first packet of a QUIC client, as far as one who never finishes the
// handshake needs it: RFC 9000, 17.2.2, and noise where the handshake would be.
func initial() []byte {
	p := make([]byte, 1220)
	rand.Read(p)
	copy(p, []byte{0xc3, 0, 0, 0, 1, 8})             // version 1, an id of 8 bytes
	copy(p[14:], []byte{0, 0, 0x40 | 1200>>8, 0xb0}) // no id, no token, 1,200 bytes
	return p
}

// First packets alone, from an address that need not be the sender's, do not take the
// places of the clients.
func TestFirstPacketsTakeNoPlaces(t *testing.T) {
	w := newWorld(t, withLimits(Limits{Connections: mostUnproved + 8}))
	flood, err := net.Dial("udp", w.addr)
	require.NoError(t, err)
	defer flood.Close()
	require.NoError(t, flood.SetReadDeadline(time.Now().Add(patience)))
	for range 4 * mostUnproved {
		_, err := flood.Write(initial())
		require.NoError(t, err)
	}
	// One of the packets past the bound is answered with a Retry.
	answer := make([]byte, 2000)
	for n := 0; n < 5 || answer[0]&0xf0 != 0xf0; {
		n, err = flood.Read(answer)
		require.NoError(t, err, "no Retry")
	}
	transports(t, func(_ *testing.T, transport string) { w.dial(transport).login() })
	require.Zero(t, w.refusals(RefusedConnections))
}
