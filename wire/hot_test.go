package wire

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// sameRead requires that a Decoder reads a payload as the fields are read one by one, or
// refuses it with the same words.
func sameRead(t *testing.T, d *Decoder, payload []byte) {
	t.Helper()
	want, wantErr := DecodeMessage(payload)
	got, err := d.Decode(payload)
	if wantErr != nil {
		require.EqualError(t, err, wantErr.Error(), "%q", payload)
		return
	}
	require.NoError(t, err, "%q", payload)
	require.Equal(t, want.Type(), got.Type())
	require.Equal(t, appendFields(nil, want), appendFields(nil, got), "%q", payload)
}

// Hot messages are written as their fields are, byte for byte, and read as their fields
// are, whatever they hold and whatever else is in their place.
func TestHotMessagesAreAsTheirFields(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 11))
	var d Decoder
	for range 3000 {
		for _, m := range []Message{&CacheGet{}, &CachePut{}, &CacheValue{}, &CacheOK{}, &GroupPoll{}, &GroupAck{}, &GroupRecords{}} {
			fill(r, reflect.ValueOf(m).Elem())
			hot, ok := appendHot([]byte("before"), m)
			require.True(t, ok)
			payload := appendFields(nil, m)
			require.Equal(t, "before"+string(payload), string(hot))
			_, ok = d.decodeHot(payload)
			require.Equal(t, !bytes.ContainsRune(payload, '\\'), ok, "read without looking fields up: %q", payload)
			sameRead(t, &d, payload)

			// Something is changed, left out, put in or given twice.
			i := r.IntN(len(payload))
			switch r.IntN(5) {
			case 0:
				payload[i] = byte(r.Uint32())
			case 1:
				payload = append(payload[:i:i], payload[i+1:]...)
			case 2:
				payload = append(append(payload[:i:i], ` "\,:{}0nA`[r.IntN(10)]), payload[i:]...)
			case 3:
				payload = payload[:i]
			case 4:
				j := i + r.IntN(len(payload)-i)
				payload = append(payload[:j:j], payload[i:]...)
			}
			sameRead(t, &d, payload)
		}
	}
}

// What is close to the layout and not of it is left to the careful reading.
func TestOtherLayoutsAreNotHot(t *testing.T) {
	const get = `{"type":"cache_get","tenant_id":"t","namespace":"n","cache":"c","key":"k","request_id":1}`
	var d Decoder
	_, ok := d.decodeHot([]byte(get))
	require.True(t, ok)
	for _, payload := range []string{
		strings.Replace(get, `"k"`, `"\u006b"`, 1),
		strings.Replace(get, `"k"`, "\"\xff\"", 1),
		strings.Replace(get, `"t"`, "\"\xff\"", 1),
		strings.Replace(get, `:1}`, `:01}`, 1),
		strings.Replace(get, `:1}`, `:1.0}`, 1),
		strings.Replace(get, `:1}`, `:18446744073709551616}`, 1),
		strings.Replace(get, `:1}`, `:1,"request_id":1}`, 1),
		strings.Replace(get, `:1}`, `:1,"other":[]}`, 1),
		strings.Replace(get, `:1}`, `:null}`, 1),
		strings.Replace(get, `"cache_get"`, `"cache_get2"`, 1),
		get + " ", " " + get, get + get, get[:len(get)-1],
		`{"type":"cache_value","tenant_id":"t","namespace":"n","cache":"c","key":"k","value":"YQ"}`,
		`{"type":"cache_value","tenant_id":"t","namespace":"n","cache":"c","key":"k","value":"YR=="}`,
		`{"type":"cache_value","tenant_id":"t","namespace":"n","cache":"c","key":"k"}`,
		`{"type":"cache_put","tenant_id":"t","namespace":"n","cache":"c","key":"k","value":null}`,
		`{"type":"cache_put_if","tenant_id":"t","namespace":"n","cache":"c","key":"k","value":"YQ==","condition":"absent","request_id":1}`,
		`{"type":"cache_ok","request_id":}`, `{"type":"cache_ok","request_id":-1}`, `{"type":"cache_`, ``,
	} {
		_, ok := d.decodeHot([]byte(payload))
		require.False(t, ok, payload)
		sameRead(t, &d, []byte(payload))
	}
}

