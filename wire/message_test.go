package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fill sets every field of a message to a random value that the wire can carry:
// a value beside a Has is only set with it.
func fill(r *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(r, v.Field(i))
		}
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			if has := v.FieldByName("Has" + strings.TrimSuffix(name, "Millis")); has.IsValid() && !has.Bool() {
				v.Field(i).SetZero()
			}
		}
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		u := r.Uint64() >> r.IntN(64)
		if r.IntN(8) == 0 {
			u = math.MaxUint64
		}
		v.SetUint(u & (1<<v.Type().Bits() - 1))
	case reflect.Int64:
		v.SetInt(int64(r.Uint64()) >> r.IntN(64))
	case reflect.String:
		v.SetString(randomText(r))
	case reflect.Slice:
		n := r.IntN(4)
		s := reflect.MakeSlice(v.Type(), n, n)
		for i := range n {
			fill(r, s.Index(i))
		}
		v.Set(s)
	default:
		panic(fmt.Sprintf("fill: %s", v.Kind()))
	}
}

func randomText(r *rand.Rand) string {
	alphabet := []string{"a", "Z", "0", "-", "\"", "\\", "/", "<", "&", "\x00", "\x1f", "\n", "\t", "\x7f", "é", "日", "\u2028", "😀", "\ufffd"}
	var b strings.Builder
	for range r.IntN(12) {
		b.WriteString(alphabet[r.IntN(len(alphabet))])
	}
	return b.String()
}

// tame brings random values into the domain of their fields.
func tame(r *rand.Rand, m Message) {
	one := func(f *Failure) {
		*f = Failure{Message: f.Message}
		if r.IntN(4) > 0 {
			f.Code = Code(1 + r.IntN(15))
			f.Retry = Retry(1 + r.IntN(5))
			f.RetryAfter = time.Duration(r.IntN(1000)) * time.Millisecond
			f.Reason = []string{"", ReasonMoving, "a\"b"}[r.IntN(3)]
		}
	}
	start := func(s *Start, least int) {
		*s = Start{Kind: StartKind(least + r.IntN(4-least)), Offset: s.Offset}
		if s.Kind != StartOffset {
			s.Offset = 0
		}
	}
	switch m := m.(type) {
	case *Auth:
		m.Features = JoinFeatures(m.Features.Words())
	case *AuthOK:
		m.Features = JoinFeatures(m.Features.Words())
	case *Error:
		one(&m.Failure)
	case *PublishError:
		one(&m.Failure)
	case *Extension:
		m.Body = []byte(`{"a":[1,2,{"b":null}]}`)
	case *ExtensionOK:
		m.Body = nil
	case *ShardInspectInfo:
		m.View = []byte(`{"role":"leader"}`)
	case *SubscriptionsList:
		m.Filter, m.Cursor = nil, []byte(`{}`)
	case *SubscriptionsListInfo:
		m.Subscriptions, m.NextCursor = []byte(`[]`), nil
	case *Publish:
		m.Ack %= 3
	case *PublishBatch:
		m.Ack %= 3
	case *PublishRefused:
		kept := *m
		*m = PublishRefused{RequestID: kept.RequestID, Message: kept.Message}
		switch r.IntN(4) {
		case 0:
			m.Reason = RefusedUnknownProducer
		case 1:
			m.Reason, m.Expected = RefusedSequenceGap, kept.Expected
		case 2:
			m.Reason, m.Tail = RefusedOffsetMismatch, kept.Tail
		case 3:
			m.Reason, m.NodeID, m.Addr = RefusedNotLeader, kept.NodeID, kept.Addr
		}
	case *Commit:
		for i := range m.Changes {
			if m.Changes[i].Delete {
				m.Changes[i].Value = nil
			}
		}
	case *StreamShardsView:
		m.Routing %= 2
	case *Subscribe:
		start(&m.Start, 0)
	case *GroupSeek:
		start(&m.Start, 1)
	case *CachePutIf:
		if m.Condition.Absent {
			m.Condition.Version = 0
		}
	}
}

// empty makes nil and empty slices alike, which the wire does not tell apart.
func empty(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		empty(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			empty(v.Field(i))
		}
	case reflect.Slice:
		if v.Len() == 0 {
			v.SetZero()
		}
		for i := range v.Len() {
			empty(v.Index(i))
		}
	}
}

func messageTypes() []string {
	types := make([]string, 0, len(messageKinds))
	for t := range messageKinds {
		types = append(types, t)
	}
	sort.Strings(types)
	return types
}

