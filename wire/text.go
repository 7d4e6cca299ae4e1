package wire

import (
	"bytes"
	"encoding/base64"
	"unicode/utf8"
	"unsafe"
)

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
	if unescaped(s) {
		dst = append(dst, '"')
		dst = append(dst, s...)
		return append(dst, '"')
	}
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

var base64Strict = base64.StdEncoding.Strict()

// room returns n bytes to decode into that the message may keep.
func (c *codec) room(n int, own bool) []byte {
	if c.d == nil || own {
		return make([]byte, n)
	}
	return c.d.room(n, len(c.in))
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
	c.out = appendBase64(c.out, b)
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
