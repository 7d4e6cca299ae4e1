package e2e

import (
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/auth"
)

// Case 112, first half, over the wire: 50 clients create one durable stream at once, and
// each publishes to it as soon as its own request is answered.
func TestFiftyClientsCreateADurableStream(t *testing.T) {
	const clients = 50
	p := newProcess(t, "on_commit")
	token := p.token(t, auth.AudienceAPI)
	dialled := make([]*client.Client, clients)
	for i := range dialled {
		dialled[i] = p.dial()
	}
	statuses, offsets := make([]int, clients), make([]uint64, clients)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i, c := range dialled {
		all.Go(func() {
			<-start
			statuses[i], _ = p.rawHTTP(t, "POST", "/v1/tenants/default/namespaces/default/streams", token,
				`{"stream":"one","durable":true,"shards":1}`)
			ack, err := c.Publish(soon(t), "one", numbered(i))
			if err != nil {
				t.Errorf("client %d: %v", i, err)
			}
			offsets[i] = ack.Offset
		})
	}
	close(start)
	all.Wait()
	made := 0
	for _, s := range statuses {
		if s == http.StatusCreated {
			made++
		} else {
			require.Equal(t, http.StatusConflict, s)
		}
	}
	require.Equal(t, 1, made, "%v", statuses)
	seen := map[uint64]int{}
	for i, o := range offsets {
		require.Less(t, o, uint64(clients))
		_, twice := seen[o]
		require.False(t, twice, "offset %d", o)
		seen[o] = i
	}
	sub, err := dialled[0].Subscribe(soon(t), "one", client.FromEarliest())
	require.NoError(t, err)
	for o := range uint64(clients) {
		r, err := sub.Next(soon(t))
		require.NoError(t, err)
		require.Equal(t, o, r.Offset)
		require.Equal(t, string(numbered(seen[o])), string(r.Payload))
	}
	require.NoError(t, sub.Close())
}
