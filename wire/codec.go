package wire

import (
	"bytes"
	"encoding/base64"
	"math"
	"strconv"
	"sync"
	"unicode/utf8"
	"unsafe"
)

// codec writes or reads the fields of one message. Message.fields calls its
// methods in the order of the protocol: when writing, each adds its field; when
// reading, each looks its field up among those that parse noted.
type codec struct {
	// out is set when writing.
	out     []byte
	writing bool
	// begun: the object being written has a field already.
	begun bool

	in    []byte
	spans []span
	object
	d   *Decoder
	err *MalformedError
}

// object is the part of spans that belongs to the object being read.
type object struct {
	base, n int
	// next is where the next field is expected; used counts those asked for.
	next, used int
}

var codecs = sync.Pool{New: func() any { return new(codec) }}

func (c *codec) beginEncode(dst []byte) {
	c.out, c.writing, c.begun = dst, true, true
}

func (c *codec) beginDecode(payload []byte, d *Decoder) {
	c.in, c.d, c.writing = payload, d, false
	if d != nil {
		d.scratch = d.scratch[:0]
		if cap(d.scratch) > scratchKept {
			d.scratch = nil
		}
	}
}

func (c *codec) release() {
	clear(c.spans)
	*c = codec{spans: c.spans[:0]}
	codecs.Put(c)
}

func (c *codec) decoding() bool { return !c.writing }

// fail notes the first thing that is wrong.
func (c *codec) fail(field, what string) {
	if c.err != nil {
		return
	}
	if field != "" {
		what = field + ": " + what
	}
	c.err = &MalformedError{Detail: what}
}

// malformed completes the error with what could be read of the message.
func (c *codec) malformed() error {
	c.object = object{n: min(len(c.spans), maxFields)}
	if t, ok := c.typeName(); ok && len(t) <= MaxNameBytes {
		c.err.What = string(t)
	}
	c.err.RequestID, c.err.HasRequestID = c.requestID()
	return c.err
}

func (c *codec) typeName() ([]byte, bool) {
	for i := range c.n {
		if s := &c.spans[i]; string(s.key) == "type" {
			if !s.used {
				s.used = true
				c.used++
			}
			c.next = i + 1
			return c.stringBytes(s), s.first == '"'
		}
	}
	return nil, false
}

func (c *codec) requestID() (uint64, bool) {
	for i := range c.spans {
		if s := &c.spans[i]; string(s.key) == "request_id" {
			return parseUint(c.in[s.start:s.end])
		}
	}
	return 0, false
}

// find returns the field of the name, or nil when it is absent.
func (c *codec) find(name string) *span {
	fields := c.spans[c.base : c.base+c.n]
	if c.next < len(fields) && string(fields[c.next].key) == name {
		s := &fields[c.next]
		c.next++
		c.used++
		s.used = true
		return s
	}
	for i := range fields {
		if s := &fields[i]; string(s.key) == name && !s.used {
			c.next = i + 1
			c.used++
			s.used = true
			return s
		}
	}
	return nil
}

// findSet is find, with null taken for absent.
func (c *codec) findSet(name string) *span {
	if s := c.find(name); s != nil && s.first != 'n' {
		return s
	}
	return nil
}

func (c *codec) need(name string) *span {
	s := c.find(name)
	if s == nil {
		c.fail(name, "is missing")
	}
	return s
}

// refuseDuplicates refuses a field given twice: two readers could disagree on
// which counts.
func (c *codec) refuseDuplicates() {
	if c.used == c.n {
		return
	}
	fields := c.spans[c.base : c.base+c.n]
	for i := range fields {
		if fields[i].used {
			continue
		}
		for j := range fields {
			if fields[j].used && bytes.Equal(fields[i].key, fields[j].key) {
				c.fail(string(fields[i].key), "appears twice")
				return
			}
		}
	}
}

// enter begins to read the object at i inside the present one, which leave
// returns to.
func (c *codec) enter(i int) (outer object) {
	outer = c.object
	c.parseObject(i)
	return outer
}

func (c *codec) leave(outer object) {
	c.refuseDuplicates()
	c.spans = c.spans[:c.base]
	c.object = outer
}

// key writes a comma where one is due, and the name.
func (c *codec) key(name string) {
	if c.begun {
		c.out = append(c.out, ',')
	}
	c.begun = true
	c.out = append(c.out, '"')
	c.out = append(c.out, name...)
	c.out = append(c.out, '"', ':')
}

