package wire

import (
	"encoding/binary"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func emptyPayloads(n int) []byte {
	return []byte(`{"type":"publish_batch","tenant_id":"t","namespace":"n","stream":"s","payloads":[""` +
		strings.Repeat(`,""`, n-1) + `],"request_id":7,"ack":"per_batch"}`)
}

// A frame of empty payloads, of which 16 MiB hold millions, is refused at a number of
// them, with a code that says why and the id of the request; as many as that are taken.
func TestElementsAreBounded(t *testing.T) {
	var d Decoder
	_, err := d.Decode(emptyPayloads(MaxElements + 1))
	var bad *MalformedError
	require.ErrorAs(t, err, &bad)
	require.Equal(t, CodeLimitExceeded, bad.Code())
	require.True(t, bad.HasRequestID)
	require.Equal(t, uint64(7), bad.RequestID)
	require.ErrorContains(t, err, "699050")
	m, err := d.Decode(emptyPayloads(MaxElements))
	require.NoError(t, err)
	require.Len(t, m.(*PublishBatch).Payloads, MaxElements)

	f := PublishBatchFrame{Acked: true, AckMode: AckPerBatch, RequestID: 7, Tenant: "t", Namespace: "n", Stream: "s"}
	prefix := AppendPublishPrefix(nil, &f)
	payload := append(prefix[HeaderBytes:], make([]byte, 4*(MaxElements+1))...)
	count := payload[len(prefix)-HeaderBytes-4:]
	binary.BigEndian.PutUint32(count, MaxElements+1)
	err = f.Decode(f.Flags(), payload, nil)
	require.ErrorAs(t, err, &bad)
	require.Equal(t, CodeLimitExceeded, bad.Code())
	require.True(t, bad.HasRequestID)
	binary.BigEndian.PutUint32(count, MaxElements)
	require.NoError(t, f.Decode(f.Flags(), payload, nil))
	require.Len(t, f.Payloads, MaxElements)
}

// A decoder keeps nothing of a large message, not even until the next.
func TestDecoderKeepsNothingLarge(t *testing.T) {
	payload := emptyPayloads(MaxElements)
	value := strings.Repeat("AAAA", 1<<20)
	var d Decoder
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	_, err := d.Decode(payload)
	require.NoError(t, err)
	_, err = d.Decode([]byte(`{"type":"cache_put","tenant_id":"t","namespace":"n","cache":"c","key":"k","value":"` + value + `"}`))
	require.NoError(t, err)
	require.Less(t, int64(heap()-before), int64(1<<20))
	runtime.KeepAlive(&d)
	runtime.KeepAlive(payload)
	runtime.KeepAlive(&value)
}
