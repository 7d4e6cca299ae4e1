package wire

import (
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"unicode/utf8"
	"unsafe"
)

// The messages that a busy cache is made of, and in hotgroup.go a busy group, are written
// and read here, without noting their fields first. What is written is what their fields methods write, byte for byte.
// What is read is only the very layout that they write, which the published clients write
// as well; of anything else these functions keep away, and the fields are looked up.

const (
	headCacheGet   = `{"type":"cache_get","tenant_id":`
	headCachePut   = `{"type":"cache_put","tenant_id":`
	headCacheValue = `{"type":"cache_value","tenant_id":`
	headCacheOK    = `{"type":"cache_ok","request_id":`
	keyNamespace   = `,"namespace":`
	keyCache       = `,"cache":`
	keyKey         = `,"key":`
	keyValue       = `,"value":`
	keyRequestID   = `,"request_id":`
	keyTTL         = `,"ttl_ms":`
	keyVersion     = `,"version":`
)

// appendHot adds the JSON of a message it knows.
func appendHot(dst []byte, m Message) ([]byte, bool) {
	switch m := m.(type) {
	case *CacheGet:
		dst = appendPlace(append(dst, headCacheGet...), m.Tenant, m.Namespace, m.Cache, m.Key)
		dst = appendUint(dst, keyRequestID, m.RequestID, m.HasRequestID)
	case *CachePut:
		dst = appendPlace(append(dst, headCachePut...), m.Tenant, m.Namespace, m.Cache, m.Key)
		dst = appendBase64(append(dst, keyValue...), m.Value)
		dst = appendUint(dst, keyRequestID, m.RequestID, m.HasRequestID)
		if m.HasTTL {
			dst = appendUint(dst, keyTTL, m.TTLMillis, true)
		} else {
			dst = append(append(dst, keyTTL...), "null"...)
		}
	case *CacheValue:
		dst = appendPlace(append(dst, headCacheValue...), m.Tenant, m.Namespace, m.Cache, m.Key)
		dst = append(dst, keyValue...)
		if m.HasValue {
			dst = appendBase64(dst, m.Value)
		} else {
			dst = append(dst, "null"...)
		}
		dst = appendUint(dst, keyRequestID, m.RequestID, m.HasRequestID)
		dst = appendUint(dst, keyVersion, m.Version, m.HasVersion)
	case *CacheOK:
		dst = strconv.AppendUint(append(dst, headCacheOK...), m.RequestID, 10)
	case *GroupPoll:
		dst = appendGroupPoll(dst, m)
	case *GroupAck:
		dst = appendGroupAck(dst, m)
	case *GroupRecords:
		dst = appendGroupRecords(dst, m)
	default:
		return dst, false
	}
	return append(dst, '}'), true
}

func appendPlace(dst []byte, tenant, namespace, cache, key string) []byte {
	dst = appendString(dst, tenant)
	dst = appendString(append(dst, keyNamespace...), namespace)
	dst = appendString(append(dst, keyCache...), cache)
	return appendString(append(dst, keyKey...), key)
}

func appendUint(dst []byte, key string, v uint64, has bool) []byte {
	if !has {
		return dst
	}
	return strconv.AppendUint(append(dst, key...), v, 10)
}

func appendBase64(dst, b []byte) []byte {
	dst = append(dst, '"')
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, '"')
}