// ---- integers

func parseUint(b []byte) (uint64, bool) {
	if len(b) == 0 || len(b) > 20 || (b[0] == '0' && len(b) > 1) {
		return 0, false
	}
	var v uint64
	for _, c := range b {
		d := uint64(c - '0')
		if d > 9 || v > (math.MaxUint64-d)/10 {
			return 0, false
		}
		v = v*10 + d
	}
	return v, true
}

func parseInt(b []byte) (int64, bool) {
	if len(b) > 0 && b[0] == '-' {
		v, ok := parseUint(b[1:])
		if !ok || v == 0 || v > 1<<63 {
			return 0, false
		}
		return -int64(v), true
	}
	v, ok := parseUint(b)
	return int64(v), ok && v <= math.MaxInt64
}

func (c *codec) uintAt(s *span, name string, most uint64) uint64 {
	v, ok := parseUint(c.in[s.start:s.end])
	if !ok || v > most {
		c.fail(name, "is not an integer from 0 to "+strconv.FormatUint(most, 10))
		return 0
	}
	return v
}

func (c *codec) putUint(name string, v uint64) {
	c.key(name)
	c.out = strconv.AppendUint(c.out, v, 10)
}

func (c *codec) readUint(name string, most uint64) uint64 {
	if s := c.need(name); s != nil {
		return c.uintAt(s, name, most)
	}
	return 0
}

func (c *codec) readUintSet(name string, most uint64) (v uint64, has bool) {
	if s := c.findSet(name); s != nil {
		return c.uintAt(s, name, most), true
	}
	return 0, false
}

func (c *codec) u64(name string, p *uint64) {
	if c.writing {
		c.putUint(name, *p)
		return
	}
	*p = c.readUint(name, math.MaxUint64)
}

func (c *codec) u64Has(name string, p *uint64, has *bool) {
	if c.writing {
		if *has {
			c.putUint(name, *p)
		}
		return
	}
	*p, *has = c.readUintSet(name, math.MaxUint64)
}

// u64Null writes null when unset, and reads null and absence alike.
func (c *codec) u64Null(name string, p *uint64, has *bool) {
	if c.writing && !*has {
		c.key(name)
		c.out = append(c.out, "null"...)
		return
	}
	c.u64Has(name, p, has)
}

func (c *codec) u64Default(name string, p *uint64) {
	has := *p != 0
	c.u64Has(name, p, &has)
}

// u64Always is written even when zero, and may be absent when read.
func (c *codec) u64Always(name string, p *uint64) {
	has := true
	c.u64Has(name, p, &has)
}

func (c *codec) u32(name string, p *uint32) {
	if c.writing {
		c.putUint(name, uint64(*p))
		return
	}
	*p = uint32(c.readUint(name, math.MaxUint32))
}

func (c *codec) u32Has(name string, p *uint32, has *bool) {
	if c.writing {
		if *has {
			c.putUint(name, uint64(*p))
		}
		return
	}
	v, ok := c.readUintSet(name, math.MaxUint32)
	*p, *has = uint32(v), ok
}

func (c *codec) u32Default(name string, p *uint32) {
	has := *p != 0
	c.u32Has(name, p, &has)
}

func (c *codec) u16(name string, p *uint16) {
	if c.writing {
		c.putUint(name, uint64(*p))
		return
	}
	*p = uint16(c.readUint(name, math.MaxUint16))
}

func (c *codec) u16Has(name string, p *uint16, has *bool) {
	if c.writing {
		if *has {
			c.putUint(name, uint64(*p))
		}
		return
	}
	v, ok := c.readUintSet(name, math.MaxUint16)
	*p, *has = uint16(v), ok
}

func (c *codec) i64(name string, p *int64) {
	has := true
	c.i64Has(name, p, &has)
	if !has {
		c.fail(name, "is missing")
	}
}

func (c *codec) i64Has(name string, p *int64, has *bool) {
	if c.writing {
		if *has {
			c.key(name)
			c.out = strconv.AppendInt(c.out, *p, 10)
		}
		return
	}
	*p, *has = 0, false
	if s := c.findSet(name); s != nil {
		v, ok := parseInt(c.in[s.start:s.end])
		if !ok {
			c.fail(name, "is not an integer of 64 bits")
			return
		}
		*p, *has = v, true
	}
}

