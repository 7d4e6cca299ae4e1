package server

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

func TestPublishInMemory(t *testing.T) {
	w := newWorld(t)
	transports(t, func(t *testing.T, transport string) {
		h := w.dial(transport)
		_, events := h.subscribe(&wire.Subscribe{Tenant: "t1", Namespace: "ns", Stream: "memory"})
		p := h.login()
		p.publish(acked(7, batch("memory", "a", "b")))
		ack := p.ack()
		require.Equal(t, wire.PublishAck{RequestID: 7}, ack)
		e, texts := events.events()
		require.False(t, e.HasOffsets)
		require.Equal(t, []string{"a", "b"}, texts)
		p.finish()
		require.ErrorIs(t, p.gone(), io.EOF)
	})
}