// Of group messages likewise.
func TestOtherLayoutsOfGroupsAreNotHot(t *testing.T) {
	const (
		poll    = `{"type":"group_poll","tenant_id":"t","namespace":"n","stream":"s","shard":0,"group":"g","max_records":1,"wait_ms":2,"consumer":"c","reclaim":true,"visibility_ms":3,"request_id":1}`
		ack     = `{"type":"group_ack","tenant_id":"t","namespace":"n","stream":"s","shard":0,"group":"g","offset":5,"request_id":1}`
		records = `{"type":"group_records","records":[{"offset":5,"payload":"YQ==","attempts":1,"skipped_before":2,"publisher":"p","timestamp_micros":3},{"offset":6,"payload":""}],"request_id":1}`
	)
	var d Decoder
	for _, payload := range []string{
		poll, ack, records, `{"type":"group_records","records":[],"request_id":1}`,
		strings.Replace(poll, `,"wait_ms":2,"consumer":"c","reclaim":true,"visibility_ms":3`, ``, 1),
	} {
		_, ok := d.decodeHot([]byte(payload))
		require.True(t, ok, payload)
		sameRead(t, &d, []byte(payload))
	}
	for _, payload := range []string{
		strings.Replace(poll, `"shard":0`, `"shard":4294967296`, 1),
		strings.Replace(poll, `"max_records":1`, `"max_records":4294967296`, 1),
		strings.Replace(poll, `"reclaim":true`, `"reclaim":false`, 1),
		strings.Replace(poll, `"c"`, "\"\xff\"", 1),
		strings.Replace(poll, `"c"`, `"\u0063"`, 1),
		strings.Replace(poll, `"c"`, `null`, 1),
		strings.Replace(poll, `"wait_ms":2,`, `"wait_ms":02,`, 1),
		strings.Replace(poll, `,"request_id":1`, ``, 1),
		strings.Replace(ack, `"offset":5`, `"offset":-5`, 1),
		strings.Replace(ack, `"offset":5`, `"offset":5,"offset":5`, 1),
		strings.Replace(ack, `"g"`, `""x`, 1),
		strings.Replace(records, `"attempts":1`, `"attempts":4294967296`, 1),
		strings.Replace(records, `"YQ=="`, `"YQ"`, 1),
		strings.Replace(records, `"YQ=="`, `null`, 1),
		strings.Replace(records, `"p"`, "\"\xff\"", 1),
		strings.Replace(records, `},{`, `}{`, 1),
		strings.Replace(records, `},{`, `},,{`, 1),
		strings.Replace(records, `}]`, `},]`, 1),
		strings.Replace(records, `}]`, `}`, 1),
		strings.Replace(records, `}]`, `,"x":0}]`, 1),
		`{"type":"group_records","records":[,],"request_id":1}`,
		`{"type":"group_records","records":[1],"request_id":1}`,
		`{"type":"group_records","records":null,"request_id":1}`,
		poll + " ", ack + "}", `{"type":"group_polls","request_id":1}`, `{"type":"group_`,
	} {
		_, ok := d.decodeHot([]byte(payload))
		require.False(t, ok, payload)
		sameRead(t, &d, []byte(payload))
	}
}

// Text of any bytes is written as a JSON string in UTF-8 that the standard library reads
// as it reads its own, wherever in a text the byte is that needs care.
func TestTextIsWrittenForTheStandard(t *testing.T) {
	care := []string{"\"", "\\", "\x00", "\x1f", "\x7f", "\x80", "\xff", "é", "\xed\xa0\x80", "\u2028", "\U0001f600"}
	for n := range 20 {
		for at := range n + 1 {
			for _, s := range append(care, "x") {
				text := strings.Repeat("a", at) + s + strings.Repeat("z", n-at)
				written := appendString(nil, text)
				require.True(t, utf8.Valid(written), "%q", text)
				theirs, err := json.Marshal(text)
				require.NoError(t, err)
				var got, want string
				require.NoError(t, json.Unmarshal(written, &got), "%q", written)
				require.NoError(t, json.Unmarshal(theirs, &want))
				require.Equal(t, want, got)
			}
		}
	}
}