func (c *codec) features(lo, hi string, p *Features) {
	if c.writing {
		l, h := p.Words()
		c.u32Default(lo, &l)
		c.u32Default(hi, &h)
		return
	}
	var l, h uint32
	c.u32Default(lo, &l)
	c.u32Default(hi, &h)
	*p = JoinFeatures(l, h)
}

// ---- booleans

func (c *codec) boolean(name string, p *bool) {
	if c.writing {
		c.key(name)
		c.out = strconv.AppendBool(c.out, *p)
		return
	}
	*p = false
	if s := c.need(name); s != nil {
		c.boolAt(s, name, p)
	}
}

func (c *codec) boolAt(s *span, name string, p *bool) {
	if s.first != 't' && s.first != 'f' {
		c.fail(name, "is not true or false")
		return
	}
	*p = s.first == 't'
}

// boolDefault is left out when false.
func (c *codec) boolDefault(name string, p *bool) {
	if c.writing {
		if *p {
			c.boolean(name, p)
		}
		return
	}
	*p = false
	if s := c.findSet(name); s != nil {
		c.boolAt(s, name, p)
	}
}

// boolAlways is written even when false, and may be absent when read.
func (c *codec) boolAlways(name string, p *bool) {
	if c.writing {
		c.boolean(name, p)
		return
	}
	c.boolDefault(name, p)
}

// ---- text

// stringBytes returns the text of a string field, a view of the input or, where
// there were escapes, of fresh memory.
func (c *codec) stringBytes(s *span) []byte {
	if s.first != '"' {
		return nil
	}
	b := c.in[s.start+1 : s.end-1]
	if s.escaped {
		b = unescape(make([]byte, 0, len(b)), b)
	}
	return b
}

type textUse uint8

const (
	textOwn textUse = iota
	textName
	textView
)

func (c *codec) textAt(s *span, name string, use textUse) string {
	if s.first != '"' {
		c.fail(name, "is not a string")
		return ""
	}
	b := c.stringBytes(s)
	switch {
	case c.d == nil || use == textOwn:
		return string(b)
	case use == textName:
		return c.d.Names.Get(b)
	case len(b) == 0:
		return ""
	default:
		return unsafe.String(&b[0], len(b))
	}
}

func (c *codec) required(name string, p *string, use textUse) {
	if c.writing {
		c.key(name)
		c.out = appendString(c.out, *p)
		return
	}
	*p = ""
	if s := c.need(name); s != nil {
		*p = c.textAt(s, name, use)
	}
}

// name is required text that outlives the message.
func (c *codec) name(name string, p *string) { c.required(name, p, textName) }

// view is required text that a Decoder does not copy.
func (c *codec) view(name string, p *string) { c.required(name, p, textView) }

func (c *codec) text(name string, p *string) { c.required(name, p, textOwn) }

func (c *codec) textHas(name string, p *string, has *bool) {
	if c.writing {
		if *has {
			c.text(name, p)
		}
		return
	}
	*p, *has = "", false
	if s := c.findSet(name); s != nil {
		*p, *has = c.textAt(s, name, textOwn), true
	}
}

// textDefault is left out when empty.
func (c *codec) textDefault(name string, p *string) {
	has := *p != ""
	c.textHas(name, p, &has)
}

func (c *codec) scope(tenant, namespace *string) {
	c.name("tenant_id", tenant)
	c.name("namespace", namespace)
}

const hexDigits = "0123456789abcdef"

// appendString adds s as a JSON string, with the escapes that the protocol's
// other implementations write: those JSON demands, and no more.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		ch := s[i]
		if ch < utf8.RuneSelf {
			if ch >= 0x20 && ch != '"' && ch != '\\' {
				i++
				continue
			}
			dst = append(dst, s[from:i]...)
			switch ch {
			case '"', '\\':
				dst = append(dst, '\\', ch)
			case '\b':
				dst = append(dst, '\\', 'b')
			case '\f':
				dst = append(dst, '\\', 'f')
			case '\n':
				dst = append(dst, '\\', 'n')
			case '\r':
				dst = append(dst, '\\', 'r')
			case '\t':
				dst = append(dst, '\\', 't')
			default:
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[ch>>4], hexDigits[ch&15])
			}
			i++
			from = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			dst = append(dst, s[from:i]...)
			dst = utf8.AppendRune(dst, utf8.RuneError)
			from = i + 1
		}
		i += n
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}

