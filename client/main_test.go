package client

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client/felixtest"
	"github.com/felixlog/felix/internal/testkit/leak"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(panicsAt); addr != "" {
		consumeAndPanic(addr)
	}
	leak.Main(m)
}

// quick is a retry policy that does not make tests wait.
var quick = RetryPolicy{Attempts: 50, Base: time.Millisecond, Max: 20 * time.Millisecond}

func newBroker(t testing.TB) *felixtest.Broker {
	t.Helper()
	b, err := felixtest.Start()
	require.NoError(t, err)
	t.Cleanup(b.Close)
	b.CreateStream("orders", 1)
	b.CreateStream("wide", 4)
	return b
}

func options(b *felixtest.Broker, opts ...ClientOption) []ClientOption {
	return append([]ClientOption{WithToken(StaticToken(b.Token())), WithRootCAs(b.RootCAs()), WithRetry(quick)}, opts...)
}

func dial(t testing.TB, b *felixtest.Broker, opts ...ClientOption) *Client {
	t.Helper()
	c, err := Dial(soon(t), []string{b.Addr()}, options(b, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// patience bounds every wait of a test: far more than anything takes.
const patience = 2 * time.Minute

// soon is a context that ends long after any of these tests should have.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func numbered(i int) []byte { return fmt.Appendf(nil, "record %d", i) }

func requireNumbered(t testing.TB, records [][]byte, n int) {
	t.Helper()
	require.Len(t, records, n)
	for i, r := range records {
		require.Equal(t, string(numbered(i)), string(r))
	}
}
