package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
)

func once() client.ClientOption {
	return client.WithRetry(client.RetryPolicy{Attempts: 1, Base: time.Millisecond, Max: time.Millisecond})
}

// What a quota refuses is counted by its reason, publishes and cache writes alike, and a
// client is told when to come back.
func TestQuotaRefusalsAreCounted(t *testing.T) {
	r := start(t, func(o *Options) { o.Config.Limits.TenantBytesPerSecond = 1 })
	r.createStream(`{"stream":"orders","durable":true}`)
	status, raw := r.call("POST", "/v1/tenants/default/namespaces/default/caches", `{"cache":"sessions"}`)
	require.Equal(t, 201, status, string(raw))
	c := r.dial(once())
	_, err := c.Publish(t.Context(), "orders", make([]byte, 1<<20))
	require.NoError(t, err)
	refused := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, client.ErrOverloaded)
		e, ok := err.(*client.Error)
		require.True(t, ok, "%T", err)
		require.Equal(t, "tenant_quota", e.Reason)
		require.Greater(t, e.RetryAfter, time.Hour, "a byte a second")
	}
	_, err = c.Publish(t.Context(), "orders", []byte("more"), client.Deliver(client.AtMostOnce))
	refused(err)
	require.Equal(t, 1.0, r.metric("felix_refused_total", `reason="tenant_quota"`))
	err = c.Cache("sessions").Put(t.Context(), "k", []byte("v"))
	refused(err)
	require.Equal(t, 2.0, r.metric("felix_refused_total", `reason="tenant_quota"`))
	require.Equal(t, 1.0, r.metric("felix_acks_total", `code="overloaded"`), "the answers to publishes alone")
}

// Answers are bounded in records and bytes, whatever is asked for.
func TestAnswersAreBounded(t *testing.T) {
	r := start(t, func(o *Options) { o.Config.Storage.MaxRecordBytes = 2 << 20 })
	r.createStream(`{"stream":"large","durable":true,"kind":"Queue"}`)
	r.createStream(`{"stream":"small","durable":true,"kind":"Queue"}`)
	c := r.dial()
	for range 7 {
		_, err := c.Publish(t.Context(), "large", make([]byte, 1<<20))
		require.NoError(t, err)
	}
	p, err := c.Producer("small")
	require.NoError(t, err)
	for i := range 1100 {
		_, err := p.Send(t.Context(), fmt.Append(nil, i))
		require.NoError(t, err)
	}
	require.NoError(t, p.Close(t.Context()))

	page, err := c.Read(t.Context(), "large", 0, 0)
	require.NoError(t, err)
	require.Len(t, page.Records, 4, "a page is at most 4 MiB")
	messages, err := c.Group("large", "g").Poll(t.Context(), 0, 1000)
	require.NoError(t, err)
	require.Len(t, messages, 4, "and so is a poll")
	messages, err = c.Group("large", "g").Poll(t.Context(), 0, 1000)
	require.NoError(t, err)
	require.Len(t, messages, 3, "what did not fit was not claimed")
	messages, err = c.Group("small", "g").Poll(t.Context(), 0, 5000)
	require.NoError(t, err)
	require.Len(t, messages, 1000, "and of at most 1,000 records")

	longest := strings.Repeat("c", 128)
	_, err = c.Group("small", "g").Poll(t.Context(), 0, 1, client.AsConsumer(longest, false))
	require.NoError(t, err)
	_, err = c.Group("small", "g").Poll(t.Context(), 0, 1, client.AsConsumer(longest+"c", false))
	require.ErrorIs(t, err, client.ErrInvalidRequest)
	require.ErrorContains(t, err, "129 bytes")
}