// ---- bytes in base64

var base64Strict = base64.StdEncoding.Strict()

// room returns n bytes to decode into that the message may keep.
func (c *codec) room(n int, own bool) []byte {
	if c.d == nil || own {
		return make([]byte, n)
	}
	s := c.d.scratch
	if cap(s)-len(s) < n {
		// What was handed out stays in the old array.
		s = make([]byte, 0, max(n, len(c.in)))
	}
	c.d.scratch = s[:len(s)+n]
	return s[len(s) : len(s)+n : len(s)+n]
}

func (c *codec) bytesAt(first byte, start, end int, escaped bool, name string, own bool) []byte {
	if first != '"' {
		c.fail(name, "is not a string in base64")
		return nil
	}
	b := c.stringBytes(&span{start: start, end: end, first: first, escaped: escaped})
	// The standard decoder passes over line breaks, which only an escape can
	// have brought here.
	if escaped && bytes.ContainsAny(b, "\r\n") {
		c.fail(name, "is not base64 with padding")
		return nil
	}
	dst := c.room(base64Strict.DecodedLen(len(b)), own)
	n, err := base64Strict.Decode(dst, b)
	if err != nil {
		c.fail(name, "is not base64 with padding")
		return nil
	}
	return dst[:n:n]
}

func (c *codec) putBytes(b []byte) {
	c.out = append(c.out, '"')
	c.out = base64.StdEncoding.AppendEncode(c.out, b)
	c.out = append(c.out, '"')
}

func (c *codec) bytesRequired(name string, p *[]byte, own bool) {
	if c.writing {
		c.key(name)
		c.putBytes(*p)
		return
	}
	*p = nil
	if s := c.need(name); s != nil {
		*p = c.bytesAt(s.first, s.start, s.end, s.escaped, name, own)
	}
}

func (c *codec) bytes(name string, p *[]byte) { c.bytesRequired(name, p, false) }

// ownBytes are copied even by a Decoder, since they go on into the log.
func (c *codec) ownBytes(name string, p *[]byte) { c.bytesRequired(name, p, true) }

func (c *codec) bytesOptional(name string, p *[]byte, has *bool, own bool) {
	if c.writing {
		if *has {
			c.bytesRequired(name, p, own)
		}
		return
	}
	*p, *has = nil, false
	if s := c.findSet(name); s != nil {
		*p, *has = c.bytesAt(s.first, s.start, s.end, s.escaped, name, own), true
	}
}

func (c *codec) bytesHas(name string, p *[]byte, has *bool) { c.bytesOptional(name, p, has, false) }

func (c *codec) ownBytesHas(name string, p *[]byte, has *bool) { c.bytesOptional(name, p, has, true) }

// bytesNull is always present, null when unset.
func (c *codec) bytesNull(name string, p *[]byte, has *bool) {
	if c.writing && !*has {
		c.key(name)
		c.out = append(c.out, "null"...)
		return
	}
	if c.writing {
		c.bytesRequired(name, p, false)
		return
	}
	*p, *has = nil, false
	if s := c.need(name); s != nil && s.first != 'n' {
		*p, *has = c.bytesAt(s.first, s.start, s.end, s.escaped, name, false), true
	}
}

// ---- lists

// elements calls f for each element of the array of a field.
func (c *codec) elements(s *span, name string, f func(start, end int, escaped bool)) {
	if s.first != '[' {
		c.fail(name, "is not an array")
		return
	}
	i := skipSpace(c.in, s.start+1)
	if c.in[i] == ']' {
		return
	}
	for c.err == nil {
		end, escaped := scanValue(c.in, i, 1)
		f(i, end, escaped)
		i = skipSpace(c.in, end)
		if c.in[i] == ']' {
			return
		}
		i = skipSpace(c.in, i+1)
	}
}

func (c *codec) bytesListAs(name string, p *[][]byte, own bool) {
	if c.writing {
		c.key(name)
		c.out = append(c.out, '[')
		for i, b := range *p {
			if i > 0 {
				c.out = append(c.out, ',')
			}
			c.putBytes(b)
		}
		c.out = append(c.out, ']')
		return
	}
	list := (*p)[:0]
	if own {
		list = nil
	}
	if s := c.need(name); s != nil {
		c.elements(s, name, func(start, end int, escaped bool) {
			list = append(list, c.bytesAt(c.in[start], start, end, escaped, name, own))
		})
	}
	*p = list
}

