package node

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// halfRequest opens a connection to the API and sends a request without its body.
func (r *rig) halfRequest() net.Conn {
	r.t.Helper()
	c, err := net.Dial("tcp", r.node.HTTPAddr())
	require.NoError(r.t, err)
	r.t.Cleanup(func() { c.Close() })
	_, err = c.Write([]byte("POST /v1/tenants HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"))
	require.NoError(r.t, err)
	return c
}

func TestStopDoesNotWaitForHalfARequest(t *testing.T) {
	r := start(t, nil)
	r.awaitReady()
	r.halfRequest()
	// The time to stop is longer than the test waits for it.
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- r.node.Stop(ctx) }()
	select {
	case err := <-stopped:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("it waits for the rest of the request")
	}
	again := start(t, func(o *Options) { *o = r.options })
	require.True(t, again.node.data.Clean, "it was a graceful stop")
}

// Anybody may connect to the API: the connections are bounded, and the next is served when
// one ends.
func TestConnectionsOfTheAPIAreBounded(t *testing.T) {
	r := start(t, nil)
	r.awaitReady()
	var held []net.Conn
	for range httpConnections {
		held = append(held, r.halfRequest())
	}
	get := func(patience time.Duration) error {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
		resp, err := client.Get(r.node.HTTPURL() + "/live")
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	require.Error(t, get(200*time.Millisecond))
	require.NoError(t, held[0].Close())
	require.NoError(t, get(patience))
}
