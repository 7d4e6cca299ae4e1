package wire

import (
	"math"
	"strconv"
)

// ElementBytes is the memory that an element of a list of payloads takes beside its bytes.
// Whoever bounds payloads counts it, for a frame holds empty ones by the million.
const ElementBytes = 24

// MaxElements bounds a list of payloads: the elements alone may take 16 MiB.
const MaxElements = 16 << 20 / ElementBytes

var tooManyElements = "more than " + strconv.Itoa(MaxElements) + " in one request: send several"

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
			if len(list) == MaxElements {
				c.fail(name, tooManyElements)
				c.err.Limit = true
				return
			}
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
	defer func() { *p = list }()
	if s.first != '[' {
		c.fail(name, "is not an array")
		return
	}
	i := skipSpace(c.in, s.start+1)
	if c.in[i] == ']' {
		return
	}
	for c.err == nil {
		if c.in[i] != '{' {
			c.fail(name, "holds what is not an object")
			return
		}
		if len(list) < cap(list) {
			list = list[:len(list)+1]
		} else {
			var zero T
			list = append(list, zero)
		}
		outer, end := c.enterTo(i)
		if end < 0 {
			return
		}
		P(&list[len(list)-1]).fields(c)
		c.leave(outer)
		i = skipSpace(c.in, end)
		if c.in[i] == ']' {
			return
		}
		i = skipSpace(c.in, i+1)
	}
}