// Every message survives writing and reading whatever its values, is read the
// same by encoding/json, and is read into a used struct as into a fresh one.
func TestMessagesSurvive(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var d Decoder
	for _, typ := range messageTypes() {
		for range 60 {
			want := messageKinds[typ].make()
			fill(r, reflect.ValueOf(want).Elem())
			tame(r, want)
			frame := AppendMessage(nil, want)
			payload := frame[HeaderBytes:]

			got, err := DecodeMessage(payload)
			require.NoError(t, err, "%s", payload)
			empty(reflect.ValueOf(want))
			empty(reflect.ValueOf(got))
			require.Equal(t, want, got, "%s", payload)

			reused, err := d.Decode(payload)
			require.NoError(t, err)
			require.Equal(t, frame, AppendMessage(nil, reused), "%s", payload)
			checkAgainstStandard(t, payload)
		}
	}
}

// checkAgainstStandard holds a payload against encoding/json: what that refuses
// we refuse, and what we read and write again has the values that it sees.
func checkAgainstStandard(t testing.TB, payload []byte) {
	t.Helper()
	m, err := DecodeMessage(payload)
	if err != nil {
		return
	}
	theirs := standardObject(payload)
	require.NotNil(t, theirs, "encoding/json refuses %q", payload)
	require.Equal(t, m.Type(), theirs["type"])
	ours := standardObject(AppendMessage(nil, m)[HeaderBytes:])
	require.NotNil(t, ours, "we wrote no JSON for %q", payload)
	requireWithin(t, "", ours, theirs)
}

func standardObject(payload []byte) map[string]any {
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.UseNumber()
	var object map[string]any
	if dec.Decode(&object) != nil || object == nil || dec.More() {
		return nil
	}
	return object
}

// requireWithin fails unless every field of ours is in theirs with the same
// value. Fields of ours with their default may be missing there.
func requireWithin(t testing.TB, path string, ours, theirs any) {
	t.Helper()
	switch ours := ours.(type) {
	case map[string]any:
		object, ok := theirs.(map[string]any)
		if !ok && len(ours) == 0 {
			return
		}
		require.True(t, ok, "%s: %v against %v", path, ours, theirs)
		for k, v := range ours {
			// An unknown class reads as fatal, and a very long delay is cut.
			if k == "retry" || k == "retry_after_ms" {
				continue
			}
			requireWithin(t, path+"."+k, v, object[k])
		}
	case []any:
		list, _ := theirs.([]any)
		require.Len(t, list, len(ours), path)
		for i := range ours {
			requireWithin(t, path, ours[i], list[i])
		}
	default:
		if theirs == nil {
			theirs = map[any]any{json.Number("0"): json.Number("0"), false: false, nil: nil, "latest": "latest"}[ours]
		}
		require.Equal(t, ours, theirs, path)
	}
}

