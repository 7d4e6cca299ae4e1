package e2e

import (
	"context"
	"encoding/binary"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
)

// recoverySlack is what two processes that do the same may differ by in memory.
const recoverySlack = 16 << 20

// addressSlack is what they may differ by in addresses that they may write to, used or
// not: the heap takes 64 MiB at a time, and each thread has a stack of 8 MiB, of which the
// scheduler starts as many as it needs.
const addressSlack = 512 << 20

// TestCase117RestartNeedsNoMoreMemoryThanNormalUse kills a broker that has written
// FELIX_RECOVERY_MIB of records and starts it again, which needs no more memory than it had
// used for writing them: what recovery needs does not grow with the log. One that does is
// stopped by a limit of its addresses before it takes all of the machine's memory.
func TestCase117RestartNeedsNoMoreMemoryThanNormalUse(t *testing.T) {
	mib := 64
	if text := os.Getenv("FELIX_RECOVERY_MIB"); text != "" {
		var err error
		mib, err = strconv.Atoi(text)
		require.NoError(t, err, "FELIX_RECOVERY_MIB")
	}
	const payload = 1024
	records := uint64(mib) << 20 / payload

	p := newProcess(t, "none")
	p.createStream("orders", 1)
	producer, err := p.dial().Producer("orders")
	require.NoError(t, err)
	record := make([]byte, payload)
	ctx, cancel := context.WithTimeout(context.Background(), patience+time.Duration(mib)*time.Second)
	defer cancel()
	for n := range records {
		binary.BigEndian.PutUint64(record, n)
		_, err := producer.Send(ctx, record)
		require.NoError(t, err)
	}
	require.NoError(t, producer.Flush(ctx))
	peak, data := p.statusBytes("VmHWM"), p.statusBytes("VmData")
	p.kill()

	p.DataLimit = uint64(data + addressSlack)
	began := time.Now()
	p.start()
	await := func(path string) int {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.http+path, nil)
		require.NoError(t, err)
		transport := &http.Transport{DisableKeepAlives: true}
		resp, err := transport.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	require.Eventually(t, func() bool {
		require.Equal(t, http.StatusOK, await("/live"), "alive all the while")
		return await("/ready") == http.StatusOK
	}, patience, 5*time.Millisecond, "%s", p.stderr)
	t.Logf("%d MiB: ready in %v; peak of writing %d MiB, of the restart %d MiB", mib, time.Since(began), peak>>20, p.statusBytes("VmHWM")>>20)
	require.LessOrEqual(t, p.statusBytes("VmHWM"), peak+recoverySlack)

	s, err := p.dial().Subscribe(ctx, "orders", client.FromOffset(records-1))
	require.NoError(t, err)
	defer s.Close()
	last, err := s.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, records-1, binary.BigEndian.Uint64(last.Payload))
}
