package wire

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// span is one field of an object: its key, and where its value lies.
type span struct {
	key        []byte
	start, end int
	// first is the first byte of the value, which tells its kind.
	first byte
	// escaped: the value is a string with a backslash in it.
	escaped bool
	used    bool
}

const (
	// maxFields bounds the fields of one object, those we ignore included.
	maxFields = 64
	// maxDepth bounds the nesting of values.
	maxDepth = 64
)

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// scanString returns the index after the closing quote of the string that opens
// at i, or -1.
func scanString(b []byte, i int) (end int, escaped bool) {
	for i++; ; i++ {
		if i = plain(b, i); i >= len(b) {
			return -1, false
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1, escaped
		case c < 0x20:
			return -1, false
		case c == '\\':
			escaped = true
			i++
			if i >= len(b) {
				return -1, false
			}
			switch b[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				if i+4 >= len(b) {
					return -1, false
				}
				for _, h := range b[i+1 : i+5] {
					if unhex(h) < 0 {
						return -1, false
					}
				}
				i += 4
			default:
				return -1, false
			}
		}
	}
}

// What a word of 8 bytes of a string is compared with.
const (
	ones  = 0x0101010101010101
	tops  = 0x8080808080808080
	quote = 0x22 * ones
	slash = 0x5c * ones
	space = 0x20 * ones
)

// plain returns the index of the next byte from i on that means something in a
// string: a quote, a backslash or a control character. It looks at 8 bytes at
// once, which is what makes long values cheap.
func plain(b []byte, i int) int {
	for ; i+8 <= len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		q, s := x^quote, x^slash
		// The top bit of a byte is set where that byte is zero in q or s, or
		// below a space in x. Borrows reach only higher bytes, so the lowest
		// bit set is right.
		if m := ((q-ones)&^q | (s-ones)&^s | (x-space)&^x) & tops; m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c == '"' || c == '\\' || c < 0x20 {
			break
		}
	}
	return i
}

func unhex(c byte) int {
	switch {
	case c-'0' < 10:
		return int(c - '0')
	case c-'a' < 6:
		return int(c-'a') + 10
	case c-'A' < 6:
		return int(c-'A') + 10
	}
	return -1
}

func digits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' < 10 {
		i++
	}
	return i
}

func scanNumber(b []byte, i int) int {
	if i < len(b) && b[i] == '-' {
		i++
	}
	first := i
	i = digits(b, i)
	if i == first || (b[first] == '0' && i > first+1) {
		return -1
	}
	if i < len(b) && b[i] == '.' {
		from := i + 1
		if i = digits(b, from); i == from {
			return -1
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		from := i
		if i = digits(b, from); i == from {
			return -1
		}
	}
	return i
}

func scanWord(b []byte, i int, word string) int {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
}

// scanValue returns the index after the value that begins at i, or -1. escaped
// is only meaningful for a string.
func scanValue(b []byte, i, depth int) (end int, escaped bool) {
	if i >= len(b) || depth > maxDepth {
		return -1, false
	}
	switch b[i] {
	case '"':
		return scanString(b, i)
	case '{':
		return scanInner(b, i, depth, true), false
	case '[':
		return scanInner(b, i, depth, false), false
	case 't':
		return scanWord(b, i, "true"), false
	case 'f':
		return scanWord(b, i, "false"), false
	case 'n':
		return scanWord(b, i, "null"), false
	}
	return scanNumber(b, i), false
}

func scanInner(b []byte, i, depth int, object bool) int {
	last := byte(']')
	if object {
		last = '}'
	}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == last {
		return i + 1
	}
	for {
		if object {
			if i >= len(b) || b[i] != '"' {
				return -1
			}
			if i, _ = scanString(b, i); i < 0 {
				return -1
			}
			if i = skipSpace(b, i); i >= len(b) || b[i] != ':' {
				return -1
			}
			i = skipSpace(b, i+1)
		}
		if i, _ = scanValue(b, i, depth+1); i < 0 {
			return -1
		}
		if i = skipSpace(b, i); i >= len(b) {
			return -1
		}
		if b[i] == last {
			return i + 1
		}
		if b[i] != ',' {
			return -1
		}
		i = skipSpace(b, i+1)
	}
}

// parse checks that the whole input is one JSON object in UTF-8 and notes its
// fields.
func (c *codec) parse() {
	if !utf8.Valid(c.in) {
		c.fail("", "text is not UTF-8")
		return
	}
	i := skipSpace(c.in, 0)
	end := c.parseObject(i)
	if end >= 0 && skipSpace(c.in, end) == len(c.in) {
		return
	}
	c.fail("", "not one JSON object")
}

// parseObject notes the fields of the object at i and returns the index after
// it, or -1.
func (c *codec) parseObject(i int) int {
	b := c.in
	c.object = object{base: len(c.spans)}
	if i >= len(b) || b[i] != '{' {
		return -1
	}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == '}' {
		return i + 1
	}
	for {
		if c.object.n == maxFields {
			c.fail("", "more than 64 fields in one object")
			return -1
		}
		if i >= len(b) || b[i] != '"' {
			return -1
		}
		end, escaped := scanString(b, i)
		if end < 0 {
			return -1
		}
		key := b[i+1 : end-1]
		if escaped {
			key = unescape(nil, key)
		}
		if i = skipSpace(b, end); i >= len(b) || b[i] != ':' {
			return -1
		}
		i = skipSpace(b, i+1)
		end, escaped = scanValue(b, i, 1)
		if end < 0 {
			return -1
		}
		c.spans = append(c.spans, span{key: key, start: i, end: end, first: b[i], escaped: escaped})
		c.object.n++
		if i = skipSpace(b, end); i >= len(b) {
			return -1
		}
		if b[i] == '}' {
			return i + 1
		}
		if b[i] != ',' {
			return -1
		}
		i = skipSpace(b, i+1)
	}
}

// unescape adds the text of a scanned string, without its quotes, to dst. It
// never adds more bytes than it reads. A surrogate without its partner becomes
// U+FFFD.
func unescape(dst, s []byte) []byte {
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			dst = append(dst, s[i])
			continue
		}
		i++
		switch s[i] {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := hex4(s[i+1:])
			i += 4
			if r >= 0xD800 && r < 0xDC00 && i+6 < len(s) && s[i+1] == '\\' && s[i+2] == 'u' {
				if low := hex4(s[i+3:]); low >= 0xDC00 && low < 0xE000 {
					r = 0x10000 + (r-0xD800)<<10 + (low - 0xDC00)
					i += 6
				}
			}
			dst = utf8.AppendRune(dst, r)
		default:
			dst = append(dst, s[i])
		}
	}
	return dst
}

func hex4(s []byte) rune {
	return rune(unhex(s[0])<<12 | unhex(s[1])<<8 | unhex(s[2])<<4 | unhex(s[3]))
}
