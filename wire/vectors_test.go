package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type vector struct {
	Name, Kind  string
	Flags       uint16
	PayloadJSON string `json:"payload_json"`
	PayloadHex  string `json:"payload_hex"`
	FrameHex    string `json:"frame_hex"`

	RequestID      uint64   `json:"request_id"`
	AckMode        string   `json:"ack_mode"`
	ProducerID     uint64   `json:"producer_id"`
	Sequence       uint64   `json:"sequence"`
	Key            *string  `json:"key_utf8"`
	Tenant         string   `json:"tenant_id"`
	Namespace      string   `json:"namespace"`
	Stream         string   `json:"stream"`
	Payloads       []string `json:"payloads_utf8"`
	BaseOffset     uint64   `json:"base_offset"`
	Skipped        uint64   `json:"skipped_before"`
	Publisher      string   `json:"publisher_utf8"`
	Timestamps     []uint64 `json:"timestamps_micros"`
	SubscriptionID uint64   `json:"subscription_id"`
	Status         string   `json:"status"`
	Message        *string  `json:"message"`
	Offset         uint64   `json:"offset"`
	Code, Retry    string
	Owner          *struct {
		NodeID     string  `json:"node_id"`
		Addr       *string `json:"addr"`
		Generation uint64
	}
	Detail *struct {
		Reason     *string
		RetryAfter *uint64 `json:"retry_after_ms"`
	}
}

func loadVectors(t testing.TB) []vector {
	t.Helper()
	var all []vector
	for _, name := range []string{"published.json", "binary.json", "messages.json"} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(t, err)
		var vs []vector
		require.NoError(t, json.Unmarshal(data, &vs), name)
		require.NotEmpty(t, vs)
		all = append(all, vs...)
	}
	return all
}

func (v *vector) frame(t testing.TB) (raw []byte, f Frame) {
	t.Helper()
	raw, err := hex.DecodeString(v.FrameHex)
	require.NoError(t, err)
	r := NewReader(bytes.NewReader(raw), DefaultMaxFrame)
	f, err = r.Next()
	require.NoError(t, err)
	require.Len(t, raw, HeaderBytes+len(f.Payload))
	if v.PayloadHex != "" {
		require.Equal(t, v.PayloadHex, hex.EncodeToString(f.Payload))
	}
	return raw, f
}

// Every published and derived vector decodes to its fields and encodes again to
// the same bytes; those that must be rejected are.
func TestVectors(t *testing.T) {
	seen := map[string]int{}
	for _, v := range loadVectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			seen[v.Kind]++
			raw, f := v.frame(t)
			switch v.Kind {
			case "", "json_message":
				v.checkMessage(t, raw, f)
			case "binary_publish_batch", "binary_acked_publish_batch":
				v.checkPublish(t, raw, f)
			case "binary_publish_ack":
				v.checkAck(t, raw, f)
			case "binary_event_batch", "binary_event_batch_shared":
				v.checkEvents(t, raw, f)
			case "must_reject":
				require.Error(t, decodeAny(f))
			default:
				t.Fatalf("unknown kind %q", v.Kind)
			}
		})
	}
	require.GreaterOrEqual(t, seen["must_reject"], 5)
	require.GreaterOrEqual(t, seen[""]+seen["json_message"], 34)
}

// decodeAny decodes a frame by its layout, as a server or client would.
func decodeAny(f Frame) error {
	switch f.Flags.Layout() {
	case LayoutMessage:
		_, err := DecodeMessage(f.Payload)
		return err
	case LayoutPublish:
		return new(PublishBatchFrame).Decode(f.Flags, f.Payload, nil)
	case LayoutAck:
		return new(PublishAck).Decode(f.Flags, f.Payload)
	case LayoutEvents:
		return new(EventBatch).Decode(f.Flags, f.Payload)
	}
	return &MalformedError{What: "frame", Detail: f.Flags.String()}
}