func (c *codec) bytesList(name string, p *[][]byte) { c.bytesListAs(name, p, false) }

func (c *codec) ownBytesList(name string, p *[][]byte) { c.bytesListAs(name, p, true) }

func (c *codec) u64List(name string, p *[]uint64) {
	if c.writing {
		c.key(name)
		c.out = append(c.out, '[')
		for i, v := range *p {
			if i > 0 {
				c.out = append(c.out, ',')
			}
			c.out = strconv.AppendUint(c.out, v, 10)
		}
		c.out = append(c.out, ']')
		return
	}
	list := (*p)[:0]
	if s := c.need(name); s != nil {
		c.elements(s, name, func(start, end int, _ bool) {
			list = append(list, c.uintAt(&span{start: start, end: end}, name, math.MaxUint64))
		})
	}
	*p = list
}

// u16List is left out when empty.
func (c *codec) u16List(name string, p *[]uint16) {
	if c.writing {
		if len(*p) == 0 {
			return
		}
		c.key(name)
		c.out = append(c.out, '[')
		for i, v := range *p {
			if i > 0 {
				c.out = append(c.out, ',')
			}
			c.out = strconv.AppendUint(c.out, uint64(v), 10)
		}
		c.out = append(c.out, ']')
		return
	}
	list := (*p)[:0]
	if s := c.findSet(name); s != nil {
		c.elements(s, name, func(start, end int, _ bool) {
			list = append(list, uint16(c.uintAt(&span{start: start, end: end}, name, math.MaxUint16)))
		})
	}
	*p = list
}

// stringList is left out when empty.
func (c *codec) stringList(name string, p *[]string) {
	if c.writing {
		if len(*p) == 0 {
			return
		}
		c.key(name)
		c.out = append(c.out, '[')
		for i, v := range *p {
			if i > 0 {
				c.out = append(c.out, ',')
			}
			c.out = appendString(c.out, v)
		}
		c.out = append(c.out, ']')
		return
	}
	list := (*p)[:0]
	if s := c.findSet(name); s != nil {
		c.elements(s, name, func(start, end int, escaped bool) {
			at := span{start: start, end: end, first: c.in[start], escaped: escaped}
			list = append(list, c.textAt(&at, name, textOwn))
		})
	}
	*p = list
}

// list is a required array of objects.
func list[T any, P interface {
	*T
	fields(*codec)
}](c *codec, name string, p *[]T) {
	if c.writing {
		c.key(name)
		c.out = append(c.out, '[')
		for i := range *p {
			if i > 0 {
				c.out = append(c.out, ',')
			}
			c.out = append(c.out, '{')
			c.begun = false
			P(&(*p)[i]).fields(c)
			c.out = append(c.out, '}')
		}
		c.begun = true
		c.out = append(c.out, ']')
		return
	}
	if s := c.need(name); s != nil {
		readList[T, P](c, s, name, p)
		return
	}
	*p = (*p)[:0]
}

// listDefault is list, absent when read meaning empty.
func listDefault[T any, P interface {
	*T
	fields(*codec)
}](c *codec, name string, p *[]T) {
	if c.writing {
		list[T, P](c, name, p)
		return
	}
	if s := c.findSet(name); s != nil {
		readList[T, P](c, s, name, p)
		return
	}
	*p = (*p)[:0]
}

func readList[T any, P interface {
	*T
	fields(*codec)
}](c *codec, s *span, name string, p *[]T) {
	list := (*p)[:0]
	c.elements(s, name, func(start, _ int, _ bool) {
		if c.in[start] != '{' {
			c.fail(name, "holds what is not an object")
			return
		}
		if len(list) < cap(list) {
			list = list[:len(list)+1]
		} else {
			var zero T
			list = append(list, zero)
		}
		outer := c.enter(start)
		P(&list[len(list)-1]).fields(c)
		c.leave(outer)
	})
	*p = list
}

// ---- JSON kept as it is

// raw is left out when empty; null reads as empty.
func (c *codec) raw(name string, p *[]byte) {
	if c.writing {
		if len(*p) > 0 {
			c.key(name)
			c.out = append(c.out, *p...)
		}
		return
	}
	*p = nil
	if s := c.findSet(name); s != nil {
		*p = c.in[s.start:s.end:s.end]
		if c.d == nil {
			*p = bytes.Clone(*p)
		}
	}
}