func TestMessagesRefused(t *testing.T) {
	cases := []struct{ payload, detail string }{
		{``, "not one JSON object"},
		{`null`, "not one JSON object"},
		{`[]`, "not one JSON object"},
		{`{"type":"ok"}x`, "not one JSON object"},
		{`{"type":"ok"`, "not one JSON object"},
		{`{"type":"ok",}`, "not one JSON object"},
		{"{\"type\":\"o\x01k\"}", "not one JSON object"},
		{"{\"type\":\"ok\",\"a\":\"\xff\"}", "not UTF-8"},
		{`{"a":1}`, "type: is missing"},
		{`{"type":1}`, "type: is missing"},
		{`{"Type":"ok"}`, "type: is missing"},
		{`{"type":"ok","type":"auth"}`, "type: appears twice"},
		{`{"type":"cache_ok"}`, "request_id: is missing"},
		{`{"type":"cache_ok","request_id":null}`, "request_id: is not an integer"},
		{`{"type":"cache_ok","request_id":1.0}`, "request_id: is not an integer"},
		{`{"type":"cache_ok","request_id":1e3}`, "request_id: is not an integer"},
		{`{"type":"cache_ok","request_id":-1}`, "request_id: is not an integer"},
		{`{"type":"cache_ok","request_id":-0}`, "request_id: is not an integer"},
		{`{"type":"cache_ok","request_id":"1"}`, "request_id: is not an integer"},
		{`{"type":"cache_ok","request_id":18446744073709551616}`, "request_id: is not an integer"},
		{`{"type":"cache_ok","request_id":1,"request_id":2}`, "request_id: appears twice"},
		{`{"type":"auth","tenant_id":"t","token":"x","client_flags":65536}`, "client_flags: is not an integer from 0 to 65535"},
		{`{"type":"counter_add","tenant_id":"t","namespace":"n","cache":"c","key":"k","delta":9223372036854775808,"request_id":1}`, "delta: is not"},
		{`{"type":"publish","tenant_id":"t","namespace":"n","stream":"s","payload":"YQ"}`, "payload: is not base64"},
		{`{"type":"publish","tenant_id":"t","namespace":"n","stream":"s","payload":"YR=="}`, "payload: is not base64"},
		{`{"type":"publish","tenant_id":"t","namespace":"n","stream":"s","payload":"YWFh\nYWFh"}`, "payload: is not base64"},
		{`{"type":"publish","tenant_id":"t","namespace":"n","stream":"s","payload":"_-__"}`, "payload: is not base64"},
		{`{"type":"publish","tenant_id":"t","namespace":"n","stream":"s","payload":[1]}`, "payload: is not a string"},
		{`{"type":"publish","tenant_id":"t","namespace":"n","stream":"s","payload":"","ack":"all"}`, "ack: is not"},
		{`{"type":"cache_value","tenant_id":"t","namespace":"n","cache":"c","key":"k"}`, "value: is missing"},
		{`{"type":"subscribe","tenant_id":"t","namespace":"n","stream":"s","start":{"offset":-1}}`, "offset: is not"},
		{`{"type":"subscribe","tenant_id":"t","namespace":"n","stream":"s","start":{}}`, "offset: is missing"},
		{`{"type":"subscribe","tenant_id":"t","namespace":"n","stream":"s","start":{"offset":1,"offset":2}}`, "offset: appears twice"},
		{`{"type":"group_records","records":[1],"request_id":1}`, "records: holds what is not an object"},
		{`{"type":"group_records","records":{},"request_id":1}`, "records: is not an array"},
		{`{"type":"publish_refused","request_id":1,"reason":{"a":1},"message":""}`, "reason: is an object without"},
		{`{"type":"ok"` + strings.Repeat(`,"x":1`, 64) + `}`, "more than 64 fields"},
		{`{"type":"ok","x":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, "not one JSON object"},
	}
	for _, c := range cases {
		_, err := DecodeMessage([]byte(c.payload))
		var malformed *MalformedError
		require.ErrorAs(t, err, &malformed, "%s", c.payload)
		require.Contains(t, err.Error(), c.detail, "%s", c.payload)
		_, err = new(Decoder).Decode([]byte(c.payload))
		require.ErrorContains(t, err, c.detail)
	}
}

func TestMessagesLenient(t *testing.T) {
	for payload, want := range map[string]Message{
		` { "request_id" : 7 , "type" : "cache_ok" } `:                                                                  &CacheOK{RequestID: 7},
		`{"type":"cache_ok","request_id":18446744073709551615,"new":{"a":[1.5e3,true]}}`:                                &CacheOK{RequestID: math.MaxUint64},
		`{"ty\u0070e":"cache_\u006fk","request_id":1}`:                                                                  &CacheOK{RequestID: 1},
		`{"type":"publish_ok","request_id":1,"offset":null}`:                                                            &PublishOK{RequestID: 1},
		`{"type":"cache_get","tenant_id":"t","namespace":"n","cache":"c","key":"\ud83d\ude00\ud800","request_id":null}`: &CacheGet{Tenant: "t", Namespace: "n", Cache: "c", Key: "😀\ufffd"},
		`{"type":"error","message":"m","code":"from_the_future","retry":"whatever"}`:                                    &Error{Failure{CodeName: "from_the_future", Retry: RetryFatal, Message: "m"}},
		`{"type":"error","message":"m","code":"storage","retry":"retry","detail":{"x":1}}`:                              &Error{Failure{Code: CodeStorage, Retry: RetryNow, Message: "m"}},
		`{"type":"auth","tenant_id":"t","token":"x","client_features":4294967295,"client_flags":0}`:                     &Auth{Tenant: "t", Token: "x", HasClientFlags: true, Features: 0xFFFFFFFF},
		`{"type":"auth","tenant_id":"t","token":"x","client_features":1,"client_features_hi":8}`:                        &Auth{Tenant: "t", Token: "x", Features: FeatureTopology},
		`{"type":"auth","tenant_id":"t","token":"x","extensions":true}`:                                                 &Auth{Tenant: "t", Token: "x", Extensions: true},
		`{"type":"cache_put","tenant_id":"t","namespace":"n","cache":"c","key":"k","value":""}`:                         &CachePut{Tenant: "t", Namespace: "n", Cache: "c", Key: "k", Value: []byte{}},
		`{"type":"extension","name":"counter.add_once","request_id":3,"body":null}`:                                     &Extension{Name: "counter.add_once", RequestID: 3, HasRequestID: true},
	} {
		got, err := DecodeMessage([]byte(payload))
		require.NoError(t, err, payload)
		require.Equal(t, want, got, payload)
	}
}

func TestUnknownRequest(t *testing.T) {
	for payload, want := range map[string]UnknownRequestError{
		`{"type":"frobnicate","request_id":3}`:    {Type: "frobnicate", RequestID: 3, HasRequestID: true},
		`{"type":"frobnicate","request_id":-3}`:   {Type: "frobnicate"},
		`{"type":"frobnicate","request_id":"3"}`:  {Type: "frobnicate"},
		`{"type":"","request_id":0}`:              {Type: "", HasRequestID: true},
		`{"type":"frobnicate","request_id":3.25}`: {Type: "frobnicate"},
	} {
		_, err := DecodeMessage([]byte(payload))
		var unknown *UnknownRequestError
		require.ErrorAs(t, err, &unknown)
		require.Equal(t, want, *unknown)
	}
	long := &UnknownRequestError{Type: strings.Repeat("x", 1<<20)}
	require.Less(t, len(long.Error()), 200)
}

// A malformed request names its request id, so that it can be answered.
func TestMalformedNamesRequest(t *testing.T) {
	_, err := DecodeMessage([]byte(`{"type":"cache_put","request_id":9,"key":1}`))
	var malformed *MalformedError
	require.ErrorAs(t, err, &malformed)
	require.True(t, malformed.HasRequestID)
	require.Equal(t, uint64(9), malformed.RequestID)
	require.Equal(t, "cache_put", malformed.What)
}

func TestBadTextIsReplaced(t *testing.T) {
	payload := AppendMessage(nil, &Error{Failure{Message: "a\xffb\xc3"}})[HeaderBytes:]
	m, err := DecodeMessage(payload)
	require.NoError(t, err)
	require.Equal(t, "a\ufffdb\ufffd", m.(*Error).Failure.Message)
}

func TestIsRequest(t *testing.T) {
	require.True(t, IsRequest(&Publish{}))
	require.False(t, IsRequest(&PublishOK{}))
	requests := 0
	for _, k := range messageKinds {
		if k.request {
			requests++
		}
	}
	require.Equal(t, 37, requests)
	require.Equal(t, 77, len(messageKinds))
}

// What goes on into the log must not be overwritten by the next message.
func TestDecoderOwnership(t *testing.T) {
	var d Decoder
	first := []byte(`{"type":"publish_batch","tenant_id":"t","namespace":"n","stream":"s","payloads":["YWFh","YmJi"]}`)
	m, err := d.Decode(first)
	require.NoError(t, err)
	batch := m.(*PublishBatch)
	payloads, stream := batch.Payloads, batch.Stream
	_, err = d.Decode([]byte(`{"type":"publish_batch","tenant_id":"x","namespace":"y","stream":"z","payloads":["eHh4","eHh4"]}`))
	require.NoError(t, err)
	clear(first)
	require.Equal(t, "s", stream)
	requireTexts(t, []string{"aaa", "bbb"}, payloads)
}

func TestNamesAreBounded(t *testing.T) {
	var n Names
	for i := range 10 * namesKept {
		require.Equal(t, fmt.Sprint(i), n.Get(fmt.Append(nil, i)))
	}
	require.LessOrEqual(t, len(n.m), namesKept)
	n.Get(bytes.Repeat([]byte("x"), 1<<20))
	for s := range n.m {
		require.LessOrEqual(t, len(s), MaxNameBytes)
	}
}

func FuzzMessage(f *testing.F) {
	for _, v := range loadVectors(f) {
		if v.PayloadJSON != "" {
			f.Add([]byte(v.PayloadJSON))
		}
	}
	r := rand.New(rand.NewPCG(3, 4))
	for _, typ := range messageTypes() {
		m := messageKinds[typ].make()
		fill(r, reflect.ValueOf(m).Elem())
		tame(r, m)
		f.Add(AppendMessage(nil, m)[HeaderBytes:])
	}
	var d Decoder
	f.Fuzz(func(t *testing.T, payload []byte) {
		given := bytes.Clone(payload)
		checkAgainstStandard(t, payload)
		m, err := DecodeMessage(payload)
		reused, again := d.Decode(payload)
		require.Equal(t, err == nil, again == nil)
		require.Equal(t, given, payload, "the input was changed")
		if err != nil {
			require.Equal(t, err.Error(), again.Error())
			return
		}
		frame := AppendMessage(nil, m)
		require.Equal(t, frame, AppendMessage(nil, reused))
		twice, err := DecodeMessage(frame[HeaderBytes:])
		require.NoError(t, err)
		require.Equal(t, frame, AppendMessage(nil, twice))
	})
}