func (v *vector) checkMessage(t *testing.T, raw []byte, f Frame) {
	require.Equal(t, LayoutMessage, f.Flags.Layout())
	require.Equal(t, v.PayloadJSON, string(f.Payload))
	m, err := DecodeMessage(f.Payload)
	require.NoError(t, err)
	require.Equal(t, v.FrameHex, hex.EncodeToString(AppendMessage(nil, m)))
	var d Decoder
	again, err := d.Decode(f.Payload)
	require.NoError(t, err)
	require.Equal(t, m, again)
	require.Equal(t, raw, AppendMessage(nil, again))
}

func (v *vector) checkPublish(t *testing.T, raw []byte, f Frame) {
	require.Equal(t, Flags(v.Flags), f.Flags)
	require.Equal(t, LayoutPublish, f.Flags.Layout())
	var p PublishBatchFrame
	require.NoError(t, p.Decode(f.Flags, f.Payload, nil))
	require.Equal(t, v.Tenant, p.Tenant)
	require.Equal(t, v.Namespace, p.Namespace)
	require.Equal(t, v.Stream, p.Stream)
	require.Equal(t, v.Key != nil, p.HasKey)
	if v.Key != nil {
		require.Equal(t, *v.Key, string(p.Key))
	}
	require.Equal(t, v.RequestID, p.RequestID)
	if p.Acked {
		require.Equal(t, v.AckMode, p.AckMode.String())
	}
	require.Equal(t, v.ProducerID, p.ProducerID)
	require.Equal(t, v.Sequence, p.Sequence)
	requireTexts(t, v.Payloads, p.Payloads)
	require.Equal(t, raw, AppendPublishBatch(nil, &p))
}

func (v *vector) checkAck(t *testing.T, raw []byte, f Frame) {
	require.Equal(t, Flags(v.Flags), f.Flags)
	var a PublishAck
	require.NoError(t, a.Decode(f.Flags, f.Payload))
	require.Equal(t, v.RequestID, a.RequestID)
	require.Equal(t, v.Status == "error", a.Failed)
	require.Equal(t, v.Offset, a.Offset)
	if v.Message != nil {
		require.Equal(t, *v.Message, a.Failure.Message)
	}
	require.Equal(t, v.Code, a.Failure.Code.String())
	require.Equal(t, v.Retry, a.Failure.Retry.String())
	require.Equal(t, v.Owner != nil, a.HasOwner)
	if v.Owner != nil {
		require.Equal(t, v.Owner.NodeID, a.OwnerNodeID)
		require.Equal(t, v.Owner.Generation, a.OwnerGeneration)
		require.Equal(t, v.Owner.Addr != nil, a.OwnerAddr != "")
	}
	if v.Detail != nil && v.Detail.Reason != nil {
		require.Equal(t, *v.Detail.Reason, a.Failure.Reason)
		require.Equal(t, time.Duration(*v.Detail.RetryAfter)*time.Millisecond, a.Failure.RetryAfter)
	}
	require.Equal(t, raw, AppendPublishAck(nil, &a))
}

func (v *vector) checkEvents(t *testing.T, raw []byte, f Frame) {
	require.Equal(t, Flags(v.Flags), f.Flags)
	var e EventBatch
	require.NoError(t, e.Decode(f.Flags, f.Payload))
	require.Equal(t, v.BaseOffset, e.BaseOffset)
	require.Equal(t, v.Skipped, e.SkippedBefore)
	require.Equal(t, v.Publisher, string(e.Publisher))
	require.Equal(t, v.SubscriptionID, e.SubscriptionID)
	require.Len(t, e.Timestamps, len(v.Timestamps))
	for i, at := range v.Timestamps {
		require.Equal(t, at, e.Timestamps[i])
	}
	requireTexts(t, v.Payloads, e.Payloads)
	require.Equal(t, raw, AppendEventBatch(nil, &e))
}

func requireTexts(t *testing.T, want []string, got [][]byte) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, want[i], string(got[i]))
	}
}
