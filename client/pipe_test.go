package client

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

// A caller writes small frames itself on an idle connection; what the socket might not
// take in without waiting is the writer's, so that a Send never waits for the peer.
func TestSendDoesNotWaitForThePeer(t *testing.T) {
	s := newScript(t, func(p *peer) {
		f, err := p.r.Next()
		if err != nil {
			return
		}
		if f.Flags.Layout() != wire.LayoutPublish { // the control connection
			t.Errorf("a frame with flags %s", f.Flags)
			return
		}
		var b wire.PublishBatchFrame
		if err := b.Decode(f.Flags, f.Payload, nil); err != nil {
			t.Error(err)
			return
		}
		_, err = p.conn.Write(wire.AppendPublishAck(nil, &wire.PublishAck{RequestID: b.RequestID, HasOffset: true}))
		ignore(err)
		<-p.s.done // and reads nothing more
	})
	c := s.dial()
	p, err := c.Producer("s", WithDelivery(AtLeastOnce))
	require.NoError(t, err)
	_, err = p.Publish(soon(t), []byte("the connection is there, and idle"))
	require.NoError(t, err)
	sent := make(chan error, 1)
	go func() {
		_, err := p.Send(soon(t), make([]byte, 15<<20))
		sent <- err
	}()
	require.NoError(t, wait(t, sent, "the return of Send"))
	require.NoError(t, c.Close()) // and the record's batch with it
}