// unescaped reports whether s is a JSON string as it stands, in ASCII.
func unescaped(s string) bool {
	b := unsafe.Slice(unsafe.StringData(s), len(s))
	for ; len(b) >= 8; b = b[8:] {
		x := binary.LittleEndian.Uint64(b)
		q, s := x^quote, x^slash
		// As in plain, and a byte above ASCII counts too. A borrow can only show a byte
		// that is none, which costs the careful way.
		if (x|(q-ones)&^q|(s-ones)&^s|(x-space)&^x)&tops != 0 {
			return false
		}
	}
	for _, c := range b {
		if c < 0x20 || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// hotKinds are what decodeHot hands out.
type hotKinds struct {
	get   CacheGet
	put   CachePut
	value CacheValue
	ok    CacheOK

	poll    GroupPoll
	ack     GroupAck
	records GroupRecords
}

// The beginnings of all that is hot.
const (
	headCache = `{"type":"cache_`
	headGroup = `{"type":"group_`
)

// decodeHot reads a message it knows, in the layout it knows.
func (d *Decoder) decodeHot(payload []byte) (Message, bool) {
	if len(payload) < len(headCacheOK) {
		return nil, false
	}
	d.reuse()
	r := layout{in: payload}
	switch string(payload[:len(headCache)]) {
	case headCache:
		return d.decodeHotCache(&r)
	case headGroup:
		return d.decodeHotGroup(&r)
	}
	return nil, false
}

// decodeHotCache is decodeHot of what begins with a cache's type.
func (d *Decoder) decodeHotCache(r *layout) (Message, bool) {
	switch r.in[len(headCache)] {
	case 'g':
		m := &d.hot.get
		r.literal(headCacheGet)
		r.place(d, &m.Tenant, &m.Namespace, &m.Cache, &m.Key)
		m.RequestID, m.HasRequestID = r.uintHas(keyRequestID)
		return m, r.end()
	case 'p':
		m := &d.hot.put
		r.literal(headCachePut)
		r.place(d, &m.Tenant, &m.Namespace, &m.Cache, &m.Key)
		r.literal(keyValue)
		m.Value = r.base64(d)
		m.RequestID, m.HasRequestID = r.uintHas(keyRequestID)
		m.TTLMillis, m.HasTTL = 0, false
		if !r.skip(keyTTL + "null") {
			m.TTLMillis, m.HasTTL = r.uintHas(keyTTL)
		}
		return m, r.end()
	case 'v':
		m := &d.hot.value
		r.literal(headCacheValue)
		r.place(d, &m.Tenant, &m.Namespace, &m.Cache, &m.Key)
		m.Value, m.HasValue = nil, false
		if !r.skip(keyValue + "null") {
			r.literal(keyValue)
			m.Value, m.HasValue = r.base64(d), true
		}
		m.RequestID, m.HasRequestID = r.uintHas(keyRequestID)
		m.Version, m.HasVersion = r.uintHas(keyVersion)
		return m, r.end()
	case 'o':
		m := &d.hot.ok
		r.literal(headCacheOK)
		m.RequestID = r.uint()
		return m, r.end()
	}
	return nil, false
}

// layout reads a message piece by piece; at the first that is another it gives up.
type layout struct {
	in     []byte
	i      int
	failed bool
}

// skip passes over s if it comes next.
func (r *layout) skip(s string) bool {
	if len(r.in)-r.i < len(s) || string(r.in[r.i:r.i+len(s)]) != s {
		return false
	}
	r.i += len(s)
	return true
}

func (r *layout) literal(s string) {
	if !r.skip(s) {
		r.failed = true
	}
}

// text is a string without escapes. Whether it is UTF-8 is not looked at.
func (r *layout) text() []byte {
	if r.failed || r.i >= len(r.in) || r.in[r.i] != '"' {
		r.failed = true
		return nil
	}
	from := r.i + 1
	end := plain(r.in, from)
	if end >= len(r.in) || r.in[end] != '"' {
		r.failed = true
		return nil
	}
	r.i = end + 1
	return r.in[from:end]
}

func (r *layout) name(d *Decoder) string {
	b := r.text()
	if !utf8.Valid(b) {
		r.failed = true
		return ""
	}
	return d.Names.Get(b)
}

func (r *layout) place(d *Decoder, tenant, namespace, cache, key *string) {
	*tenant = r.name(d)
	r.literal(keyNamespace)
	*namespace = r.name(d)
	r.literal(keyCache)
	*cache = r.name(d)
	r.literal(keyKey)
	*key = ""
	if b := r.text(); !utf8.Valid(b) {
		r.failed = true
	} else if len(b) > 0 {
		*key = unsafe.String(&b[0], len(b))
	}
}

func (r *layout) uint() uint64 {
	end := digits(r.in, r.i)
	v, ok := parseUint(r.in[r.i:end])
	if !ok {
		r.failed = true
	}
	r.i = end
	return v
}

func (r *layout) uintHas(key string) (v uint64, has bool) {
	if r.failed || !r.skip(key) {
		return 0, false
	}
	return r.uint(), true
}

func (r *layout) base64(d *Decoder) []byte {
	b := r.text()
	if r.failed {
		return nil
	}
	dst := d.room(base64Strict.DecodedLen(len(b)), len(r.in))
	n, err := base64Strict.Decode(dst, b)
	if err != nil {
		r.failed = true
		return nil
	}
	return dst[:n:n]
}

// end reports whether the message ended here and was of the layout.
func (r *layout) end() bool {
	return !r.failed && r.i == len(r.in)-1 && r.in[r.i] == '}'
}

// reuse begins to give out the Decoder's memory anew.
func (d *Decoder) reuse() {
	d.scratch = d.scratch[:0]
	if cap(d.scratch) > scratchKept {
		d.scratch = nil
	}
}

// room returns n bytes of the Decoder's for a message of so many.
func (d *Decoder) room(n, message int) []byte {
	s := d.scratch
	if cap(s)-len(s) < n {
		// What was handed out stays in the old array.
		s = make([]byte, 0, max(n, message))
	}
	d.scratch = s[:len(s)+n]
	return s[len(s) : len(s)+n : len(s)+n]
}
