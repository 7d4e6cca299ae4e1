package wire

import (
	"bytes"
	"math"
	"strconv"
	"sync"
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
		d.reuse()
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
	outer, _ = c.enterTo(i)
	return outer
}

// enterTo is enter, and returns the index after the object.
func (c *codec) enterTo(i int) (outer object, end int) {
	outer = c.object
	end = c.parseObject(i)
	return outer, end
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
